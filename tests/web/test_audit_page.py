"""The audit page: who reads which chain, filters, what changed, files of exactly what is seen."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from django.test import Client
from django.urls import reverse

from gpuyard.audit import chain
from gpuyard.audit.models import Event, Verification
from gpuyard.audit.sealing import seal_all
from gpuyard.audit.services import Actor, Subject, event_record
from gpuyard.audit.tasks import audit_checkpoint, audit_verify
from gpuyard.core.models import User
from tenants.models import Team
from tenants.services import quota_set, team_create
from tests import factories as make

pytestmark = pytest.mark.django_db


@pytest.fixture
def company() -> Team:
    return make.company("acme", time_zone="Asia/Tokyo")


@pytest.fixture
def auditor(company: Team) -> User:
    return make.user("auditor", company, username="iris")


def browse(person: User) -> Client:
    client = Client()
    client.force_login(person)
    return client


def note(company: Team, action: str = "workload.stop", **fields: Any) -> Event:
    with transaction.atomic():
        return event_record(
            company_id=company.pk,
            actor=fields.pop("actor", None),
            action=action,
            subject=fields.pop("subject", Subject("workload", None, "train")),
            **fields,
        )


def see(person: User, **query: str) -> str:
    answer = browse(person).get(reverse("web:audit"), query)
    assert answer.status_code == 200, answer.status_code
    return answer.text


def file_of(person: User, name: str, **query: str) -> list[str]:
    answer = browse(person).get(reverse(f"web:{name}"), query)
    return b"".join(answer.streaming_content).decode().splitlines()  # type: ignore[attr-defined] # it streams


def test_an_event_is_shown_field_by_field(company: Team, auditor: User) -> None:
    team, tier = make.team(company, "vision"), make.tier("h100-80g")
    make.quota(company, tier, guaranteed_gpus=8)
    quota_set(actor=make.admin(username="root"), team=team, tier=tier, guaranteed=7000, limit=None)
    quota_set(actor=make.admin(username="boss"), team=team, tier=tier, guaranteed=14000, limit=14000)
    page = see(auditor, action="quota")
    assert '<del><span class="sr">before: </span>7000</del>' in page
    assert '<ins><span class="sr">after: </span>14000</ins>' in page
    assert "boss" in page
    assert "<dt>tier</dt>" not in page.split("boss")[1].split("</tr>")[0]  # it stayed as it was


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"who": "ADA"}, {"run"}),
        ({"who": "grace"}, {"run"}),  # on whose behalf
        ({"action": "workload"}, {"run", "stop"}),
        ({"action": "work"}, set()),
        ({"subject": "case"}, {"case"}),
        ({"subject": "tra"}, {"run", "stop", "case"}),
        ({"source": "command"}, {"case"}),
        ({"q": "because"}, {"stop"}),
        ({"q": "\x00"}, set()),
        ({"subject": "01900000-0000-7000-8000-00000000000a"}, {"stop"}),
    ],
)
def test_the_filters(company: Team, auditor: User, query: dict[str, str], expected: set[str]) -> None:
    note(company, "workload.run", actor=Actor("ada", on_behalf_of="Grace"))
    key = UUID("01900000-0000-7000-8000-00000000000a")
    note(company, reason="because", subject=Subject("workload", key, "train"))
    note(company, "case.open", subject=Subject("case", None, "train"), source="command")
    lines = [json.loads(one) for one in file_of(auditor, "audit_jsonl", **query)]
    assert {one["action"].partition(".")[2].replace("open", "case") for one in lines} == expected
    page = see(auditor, **query)
    assert page.count('<tr id="e-') == len(expected)


def test_times_are_the_readers(company: Team, auditor: User) -> None:
    event = note(company)
    moment = Event.objects.get(pk=event.pk).created_at + timedelta(hours=9)  # in Tokyo
    minute = timedelta(minutes=1)
    shown = f"{moment - minute:%Y-%m-%dT%H:%M}", f"{moment + minute:%Y-%m-%dT%H:%M}"
    day = f"{moment:%Y-%m-%d}"
    for query, count in (
        ({"since": shown[0], "until": shown[1]}, 1),
        ({"since": shown[1]}, 0),
        ({"since": day, "until": day}, 1),
    ):
        assert see(auditor, action="workload", **query).count('<tr id="e-') == count, query
    assert browse(auditor).get(reverse("web:audit"), {"since": "soon"}).status_code == 400


def test_a_team_is_seen_with_those_below_it(company: Team, auditor: User) -> None:
    vision = make.team(company, "vision")
    below = make.team(vision, "nlp")
    note(company, subject=Subject("workload", None, "ours", below.pk))
    note(company, subject=Subject("workload", None, "other", make.team(company, "speech").pk))
    page = see(auditor, team=vision.public_id)
    assert "ours" in page
    assert "vision / nlp" in page
    assert ">other" not in page


def test_services_say_whose_team_it_was(company: Team) -> None:
    admin = make.admin()
    team = team_create(actor=admin, parent=company, name="vision")
    assert Event.objects.get(action="team.create").team_id == team.pk


def test_pages_go_on_where_the_last_one_ended(company: Team, auditor: User) -> None:
    for _ in range(60):
        note(company)
    client = browse(auditor)
    first = client.get(reverse("web:audit"), {"action": "workload"}).text
    cursor = first.split("cursor=")[1].split('"')[0]
    second = client.get(reverse("web:audit"), {"action": "workload", "cursor": cursor}).text
    assert (first.count('<tr id="e-'), second.count('<tr id="e-')) == (50, 10)
    assert "Newest" in second
    assert client.get(reverse("web:audit"), {"cursor": "x"}).status_code == 400


def test_the_badge_says_how_far_the_chain_holds(company: Team, auditor: User) -> None:
    note(company)
    assert "Sealed to #0, not verified yet" in see(auditor)
    seal_all()
    audit_verify()
    audit_checkpoint()
    page = see(auditor)
    assert ": intact</b>" in page
    assert "signed at #" in page
    finding = {"kind": "altered", "message": "The content of #2 is not what was sealed."}
    Verification.objects.create(company_id=company.pk, sequence=3, hash="0" * 64, findings=[finding])
    page = see(auditor)
    assert "1 finding</b>" in page
    assert "altered: The content of #2 is not what was sealed." in page


def test_a_subject_that_is_gone_keeps_its_name_and_loses_its_link(company: Team, auditor: User) -> None:
    node = make.node(name="node-07")
    note(company, "node.cordon", subject=node)
    address = reverse("web:node", args=[node.public_id])
    assert address in see(auditor)
    node.delete()
    page = see(auditor)
    assert ">node-07" in page
    assert address not in page


def test_files_hold_exactly_what_is_seen(company: Team, auditor: User) -> None:
    note(company, old={"n": 1}, new={"n": 2}, reason="=1+1")
    note(company, "case.open")
    seal_all()
    rows = list(csv.DictReader(io.StringIO("\n".join(file_of(auditor, "audit_csv", action="workload")))))
    assert [(one["action"], one["old"], one["reason"]) for one in rows] == [
        ("workload.stop", '{"n": 1}', "'=1+1")
    ]
    (line,) = file_of(auditor, "audit_jsonl", action="workload")
    row = chain.line_read(line)
    assert chain.seal_hash(row, row.prev or "") == row.hash


def test_checkpoints_are_for_those_who_read_the_chain(company: Team, auditor: User) -> None:
    note(company)
    note(make.company("other"))
    seal_all()
    audit_checkpoint()
    (line,) = [json.loads(one) for one in file_of(auditor, "audit_checkpoints")]
    assert line["company_id"] == str(company.pk)
    assert "BEGIN PUBLIC KEY" in browse(auditor).get(reverse("web:audit_public_key")).text


def test_only_those_who_audit_see_the_entry(company: Team, auditor: User) -> None:
    entry = f'href="{reverse("web:audit")}"'
    assert entry in browse(auditor).get("/").text
    assert entry in browse(make.admin()).get("/").text
    assert entry not in browse(make.user("member", make.team(company))).get("/").text


def test_an_admin_picks_a_chain(company: Team) -> None:
    note(company, reason="in acme")
    admin = make.admin()
    assert "in acme" not in see(admin)
    assert "in acme" in see(admin, company=company.public_id)


@pytest.mark.parametrize("count", [1, 40])
def test_the_page_takes_as_many_queries_for_forty_events_as_for_one(
    company: Team, auditor: User, count: int, django_assert_max_num_queries: Any
) -> None:
    for _ in range(count):
        team = make.team(company)
        note(company, subject=make.workload(team))
        note(company, "node.cordon", subject=make.node())
    client = browse(auditor)
    client.get(reverse("web:audit"))
    with django_assert_max_num_queries(26):
        client.get(reverse("web:audit"))
