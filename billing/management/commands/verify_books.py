"""`manage.py verify_books`: do the GPUs, the lines and the charges agree?"""

import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from billing.metering import currency, meter
from billing.verify import BooksReport, books_verify


class Command(BaseCommand):
    help = "Recomputes the books from raw allocations and conditions; exit code 1 and a list if they do not agree."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--meter", action="store_true", help="First meter all that is final by now.")
        parser.add_argument("--json", action="store_true", help="Print the JSON object only.")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["meter"]:
            meter(everything=True)
        report = books_verify()
        if not options["json"]:
            for line in _lines(report):
                self.stdout.write(line)
        self.stdout.write(json.dumps(report.as_json()))
        if not report.conserved:
            self.stdout.flush()
            sys.exit(1)


def _lines(report: BooksReport) -> list[str]:
    money = currency()
    lines = [f"Books of {report.gpus} GPUs, as of {report.as_of:%Y-%m-%d %H:%M:%S} UTC"]
    if report.metered_from and report.metered_until:
        lines.append(f"Metered until {report.metered_from:%H:%M:%S} to {report.metered_until:%H:%M:%S} UTC")
    for total in report.buckets:
        lines.append(f"  {total.bucket:<12} {total.gpu_hours:>16,.6f} GPU-hours {total.cost:>14,.2f} {money}")
    lines += [
        (
            f"Cost of the fleet {report.fleet_cost} {money} = allocated {report.allocated_cost} + "
            f"unallocated {report.unallocated_cost} + reserved, maintenance, down {report.other_cost}"
        ),
        f"Charged {report.charged} {money} for {report.gpu_hours} GPU-hours",
    ]
    if report.conserved:
        lines.append("Conserved: every moment of every GPU is in one bucket, and is priced once.")
    else:
        lines += [
            f"NOT conserved, {len(report.problems)} problems:",
            *(f"  {text}" for text in report.problems),
        ]
    return lines
