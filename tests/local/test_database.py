"""What the test database promises to every other test."""

from collections.abc import Callable

import pytest
from django.db import connection

from gpuyard.core import clock
from gpuyard.core.models import User
from tests.conftest import Connection


@pytest.mark.django_db
def test_tests_run_as_the_app_role() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user, (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)")
        user, is_superuser = cursor.fetchone()
    assert user.endswith("_app")
    assert not is_superuser


@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.django_db(transaction=True)
def test_what_a_test_commits_is_gone_in_the_next(turn: int) -> None:
    assert not User.objects.exists()
    User.objects.create(username="left-over")


@pytest.mark.django_db
def test_advance_clock_moves_the_platforms_time(advance_clock: Callable[[float], None]) -> None:
    before = clock.now()
    advance_clock(3600)
    assert 3600 <= (clock.now() - before).total_seconds() < 3660


@pytest.mark.django_db(transaction=True)
def test_other_connections_see_the_same_database(other_connection: Callable[..., Connection]) -> None:
    User.objects.create(username="seen")
    first, second = other_connection(), other_connection("owner")
    seen = [c.execute("SELECT username FROM core_user").fetchall() for c in (first, second)]
    assert seen == [[("seen",)], [("seen",)]]
