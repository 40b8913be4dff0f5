from scheduling.engine.plan import Policy
from scheduling.engine.snapshot import Gpu
from tests.engine.build import (
    A100,
    a_node,
    a_request,
    a_world,
    codes_of,
    decide,
    nodes_of,
    quota,
    some_gpus,
    started,
)


def test_the_fullest_node_that_fits_is_taken() -> None:
    gpus = [*some_gpus("n1", free=6), *some_gpus("n2", free=3), *some_gpus("n3", free=1)]
    world = a_world([a_node("n1"), a_node("n2"), a_node("n3")], gpus, [a_request(gpus=2)])
    assert nodes_of(decide(world)) == ["n2"]


def test_a_whole_node_stays_whole_even_if_it_is_smaller() -> None:
    gpus = [*some_gpus("n1", 2), *some_gpus("n2", 8, free=5)]
    world = a_world([a_node("n1"), a_node("n2")], gpus, [a_request(gpus=1)])
    assert nodes_of(decide(world)) == ["n2"]


def test_gpus_of_one_island_come_before_the_fullest_node() -> None:
    crossing = [gpu for gpu in some_gpus("n1") if gpu.index in (0, 1, 4, 5)]
    busy = [Gpu(f"n1.{i}", "n1", "h100", i, i // 4, True, False) for i in (2, 3, 6, 7)]
    gpus = [*crossing, *busy, *some_gpus("n2", free=6)]
    world = a_world([a_node("n1"), a_node("n2")], gpus, [a_request(gpus=4)])
    assert nodes_of(decide(world)) == ["n2"]
    assert nodes_of(decide(world, Policy(pack_islands=0.0))) == ["n1"]


def test_the_fullest_island_is_taken_inside_the_node() -> None:
    gpus = [gpu for gpu in some_gpus("n1") if gpu.index not in (4, 5)]  # island 0 has four free, island 1 two
    world = a_world([a_node("n1")], gpus, [a_request(gpus=2)])
    (start,) = decide(world).starts
    assert start.replicas[0].gpu_ids == ("n1.6", "n1.7")


def test_a_placement_carries_node_epoch_cpu_and_memory() -> None:
    world = a_world(
        [a_node("n1", epoch=7)], some_gpus("n1"), [a_request(gpus=8, cpu_m=9000, memory_mib=4096)]
    )
    (replica,) = decide(world).starts[0].replicas
    assert (replica.node_epoch, replica.cpu_m, replica.memory_mib, replica.tier_id) == (7, 9000, 4096, "h100")
    assert len(replica.gpu_ids) == 8


def test_a_gang_uses_a_whole_node_rather_than_two_halves() -> None:
    gpus = [*some_gpus("n1", free=4), *some_gpus("n2", free=4), *some_gpus("n3")]
    world = a_world([a_node("n1"), a_node("n2"), a_node("n3")], gpus, [a_request(replicas=2, gpus=4)])
    assert nodes_of(decide(world)) == ["n3", "n3"]


def test_a_gang_starts_whole_or_not_at_all() -> None:
    gpus = [*some_gpus("n1"), *some_gpus("n2")]
    nodes = [a_node("n1"), a_node("n2")]
    both = decide(a_world(nodes, gpus, [a_request(replicas=2, gpus=8)]))
    assert sorted(nodes_of(both)) == ["n1", "n2"]
    assert [replica.index for replica in both.starts[0].replicas] == [0, 1]
    assert decide(a_world(nodes, gpus, [a_request(replicas=3, gpus=8)])).starts == ()


def test_a_gang_grows_only_where_nobody_waits() -> None:
    elastic = a_request("elastic", replicas_min=1, replicas_max=4, gpus_per_replica=2, priority=1)
    nodes, gpus = [a_node("n1")], some_gpus("n1")
    assert len(decide(a_world(nodes, gpus, [elastic])).starts[0].replicas) == 4
    waits = a_request("waits", gpus=7)
    assert len(decide(a_world(nodes, gpus, [elastic, waits])).starts[0].replicas) == 1


def test_growing_stops_at_the_guarantee_and_at_the_limit() -> None:
    elastic = a_request(replicas_min=1, replicas_max=4, gpus_per_replica=2)
    for row in (quota("vision", guaranteed=4), quota("lab", limit=5)):
        start = decide(a_world([a_node("n1")], some_gpus("n1"), [elastic], [row])).starts[0]
        assert len(start.replicas) == 2


def test_tiers_are_tried_in_the_order_named() -> None:
    nodes = [a_node("n1"), a_node("n2")]
    gpus = [*some_gpus("n1"), *some_gpus("n2", tier=A100)]
    wants = [
        a_request("first", gpus=8, tiers=("h100", "a100")),
        a_request("second", gpus=8, tiers=("h100", "a100")),
    ]
    decided = decide(a_world(nodes, gpus, wants))
    assert {start.workload_id: start.tier_id for start in decided.starts} == {
        "first": "h100",
        "second": "a100",
    }


def test_a_gang_spans_tiers_only_if_it_says_so() -> None:
    nodes = [a_node("n1"), a_node("n2")]
    gpus = [*some_gpus("n1"), *some_gpus("n2", tier=A100)]
    gang = a_request(replicas=2, gpus=5, tiers=("h100", "a100"))
    assert started(decide(a_world(nodes, gpus, [gang]))) == []
    mixed = a_request(replicas=2, gpus=5, tiers=("h100", "a100"), mix_tiers=True)
    (start,) = decide(a_world(nodes, gpus, [mixed])).starts
    assert [(replica.index, replica.tier_id) for replica in start.replicas] == [(0, "h100"), (1, "a100")]


def test_a_mixed_gang_that_fails_leaves_everything_free() -> None:
    nodes = [a_node("n1"), a_node("n2")]
    gpus = [*some_gpus("n1"), *some_gpus("n2", tier=A100)]
    mixed = a_request("mixed", replicas=3, gpus=5, tiers=("h100", "a100"), mix_tiers=True, priority=1)
    small = a_request("small", gpus=8, mix_tiers=True, tiers=("l4", "h100"))
    assert started(decide(a_world(nodes, gpus, [mixed, small]))) == ["small"]


def test_cpu_and_memory_bound_what_a_node_takes() -> None:
    node = a_node("n1", cpu_free_m=10_000, memory_free_mib=10_240)
    three = [a_request(f"w{i}", cpu_m=4000) for i in range(3)]
    assert started(decide(a_world([node], some_gpus("n1"), three))) == ["w0", "w1"]
    three = [a_request(f"w{i}", memory_mib=4096) for i in range(3)]
    assert started(decide(a_world([node], some_gpus("n1"), three))) == ["w0", "w1"]


def test_no_start_on_nodes_out_of_service_or_in_other_pools() -> None:
    nodes = [a_node("n1", schedulable=False), a_node("n2", pool_id="other")]
    gpus = [*some_gpus("n1"), *some_gpus("n2")]
    decided = decide(a_world(nodes, gpus, [a_request(pool_ids=("pool",))]))
    assert decided.starts == ()
    assert codes_of(decided) == ["nodes_cordoned", "pool_not_allowed"]
    assert started(decide(a_world(nodes, gpus, [a_request()]))) == ["w"]
