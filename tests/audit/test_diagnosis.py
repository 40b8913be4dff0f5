"""Each way of tampering is named, on chains in memory; test_tampering.py does the same to the database."""

import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.audit.chain import GENESIS
from gpuyard.audit.diagnosis import Link, diagnose

LENGTH = 8


def chain(length: int = LENGTH) -> list[Link]:
    links: list[Link] = []
    prev = GENESIS
    for sequence in range(1, length + 1):
        links.append(Link(str(uuid.uuid4()), sequence, prev, uuid.uuid4().hex, content_ok=True))
        prev = links[-1].hash
    return links


def found(links: list[Link]) -> list[tuple[str, int, int]]:
    by_sequence = sorted(links, key=lambda one: one.sequence)
    return [(one.kind, one.sequence, one.last_sequence) for one in diagnose(by_sequence)]


def moved(links: list[Link], by: int) -> list[Link]:
    return [replace(one, sequence=one.sequence + by) for one in links]


@pytest.mark.parametrize("length", [0, 1, LENGTH])
def test_an_intact_chain_has_no_findings(length: int) -> None:
    assert found(chain(length)) == []


@pytest.mark.parametrize("place", [1, 4, LENGTH])
@pytest.mark.parametrize("changes", [{}, {"hash": "a"}, {"prev": "a"}, {"prev": "a", "hash": "b"}])
def test_an_altered_event(place: int, changes: dict[str, Any]) -> None:
    links = chain()
    links[place - 1] = replace(links[place - 1], content_ok=False, **changes)
    assert found(links) == [("altered", place, place)]


@pytest.mark.parametrize("place", [1, 4])
def test_an_event_that_was_sealed_anew(place: int) -> None:
    links = chain()
    links[place - 1] = replace(links[place - 1], hash="anew")
    assert found(links) == [("altered", place, place)]


@pytest.mark.parametrize(("first", "last"), [(1, 1), (4, 4), (3, 6), (1, 7)])
def test_deleted_events(first: int, last: int) -> None:
    links = chain()
    del links[first - 1 : last]
    assert found(links) == [("deleted", first, last)]


def test_a_beginning_that_was_cut_and_renumbered() -> None:
    assert found(moved(chain()[3:], -3)) == [("deleted", 1, 1)]


def test_two_gaps_are_two_findings() -> None:
    links = chain()
    assert found([one for one in links if one.sequence not in {2, 5, 6}]) == [
        ("deleted", 2, 2),
        ("deleted", 5, 6),
    ]


def test_a_gap_that_was_closed() -> None:
    links = chain()
    findings = diagnose([*links[:3], *moved(links[4:], -1)])
    assert [(one.kind, one.sequence) for one in findings] == [("altered", 3)]
    assert "or what stood between them was deleted" in findings[0].message


@pytest.mark.parametrize("place", [1, 4, LENGTH])
@pytest.mark.parametrize("is_well_sealed", [True, False])
def test_an_inserted_event(place: int, is_well_sealed: bool) -> None:
    links = chain()
    forged = Link("forged", place, links[place - 1].prev, "f" * 64, content_ok=is_well_sealed)
    assert found([*links[: place - 1], forged, *moved(links[place - 1 :], 1)]) == [("inserted", place, place)]


def test_an_inserted_event_without_a_link() -> None:
    links = chain()
    forged = Link("forged", 4, "e" * 64, "f" * 64, content_ok=False)
    assert found([*links[:3], forged, *moved(links[3:], 1)]) == [("inserted", 4, 4)]


def test_several_inserted_events() -> None:
    links = chain()
    first = Link("first", 4, links[2].hash, "f" * 64, content_ok=True)
    second = Link("second", 5, first.hash, "e" * 64, content_ok=True)
    assert found([*links[:3], first, second, *moved(links[3:], 2)]) == [
        ("inserted", 4, 4),
        ("inserted", 5, 5),
    ]


def test_a_second_event_at_one_place() -> None:
    links = chain()
    assert found([*links, Link("forged", 4, links[2].hash, "f" * 64, content_ok=True)]) == [
        ("inserted", 4, 4)
    ]


def test_two_swapped_events() -> None:
    links = chain()
    links[3], links[4] = replace(links[3], sequence=5), replace(links[4], sequence=4)
    assert found(links) == [("reordered", 4, 4), ("reordered", 5, 5)]


def test_an_event_that_was_moved() -> None:
    links = chain()
    links[-1] = replace(links[-1], sequence=12)
    assert found(links) == [("reordered", 12, 12)]


def test_a_chain_that_was_renumbered() -> None:
    assert found(moved(chain(), 2)) == [("reordered", 3, 3)]


def test_different_tampering_at_once() -> None:
    links = chain(12)
    links[1] = replace(links[1], content_ok=False)
    links[9], links[10] = replace(links[9], sequence=11), replace(links[10], sequence=10)
    del links[5]
    assert found(links) == [
        ("altered", 2, 2),
        ("deleted", 6, 6),
        ("reordered", 10, 10),
        ("reordered", 11, 11),
    ]


def test_links_that_bite_their_own_tail_end() -> None:
    links = chain()
    links[3] = replace(links[3], prev=links[3].hash, content_ok=False)
    assert found(links)


@given(
    st.lists(
        st.builds(
            Link,
            id=st.uuids().map(str),
            sequence=st.integers(1, 6),
            prev=st.sampled_from([GENESIS, "a", "b", "c", "d"]),
            hash=st.sampled_from(["a", "b", "c", "d"]),
            content_ok=st.booleans(),
        ),
        max_size=8,
        unique_by=lambda one: one.id,
    )
)
def test_whatever_was_done_to_a_chain_something_is_found(links: list[Link]) -> None:
    links.sort(key=lambda one: one.sequence)
    follows = [one.prev for one in links] == [GENESIS, *(one.hash for one in links[:-1])][: len(links)]
    counts = [one.sequence for one in links] == list(range(1, len(links) + 1))
    is_intact = follows and counts and all(one.content_ok for one in links)
    if len({one.hash for one in links}) == len(links):
        assert bool(diagnose(links)) != is_intact
    else:
        diagnose(links)  # no two events share a SHA-256; it still has to come to an end
