"""Worked examples of other schedulers where our rules coincide, beside those in the tests of each module."""

from scheduling.engine.snapshot import Team
from tests.engine.build import a_node, a_request, a_world, decide, held, quota, some_gpus, started

COMPANY = Team("co", None, "co", ("co",))
ACCOUNTS = tuple(Team(name, "co", name, ("co", name)) for name in ("A", "B"))
USERS = tuple(
    Team(name, name[0].upper(), name, ("co", name[0].upper(), name)) for name in ("a1", "a2", "b1", "b2")
)


def test_slurms_fair_tree_is_decided_at_the_account_first() -> None:
    """A and B have equal shares and use 6 and 4: both users of B go before both of A, b1 too, who used more than a1."""
    live = [held("x1", 2, team_id="a1"), held("x2", 4, team_id="a2"), held("y1", 4, team_id="b1")]
    nodes = [a_node("n1"), a_node("n2")]
    gpus = [*some_gpus("n1", free=0), *some_gpus("n2", free=6)]
    wants = [a_request(f"w-{team.id}", team_id=team.id) for team in USERS]
    quotas = [quota(team.id, guaranteed=6) for team in ACCOUNTS]
    world = a_world(nodes, gpus, wants, quotas, live, (COMPANY, *ACCOUNTS, *USERS))
    assert started(decide(world)) == ["w-b2", "w-b1", "w-a1", "w-a2"]
