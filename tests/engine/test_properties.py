"""What must hold for every world, and that what a verdict promises comes true."""

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.engine.explain import change_sentence, headline, sentence, start_reason
from scheduling.engine.plan import Plan, Policy, plan, plan_to_json
from scheduling.engine.snapshot import UNITS_PER_GPU, Gpu, Live, Quota, Request, Snapshot, from_json, to_json
from tests.engine.build import NOW_US
from tests.engine.worlds import TEAMS, snapshots

EXAMPLES = settings(deadline=None, max_examples=60)

PATHS = {team.id: team.path for team in TEAMS}


def decide(world: Snapshot, policy: Policy | None = None) -> Plan:
    return plan(world, policy or Policy(), NOW_US)


@EXAMPLES
@given(snapshots())
def test_never_over_capacity(world: Snapshot) -> None:
    gpus, nodes = {gpu.id: gpu for gpu in world.gpus}, {node.id: node for node in world.nodes}
    cpu_m: Counter[str] = Counter()
    memory_mib: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for start in decide(world).starts:
        for replica in start.replicas:
            cpu_m[replica.node_id] += replica.cpu_m
            memory_mib[replica.node_id] += replica.memory_mib
            taken.update(replica.gpu_ids)
            held = [gpus[gpu_id] for gpu_id in replica.gpu_ids]
            assert all(gpu.free and gpu.ready and gpu.node_id == replica.node_id for gpu in held)
            assert {gpu.tier_id for gpu in held} == {replica.tier_id}
            assert nodes[replica.node_id].schedulable
    assert set(taken.values()) <= {1}
    assert all(nodes[node].cpu_free_m >= used for node, used in cpu_m.items())
    assert all(nodes[node].memory_free_mib >= used for node, used in memory_mib.items())


@EXAMPLES
@given(snapshots())
def test_a_start_is_what_was_asked_for(world: Snapshot) -> None:
    asked = {request.workload_id: request for request in world.requests}
    pools = {node.id: node.pool_id for node in world.nodes}
    for start in decide(world).starts:
        request = asked[start.workload_id]
        assert request.replicas_min <= len(start.replicas) <= request.replicas_max
        assert [replica.index for replica in start.replicas] == list(range(len(start.replicas)))
        assert request.budget_blocker is None
        tiers = {replica.tier_id for replica in start.replicas}
        assert tiers <= set(request.tiers)
        assert request.mix_tiers or tiers == {start.tier_id}
        for replica in start.replicas:
            assert len(replica.gpu_ids) == request.gpus_per_replica
            assert (replica.cpu_m, replica.memory_mib) == (request.cpu_m, request.memory_mib)
            assert request.pool_ids is None or pools[replica.node_id] in request.pool_ids


def in_use(world: Snapshot, decided: Plan, row: Quota) -> tuple[int, int]:
    """(units in use before, units started) below the quota's team, of its tier or of all."""
    teams = {request.workload_id: request.team_id for request in world.requests}
    before = sum(
        live.units
        for live in world.live
        if row.team_id in PATHS[live.team_id] and row.tier_id in (None, live.tier_id)
    )
    more = sum(
        len(replica.gpu_ids) * UNITS_PER_GPU
        for start in decided.starts
        for replica in start.replicas
        if row.team_id in PATHS[teams[start.workload_id]] and row.tier_id in (None, replica.tier_id)
    )
    return before, more


@EXAMPLES
@given(snapshots())
def test_never_over_a_limit_at_any_level(world: Snapshot) -> None:
    decided = decide(world)
    for row in world.quotas:
        before, more = in_use(world, decided, row)
        assert row.limit is None or more == 0 or before + more <= row.limit


@EXAMPLES
@given(snapshots())
def test_all_that_is_not_borrowed_stands_inside_a_guarantee(world: Snapshot) -> None:
    decided = decide(world)
    inside = replace(decided, starts=tuple(start for start in decided.starts if not start.borrowed))
    guaranteed = {(row.team_id, row.tier_id): row.guaranteed for row in world.quotas if row.tier_id}
    roots = {
        key: sum(units for (team, tier), units in guaranteed.items() if tier == key) for key in ("a", "b")
    }
    for tier_id, units in roots.items():
        started = sum(
            len(replica.gpu_ids) * UNITS_PER_GPU
            for start in inside.starts
            for replica in start.replicas
            if replica.tier_id == tier_id
        )
        assert started <= units


@EXAMPLES
@given(snapshots())
def test_every_request_starts_or_is_told_all_that_blocks_it(world: Snapshot) -> None:
    decided = decide(world)
    answered = [start.workload_id for start in decided.starts] + [v.workload_id for v in decided.verdicts]
    assert sorted(answered) == sorted(request.workload_id for request in world.requests)
    for verdict in decided.verdicts:
        assert verdict.blockers
        assert verdict.position >= 1
        assert all(sentence(blocker, {}) for blocker in verdict.blockers)
        assert headline(verdict, {})
        assert change_sentence(verdict.smallest_change, {})
    assert all(start_reason(start) for start in decided.starts)


@EXAMPLES
@given(snapshots())
def test_a_snapshot_and_its_plan_survive_json(world: Snapshot) -> None:
    again = from_json(to_json(world))
    assert again == world
    assert to_json(again) == to_json(world)
    assert plan_to_json(decide(again)) == plan_to_json(decide(world))


@EXAMPLES
@given(snapshots(), st.integers(0, 2**32))
def test_the_order_of_the_input_changes_nothing(world: Snapshot, seed: int) -> None:
    shuffled = {}
    for kind in ("tiers", "nodes", "gpus", "teams", "quotas", "live", "requests", "usage", "band_grants"):
        rows = list(getattr(world, kind))
        random.Random(seed).shuffle(rows)
        shuffled[kind] = tuple(rows)
    assert plan_to_json(decide(Snapshot(**shuffled))) == plan_to_json(decide(world))


@EXAMPLES
@given(snapshots())
def test_a_pass_leaves_nothing_that_could_start(world: Snapshot) -> None:
    # Without reservations: with them, a start may move another's and so make room for a third.
    policy = Policy(reservations=0)
    assert decide(after(world, decide(world, policy)), policy).starts == ()


def after(world: Snapshot, decided: Plan) -> Snapshot:
    """The world once the plan is committed."""
    asked = {request.workload_id: request for request in world.requests}
    replicas = [(asked[start.workload_id], replica) for start in decided.starts for replica in start.replicas]
    taken = {gpu_id for _, replica in replicas for gpu_id in replica.gpu_ids}
    cpu_m: Counter[str] = Counter()
    memory_mib: Counter[str] = Counter()
    live = list(world.live)
    for request, replica in replicas:
        cpu_m[replica.node_id] += replica.cpu_m
        memory_mib[replica.node_id] += replica.memory_mib
        units = len(replica.gpu_ids) * UNITS_PER_GPU
        holds = (request.workload_id, request.team_id, replica.tier_id, units, "held", replica.node_id)
        limit_s = request.time_limit_s
        ends_us = None if limit_s is None else NOW_US + limit_s * 1_000_000
        row = Live(*holds, False, NOW_US, ends_us, replica.cpu_m, replica.memory_mib)
        live.append(replace(row, kind=request.kind, preemptible=request.preemptible))
    started = {start.workload_id for start in decided.starts}
    return replace(
        with_use(world, taken, free=False, cpu_m=cpu_m, memory_mib=memory_mib),
        live=tuple(live),
        requests=tuple(request for request in world.requests if request.workload_id not in started),
    )


@EXAMPLES
@given(snapshots())
def test_a_promise_to_the_head_of_the_line_never_slips(world: Snapshot) -> None:
    """Whatever passed it in this pass: seen again at once, the first reserved start is no later."""
    decided = decide(world)
    if not decided.reservations:
        return
    first = decided.reservations[0]
    later = after(world, decided)
    requests = [
        replace(asked, promised_us=first.start_us) if asked.workload_id == first.workload_id else asked
        for asked in later.requests
    ]
    again = decide(replace(later, requests=tuple(requests)))
    started = [start.workload_id for start in again.starts]
    starts = {held.workload_id: held.start_us for held in again.reservations}
    in_front = [v for v in again.verdicts if v.workload_id == first.workload_id]
    if first.workload_id not in started and not any(asked.band for asked in requests):
        assert in_front[0].eta_us is not None
        ahead = again.reservations[0].workload_id != first.workload_id
        assert ahead or starts[first.workload_id] <= first.start_us


@settings(deadline=None, max_examples=150)
@given(snapshots(max_requests=10, busy=3))
def test_starts_and_reservations_together_never_exceed_a_node_at_any_time(world: Snapshot) -> None:
    # All ready: which of a node's GPUs are given back would not be known otherwise.
    world = replace(world, gpus=tuple(replace(gpu, ready=True) for gpu in world.gpus))
    decided = decide(world, Policy(training_run_s=None))
    spans = [*spans_of_live(world), *spans_of_plan(world, decided)]
    totals: Counter[tuple[str, str]] = Counter((gpu.node_id, gpu.tier_id) for gpu in world.gpus)
    for node in world.nodes:
        totals[node.id, "cpu"], totals[node.id, "memory"] = node.cpu_total_m, node.memory_total_mib
    for moment in {NOW_US, *(held.start_us for held in decided.reservations)}:
        taken: Counter[tuple[str, str]] = Counter()
        for begin, end, amounts in spans:
            taken.update(amounts if begin <= moment < end else {})
        assert all(taken[key] <= totals[key] for key in taken)


Span = tuple[int, int, dict[tuple[str, str], int]]
NEVER_US = 1 << 62


def spans_of_live(world: Snapshot) -> list[Span]:
    """What is past its limit counts as gone at the next whole minute."""
    return [
        (
            0,
            NEVER_US if row.ends_us is None else max(row.ends_us, (NOW_US // 60_000_000 + 1) * 60_000_000),
            amounts_of(row.node_id, row.tier_id, row.units // UNITS_PER_GPU, row.cpu_m, row.memory_mib),
        )
        for row in world.live
    ]


def amounts_of(node: str, tier: str, gpus: int, cpu_m: int, memory_mib: int) -> dict[tuple[str, str], int]:
    return {(node, tier): gpus, (node, "cpu"): cpu_m, (node, "memory"): memory_mib}


def spans_of_plan(world: Snapshot, decided: Plan) -> list[Span]:
    asked = {request.workload_id: request for request in world.requests}
    found = []
    for start in decided.starts:
        end = span_end(asked[start.workload_id], NOW_US)
        for r in start.replicas:
            amounts = amounts_of(r.node_id, r.tier_id, len(r.gpu_ids), r.cpu_m, r.memory_mib)
            found.append((NOW_US, end, amounts))
    for held in decided.reservations:
        asks = asked[held.workload_id]
        for node, count in held.nodes:
            each = (asks.gpus_per_replica, asks.cpu_m, asks.memory_mib)
            amounts = amounts_of(node, held.tier_id, *(count * amount for amount in each))
            found.append((held.start_us, span_end(asks, held.start_us), amounts))
    return found


def span_end(request: Request, start_us: int) -> int:
    return NEVER_US if request.time_limit_s is None else start_us + request.time_limit_s * 1_000_000


@EXAMPLES
@given(snapshots())
def test_no_borrowed_start_takes_what_its_owners_keep_back(world: Snapshot) -> None:
    teams = {request.workload_id: request.team_id for request in world.requests}
    for tier_id in ("a", "b"):
        capacity = (
            sum(gpu.tier_id == tier_id and is_counted(world, gpu) for gpu in world.gpus) * UNITS_PER_GPU
        )
        use = Counter({team.id: 0 for team in world.teams})
        for row in world.live:
            use[row.team_id] += row.units if row.tier_id == tier_id else 0
        for start in decide(world, Policy(grow_gangs=False)).starts:
            before = claimed(world, tier_id, use)
            tiers = {replica.tier_id for replica in start.replicas}
            counts = (len(r.gpu_ids) for r in start.replicas if r.tier_id == tier_id)
            use[teams[start.workload_id]] += sum(counts) * UNITS_PER_GPU
            now = claimed(world, tier_id, use)
            if start.borrowed and tiers == {tier_id} and now > before:
                assert now <= capacity


def claimed(world: Snapshot, tier_id: str, use: Counter[str], parent: str | None = None) -> int:
    total = 0
    for team in world.teams:
        if team.parent_id == parent:
            rows = [row for row in world.quotas if (row.team_id, row.tier_id) == (team.id, tier_id)]
            kept = sum(row.guaranteed - row.lend_limit for row in rows if row.lend_limit is not None)
            total += max(kept, use[team.id] + claimed(world, tier_id, use, team.id))
    return total


def is_counted(world: Snapshot, gpu: Gpu) -> bool:
    open_nodes = {node.id for node in world.nodes if node.schedulable}
    return not gpu.free or (gpu.ready and gpu.node_id in open_nodes)


@EXAMPLES
@given(snapshots())
def test_what_may_not_be_interrupted_is_never_borrowed(world: Snapshot) -> None:
    bound = {request.workload_id for request in world.requests if not request.preemptible}
    assert not [s for s in decide(world).starts if s.borrowed and s.workload_id in bound]


@EXAMPLES
@given(snapshots())
def test_a_band_never_exceeds_the_cap_of_its_grant(world: Snapshot) -> None:
    asked = {request.workload_id: request for request in world.requests}
    starts = [s for s in decide(world, Policy(grow_gangs=False)).starts if s.why_now["rule"] == "band"]
    for grant in world.band_grants:
        taken = [s for s in starts if grant.team_id in PATHS[asked[s.workload_id].team_id]]
        covered = [s for s in taken if asked[s.workload_id].band <= grant.band]
        assert sum(len(r.gpu_ids) for s in covered for r in s.replicas) * UNITS_PER_GPU <= grant.cap


def alone(world: Snapshot) -> tuple[Snapshot, Request] | None:
    """The world with its first request only, if that has to wait."""
    one = replace(world, requests=world.requests[:1])
    return None if decide(one).starts else (one, one.requests[0])


@EXAMPLES
@given(snapshots(max_requests=1, busy=4))
def test_the_smallest_change_does_start_it(world: Snapshot) -> None:
    case = alone(world)
    if case is None:
        return
    world, request = case
    change = decide(world).verdicts[0].smallest_change
    if change is None or change["kind"] == "wait" or change.get("when") == "later":
        return
    if change["kind"] == "fewer_gpus":
        changed = replace(world, requests=(replace(request, gpus_per_replica=change["gpus_per_replica"]),))
    elif change["kind"] == "other_tier":
        changed = replace(world, requests=(replace(request, tiers=(change["tier"],)),))
    elif change["kind"] == "budget":
        changed = replace(world, requests=(replace(request, budget_blocker=None),))
    else:
        if any(item.get("what") for item in change["raise"]):
            return  # a guarantee: there may be no row to raise
        raises = {(item["team_id"], item["tier_id"]): item["units"] for item in change["raise"]}
        rows = [
            replace(
                row,
                limit=None if row.limit is None else row.limit + raises.get((row.team_id, row.tier_id), 0),
            )
            for row in world.quotas
        ]
        changed = replace(world, quotas=tuple(rows))
    assert decide(changed).starts


@EXAMPLES
@given(snapshots(max_requests=1, busy=4))
def test_it_starts_at_its_eta_and_not_before(world: Snapshot) -> None:
    case = alone(world)
    if case is None:
        return
    world, request = case
    only_limits = Policy(training_run_s=None)
    eta_us = decide(world, only_limits).verdicts[0].eta_us
    if eta_us is None:
        return
    assert decide(ended_by(world, eta_us)).starts
    if any(live.ends_us is not None and live.ends_us <= NOW_US for live in world.live):
        return  # past its limit already: it counts as gone at the next whole minute
    # Sooner it may be where the gang spans tiers, or where it is unknown who holds the GPUs that are not ready.
    exact = not request.mix_tiers and all(gpu.ready for gpu in world.gpus)
    assert not (exact and decide(ended_by(world, eta_us - 1)).starts)


def ended_by(world: Snapshot, time_us: int) -> Snapshot:
    """The world once all that must have ended by then has given back what it held."""
    over = [live for live in world.live if live.ends_us is not None and live.ends_us <= time_us]
    gpu_ids = {live.workload_id.removeprefix("l-") for live in over}
    cpu_m: Counter[str] = Counter()
    memory_mib: Counter[str] = Counter()
    for live in over:
        cpu_m[live.node_id] += live.cpu_m
        memory_mib[live.node_id] += live.memory_mib
    left = tuple(live for live in world.live if live not in over)
    return replace(with_use(world, gpu_ids, free=True, cpu_m=cpu_m, memory_mib=memory_mib), live=left)


def with_use(
    world: Snapshot, gpu_ids: set[str], *, free: bool, cpu_m: Counter[str], memory_mib: Counter[str]
) -> Snapshot:
    """The machines once these GPUs are freed or taken, CPU and memory with them."""
    sign = 1 if free else -1
    gpus = (replace(gpu, free=free if gpu.id in gpu_ids else gpu.free) for gpu in world.gpus)
    nodes = (
        replace(
            node,
            cpu_free_m=node.cpu_free_m + sign * cpu_m[node.id],
            memory_free_mib=node.memory_free_mib + sign * memory_mib[node.id],
        )
        for node in world.nodes
    )
    return replace(world, gpus=tuple(gpus), nodes=tuple(nodes))
