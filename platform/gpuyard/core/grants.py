"""What the app role may do to each table.

The owner role migrates; the app role serves. It owns nothing, so it can neither TRUNCATE, nor disable a trigger,
nor alter a table. Every table is granted whole but for the exceptions below, which the triggers repeat.
"""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.conf import settings
from django.db import connections
from psycopg import sql

ALL = ("SELECT", "INSERT", "UPDATE", "DELETE")
READ_ONLY = ("SELECT",)

# table → privileges. A privilege may name columns: "UPDATE (sequence, prev, hash)".
EXCEPTIONS: dict[str, tuple[str, ...]] = {
    "audit_event": ("SELECT", "INSERT", "UPDATE (sequence, prev, hash)"),
    "audit_verification": ("SELECT", "INSERT"),
    "audit_checkpoint": ("SELECT", "INSERT"),
    "core_clockoffset": READ_ONLY,
    "django_migrations": READ_ONLY,
    "scheduling_allocation": ("SELECT", "INSERT", "UPDATE"),
    "scheduling_workloadspec": ("SELECT", "INSERT"),
    "scheduling_eviction": ("SELECT", "INSERT"),
    "scheduling_schedulingpolicyversion": ("SELECT", "INSERT"),
    "scheduling_workloaddependency": ("SELECT", "INSERT"),
    "tenants_casemessage": ("SELECT", "INSERT"),
    "billing_usageline": ("SELECT", "INSERT"),
    "billing_charge": ("SELECT", "INSERT"),
    "notify_attempt": ("SELECT", "INSERT", "DELETE"),  # past their time they go with their message
    "notify_reminder": ("SELECT", "INSERT"),
    "fleet_gpucondition": ("SELECT", "INSERT", "UPDATE"),
}


def grants_apply(sender: Any, using: str, **kwargs: Any) -> None:
    """Grants the app role its rights after each migration (safe to repeat). Connected to `post_migrate`."""
    app_role = settings.DATABASES["default"]["USER"]
    connection = connections[using]
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user")
        (owner,) = cursor.fetchone()
        if owner == app_role:  # one role for everything: nothing to grant, the triggers still hold
            return
        role = sql.Identifier(app_role)
        cursor.execute(sql.SQL("GRANT USAGE ON SCHEMA public TO {}").format(role))
        cursor.execute(sql.SQL("GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO {}").format(role))
        for table in connection.introspection.table_names(cursor):
            privileges = sql.SQL(", ").join(sql.SQL(p) for p in EXCEPTIONS.get(table, ALL))
            name = sql.Identifier(table)
            cursor.execute(sql.SQL("REVOKE ALL ON {} FROM {}").format(name, role))
            cursor.execute(sql.SQL("GRANT {} ON {} TO {}").format(privileges, name, role))


def unknown_tables() -> set[str]:
    """Returns the exceptions that name no table of ours: a typing error would silently grant everything."""
    known = {model._meta.db_table for model in apps.get_models(include_auto_created=True)}
    return set(EXCEPTIONS) - known - {"django_migrations"}
