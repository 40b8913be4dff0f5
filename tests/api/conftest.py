from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from gpuyard.core.models import User
from tenants.models import Team
from tests import factories


@pytest.fixture
def company() -> Team:
    made = factories.company()
    factories.approval_policy(made)
    return made


@pytest.fixture
def team(company: Team) -> Team:
    return factories.team(company)


@pytest.fixture
def member(team: Team) -> User:
    return factories.user("member", team)


@contextmanager
def counted() -> Iterator[list[dict[str, Any]]]:
    """The queries of the block, once it is over."""
    queries: list[dict[str, Any]] = []
    with CaptureQueriesContext(connection) as captured:
        yield queries
    queries += captured.captured_queries
