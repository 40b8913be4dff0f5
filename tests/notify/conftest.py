"""Every test of notify knows the events of the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.notify.telling import events


@pytest.fixture(autouse=True)
def _events() -> Iterator[None]:
    with events():
        yield
