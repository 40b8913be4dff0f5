"""The scheduling policy: who may change it, what a change is checked against, and when it counts."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from gpuyard.audit.models import Event
from gpuyard.core.errors import Conflict, Forbidden, Invalid, NotFound
from gpuyard.core.models import User
from scheduling.engine.decisions import Policy
from scheduling.models import Attempt, SchedulingPolicyVersion
from scheduling.passes import pass_once
from scheduling.policies import (
    policy_current,
    policy_history,
    policy_rollback,
    policy_set,
    policy_state,
)
from scheduling.policy_document import FIELDS, INSTALLED, WORDS, SchedulingDocument, as_json, policy_from
from scheduling.wake import wake_count
from tests import factories as make

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin() -> User:
    return make.admin()


def _set(admin: User, based_on: int = 0, **changes: Any) -> None:
    policy_set(actor=admin, changes=changes, based_on=based_on, reason="trying")


def test_the_document_has_every_field_of_the_engines_policy() -> None:
    assert list(SchedulingDocument.model_fields) == [one.name for one in fields(Policy)]
    assert policy_from(SchedulingDocument().model_dump(mode="json")) == Policy()
    assert policy_from(as_json(INSTALLED)) == INSTALLED


def test_every_field_has_words_and_its_default_is_within_bounds() -> None:
    assert [one.name for one in FIELDS if one.name not in WORDS or not one.words.help] == []
    assert set(WORDS) <= {one.name for one in FIELDS}
    SchedulingDocument.model_validate(as_json(INSTALLED))


def test_a_change_is_a_version_with_its_event(admin: User) -> None:
    state = policy_set(actor=admin, changes={"reservations": 7}, based_on=0, reason="fewer")
    assert (state.number, state.author, state.note) == (1, admin, "fewer")
    assert policy_current() == policy_from({**as_json(INSTALLED), "reservations": 7})
    event = Event.objects.get(action="policy.set")
    assert event.old is not None
    assert event.new is not None
    assert (event.old["reservations"], event.new["reservations"], event.reason) == (50, 7, "fewer")
    assert event.company_id is None


def test_numbers_by_name_are_checked_and_name_real_tiers(admin: User) -> None:
    tier = make.tier("h100-80g")
    _set(admin, inference_headroom_tiers=[[tier.name, 250]])
    assert policy_current().inference_headroom_tiers == (("h100-80g", 250),)
    field = "changes.inference_headroom_tiers"
    for wrong in ("h100-80g", [["h100-80g"]], [["h100-80g", 1001]], [["h100-80g", 1], ["h100-80g", 2]]):
        with pytest.raises(Invalid) as refused:
            _set(admin, 1, inference_headroom_tiers=wrong)
        assert (refused.value.errors[0].field, refused.value.errors[0].code) == (field, "numbers_invalid")
    with pytest.raises(Invalid) as refused:
        _set(admin, 1, inference_headroom_tiers=[["h100", 250]])
    assert (refused.value.code, refused.value.field) == ("tier_unknown", field)


def test_a_version_never_changes(admin: User) -> None:
    _set(admin, reservations=7)
    with pytest.raises(Exception, match=r"does not change|permission denied"), transaction.atomic():
        SchedulingPolicyVersion.objects.update(note="other")


def test_an_edit_of_an_older_version_is_refused(admin: User) -> None:
    _set(admin, reservations=7)
    with pytest.raises(Conflict) as refused:
        _set(admin, reservations=8)
    assert refused.value.code == "policy_changed_meanwhile"
    assert policy_current().reservations == 7


def test_two_versions_of_one_number_cannot_be_stored(admin: User) -> None:
    _set(admin, reservations=7)
    with pytest.raises(IntegrityError), transaction.atomic():
        SchedulingPolicyVersion.objects.create(number=1, document={}, author=admin, note="twice")


def test_going_back_appends_what_was(admin: User) -> None:
    _set(admin, reservations=7)
    _set(admin, 1, reservations=9, ageing_s=60)
    state = policy_rollback(actor=admin, number=1, based_on=2, reason="better before")
    assert (state.number, policy_current().reservations, policy_current().ageing_s) == (3, 7, 86_400)
    told = Event.objects.get(action="policy.rollback").new
    assert told is not None
    assert told["restores"] == 1
    policy_rollback(actor=admin, number=0, based_on=3, reason="as installed")
    assert policy_current() == INSTALLED
    assert [one.number for one in policy_history(admin)] == [4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"reservations": -1}, "changes.reservations"),
        ({"reservations": "5"}, "changes.reservations"),
        ({"reservations": True}, "changes.reservations"),
        ({"reservations": None}, "changes.reservations"),
        ({"timeline_step_s": 0}, "changes.timeline_step_s"),
        ({"grow_gangs": 1}, "changes.grow_gangs"),
        ({"no_such_rule": 1}, "changes.no_such_rule"),
        ([], "changes"),
        (None, "changes"),
        ({}, "changes"),
        ({"reservations": 50}, "changes"),
    ],
)
def test_what_is_wrong_is_named(admin: User, changes: Any, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        policy_set(actor=admin, changes=changes, based_on=0, reason="x")
    (error,) = refused.value.errors
    assert error.field == field
    assert error.remedy
    assert not SchedulingPolicyVersion.objects.exists()


def test_a_reason_is_needed(admin: User) -> None:
    with pytest.raises(Invalid) as refused:
        policy_set(actor=admin, changes={"reservations": 7}, based_on=0, reason="  ")
    assert refused.value.errors[0].field == "reason"


def test_only_admins_change_it_and_auditors_read_it() -> None:
    company = make.company()
    manager, auditor = make.user("manager", company), make.user("auditor", company)
    for person in (manager, auditor):
        with pytest.raises(Forbidden):
            _set(person, reservations=7)
    assert policy_state(auditor).number == 0
    with pytest.raises(Forbidden):
        policy_state(manager)


@pytest.mark.parametrize("number", [-1, 5, 2**40])
def test_an_unknown_version_is_not_found(admin: User, number: int) -> None:
    with pytest.raises(NotFound):
        policy_state(admin, number)


def test_a_stored_document_outlives_the_rules_it_knew(admin: User) -> None:
    document = {"reservations": 3, "a_rule_of_old": 1}
    SchedulingPolicyVersion.objects.create(number=1, document=document, author=admin, note="old")
    assert policy_current().reservations == 3
    assert policy_state(admin).document == {**as_json(INSTALLED), "reservations": 3}


def test_a_change_counts_in_the_next_pass(admin: User) -> None:
    tier = make.tier()
    make.node(tier, 1)
    make.workload(make.team(), tier, gpus=1, preemptible=False)
    assert pass_once().started == []
    _set(admin, non_preemptible_may_borrow=True)
    assert len(pass_once().started) == 1
    assert Attempt.objects.get().borrowed


def test_a_change_wakes_the_pass(admin: User, django_capture_on_commit_callbacks: Any) -> None:
    before = wake_count()
    with django_capture_on_commit_callbacks(execute=True):
        _set(admin, reservations=7)
    assert wake_count() == before + 1
    assert connection.in_atomic_block
