from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils.translation import gettext as _

from gpuyard.fleet.models import Pool
from gpuyard.fleet.services import join_token_create
from gpuyard.local import supervisor
from gpuyard.local.commands import add_platform_arguments


class Command(BaseCommand):
    """Runs the platform in the foreground until Ctrl-C."""

    help = "Runs GPU Yard on this machine: database, broker, web, workers. Ctrl-C stops all of it."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        add_platform_arguments(parser)
        parser.add_argument(
            "--agents",
            nargs="+",
            default=[],
            metavar="GPUS",
            help="also runs a node agent with simulated GPUs for each of these, such as 8xh100-80g 4xl4-24g",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        running = supervisor.current()
        running.start()
        self._start_agents(running, options["agents"])
        self.stdout.write(_("GPU Yard serves on %(url)s. Ctrl-C stops it.") % {"url": running.url})
        self.stdout.flush()
        running.wait()
        self.stdout.write(_("Stopping …"))

    def _start_agents(self, running: supervisor.Supervisor, agents: list[str]) -> None:
        if not agents:
            return
        pool, _is_new = Pool.objects.get_or_create(name="local")
        _token, secret = join_token_create(actor=None, pool=pool, uses=len(agents))
        for number, gpus in enumerate(agents, start=1):
            running.add_agent(f"local-{number}", simulate=gpus, join_token=secret)
