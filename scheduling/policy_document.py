"""The scheduling policy as a document: every field of the engine's `Policy`, with its bounds and what it means.

The fields, their types and defaults come from the engine's own class, so that a rule cannot be forgotten here; what
is added is for people: words, bounds and choices.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from pydantic import BeforeValidator, ConfigDict, Field, create_model
from pydantic_core import PydanticCustomError

from gpuyard.core.policy import PolicyDocument, document_dump, document_parse
from scheduling.engine.decisions import Policy, policy_of, policy_values
from scheduling.engine.snapshot import plain

Text = str | Promise
_YEAR = 366 * 86_400
_MOST = 2**31 - 1

INSTALLED = Policy()
"""The rules of a new installation: version 0."""


@dataclass(frozen=True)
class Words:
    """What people read about a field, and what it may be."""

    group: Text
    label: Text
    help: Text
    least: int = 0
    most: int = _MOST
    choices: tuple[str, ...] = ()


_SHARE = _("Fair share")
_PLACE = _("Placement")
_TIMES = _("How long work runs")
_BACKFILL = _("Reserved starts")
_BACK = _("Taking back")
_KINDS = _("Services and sessions")
OTHER = _("More rules")

WORDS: dict[str, Words] = {
    "usage_half_life_s": Words(
        _SHARE,
        _("Half-life of past use, seconds"),
        _("After so long, past GPU time counts half as much. 0: only the present counts."),
        0,
        10 * _YEAR,
    ),
    "usage_weight_ppm": Words(
        _SHARE,
        _("Weight of past use, millionths"),
        _("How much past use moves a team's share. 1000000 is the full weight, 0 is none."),
        0,
        100_000_000,
    ),
    "ageing_s": Words(
        _SHARE,
        _("Ageing, seconds"),
        _("Each time a workload has waited so long, its priority inside the team rises by 1. 0: never."),
        0,
        _YEAR,
    ),
    "starvation_s": Words(
        _SHARE,
        _("Starvation, seconds"),
        _("Having waited so long, a workload's size no longer counts against it. 0: never."),
        0,
        _YEAR,
    ),
    "non_preemptible_may_borrow": Words(
        _SHARE,
        _("Uninterruptible work may borrow"),
        _("Off: work that may not be interrupted starts only inside the guarantee of its team."),
    ),
    "pack_fragments": Words(
        _PLACE,
        _("Weight of fragments"),
        _("How much free GPU counts that the usual requests could not use."),
        0,
        1000,
    ),
    "pack_shares": Words(
        _PLACE,
        _("Weight of parts of cards"),
        _("How much free parts of cards count for being worth less than whole ones."),
        0,
        1000,
    ),
    "pack_stranded": Words(
        _PLACE,
        _("Weight of stranded GPUs"),
        _("How much free GPU counts beside which the CPU would run out first."),
        0,
        1000,
    ),
    "pack_scarcity": Words(
        _PLACE,
        _("Weight of scarce tiers"),
        _("How much dearer a tier counts that other requests depend on."),
        0,
        1000,
    ),
    "pack_balance": Words(
        _PLACE,
        _("Weight of balance, steps"),
        _("For a node that would be left with all its GPUs free but no CPU."),
        0,
        1000,
    ),
    "pack_fullness": Words(
        _PLACE,
        _("Weight of fullness, steps"),
        _("For a node on whose GPUs nothing runs: begun nodes are filled up first."),
        0,
        1000,
    ),
    "pack_step_slots": Words(
        _PLACE,
        _("Step of the score, thousandths of a GPU"),
        _("Smaller differences are left to balance and fullness. 0: all count."),
        0,
        100_000,
    ),
    "pack_islands": Words(
        _PLACE,
        _("Further islands, steps"),
        _("For each island more than one that the GPUs of a replica come from."),
        0,
        1000,
    ),
    "pack_together": Words(
        _PLACE,
        _("Further nodes, steps"),
        _("For each node more that a gang would need."),
        0,
        1000,
    ),
    "grow_gangs": Words(
        _PLACE,
        _("Start more than the minimum"),
        _("A gang takes more replicas than its minimum where nobody else waits for the tier."),
    ),
    "gangs_close": Words(
        _PLACE,
        _("Keep gangs together"),
        _("Put a gang of several nodes into few racks and blocks, where nothing better speaks against it."),
    ),
    "share_scope": Words(
        _PLACE,
        _("Who may share a card"),
        _("team: parts of one card go to one team only. company: to teams of one company."),
        choices=("team", "company"),
    ),
    "eta_shapes": Words(
        _BACKFILL,
        _("Shapes with an estimate"),
        _("For how many different shapes of waiting work each pass estimates the start."),
        0,
        10_000,
    ),
    "reservations": Words(
        _BACKFILL,
        _("Reserved starts"),
        _("So many of the first that cannot start get a start that later work may not delay. 0: none."),
        0,
        100_000,
    ),
    "backfill_without_limit": Words(
        _BACKFILL,
        _("Work without a time limit may pass"),
        _("It passes reserved starts by what is usual for its kind, though it may run on for longer."),
    ),
    "timeline_step_s": Words(
        _BACKFILL,
        _("Step of the timeline, seconds"),
        _("Work past its time limit is expected to be gone at the next whole step."),
        1,
        86_400,
    ),
    "training_run_s": Words(
        _TIMES,
        _("Training without a limit, seconds"),
        _("How long it is expected to run. Empty: it does not end."),
        1,
        _YEAR,
    ),
    "inference_run_s": Words(
        _TIMES,
        _("Services without a limit, seconds"),
        _("How long they are expected to run. Empty: they do not end."),
        1,
        _YEAR,
    ),
    "development_run_s": Words(
        _TIMES,
        _("Sessions without a limit, seconds"),
        _("How long they are expected to run. Empty: they do not end."),
        1,
        _YEAR,
    ),
    "min_run_s": Words(
        _BACK,
        _("Minimum run, seconds"),
        _("Nothing is taken back before it has run so long."),
        0,
        _YEAR,
    ),
    "development_min_run_s": Words(
        _BACK,
        _("Minimum run of sessions, seconds"),
        _("The same for development sessions, if it is longer."),
        0,
        _YEAR,
    ),
    "asked_min_run_most_s": Words(
        _BACK,
        _("Longest minimum run that a request may ask for, seconds"),
        _(
            "What a request asks for beyond it does not count, so that nobody can keep what is guaranteed to others."
        ),
        0,
        _YEAR,
    ),
    "asked_restart_most_s": Words(
        _BACK,
        _("Highest restart cost that a request may name, seconds"),
        _("What a request names beyond it does not count, so that nobody makes others the victims."),
        0,
        _YEAR,
    ),
    "eviction_window_s": Words(
        _BACK,
        _("Window of the eviction budgets, seconds"),
        _("The two budgets below count what was taken back within this time."),
        1,
        _YEAR,
    ),
    "evictions_per_workload": Words(
        _BACK,
        _("Evictions per workload"),
        _("At most so often in the window; a guarantee never waits for it. 0: as often as need be."),
        0,
        1_000_000,
    ),
    "evictions_per_team": Words(
        _BACK,
        _("Evictions per team"),
        _("At most so many in the window; a guarantee never waits for it. 0: as many as need be."),
        0,
        1_000_000,
    ),
    "inference_may_borrow": Words(
        _KINDS,
        _("Services may borrow"),
        _("Off: the minimum of a service, which is never taken back, starts only inside the guarantee."),
    ),
    "development_may_borrow": Words(
        _KINDS,
        _("Sessions may borrow"),
        _("Off: development sessions start only inside the guarantee of their team."),
    ),
    "sessions_per_team": Words(
        _KINDS,
        _("GPUs in sessions for each team"),
        _("At most so many GPUs are in development sessions of one team at once. Empty: no such limit."),
        0,
        1_000_000,
    ),
    "sessions_per_person": Words(
        _KINDS,
        _("GPUs in sessions for each person"),
        _("At most so many GPUs are in one person's development sessions at once. Empty: no such limit."),
        0,
        1_000_000,
    ),
    "inference_headroom": Words(
        _KINDS,
        _("Head-room for services, thousandths"),
        _("So much of each tier is left free by borrowed work of other kinds."),
        0,
        1000,
    ),
    "inference_headroom_tiers": Words(
        _KINDS,
        _("Head-room for services by tier, thousandths"),
        _("Instead of the number above, for the tiers named: “h100-80g 250, l4-24g 0”."),
        0,
        1000,
    ),
    "grow_running": Words(
        _KINDS,
        _("Grow what runs"),
        _("Elastic work and services take more replicas where nobody waits for the tier."),
    ),
    "consolidation_movers": Words(
        _BACK,
        _("Moved at once, at most"),
        _("So many workloads may be moved together so that a larger one fits. 0: never."),
        0,
        10_000,
    ),
    "consolidation_cap_s": Words(
        _BACK,
        _("Longest run counted for moving, seconds"),
        _("What moving unlocks is GPUs times expected run, of which at most so much counts."),
        0,
        _YEAR,
    ),
}


@dataclass(frozen=True)
class PolicyField:
    """One rule: `kind` is flag, whole, number, choice or numbers (by name); `default` is that of a new installation."""

    name: str
    kind: str
    may_be_empty: bool
    default: Any
    words: Words


def _plain(name: str) -> Words:
    """For a rule that nobody has described yet: it can be changed all the same."""
    return Words(OTHER, name.replace("_", " ").removesuffix(" s").capitalize(), "")


def _type_of(name: str) -> tuple[Any, bool]:
    """The type of an engine field without its `None`, and whether it had one."""
    hint = get_type_hints(Policy)[name]
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    parts = [part for part in get_args(hint) if part is not type(None)]
    return parts[0], len(parts) < len(get_args(hint))


def _kind(base: Any, words: Words) -> str:
    if words.choices:
        return "choice"
    return {bool: "flag", int: "whole", float: "number"}.get(base, "numbers")


def _field(name: str) -> PolicyField:
    base, may_be_empty = _type_of(name)
    words = WORDS.get(name) or _plain(name)
    return PolicyField(name, _kind(base, words), may_be_empty, as_json(INSTALLED)[name], words)


def _model_field(name: str, default: Any) -> tuple[Any, Any]:
    base, may_be_empty = _type_of(name)
    words = WORDS.get(name) or _plain(name)
    kind = _kind(base, words)
    checked: Any = base
    if kind == "choice":
        checked = Literal[words.choices]
    elif kind in ("whole", "number"):
        checked = Annotated[base, Field(ge=words.least, le=words.most)]
    elif kind == "numbers":
        checked = Annotated[base, BeforeValidator(partial(_numbers, words=words))]
    return (checked | None if may_be_empty else checked), default


def _numbers(value: Any, *, words: Words) -> tuple[tuple[str, int], ...]:
    """Names with whole numbers. JSON has lists where the engine has tuples, and strict checks take no list for one."""
    rows = plain(value)
    if isinstance(rows, tuple) and all(_is_pair(row) for row in rows):
        is_within = all(words.least <= amount <= words.most for _name, amount in rows)
        if is_within and len({name for name, _amount in rows}) == len(rows):
            return rows
    text = _(
        "Write names with whole numbers from %(least)s to %(most)s, each name once: “h100-80g 250, l4-24g 0”."
    )
    raise PydanticCustomError("numbers_invalid", str(text) % {"least": words.least, "most": words.most})


def _is_pair(row: Any) -> bool:
    return isinstance(row, tuple) and len(row) == 2 and isinstance(row[0], str) and type(row[1]) is int


class _Strict(PolicyDocument):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def as_json(policy: Policy) -> dict[str, Any]:
    """The policy as plain JSON values."""
    document: dict[str, Any] = json.loads(json.dumps(policy_values(policy)))  # tuples become lists
    return document


def document_check(data: Any, *, field: str = "document") -> dict[str, Any]:
    """The document with all its fields, checked; `Invalid` names each wrong one."""
    return document_dump(document_parse(SchedulingDocument, data, field=field))


def policy_from(document: Mapping[str, Any]) -> Policy:
    """The engine's policy of a stored document: what it lacks is as installed, what is no rule any more is left out."""
    return policy_of({**policy_values(INSTALLED), **document})


_MODEL: dict[str, Any] = {one.name: _model_field(one.name, one.default) for one in fields(Policy)}
SchedulingDocument = create_model("SchedulingDocument", __base__=_Strict, **_MODEL)
FIELDS: tuple[PolicyField, ...] = tuple(_field(one.name) for one in fields(Policy))
