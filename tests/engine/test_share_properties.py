"""What must hold for every world in which cards are shared."""

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.engine.explain import headline, start_reason
from scheduling.engine.plan import Plan, Policy, plan, plan_to_json
from scheduling.engine.snapshot import WHOLE, Gpu, Live, Request, Snapshot, from_json, to_json
from tests.engine.build import H100, LAB, NOW_US, SPEECH, VISION, a_node, a_request, a_world, some_gpus
from tests.engine.worlds import TIERS, shared_worlds

EXAMPLES = settings(deadline=None, max_examples=60)


def decide(world: Snapshot, policy: Policy | None = None) -> Plan:
    return plan(world, policy or Policy(), NOW_US)


def holders(world: Snapshot, decided: Plan) -> dict[str, list[tuple[str, int]]]:
    """By card, (team, slots) of all that is on it once the plan is committed."""
    teams = {request.workload_id: request.team_id for request in world.requests}
    found: dict[str, list[tuple[str, int]]] = {gpu.id: [] for gpu in world.gpus}
    for live in world.live:
        for gpu_id in live.gpu_ids:
            found[gpu_id].append((live.team_id, live.slots))
    for start in decided.starts:
        for replica in start.replicas:
            for gpu_id in replica.gpu_ids:
                found[gpu_id].append((teams[start.workload_id], replica.slots))
    return found


@EXAMPLES
@given(shared_worlds())
def test_never_more_than_a_card_and_never_two_teams_on_it(world: Snapshot) -> None:
    for held in holders(world, decide(world)).values():
        assert sum(slots for _, slots in held) <= WHOLE
        assert len({team for team, _ in held}) <= 1


@EXAMPLES
@given(shared_worlds())
def test_a_company_may_share_by_policy_but_no_two_companies(world: Snapshot) -> None:
    decided = decide(world, Policy(share_scope="company"))
    for held in holders(world, decided).values():
        assert sum(slots for _, slots in held) <= WHOLE
        assert len({"alien" if team == "alien" else "root" for team, _ in held}) <= 1


@EXAMPLES
@given(shared_worlds())
def test_never_over_cpu_or_memory_and_only_where_asked(world: Snapshot) -> None:
    nodes, asked = {node.id: node for node in world.nodes}, {r.workload_id: r for r in world.requests}
    ready = {gpu.id: gpu.ready for gpu in world.gpus}
    used: Counter[tuple[str, str]] = Counter()
    for start in decide(world).starts:
        request = asked[start.workload_id]
        for replica in start.replicas:
            node = nodes[replica.node_id]
            used[node.id, "cpu"] += replica.cpu_m
            used[node.id, "memory"] += replica.memory_mib
            assert node.schedulable
            assert set(request.node_labels) <= set(node.labels)
            assert not set(request.not_labels) & set(node.labels)
            assert all(ready[gpu_id] for gpu_id in replica.gpu_ids)
            assert replica.slots == slots_on(request, replica.tier_id)
            assert replica.units_per_gpu == 7 * replica.slots
    assert all(used[node.id, "cpu"] <= node.cpu_free_m for node in world.nodes)
    assert all(used[node.id, "memory"] <= node.memory_free_mib for node in world.nodes)


def slots_on(request: Request, tier_id: str) -> int:
    if not request.share and not request.gpu_memory_mib:
        return WHOLE
    (tier,) = [tier for tier in TIERS if tier.id == tier_id]
    return max(request.share or 0, -(-WHOLE * (request.gpu_memory_mib or 0) // tier.memory_mib))


@EXAMPLES
@given(shared_worlds())
def test_every_request_starts_or_waits_with_a_reason(world: Snapshot) -> None:
    decided = decide(world)
    answered = [start.workload_id for start in decided.starts] + [v.workload_id for v in decided.verdicts]
    assert sorted(answered) == sorted(request.workload_id for request in world.requests)
    assert all(headline(verdict, {}) for verdict in decided.verdicts)
    assert all(start_reason(start) for start in decided.starts)


@EXAMPLES
@given(shared_worlds(), st.integers(0, 2**32))
def test_same_input_same_plan(world: Snapshot, seed: int) -> None:
    rows = {}
    for kind in ("tiers", "nodes", "gpus", "teams", "quotas", "live", "requests", "usage", "band_grants"):
        rows[kind] = list(getattr(world, kind))
        random.Random(seed).shuffle(rows[kind])
    shuffled = replace(world, **{kind: tuple(found) for kind, found in rows.items()})
    once = plan_to_json(decide(world))
    assert plan_to_json(decide(from_json(to_json(shuffled)))) == once


def after(world: Snapshot, decided: Plan) -> Snapshot:
    """The world once the plan is committed."""
    asked = {request.workload_id: request for request in world.requests}
    live, gpus = list(world.live), {gpu.id: gpu for gpu in world.gpus}
    nodes = {node.id: node for node in world.nodes}
    for start in decided.starts:
        request = asked[start.workload_id]
        limit_s = request.time_limit_s
        ends_us = None if limit_s is None else NOW_US + limit_s * 1_000_000
        for r in start.replicas:
            units = r.units_per_gpu * len(r.gpu_ids)
            holds = (
                request.workload_id,
                request.team_id,
                r.tier_id,
                units,
                "held",
                r.node_id,
                start.borrowed,
            )
            row = Live(*holds, NOW_US, ends_us, r.cpu_m, r.memory_mib, request.kind, request.preemptible)
            live.append(replace(row, gpu_ids=r.gpu_ids, slots=r.slots))
            node = nodes[r.node_id]
            cpu_m, memory_mib = node.cpu_free_m - r.cpu_m, node.memory_free_mib - r.memory_mib
            nodes[node.id] = replace(node, cpu_free_m=cpu_m, memory_free_mib=memory_mib)
            for gpu_id in r.gpu_ids:
                gpus[gpu_id] = taken(gpus[gpu_id], r.slots, request.team_id)
    started = {start.workload_id for start in decided.starts}
    return replace(
        world,
        live=tuple(live),
        gpus=tuple(gpus.values()),
        nodes=tuple(nodes.values()),
        requests=tuple(request for request in world.requests if request.workload_id not in started),
    )


def taken(gpu: Gpu, slots: int, team_id: str) -> Gpu:
    left = (WHOLE if gpu.free else gpu.slots_free) - slots
    return replace(gpu, free=False, slots_free=left, shared_by=None if slots == WHOLE else team_id)


@EXAMPLES
@given(shared_worlds())
def test_a_pass_leaves_nothing_that_could_start(world: Snapshot) -> None:
    policy = Policy(reservations=0)
    assert decide(after(world, decide(world, policy)), policy).starts == ()


@settings(deadline=None, max_examples=150)
@given(shared_worlds())
def test_the_first_reserved_start_is_no_later_in_the_next_pass(world: Snapshot) -> None:
    decided = decide(world)
    if not decided.reservations or any(request.band for request in world.requests):
        return
    first = decided.reservations[0]
    later = after(world, decided)
    requests = tuple(
        replace(asked, promised_us=first.start_us) if asked.workload_id == first.workload_id else asked
        for asked in later.requests
    )
    again = decide(replace(later, requests=requests))
    if first.workload_id in [start.workload_id for start in again.starts]:
        return
    starts = {held.workload_id: held.start_us for held in again.reservations}
    ahead = again.reservations[0].workload_id != first.workload_id
    assert ahead or starts[first.workload_id] <= first.start_us


ASKED = st.sampled_from(
    [{"share": 100}, {"share": 250}, {"share": 500}, {"gpu_memory_mib": 30_000}, {"gpu_memory_mib": 9_000}]
)
STORM = st.lists(st.tuples(ASKED, st.sampled_from(("vision", "speech"))), min_size=20, max_size=60)


@EXAMPLES
@given(STORM)
def test_in_a_storm_of_shares_no_card_overflows_and_none_waits_while_one_has_room(
    asked: list[tuple[dict[str, int], str]],
) -> None:
    requests = [a_request(f"w{i:02}", team_id=team, **what) for i, (what, team) in enumerate(asked)]
    gpus = [*some_gpus("n1", 2), *some_gpus("n2", 3)]
    world = a_world([a_node("n1"), a_node("n2")], gpus, requests, teams=(LAB, VISION, SPEECH))
    decided = decide(world, Policy(reservations=0))
    cards = holders(world, decided)
    assert all(sum(slots for _, slots in held) <= WHOLE for held in cards.values())
    started = {start.workload_id for start in decided.starts}
    for request in requests:
        if request.workload_id not in started:
            memory = -(-WHOLE * (request.gpu_memory_mib or 0) // H100.memory_mib)
            slots = max(request.share or 0, memory)
            for held in cards.values():
                is_own = all(team == request.team_id for team, _ in held)
                assert not is_own or sum(taken for _, taken in held) + slots > WHOLE
