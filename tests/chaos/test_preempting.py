"""A scheduler that ends while it takes work back: at each of its writes, inside the COMMIT, and after it."""

from collections.abc import Callable
from dataclasses import dataclass

import psycopg
import pytest
from django.db import connection

from billing.metering import meter
from billing.verify import books_verify
from gpuyard.fleet.models import Node
from scheduling.models import Allocation, Attempt, Eviction, Replica, Verdict, Workload
from scheduling.passes import pass_once, pass_turns
from scheduling.states import AttemptState
from tests import factories as make
from tests.chaos.halting import End, Halts
from tests.scheduling.speaking import Speaker, exited, report, rows_dump, speaker

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3600.0
WAYS = pytest.mark.parametrize(
    "end",
    [pytest.param(Halts.kill, id="killed"), pytest.param(Halts.cut, id="cut-off", marks=pytest.mark.proof)],
)
# What a pass notes before it begins: it may be there, or not.
NOTES = ("scheduling_teamusage", "scheduling_usagepending", "django_session", "halt_at")


@dataclass
class Scene:
    """Two nodes, each borrowed whole by somebody; a gang of two wants both by its team's guarantee."""

    agents: list[Speaker]
    borrowers: list[Workload]
    gang: Workload

    def ranks_left(self) -> None:
        """The agents say that nothing of the borrowers' work is left."""
        for agent, borrower in zip(self.agents, self.borrowers, strict=True):
            agent.sync(exited(Replica.objects.get(attempt__workload=borrower), exit_reason="stopped"))

    def states(self) -> tuple[list[str], list[str]]:
        """Of the borrowers, then of the gang; "claiming" while it waits for GPUs that are promised to it."""
        live = Attempt.objects.filter(workload=self.gang).exclude(state=AttemptState.ENDED)
        return (
            [Workload.objects.get(pk=one.pk).state for one in self.borrowers],
            [Workload.objects.get(pk=self.gang.pk).state, *live.values_list("state", flat=True)],
        )


@pytest.fixture
def scene(advance_clock: Callable[[float], None]) -> Scene:
    tier = make.tier()
    nodes = [make.node(tier, 2) for _ in range(2)]
    company = make.company()
    owner = make.team(company)
    for team in (company, owner):
        make.quota(team, tier, guaranteed_gpus=4)
    borrowers = [make.workload(make.team(), tier, gpus=2, time_limit_s=100_000) for _ in nodes]
    assert set(pass_once().started) == {one.id for one in borrowers}
    homes = {Replica.objects.get(attempt__workload=one).node_id: one for one in borrowers}
    agents = [speaker(node) for node in nodes]
    for agent in agents:
        agent.sync(report(Replica.objects.get(node=agent.node), "running"))
    advance_clock(HOUR)
    return Scene(agents, [homes[node.pk] for node in nodes], make.workload(owner, tier, gpus=2, replicas=2))


@pytest.fixture
def halts(
    scene: Scene,
    owner_connection: psycopg.Connection[tuple[object, ...]],
    other_connection: Callable[..., psycopg.Connection[tuple[object, ...]]],
) -> Halts:
    return Halts(owner_connection, other_connection())


@WAYS
def test_taking_back_is_whole_or_nothing_wherever_it_ends(scene: Scene, halts: Halts, end: End) -> None:
    before = rows_dump(without=NOTES)
    ended = 0
    while halts.pass_until(ended + 1, end):
        ended += 1
        if scene.states()[1] == ["waiting"]:
            assert rows_dump(without=NOTES) == before, f"write {ended}"
        else:
            break  # it was inside the COMMIT, which nobody can stop any more
    assert (
        ended >= 12
    )  # the fence, attempts, replicas, allocations, workloads, evictions, verdict, events, record …
    assert scene.states() == (["stopping"] * 2, ["waiting", "claiming"])
    _conserved()
    stored = rows_dump(without=NOTES)
    pass_turns()
    assert rows_dump(without=(*NOTES, "scheduler_state")) == {
        table: rows for table, rows in stored.items() if table != "scheduler_state"
    }
    _goes_on(scene)


@WAYS
def test_a_claim_starts_whole_or_stays_wherever_the_pass_ends(scene: Scene, halts: Halts, end: End) -> None:
    assert pass_once().claimed == [scene.gang.id]
    scene.ranks_left()
    ended = 0
    while halts.pass_until(ended + 1, end) and scene.states()[1] == ["waiting", "claiming"]:
        ended += 1
        assert {one.state for one in Allocation.objects.filter(workload=scene.gang)} == {"claimed"}
        _conserved()
    assert ended >= 6
    assert scene.states()[1] == ["starting", "starting"]
    _goes_on(scene)


def test_a_claim_outlives_whoever_promised_it(scene: Scene, halts: Halts) -> None:
    """Between the commit and the victims' end any number of schedulers may come and go."""
    assert pass_once().claimed == [scene.gang.id]
    for write_number in (1, 2, 3):
        halts.pass_until(write_number, Halts.kill)
        assert scene.states() == (["stopping"] * 2, ["waiting", "claiming"])
        assert Eviction.objects.count() == 2
    scene.ranks_left()
    _goes_on(scene)


def _goes_on(scene: Scene) -> None:
    """From here all goes as if nothing had been: each was evicted once, the gang runs, and the rest waits."""
    if scene.states()[0] == ["stopping"] * 2:
        scene.ranks_left()
    pass_turns()
    pass_turns()
    assert scene.states() == (["waiting"] * 2, ["starting", "starting"])
    evicted = Eviction.objects.values_list("workload", "gained_by")
    assert sorted(evicted) == sorted((one.pk, scene.gang.pk) for one in scene.borrowers)
    assert Attempt.objects.filter(workload=scene.gang).count() == 1
    assert Allocation.objects.filter(workload=scene.gang, state="held").count() == 4
    assert set(Verdict.objects.values_list("workload", flat=True)) == {one.pk for one in scene.borrowers}
    _conserved()
    meter(everything=True)
    assert books_verify().problems == ()


_TWO_HOLDERS = """
SELECT count(*) FROM scheduling_allocation a JOIN scheduling_allocation b ON a.gpu_id = b.gpu_id AND a.id < b.id
WHERE a.slots && b.slots AND a.span && b.span AND a.state <> 'dropped' AND b.state <> 'dropped'
  AND 'claimed' NOT IN (a.state, b.state)
"""
_USED = """
SELECT n.id, coalesce(sum(r.cpu_m), 0), coalesce(sum(r.memory_mib), 0) FROM fleet_node n
LEFT JOIN scheduling_replica r ON r.node_id = n.id AND r.state NOT IN ('exited', 'claiming') GROUP BY n.id
"""


def _conserved() -> None:
    """No slot has two holders, and the nodes' counters say what stands on them."""
    with connection.cursor() as cursor:
        cursor.execute(_TWO_HOLDERS)
        assert cursor.fetchone() == (0,)
        cursor.execute(_USED)
        assert sorted(Node.objects.values_list("id", "cpu_used_m", "memory_used_mib")) == sorted(
            cursor.fetchall()
        )
