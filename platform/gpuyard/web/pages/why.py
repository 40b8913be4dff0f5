"""Why a workload waits, and why it runs where it runs, as cards."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpuyard.core.models import User
from gpuyard.web import wording
from gpuyard.web.workload_contexts import BlockerView, CandidateNode, Holder, VerdictCard, WhyHere
from scheduling.models import Attempt, Workload
from scheduling.selectors import Explanation, Reason, attempt_reasons, queue_list, verdict_explain
from tenants.selectors import teams_visible

NEVER = frozenset({"never_fits_node", "tier_unknown"})


def hopeless_first(known: Explanation) -> list[Reason]:
    """What no waiting would cure stands first, whatever the order of the checks."""
    return sorted(known.reasons, key=lambda reason: not _is_hopeless(reason))


def verdict_card(actor: User, workload: Workload) -> VerdictCard | None:
    known = verdict_explain(actor, workload)
    if known is None:
        return None
    names = {str(team.pk): team.name for team in teams_visible(actor)}
    return VerdictCard(
        headline=_headline(known),
        detail=_detail(known),
        basis=_basis(known.eta_basis),
        position=None if is_never(known) else known.position or None,
        queue_length=max(queue_list(actor).count(), known.position),
        pass_number=known.pass_number,
        pass_at=known.as_of,
        blockers=[_blocker(reason, names, known.as_of) for reason in hopeless_first(known)],
        change=known.change,
    )


def _basis(code: str) -> str:
    return {
        "time_limits": _("From the time limits of what runs now."),
        "class_defaults": _("Some of what runs has no time limit: from how long its kind usually runs."),
        "reservation": _("GPUs are reserved for it from then on; nobody behind it in line can delay it."),
        "promise": _("GPUs are reserved for it from then on; nobody behind it in line can delay it."),
    }.get(code, "")


def is_never(known: Explanation) -> bool:
    return any(_is_hopeless(reason) for reason in known.reasons)


def _is_hopeless(reason: Reason) -> bool:
    return reason.code in NEVER or (reason.code == "gang_split" and reason.data.get("ever") is False)


def _headline(known: Explanation) -> str:
    if known.eta is not None:
        return _("about %s") % wording.clock(known.eta, known.as_of)
    return _("never, as asked") if is_never(known) else _("when there is room")


def _detail(known: Explanation) -> str:
    if known.eta is not None:
        ahead = wording.duration((known.eta - known.as_of).total_seconds())
        if known.eta_basis == "class_defaults":
            return _("in %s, if work without a time limit runs as long as usual") % ahead
        return _("in %s at the latest, if nothing ends earlier") % ahead
    if is_never(known):
        return _("No node that has joined could hold it, even when empty.")
    return _("What runs now has no time limit, so nobody can say when.")


def _blocker(reason: Reason, names: Mapping[str, str], as_of: datetime) -> BlockerView:
    return BlockerView(
        code=reason.code,
        sentence=wording.sentence(reason.text),
        holders=[_holder(held, names, as_of) for held in reason.data.get("holders", ())],
    )


def _holder(held: Mapping[str, Any], names: Mapping[str, str], as_of: datetime) -> Holder:
    team = names.get(str(held["team_id"]), "")
    count = held["gpus"]
    ends = held.get("next_end_us")
    return Holder(
        name=_("team %s") % team if team else _("other teams"),
        url="",
        team="",
        what=ngettext("%(n)s GPU", "%(n)s GPUs", round(count)) % {"n": wording.number(count)},
        ends=_("first ends by %s") % _clock(ends, as_of) if ends else _("no time limit"),
    )


def _clock(microseconds: int, as_of: datetime) -> str:
    moment = datetime.fromtimestamp(microseconds / 1_000_000, UTC)
    return wording.clock(moment, as_of)


def why_here(attempt: Attempt) -> WhyHere | None:
    """From what the pass stored; None for an attempt that it did not explain."""
    if not attempt.why_here:
        return None
    score, runner_up = attempt.why_here["score"], attempt.why_here.get("runner_up")
    assert attempt.workload.spec is not None
    gpus = int(attempt.workload.spec.document["request"]["gpus_per_replica"])
    candidates = [CandidateNode(name=score["node_name"], picked=True, sentence=_left(score, gpus))]
    for node in attempt.replicas.all():
        if node.node.name not in {one.name for one in candidates}:
            candidates.append(
                CandidateNode(name=node.node.name, picked=True, sentence=_("The gang’s next node."))
            )
    if runner_up and runner_up["node_name"] not in {one.name for one in candidates}:
        candidates.append(
            CandidateNode(name=runner_up["node_name"], picked=False, sentence=_left(runner_up, gpus))
        )
    return WhyHere(
        why_now=attempt_reasons(attempt).partition(". On ")[0].rstrip(".") + ".",
        candidates=candidates,
        pass_number=attempt.pass_number,
        pass_at=attempt.created_at,
        borrowed=attempt.borrowed,
    )


def _left(score: Mapping[str, Any], gpus: int) -> str:
    left = score["gpus_left"]
    words = (
        _("Filled to the last GPU.")
        if not left
        else ngettext("Leaves %(n)s GPU free.", "Leaves %(n)s GPUs free.", left) % {"n": left}
    )
    if score.get("breaks_whole_node"):
        words += " " + _("Breaks up a whole free node.")
    if score.get("one_island") and gpus > 1:
        words += " " + _("All on one island.")
    return words
