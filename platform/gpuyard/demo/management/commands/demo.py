"""`manage.py demo`: the whole platform on this machine, its main job on real programs, then the pages."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.live import Live
from rich.table import Table

from gpuyard.demo import books, run
from gpuyard.demo.client import ApiError
from gpuyard.demo.seed import ACCOUNTS, PASSWORD, Seeded, seed
from gpuyard.local import supervisor
from gpuyard.local.commands import add_platform_arguments

_PLAIN_PROGRESS_EVERY_S = 5.0


class Command(BaseCommand):
    """Starts everything, runs the scenario, shows the table and the books; serves until Ctrl-C."""

    help = "Runs GPU Yard with three simulated nodes and a working day in small. Ctrl-C stops all of it."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        add_platform_arguments(parser)
        parser.add_argument("--once", action="store_true", help="end after the run, with one JSON line")

    def handle(self, *args: Any, **options: Any) -> None:
        self.console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
        running = supervisor.current()
        running.echo = False  # the log lines are in files; the terminal shows the demo
        self._say("Starting web, workers and beat …")
        running.start()
        made = seed()
        self._say(f"GPU Yard serves on {running.url}; logs are in {running.folder}/logs.")
        try:
            outcome = self._main_job(running, made)
        except (run.DemoFailed, ApiError) as problem:
            raise CommandError(str(problem)) from problem
        self._accounts(running.url)
        if options["once"]:
            self.stdout.write(json.dumps(outcome))
            return
        self.console.print(f"\nOpen {running.url}. Ctrl-C stops all of it; the next start has the same data.")
        running.wait()
        self._say("Stopping …")

    def _main_job(self, running: supervisor.Supervisor, made: Seeded) -> dict[str, Any]:
        run.nodes_start(running, made, self._say)
        marks = books.marks_take()
        submitted = run.submit(running.url, made, self._say)
        run.decide(running.url, made, submitted, self._say)
        self._watch(submitted)
        self.console.print(_table(submitted, with_money=True))
        sums = books.books_since(marks)
        self._books(sums)
        problems = [*run.surprises(submitted), *sums["problems"]]
        if problems:
            raise run.DemoFailed("; ".join(problems))
        return run.outcome(submitted, sums)

    def _watch(self, submitted: list[run.Submitted]) -> None:
        if not self.console.is_terminal:
            self._watch_plain(submitted)
            return
        with Live(console=self.console, refresh_per_second=4, transient=True) as live:
            run.watch(submitted, lambda now: live.update(_table(now)))

    def _watch_plain(self, submitted: list[run.Submitted]) -> None:
        said_at = 0.0

        def progress(now: list[run.Submitted]) -> None:
            nonlocal said_at
            if time.monotonic() - said_at >= _PLAIN_PROGRESS_EVERY_S:
                said_at = time.monotonic()
                self._say(", ".join(f"{one.asked.name}: {one.state}" for one in now))

        run.watch(submitted, progress)

    def _say(self, message: str) -> None:
        self.console.print(message)

    def _accounts(self, url: str) -> None:
        self.console.print(f"Accounts: sign in at {url}/sign-in with the password {PASSWORD}")
        table = Table()
        for title in ("Account", "Role", "Where"):
            table.add_column(title)
        for account in ACCOUNTS:
            where = "the platform" if account.role == "admin" else account.team or "the whole company"
            table.add_row(account.username, str(account.role), where)
        self.console.print(table)

    def _books(self, sums: dict[str, Any]) -> None:
        table = Table(title="The books of this run")
        table.add_column("What")
        table.add_column("Amount", justify="right")
        for label, key in (
            ("GPU-hours allocated", "gpu_hours"),
            ("Charged to the teams, EUR", "charged"),
            ("Cost of what was allocated, EUR", "allocated_cost"),
            ("Cost of what stood unallocated, EUR", "unallocated_cost"),
            ("Cost of all else, EUR", "other_cost"),
            ("Cost of the fleet, EUR", "fleet_cost"),
        ):
            table.add_row(label, sums[key])
        table.add_row("Every GPU-microsecond accounted for once", "yes" if sums["conserved"] else "NO")
        self.console.print(table)


def _table(submitted: list[run.Submitted], *, with_money: bool = False) -> Table:
    table = Table(title="Workloads")
    for title in ("Workload", "Team"):
        table.add_column(title)
    for title in ("GPUs", "Wait", "Run"):
        table.add_column(title, justify="right")
    table.add_column("State")
    if with_money:
        table.add_column("GPU-hours", justify="right")
        table.add_column("Price", justify="right")
    for one in submitted:
        detail = one.api.get(f"workloads/{one.id}") if with_money else one.detail
        cells = [
            f"{one.asked.name} {one.id}",
            one.asked.team,
            str(detail["gpus"]),
            _seconds(detail.get("wait_s")),
            _seconds(detail.get("run_s")),
            one.state,
        ]
        if with_money:
            cost = detail["cost"]
            cells += [str(cost["gpu_hours"]), f"{cost['charged']} {cost['currency']}"]
        table.add_row(*cells)
    return table


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} s"
