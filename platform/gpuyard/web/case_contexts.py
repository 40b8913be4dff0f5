"""What the approval pages show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuyard.web.contexts import Choice, Money, Part


@dataclass(frozen=True, kw_only=True)
class CaseRow:
    id: str
    requester: str
    what: str
    team: str
    rule: str
    price: Money | None
    opened_at: datetime
    selected: bool = False
    outcome: str = ""  # approved, rejected, withdrawn
    decided_by: str = ""
    decided_at: datetime | None = None
    due: str = ""  # "due in 3 h", "2 h late"
    due_tone: str = ""  # a class: mut, t-idle, t-fault


@dataclass(frozen=True, kw_only=True)
class Fact:
    title: str
    left: str
    right: str
    note: str
    parts: Sequence[Part] = ()
    scale: float = 0
    tick: float | None = None


@dataclass(frozen=True, kw_only=True)
class ThreadLine:
    """One thing that was said or done: "ann asks", with the text and what it changed."""

    who: str
    what: str
    at: datetime
    text: str
    changes: Sequence[str]  # "GPUs: from 4 to 2"


@dataclass(frozen=True, kw_only=True)
class NumberInput:
    """A number to be typed: of what an approver grants, or what its requester asks for now."""

    name: str
    label: str
    value: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class AmendForm:
    fields: Sequence[NumberInput]
    justification: str


@dataclass(frozen=True, kw_only=True)
class CaseCard:
    id: str
    round: int
    requester: str
    title: str  # "researcher-04 asks for 8 × h100-80g for 12 h"
    subject_url: str  # "": the reader may not look at it
    subject_name: str
    subject_id: str
    team: str
    kind: str
    opened_at: datetime
    reason: str
    facts: Sequence[Fact]
    rule: str
    rule_why: str  # finishes “because …”, without a full stop
    effect: str  # what approving does
    may_decide: bool
    refusal: str  # why the reader may not decide: "You asked for this yourself."
    command: str
    steps: Sequence[str]
    thread: Sequence[ThreadLine]
    less: Sequence[NumberInput]
    amend: AmendForm | None  # set for who asked, while it waits
    may_answer: bool
    may_withdraw: bool
    due: str
    due_tone: str
    expires_at: datetime | None
    outcome: str = ""
    decided_by: str = ""
    decided_at: datetime | None = None
    decision_reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ApprovalsPage:
    as_of: datetime
    summary: str
    waiting: Sequence[CaseRow]
    decided: Sequence[CaseRow]
    card: CaseCard | None
    shows: Sequence[Choice]
    kinds: Sequence[Choice]
    picked: bool = False  # the reader chose the card; else it is the oldest
    may_bulk: bool = False
    reason: str = ""  # as typed, when the decision was refused
    error: str = ""
    error_at: str = ""  # which form: decide, answer, amend


@dataclass(frozen=True, kw_only=True)
class AwayRow:
    id: str
    person: str
    delegate: str
    company: str
    begins_at: datetime
    ends_at: datetime
    covers: str
    reason: str
    state: str  # in words: "now", "from tomorrow", "over"
    may_end: bool


@dataclass(frozen=True, kw_only=True)
class AwayPage:
    as_of: datetime
    rows: Sequence[AwayRow]
    companies: Sequence[Choice]
    people: Sequence[Choice]
    kinds: Sequence[Choice]
    begins: str
    ends: str
    reason: str
    error: str


@dataclass(frozen=True, kw_only=True)
class RuleChange:
    name: str
    old: str
    new: str


@dataclass(frozen=True, kw_only=True)
class CaseEffect:
    id: str
    label: str
    requester: str
    old_rule: str
    new_rule: str


@dataclass(frozen=True, kw_only=True)
class RulesPreviewCard:
    changes: Sequence[RuleChange]
    cases: Sequence[CaseEffect]
    open_cases: int
    document: str
    restores: int | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class RulesVersion:
    number: int
    author: str
    note: str
    at: datetime
    is_active: bool


@dataclass(frozen=True, kw_only=True)
class RulesPage:
    as_of: datetime
    company: str
    company_id: str
    companies: Sequence[Choice]
    number: int
    document: str
    may_edit: bool
    versions: Sequence[RulesVersion]
    preview: RulesPreviewCard | None
    errors: Sequence[str]
