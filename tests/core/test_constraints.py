"""What the models declare is what the database holds: a migration may drop more than it says."""

import pytest
from django.apps import apps
from django.db import connection


@pytest.mark.django_db
def test_every_declared_constraint_and_index_is_there() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT conname FROM pg_constraint UNION SELECT relname FROM pg_class WHERE relkind = 'i'"
        )
        there = {row[0] for row in cursor.fetchall()}
    declared = {
        (model._meta.label, rule.name)
        for model in apps.get_models(include_auto_created=True)
        for rule in [*model._meta.constraints, *model._meta.indexes]
    }
    assert len(declared) > 100
    assert sorted(one for one in declared if one[1] not in there) == []


@pytest.mark.django_db
def test_what_is_declared_unique_is_unique() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indisunique"
        )
        unique = {row[0] for row in cursor.fetchall()}
    assert {"scheduling_attempt_one_live", "scheduling_attempt_one_stopping"} <= unique
