"""Guarantees above what is ready are told, on the fleet page and by tier and quota in the API."""

from __future__ import annotations

import pytest
from django.test import Client

from gpuyard.fleet.models import Tier
from scheduling.promises import promises_short, tier_promises
from tenants.models import Team
from tests import factories as make
from tests.api.calls import Caller

pytestmark = pytest.mark.django_db


def _promised(gpus: int, *guarantees: int) -> tuple[Tier, list[Team]]:
    tier = make.tier("h100-80g")
    make.node(tier, gpus)
    companies = [make.company() for _ in guarantees]
    for company, guaranteed in zip(companies, guarantees, strict=True):
        make.quota(company, tier, guaranteed_gpus=guaranteed)
    return tier, companies


def test_what_fits_is_no_matter() -> None:
    _promised(8, 5, 3)
    assert promises_short() == []


def test_what_does_not_fit_is_told() -> None:
    tier, _companies = _promised(8, 5, 7)
    assert promises_short() == ["h100-80g: guarantees of 12 GPUs, 8 ready: served in proportion."]
    assert tier_promises()[tier.pk].ready == 8 * 7000


def test_only_what_is_ready_counts() -> None:
    tier, _companies = _promised(8, 8)
    make.gpu(make.node(tier, 0), tier, condition="down")
    assert promises_short() == []
    down = make.tier()
    make.gpu(make.node(down, 0), down, condition="down")
    make.quota(make.company(), down, guaranteed_gpus=1)
    assert len(promises_short()) == 1


def test_guarantees_below_the_companies_do_not_count_twice() -> None:
    tier, (company,) = _promised(8, 8)
    make.quota(make.team(company), tier, guaranteed_gpus=8)
    assert promises_short() == []


def test_page_and_api_say_so() -> None:
    _tier, (company, _other) = _promised(8, 5, 7)
    person = make.user("member", company)
    browser = Client()
    browser.force_login(person)
    assert "guarantees of 12 GPUs, 8 ready" in browser.get("/fleet").content.decode()
    caller = Caller(person)
    (tier,) = caller.get("tiers")["results"]
    (quota,) = caller.get(f"teams/{company.public_id}/quotas")["results"]
    assert tier["warning"] == quota["warning"] != ""
