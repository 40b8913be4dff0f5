"""Runs the whole platform on one machine: servers, migrations, web, workers, beat, and what a caller adds.

Order and readiness on the way up, reverse order on the way down, and nothing left behind even after kill -9
of this process: every child has a death signal, and agents' work holds the read end of a pipe whose write end
is ours alone.
"""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpuyard.local import processes
from gpuyard.local.programs import Child, Program
from gpuyard.local.services import LocalServices, Server
from gpuyard.local.state import CHECKOUT, LocalServicesError
from gpuyard.local.terminal import Terminal

_WEB_THREADS = 8
_READY_TIMEOUT_S = 90.0
_PORT_PATIENCE_S = 3.0  # the web server of a killed supervisor needs a moment to go
_LARGEST_LOG = 20 * 1024 * 1024

_current: "Supervisor | None" = None


def current() -> "Supervisor":
    """The supervisor that manage.py opened for this command."""
    if _current is None:
        raise LocalServicesError("Run this command through manage.py: it starts the servers first.")
    return _current


@contextmanager
def opened(
    folder: Path, *, purpose: str, host: str, port: int, reset: bool = False
) -> Iterator["Supervisor"]:
    """A supervisor whose port is taken and whose servers run; stops everything at the end."""
    global _current
    supervisor = Supervisor(folder, purpose=purpose, host=host, port=port)
    try:
        supervisor.open(reset=reset)
        _current = supervisor
        yield supervisor
    finally:
        _current = None
        supervisor.stop()


class Supervisor:
    """Call `open`, `start` and `add` from threads that live as long as the platform (see processes.py)."""

    def __init__(self, folder: Path, *, purpose: str, host: str, port: int) -> None:
        self.folder = folder
        self.services = LocalServices(folder, purpose=purpose)
        self.host = host
        self.port = port
        self.environment: dict[str, str] = {}
        self.echo = True  # log lines also go to the terminal
        self._terminal = Terminal()
        self.children: list[Child] = []
        self._socket: socket.socket | None = None
        self._pipe: tuple[int, int] | None = None
        self._stopping = threading.Event()
        self._watchers: list[threading.Thread] = []
        self._changes = threading.Lock()
        self._files = threading.Lock()

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self.host in {"", "0.0.0.0"} else self.host  # noqa: S104
        return f"http://{host}:{self.port}"

    @property
    def agents(self) -> Path:
        """Where the agents started here keep their state."""
        return self.folder / "agents"

    def open(self, *, reset: bool = False) -> None:
        """Takes the port before anything starts, then starts PostgreSQL and Valkey."""
        self._socket = listen(self.host, self.port)
        self.port = self._socket.getsockname()[1]
        if reset:
            self.services.reset()
        self.environment = self.services.start(on_wait=lambda message: self.log("up", message)) | {
            "GPUYARD_COOKIE_SUFFIX": f"_{self.port}",
            "GPUYARD_URL": os.environ.get("GPUYARD_URL") or self.url,  # for links in mails
        }
        if self.host not in {"127.0.0.1", "localhost", "::1"} and "GPUYARD_ALLOWED_HOSTS" not in os.environ:
            # Asked to serve others: under which names they know this machine, we cannot tell.
            self.environment["GPUYARD_ALLOWED_HOSTS"] = "*"
        self._pipe = os.pipe()

    def start(self) -> None:
        """Migrates, starts web, workers and beat, and returns when the web server answers."""
        self.run(["migrate", "--verbosity", "0", "--skip-checks"])
        self.services.announce(url=self.url)
        for program in self._programs():
            self.add(program)
        # A thread for each server: one that takes its time to recover does not hold up the others.
        self._watchers = [threading.Thread(target=self._watch_children, name="children")]
        self._watchers += [
            threading.Thread(target=self._watch_server, args=(server,), name=server.name)
            for server in self.services.servers
        ]
        for watcher in self._watchers:
            watcher.start()
        self._wait_until_ready()

    def add(self, program: Program) -> Child:
        """Starts one more child, restarted like the others and stopped before them."""
        child = Child(program, self.log, self.folder)
        child.start()
        with self._changes:
            self.children.append(child)
        return child

    def add_agent(self, name: str, *, simulate: str, join_token: str, arguments: Sequence[str] = ()) -> Child:
        """Starts a node agent with simulated GPUs; it and the work it starts end with us.

        The token serves a node's first start only; later ones find their secret in the state folder.
        """
        assert self._pipe is not None
        reader = self._pipe[0]
        first, last = processes.free_port_range()
        argv = [sys.executable, "-m", "gpuyard_agent", "run", "--server", self.url, "--name", name]
        argv += ["--state", str(self.agents / name), "--simulate", simulate, "--ports", f"{first}-{last}"]
        # Little of our environment: an agent needs no database, and what it runs could read it there.
        env = {name: os.environ[name] for name in ("PATH", "LANG", "HOME", "TMPDIR") if name in os.environ}
        env |= {
            "PYTHONPATH": str(CHECKOUT / "agent" / "src"),
            "PYTHONUNBUFFERED": "1",
            "GPUYARD_JOIN_TOKEN": join_token,
            "GPUYARD_SUPERVISOR_FD": str(reader),
        }
        return self.add(Program(name, [*argv, *arguments], env, pass_fds=(reader,), patience_s=15))

    def run(self, arguments: Sequence[str]) -> None:
        """Runs a management command to its end."""
        answer = subprocess.run(
            [sys.executable, "-m", "django", *arguments],
            env=self.child_environment(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if answer.returncode != 0:
            raise LocalServicesError(f"`manage.py {' '.join(arguments)}` failed; see above.")

    def wait(self) -> None:
        """Returns when SIGINT or SIGTERM asks us to end."""
        asked = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: asked.set())
        while not asked.wait(1.0):
            pass

    def stop(self) -> None:
        """Stops in reverse order; repeated signals do not cut it short."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
        self._stopping.set()
        for watcher in self._watchers:
            watcher.join()
        with self._changes:
            children, self.children = self.children[::-1], []
        for child in children:
            child.ask_to_stop()
        for child in children:
            child.stop()
        self._end_work()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.services.stop()
        self._terminal.close()

    def log(self, name: str, line: str) -> None:
        with self._files:
            path = self.folder / "logs" / f"{name}.log"
            with contextlib.suppress(OSError):
                if path.exists() and path.stat().st_size > _LARGEST_LOG:
                    path.replace(path.with_suffix(".old.log"))
                with path.open("a") as file:
                    file.write(f"{line}\n")
        if self.echo:
            self._terminal.show(f"{name:<12}| {line}\n")

    def child_environment(self) -> dict[str, str]:
        # A checkout works without being installed; a wheel has no manage.py beside it.
        roots = [str(CHECKOUT), str(CHECKOUT / "platform")] if (CHECKOUT / "manage.py").is_file() else []
        path = os.pathsep.join([*roots, *filter(None, [os.environ.get("PYTHONPATH")])])
        settings = os.environ.get("DJANGO_SETTINGS_MODULE", "gpuyard.settings.base")
        return (
            dict(os.environ)
            | self.environment
            | {
                "PYTHONPATH": path,
                "DJANGO_SETTINGS_MODULE": settings,
                "GPUYARD_STATE": str(self.folder),
                "PYTHONUNBUFFERED": "1",
            }
        )

    def _programs(self) -> list[Program]:
        env = self.child_environment()
        return [self._web(env), *(_celery(name, words, env) for name, words in _CELERY.items())]

    def _web(self, env: Mapping[str, str]) -> Program:
        assert self._socket is not None
        descriptor = self._socket.fileno()
        argv = [sys.executable, "-m", "gunicorn", "gpuyard.wsgi:application", "--bind", f"fd://{descriptor}"]
        argv += ["--worker-class", "gthread", "--workers", "1", "--threads", str(_WEB_THREADS)]
        argv += ["--config", "python:gpuyard.local.gunicorn_conf", "--log-level", "warning"]
        pooled = dict(env) | {"GPUYARD_DB_POOL": str(_WEB_THREADS)}
        # SIGQUIT ends gunicorn and its workers at once.
        return Program("web", argv, pooled, death_signal=signal.SIGQUIT, pass_fds=(descriptor,))

    def _wait_until_ready(self) -> None:
        child = next(child for child in self.children if child.program.name == "web")

        def settled() -> bool:
            return child.starts > 1 or _answers(self.port)

        if not processes.wait_until(settled, timeout_s=_READY_TIMEOUT_S, pause_s=0.1) or child.starts > 1:
            raise LocalServicesError(
                f"The web server does not start; see {self.folder / 'logs' / 'web.log'}."
            )

    def _watch_children(self) -> None:
        while not self._stopping.wait(0.2):
            with self._changes:
                children = list(self.children)
            for child in children:
                child.watch()

    def _watch_server(self, server: Server) -> None:
        while not self._stopping.wait(0.2):
            if server.process is None or server.process.poll() is None:
                continue
            self.log(server.name, f"ended with {server.process.returncode}; starts again")
            try:
                started = server.restart()
            except (OSError, LocalServicesError) as problem:
                self.log(server.name, str(problem))
                started = False
            if not started:
                self.log(server.name, f"did not start; see {server.log}")
                self._stopping.wait(1.0)

    def _end_work(self) -> None:
        """Closes the pipe that agents' work holds, and sees it end."""
        if self._pipe is None:
            return
        for descriptor in self._pipe:
            os.close(descriptor)
        self._pipe = None
        if not processes.wait_until(lambda: not processes.below(self.agents), timeout_s=15, pause_s=0.1):
            for pid in processes.below(self.agents):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


# One process each, so that nothing is left when it is killed: prefork's children outlive their parent.
_CELERY = {
    "pass": ["worker", "-Q", "pass", "--pool", "solo", "-n", "pass@%h"],
    "worker": ["worker", "-Q", "default,long", "--pool", "threads", "--concurrency", "2", "-n", "worker@%h"],
    "beat": ["beat", "--pidfile="],
}


def _celery(name: str, words: list[str], env: Mapping[str, str]) -> Program:
    # Its warning about root is for servers that others use; it cannot be turned off otherwise.
    argv = [sys.executable, "-W", "ignore:You're running the worker", "-m", "celery"]
    argv += ["-A", "gpuyard.celery", "--quiet", *words, "--loglevel", "WARNING"]
    if words[0] == "worker":
        argv += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    return Program(name, argv, env)


def listen(host: str, port: int) -> socket.socket:
    """The listening socket, taken before anything starts and kept while the web server restarts."""
    deadline = time.monotonic() + _PORT_PATIENCE_S
    while True:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(128)
            return listener
        except OSError as problem:
            listener.close()
            if time.monotonic() > deadline:
                raise LocalServicesError(
                    f"Cannot serve on {host}:{port} ({problem.strerror}). Stop what uses the port, or choose "
                    "another one: make demo PORT=8001, or manage.py up --port 8001."
                ) from None
            time.sleep(0.2)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
