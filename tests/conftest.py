"""The test database, and the few fixtures that every app's tests share.

Tests connect as the app role, as production does. A test that commits gets a database of its own, which is
dropped afterwards: the usual clean-up, TRUNCATE, is refused to the app role. So does one that uses the owner.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from typing import Any

import psycopg
import pytest
from pytest_django import DjangoDbBlocker

from tests.databases import Databases, url

Connection = psycopg.Connection[tuple[Any, ...]]
_COMMITTING = {"transactional_db", "live_server", "owner_connection", "advance_clock", "other_connection"}


@pytest.fixture(scope="session")
def databases(django_test_environment: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Databases]:
    from django.test import TransactionTestCase

    # Its TRUNCATE is refused to the app role, and not needed: the database is dropped.
    TransactionTestCase._fixture_teardown = lambda self: None  # type: ignore[attr-defined]
    made = Databases(worker=os.environ.get("PYTEST_XDIST_WORKER", "main"))
    with django_db_blocker.unblock():
        made.prepare()
    yield made
    with django_db_blocker.unblock():
        made.drop_all()


@pytest.fixture(scope="session")
def django_db_setup(databases: Databases) -> None:
    """Replaces pytest-django's own, which would create the database as the app role."""


@pytest.fixture
def _own_database(
    request: pytest.FixtureRequest, databases: Databases, django_db_blocker: DjangoDbBlocker
) -> Iterator[None]:
    marker = request.node.get_closest_marker("django_db")
    commits = bool(marker and marker.kwargs.get("transaction")) or bool(
        _COMMITTING & set(request.fixturenames)
    )
    with django_db_blocker.unblock(), databases.own() if commits else nullcontext():
        yield


@pytest.fixture
def _django_db_helper(_own_database: None, _django_db_helper: None) -> None:
    """Puts our database under pytest-django's transaction handling."""


@pytest.fixture
def other_connection(_own_database: None) -> Iterator[Callable[..., Connection]]:
    """`other_connection()` is one more real connection; `other_connection("owner")` is one as the owner."""
    with ExitStack() as stack:

        def connect(role: str = "default", *, autocommit: bool = True) -> Connection:
            return stack.enter_context(psycopg.connect(url(role), autocommit=autocommit))

        yield connect


@pytest.fixture
def owner_connection(other_connection: Callable[..., Connection]) -> Connection:
    """The owner role on the test's database. It does not see what an open transaction of the test wrote."""
    return other_connection("owner")


@pytest.fixture
def advance_clock(owner_connection: Connection) -> Callable[[float], None]:
    """`advance_clock(seconds)` moves the platform's time on; it never goes back."""

    def advance(seconds: float) -> None:
        statement = "UPDATE core_clockoffset SET offset_us = offset_us + %s"
        assert owner_connection.execute(statement, (round(seconds * 1_000_000),)).rowcount == 1

    return advance
