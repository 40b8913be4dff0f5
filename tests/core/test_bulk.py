import json
from typing import Any
from uuid import RFC_4122, UUID

import pytest
from django.db import IntegrityError, connection, transaction

from gpuyard.audit.models import Event
from gpuyard.core import clock, ids
from gpuyard.core.bulk import rows_insert
from gpuyard.fleet.models import Pool
from tests import factories as make

pytestmark = pytest.mark.django_db

_TEXTS = ("subject_label", "on_behalf_of_label", "reason", "source")


def insert(label: str, key: str, **values: Any) -> None:
    named = {"id": key, "actor_label": label, "action": "x", "subject_type": "y", **values}
    rows_insert(Event, [*named, *_TEXTS], [(*named.values(), *[""] * len(_TEXTS))])


def test_rows_are_stored_as_they_are_with_what_the_database_adds() -> None:
    keys = ids.uuid7_texts(2)
    document = {"n": [1, None, '\n"\\']}
    insert("a\t\\N\n", keys[0], new=json.dumps(document))
    insert("b", keys[1], new=None)
    first, second = Event.objects.filter(action="x").order_by("actor_label")
    assert [str(first.pk), str(second.pk)] == keys
    assert (first.actor_label, first.new, second.new) == ("a\t\\N\n", document, None)
    assert first.created_at is not None


def test_a_value_that_is_given_is_kept() -> None:
    long_ago = clock.now() - make.LONG_AGO
    insert("a", ids.uuid7_texts(1)[0], created_at=long_ago)
    assert Event.objects.get(action="x").created_at == long_ago


def test_none_at_all_cost_no_statement(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        rows_insert(Event, ["id"], iter(()))


def test_the_databases_rules_hold() -> None:
    pool = Pool.objects.create(name="once")
    names = [field.name for field in Pool._meta.concrete_fields]
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM fleet_pool WHERE id = %s", [pool.pk])
        row = cursor.fetchone()
    with pytest.raises(IntegrityError), transaction.atomic():
        rows_insert(Pool, names, [row])


def test_ids_by_the_thousand_are_ids() -> None:
    texts = ids.uuid7_texts(1000)
    assert len(set(texts)) == 1000
    assert all(str(UUID(text)) == text for text in texts)
    assert {(UUID(text).version, UUID(text).variant) for text in texts} == {(7, RFC_4122)}
    assert ids.uuid7_texts(0) == []
