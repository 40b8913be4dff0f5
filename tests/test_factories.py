"""The factories agree with the schema: what they make passes every constraint and trigger."""

import pytest

from scheduling.models import Allocation
from tests import factories as make


@pytest.mark.django_db
def test_a_placed_workload_holds_its_gpus() -> None:
    tier = make.tier(rule_for="NVIDIA L4")
    company = make.company()
    team = make.team(company)
    make.approval_policy(company)
    make.quota(company, tier, guaranteed_gpus=8)
    make.quota(team, tier, guaranteed_gpus=4, limit_gpus=8)
    make.rates(company, tier)
    first, second = make.node(tier, 2), make.node(tier, 2)
    workload = make.workload(team, tier, gpus=2, replicas=2)

    make.placed(workload, list(first.gpus.all()), list(second.gpus.all()), running=True)

    assert Allocation.objects.filter(workload=workload, state="held").count() == 4
    first.refresh_from_db()
    assert first.cpu_used_m == 1000
