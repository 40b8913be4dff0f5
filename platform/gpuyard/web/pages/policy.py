"""The scheduling policy: the rules in force, who changed what, what a change would do; and rights to bands."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpuyard.core import clock
from gpuyard.core.errors import DomainError
from gpuyard.core.models import User
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.core.policy import PolicyChange
from gpuyard.web import wording
from gpuyard.web.contexts import Choice
from gpuyard.web.policy_contexts import (
    ChangeRow,
    EffectRow,
    GrantForm,
    GrantRow,
    PolicyPage,
    Preview,
    RuleField,
    RuleGroup,
    VersionRow,
)
from gpuyard.web.shell import team_paths
from scheduling.bands import band_grant_list, bands_used
from scheduling.policies import PolicyState, policy_changes, policy_history
from scheduling.policy_document import FIELDS, PolicyField
from scheduling.policy_models import HIGHEST_BAND
from scheduling.policy_preview import PolicyPreview, PreviewRow, Wait
from tenants.models import Team
from tenants.selectors import teams_visible

MOST_TEAMS = 500
_BY_NAME = {one.name: one for one in FIELDS}
NOTHING_CHANGED: dict[str, Any] = {}


@dataclass(frozen=True)
class Typed:
    """A form that was sent: its texts, and what is wrong with each field."""

    values: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)


# --- Reading what was typed --------------------------------------------------------------------------------


def changes_of(sent: Mapping[str, str], base: PolicyState) -> dict[str, Any]:
    """The rules that differ from `base`. What is no number stays text, for the policy's own checks to refuse."""
    read = {one.name: _read(one, sent.get(one.name)) for one in FIELDS}
    return {name: value for name, value in read.items() if value != base.document[name]}


def _read(rule: PolicyField, text: str | None) -> Any:
    if rule.kind == "flag":
        return text is not None
    stripped = (text or "").strip()
    if not stripped and rule.may_be_empty:
        return None
    if rule.kind == "choice":
        return stripped
    if rule.kind == "numbers":
        return _read_numbers(stripped)
    try:
        return int(stripped) if rule.kind == "whole" and len(stripped) < 20 else float(stripped)
    except ValueError:
        return stripped


def _read_numbers(text: str) -> list[list[Any]] | str:
    """`h100-80g 250, l4-24g 0`."""
    rows = [part.split() for part in text.split(",") if part.strip()]
    try:
        return [[name, int(amount)] for name, amount in rows]
    except ValueError:
        return text


def errors_of(exc: DomainError) -> dict[str, str]:
    """Rule → what is wrong with it; "" for what concerns none of them."""
    found = {}
    for one in exc.errors:
        name = (one.field or "").removeprefix("changes").removeprefix(".").partition(".")[0]
        found[name if name in _BY_NAME else ""] = f"{one.message} {one.remedy or ''}".strip()
    return found or {"": str(exc)}


# --- The page ----------------------------------------------------------------------------------------------


def build(
    actor: User,
    *,
    typed: Typed | None = None,
    preview: Preview | None = None,
    grant_form: GrantForm | None = None,
    error: str = "",
) -> PolicyPage:
    history = policy_history(actor)
    current = history[0]
    may_edit = actor.is_platform_admin
    return PolicyPage(
        as_of=clock.now(),
        number=current.number,
        author=current.author.username if current.author else "",
        created_at=current.created_at,
        may_edit=may_edit,
        groups=_groups(current, typed),
        history=_versions(history),
        grants=_grants(actor),
        grant_form=(grant_form or grant_form_of(actor, {})) if may_edit else None,
        preview=preview,
        error=error or (typed.errors.get("", "") if typed else ""),
    )


def _groups(current: PolicyState, typed: Typed | None) -> list[RuleGroup]:
    groups: dict[str, list[RuleField]] = {}
    for rule in FIELDS:
        groups.setdefault(str(rule.words.group), []).append(_rule(rule, current, typed))
    return [RuleGroup(title=title, fields=rows) for title, rows in groups.items()]


def _rule(rule: PolicyField, current: PolicyState, typed: Typed | None) -> RuleField:
    stored = current.document[rule.name]
    value = typed.values.get(rule.name, "") if typed else _control(stored)
    return RuleField(
        name=rule.name,
        label=str(rule.words.label),
        help=str(rule.words.help),
        kind=rule.kind,
        value=value,
        is_on=rule.name in typed.values if typed else bool(stored),
        choices=[Choice(value=one, label=one, selected=one == value) for one in rule.words.choices],
        bounds=_bounds(rule),
        usual=shown(rule.name, rule.default),
        is_usual=stored == rule.default,
        error=typed.errors.get(rule.name, "") if typed else "",
    )


def _control(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(f"{name} {amount}" for name, amount in value)
    return value if isinstance(value, str) else json.dumps(value)


def _bounds(rule: PolicyField) -> str:
    if rule.kind not in ("whole", "number"):
        return ""
    words = {"least": _amount(rule.name, rule.words.least), "most": _amount(rule.name, rule.words.most)}
    return _("%(least)s to %(most)s") % words


def shown(name: str, value: Any) -> str:
    """A rule's value in words: `7 d`, `on`, `no limit`."""
    if value is None:
        return _("empty")
    if isinstance(value, bool):
        return _("on") if value else _("off")
    return _amount(name, value) if isinstance(value, int | float) else _control(value) or _("none")


def _amount(name: str, value: int | float) -> str:
    return wording.duration(value) if name.endswith("_s") and value else wording.number(value)


def _changes(changes: Iterable[PolicyChange]) -> list[ChangeRow]:
    return [
        ChangeRow(
            label=str(_BY_NAME[one.name].words.label),
            old=shown(one.name, one.old),
            new=shown(one.name, one.new),
        )
        for one in changes
    ]


def _versions(history: Sequence[PolicyState]) -> list[VersionRow]:
    rows = []
    for state, before in zip(history, [*history[1:], None], strict=True):
        rows.append(
            VersionRow(
                number=state.number,
                author=state.author.username if state.author else "",
                at=state.created_at,
                note=state.note,
                changes=_changes(policy_changes(before.document, state.document)) if before else [],
                is_current=state is history[0],
            )
        )
    return rows


# --- What a change would do --------------------------------------------------------------------------------


def preview_of(
    found: PolicyPreview, *, restores: int | None = None, reason: str = "", error: str = ""
) -> Preview:
    return Preview(
        summary=_summary(found),
        changes=_changes(found.changes),
        rows=[_effect(row) for row in found.rows],
        left_out=found.left_out,
        changes_json=json.dumps({one.name: one.new for one in found.changes}),
        restores=restores,
        reason=reason,
        reason_error=error,
    )


def _summary(found: PolicyPreview) -> str:
    if not found.differing:
        return _("The next pass would do the same as with the rules in force.")
    return _(
        "With the rules in force the next pass starts %(starts)s and takes back %(stops)s;"
        " with these it starts %(starts_then)s and takes back %(stops_then)s. %(differing)s."
    ) % {
        "starts": found.starts[0],
        "stops": found.stops[0],
        "starts_then": found.starts[1],
        "stops_then": found.stops[1],
        "differing": ngettext(
            "%(n)s workload fares otherwise", "%(n)s workloads fare otherwise", found.differing
        )
        % {"n": found.differing},
    }


def _effect(row: PreviewRow) -> EffectRow:
    words = {
        "starts": _("would start now"),
        "starts_not": _("would not start now"),
        "stops": _("would be taken back"),
        "stops_not": _("would not be taken back"),
        "waits": _("would wait otherwise"),
    }
    return EffectRow(
        what=words[row.what],
        workload_id=row.public_id,
        name=row.name,
        team=row.team,
        detail=_waits(row.before, row.after),
    )


def _waits(before: Wait | None, after: Wait | None) -> str:
    if after is None:
        return ""
    causes = ", ".join(after.blockers)
    if before is None or before.blockers != after.blockers:
        return _("because of %(causes)s") % {"causes": causes}
    if after.eta is None:
        return _("no estimate any more")
    moment = wording.clock(after.eta, clock.now())
    return _("estimated for %(time)s") % {"time": moment}


# --- Bands -------------------------------------------------------------------------------------------------


def _grants(actor: User) -> list[GrantRow]:
    grants = list(band_grant_list(actor))
    used, paths = bands_used(grants), _paths(actor)
    return [
        GrantRow(
            id=str(grant.pk),
            team=paths.get(grant.team.public_id, grant.team.name),
            band=grant.band,
            cap=wording.number(grant.cap / UNITS_PER_GPU),
            used=wording.number(used[grant.pk] / UNITS_PER_GPU),
            reason=grant.reason,
            granted_by=grant.granted_by.username,
            expires_at=grant.expires_at,
        )
        for grant in grants
    ]


def _teams(actor: User) -> list[Team]:
    return list(teams_visible(actor)[:MOST_TEAMS])


def _paths(actor: User) -> dict[str, str]:
    rows = _teams(actor)
    paths = team_paths(rows)
    return {team.public_id: paths[team.pk] for team in rows}


def grant_form_of(actor: User, sent: Mapping[str, str], errors: Sequence[str] = ()) -> GrantForm:
    """The form for a new right, with what was typed."""
    team, band = sent.get("team", ""), sent.get("band", "1")
    return GrantForm(
        teams=[Choice(value=key, label=path, selected=key == team) for key, path in _paths(actor).items()],
        bands=[
            Choice(value=str(number), label=str(number), selected=str(number) == band)
            for number in range(1, HIGHEST_BAND + 1)
        ],
        gpus=sent.get("gpus", ""),
        days=sent.get("days", ""),
        reason=sent.get("reason", ""),
        errors=errors,
    )
