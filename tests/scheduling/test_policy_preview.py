"""A preview says what a change would do, and does nothing."""

from __future__ import annotations

import pytest

from gpuyard.core.errors import Forbidden, Invalid
from gpuyard.core.models import User
from scheduling.models import Attempt, SchedulingPolicyVersion
from scheduling.policy_preview import policy_preview
from tests import factories as make

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin() -> User:
    return make.admin()


@pytest.fixture(autouse=True)
def _may_borrow(admin: User) -> None:
    """In force for these tests, whatever GPU Yard is installed with."""
    SchedulingPolicyVersion.objects.create(
        number=1, document={"non_preemptible_may_borrow": True}, author=admin, note="known"
    )


def test_a_start_that_would_not_be_is_told(admin: User) -> None:
    tier = make.tier()
    make.node(tier, 1)
    workload = make.workload(make.team(), tier, gpus=1, preemptible=False)
    preview = policy_preview(actor=admin, changes={"non_preemptible_may_borrow": False})
    (row,) = preview.rows
    assert (row.what, row.public_id, row.name) == ("starts_not", workload.public_id, workload.name)
    assert (preview.starts, preview.waits) == ((1, 0), (0, 1))
    assert row.after is not None
    assert "not_preemptible" in row.after.blockers
    assert not Attempt.objects.exists()
    assert SchedulingPolicyVersion.objects.count() == 1


def test_a_wait_that_changes_its_cause_is_told(admin: User) -> None:
    make.workload(make.team(), make.tier(), gpus=1, preemptible=False)
    preview = policy_preview(actor=admin, changes={"non_preemptible_may_borrow": False})
    (row,) = preview.rows
    assert row.what == "waits"
    assert row.before is not None
    assert row.after is not None
    assert "not_preemptible" not in row.before.blockers
    assert "not_preemptible" in row.after.blockers


def test_another_half_life_is_planned_with_its_own_use(admin: User) -> None:
    preview = policy_preview(actor=admin, changes={"usage_half_life_s": 60})
    assert [one.name for one in preview.changes] == ["usage_half_life_s"]
    assert (preview.rows, preview.left_out) == ((), 0)


def test_a_draft_is_checked(admin: User) -> None:
    with pytest.raises(Invalid) as refused:
        policy_preview(actor=admin, changes={"reservations": -1})
    assert refused.value.errors[0].field == "changes.reservations"


def test_it_is_for_admins(admin: User) -> None:
    with pytest.raises(Forbidden):
        policy_preview(actor=make.user("auditor", make.company()), changes={})
