"""The command that makes the first platform admin."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from gpuyard.core.models import User


@pytest.mark.django_db
def test_it_makes_an_admin_who_can_sign_in(monkeypatch: Any) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a-long-and-rare-phrase\n"))
    call_command("admin_create", "root-of-yard", stdout=io.StringIO())
    user = User.objects.get(username="root-of-yard")
    assert user.is_platform_admin
    assert user.check_password("a-long-and-rare-phrase")


@pytest.mark.django_db
def test_a_weak_password_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("12345\n"))
    with pytest.raises(CommandError, match="short"):
        call_command("admin_create", "root-of-yard", stdout=io.StringIO())
    assert not User.objects.exists()
