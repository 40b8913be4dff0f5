"""Why a workload waits, and why it runs where it runs, as cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.fleet.models import Tier
from gpuyard.web import wording
from gpuyard.web.contexts import Part
from gpuyard.web.pages import clearing
from gpuyard.web.workload_contexts import (
    BlockerBar,
    BlockerView,
    CandidateNode,
    EvictionView,
    Holder,
    ScorePart,
    VerdictCard,
    WhyHere,
)
from scheduling.explanations import evictions_texts
from scheduling.models import Attempt, Workload
from scheduling.selectors import (
    Explanation,
    Reason,
    attempt_reasons,
    eviction_list,
    last_pass,
    queue_list,
    verdict_explain,
)
from tenants.selectors import teams_visible

MOST_EVICTIONS = 20
QUOTAS = frozenset(
    {"quota_limit", "quota_limit_total", "not_preemptible", "lend_limit", "headroom", "sessions"}
)
NEVER = frozenset({"never_fits_node", "tier_unknown"})


def hopeless_first(known: Explanation) -> list[Reason]:
    """What no waiting would cure stands first, whatever the order of the checks."""
    return sorted(known.reasons, key=lambda reason: not _is_hopeless(reason))


def verdict_card(actor: User, workload: Workload) -> VerdictCard | None:
    known = verdict_explain(actor, workload)
    if known is None:
        return None
    names = {str(team.pk): team.name for team in teams_visible(actor)}
    number, passed_at = last_pass()
    return VerdictCard(
        headline=_headline(known),
        detail=_detail(known),
        basis=_basis(known.eta_basis),
        position=None if is_never(known) else known.position or None,
        queue_length=max(queue_list(actor).count(), known.position),
        pass_number=known.pass_number,
        pass_at=known.as_of,
        judged_in=max(number, known.pass_number),
        judged_at=passed_at or known.as_of,
        blockers=[_blocker(reason, names, known.as_of) for reason in hopeless_first(known)],
        change=known.change,
        change_url=_change_url(workload, known.change_data),
        pass_url=_pass_url(actor, known.pass_number),
        clearing=clearing.build(actor, [workload], clock.now()),
    )


def _change_url(workload: Workload, change: Mapping[str, Any] | None) -> str:
    """The request form with the smallest change filled in, where the requester can make it themselves."""
    kind = change["kind"] if change else ""
    asked = {"again": workload.public_id}
    if change is None or kind not in ("other_tier", "fewer_gpus"):
        return ""
    if kind == "fewer_gpus":
        asked["gpus"] = str(change["gpus_per_replica"])
    if change.get("tier"):
        tier = Tier.objects.filter(pk=change["tier"]).values_list("name", flat=True).first()
        asked |= {"tier": tier} if tier else {}
    return f"{reverse('web:request')}?{urlencode(asked)}"


def _pass_url(actor: User, number: int) -> str:
    return reverse("web:pass", args=[number]) if actor.is_platform_admin and number else ""


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


def blocker_label(code: str) -> str:
    """A blocker in two or three words, where its sentence would be too long."""
    return {
        "quota_limit": _("team limit"),
        "quota_limit_total": _("limit over all tiers"),
        "not_preemptible": _("may not be interrupted"),
        "lend_limit": _("lending limit"),
        "headroom": _("kept free for services"),
        "tier_unknown": _("unknown tier"),
        "never_fits_node": _("larger than any node"),
        "pool_not_allowed": _("closed pools"),
        "nodes_cordoned": _("nodes out of service"),
        "no_ready_gpu": _("no GPU ready"),
        "not_enough_free_gpus": _("too few free GPUs"),
        "gang_split": _("not all replicas at once"),
        "cpu": _("CPU"),
        "memory": _("memory"),
        "reservation": _("reserved for others"),
        "budget": _("budget"),
        "not_before": _("not its time yet"),
        "dependency": _("other work first"),
        "array_cap": _("enough of its array run"),
        "sessions": _("most GPUs in sessions"),
        "node_selection": _("labels of nodes"),
        "topology": _("not close enough together"),
        "share": _("no card with so much free"),
        "leaving": _("others are leaving"),
        "changed_meanwhile": _("something that changed meanwhile"),
    }.get(code, code.replace("_", " "))


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
        bar=_bar(reason.code, reason.data),
        holders=[_holder(held, names, as_of) for held in reason.data.get("holders", ())],
    )


def _bar(code: str, data: Mapping[str, Any]) -> BlockerBar | None:
    """Where a picture says it sooner: use and limit, or the largest free block and what is needed."""
    if code in QUOTAS and {"used", "limit", "asked"} <= data.keys():
        used, limit, asked = (float(data[key]) / UNITS_PER_GPU for key in ("used", "limit", "asked"))
        text = _("%(used)s in use, %(asked)s more asked for, %(limit)s allowed")
        parts = (Part(fill="active", value=used, label=""), Part(fill="claimed", value=asked, label=""))
        return _drawn(text, parts, limit, used=used, asked=asked, limit=limit)
    if code == "not_enough_free_gpus" and data.get("replicas_min") == 1:
        free, need = float(data["largest_free"]), float(data["gpus_per_replica"])
        text = _("%(free)s free on one node, %(need)s needed")
        return _drawn(text, (Part(fill="ink", value=free, label=""),), need, free=free, need=need)
    if code in ("not_enough_free_gpus", "gang_split"):
        gang = code == "gang_split"
        free = float(data["replicas_fit"] if gang else data["total_free"])
        need = float(data["replicas_min"] if gang else data["needed"])
        text = _("%(free)s of %(need)s replicas fit") if gang else _("%(free)s free, %(need)s needed")
        return _drawn(text, (Part(fill="ink", value=free, label=""),), need, free=free, need=need)
    return None


def _drawn(text: str, parts: Sequence[Part], tick: float, **numbers: float) -> BlockerBar:
    shown = {name: wording.number(round(value, 2)) for name, value in numbers.items()}
    scale = max(tick, sum(part.value for part in parts), 1)
    return BlockerBar(text=text % shown, parts=parts, scale=scale, tick=tick)


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


def why_here(actor: User, attempt: Attempt) -> WhyHere | None:
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
        score=_score(score, runner_up),
        pass_url=_pass_url(actor, attempt.pass_number),
        pass_number=attempt.pass_number,
        pass_at=attempt.created_at,
        borrowed=attempt.borrowed,
    )


def _score(picked: Mapping[str, Any], runner_up: Mapping[str, Any] | None) -> list[ScorePart]:
    """What the cost of the place is made of, smaller is better; empty for a start that did not keep it."""
    parts, others = picked.get("parts") or {}, (runner_up or {}).get("parts") or {}
    rows = [(_part_label(name), value, others.get(name)) for name, value in parts.items()]
    if parts and "cost" in picked:
        rows.append((_("Together"), picked["cost"], (runner_up or {}).get("cost")))
    return [
        ScorePart(label=label, picked=_cost(value), runner_up="" if other is None else _cost(other))
        for label, value, other in rows
        if value or other
    ]


def _cost(value: float) -> str:
    return wording.number(round(value, 3))


def _part_label(name: str) -> str:
    return {
        "fragments": _("Free GPUs that popular shapes could no longer use"),
        "shares": _("Room on shared cards"),
        "stranded": _("Free GPUs without CPU beside them"),
        "scarcity": _("Tier that others depend on"),
        "balance": _("CPU and GPUs out of balance"),
        "fullness": _("An emptier node than needed"),
        "islands": _("Islands broken into"),
    }.get(name, name.replace("_", " "))


def evictions(actor: User, workload: Workload) -> list[EvictionView]:
    """What was taken back of it, the newest first."""
    rows = list(eviction_list(actor, workload)[:MOST_EVICTIONS])
    texts = evictions_texts(actor, rows)
    return [
        EvictionView(
            at=row.at,
            text=texts[row.pk],
            pass_number=row.pass_number,
            pass_url=_pass_url(actor, row.pass_number),
            smaller=""
            if row.replicas is None
            else ngettext("%(n)s replica", "%(n)s replicas", len(row.replicas)) % {"n": len(row.replicas)},
        )
        for row in rows
    ]


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
