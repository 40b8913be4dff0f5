"""`manage.py up` as a whole: readiness, restarts, and nothing left behind."""

import fcntl
import os
import signal
import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.local.running import eventually, manage, process_named, processes_of, up

CREATE = "from gpuyard.core.models import User; User.objects.create(username='kept')"
COUNT = "from gpuyard.core.models import User; print('users', User.objects.filter(username='kept').count())"


def _serves(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _counts(state: Path) -> bool:
    return "users 1" in manage(state, "shell", "--no-imports", "-c", COUNT).stdout


def _comes_back(state: Path, part: str, victim: int) -> bool:
    def claim() -> bool:
        return any(part in command and pid != victim for pid, command in processes_of(state).items())

    return eventually(claim)


def _complains(state: Path) -> int:
    """Takes the broker away once more; the length of what the workers have said so far."""
    victim = process_named(state, "valkey-server")
    os.kill(victim, signal.SIGKILL)
    assert _comes_back(state, "valkey-server", victim)
    logs = [state / "logs" / f"{name}.log" for name in ("pass", "worker", "beat")]
    return sum(log.stat().st_size for log in logs if log.exists())


def test_kill_9_of_anything_loses_nothing_and_leaves_nothing(state: Path) -> None:
    with up(state) as (supervisor, address):
        assert _serves(address)
        made = manage(state, "shell", "--no-imports", "-c", CREATE)  # finds the running instance
        assert made.returncode == 0, made.stderr
        for part in ("bin/postgres", "valkey-server", "gunicorn", "-Q pass", "beat"):
            victim = process_named(state, part)
            os.kill(victim, signal.SIGKILL)
            assert _comes_back(state, part, victim), part
        assert eventually(lambda: _serves(address))
        assert eventually(lambda: _counts(state))
        supervisor.kill()
        supervisor.wait()
        assert eventually(lambda: not processes_of(state)), processes_of(state)

    with up(state) as (supervisor, address):
        assert _counts(state)
        supervisor.send_signal(signal.SIGINT)
        assert supervisor.wait(60) == 0
        assert not processes_of(state)


def test_a_paused_terminal_stops_nothing(state: Path) -> None:
    with up(state) as (supervisor, address):
        assert supervisor.stdout is not None
        fcntl.fcntl(supervisor.stdout, fcntl.F_SETPIPE_SZ, 4096)  # nobody reads it from here on
        assert eventually(lambda: _complains(state) > 4 * 4096)
        victim = process_named(state, "bin/postgres")
        os.kill(victim, signal.SIGKILL)
        assert _comes_back(state, "bin/postgres", victim)
        assert eventually(lambda: _serves(address))
        supervisor.send_signal(signal.SIGINT)
        assert supervisor.wait(60) == 0


def test_a_taken_port_is_told_before_anything_starts(state: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = manage(state, "up", "--port", str(port))
    assert answer.returncode == 1
    assert f"Cannot serve on 127.0.0.1:{port}" in answer.stderr
    assert "choose another one" in answer.stderr
    assert not list(state.glob("pg*"))


def test_a_command_brings_its_own_database_and_stops_it(state: Path) -> None:
    answer = manage(state, "showmigrations", "core", "--database", "owner")
    assert answer.returncode == 0, answer.stderr
    assert "[ ] 0001_initial" in answer.stdout
    assert not processes_of(state)


def test_help_and_checks_start_nothing(state: Path) -> None:
    for arguments in (["help"], ["check"], ["migrate", "--help"]):
        assert manage(state, *arguments).returncode == 0
    assert not list(state.glob("pg*"))


def test_commands_beside_one_another_share_the_servers(state: Path) -> None:
    wait = "import time; time.sleep({}); from django.db import connection as c; c.ensure_connection(); print('fine')"
    with ThreadPoolExecutor() as pool:
        # Whoever starts the servers ends first: it must wait for the others before it stops them.
        runs = [pool.submit(manage, state, "shell", "--no-imports", "-c", wait.format(s)) for s in (0, 2, 4)]
        answers = [run.result() for run in runs]
    assert [answer.stdout.strip() for answer in answers] == ["fine"] * 3, [a.stderr for a in answers]
    assert not processes_of(state)
