import uuid

import pytest

from gpuyard.core.errors import StaleState
from gpuyard.core.models import User
from gpuyard.core.states import Edges, IllegalEdge, is_final, state_move
from tests import factories

# a text column of a small table stands in for a state
EDGES: Edges = {"": frozenset({"UTC"}), "UTC": frozenset()}


@pytest.mark.django_db
def test_a_state_moves_with_its_changes() -> None:
    person = factories.user()
    state_move(User, person.pk, old="", new="UTC", edges=EDGES, field="time_zone", first_name="Ada")
    person.refresh_from_db()
    assert (person.time_zone, person.first_name) == ("UTC", "Ada")


@pytest.mark.django_db
def test_what_somebody_else_moved_is_stale() -> None:
    person = factories.user(time_zone="UTC")
    with pytest.raises(StaleState):
        state_move(User, person.pk, old="", new="UTC", edges=EDGES, field="time_zone", first_name="Ada")
    person.refresh_from_db()
    assert person.first_name == ""


@pytest.mark.django_db
def test_a_queryset_narrows_what_may_move() -> None:
    person = factories.user()
    with pytest.raises(StaleState):
        state_move(User.objects.none(), person.pk, old="", new="UTC", edges=EDGES, field="time_zone")


def test_a_move_without_an_edge_is_our_fault() -> None:
    with pytest.raises(IllegalEdge, match="UTC → "):
        state_move(User, uuid.uuid4(), old="UTC", new="", edges=EDGES, field="time_zone")


def test_final_states() -> None:
    assert [is_final(state, EDGES) for state in ("", "UTC", "unknown")] == [False, True, True]
