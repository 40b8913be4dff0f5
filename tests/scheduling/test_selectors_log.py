"""Following a log: every byte once, also where streams, attempts and pages change."""

from __future__ import annotations

import pytest

from gpuyard.core.errors import Invalid
from scheduling import selectors
from scheduling.models import LogChunk, Replica, Workload
from tests import factories as make

pytestmark = pytest.mark.django_db


def _running() -> tuple[Workload, Replica]:
    tier = make.tier()
    workload = make.workload(None, tier)
    attempt = make.placed(workload, list(make.node(tier, 1).gpus.all()), running=True)
    return workload, attempt.replicas.get()


def _write(replica: Replica, stream: str, *texts: str) -> None:
    for text in texts:
        last = LogChunk.objects.filter(replica=replica, stream=stream).order_by("-offset").first()
        offset = last.offset + last.size if last else 0
        LogChunk.objects.create(replica=replica, stream=stream, offset=offset, size=len(text), text=text)


def _texts(page: selectors.LogPage) -> list[str]:
    return [chunk.text for chunk in page.chunks]


def test_a_log_is_read_on_from_its_cursor() -> None:
    workload, replica = _running()
    _write(replica, "stdout", "one", "two")
    _write(replica, "stderr", "oops")

    first = selectors.log_read(workload.owner, workload)
    _write(replica, "stdout", "three")
    second = selectors.log_read(workload.owner, workload, after=first.cursor)
    third = selectors.log_read(workload.owner, workload, after=second.cursor)

    assert (_texts(first), _texts(second), _texts(third)) == (["one", "two", "oops"], ["three"], [])
    assert third.cursor == second.cursor
    assert not third.has_more


def test_small_pages_lose_and_repeat_nothing() -> None:
    workload, replica = _running()
    for number in range(5):
        _write(replica, "stdout", f"out{number}")
        _write(replica, "stderr", f"err{number}")

    seen: list[str] = []
    page = selectors.log_read(workload.owner, workload, limit=2)
    seen += _texts(page)
    while page.has_more:
        page = selectors.log_read(workload.owner, workload, after=page.cursor, limit=2)
        seen += _texts(page)

    assert [text for text in seen if text.startswith("out")] == [f"out{number}" for number in range(5)]
    assert [text for text in seen if text.startswith("err")] == [f"err{number}" for number in range(5)]


def test_the_tail_is_the_end_and_goes_on_from_there() -> None:
    workload, replica = _running()
    _write(replica, "stdout", "a", "b", "c")

    page = selectors.log_read(workload.owner, workload, tail=True, limit=2)

    assert (_texts(page), page.has_more) == (["b", "c"], False)
    assert _texts(selectors.log_read(workload.owner, workload, after=page.cursor)) == []


def test_a_followed_log_goes_on_with_the_next_attempt() -> None:
    workload, replica = _running()
    _write(replica, "stdout", "first")
    page = selectors.log_read(workload.owner, workload)
    replica.attempt.state, replica.attempt.ended_at = "ended", replica.attempt.created_at
    replica.attempt.save()
    again = make.replica(make.attempt(workload, replica.attempt.tier), replica.node)
    _write(again, "stdout", "second")

    following = selectors.log_read(workload.owner, workload, after=page.cursor)

    assert (_texts(following), following.is_new) == (["second"], True)
    assert _texts(selectors.log_read(workload.owner, workload, attempt_number=1)) == ["first"]


def test_a_workload_that_never_ran_has_an_empty_log() -> None:
    workload = make.workload()

    page = selectors.log_read(workload.owner, workload)

    assert (page.chunks, page.replica, page.cursor) == ((), None, "")


@pytest.mark.parametrize("cursor", ["x", "1.2.3", "1.0.-1.0", "1.0.9999999999999999999.0", "1.0.\u0663.0"])
def test_a_cursor_of_somebody_elses_making_is_refused(cursor: str) -> None:
    workload, _replica = _running()

    with pytest.raises(Invalid) as refused:
        selectors.log_read(workload.owner, workload, after=cursor)
    assert refused.value.errors[0].field == "after"
