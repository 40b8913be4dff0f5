from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.engine.fragmentation import Fragments, PackingPolicy
from scheduling.engine.mix import Ask, Mix
from scheduling.engine.packing import Choice, NodeStates, Packer

EXAMPLES = settings(deadline=None, max_examples=60)
ASKS = [
    *(Ask(cpu, 1, slots) for cpu, slots in ((1000, 250), (3000, 300), (3152, 810), (0, 100), (9000, 500))),
    *(Ask(cpu, gpus, 1000) for cpu, gpus in ((8000, 1), (30_000, 2), (12_000, 4), (60_000, 8))),
    Ask(20_000, 0, 0),
    Ask(4000, 1, 1000, ("a",)),
    Ask(2000, 1, 470, ("b", "c")),
]
MIX = Mix.of({ask: 1.0 + (3 * number) % 5 for number, ask in enumerate(ASKS)})
KINDS = (("a", 64_000, 2), ("b", 96_000, 8), ("b", 32_000, 4), ("c", 104_000, 2), ("c", 16_000, 0))
POLICIES = (
    PackingPolicy(),
    PackingPolicy(step_slots=0.0),
    PackingPolicy(measure=Fragments.SLIVERS, popular_part=1.0),
)
WORLDS = st.lists(st.sampled_from(KINDS), min_size=1, max_size=9)
# an ask with its memory, or (None) one of what runs ends
EVENTS = st.lists(
    st.one_of(st.none(), st.tuples(st.sampled_from(ASKS), st.integers(0, 40_000))), min_size=1, max_size=60
)
Event = tuple[Ask, int] | None
Kind = tuple[str, int, int]


def states(*kinds: Kind, memory_mib: int = 100_000) -> NodeStates:
    tiers = tuple(sorted({tier for tier, _, _ in kinds}))
    cpu = np.array([cpu for _, cpu, _ in kinds])
    gpus = np.array([gpus for _, _, gpus in kinds])
    slots = np.where(np.arange(8) < gpus[:, None], 1000, 0)
    tier = np.array([tiers.index(tier) for tier, _, _ in kinds])
    return NodeStates(tiers, tier, cpu.copy(), cpu, np.full(len(kinds), memory_mib), gpus, slots)


def run(packer: Packer, events: list[Event]) -> list[Choice | None]:
    """Place what comes where the packer says; a None ends the oldest that runs."""
    running: list[tuple[Ask, Choice, int]] = []
    choices: list[Choice | None] = []
    for event in events:
        if event is None:
            if running:
                packer.give_back(*running.pop(0))
            continue
        ask, memory_mib = event
        choice = packer.choose(ask, memory_mib)
        choices.append(choice)
        if choice is not None:
            packer.take(ask, choice, memory_mib)
            running.append((ask, choice, memory_mib))
    return choices


@EXAMPLES
@given(WORLDS, EVENTS, st.sampled_from([None, 7]))
def test_never_over_capacity_and_nothing_that_fits_is_refused(
    kinds: list[Kind], events: list[Event], seed: int | None
) -> None:
    packer = Packer(states(*kinds), MIX, ties=None if seed is None else np.random.default_rng(seed))
    for event in events:
        before = deepcopy(packer.states)
        for choice in run(packer, [event]):
            assert event is not None
            assert (choice is not None) == fits_somewhere(before, *event)
        now = packer.states
        assert min(now.cpu_free_m.min(), now.memory_free_mib.min(), now.slots_free.min()) >= 0


def fits_somewhere(free: NodeStates, ask: Ask, memory_mib: int) -> bool:
    gpus = (free.slots_free >= max(ask.slots, 1)).sum(axis=1) >= ask.gpus
    tier = np.array([not ask.tiers or free.tiers[tier] in ask.tiers for tier in free.tier])
    room = (free.cpu_free_m >= ask.cpu_m) & (free.memory_free_mib >= memory_mib)
    return bool((gpus & tier & room).any())


@EXAMPLES
@given(WORLDS, EVENTS, st.sampled_from(POLICIES))
def test_lazy_costs_equal_a_full_recomputation(
    kinds: list[Kind], events: list[Event], policy: PackingPolicy
) -> None:
    packer = Packer(states(*kinds), MIX, policy)
    run(packer, events)
    fresh = Packer(deepcopy(packer.states), MIX, policy)
    for ask in ASKS:
        assert packer.costs(ask).tolist() == fresh.costs(ask).tolist()
        assert packer.choose(ask) == fresh.choose(ask)


@EXAMPLES
@given(WORLDS, EVENTS, st.sampled_from([None, 7]))
def test_same_input_same_choices(kinds: list[Kind], events: list[Event], seed: int | None) -> None:
    def once() -> list[Choice | None]:
        ties = None if seed is None else np.random.default_rng(seed)
        return run(Packer(states(*kinds), MIX, ties=ties), events)

    assert once() == once()


@EXAMPLES
@given(WORLDS, EVENTS)
def test_what_is_given_back_leaves_no_trace(kinds: list[Kind], events: list[Event]) -> None:
    packer = Packer(states(*kinds), MIX)
    taken = [event for event in events if event is not None]
    run(packer, [*taken, *[None] * len(taken)])
    untouched = Packer(states(*kinds), MIX)
    assert packer.states.slots_free.tolist() == untouched.states.slots_free.tolist()
    assert [packer.choose(ask) for ask in ASKS] == [untouched.choose(ask) for ask in ASKS]


def test_many_nodes_of_one_kind_score_as_each_alone() -> None:
    """Beyond a few hundred nodes equal states are looked at once."""
    packer = Packer(states(*[KINDS[1], KINDS[3]] * 200), MIX)
    run(packer, [(ASKS[2], 0), (ASKS[5], 0), (ASKS[0], 0)])
    for ask in (ASKS[4], ASKS[6]):
        whole = packer.costs(ask)
        few = Packer(deepcopy(packer.states), MIX)
        few.costs(ask)
        assert whole.tolist() == few.costs(ask).tolist()
        assert len(set(whole.tolist())) <= 5


def test_a_share_goes_to_the_card_that_fgd_says() -> None:
    share, one, two = Ask(1000, 1, 300), Ask(1000, 1, 1000), Ask(1000, 2, 1000)
    mix = Mix.of({share: 5.0, one: 3.0, two: 2.0})
    for policy in (PackingPolicy(), PackingPolicy(1.0, 0.0, 0.0, measure=Fragments.SLIVERS)):
        free = states(("a", 64_000, 2))
        free.slots_free[0, 1] = 500
        choice = Packer(free, mix, policy).choose(share)
        assert choice is not None
        assert choice.gpus == (1,)


def test_the_worked_example_of_the_documentation() -> None:
    share, one, two = Ask(1000, 1, 300), Ask(1000, 1, 1000), Ask(1000, 2, 1000)
    free = states(("a", 64_000, 2), ("a", 64_000, 2))
    free.cpu_free_m[:] = [60_000, 2000]
    free.slots_free[:, 0] = 500
    packer = Packer(free, Mix.of({share: 5.0, one: 3.0, two: 2.0}))
    assert packer.costs(share).tolist() == pytest.approx([0.00075, 1 + 2 * (0.6 - 1 / 64) + 0.00075])
    parts = packer.explain(share, [0, 1])
    assert [part["fragments"] for part in parts] == pytest.approx([-45, -45])
    assert [part["shares"] for part in parts] == pytest.approx([50, 50])
    assert [part["stranded"] for part in parts] == pytest.approx([0, 63.53], abs=0.01)
    assert [part["balance"] for part in parts] == pytest.approx([0, 1.16875])
    assert [part["fullness"] for part in parts] == pytest.approx([0.00075] * 2)


def test_whole_gpus_are_the_first_idle_ones() -> None:
    free = states(("b", 96_000, 8))
    free.slots_free[0, :3] = [1000, 0, 700]
    choice = Packer(free, MIX).choose(Ask(8000, 3, 1000))
    assert choice is not None
    assert choice.gpus == (0, 3, 4)


def test_ties_go_to_the_first_node_and_gpu_or_anywhere_by_seed() -> None:
    alike = [("b", 96_000, 8)] * 12
    share = Ask(1000, 1, 250)
    first = Packer(states(*alike), MIX).choose(share)
    assert first is not None
    assert (first.node, first.gpus) == (0, (0,))
    seen = set()
    for seed in range(40):
        choice = Packer(states(*alike), MIX, ties=np.random.default_rng(seed)).choose(share)
        assert choice is not None
        assert choice.cost == first.cost
        seen.add((choice.node, choice.gpus))
    assert len({node for node, _ in seen}) > 6
    assert {gpus for _, gpus in seen} == {(0,)}  # equal GPUs of one node are alike


def test_a_scarce_tier_is_left_to_those_who_need_it() -> None:
    anywhere, only_a = Ask(1000, 1, 1000), Ask(1000, 1, 1000, ("a",))
    mix = Mix.of({anywhere: 1.0, only_a: 1.0})
    fleet = [("a", 64_000, 2), ("b", 64_000, 2), ("b", 64_000, 2)]
    nodes = []
    for weight in (0.0, 2.0):
        chosen = Packer(states(*fleet), mix, PackingPolicy(fragments=0.0, scarcity=weight)).choose(anywhere)
        nodes.append(chosen and chosen.node)
    assert nodes == [0, 1]


def test_a_hungry_task_goes_where_cpu_is_not_missed() -> None:
    free = states(("a", 64_000, 2), ("a", 64_000, 2))
    free.slots_free[1, 1] = 0
    mix = Mix.of({Ask(12_000, 1, 1000): 9.0, Ask(30_000, 0, 0): 1.0})
    chosen = Packer(free, mix).choose(Ask(50_000, 0, 0))
    assert chosen is not None
    assert chosen.node == 1  # one GPU is stranded there, two would be on the first


def test_balance_minds_only_gpu_left_without_cpu() -> None:
    only_balance = PackingPolicy(fragments=0.0, shares=0.0, stranded=0.0, scarcity=0.0, fullness=0.0)
    free = states(("a", 10_000, 2), ("a", 10_000, 2))
    free.cpu_free_m[:] = [9000, 4000]
    free.slots_free[0, :2] = [0, 0]
    assert Packer(free, MIX, only_balance).costs(Ask(1000, 0, 0)).tolist() == pytest.approx([0.0, 1.4])


def test_of_equal_places_the_fuller_node_wins() -> None:
    alike = states(("a", 64_000, 2), ("a", 64_000, 2), ("a", 64_000, 2))
    alike.slots_free[1, 0] = 0
    nothing_else = PackingPolicy(fragments=0.0, shares=0.0, stranded=0.0, scarcity=0.0)
    chosen = Packer(alike, MIX, nothing_else).choose(Ask(1000, 1, 1000))
    assert chosen is not None
    assert chosen.node == 1


def test_memory_and_a_mask_only_decide_what_is_possible() -> None:
    free = states(("b", 96_000, 8), ("b", 96_000, 8))
    free.memory_free_mib[0] = 1000
    packer = Packer(free, MIX)
    ask = Ask(1000, 1, 1000)
    nodes = [packer.choose(ask, memory_mib) for memory_mib in (1000, 1001, 100_001)]
    assert [choice and choice.node for choice in nodes] == [0, 1, None]
    masked = packer.choose(ask, 0, np.array([False, True]))
    assert masked is not None
    assert masked.node == 1
    assert packer.choose(ask, 1001, np.array([True, False])) is None


def test_a_place_that_is_taken_is_refused() -> None:
    packer = Packer(states(("a", 64_000, 2)), MIX)
    ask = Ask(1000, 2, 1000)
    choice = packer.choose(ask)
    assert choice is not None
    packer.take(ask, choice)
    with pytest.raises(ValueError, match="taken"):
        packer.take(ask, choice)
    assert packer.choose(ask) is None


def test_the_explanation_adds_up_to_the_cost() -> None:
    policy = replace(PackingPolicy(), step_slots=0.0)
    packer = Packer(states(*KINDS), MIX, policy)
    run(packer, [(ask, 0) for ask in ASKS])
    for ask in ASKS:
        choice = packer.choose(ask)
        if choice is not None:
            assert sum(packer.explain(ask, [choice.node])[0].values()) == pytest.approx(choice.cost, abs=1e-4)


def test_another_mix_is_learned_on_the_way() -> None:
    packer = Packer(states(*KINDS), Mix.of(()))
    run(packer, [(ask, 0) for ask in ASKS])
    packer.learn(MIX)
    fresh = Packer(deepcopy(packer.states), MIX)
    assert [packer.choose(ask) for ask in ASKS] == [fresh.choose(ask) for ask in ASKS]


def test_no_nodes_hold_nothing() -> None:
    none = np.zeros(0, dtype=np.int64)
    nothing = NodeStates(("a",), none, none, none, none, none, none.reshape(0, 8))
    assert Packer(nothing, MIX).choose(ASKS[0]) is None
