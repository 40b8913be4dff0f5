"""Run as a program: the whole platform with the demo's people and nodes, on a free port, until SIGTERM.

Prints one line of JSON when everything is ready: address, team ids by name, API tokens by user name.
"""

import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
    os.environ["DJANGO_SETTINGS_MODULE"] = "gpuyard.settings.base"
    from gpuyard.local.commands import platform_services

    with platform_services(["manage.py", "up", "--port", "0"]):
        import django

        django.setup()
        _serve()


def _serve() -> None:
    from gpuyard.demo import run
    from gpuyard.demo.seed import PASSWORD, seed
    from gpuyard.local import supervisor

    running = supervisor.current()
    running.echo = False
    running.start()
    made = seed()
    run.nodes_start(running, made, say=lambda _message: None)
    facts = {
        "url": running.url,
        "password": PASSWORD,
        "teams": {name: team.public_id for name, team in made.teams.items()},
        "tokens": made.tokens,
    }
    sys.stdout.write(f"{json.dumps(facts)}\n")
    sys.stdout.flush()
    running.wait()


if __name__ == "__main__":
    main()
