"""Asking for GPUs: what was sent is checked as a whole, stored, and given to the approval rules.

A workload begins by waiting for approval, if only for an instant: a rule that says "auto" moves it on in the same
transaction. An array is one request: its members share the spec and the case of the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from gpuyard.audit.services import event_draft, events_record
from gpuyard.core.errors import FieldError, Invalid
from gpuyard.core.models import User
from gpuyard.core.text import text_check
from gpuyard.fleet.models import Tier
from scheduling.asked import asked_text
from scheduling.bands import band_check
from scheduling.facts import kind_check, request_facts
from scheduling.models import Kind, Workload, WorkloadDependency, WorkloadSpec
from scheduling.references import references_check
from scheduling.sizes import tiers_of
from scheduling.specs import Spec, spec_parse
from scheduling.states import WorkloadState
from tenants.models import Role, Team
from tenants.selectors import company_of, role_require
from tenants.services import case_open

CASE_SUBJECT = "workload"
HIGHEST_PRIORITY = 1000
_T = TypeVar("_T")


def workload_submit(
    *,
    actor: User,
    team: Team,
    name: str,
    kind: str,
    spec: Any,
    priority: int = 0,
    preemptible: bool | None = None,
    justification: str = "",
    submission_key: str = "",
    band: int = 0,
) -> Workload:
    """Stores a request of a member of the team; it waits for approval or, where a rule lets it, for GPUs.

    The same `submission_key` again, from the same person, is the same workload: a form posted twice, at once even,
    makes one. `spec` is the document as it was sent. Everything that is wrong is said in one `Invalid`.
    """
    role_require(actor, team, Role.MEMBER, Role.MANAGER)
    key = text_check(submission_key, field="submission_key", longest=200, is_optional=True)
    if key and (earlier := _submitted(actor, key)):
        return earlier
    band_of = partial(band_check, team, band)
    asked = _Asked(actor, name, kind, spec, priority, preemptible, justification, band_of)
    try:
        with transaction.atomic():
            return _submit(actor, team, asked, key)
    except IntegrityError as exc:
        # The database made us wait for the other one with this key, and it has committed.
        if key and "submitted_once" in str(exc) and (earlier := _submitted(actor, key)):
            return earlier
        raise


def _submitted(actor: User, key: str) -> Workload | None:
    workloads = Workload.objects.select_related("team", "spec", "owner")
    return workloads.filter(owner=actor, submission_key=key).first()


class _Asked:
    """What was sent, checked: attributes are clean values."""

    def __init__(
        self,
        actor: User,
        name: Any,
        kind: Any,
        spec: Any,
        priority: Any,
        preemptible: bool | None,
        justification: Any,
        band: Callable[[], int],
    ) -> None:
        errors: list[FieldError] = []
        self.name = _try(errors, lambda: text_check(name, field="name", longest=120), "")
        self.kind = _try(errors, lambda: kind_check(kind), "")
        self.priority = _try(errors, lambda: priority_check(priority), 0)
        self.band = _try(errors, band, 0)
        self.justification = _try(
            errors,
            lambda: text_check(justification, field="justification", longest=2000, is_optional=True),
            "",
        )
        parsed = _try(errors, lambda: spec_parse(spec), None)
        self.tiers: tuple[Tier, ...] = ()
        self.depends_on: tuple[Workload, ...] = ()
        if parsed:
            self.tiers = _try(errors, lambda: tiers_of(parsed.request), ())
            self.depends_on = _try(errors, lambda: references_check(actor, parsed.request), ())
        if errors or parsed is None:
            raise Invalid("workload_invalid", _("The request is not valid."), errors=errors)
        self.spec: Spec = parsed
        # What has checkpoints loses little; the rest is only evicted if its owner said so.
        has_checkpoints = self.kind == Kind.TRAINING and parsed.checkpoint_dir is not None
        self.preemptible = has_checkpoints if preemptible is None else preemptible


def _try(errors: list[FieldError], check: Callable[[], _T], otherwise: _T) -> _T:
    """Runs one check; what it objects to is added to `errors`."""
    try:
        return check()
    except Invalid as exc:
        errors.extend(exc.errors)
        return otherwise


def priority_check(priority: Any) -> int:
    """The priority, or `Invalid`."""
    if isinstance(priority, int) and not isinstance(priority, bool) and abs(priority) <= HIGHEST_PRIORITY:
        return priority
    raise Invalid(
        "out_of_range",
        _("This is no priority."),
        field="priority",
        remedy=_("Give a whole number from −1000 to 1000; 0 is usual."),
    )


def _submit(actor: User, team: Team, asked: _Asked, key: str) -> Workload:
    facts = request_facts(
        team, asked.kind, asked.spec, priority=asked.priority, band=asked.band, tiers=asked.tiers
    ).facts
    first = _store(actor, team, asked, key)
    case_open(
        company=company_of(team),
        team=team,
        subject_type=CASE_SUBJECT,
        subject_id=first.pk,
        subject_label=subject_label(first.name, asked.spec),
        requester=actor,
        justification=asked.justification,
        facts=facts,
    )
    return Workload.objects.select_related("team", "spec", "owner").get(pk=first.pk)


def subject_label(name: str, spec: Spec) -> str:
    """What the request is called on lists of cases."""
    return f"{name}: {asked_text(spec.request)}"[:200]


def _store(actor: User, team: Team, asked: _Asked, key: str) -> Workload:
    """Stores the workload, or all members of the array, and returns the first."""
    array = asked.spec.request.array
    members = [_workload(actor, team, asked) for _number in range(array.count if array else 1)]
    first = members[0]
    first.submission_key = key
    if array:
        for index, member in enumerate(members):
            member.array_id, member.array_index = first.pk, index
    Workload.objects.bulk_create(members)
    document = asked.spec.as_json()
    spec = WorkloadSpec.objects.create(workload=first, revision=1, document=document)
    Workload.objects.filter(pk__in=[member.pk for member in members]).update(spec=spec)
    WorkloadDependency.objects.bulk_create(
        WorkloadDependency(workload=first, on=on) for on in asked.depends_on
    )
    _record(actor, members, asked, document)
    return first


def _workload(actor: User, team: Team, asked: _Asked) -> Workload:
    return Workload(
        company_id=team.company_id,
        team=team,
        owner=actor,
        name=asked.name,
        kind=asked.kind,
        priority=asked.priority,
        band=asked.band,
        preemptible=asked.preemptible,
        state=WorkloadState.PENDING_APPROVAL,
        justification=asked.justification,
    )


def _told_of(member: Workload, told: dict[str, Any]) -> dict[str, Any]:
    """Members of an array ask for the same: the first says it for all."""
    if member.array_index is None:
        return told
    return (told if member.array_index == 0 else {"state": member.state}) | {
        "array_index": member.array_index
    }


def _record(actor: User, members: Sequence[Workload], asked: _Asked, document: dict[str, Any]) -> None:
    # not the whole spec: commands and variables may hold secrets, and the revision never changes
    told = {
        "state": members[0].state,
        "team": members[0].team.public_id,
        "kind": asked.kind,
        "priority": asked.priority,
        "band": asked.band,
        "spec_revision": 1,
        "time_limit_s": asked.spec.time_limit_s,
        "request": document["request"],
    }
    events_record(
        event_draft(
            company_id=member.company_id,
            actor=actor,
            action="workload.submit",
            subject=member,
            new=_told_of(member, told),
            reason=asked.justification,
        )
        for member in members
    )
