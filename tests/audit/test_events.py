import json
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import transaction

from gpuyard.audit import selectors
from gpuyard.audit.masking import MASK, masked, text_masked
from gpuyard.audit.models import Event, Source
from gpuyard.audit.services import Actor, Subject, event_draft, event_record, events_record
from gpuyard.core import clock
from tests import factories
from tests.audit.chains import COMPANY, record


@pytest.mark.django_db
def test_an_event_says_who_did_what_to_what() -> None:
    company, person = factories.company(), factories.user(username="ada")
    stored = event_record(
        company_id=company.id,
        actor=person,
        action="team.rename",
        subject=company,
        old={"name": "a"},
        new={"name": "b", "cost": Decimal("1.50")},
        reason="typing error",
        source=Source.WEB,
    )
    event = Event.objects.get(pk=stored.pk)
    assert (event.actor_id, event.actor_label, event.source) == (person.pk, "ada", "web")
    assert (event.subject_type, event.subject_id, event.subject_label) == ("team", company.pk, company.name)
    assert (event.old, event.new) == ({"name": "a"}, {"name": "b", "cost": "1.50"})
    assert abs(event.created_at - clock.now()) < timedelta(seconds=30)
    assert event.sequence is None


@pytest.mark.django_db
def test_acting_for_somebody_else_is_recorded() -> None:
    event = event_record(
        company_id=None,
        actor=Actor("root", uuid.uuid4(), on_behalf_of="ada"),
        action="token.create",
        subject=Subject("token", None, "laptop"),
    )
    assert (event.actor_label, event.on_behalf_of_label, event.subject_label) == ("root", "ada", "laptop")


@pytest.mark.django_db
def test_no_actor_is_the_system() -> None:
    assert record().actor_label == "system"


@pytest.mark.django_db
def test_many_events_in_one_statement(django_assert_num_queries: Any) -> None:
    drafts = [
        event_draft(company_id=COMPANY, actor=None, action="x", subject=Subject("x", None)) for _ in range(50)
    ]
    with django_assert_num_queries(1):
        events_record(drafts)
    assert Event.objects.count() == 50


@pytest.mark.django_db(transaction=True)
def test_an_event_outside_a_transaction_is_refused() -> None:
    with pytest.raises(transaction.TransactionManagementError):
        event_record(company_id=None, actor=None, action="x", subject=Subject("x", None))


@pytest.mark.django_db(transaction=True)
def test_an_event_is_gone_with_its_act() -> None:
    with transaction.atomic():
        record()
        transaction.set_rollback(True)
    assert Event.objects.count() == 0


@pytest.mark.django_db
def test_events_are_listed_by_company_action_and_subject() -> None:
    first, second, _other = record(1), record(2), record(3, company_id=None)
    assert list(selectors.event_list(company_id=COMPANY)) == [second, first]
    assert list(
        selectors.event_list(company_id=COMPANY, filters=selectors.EventFilters(action="workload"))
    ) == [second, first]
    assert list(selectors.event_list(company_id=COMPANY, filters=selectors.EventFilters(action="work"))) == []
    assert first.subject_id is not None
    assert list(selectors.subject_events("workload", first.subject_id)) == [first]


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "Password",
        "api-key",
        "client_secret",
        "join_token",
        "Authorization",
        "set-cookie",
        "AWS_SECRET",
    ],
)
def test_a_secret_is_masked(key: str) -> None:
    document = masked({"node": {key: "hunter2", "others": [{key: ["hunter2"]}]}})
    assert "hunter2" not in json.dumps(document)
    assert document["node"][key] == MASK


def test_an_environment_keeps_its_names_only() -> None:
    assert masked({"env": {"WANDB": "hunter2"}, "fencing_token": 7, "name": "x"}) == {
        "env": {"WANDB": MASK},
        "fencing_token": 7,
        "name": "x",
    }


def test_no_secret_is_still_no_secret() -> None:
    assert masked({"password": None}) == {"password": None}


def test_what_is_no_json_becomes_text() -> None:
    document = masked(
        {
            "state": Source.WEB,
            "at": datetime(2026, 1, 2, tzinfo=UTC),
            "price": Decimal("1.50"),
            "of": (1, True),
        }
    )
    assert document == {"state": "web", "at": "2026-01-02T00:00:00Z", "price": "1.50", "of": [1, True]}
    assert type(document["state"]) is str


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("clone https://ada:hunter2@git.example/x.git", f"clone https://ada:{MASK}@git.example/x.git"),
        ("postgresql://app:hunter2@db:5432/x", f"postgresql://app:{MASK}@db:5432/x"),
        ("GET /x?page=2&access_token=hunter2&y=1", f"GET /x?page=2&access_token={MASK}&y=1"),
        ("curl -H 'Authorization: Bearer hunter2'", f"curl -H 'Authorization: Bearer {MASK}'"),
        ("it is gpy_hunter2hunter2hunter2, keep it", f"it is gpy_{MASK}, keep it"),
        ("joined with gyj_hunter2hunter2hunter2", f"joined with gyj_{MASK}"),
        ("https://hooks.slack.com/services/T0/B0/hunter2", f"https://hooks.slack.com/services/{MASK}"),
        ("-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----", f"-----BEGIN PRIVATE KEY-----{MASK}"),
        ("see https://wiki.example/page?id=2 & ask Bear", None),
        ("node-07:8080 is full; ratio 3:4@noon", None),
    ],
)  # fmt: skip
def test_a_secret_inside_a_text_is_masked(text: str, expected: str | None) -> None:
    assert text_masked(text) == (expected or text)
    assert masked({"note": [text]}) == {"note": [expected or text]}


@pytest.mark.django_db
def test_no_field_of_an_event_keeps_a_secret() -> None:
    secret = "https://ada:hunter2@git.example"
    event = event_record(
        company_id=None,
        actor=None,
        action="x",
        subject=Subject("x", None, secret),
        old={"source": secret, "env": {"A": "hunter2"}},
        new={"webhook": {"signing_secret": "hunter2", "url": secret}, "password": "hunter2"},
        reason=f"because {secret}",
    )
    assert "hunter2" not in str(Event.objects.filter(pk=event.pk).values().get())
