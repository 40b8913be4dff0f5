import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard_agent.protocol import ReplicaOrder, SyncAnswer, read_order
from gpuyard_agent.reconcile import Bury, Forget, Known, Refuse, Restart, Start, Stop, reconcile

ID = str(uuid.UUID(int=1))
DEFAULT_GRACE_S = 10.0


def make_order(replica_id: str = ID, **changes: Any) -> ReplicaOrder:
    body = {
        "replica_id": replica_id, "fencing_token": 5, "desired": "run", "grace_s": 3, "on_disconnect": "keep",
        "command": ["true"], "env": {}, "working_dir": None, "gpu_uuids": [], "gpu_indexes": [], "cpu_m": 1,
        "memory_mib": 1, "time_limit_s": None, "rank": 0, "world_size": 1, "workload_id": "w-1", "attempt": 1,
        "team": "t-1", "ports": [], "peers": [],
    }  # fmt: skip
    return read_order(body | changes)


def make_answer(*orders: ReplicaOrder, forget: tuple[str, ...] = ()) -> SyncAnswer:
    return SyncAnswer(1, 1, 1, 90.0, 2.0, DEFAULT_GRACE_S, orders, (), forget)


RUN = make_order()
STOP = make_order(desired="stop")
RUNNING = Known(ID, 5, "running")
CLEAN = Known(ID, 5, "exited", clean=True)
UNCLEAN = Known(ID, 5, "exited")
NEWER = make_order(fencing_token=6)
OLDER = make_order(fencing_token=4)


@pytest.mark.parametrize(
    ("known", "answer", "expected"),
    [
        pytest.param(None, make_answer(RUN), [Start(RUN)], id="new"),
        pytest.param(RUNNING, make_answer(RUN), [], id="already-runs"),
        pytest.param(CLEAN, make_answer(RUN), [], id="ended-is-not-started-again"),
        pytest.param(RUNNING, make_answer(STOP), [Stop(ID, 3.0)], id="stop"),
        pytest.param(replace(RUNNING, stop_grace_s=3.0), make_answer(STOP), [], id="stop-was-asked"),
        pytest.param(
            replace(RUNNING, stop_grace_s=9.0), make_answer(STOP), [Stop(ID, 3.0)], id="more-urgent-stop"
        ),
        pytest.param(UNCLEAN, make_answer(STOP), [Stop(ID, 3.0)], id="hurry-what-is-left"),
        pytest.param(CLEAN, make_answer(STOP), [], id="stopped-already"),
        pytest.param(None, make_answer(STOP), [Bury(STOP)], id="stop-of-a-stranger"),
        pytest.param(RUNNING, make_answer(), [Stop(ID, DEFAULT_GRACE_S)], id="not-wanted-any-more"),
        pytest.param(
            RUNNING, make_answer(forget=(ID,)), [Stop(ID, DEFAULT_GRACE_S)], id="forget-needs-an-end"
        ),
        pytest.param(UNCLEAN, make_answer(forget=(ID,)), [], id="forget-needs-a-clean-end"),
        pytest.param(CLEAN, make_answer(forget=(ID,)), [Forget(ID)], id="forget"),
        pytest.param(CLEAN, make_answer(), [], id="reported-until-forgotten"),
        pytest.param(None, make_answer(forget=(ID,)), [], id="forget-a-stranger"),
        pytest.param(RUNNING, make_answer(OLDER), [Refuse(ID, 5, 4)], id="old-token"),
        pytest.param(RUNNING, make_answer(NEWER), [Stop(ID, 3.0)], id="newer-token-ends-the-old"),
        pytest.param(UNCLEAN, make_answer(NEWER), [], id="newer-token-waits-for-clean"),
        pytest.param(CLEAN, make_answer(NEWER), [Restart(NEWER)], id="newer-token-starts"),
    ],
)
def test_actions(known: Known | None, answer: SyncAnswer, expected: list[object]) -> None:
    assert reconcile([known] if known else [], answer) == expected


ids = st.sampled_from([str(uuid.UUID(int=number)) for number in range(1, 5)])
tokens = st.integers(4, 6)
knowns = st.lists(
    st.builds(
        Known,
        replica_id=ids,
        fencing_token=tokens,
        state=st.sampled_from(["starting", "running", "stopping", "exited"]),
        clean=st.booleans(),
        stop_grace_s=st.none() | st.sampled_from([1.0, 5.0]),
    ).map(lambda known: replace(known, clean=known.clean and known.state == "exited")),
    unique_by=lambda known: known.replica_id,
)
orders = st.lists(
    st.builds(
        make_order,
        replica_id=ids,
        fencing_token=tokens,
        desired=st.sampled_from(["run", "stop"]),
        grace_s=st.sampled_from([1, 5]),
    ),
    unique_by=lambda order: order.replica_id,
)
answers = st.builds(lambda wanted, forget: make_answer(*wanted, forget=tuple(forget)), orders, st.sets(ids))


@given(knowns, answers)
def test_nothing_runs_twice(known: list[Known], answer: SyncAnswer) -> None:
    here = {replica.replica_id: replica for replica in known}
    for action in reconcile(known, answer):
        if isinstance(action, Start):
            assert action.order.replica_id not in here
        if isinstance(action, Restart):
            old = here[action.order.replica_id]
            assert old.clean
            assert old.fencing_token < action.order.fencing_token


@given(knowns, answers)
def test_everything_unwanted_is_ending(known: list[Known], answer: SyncAnswer) -> None:
    wanted = {order.replica_id for order in answer.replicas}
    stopped = {action.replica_id for action in reconcile(known, answer) if isinstance(action, Stop)}
    for replica in known:
        if replica.replica_id not in wanted and replica.state != "exited" and replica.stop_grace_s is None:
            assert replica.replica_id in stopped


@given(knowns, answers)
def test_the_same_answer_again_asks_for_nothing_new(known: list[Known], answer: SyncAnswer) -> None:
    after = {replica.replica_id: replica for replica in known}
    for action in reconcile(known, answer):
        match action:
            case Start(order) | Restart(order):
                after[order.replica_id] = Known(order.replica_id, order.fencing_token, "starting")
            case Bury(order):
                after[order.replica_id] = Known(order.replica_id, order.fencing_token, "exited", clean=True)
            case Stop(replica_id, grace_s):
                after[replica_id] = replace(after[replica_id], stop_grace_s=grace_s)
            case Forget(replica_id):
                del after[replica_id]
    again = reconcile(after.values(), answer)
    assert all(isinstance(action, Refuse) for action in again)
