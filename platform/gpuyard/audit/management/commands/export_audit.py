"""`manage.py export_audit`: the log, its signed checkpoints and the key that proves them, as files to keep."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from gpuyard.audit import chain, checkpoints, selectors, services

PLATFORM = "platform"


class Command(BaseCommand):
    help = "Writes sealed events and signed checkpoints as JSON lines, and the public key; see verify_audit."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--chain", default="", help="the id of a company, or `platform`; without it, all")
        parser.add_argument("--events", type=Path, help="where to write the sealed events")
        parser.add_argument("--checkpoints", type=Path, help="where to write the checkpoints")
        parser.add_argument("--public-key", type=Path, help="where to write the public key, PEM")

    def handle(self, *args: Any, **options: Any) -> None:
        if not any(options[name] for name in ("events", "checkpoints", "public_key")):
            raise CommandError(
                "Say what to write: --events, --checkpoints or --public-key, each with a file."
            )
        chains = _chains(options["chain"])
        if path := options["checkpoints"]:
            stored = (one for company_id in chains for one in selectors.checkpoints_stored(company_id))
            self._write(path, (checkpoints.line(checkpoints.attested(one)) for one in stored))
        if path := options["events"]:
            count = self._write(
                path, (chain.line(row) for company_id in chains for row in selectors.rows_sealed(company_id))
            )
            with transaction.atomic():
                services.export_record(
                    company_ids=chains, actor=None, what="events.jsonl", rows=count, source="command"
                )
        if path := options["public_key"]:
            path.write_text(checkpoints.public_key_pem(), encoding="utf-8")
            self.stdout.write(f"{path}: the public key")

    def _write(self, path: Path, lines: Iterable[str]) -> int:
        count = 0
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for one in lines:
                file.write(f"{one}\n")
                count += 1
        self.stdout.write(f"{path}: {count} lines")
        return count


def _chains(chosen: str) -> list[UUID | None]:
    if not chosen:
        return selectors.companies_all()
    if chosen == PLATFORM:
        return [None]
    try:
        return [UUID(chosen)]
    except ValueError as exc:
        raise CommandError(f"--chain {chosen}: give a company's id (a UUID) or {PLATFORM}.") from exc
