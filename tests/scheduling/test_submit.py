"""Submitting and stopping: what is stored, when it goes on, who may, and what is refused without a trace."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection

from gpuyard.audit.models import Event
from gpuyard.core.errors import Conflict, DomainError, Forbidden, Invalid, NotFound
from gpuyard.core.models import User
from scheduling import services
from scheduling.cases import WorkloadCases
from scheduling.models import Verdict, Workload, WorkloadSpec
from scheduling.wake import wake_count
from tenants.inbox import cases_to_decide
from tenants.models import Case, Team
from tenants.services import case_decide, case_withdraw
from tests import factories as make


def _team(document: dict[str, Any] = make.AUTO) -> tuple[Team, User]:
    """A team of a company with these rules, and a member of it."""
    team = make.team()
    make.approval_policy(team, document)
    return team, make.user("member", team)


def _submit(team: Team, member: User, **changes: Any) -> Workload:
    if "spec" not in changes:
        changes["spec"] = make.spec_document(make.tier())
    return services.workload_submit(
        **{"actor": member, "team": team, "name": "train", "kind": "training", **changes}
    )


# --- What is stored ------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_rule_that_says_auto_sends_it_to_the_queue() -> None:
    team, member = _team()

    workload = _submit(team, member, name=" train ")

    assert (workload.state, workload.name, workload.approved_by_rule) == ("waiting", "train", "everything")
    assert workload.queued_at is not None
    assert workload.spec is not None
    assert Case.objects.get(subject_id=workload.pk).state == "approved"
    actions = Event.objects.filter(subject_id=workload.pk).order_by("id").values_list("action", flat=True)
    assert list(actions) == ["workload.submit", "workload.approve"]


@pytest.mark.django_db(transaction=True)
def test_the_pass_is_woken_after_the_commit() -> None:
    team, member = _team()
    before = wake_count()

    _submit(team, member)

    assert wake_count() == before + 1


@pytest.mark.django_db
def test_a_rule_with_a_step_makes_it_wait_for_the_manager() -> None:
    team, member = _team(make.MANAGER)
    manager = make.user("manager", team)

    workload = _submit(team, member, justification="for the paper")

    case = cases_to_decide(manager).get()
    assert (workload.state, workload.queued_at) == ("pending_approval", None)
    assert (case.subject_id, case.justification, case.facts["gpu_count"]) == (workload.pk, "for the paper", 1)
    case_decide(actor=manager, case_public_id=case.public_id, approve=True)
    workload.refresh_from_db()
    assert (workload.state, workload.approved_by_rule) == ("waiting", "")
    assert workload.queued_at is not None


@pytest.mark.django_db
def test_a_rejected_workload_has_ended_and_says_why() -> None:
    team, member = _team(make.MANAGER)
    manager = make.user("manager", team)
    workload = _submit(team, member)

    case_decide(actor=manager, case_public_id=Case.objects.get().public_id, approve=False, reason="too big")

    workload.refresh_from_db()
    assert (workload.state, workload.state_reason) == ("rejected", "too big")
    assert workload.ended_at is not None


@pytest.mark.django_db
def test_the_rules_see_that_it_goes_beyond_the_guarantee() -> None:
    company, tier = make.company(), make.tier()
    team = make.team(company)
    beyond = {"name": "beyond", "when": {"over_quota": True}, "then": {"steps": [{"role": "manager"}]}}
    make.approval_policy(company, {"rules": [beyond, *make.AUTO["rules"]]})
    make.quota(company, tier, guaranteed_gpus=2)
    make.quota(team, tier, guaranteed_gpus=2)
    member = make.user("member", team)

    inside = _submit(team, member, spec=make.spec_document(tier, gpus=2))
    outside = _submit(team, member, spec=make.spec_document(tier, gpus=3))

    assert (inside.state, outside.state) == ("waiting", "pending_approval")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("kind", "checkpoint_dir", "asked", "expected"),
    [
        ("training", "/ckpt", None, True),
        ("training", None, None, False),
        ("inference", "/ckpt", None, False),
        ("training", "/ckpt", False, False),
        ("inference", None, True, True),
    ],
)
def test_who_has_checkpoints_may_be_evicted_unless_they_say_otherwise(
    kind: str, checkpoint_dir: str | None, asked: bool | None, expected: bool
) -> None:
    team, member = _team()
    spec = make.spec_document(make.tier(), checkpoint_dir=checkpoint_dir)

    assert _submit(team, member, kind=kind, spec=spec, preemptible=asked).preemptible is expected


@pytest.mark.django_db
def test_the_log_holds_no_command_and_no_environment() -> None:
    team, member = _team()

    _submit(
        team,
        member,
        spec=make.spec_document(make.tier(), command=["run", "--key=s3cret"], env={"K": "h1dden"}),
    )

    stored = str(list(Event.objects.values()))
    assert "s3cret" not in stored
    assert "h1dden" not in stored


# --- Once ----------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_same_key_is_the_same_workload_for_the_same_person_only() -> None:
    team, member = _team()

    first = _submit(team, member, submission_key="form-1")
    assert _submit(team, member, submission_key="form-1", name="again") == first
    assert _submit(team, make.user("member", team), submission_key="form-1") != first
    assert _submit(team, member) != _submit(team, member)


@pytest.mark.django_db(transaction=True)
def test_a_form_posted_twice_at_once_makes_one_workload() -> None:
    team, member = _team()
    spec = make.spec_document(make.tier())
    barrier = threading.Barrier(4)
    made: list[Any] = []

    def post() -> None:
        barrier.wait(5)
        try:
            made.append(_submit(team, member, spec=spec, submission_key="form-1").pk)
        except DomainError as error:
            made.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=post) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert made == [Workload.objects.get().pk] * 4
    assert (WorkloadSpec.objects.count(), Case.objects.count()) == (1, 1)


# --- What is refused -------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("name", {"name": ""}),
        ("name", {"name": "a\x00b"}),
        ("name", {"name": "x" * 1_000_000}),
        ("name", {"name": None}),
        ("kind", {"kind": "mining"}),
        ("kind", {"kind": ["training"]}),
        ("priority", {"priority": 1001}),
        ("priority", {"priority": 0.5}),
        ("justification", {"justification": "x" * 1_000_000}),
        ("justification", {"justification": "\ud800"}),
        ("submission_key", {"submission_key": "\x00"}),
        ("submission_key", {"submission_key": "x" * 201}),
        ("spec.request.tiers", {"spec": make.spec_document("no-such-tier")}),
        ("spec.request.gpus_per_replica", {"spec": make.spec_document("t", gpus=0)}),
        ("spec.request.gpus_per_replica", {"spec": make.spec_document("t", gpus=2**31)}),
        ("spec.command", {"spec": make.spec_document("t", command=[])}),
        ("spec", {"spec": None}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_input_is_refused_with_a_field_and_a_remedy_and_leaves_nothing(
    field: str, changes: dict[str, Any]
) -> None:
    team, member = _team()

    with pytest.raises(Invalid) as refused:
        _submit(team, member, **changes)

    found = {error.field: error.remedy for error in refused.value.errors}
    assert found[field]
    assert [model.objects.count() for model in (Workload, Case, Event)] == [0, 0, 0]


@pytest.mark.django_db
def test_all_that_is_wrong_is_said_at_once() -> None:
    team, member = _team()

    with pytest.raises(Invalid) as refused:
        _submit(team, member, name="", kind="mining", spec={"command": []})

    assert {error.field for error in refused.value.errors} == {"name", "kind", "spec.command", "spec.request"}


@pytest.mark.django_db
def test_a_strangers_team_is_not_found_and_watching_is_no_right_to_ask() -> None:
    team, _member = _team()

    with pytest.raises(NotFound):
        _submit(team, make.user("manager", make.team()))
    for role in ("finance", "auditor"):
        with pytest.raises(Forbidden):
            _submit(team, make.user(role, team))
    assert not Workload.objects.exists()


# --- Stopping --------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_stopping_what_waits_for_approval_withdraws_its_case() -> None:
    team, member = _team(make.MANAGER)
    make.user("manager", team)
    workload = _submit(team, member)

    stopped = services.workload_stop(actor=member, workload=workload, reason="not needed")

    assert (stopped.state, stopped.state_reason, stopped.stop_requested_by) == (
        "cancelled",
        "not needed",
        member,
    )
    assert Case.objects.get().state == "withdrawn"


@pytest.mark.django_db
def test_withdrawing_the_case_cancels_the_workload() -> None:
    team, member = _team(make.MANAGER)
    make.user("manager", team)
    workload = _submit(team, member)

    case_withdraw(actor=member, case_public_id=Case.objects.get().public_id)

    workload.refresh_from_db()
    assert workload.state == "cancelled"


@pytest.mark.django_db
def test_stopping_what_waits_for_gpus_cancels_it_and_its_verdict() -> None:
    team, member = _team()
    workload = _submit(team, member)
    Verdict.objects.create(workload=workload, pass_number=1, blockers=[])

    assert services.workload_stop(actor=member, workload=workload).state == "cancelled"

    assert not Verdict.objects.exists()
    with pytest.raises(Conflict):
        services.workload_stop(actor=member, workload=workload)


@pytest.mark.django_db
def test_stopping_what_runs_asks_its_agents_and_twice_is_once() -> None:
    team, member = _team()
    tier = make.tier()
    workload = make.workload(team, tier, owner=member)
    make.placed(workload, list(make.node(tier, 1).gpus.all()), running=True)

    assert services.workload_stop(actor=member, workload=workload).state == "stopping"
    assert services.workload_stop(actor=member, workload=workload).state == "stopping"

    assert workload.allocations.get().state == "stopping"


@pytest.mark.django_db
def test_who_may_stop() -> None:
    team, member = _team()
    others = {
        "manager": make.user("manager", team),
        "admin": make.admin(),
    }
    for person in others.values():
        assert services.workload_stop(actor=person, workload=_submit(team, member)).state == "cancelled"
    workload = _submit(team, member)
    with pytest.raises(Forbidden):
        services.workload_stop(actor=make.user("member", team), workload=workload)
    with pytest.raises(NotFound):
        services.workload_stop(actor=make.user("manager", make.team()), workload=workload)


@pytest.mark.django_db(transaction=True)
def test_an_approval_and_a_stop_at_once_end_in_one_of_both() -> None:
    team, member = _team(make.MANAGER)
    manager = make.user("manager", team)
    workload = _submit(team, member)
    case = Case.objects.get()
    barrier = threading.Barrier(2)
    outcomes: list[str] = []

    def act(turn: int) -> None:
        barrier.wait(5)
        try:
            if turn == 0:
                case_decide(actor=manager, case_public_id=case.public_id, approve=True)
            else:
                services.workload_stop(actor=member, workload=Workload.objects.get(pk=workload.pk))
            outcomes.append("done")
        except DomainError as error:
            outcomes.append(error.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=act, args=(turn,)) for turn in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    workload.refresh_from_db()
    assert workload.state == "cancelled"
    assert set(outcomes) <= {"done", "case_decided"}


# --- The approver's card -----------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_card_says_what_is_asked_and_what_is_there() -> None:
    team, member = _team(make.MANAGER)
    make.user("manager", team)
    tier = make.tier("l4-card")
    make.node(tier, 4)
    spec = make.spec_document(tier, gpus=2, replicas=2, time_limit_s=5400)
    workload = _submit(team, member, spec=spec)

    facts = {fact.code: fact.value for fact in WorkloadCases().card_facts(subject_id=workload.pk)}

    assert facts["asked"] == "2 replicas of 2 × l4-card"
    assert facts["time_limit"] == "at most 1 h 30 m"
    assert facts["free"] == "4 of 4 l4-card, at most 4 on one node"
    assert facts["quota"] == "0 of 0 in use, 4 with this"
