"""Test databases: the owner migrates one template, the others are copies of it (about 0.05 s each)."""

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, LiteralString
from urllib.parse import urlsplit, urlunsplit

import psycopg
from django.core.management import call_command
from django.db import connections
from psycopg import sql

_ALIASES = ("default", "owner")
_VARIABLES = {"default": "DATABASE_URL", "owner": "MIGRATE_DATABASE_URL"}


def url(alias: str, database: str | None = None) -> str:
    """The URL of the current test database (or another one) for one of the two roles."""
    name = database or str(connections.settings[alias]["NAME"])
    base = os.environ.get(_VARIABLES[alias]) or os.environ["DATABASE_URL"]
    return urlunsplit(urlsplit(base)._replace(path=f"/{name}"))


class Databases:
    """The databases of one pytest process."""

    def __init__(self, worker: str) -> None:
        run = os.environ["GPUYARD_TEST_RUN"]
        self._home = str(connections.settings["owner"]["NAME"])
        self._template = f"gpuyard_test_{run}_template"
        self._prefix = f"gpuyard_test_{run}_{worker}"
        self._numbers = itertools.count(1)
        self._made: list[str] = []

    def prepare(self) -> None:
        """Makes this process's own database and points Django at it."""
        with psycopg.connect(url("owner", self._home), autocommit=True) as connection:
            # The first pytest process migrates the template; the others wait for it here.
            connection.execute("SELECT pg_advisory_lock(hashtext(%s))", (self._template,))
            if not self._exists(connection, self._template):
                self._migrate_template(connection)
        self._switch(self.copy(self._prefix))

    def copy(self, name: str) -> str:
        self._execute("CREATE DATABASE {} TEMPLATE {}", name, self._template)
        self._made.append(name)
        return name

    @contextmanager
    def own(self) -> Iterator[None]:
        """A fresh database for the length of the block, for a test that commits."""
        shared = str(connections.settings["default"]["NAME"])
        name = self.copy(f"{self._prefix}_{next(self._numbers)}")
        self._switch(name)
        try:
            yield
        finally:
            self._switch(shared)
            self.drop(name)

    def drop(self, name: str) -> None:
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)
        self._made.remove(name)

    def drop_all(self) -> None:
        self._switch(self._home)
        for name in list(self._made):
            self.drop(name)
        if "PYTEST_XDIST_WORKER" not in os.environ:
            self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", self._template)

    def _migrate_template(self, connection: psycopg.Connection[Any]) -> None:
        draft = f"{self._template}_draft"
        for statement in ("DROP DATABASE IF EXISTS {} WITH (FORCE)", "CREATE DATABASE {}"):
            connection.execute(sql.SQL(statement).format(sql.Identifier(draft)))
        self._switch(draft)
        call_command("migrate", database="owner", verbosity=0)
        self._switch(self._home)
        self._execute("ALTER DATABASE {} RENAME TO {}", draft, self._template)

    def _exists(self, connection: psycopg.Connection[Any], name: str) -> bool:
        return bool(connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone())

    def _execute(self, statement: LiteralString, *names: str) -> None:
        composed = sql.SQL(statement).format(*map(sql.Identifier, names))
        for _attempt in range(50):
            try:
                with psycopg.connect(url("owner", self._home), autocommit=True) as connection:
                    connection.execute(composed)
                return
            # somebody else copies the template at this moment, or the server's own vacuum is in the database,
            # which nobody but a superuser may end
            except (psycopg.errors.ObjectInUse, psycopg.errors.InsufficientPrivilege):
                time.sleep(0.1)
        raise AssertionError(f"{statement} {names}: still in use after 5 s")

    def _switch(self, name: str) -> None:
        """Points Django at another database, and the programs that a test starts."""
        for alias in _ALIASES:
            connections[alias].close()
            connections.settings[alias]["NAME"] = name
            os.environ[_VARIABLES[alias]] = url(alias, name)
