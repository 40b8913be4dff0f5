"""The scheduling policy in force: reading it, changing it, going back, and what a change would do.

A version is never edited: each change appends one, and the newest counts from the next pass on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from gpuyard.audit.services import event_record
from gpuyard.core.errors import Forbidden, Invalid, NotFound
from gpuyard.core.models import User
from gpuyard.core.policy import PolicyChange, changed_meanwhile, same_base, unchanged
from gpuyard.core.text import text_check
from gpuyard.fleet.models import Tier
from scheduling.engine.decisions import Policy
from scheduling.policy_document import INSTALLED, as_json, document_check, policy_from
from scheduling.policy_models import SchedulingPolicyVersion
from scheduling.wake import wake
from tenants.models import Membership, Role

LARGEST_NUMBER = 2**31 - 1


@dataclass(frozen=True)
class PolicyState:
    """One version. Number 0 is what GPU Yard was installed with: nobody wrote it."""

    number: int
    document: Mapping[str, Any]
    author: User | None
    note: str
    created_at: datetime | None


def policy_current() -> Policy:
    """The rules in force, as the engine wants them: one query, for each pass anew."""
    newest = SchedulingPolicyVersion.objects.order_by("-number").values_list("document", flat=True).first()
    return policy_from(newest) if newest is not None else INSTALLED


def policy_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[PolicyChange, ...]:
    """What differs, in the order of the document."""
    return tuple(
        PolicyChange(name, old.get(name), value) for name, value in new.items() if old.get(name) != value
    )


# --- Reading -----------------------------------------------------------------------------------------------


def policy_reader_require(actor: User) -> None:
    """Platform admins, and auditors of any company: the rules are the same for all."""
    if not (actor.is_platform_admin or Membership.objects.filter(user=actor, role=Role.AUDITOR).exists()):
        raise Forbidden(
            "policy_readers_only",
            _("The scheduling policy is read by platform admins and auditors."),
            remedy=_("Ask one of them."),
        )


def policy_state(actor: User, number: int | None = None) -> PolicyState:
    """A version of the policy; without a number the one in force."""
    policy_reader_require(actor)
    return _state(number)


def policy_history(actor: User) -> list[PolicyState]:
    """All versions, the newest first; the last one is as installed."""
    policy_reader_require(actor)
    stored = SchedulingPolicyVersion.objects.select_related("author").order_by("-number")
    return [*(_of(version) for version in stored), _installed()]


def _state(number: int | None) -> PolicyState:
    versions = SchedulingPolicyVersion.objects.select_related("author").order_by("-number")
    if number is None:
        newest = versions.first()
        return _of(newest) if newest else _installed()
    if number == 0:
        return _installed()
    found = versions.filter(number=number).first() if 0 < number <= LARGEST_NUMBER else None
    if found is None:
        raise NotFound("policy_version_unknown", _("There is no such version of the policy."))
    return _of(found)


def _of(version: SchedulingPolicyVersion) -> PolicyState:
    # through the engine's class and back: an old version lacks the rules that came later
    document = as_json(policy_from(version.document))
    return PolicyState(version.number, document, version.author, version.note, version.created_at)


def _installed() -> PolicyState:
    return PolicyState(0, as_json(INSTALLED), None, "", None)


# --- Changing ----------------------------------------------------------------------------------------------


def policy_draft(changes: Any, base: PolicyState) -> dict[str, Any]:
    """`base` with the changed fields, checked."""
    if not isinstance(changes, Mapping):
        raise Invalid(
            "changes_invalid",
            _("These are no changes."),
            field="changes",
            remedy=_("Send an object with the fields that change."),
        )
    draft = document_check({**base.document, **changes}, field="changes")
    _tiers_check(draft)
    return draft


def _tiers_check(document: Mapping[str, Any]) -> None:
    """Of tiers that there are: a name with a slip in it would be a rule that does nothing."""
    field = "inference_headroom_tiers"
    named = {name for name, _amount in document[field]}
    unknown = named - set(Tier.objects.filter(name__in=named).values_list("name", flat=True))
    if unknown:
        raise Invalid(
            "tier_unknown",
            _("There is no tier %(name)s.") % {"name": min(unknown)[:80]},
            field=f"changes.{field}",
            remedy=_("Name tiers as the fleet page does."),
        )


@transaction.atomic
def policy_set(*, actor: User, changes: Any, based_on: int, reason: str) -> PolicyState:
    """Changes some fields of the policy; they count from the next pass on. By a platform admin, with a reason.

    `based_on` is the version that the change was made from: `Conflict` if another one came in between.
    """
    policy_admin_require(actor)
    base = _state(None)
    same_base(based_on, base.number)
    return _append(actor, base, policy_draft(changes, base), reason)


@transaction.atomic
def policy_rollback(*, actor: User, number: int, based_on: int, reason: str) -> PolicyState:
    """A new version that says what an old one said."""
    policy_admin_require(actor)
    base, old = _state(None), _state(number)
    same_base(based_on, base.number)
    return _append(actor, base, document_check(dict(old.document)), reason, restored=number)


def policy_admin_require(actor: User) -> None:
    """Only platform admins change what holds for all companies."""
    if not actor.is_platform_admin:
        raise Forbidden(
            "admin_only",
            _("Only a platform admin changes the scheduling policy."),
            remedy=_("Ask one of them."),
        )


def _append(
    actor: User, base: PolicyState, document: dict[str, Any], reason: str, *, restored: int | None = None
) -> PolicyState:
    note = text_check(reason, field="reason", longest=400)
    changed = policy_changes(base.document, document)
    if not changed:
        raise unchanged("changes" if restored is None else "number")
    try:
        with transaction.atomic():  # a second one with this number: another admin was faster
            version = SchedulingPolicyVersion.objects.create(
                number=base.number + 1, document=document, author=actor, note=note
            )
    except IntegrityError as exc:
        raise changed_meanwhile() from exc
    event_record(
        company_id=None,
        actor=actor,
        action="policy.set" if restored is None else "policy.rollback",
        subject=version,
        old={"version": base.number, **{one.name: one.old for one in changed}},
        new={
            "version": version.number,
            **({} if restored is None else {"restores": restored}),
            **{one.name: one.new for one in changed},
        },
        reason=note,
    )
    wake()
    return _state(version.number)
