from datetime import timedelta
from typing import Any

import pytest

from gpuyard.core import clock
from gpuyard.core.models import User
from scheduling.models import LogChunk, PortLease, Replica, Verdict, Workload
from scheduling.states import WorkloadState
from tenants.models import Team
from tests import factories
from tests.api.calls import Caller
from tests.api.conftest import counted

pytestmark = pytest.mark.django_db


def asked(team: Team, **fields: Any) -> dict[str, Any]:
    spec = factories.spec_document("h100-80g", gpus=4)
    return {"team": team.public_id, "name": "train", "kind": "training", "spec": spec, **fields}


def running(team: Team, member: User, *, gpus: int = 2, **fields: Any) -> Workload:
    tier = factories.tier()
    node = factories.node(tier, gpus=gpus)
    made = factories.workload(team, tier, owner=member, gpus=gpus, **fields)
    factories.placed(made, list(node.gpus.order_by("index")), running=True)
    return made


# --- Asking ------------------------------------------------------------------------------------------------


def test_a_request_is_stored_and_shown(team: Team, member: User) -> None:
    factories.tier("h100-80g")
    made = Caller(member).post("workloads", asked(team), status=201)
    assert (made["state"], made["gpus"], made["approved_by_rule"]) == ("waiting", 4, "everything")
    assert made["team"] == {"id": team.public_id, "name": team.name}
    assert made["owner"] == {"id": member.public_id, "username": member.username}
    assert made["case"]["state"] == "approved"
    assert (made["cost"]["charged"], made["cost"]["estimate_total"]) == ("0.00", None)
    assert Caller(member).get(f"workloads/{made['id']}")["spec"]["command"] == ["python3", "-u", "train.py"]


def test_a_request_that_needs_a_manager_waits_for_one(member: User, team: Team) -> None:
    factories.approval_policy(team, factories.MANAGER, version=2, active=False)
    team.company.approval_policies.filter(version=1).update(active=False)
    team.company.approval_policies.filter(version=2).update(active=True)
    factories.tier("h100-80g")
    made = Caller(member).post("workloads", asked(team), status=201)
    assert (made["state"], made["case"]["state"], made["queued_at"]) == ("pending_approval", "open", None)
    assert (made["wait_s"], made["run_s"]) == (None, None)


def test_the_price_is_estimated(team: Team, member: User) -> None:
    tier = factories.tier("h100-80g")
    factories.rates(team, tier, price="2.50")
    made = Caller(member).post("workloads", asked(team), status=201)
    assert (made["cost"]["hourly"], made["cost"]["estimate_total"]) == ("10.0000", "10.00")
    assert made["cost"]["currency"] == "EUR"


def test_the_same_key_is_the_same_workload(team: Team, member: User) -> None:
    factories.tier("h100-80g")
    caller, key = Caller(member), {"Idempotency-Key": "try-1"}
    first = caller.post("workloads", asked(team), status=201, headers=key)
    answer = caller.client.post("/api/v1/workloads", asked(team), format="json", headers=key)
    assert (answer.status_code, answer["Idempotency-Replayed"]) == (201, "true")
    assert answer.json() == first
    assert Workload.objects.count() == 1


def test_a_key_with_another_request_is_refused(team: Team, member: User) -> None:
    factories.tier("h100-80g")
    caller, key = Caller(member), {"Idempotency-Key": "try-1"}
    caller.post("workloads", asked(team), status=201, headers=key)
    problem = caller.post("workloads", asked(team, name="other"), status=409, headers=key)
    assert problem["code"] == "idempotency_key_reused"
    assert Workload.objects.count() == 1


def test_a_refused_request_leaves_its_key_free(team: Team, member: User) -> None:
    caller, key = Caller(member), {"Idempotency-Key": "try-1"}
    caller.post("workloads", asked(team), status=400, headers=key)  # there is no such tier yet
    factories.tier("h100-80g")
    caller.post("workloads", asked(team), status=201, headers=key)


def test_two_people_may_use_the_same_key(team: Team, member: User) -> None:
    factories.tier("h100-80g")
    key = {"Idempotency-Key": "1"}
    for person in (member, factories.user("member", team)):
        Caller(person).post("workloads", asked(team), status=201, headers=key)
    assert Workload.objects.count() == 2


# --- Reading -----------------------------------------------------------------------------------------------


def test_a_running_workload_says_where(team: Team, member: User) -> None:
    made = running(team, member)
    replica = Replica.objects.get()
    PortLease.objects.create(
        node=replica.node, replica=replica, port=20001, name="http", health_path="/healthz"
    )
    detail = Caller(member).get(f"workloads/{made.public_id}")
    attempt = detail["attempt"]
    assert (attempt["number"], attempt["state"], attempt["pass"]) == (1, "running", 1)
    (shown,) = attempt["replicas"]
    assert (shown["gpus"], shown["node"]["name"]) == ([0, 1], replica.node.name)
    assert shown["endpoints"] == [{"name": "http", "address": "127.0.0.1", "port": 20001}]
    assert (detail["verdict"], detail["run_s"] >= 0) == (None, True)


@pytest.mark.parametrize(("healthy", "told"), [(None, None), (True, True), (False, False)])
def test_health_is_told_where_it_is_asked_for(
    team: Team, member: User, healthy: bool | None, told: bool | None
) -> None:
    document = factories.spec_document("t", gpus=2, ports=[{"name": "http", "health_path": "/healthz"}])
    made = running(team, member, spec=document)
    Replica.objects.update(healthy=healthy)
    assert Caller(member).get(f"workloads/{made.public_id}")["healthy"] is told


def test_a_waiting_workload_says_why(team: Team, member: User) -> None:
    tier, others = factories.tier("h100-80g"), factories.team()
    made = factories.workload(team, tier, owner=member)
    held = {"team_id": str(others.pk), "gpus": 4, "until_us": None}
    data = {
        "tier_id": str(tier.pk),
        "total_free": 0,
        "largest_free": 0,
        "needed": 1,
        "gpus_per_replica": 1,
        "holders": [held],
    }
    Verdict.objects.create(
        workload=made,
        pass_number=3,
        position=1,
        blockers=[{"code": "not_enough_free_gpus", "data": data}],
        smallest_change={"kind": "wait"},
    )
    verdict = Caller(member).get(f"workloads/{made.public_id}")["verdict"]
    (blocker,) = verdict["blockers"]
    assert blocker["code"] == "not_enough_free_gpus"
    assert blocker["text"] == "no h100-80g is free; held by others 4"
    assert blocker["data"]["holders"][0]["team_id"] is None
    assert (verdict["position"], verdict["smallest_change"]) == (1, {"kind": "wait"})
    assert verdict["smallest_change_text"] == "Nothing to do: it starts when it is its turn"


def test_the_list_is_filtered(team: Team, member: User) -> None:
    done = factories.workload(team, owner=member, name="alpha", state=WorkloadState.SUCCEEDED)
    waits = factories.workload(team, name="beta", kind="development")
    caller = Caller(member)

    def ids(**params: Any) -> list[str]:
        return [row["id"] for row in caller.get("workloads", **params)["results"]]

    assert ids() == [waits.public_id, done.public_id]
    assert ids(state=["succeeded", "failed"]) == [done.public_id]
    assert ids(kind="development") == [waits.public_id]
    assert ids(owner="me") == [done.public_id]
    assert ids(q="ALPH") == [done.public_id]
    assert ids(q=waits.public_id[:5]) == [waits.public_id]
    assert ids(team=team.public_id, tier="h100-80g") == [waits.public_id, done.public_id]


def test_pages_follow_one_another(team: Team, member: User) -> None:
    made = {factories.workload(team, owner=member).public_id for _number in range(5)}
    caller, found = Caller(member), []
    page = caller.get("workloads", page_size=2)
    while True:
        found += [row["id"] for row in page["results"]]
        if page["next"] is None:
            break
        page = caller.get(page["next"].partition("/api/v1/")[2])
    assert len(found) == len(made)
    assert set(found) == made


def test_a_list_costs_the_same_whatever_its_length(team: Team, member: User) -> None:
    caller = Caller(member)
    running(team, member)
    caller.get("workloads")  # notes the use of the token
    with counted() as few:
        caller.get("workloads")
    for _number in range(10):
        running(team, member)
        factories.workload(team, owner=member)
    with counted() as many:
        assert len(caller.get("workloads")["results"]) == 21
    assert len(many) == len(few) <= 12


def test_one_workload_costs_a_bounded_number_of_queries(team: Team, member: User) -> None:
    made = running(team, member, gpus=8)
    caller = Caller(member)
    caller.get("me")
    with counted() as queries:
        caller.get(f"workloads/{made.public_id}")
    assert len(queries) <= 35


# --- What is done with it ----------------------------------------------------------------------------------


def test_a_waiting_workload_is_cancelled(team: Team, member: User) -> None:
    made = factories.workload(team, owner=member)
    answer = Caller(member).post(f"workloads/{made.public_id}/stop", {"reason": "a typo"})
    assert (answer["state"], answer["state_reason"]) == ("cancelled", "a typo")


def test_a_running_workload_stops(team: Team, member: User) -> None:
    made = running(team, member)
    assert Caller(member).post(f"workloads/{made.public_id}/stop")["state"] == "stopping"


def test_what_has_ended_cannot_be_stopped(team: Team, member: User) -> None:
    made = factories.workload(team, owner=member, state=WorkloadState.SUCCEEDED)
    problem = Caller(member).post(f"workloads/{made.public_id}/stop", status=409)
    assert problem["code"] == "workload_ended"


def test_a_log_is_followed_by_offsets(team: Team, member: User) -> None:
    made = running(team, member)
    replica, caller, path = Replica.objects.get(), Caller(member), f"workloads/{made.public_id}/log"
    assert caller.get(path) == {"text": "", "next_offset": 0, "ended": False, "attempt": 1}
    for offset, text in ((0, "epoch 1\n"), (8, "epoch 2\n")):
        LogChunk.objects.create(replica=replica, stream="stdout", offset=offset, size=8, text=text)
    LogChunk.objects.create(replica=replica, stream="stderr", offset=0, size=5, text="oops\n")
    assert caller.get(path)["text"] == "epoch 1\nepoch 2\n"
    assert caller.get(path, after=8) == {"text": "epoch 2\n", "next_offset": 16, "ended": False, "attempt": 1}
    assert caller.get(path, stream="stderr")["text"] == "oops\n"
    assert caller.get(path, replica=7)["text"] == ""
    Replica.objects.update(state="exited", ended_at=clock.now())
    assert caller.get(path, after=16)["ended"] is True


def test_a_long_log_comes_in_pieces(team: Team, member: User) -> None:
    made = running(team, member)
    replica, size = Replica.objects.get(), 60_000
    for number in range(30):
        LogChunk.objects.create(
            replica=replica, stream="stdout", offset=number * size, size=size, text="x" * size
        )
    Replica.objects.update(state="exited", ended_at=clock.now())
    caller, path = Caller(member), f"workloads/{made.public_id}/log"
    first = caller.get(path)
    assert (first["ended"], first["next_offset"] < 30 * size) == (False, True)
    rest = caller.get(path, after=first["next_offset"])
    assert (rest["ended"], len(first["text"]) + len(rest["text"])) == (True, 30 * size)


def test_the_timeline_tells_the_newest_first(team: Team, member: User) -> None:
    factories.tier("h100-80g")
    caller = Caller(member)
    made = caller.post("workloads", asked(team), status=201)
    caller.post(f"workloads/{made['id']}/stop", {"reason": "a typo"})
    events = caller.get(f"workloads/{made['id']}/events")["results"]
    assert (events[0]["action"], events[-1]["action"]) == ("workload.cancel", "workload.submit")
    assert {event["source"] for event in events} == {"api"}
    assert (events[0]["actor"], events[0]["reason"]) == (member.username, "a typo")


# --- Queue and checks ----------------------------------------------------------------------------------------


def test_the_queue_is_in_the_order_of_the_last_pass(team: Team, member: User) -> None:
    rows = [factories.workload(team, owner=member) for _number in range(3)]
    for row, position in zip(rows, (2, 3, 1), strict=True):
        Verdict.objects.create(workload=row, pass_number=1, position=position, blockers=[])
    page = Caller(member).get("queue", page_size=2)
    assert [row["id"] for row in page["results"]] == [rows[2].public_id, rows[0].public_id]
    rest = Caller(member).get(page["next"].partition("/api/v1/")[2])
    assert [row["id"] for row in rest["results"]] == [rows[1].public_id]


def test_a_draft_is_checked_and_not_stored(team: Team, member: User) -> None:
    tier = factories.tier("h100-80g")
    factories.node(tier, gpus=8)
    factories.rates(team, tier, price="2")
    factories.quota(team.company, tier, guaranteed_gpus=8)
    factories.quota(team, tier, guaranteed_gpus=2, limit_gpus=6)
    check = Caller(member).post("request-check", asked(team))
    assert (check["fits_quota"], check["fits_guarantee"], check["fits_now"]) == (True, False, True)
    assert check["approval"] == {"rule": "everything", "auto": True, "approvers": [], "stages": []}
    assert check["estimate"] == {"currency": "EUR", "hourly": "8.0000", "total": "8.00"}
    (quota,), (supply,) = check["quota"], check["supply"]
    assert (quota["asked"], quota["guaranteed"], quota["room"]) == (4, 2, 6)
    assert supply == {"tier": "h100-80g", "total": 8, "free": 8, "largest_block": 8, "largest_node": 8}
    assert not Workload.objects.exists()


def test_a_check_says_who_will_be_asked_and_what_never_fits(company: Team, team: Team, member: User) -> None:
    company.approval_policies.update(document=factories.MANAGER)
    manager = factories.user("manager", team)
    factories.node(factories.tier("h100-80g"), gpus=2)
    check = Caller(member).post("request-check", asked(team))
    asks = {"role": "manager", "team": {"id": team.public_id, "name": team.name}, "group": None}
    assert check["approval"]["approvers"] == [{**asks, "people": [manager.username]}]
    (stage,) = check["approval"]["stages"]
    assert (stage["needs"], stage["deadline_h"], len(stage["approvers"])) == ("all", None, 1)
    assert check["never_fits"] == ["The largest h100-80g node has 2 GPUs; a replica must fit onto one node."]
    assert check["estimate"] is None


def test_waiting_and_running_are_measured(team: Team, member: User) -> None:
    now = clock.now()
    times = {
        "queued_at": now - timedelta(seconds=90),
        "started_at": now - timedelta(seconds=60),
        "ended_at": now - timedelta(seconds=20),
    }
    made = factories.workload(team, owner=member, state=WorkloadState.SUCCEEDED, fields=times)
    detail = Caller(member).get(f"workloads/{made.public_id}")
    assert (detail["wait_s"], detail["run_s"]) == (30, 40)
