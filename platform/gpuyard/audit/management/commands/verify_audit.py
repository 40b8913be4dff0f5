"""`manage.py verify_audit`: was the log altered? Exit 0: no; 1: yes, or it is no longer guarded."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError

from gpuyard.audit import selectors
from gpuyard.audit.services import Anchor, ChainReport, chain_verify

Anchors = dict[UUID | None, list[Anchor]]


class Command(BaseCommand):
    help = (
        "Recomputes the audit chain of each company and of the platform. The last line is one JSON object. "
        "Keep it elsewhere and give it to --anchor later: then even a rewritten or shortened chain is found."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--anchor", type=Path, help="a file whose last line is this command's earlier answer"
        )

    def handle(self, *args: Any, anchor: Path | None = None, **options: Any) -> None:
        anchors = _read_anchors(anchor) if anchor else {}
        companies = sorted({*selectors.companies_all(), *anchors}, key=str)
        reports = [chain_verify(company_id, anchors=anchors.get(company_id, ())) for company_id in companies]
        guards_missing = selectors.guards_missing()
        for report in reports:
            self._print(report)
        for name in guards_missing:
            self.stdout.write(f"The trigger {name} is missing or switched off.")
        is_intact = not guards_missing and not any(report.findings for report in reports)
        chains = [_as_json(report) for report in reports]
        self.stdout.write(
            json.dumps({"intact": is_intact, "chains": chains, "guards_missing": guards_missing})
        )
        if not is_intact:
            sys.exit(1)

    def _print(self, report: ChainReport) -> None:
        name = report.company_id or "platform"
        outcome = f"{len(report.findings)} findings" if report.findings else "intact"
        self.stdout.write(f"{name}: {report.sequence} sealed, {report.unsealed} not yet sealed, {outcome}")
        for finding in report.findings:
            event = f" (event {finding.event_id})" if finding.event_id else ""
            self.stdout.write(f"  {finding.kind}: {finding.message}{event}")


def _as_json(report: ChainReport) -> dict[str, Any]:
    document = asdict(report)
    document["company_id"] = str(report.company_id) if report.company_id else None
    return document


def _read_anchors(path: Path) -> Anchors:
    try:
        earlier = json.loads(path.read_text(encoding="utf-8").strip().splitlines()[-1])
        return {
            UUID(chain["company_id"]) if chain["company_id"] else None: [
                Anchor(chain["sequence"], chain["hash"])
            ]
            for chain in earlier["chains"]
        }
    except (OSError, ValueError, KeyError, TypeError, IndexError) as exc:
        raise CommandError(f"--anchor {path}: this is no earlier answer of verify_audit ({exc}).") from exc
