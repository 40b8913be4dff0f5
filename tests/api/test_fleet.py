from typing import Any

import pytest

from gpuyard.core.models import User
from gpuyard.fleet.models import JoinToken, Node
from gpuyard.fleet.services import secret_digest
from scheduling.models import PassRecord
from tenants.models import Team
from tests import factories
from tests.api.calls import Caller
from tests.api.conftest import counted

pytestmark = pytest.mark.django_db


def hold(node: Node, by: Team, count: int) -> None:
    gpus = list(node.gpus.filter(allocations=None).order_by("index")[:count])
    made = factories.workload(by, gpus[0].tier, gpus=count, name="job")
    factories.placed(made, gpus, running=True)


def test_tiers_say_what_is_free(member: User, team: Team) -> None:
    tier = factories.tier("h100-80g", cost_rank=5)
    factories.tier("l4-24g")
    for _number in range(2):
        hold(factories.node(tier, gpus=4), team, 1)
    first, second = Caller(member).get("tiers")["results"]
    names = ("name", "total", "free", "largest_block", "largest_node")
    assert [first[name] for name in names] == ["h100-80g", 8, 6, 3, 4]
    assert [second[name] for name in names] == ["l4-24g", 0, 0, 0, 0]


def test_nodes_are_listed_by_name(member: User) -> None:
    tier = factories.tier()
    for name in ("b", "a", "c"):
        factories.node(tier, gpus=2, name=name)
    page = Caller(member).get("nodes", page_size=2)
    assert [(row["name"], row["gpus"], row["free"]) for row in page["results"]] == [("a", 2, 2), ("b", 2, 2)]
    rest = Caller(member).get(page["next"].partition("/api/v1/")[2])
    assert ([row["name"] for row in rest["results"]], rest["next"]) == (["c"], None)


def test_a_list_of_nodes_costs_the_same_whatever_its_length(member: User, team: Team) -> None:
    tier, caller = factories.tier(), Caller(member)
    hold(factories.node(tier, gpus=2), team, 1)
    caller.get("nodes")
    with counted() as few:
        caller.get("nodes")
    for _number in range(5):
        hold(factories.node(tier, gpus=2), team, 1)
    with counted() as many:
        caller.get("nodes")
    assert len(many) == len(few) <= 12


def test_a_node_shows_who_holds_its_gpus_inside_ones_teams(member: User, team: Team) -> None:
    node = factories.node(factories.tier(), gpus=3)
    hold(node, team, 1)
    hold(node, factories.team(name="rivals"), 1)
    shown = Caller(member).get(f"nodes/{node.public_id}")
    ours, theirs, free = shown["gpus"]
    assert (ours["state"], ours["holder"]["team"], ours["is_others"]) == ("held", team.name, False)
    assert (theirs["state"], theirs["holder"], theirs["is_others"]) == ("held", None, True)
    assert (free["state"], free["condition"], shown["free"]) == ("free", "ready", 1)


def test_an_unknown_node_is_not_found(member: User) -> None:
    assert Caller(member).get("nodes/n-nothing1", status=404)["code"] == "node_unknown"


def test_an_admin_cordons_drains_and_reopens() -> None:
    node, caller = factories.node(factories.tier(), gpus=1), Caller(factories.admin())
    path = f"nodes/{node.public_id}"
    shown = caller.post(f"{path}/cordon", {"reason": "a fan is loud"})
    assert (shown["cordoned"], shown["draining"], shown["cordon_reason"]) == (True, False, "a fan is loud")
    assert caller.get(path)["gpus"][0]["condition"] == "cordoned"
    shown = caller.post(f"{path}/drain", {"reason": "to replace it"})
    assert (shown["cordoned"], shown["draining"]) == (True, True)
    shown = caller.post(f"{path}/uncordon")
    assert (shown["cordoned"], shown["draining"], shown["cordon_reason"]) == (False, False, "")


@pytest.mark.parametrize("reason", ["", "x" * 201, "a\x00b", 7, None])
def test_a_cordon_needs_a_reason(reason: Any) -> None:
    node = factories.node(factories.tier(), gpus=1)
    problem = Caller(factories.admin()).post(f"nodes/{node.public_id}/cordon", {"reason": reason}, status=400)
    assert problem["errors"][0]["field"] == "reason"
    assert not Node.objects.get().cordoned


def test_an_admin_makes_a_join_token() -> None:
    pool, caller = factories.pool("main"), Caller(factories.admin())
    assert caller.get("pools")["results"] == [{"id": pool.public_id, "name": "main"}]
    made = caller.post("join-tokens", {"pool": pool.public_id, "uses": 3}, status=201)
    assert JoinToken.objects.get(digest=secret_digest(made["secret"])).uses_left == 3 == made["uses_left"]
    assert made["pool"]["name"] == "main"


@pytest.mark.parametrize(
    ("body", "status"),
    [({}, 400), ({"pool": "p-nothing1"}, 404), ({"pool": "p", "uses": 0}, 400), ({"pool": 1}, 400)],
)
def test_a_join_token_needs_a_pool(body: dict[str, Any], status: int) -> None:
    Caller(factories.admin()).post("join-tokens", body, status=status)
    assert not JoinToken.objects.exists()


def test_quotas_show_what_is_in_use(member: User, company: Team, team: Team) -> None:
    tier, sister = factories.tier("h100-80g"), factories.team(company)
    factories.quota(company, tier, guaranteed_gpus=8, limit_gpus=8)
    factories.quota(team, tier, guaranteed_gpus=2)
    factories.quota(team, limit_gpus=6)
    node = factories.node(tier, gpus=4)
    hold(node, team, 1)
    hold(node, sister, 2)
    rows = Caller(member).get(f"teams/{team.public_id}/quotas")["results"]
    names = ("tier", "used", "guaranteed", "limit")
    assert [[row[name] for name in names] for row in rows] == [
        ["h100-80g", 3, 8, 8],
        ["h100-80g", 1, 2, None],
        [None, 1, 0, 6],
    ]
    assert (rows[0]["team"]["id"], rows[0]["used_units"]) == (company.public_id, 21000)


def test_an_admin_reads_the_passes() -> None:
    for number in (1, 2):
        PassRecord.objects.create(
            number=number,
            started_at=factories.node().joined_at,
            load_ms=1.5,
            plan_ms=0.5,
            commit_ms=2.0,
            waiting=3,
            started=1,
        )
    first, second = Caller(factories.admin()).get("passes")["results"]
    assert (first["number"], second["number"], first["refused"]) == (2, 1, [])
