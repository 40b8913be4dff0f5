"""Parts of cards: which slots a start gets, what it counts for, and who may be beside it."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from gpuyard.fleet.models import Gpu
from scheduling.claims import claims_turn
from scheduling.loader import snapshot_load
from scheduling.models import Allocation, Replica, Workload
from scheduling.passes import pass_once
from tenants.models import Team
from tests import factories as make
from tests.scheduling.planned import claim, commit, on, start, stop
from tests.scheduling.speaking import exited, speaker

pytestmark = pytest.mark.django_db


def _card(**fields: object) -> Gpu:
    return make.node(make.tier(memory_mib=80_000), 1, **fields).gpus.get()  # type: ignore[arg-type]


def _asks(team: Team, card: Gpu) -> Workload:
    return make.workload(team, card.tier, preemptible=True)


def _pieces(of: Workload) -> list[tuple[int, int]]:
    row = Allocation.objects.get(workload=of)
    return [(piece.lower, piece.upper) for piece in row.slots]


def test_a_share_gets_the_lowest_free_slots_and_counts_for_them() -> None:
    card, team = _card(), make.team()
    first, second = _asks(team, card), _asks(team, card)
    done = commit(start(first, on(card, slots=250)), start(second, on(card, slots=100)))
    assert not done.refused
    assert (_pieces(first), _pieces(second)) == ([(0, 250)], [(250, 350)])
    assert sorted(Allocation.objects.values_list("units", flat=True)) == [700, 1750]
    assert set(Allocation.objects.values_list("scope", flat=True)) == {team.id}


def test_a_share_fills_gaps() -> None:
    card, team = _card(), make.team()
    rank = make.replica(make.attempt(_asks(team, card), card.tier), card.node)
    for piece in ((0, 100), (300, 700)):
        make.allocation(rank, card, shares=piece)
    asked = _asks(team, card)
    commit(start(asked, on(card, slots=400)))
    assert _pieces(asked) == [(100, 300), (700, 900)]


def test_a_share_that_no_longer_fits_is_refused() -> None:
    card, team = _card(), make.team()
    loaded = snapshot_load()
    commit(start(_asks(team, card), on(card, slots=700)))
    late = _asks(team, card)
    done = commit(start(late, on(card, slots=301)), loaded=snapshot_load())
    assert done.refused == {late.id: "gpu_taken"}
    assert loaded.pass_number == 0


def test_two_teams_share_no_card_unless_the_policy_lets_a_company() -> None:
    card, company = _card(), make.company()
    one, other = make.team(company), make.team(company)
    commit(start(_asks(one, card), on(card, slots=300)), share_scope="company")
    beside, stranger = _asks(other, card), _asks(make.team(), card)
    done = commit(start(beside, on(card, slots=300)), share_scope="company")
    assert done.started == [beside.id]
    done = commit(start(stranger, on(card, slots=300)), share_scope="company")
    assert done.refused == {stranger.id: "gpu_taken"}


def test_work_on_a_share_is_told_its_part_of_the_card() -> None:
    card = _card()
    agent = speaker(card.node)
    commit(start(_asks(make.team(), card), on(card, slots=250)))
    (order,) = agent.sync()["replicas"]
    assert order["gpu_uuids"] == [card.device_uuid]
    assert order["env"] == {"GPUYARD_GPU_SHARE": "250", "GPUYARD_GPU_MEMORY_MIB": "20000"}


def test_whole_gpus_are_told_nothing_of_parts() -> None:
    card = _card()
    agent = speaker(card.node)
    commit(start(_asks(make.team(), card), on(card)))
    (order,) = agent.sync()["replicas"]
    assert order["env"] == {}


def test_another_teams_share_is_claimed_and_starts_when_the_card_is_empty() -> None:
    card, team = _card(), make.team()
    agent = speaker(card.node)
    victims = [_asks(team, card), _asks(team, card)]
    commit(*(start(one, on(card, slots=400)) for one in victims))
    gains = _asks(make.team(), card)
    done = commit(claim(gains, on(card, slots=300), victims=victims), *(stop(one, gains) for one in victims))
    assert done.claimed == [gains.id]
    first, second = Replica.objects.filter(attempt__workload__in=victims)
    agent.sync(exited(first, exit_reason="stopped"))
    assert claims_turn() == []
    agent.sync(exited(second, exit_reason="stopped"))
    assert claims_turn() == [gains.id]


def test_a_storm_of_shares_never_exceeds_a_card() -> None:
    dice = random.Random(7)
    team = make.team()
    cards = [_card(cpu_m=10**6, memory_mib=10**6) for _ in range(3)]
    for _turn in range(6):
        asked = [
            (_asks(team, card), card, dice.choice((100, 250, 500, 37))) for card in cards for _ in range(3)
        ]
        done = commit(*(start(one, on(card, slots=slots)) for one, card, slots in asked))
        assert len(done.started) + len(done.refused) == len(asked)
    for card in cards:
        held = Allocation.objects.filter(gpu=card)
        used = sum(row.units for row in held)
        assert used <= 7000
        assert used > 7000 - 7 * 500


def test_a_pass_takes_a_card_whole_or_by_its_instances() -> None:
    card = _card()
    part = make.instance(card, make.tier(memory_mib=40_000))
    agent = speaker(card.node)
    first, second = _asks(make.team(), card), _asks(make.team(), part)
    done = pass_once()
    assert (len(done.started), done.refused) == (1, {})
    assert (pass_once().started, pass_once().refused) == ([], {})
    agent.sync(exited(Replica.objects.get()))
    done = pass_once()
    assert (done.started, done.refused) == ([({first.id, second.id} - {_ended()}).pop()], {})


def _ended() -> UUID:
    return Workload.objects.get(state="succeeded").pk
