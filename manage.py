#!/usr/bin/env python3
"""GPU Yard's command line. On one machine it brings its own PostgreSQL and Valkey; see gpuyard.local."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def main() -> None:
    # `platform/` is an import root, never a package: it must hold no __init__.py.
    sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuyard.settings.base")
    from gpuyard.local.commands import services_for_command

    with services_for_command(sys.argv):
        from django.core.management import execute_from_command_line

        execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
