"""`manage.py verify_usage`: is the use that was folded little by little what the ledger says?"""

import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from scheduling.decay import usage_verify
from scheduling.policies import policy_current


class Command(BaseCommand):
    help = (
        "Recomputes past use from every allocation; exit code 1 if the folded one differs by more than 1e-9."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="Print the JSON object only.")

    def handle(self, *args: Any, **options: Any) -> None:
        report = usage_verify(policy_current().usage_half_life_s)
        if not options["json"]:
            words = "agrees with" if report.agrees else "DIFFERS from"
            self.stdout.write(
                f"Past use of {report.rows} teams and tiers {words} the ledger"
                f" (half-life {report.half_life_s} s, largest difference {report.difference:.1e})."
            )
        self.stdout.write(json.dumps(report.as_json()))
        if not report.agrees:
            self.stdout.flush()
            sys.exit(1)
