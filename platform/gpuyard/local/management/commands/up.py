from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils.translation import gettext as _

from gpuyard.local import supervisor
from gpuyard.local.commands import add_platform_arguments


class Command(BaseCommand):
    """Runs the platform in the foreground until Ctrl-C."""

    help = "Runs GPU Yard on this machine: database, broker, web, workers. Ctrl-C stops all of it."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        add_platform_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        running = supervisor.current()
        running.start()
        self.stdout.write(_("GPU Yard serves on %(url)s. Ctrl-C stops it.") % {"url": running.url})
        self.stdout.flush()
        running.wait()
        self.stdout.write(_("Stopping …"))
