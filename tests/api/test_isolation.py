"""Every URL of the project in one table: what each kind of person is answered. A route missing here fails.

A row is a method, a route as it stands in the URL table (a query may follow), whose id fills its `<…>` (always
one of `ours`), what is sent, and the statuses in the order of `WHO`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from rest_framework.test import APIClient
from rest_framework.views import APIView

from gpuyard.api.scopes import AREA_OF
from gpuyard.core import clock
from tenants.scopes import TOKEN_SCOPES, scope_covers
from tests import factories
from tests.api.calls import token_for
from tests.api.world import World

pytestmark = pytest.mark.django_db

WHO = ("anonymous", "stranger", "mate", "manager", "finance", "auditor", "admin")


class Row(NamedTuple):
    method: str
    route: str
    statuses: str
    subject: str = ""
    send: str = ""  # a key of `_bodies`


EVERYBODY = "200 200 200 200 200 200 200"
SIGNED_IN = "401 200 200 200 200 200 200"
OURS = "401 404 200 200 200 200 200"
AUDITORS = "401 200 403 403 403 200 200"
V = "api/v1/scheduling-policy/versions"
ADMINS = "401 403 403 403 403 403 200"
P = "api/v1/passes/<int:number>"
H = "api/v1/webhooks/<uuid:endpoint_id>"
A = "api/v1/service-accounts/<str:public_id>"
W, C, T, N = (f"api/v1/{name}/<str:public_id>" for name in ("workloads", "cases", "teams", "nodes"))
G, R = "api/v1/approver-groups/<uuid:group_id>", "api/v1/approval-rules/<str:public_id>"
Q = "api/v1/grants/<str:public_id>"
API = (
    Row("get", "api/v1/", EVERYBODY),
    Row("get", "api/v1/schema", EVERYBODY),
    Row("get", "api/v1/me", SIGNED_IN),
    Row("get", "api/v1/tokens", SIGNED_IN),
    Row("post", "api/v1/tokens", "401 201 201 201 201 201 201", send="token"),
    # one's own only; and an admin may end anybody's
    Row("delete", "api/v1/tokens/<uuid:token_id>", "401 404 404 404 404 404 204", "token"),
    Row("get", "api/v1/service-accounts", SIGNED_IN),
    Row("post", "api/v1/service-accounts", "401 404 403 201 403 403 201", send="account"),
    Row("get", A, "401 404 403 200 403 200 200", "account"),
    Row("delete", A, "401 404 403 204 403 403 204", "account"),
    Row("get", f"{A}/tokens", "401 404 403 200 403 200 200", "account"),
    Row("post", f"{A}/tokens", "401 404 403 201 403 403 201", "account", "token"),
    Row("get", "api/v1/teams", SIGNED_IN),
    Row("get", T, OURS, "team"),
    Row("get", f"{T}/members", OURS, "team"),
    Row("get", f"{T}/quotas", OURS, "team"),
    Row("get", f"{T}/quotas/versions", OURS, "team"),
    # what a team has is shared out by those above it
    Row("post", f"{T}/quotas/versions", "401 404 403 403 403 403 201", "team", "quota"),
    Row("delete", "api/v1/quota-versions/<uuid:quota_id>", "401 404 403 403 403 403 204", "quota"),
    Row("get", "api/v1/grants", SIGNED_IN),
    Row("get", "api/v1/grants?team={subject}", OURS, "team"),
    Row("post", "api/v1/grants", "401 404 201 201 403 403 403", send="ask_grant"),
    Row("get", Q, OURS, "given"),
    Row("post", f"{Q}/renew", "401 404 201 201 403 403 403", "given", "renew"),
    Row("post", f"{Q}/revoke", "401 404 403 403 403 403 200", "given", "reason"),
    Row("get", "api/v1/quota-changes", SIGNED_IN),
    Row("get", "api/v1/quota-changes?team={subject}", OURS, "team"),
    Row("post", "api/v1/quota-changes", "401 404 403 201 403 403 403", send="ask_quota"),
    Row("get", "api/v1/quota-changes/<str:public_id>", OURS, "change"),
    # asking is for members and managers of the team
    Row("post", "api/v1/request-check", "401 404 200 200 403 403 403", send="request"),
    Row("get", "api/v1/workloads", SIGNED_IN),
    Row("get", "api/v1/workloads?team={subject}", OURS, "team"),
    Row("post", "api/v1/workloads", "401 404 201 201 403 403 403", send="request"),
    Row("get", W, OURS, "running"),
    Row("get", f"{W}/log", OURS, "running"),
    Row("get", f"{W}/events", OURS, "running"),
    # its owner, the team's managers and admins
    Row("post", f"{W}/stop", "401 404 403 200 403 403 200", "running"),
    Row("get", "api/v1/queue", SIGNED_IN),
    # the rules are the same for all companies: any auditor reads them, admins change them
    Row("get", "api/v1/scheduling-policy", AUDITORS),
    Row("get", V, AUDITORS),
    Row("post", V, "401 403 403 403 403 403 201", send="policy"),
    Row("get", f"{V}/<int:number>", AUDITORS, "version"),
    Row("post", f"{V}/<int:number>/rollback", "401 403 403 403 403 403 201", "version", "rollback"),
    Row("post", "api/v1/scheduling-policy/preview", "401 403 403 403 403 403 200", send="draft"),
    Row("get", "api/v1/band-grants", SIGNED_IN),
    # a stranger's team does not exist, whatever one may do
    Row("post", "api/v1/band-grants", "401 404 403 403 403 403 201", send="band"),
    Row(
        "post", "api/v1/band-grants/<uuid:grant_id>/revoke", "401 403 403 403 403 403 200", "grant", "reason"
    ),
    Row("get", "api/v1/passes", ADMINS),
    Row("get", P, ADMINS, "pass"),
    Row("get", f"{P}/replay", ADMINS, "pass"),
    Row("get", "api/v1/cases", SIGNED_IN),
    Row("get", "api/v1/cases?to_decide=true", SIGNED_IN),
    Row("get", C, OURS, "case"),
    # an admin stands in only where nobody else may decide
    Row("post", f"{C}/decision", "401 404 403 200 403 403 403", "case", "decision"),
    Row("post", f"{C}/send-back", "401 404 403 200 403 403 403", "case", "question"),
    # only who asked: none of these did
    Row("post", f"{C}/answer", "401 404 403 403 403 403 403", "case", "answer"),
    Row("post", f"{C}/amend", "401 404 403 403 403 403 403", "case", "amendment"),
    Row("post", f"{C}/withdraw", "401 404 403 200 403 403 200", "case"),
    # each case for itself: the outcome names what was sent, and says no (`test_case_acts` sends a stranger's)
    Row("post", "api/v1/case-decisions", SIGNED_IN, send="decisions"),
    Row("get", "api/v1/delegations", SIGNED_IN),
    # one's own, to somebody of the same company
    # (the manager has handed over already; an admin has no role there)
    Row("post", "api/v1/delegations", "401 404 201 409 201 201 400", send="delegation"),
    Row(
        "post", "api/v1/delegations/<uuid:delegation_id>/revoke", "401 404 404 200 404 404 200", "delegation"
    ),
    Row("get", "api/v1/approver-groups?company={subject}", "401 404 200 200 200 200 200", "company"),
    Row("post", "api/v1/approver-groups", "401 404 403 403 403 403 201", send="group"),
    Row("post", f"{G}/people", "401 404 403 403 403 403 200", "group", "people"),
    Row("delete", G, "401 404 403 403 403 403 204", "group"),
    Row("get", R, "401 404 200 200 200 200 200", "company"),
    Row("post", f"{R}/match", "401 404 200 200 200 200 200", "company", "facts"),
    Row("post", f"{R}/preview", "401 404 403 403 403 403 200", "company", "rules"),
    Row("get", f"{R}/versions", "401 404 200 200 200 200 200", "company"),
    Row("post", f"{R}/versions", "401 404 403 403 403 403 201", "company", "rules_change"),
    Row("get", f"{R}/versions/<int:number>", "401 404 200 200 200 200 200", "company"),
    # (to the version in force: nothing would change)
    Row("post", f"{R}/versions/<int:number>/rollback", "401 404 403 403 403 403 400", "company", "rollback"),
    Row("get", "api/v1/tiers", SIGNED_IN),
    Row("get", "api/v1/free-space", SIGNED_IN),
    Row("get", "api/v1/free-space?team={subject}", OURS, "team"),
    Row("post", "api/v1/tier-speeds", "401 403 403 403 403 403 200", send="speeds"),
    Row("get", "api/v1/pools", SIGNED_IN),
    Row("get", "api/v1/nodes", SIGNED_IN),
    Row("get", N, SIGNED_IN, "node"),
    Row("post", f"{N}/cordon", "401 403 403 403 403 403 200", "node", "reason"),
    Row("post", f"{N}/drain", "401 403 403 403 403 403 200", "node", "reason"),
    Row("post", f"{N}/uncordon", "401 403 403 403 403 403 200", "node"),
    Row("post", f"{N}/labels", "401 403 403 403 403 403 200", "node", "labels"),
    Row("post", f"{N}/domain", "401 403 403 403 403 403 200", "node", "no_domain"),
    Row("get", "api/v1/fabric-domains", SIGNED_IN),
    Row("post", "api/v1/fabric-domains", "401 403 403 403 403 403 201", send="domain"),
    Row("delete", "api/v1/fabric-domains/<uuid:domain_id>", "401 403 403 403 403 403 204", "domain"),
    Row("post", "api/v1/join-tokens", "401 403 403 403 403 403 201", send="pool"),
    Row("get", "api/v1/costs", SIGNED_IN),
    Row("get", "api/v1/costs?team={subject}", OURS, "team"),
    Row("get", "api/v1/costs.csv", SIGNED_IN),
    Row("get", "api/v1/costs.csv?team={subject}", OURS, "team"),
    # the log of a company is for its auditors and managers, not for those of one team; strangers read their own
    Row("get", "api/v1/events", "401 200 403 403 403 200 200"),
    Row("get", "api/v1/events?company={subject}", "401 404 403 403 403 200 200", "company"),
    Row("get", "api/v1/events?team={subject}", "401 404 403 403 403 200 200", "team"),
    Row("get", "api/v1/events/chain", "401 200 403 403 403 200 200"),
    Row("get", "api/v1/events.csv", "401 200 403 403 403 200 200"),
    Row("get", "api/v1/events.csv?company={subject}", "401 404 403 403 403 200 200", "company"),
    Row("get", "api/v1/events.jsonl", "401 200 403 403 403 200 200"),
    Row("get", "api/v1/events.jsonl?company={subject}", "401 404 403 403 403 200 200", "company"),
    Row("get", "api/v1/events/checkpoints.jsonl", "401 200 403 403 403 200 200"),
    Row("get", "api/v1/events/checkpoints.jsonl?company={subject}", "401 404 403 403 403 200 200", "company"),
    Row("get", "api/v1/events/public-key.pem", SIGNED_IN),
    Row("get", "api/v1/notifications", SIGNED_IN),
    Row("post", "api/v1/notifications/read", SIGNED_IN),
    Row("get", "api/v1/notification-settings", SIGNED_IN),
    Row("post", "api/v1/notification-settings", SIGNED_IN, send="pace"),
    Row("get", "api/v1/webhooks", SIGNED_IN),
    Row("post", "api/v1/webhooks", "401 201 201 201 201 201 201", send="hook"),
    Row("post", "api/v1/webhooks?of=team", "401 404 403 201 403 403 201", send="team_hook"),
    # members and finance do not know of their team's webhooks; auditors read them
    Row("get", H, "401 404 404 200 404 200 200", "hook"),
    Row("delete", H, "401 404 404 204 404 403 204", "hook"),
    Row("post", f"{H}/events", "401 404 404 200 404 403 200", "hook", "no_events"),
    Row("post", f"{H}/rotate", "401 404 404 200 404 403 200", "hook"),
    Row("post", f"{H}/test", "401 404 404 201 404 403 201", "hook"),
    Row("get", "api/v1/deliveries", SIGNED_IN),
    Row("post", "api/v1/deliveries/<uuid:message_id>/again", "401 404 404 200 404 403 200", "failed"),
    Row("get", "api/v1/^", "404 404 404 404 404 404 404"),
)
# Agents have secrets of their own: nothing that a person has helps here.
AGENTS = (
    Row("post", "agent/v1/join", "401 401 401 401 401 401 401", send="join"),
    Row("post", "agent/v1/sync", "401 401 401 401 401 401 401", send="sync"),
)
PAGE = "302 200 200 200 200 200 200"  # 302: to the sign-in
ADMINS_PAGE = "302 403 403 403 403 403 200"
OUR_PAGE = "302 404 200 200 200 200 200"
AUDIT_PAGE = "302 200 403 403 403 200 200"  # stranger: of their own company
OUR_AUDIT = "302 404 403 403 403 200 200"
WEB = (
    Row("get", "healthz", EVERYBODY),
    Row("get", "sign-in", "200 302 302 302 302 302 302"),
    Row("post", "sign-out", "302 302 302 302 302 302 302"),
    Row("get", "sign-in/closed", EVERYBODY),
    Row("get", "sign-in/code", "302 302 302 302 302 302 302"),  # only in the middle of signing in
    Row("get", "account", PAGE),
    Row("post", "account/time-zone", "302 302 302 302 302 302 302", send="zone"),
    Row("post", "account/sign-ins/end", "302 302 302 302 302 302 302"),
    # 302: to the password first (`test_account` goes on from there)
    Row("post", "account/tokens", "302 302 302 302 302 302 302"),
    Row("post", "account/tokens/<uuid:token_id>/end", "302 404 404 404 404 404 302", "token"),
    Row("get", "account/confirm", PAGE),
    Row("get", "account/confirm/code", "302 302 302 302 302 302 302"),
    Row("get", "account/password", PAGE),
    Row("get", "account/no-password", "302 302 302 302 302 302 302"),
    Row("get", "account/codes", "302 302 302 302 302 302 302"),
    Row("get", "account/codes/on", "302 302 302 302 302 302 302"),
    Row("get", "account/codes/off", "302 404 404 404 404 404 404"),
    Row("get", "account/codes/recovery", "302 404 404 404 404 404 404"),
    Row("get", "account/codes/recovery/new", "302 302 302 302 302 302 302"),
    Row("get", "service-accounts", PAGE),
    Row("post", "service-accounts/new", "302 302 302 302 302 302 302"),
    Row("post", "service-accounts/<str:public_id>/tokens", "302 302 302 302 302 302 302", "account"),
    Row("post", "service-accounts/<str:public_id>/end", "302 404 403 302 403 403 302", "account"),
    Row("get", "", PAGE),
    Row("get", "search", PAGE),
    Row("get", "workloads", PAGE),
    Row("get", "workloads.csv", PAGE),
    Row("get", "workloads/new", PAGE),
    Row("post", "workloads/new", "302 422 422 422 422 422 422"),  # an empty form
    Row("get", "workloads/<str:public_id>", OUR_PAGE, "running"),
    Row("get", "workloads/<str:public_id>/log", OUR_PAGE, "running"),
    Row("post", "workloads/<str:public_id>/stop", "302 404 403 302 403 403 302", "running"),
    Row("get", "approvals", PAGE),
    # a refusal is told on the inbox: a redirect too (`test_refused` looks at what it changed)
    Row("post", "approvals/<str:public_id>/decide", "302 404 302 302 302 302 302", "case", "form"),
    Row("post", "approvals/decisions", "302 302 302 302 302 302 302"),  # nothing is ticked
    Row("get", "approvals/away", PAGE),
    Row("post", "approvals/away", "302 422 422 422 422 422 422"),  # an empty form
    Row(
        "post",
        "approvals/away/<uuid:delegation_id>/end",
        "302 404 404 302 404 404 302",
        "delegation",
    ),
    # refusals are told on the inbox, as above
    Row("post", "approvals/<str:public_id>/answer", "302 404 302 302 302 302 302", "case", "answer"),
    Row("post", "approvals/<str:public_id>/amend", "302 404 302 302 302 302 302", "case"),
    Row("post", "approvals/<str:public_id>/withdraw", "302 404 302 302 302 302 302", "case"),
    Row("get", "rules", PAGE),
    Row("get", "rules?company={subject}", OUR_PAGE, "company"),
    Row("get", "rules?restore=1", ADMINS_PAGE),
    Row("post", "rules", "302 403 403 403 403 403 422"),
    Row("post", "rules/apply", "302 403 403 403 403 403 302", send="rules_form"),
    Row("get", "queue", PAGE),
    Row("get", "queue.csv", PAGE),
    Row("get", "passes", ADMINS_PAGE),
    Row("get", "passes.csv", ADMINS_PAGE),
    Row("get", "passes/<int:number>", ADMINS_PAGE, "pass"),
    Row("post", "passes/<int:number>/replay", "302 403 403 403 403 403 302", "pass"),
    Row("get", "fleet", PAGE),
    Row("get", "fleet.csv", PAGE),
    Row("get", "fleet/nodes/<str:public_id>", PAGE, "node"),
    Row("post", "fleet/nodes/<str:public_id>/place", "302 403 403 403 403 403 302", "node"),
    Row("get", "policy", "302 200 403 403 403 200 200"),
    Row("get", "policy?restore=0", "302 403 403 403 403 403 200"),
    Row("post", "policy", "302 403 403 403 403 403 422", send="no_change"),
    Row("post", "policy/apply", "302 403 403 403 403 403 302"),
    Row("post", "policy/restore", "302 403 403 403 403 403 302", send="restore"),
    Row("post", "policy/bands", "302 403 403 403 403 403 422"),
    Row("post", "policy/bands/<uuid:grant_id>/revoke", "302 403 403 403 403 403 302", "grant", "reason"),
    Row("get", "fleet/free", PAGE),
    Row("get", "fleet/free.csv", PAGE),
    Row("get", "notifications", PAGE),
    Row("post", "notifications/read", "302 302 302 302 302 302 302"),
    Row("get", "notifications/settings", PAGE),
    Row("get", "webhooks", PAGE),
    Row("post", "webhooks", "302 200 200 200 200 200 200", send="hook"),
    Row("post", "webhooks?of=team", "302 404 403 302 403 403 302", send="team_hook"),
    Row("post", "webhooks/<uuid:endpoint_id>/rotate", "302 404 404 200 404 403 200", "hook"),
    Row("post", "webhooks/<uuid:endpoint_id>/test", "302 404 404 302 404 403 302", "hook"),
    Row("post", "webhooks/<uuid:endpoint_id>/remove", "302 404 404 302 404 403 302", "hook"),
    Row("get", "deliveries", PAGE),
    Row("post", "deliveries/<uuid:message_id>/again", "302 404 404 302 404 403 302", "failed"),
    Row("get", "costs", PAGE),
    Row("get", "costs.csv", PAGE),
    Row("get", "audit", AUDIT_PAGE),
    Row("get", "audit?company={subject}", OUR_AUDIT, "company"),
    # a team that is not the reader's is none, wherever it is picked
    Row("get", "audit?team={subject}", OUR_AUDIT, "team"),
    Row("get", "audit.csv", AUDIT_PAGE),
    Row("get", "audit.csv?company={subject}", OUR_AUDIT, "company"),
    Row("get", "audit.jsonl", AUDIT_PAGE),
    Row("get", "audit.jsonl?company={subject}", OUR_AUDIT, "company"),
    Row("get", "audit/checkpoints.jsonl", AUDIT_PAGE),
    Row("get", "audit/checkpoints.jsonl?company={subject}", OUR_AUDIT, "company"),
    Row("get", "audit/public-key.pem", PAGE),
)
TABLE = (*API, *AGENTS, *WEB)


def _bodies(world: World) -> dict[str, Any]:
    return {
        "": {},
        "token": {"name": "ci", "scopes": ["read"]},
        "zone": {"zone": "Europe/Berlin"},
        "account": {"team": world.ours.team.public_id, "name": "nightly", "role": "member"},
        "request": {
            "team": world.ours.team.public_id,
            "name": "new",
            "kind": "training",
            "spec": factories.spec_document(world.tier),
        },
        "quota": {"tier": world.tier.name, "guaranteed": 2},
        "ask_grant": {
            "team": world.ours.team.public_id,
            "tier": world.tier.name,
            "gpus": 1,
            "ends_at": (clock.now() + timedelta(days=30)).isoformat(),
            "reason": "a deadline",
        },
        "renew": {"ends_at": (clock.now() + timedelta(days=30)).isoformat(), "reason": "longer"},
        "ask_quota": {
            "team": world.ours.team.public_id,
            "tier": world.tier.name,
            "guaranteed": 2,
            "reason": "we grow",
        },
        "decision": {"approve": True},
        "form": {"decision": "approve"},
        "question": {"question": "Why?"},
        "answer": {"answer": "So."},
        "amendment": {"priority": 1},
        "decisions": {"cases": ["c-nothing"], "approve": True},
        "delegation": {
            "company": world.ours.company.public_id,
            "delegate": world.ours.owner.public_id,
            "starts_at": clock.now().isoformat(),
            "ends_at": (clock.now() + timedelta(days=3)).isoformat(),
        },
        "group": {"company": world.ours.company.public_id, "name": "new", "people": []},
        "people": {"people": [world.ours.owner.public_id]},
        "facts": {"team": world.ours.team.public_id, "kind": "training", "gpu_count": 2},
        "rules": {"document": factories.AUTO},
        "rules_form": {"based_on": "1", "document": json.dumps(factories.AUTO), "reason": "all of it"},
        "rules_change": {"based_on": 1, "document": factories.AUTO, "reason": "all of it"},
        "policy": {"based_on": 1, "changes": {"reservations": 9}, "reason": "fewer"},
        "no_change": {"based_on": "1"},
        "restore": {"based_on": "1", "number": "0", "reason": "as it was"},
        "draft": {"changes": {"reservations": 9}},
        "rollback": {"based_on": 1, "reason": "as it was"},
        "band": {"team": world.ours.team.public_id, "band": 2, "cap_units": 7000, "reason": "critical"},
        "reason": {"reason": "a fan is broken"},
        "speeds": {"tier": world.tier.name, "speeds": {"training": 2.5}},
        "labels": {"labels": ["zone=a"]},
        "no_domain": {"domain": None},
        "domain": {"level": "rack", "name": "new"},
        "pace": {"pace": "daily", "hour": 7, "events": {"workload.failed": {"email": False}}},
        "hook": {"kind": "webhook", "name": "ci", "url": "https://93.184.216.34/"},
        "team_hook": {
            "kind": "slack",
            "name": "channel",
            "url": "https://93.184.216.34/",
            "team": world.ours.team.public_id,
        },
        "no_events": {"events": []},
        "pool": {"pool": world.pool.public_id},
        "sync": {"boot": 1, "seq": 1},
        "join": {
            "join_token": "guessed",
            "name": "node",
            "inventory": {
                "hostname": "node",
                "advertise_address": "127.0.0.1",
                "port_range": [20000, 20099],
                "cpu_m": 1000,
                "memory_mib": 1024,
                "simulated": True,
                "gpus": [],
            },
        },
    }


# --- The walk ----------------------------------------------------------------------------------------------


def _routes(patterns: Iterable[URLPattern | URLResolver], prefix: str = "") -> Iterable[tuple[str, str]]:
    """(method, route) of all that the project answers; method "" where a view does not tell."""
    for one in patterns:
        route = prefix + str(one.pattern)
        if isinstance(one, URLResolver):
            yield from _routes(one.url_patterns, route)
        else:
            yield from ((method, route) for method in _methods(one.callback))


def _methods(view: Any) -> list[str]:
    view_class = getattr(view, "view_class", None)
    if view_class is None or not issubclass(view_class, APIView):
        return [""]
    own = set(view_class.http_method_names) - {"options", "head"}
    return [method for method in sorted(own) if hasattr(view_class, method)] or [""]


def test_every_route_stands_in_the_table() -> None:
    known = {(row.method, row.route.partition("?")[0]) for row in TABLE}
    known |= {("", route) for _method, route in known}
    missing = [found for found in _routes(get_resolver().url_patterns) if found not in known]
    assert not missing, "add rows to the isolation table"


def test_every_row_is_a_route() -> None:
    routes = {route for _method, route in _routes(get_resolver().url_patterns)}
    assert [row.route for row in TABLE if row.route.partition("?")[0] not in routes] == []


# --- What everybody gets -------------------------------------------------------------------------------------


def _client(world: World, who: str, row: Row) -> Client:
    person = world.people[who]
    if row in WEB:
        client = Client()
        if person:
            client.force_login(person)
        return client
    api = APIClient()
    if person:
        api.credentials(HTTP_AUTHORIZATION=f"Bearer {token_for(person)}")
    return api


def _answer(world: World, who: str, row: Row) -> tuple[int, str]:
    return _sent(_client(world, who, row), world, row)


def _sent(client: Client, world: World, row: Row) -> tuple[int, str]:
    path = world.path(row.route.replace("^", "nothing"), row.subject)
    sent = _bodies(world)[row.send]
    kind = {} if row in WEB or row.method == "get" else {"format": "json"}
    if (kind and not isinstance(client, APIClient)) or row in AGENTS:
        kind = {"content_type": "application/json"}
    point = transaction.savepoint()
    answer = getattr(client, row.method)(path, sent, **kind)
    content = b"".join(answer.streaming_content) if answer.streaming else answer.content
    transaction.savepoint_rollback(point)
    return answer.status_code, content.decode()


@pytest.mark.parametrize("who", WHO)
def test_everybody_is_answered_as_the_table_says(who: str) -> None:
    world = World()
    wanted = {row: int(row.statuses.split()[WHO.index(who)]) for row in TABLE}
    answers = {row: _answer(world, who, row) for row in TABLE}
    wrong = [
        f"{row.method} {row.route}: {answers[row][0]}, not {wanted[row]}: {answers[row][1][:300]}"
        for row in TABLE
        if answers[row][0] != wanted[row]
    ]
    assert not wrong, "\n".join(wrong)
    hidden = {"anonymous": [*world.ours.marks(), *world.theirs.marks()], "stranger": world.ours.marks()}
    for row, (status, text) in answers.items():
        told = [mark for mark in hidden.get(who, world.theirs.marks()) if mark in text and status < 400]
        assert who == "admin" or not told, (row, told)


@pytest.mark.parametrize("scope", TOKEN_SCOPES)
def test_a_service_account_does_what_its_role_and_its_scope_say(scope: str) -> None:
    """With the role of a member it is a member, where its token's scope reaches; nothing else, anywhere."""
    world = World()
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {token_for(world.ours.account.user, scopes=scope)}")
    wrong = []
    for row in API:
        status, text = _sent(api, world, row)
        word = row.route.removeprefix("api/v1/").partition("/")[0].partition("?")[0]
        wanted = f"{AREA_OF.get(word, '')}:{'read' if row.method == 'get' else 'write'}"
        is_covered = word not in AREA_OF or scope_covers([scope], wanted)
        as_member = int(row.statuses.split()[WHO.index("mate")])
        if is_covered and row.route == "api/v1/tokens" and row.send:
            is_right = status in (201, 403) and ("scope_beyond_own" in text) == (status == 403)
        elif is_covered:
            is_right = status == as_member
        else:
            is_right = status == 403 and "scope_missing" in text
        if not is_right:
            wrong.append(f"{row.method} {row.route}: {status} {text[:200]}")
        assert status >= 400 or not [mark for mark in world.theirs.marks() if mark in text], row
    assert not wrong, "\n".join(wrong)


def test_every_route_stands_in_an_area() -> None:
    words = {row.route.removeprefix("api/v1/").partition("/")[0].partition("?")[0] for row in API}
    assert words - set(AREA_OF) == {"", "schema", "^"}


def test_lists_show_what_is_ours() -> None:
    world = World()
    for route, mark in {
        "workloads": world.ours.running.public_id,
        "queue": world.ours.waiting.public_id,
        "cases": world.ours.case.public_id,
        "teams": world.ours.team.public_id,
        "costs": world.ours.team.public_id,
        "costs.csv": world.ours.team.public_id,
        "me": world.ours.team.public_id,
    }.items():
        status, text = _answer(world, "mate", Row("get", f"api/v1/{route}", ""))
        assert (status, mark in text) == (200, True), route
