"""`manage.py admin_create NAME`: the first platform admin of a new installation."""

from __future__ import annotations

import getpass
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _

from gpuyard.core.errors import DomainError
from tenants.services import user_create


class Command(BaseCommand):
    help = "Creates a platform admin. Asks for the password, or reads it from standard input."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username")
        parser.add_argument("--email", default="")

    def handle(self, *args: Any, **options: Any) -> None:
        password = (
            getpass.getpass(_("Password: ")) if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
        )
        try:
            user = user_create(
                actor=None,
                username=options["username"],
                password=password,
                email=options["email"],
                is_platform_admin=True,
            )
        except DomainError as problem:
            raise CommandError(
                "; ".join(str(error.message) for error in problem.errors) or str(problem)
            ) from problem
        self.stdout.write(_("%(user)s is a platform admin now.") % {"user": user.username})
