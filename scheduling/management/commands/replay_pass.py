"""`manage.py replay_pass NUMBER`: does a stored pass give the same plan again?"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from gpuyard.core.errors import Conflict
from scheduling.models import PassRecord
from scheduling.records import pass_replay

CANNOT = 2


class Command(BaseCommand):
    help = (
        "Plans again from the snapshot, policy and time that a pass stored, and compares with what it planned. "
        "Exits 0 if the plan is the same, 1 if it differs, 2 if the pass cannot be replayed."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("number", type=int, help="The number of the pass, as the passes page shows it.")

    def handle(self, *args: Any, **options: Any) -> None:
        number = options["number"]
        record = PassRecord.objects.filter(number=number).first()
        if record is None:
            raise CommandError(f"There is no record of pass {number}.", returncode=CANNOT)
        try:
            found = pass_replay(record)
        except Conflict as exc:
            raise CommandError(f"{exc} {exc.remedy}", returncode=CANNOT) from exc
        word = "the same plan" if found.is_same else "a different plan"
        self.stdout.write(f"Pass {number}: {word}, {found.counts}, in {found.took_ms:.0f} ms.")
        if not found.is_same:
            self.stdout.write(f"Stored {found.stored_digest}, now {found.digest}.")
            if found.is_other_engine:
                self.stdout.write("The engine has been changed since that pass.")
            sys.exit(1)
