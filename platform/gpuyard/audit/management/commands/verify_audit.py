"""`manage.py verify_audit`: was the log altered? Exit 0: no; 1: yes, or it is no longer guarded."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError

from gpuyard.audit import chain, checkpoints, selectors
from gpuyard.audit.diagnosis import Anchor, Finding
from gpuyard.audit.verification import ChainReport, chain_verify, rows_verify

Anchors = dict[UUID | None, list[Anchor]]
Findings = dict[UUID | None, list[Finding]]


class Command(BaseCommand):
    help = (
        "Recomputes the audit chain of each company and of the platform, in the database or in an export, and names "
        "what was altered, deleted, inserted or reordered. With checkpoints that were exported before, a rewritten "
        "or shortened chain is found too. The last line is one JSON object, which also serves as a later --anchor."
    )
    requires_system_checks = ()  # an auditor's machine has no platform

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--anchor", type=Path, help="a file whose last line is this command's earlier answer"
        )
        parser.add_argument("--checkpoints", type=Path, help="checkpoints of export_audit, JSON lines")
        parser.add_argument(
            "--public-key", type=Path, help="the key that their signatures are checked with, PEM"
        )
        parser.add_argument(
            "--events", type=Path, help="verify this export (JSON lines) and ask no database for anything"
        )

    def handle(
        self,
        *args: Any,
        anchor: Path | None = None,
        checkpoints: Path | None = None,
        public_key: Path | None = None,
        events: Path | None = None,
        **options: Any,
    ) -> None:
        anchors = _read_anchors(anchor) if anchor else {}
        signed, faults = _read_checkpoints(checkpoints, public_key) if checkpoints else ({}, {})
        for company_id, more in signed.items():
            anchors.setdefault(company_id, []).extend(more)
        if events:
            self._answer(_verify_file(events, anchors, faults), [])
            return
        companies = sorted({*selectors.companies_all(), *anchors, *faults}, key=str)
        reports = [
            chain_verify(one, anchors=anchors.get(one, ()), findings=faults.get(one, ())) for one in companies
        ]
        self._answer(reports, selectors.guards_missing())

    def _answer(self, reports: list[ChainReport], guards_missing: list[str]) -> None:
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


# --- An export ---------------------------------------------------------------------------------------------


def _verify_file(path: Path, anchors: Anchors, faults: Findings) -> list[ChainReport]:
    unsealed: dict[UUID | None, int] = {}
    for row in _rows(path):
        unsealed[row.company_id] = unsealed.get(row.company_id, 0) + (row.sequence is None)
    reports = []
    for company_id in sorted({*unsealed, *anchors, *faults}, key=str):
        known = anchors.get(company_id, ())
        sequence, last_hash, findings = rows_verify(partial(_sealed, path, company_id), known)
        found = (*findings, *faults.get(company_id, ()))
        reports.append(ChainReport(company_id, sequence, last_hash, unsealed.get(company_id, 0), found))
    return reports


def _sealed(path: Path, company_id: UUID | None) -> Iterator[chain.SealedRow]:
    """A chain's sealed events in the order of their sequence, which is that of the file or its reverse."""
    rows = [row for row in _rows(path) if row.company_id == company_id and row.sequence is not None]
    return iter(sorted(rows, key=lambda row: (row.sequence or 0, str(row.id))))


def _rows(path: Path) -> Iterator[chain.SealedRow]:
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for number, text in enumerate(file, start=1):
                try:
                    yield chain.line_read(text)
                except chain.NotAnEvent as exc:
                    raise CommandError(
                        f"--events {path}: line {number} is no event of an export ({exc})."
                    ) from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise CommandError(f"--events {path} cannot be read: {exc}") from exc


# --- What is known from elsewhere --------------------------------------------------------------------------


def _read_checkpoints(path: Path, public_key: Path | None) -> tuple[Anchors, Findings]:
    if public_key is None:
        raise CommandError("--checkpoints needs --public-key: without it a signature says nothing.")
    try:
        keys = checkpoints.public_keys_read(public_key.read_bytes())
    except (OSError, checkpoints.NotACheckpoint) as exc:
        raise CommandError(f"--public-key {public_key}: this is no public key of ours ({exc}).") from exc
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        said = [checkpoints.line_read(one) for one in lines if one.strip()]
    except (OSError, ValueError) as exc:
        raise CommandError(f"--checkpoints {path}: this is no export of checkpoints ({exc}).") from exc
    return checkpoints.anchors_signed(said, keys)


def _read_anchors(path: Path) -> Anchors:
    try:
        earlier: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8").strip().splitlines()[-1])
        return {
            UUID(one["company_id"]) if one["company_id"] else None: [Anchor(one["sequence"], one["hash"])]
            for one in earlier["chains"]
        }
    except (OSError, ValueError, KeyError, TypeError, IndexError) as exc:
        raise CommandError(f"--anchor {path}: this is no earlier answer of verify_audit ({exc}).") from exc
