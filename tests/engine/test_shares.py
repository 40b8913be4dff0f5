"""Parts of cards: who may join whom, how much fits, and what is left when they end."""

from dataclasses import replace

from scheduling.engine.placement import Fleet, Shape
from scheduling.engine.plan import Policy
from scheduling.engine.snapshot import UNITS_PER_GPU, WHOLE, Gpu, Live, Snapshot, Tier
from tests.engine.build import (
    A100,
    H100,
    NOW_US,
    a_node,
    a_request,
    a_world,
    codes_of,
    decide,
    quota,
    some_gpus,
    started,
)

MIG = Tier("mig", "a100-40g.3g20", 20_000, cost_rank=5)


def cards_of(world: Snapshot, policy: Policy | None = None) -> dict[str, str]:
    """The one card of each workload that started."""
    return {s.workload_id: s.replicas[0].gpu_ids[0] for s in decide(world, policy).starts}


def shared(gpu: Gpu, slots_free: int, by: str = "vision") -> Gpu:
    return replace(gpu, free=False, slots_free=slots_free, shared_by=by)


def test_shares_of_one_team_fill_one_card() -> None:
    wants = [a_request(f"w{i}", share=300) for i in range(4)]
    cards = cards_of(a_world([a_node("n1")], some_gpus("n1"), wants))
    assert [cards[f"w{i}"] for i in range(4)] == ["n1.0", "n1.0", "n1.0", "n1.1"]


def test_two_teams_never_share_a_card_unless_the_policy_says_so() -> None:
    wants = [a_request("mine", share=300), a_request("theirs", share=300, team_id="speech")]
    world = a_world([a_node("n1")], some_gpus("n1"), wants)
    assert len(set(cards_of(world).values())) == 2
    assert len(set(cards_of(world, Policy(share_scope="company")).values())) == 1


def test_a_share_goes_to_the_fullest_card_that_holds_it() -> None:
    first, second, third = some_gpus("n1", 3)
    gpus = [shared(first, 900), shared(second, 400), shared(third, 600)]
    wants = [a_request("w", share=500)]
    assert cards_of(a_world([a_node("n1")], gpus, wants)) == {"w": "n1.2"}


def test_a_whole_gpu_needs_a_card_without_shares() -> None:
    gpu, *_ = some_gpus("n1", 1)
    world = a_world([a_node("n1")], [shared(gpu, 900)], [a_request("w")])
    assert decide(world).starts == ()


def test_a_card_that_others_share_is_no_room() -> None:
    gpu, *_ = some_gpus("n1", 1)
    for by in ("speech", None):
        busy = replace(gpu, free=False, slots_free=900, shared_by=by)
        world = a_world([a_node("n1")], [busy], [a_request("w", share=100)])
        assert decide(world).starts == ()
        assert codes_of(decide(world)) == ["share"]


def test_gpu_memory_counts_by_tier() -> None:
    gpus = [*some_gpus("n1", 1, tier=A100), *some_gpus("n2", 1)]
    wants = [a_request("w", share=100, gpu_memory_mib=30_000, tiers=("a100",))]
    (start,) = decide(a_world([a_node("n1"), a_node("n2")], gpus, wants)).starts
    slots = -(-1000 * 30_000 // A100.memory_mib)
    assert (start.replicas[0].slots, start.replicas[0].units_per_gpu) == (slots, 7 * slots)


def test_more_memory_than_a_card_has_never_fits() -> None:
    wants = [a_request("w", gpu_memory_mib=50_000, tiers=("a100",))]
    decided = decide(a_world([a_node("n1")], some_gpus("n1", 1, tier=A100), wants))
    assert codes_of(decided) == ["never_fits_node"]


def test_quotas_count_the_slots_of_a_share() -> None:
    wants = [a_request(f"w{i}", share=400) for i in range(4)]
    world = a_world([a_node("n1")], some_gpus("n1"), wants, [quota("vision", limit=1)])
    assert started(decide(world)) == ["w0", "w1"]


def test_a_mig_instance_is_a_gpu_of_its_tier_with_fewer_units() -> None:
    gpus = [replace(gpu, units=3000) for gpu in some_gpus("n1", 2, tier=MIG)]
    wants = [a_request("whole", gpus=2, tiers=("mig",)), a_request("part", share=500, tiers=("mig",))]
    limits = [replace(quota("vision", "mig"), limit=6000)]
    decided = decide(a_world([a_node("n1")], gpus, wants, limits, tiers=(H100, MIG)))
    assert started(decided) == ["whole"]
    assert decided.starts[0].replicas[0].units_per_gpu == 3000
    assert "never_fits_node" in codes_of(decided, "part")


def both_ways(tier: Tier = MIG) -> list[Gpu]:
    """One card of n1 that is listed whole and in two instances."""
    (whole,) = (replace(gpu, card="c") for gpu in some_gpus("n1", 1))
    parts = [replace(gpu, units=3000, card="c", is_instance=True) for gpu in some_gpus("n1", 2, tier=tier)]
    return [whole, *(replace(gpu, id=f"part-{gpu.id}") for gpu in parts)]


def test_a_card_taken_whole_has_no_instances_left_in_the_same_pass() -> None:
    wants = [a_request("a-whole"), a_request("b-part", tiers=("mig",))]
    decided = decide(a_world([a_node("n1")], both_ways(), wants, tiers=(H100, MIG)))
    assert started(decided) == ["a-whole"]
    assert codes_of(decided, "b-part") == ["not_enough_free_gpus"]


def test_a_card_of_which_an_instance_is_taken_is_not_to_be_had_whole() -> None:
    wants = [a_request(name, tiers=("mig",)) for name in ("a", "b")] + [a_request("c-whole")]
    assert started(decide(a_world([a_node("n1")], both_ways(), wants, tiers=(H100, MIG)))) == ["a", "b"]


def test_a_card_is_open_both_ways_once_nobody_is_on_it() -> None:
    whole, *parts = both_ways()
    fleet = Fleet(
        a_world([a_node("n1")], [whole, replace(parts[0], free=False), parts[1]], tiers=(H100, MIG))
    )
    shape = Shape.of(a_request("w"))
    assert not fleet.fits_now(fleet.tiers["h100"], shape)
    before = fleet.savepoint()
    fleet.release([replace(holding("part-n1.0", WHOLE), tier_id="mig", units=3000)])
    assert fleet.fits_now(fleet.tiers["h100"], shape)
    assert fleet.place(fleet.tiers["h100"], shape) is not None
    assert not fleet.fits_now(fleet.tiers["mig"], shape)
    fleet.rollback(before)
    assert fleet.fits_now(fleet.tiers["mig"], shape)
    assert not fleet.fits_now(fleet.tiers["h100"], shape)


def test_what_is_released_is_free_again_until_the_rollback() -> None:
    first, second = some_gpus("n1", 2)
    node = a_node("n1", cpu_free_m=10_000)
    fleet = Fleet(a_world([node], [replace(first, free=False), shared(second, 400)]))
    tier, whole = fleet.tiers["h100"], Shape.of(a_request("w", gpus=1, cpu_m=1000))
    before = fleet.savepoint()
    assert not fleet.fits_now(tier, whole)
    fleet.release([holding("n1.0", WHOLE, cpu_m=5000), holding("n1.1", 600)])
    assert int(fleet.fit_per_node(tier, whole).sum()) == 2
    assert fleet.place(tier, whole) is not None
    fleet.rollback(before)
    assert tier.slots.tolist() == [[0, 400]]
    assert (fleet.cpu_free.tolist(), tier.usable.tolist()) == ([10_000], [0])


def holding(gpu_id: str, slots: int, cpu_m: int = 0) -> Live:
    units = UNITS_PER_GPU * slots // WHOLE
    return Live(
        "l", "vision", "h100", units, "held", "n1", True, NOW_US, None, cpu_m, gpu_ids=(gpu_id,), slots=slots
    )


def test_labels_and_exclusions_choose_nodes() -> None:
    nodes = [a_node("n1", labels=("zone=a",)), a_node("n2", labels=("old=1", "zone=a")), a_node("n3")]
    gpus = [*some_gpus("n1"), *some_gpus("n2"), *some_gpus("n3")]
    wants = [
        a_request("with", node_labels=("zone=a",), not_labels=("old=1",), gpus=8),
        a_request("without", not_nodes=("n1", "n2"), gpus=8),
    ]
    cards = cards_of(a_world(nodes, gpus, wants))
    assert cards == {"with": "n1.0", "without": "n3.0"}


def test_the_tier_with_the_best_result_for_its_cost_comes_first() -> None:
    fast = replace(H100, speeds=(("training", 3000),), cost_micro=4_000_000)
    slow = replace(A100, speeds=(("training", 1000),), cost_micro=1_000_000)
    nodes, gpus = [a_node("n1"), a_node("n2")], [*some_gpus("n1", 1), *some_gpus("n2", 1, tier=A100)]
    wants = a_request("w", tiers=("h100", "a100"), by_value=True)
    (start,) = decide(a_world(nodes, gpus, [wants], tiers=(fast, slow))).starts
    assert start.tier_id == "a100"
    dear = replace(slow, cost_micro=2_000_000)
    (start,) = decide(a_world(nodes, gpus, [wants], tiers=(fast, dear))).starts
    assert start.tier_id == "h100"
    (start,) = decide(a_world(nodes, gpus, [wants], tiers=(fast, replace(dear, cost_micro=0)))).starts
    assert start.tier_id == "h100"
