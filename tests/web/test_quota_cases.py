"""Requests for quota in the inbox: what is asked for, what is left to give, and what approving does."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client

from gpuyard.core import clock
from tenants.asking import grant_ask
from tenants.models import Case, Grant
from tests import factories as make

pytestmark = pytest.mark.django_db


def test_a_grant_is_read_and_approved_by_the_manager_above(client: Client) -> None:
    company, tier = make.company(), make.tier("h100-80g")
    make.approval_policy(company, make.MANAGER)
    make.quota(company, tier, guaranteed_gpus=8)
    team = make.team(company, "vision")
    head = make.user("manager", company)
    grant = grant_ask(
        actor=make.user("member", team),
        team=team,
        tier=tier,
        units=4 * 7000,
        ends_at=clock.now() + timedelta(days=7),
        reason="the paper is due",
    )
    client.force_login(head)

    page = client.get("/approvals").content.decode()

    assert "4 more GPUs of h100-80g guaranteed to vision until" in page
    assert "8 GPUs of" in page  # left to give
    assert "without a time limit" not in page
    case = Case.objects.get(subject_id=grant.pk)
    client.post(f"/approvals/{case.public_id}/decide", {"decision": "approve", "less-gpus": "3"})
    assert (Grant.objects.get().state, Grant.objects.get().units) == ("approved", 3 * 7000)
