"""No GET changes anything, and no write of a browser session works without its CSRF token: on every route."""

from __future__ import annotations

import re

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.api.test_isolation import API, TABLE, WEB, _client, _sent
from tests.api.world import World

pytestmark = pytest.mark.django_db
# What a GET leaves behind by design: the session, a token's last use, what was refused or taken away.
TRACES = {"django_session", "tenants_signin", "tenants_apitoken", "audit_denial", "audit_event"}
_WRITE = re.compile(r'^\s*(?:INSERT INTO|UPDATE|DELETE FROM)\s+"?(\w+)', re.IGNORECASE)


def _written(queries: CaptureQueriesContext) -> set[str]:
    statements = (one["sql"] for one in queries.captured_queries)
    found = (
        _WRITE.match(sql if isinstance(sql, str) else sql.as_string(connection.connection))
        for sql in statements
    )
    return {one.group(1) for one in found if one}


@pytest.mark.parametrize("who", ["manager", "admin"])
def test_no_get_changes_anything(who: str) -> None:
    """The routes that only take POST too: they answer 405 to a GET, before anything else."""
    world = World()
    for row in TABLE:
        asked = row._replace(method="get", send="")
        client = _client(world, who, row)
        with CaptureQueriesContext(connection) as queries:
            status, _text = _sent(client, world, asked)
        assert _written(queries) - TRACES == set(), (row, status)
        assert status != 500


def test_no_write_of_a_session_works_without_its_token() -> None:
    world = World()
    for row in (*API, *WEB):
        if row.method == "get":
            continue
        client = Client(enforce_csrf_checks=True)
        person = world.people["admin"]
        assert person
        client.force_login(person)
        point = transaction.savepoint()
        with CaptureQueriesContext(connection) as queries:
            status, text = _sent(client, world, row)
        transaction.savepoint_rollback(point)
        assert status == 403, (row, status, text[:200])
        assert _written(queries) - TRACES == set(), row
