"""The shim with real programs, real signals and nothing in between."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard_agent import clock, files, proc, records, runner
from gpuyard_agent.shim import SUPERVISOR_VARIABLE
from tests.agent.conftest import Eventually

PACKAGE_ROOT = str(Path(runner.__file__).parents[2])
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
# forks twice and leaves its session, as daemons do; the orphan ignores SIGTERM
ORPHAN = (
    "import os, sys, time, signal\n"
    "if os.fork(): sys.exit(0)\n"
    "os.setsid()\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "if os.fork(): os._exit(0)\n"
    "open('orphan', 'w').write(str(os.getpid()))\n"
    "time.sleep(60)\n"
)


class ShimUnderTest:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.replica = f"shim-test-{uuid.uuid4()}"  # its own: tests run side by side and end what carries it
        self.process: subprocess.Popen[bytes] | None = None
        for name in (records.LOG_FOLDER, records.WORK_FOLDER):
            (folder / name).mkdir(parents=True)

    def start(self, argv: list[str], *, supervisor: int | None = None, **changes: Any) -> None:
        launch = {
            "argv": argv, "env": {"PATH": os.environ["PATH"], "GPUYARD_REPLICA": self.replica},
            "working_dir": str(self.folder / "work"), "temporary_dir": "/tmp", "time_limit_s": None, "grace_s": 0.5,
            "on_disconnect": "keep", "lease_file": str(self.folder / "lease.json"), "lease_deadline_s": 0.0,
            "spool_bytes": 1_000_000,
        }  # fmt: skip
        files.write_json(str(self.folder / records.LAUNCH_FILE), launch | changes)
        variables = {
            "PYTHONPATH": PACKAGE_ROOT,
            SUPERVISOR_VARIABLE: "" if supervisor is None else str(supervisor),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-P", "-m", "gpuyard_agent.shim", str(self.folder)],
            env=variables,
            pass_fds=() if supervisor is None else (supervisor,),
        )

    def stop(self, grace_s: float) -> None:
        files.write_json(str(self.folder / records.STOP_FILE), {"grace_s": grace_s})
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def ended(self) -> Any:
        assert self.process is not None
        assert self.process.wait(timeout=15) == 0
        exit_record = self.exit()
        assert exit_record["clean"]
        assert not self.processes()
        return exit_record

    def exit(self) -> Any:
        return files.read_json(str(self.folder / records.EXIT_FILE))

    def runs(self) -> bool:
        return (self.folder / records.CHILD_FILE).exists()

    def processes(self) -> list[proc.ProcStat]:
        return [
            stat
            for stat in proc.with_environment(f"GPUYARD_REPLICA={self.replica}", proc.all_stats())
            if not stat.is_gone
        ]

    def output(self, stream: str = "stdout") -> str:
        return "".join(path.read_text() for path in sorted((self.folder / "logs").glob(f"{stream}.*")))


def python(program: str) -> list[str]:
    return [sys.executable, "-S", "-c", program]


@pytest.fixture
def shim(tmp_path: Path) -> Iterator[ShimUnderTest]:
    made = ShimUnderTest(tmp_path / "replica")
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait()
    proc.signal_all(made.processes(), signal.SIGKILL)


def test_reports_the_exit_code(shim: ShimUnderTest) -> None:
    shim.start(["sh", "-c", "echo out; echo err >&2; exit 3"])
    ended = shim.ended()
    assert (ended["reason"], ended["exit_code"], ended["signal"]) == ("exited", 3, None)
    assert (shim.output("stdout"), shim.output("stderr")) == ("out\n", "err\n")


def test_its_temporary_folder_goes_with_the_last_process(shim: ShimUnderTest, tmp_path: Path) -> None:
    temporary = tmp_path / "gpuyard-temporary"
    temporary.mkdir()
    shim.start(
        ["sh", "-c", f"mkdir {temporary}/deep; touch {temporary}/deep/file"], temporary_dir=str(temporary)
    )
    assert shim.ended()["exit_code"] == 0
    assert not temporary.exists()


def test_a_folder_of_another_name_is_never_taken_for_a_temporary_one(
    shim: ShimUnderTest, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    shim.start(["true"], temporary_dir=str(precious))
    shim.ended()
    assert precious.exists()


def test_reports_the_signal(shim: ShimUnderTest) -> None:
    shim.start(["sh", "-c", "kill -SEGV $$"])
    ended = shim.ended()
    assert (ended["reason"], ended["exit_code"], ended["signal"]) == ("signal", None, signal.SIGSEGV)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"argv": ["no-such-program"]}, "command no-such-program: No such file or directory"),
        ({"argv": ["/etc/passwd"]}, "command /etc/passwd: Permission denied"),
        ({"argv": ["a\0b"]}, "command a\ufffdb: execve: embedded null character"),
        ({"working_dir": "/no/such/folder"}, "working_dir /no/such/folder: No such file or directory"),
        ({"argv": ["x" * 70_000]}, "…" + "x" * 30 + ": File name too long"),
    ],
)
def test_says_why_it_did_not_start(shim: ShimUnderTest, changes: dict[str, Any], said: str) -> None:
    shim.start(changes.pop("argv", ["true"]), **changes)
    ended = shim.ended()
    assert ended["reason"] == "start_failed"
    assert said in ended["message"]
    assert len(ended["message"]) <= 400
    assert not shim.runs()


def test_the_program_gets_a_session_and_environment_of_its_own(shim: ShimUnderTest) -> None:
    shim.start(
        python(
            "import os; variables = sorted(set(os.environ) - {'LC_CTYPE'})\n"
            "print(os.getsid(0) == os.getpid(), variables, os.listdir('/proc/self/fd'))"
        )
    )
    shim.ended()
    is_leader, rest = shim.output().split(" ", 1)
    assert is_leader == "True"
    assert rest.startswith("['GPUYARD_REPLICA', 'PATH'")
    assert rest.rstrip().endswith("['0', '1', '2', '3']")  # 3 is the folder being listed


def test_ends_it_at_the_time_limit(shim: ShimUnderTest) -> None:
    shim.start(["sleep", "60"], time_limit_s=0.3)
    ended = shim.ended()
    assert (ended["reason"], ended["signal"]) == ("time_limit", signal.SIGTERM)


def test_a_polite_stop_keeps_the_exit_code(shim: ShimUnderTest, eventually: Eventually) -> None:
    shim.start(
        ["sh", "-c", "trap 'echo saved; exit 7' TERM; echo up; while true; do sleep 0.05; done"], grace_s=10
    )
    eventually(lambda: "up" in shim.output())
    shim.stop(grace_s=10)
    ended = shim.ended()
    assert (ended["reason"], ended["exit_code"]) == ("stopped", 7)
    assert "saved" in shim.output()


def test_a_bare_sigterm_is_a_stop(shim: ShimUnderTest, eventually: Eventually) -> None:
    shim.start(["sleep", "60"])
    eventually(shim.runs)
    assert shim.process is not None
    shim.process.terminate()
    assert shim.ended()["reason"] == "stopped"


def test_kills_what_ignores_the_stop_with_all_below_it(shim: ShimUnderTest, eventually: Eventually) -> None:
    family = (
        f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-S', '-c', {STUBBORN!r}])\n{STUBBORN}"
    )
    shim.start(python(family))
    eventually(lambda: shim.output().count("up") == 2)
    asked_s = time.monotonic()
    shim.stop(grace_s=0.5)
    ended = shim.ended()
    assert (ended["reason"], ended["signal"]) == ("stopped", signal.SIGKILL)
    assert 0.5 <= time.monotonic() - asked_s < 5


def test_a_second_stop_can_be_more_urgent(shim: ShimUnderTest, eventually: Eventually) -> None:
    shim.start(python(STUBBORN))
    eventually(lambda: "up" in shim.output())
    shim.stop(grace_s=60)
    time.sleep(0.05)
    shim.stop(grace_s=0)
    assert shim.ended()["signal"] == signal.SIGKILL


def test_an_orphan_keeps_it_unclean_until_it_is_gone(shim: ShimUnderTest, eventually: Eventually) -> None:
    shim.start(python(ORPHAN), grace_s=1.5)
    eventually(lambda: shim.exit() is not None and (shim.folder / "work" / "orphan").exists())
    assert shim.exit()["exit_code"] == 0
    assert not shim.exit()["clean"]
    orphan = proc.read_stat(int((shim.folder / "work" / "orphan").read_text()))
    assert shim.process is not None
    assert orphan is not None
    assert orphan.parent == shim.process.pid
    assert shim.ended()["reason"] == "exited"


def test_stops_when_the_lease_runs_out(shim: ShimUnderTest, eventually: Eventually) -> None:
    now_s = clock.now_s()
    shim.start(["sleep", "60"], on_disconnect="stop", lease_deadline_s=now_s + 0.3)
    lease = {"deadline_s": now_s + 1.5, "boot_id": clock.boot_id()}
    files.write_json(str(shim.folder / "lease.json"), lease)
    ended = shim.ended()
    assert ended["reason"] == "lease"
    assert ended["ended_s"] >= now_s + 1.5  # extended by the file


def test_keeps_on_without_a_lease_where_policy_says_so(shim: ShimUnderTest) -> None:
    shim.start(["sh", "-c", "sleep 1.2"], on_disconnect="keep", lease_deadline_s=clock.now_s() - 1)
    assert shim.ended()["reason"] == "exited"


def test_ends_with_the_supervisor(shim: ShimUnderTest, eventually: Eventually) -> None:
    reader, writer = os.pipe()
    shim.start(["sleep", "60"], supervisor=reader)
    os.close(reader)
    eventually(shim.runs)
    os.close(writer)
    ended = shim.ended()
    assert (ended["reason"], ended["message"]) == ("stopped", "the local supervisor ended")


def test_the_program_dies_with_the_shim(shim: ShimUnderTest, eventually: Eventually) -> None:
    shim.start(python(STUBBORN))
    eventually(lambda: "up" in shim.output())
    assert shim.process is not None
    shim.process.kill()
    eventually(lambda: not shim.processes())
    assert shim.exit() is None


def test_a_replica_starts_at_most_once(shim: ShimUnderTest) -> None:
    shim.start(["sh", "-c", "echo once"])
    shim.ended()
    again = subprocess.run(
        [sys.executable, "-S", "-P", "-m", "gpuyard_agent.shim", str(shim.folder)],
        env={"PYTHONPATH": PACKAGE_ROOT},
        check=False,
    )
    assert again.returncode == 0
    assert shim.output() == "once\n"


def test_a_stop_before_the_start_wins(shim: ShimUnderTest) -> None:
    files.write_json(str(shim.folder / records.STOP_FILE), {"grace_s": 1})
    shim.start(["sh", "-c", "echo never"])
    assert shim.ended()["reason"] == "stopped"
    assert shim.output() == ""


def test_output_has_a_limit(shim: ShimUnderTest) -> None:
    shim.start(python("import sys; sys.stdout.write('x' * 300_000)"), spool_bytes=100_000)
    shim.ended()
    assert 100_000 <= len(shim.output()) < 101_000
    assert "200000 bytes of output were dropped" in shim.output()


def test_imports_little() -> None:
    program = "import sys, gpuyard_agent.shim; print(len(sys.modules), 'dataclasses' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": PACKAGE_ROOT},
        capture_output=True,
        text=True,
        check=True,
    )
    module_count, has_dataclasses = result.stdout.split()
    assert int(module_count) < 90
    assert has_dataclasses == "False"
