import pytest
from django.db import IntegrityError, transaction
from psycopg.types.json import Jsonb

from gpuyard.audit.models import Event
from gpuyard.core import clock, ids
from gpuyard.core.bulk import instances_insert, rows_insert
from gpuyard.fleet.models import Pool
from tests import factories as make

pytestmark = pytest.mark.django_db


def test_instances_are_stored_with_what_the_database_adds() -> None:
    events = [
        Event(actor_label=f"a\t\\N{n}", action="x", subject_type="y", new={"n": [n, None, "\n"]})
        for n in range(3)
    ]
    instances_insert(events)
    stored = list(Event.objects.filter(action="x").order_by("actor_label"))
    assert [one.pk for one in stored] == [one.pk for one in events]
    assert [one.actor_label for one in stored] == ["a\t\\N0", "a\t\\N1", "a\t\\N2"]
    assert stored[1].new == {"n": [1, None, "\n"]}
    assert stored[1].old is None
    assert stored[1].created_at is not None


def test_a_value_that_is_given_is_kept() -> None:
    long_ago = clock.now() - make.LONG_AGO
    instances_insert([Event(actor_label="a", action="x", subject_type="y", created_at=long_ago)])
    assert Event.objects.get(action="x").created_at == long_ago


def test_none_at_all_are_no_mistake() -> None:
    instances_insert([])


def test_plain_rows_name_their_fields() -> None:
    rows_insert(Event, ["id", "actor_label", "action", "subject_type", "new", "source", "on_behalf_of_label",
                        "subject_label", "reason"],
                [(ids.uuid7(), "a", "x", "y", Jsonb({"n": 1}), "api", "", "", "")])  # fmt: skip
    assert Event.objects.get(action="x").new == {"n": 1}


def test_the_databases_rules_hold() -> None:
    pool = Pool(name="twice")
    with pytest.raises(IntegrityError), transaction.atomic():
        instances_insert([pool, Pool(name="twice")])
