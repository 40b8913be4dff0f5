"""What a real pass decided, as its reader sees it."""

from __future__ import annotations

import pytest

from gpuyard.core import hooks
from scheduling import selectors
from scheduling.passes import pass_once
from tests import factories as make

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_start_and_a_wait_are_explained() -> None:
    company, tier = make.company("Acme"), make.tier("h100-80g")
    team = make.team(company, "vision")
    make.quota(company, tier, guaranteed_gpus=4)
    make.quota(team, tier, guaranteed_gpus=4)
    make.node(tier, 4, name="node-a")
    member = make.user("member", team)
    starts = make.workload(team, tier, owner=member, gpus=3)
    waits = make.workload(team, tier, owner=member, gpus=2)
    never = make.workload(team, tier, owner=member, gpus=64)

    pass_once()

    (attempt,) = selectors.attempt_list(member, starts)
    reason = selectors.attempt_reasons(attempt)
    assert "Inside the guarantee of 4 GPUs: team vision used 0 and asked for 3" in reason
    assert "On node-a (h100-80g)" in reason
    why = selectors.verdict_explain(member, selectors.workload_get(member, waits.public_id))
    assert why is not None
    assert why.reasons[0].code == "not_enough_free_gpus"
    assert "held by team vision 3" in why.headline
    assert why.change
    assert hooks.eta.get()(waits.pk).starts_at is not None
    hopeless = selectors.verdict_explain(member, never)
    assert hopeless is not None
    assert "the largest node, node-a, has 4" in hopeless.headline
    queue = list(selectors.queue_list(member))
    explained = selectors.verdicts_explain(member, [(row, row.verdict) for row in queue])
    assert [explained[row.pk].position for row in queue] == [1, 2]


def test_another_companys_holder_is_nobody() -> None:
    tier = make.tier()
    node = make.node(tier, 1)
    make.placed(make.workload(make.team(make.company(), "rival-lab"), tier), [node.gpus.all()[0]])
    waits = make.workload(None, tier)

    pass_once()

    why = selectors.verdict_explain(waits.owner, waits)
    assert why is not None
    assert "rival-lab" not in str(why)
    assert "held by others 1" in why.headline
