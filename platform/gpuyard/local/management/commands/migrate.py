from django.core.management.base import CommandParser
from django.core.management.commands.migrate import Command as DjangoMigrate


class Command(DjangoMigrate):
    """Migrates as the owner role: the app role owns nothing and could not."""

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.set_defaults(database="owner")
