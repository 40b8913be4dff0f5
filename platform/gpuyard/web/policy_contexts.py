"""What the policy page is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuyard.web.contexts import Choice


@dataclass(frozen=True, kw_only=True)
class RuleField:
    """One rule as a control. `value` is what is shown in it, `usual` what GPU Yard is installed with."""

    name: str
    label: str
    help: str
    kind: str
    value: str
    is_on: bool
    choices: Sequence[Choice]
    bounds: str
    usual: str
    is_usual: bool
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class RuleGroup:
    title: str
    fields: Sequence[RuleField]


@dataclass(frozen=True, kw_only=True)
class ChangeRow:
    label: str
    old: str
    new: str


@dataclass(frozen=True, kw_only=True)
class VersionRow:
    number: int
    author: str
    at: datetime | None
    note: str
    changes: Sequence[ChangeRow]
    is_current: bool


@dataclass(frozen=True, kw_only=True)
class EffectRow:
    what: str
    workload_id: str
    name: str
    team: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What would happen. `changes_json` is sent back by whoever puts it in force: what was previewed is what counts."""

    summary: str
    changes: Sequence[ChangeRow]
    rows: Sequence[EffectRow]
    left_out: int
    changes_json: str
    restores: int | None
    reason: str = ""
    reason_error: str = ""


@dataclass(frozen=True, kw_only=True)
class GrantRow:
    id: str
    team: str
    band: int
    cap: str
    used: str
    reason: str
    granted_by: str
    expires_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class GrantForm:
    """What was typed, and what is wrong with it by field."""

    teams: Sequence[Choice]
    bands: Sequence[Choice]
    gpus: str = ""
    days: str = ""
    reason: str = ""
    errors: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class PolicyPage:
    as_of: datetime
    number: int
    author: str
    created_at: datetime | None
    may_edit: bool
    groups: Sequence[RuleGroup]
    history: Sequence[VersionRow]
    grants: Sequence[GrantRow]
    grant_form: GrantForm | None
    preview: Preview | None = None
    error: str = ""
