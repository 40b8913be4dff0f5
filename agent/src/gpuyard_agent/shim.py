"""The small process above each replica: `python -m gpuyard_agent.shim <replica folder>`.

It starts the program, reaps everything that the program leaves behind (it is their subreaper, so nothing can
slip away by forking twice), moves their output into the log spool, ends them when told to, and writes down
how it ended. It depends on the agent for nothing: the agent may die, be updated and come back.

It is done only when no process of the replica is left; that is what `clean` in exit.json says. If the shim
itself is killed, the kernel kills the program with it (PR_SET_PDEATHSIG) and the agent sweeps up the rest.
"""

import ctypes
import fcntl
import os
import select
import signal
import stat
import sys
from typing import Final, NoReturn

from gpuyard_agent import clock, files, proc, records
from gpuyard_agent.spool import STREAMS, SpoolWriter

SUPERVISOR_VARIABLE: Final = "GPUYARD_SUPERVISOR_FD"
SUPERVISOR_GRACE_S: Final = 2.0  # whoever pressed Ctrl-C is waiting for it
TICK_S: Final = 1.0
KILL_TICK_S: Final = 0.1
LEASE_TICK_S: Final = 0.5
READ_BYTES: Final = 64 * 1024
NAME_CHARS: Final = 60  # of a command or folder in a message

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


class Shim:
    def __init__(self, folder: str, launch: records.Launch, supervisor: int | None) -> None:
        self._folder = folder
        self._launch = launch
        self._boot_id = clock.boot_id()
        self._supervisor = supervisor
        self._poll = select.poll()
        self._wake_reader = _wake_on_signals()
        self._poll.register(self._wake_reader, select.POLLIN)
        self._spools = {
            stream: SpoolWriter(self._path(records.LOG_FOLDER), stream, launch["spool_bytes"])
            for stream in STREAMS
        }
        self._output: dict[int, SpoolWriter] = {}
        self._program = 0
        self._exec_reader = -1  # open until the program was executed, or could not be
        self._exec_error = b""
        self._exit: records.Exit | None = None
        self._ending: str | None = None  # why the shim ends the replica, once it does
        self._message = ""
        self._kill_at_s: float | None = None
        self._time_up_s: float | None = None
        self._stop_seen = (0, 0)
        self._told_to_end = False  # by a bare SIGTERM
        self._lease_read_s = 0.0
        self._lease_s = launch["lease_deadline_s"]
        if supervisor is not None:
            self._poll.register(supervisor, select.POLLIN)

    # -- its life --

    def run(self) -> None:
        if self._read_stop() is not None:
            self._remove_temporary()
            self._write_exit(reason="stopped", message="stopped before it started", clean=True)
            return
        self._start_program()
        while True:
            self._serve_descriptors()
            no_process_left = self._reap()
            if no_process_left:
                break
            self._check_reasons_to_end()
        self._finish()

    def _finish(self) -> None:
        for descriptor in list(self._output):
            self._drain(descriptor)
        for spool in self._spools.values():
            spool.close()
        self._remove_temporary()
        if self._exit is not None:
            self._exit["clean"] = True
            self._save_exit(self._exit)

    def _remove_temporary(self) -> None:
        """Here and not only by the agent, which may never come back. It is outside of the state folder."""
        import shutil  # not above: the shim pays for it at every start

        folder = self._launch["temporary_dir"]
        if os.path.basename(folder).startswith(records.TEMPORARY_PREFIX):
            shutil.rmtree(folder, ignore_errors=True)

    # -- start --

    def _start_program(self) -> None:
        pipes = {stream: os.pipe() for stream in STREAMS}
        self._exec_reader, exec_writer = os.pipe()
        self._program = os.fork()
        if self._program == 0:
            shim_pid = os.getppid()
            _become_program(self._launch, pipes["stdout"][1], pipes["stderr"][1], exec_writer, shim_pid)
        os.close(exec_writer)
        self._poll.register(self._exec_reader, select.POLLIN)
        for stream, (reader, writer) in pipes.items():
            os.close(writer)
            os.set_blocking(reader, False)
            self._poll.register(reader, select.POLLIN)
            self._output[reader] = self._spools[stream]

    def _read_exec_result(self) -> None:
        """The pipe closes by itself when the program is executed; else the reason why not comes first."""
        piece = os.read(self._exec_reader, 4096)
        self._exec_error += piece
        if piece:
            return
        self._forget_descriptor(self._exec_reader)
        self._exec_reader = -1
        if self._exec_error:
            return
        now_s = clock.now_s()
        limit_s = self._launch["time_limit_s"]
        self._time_up_s = None if limit_s is None else now_s + limit_s
        program = proc.read_stat(self._program)
        child: records.Child = {
            "pid": self._program,
            "started_ticks": program.started_ticks if program else 0,
            "started_s": now_s,
            "boot_id": self._boot_id,
        }
        files.write_json(self._path(records.CHILD_FILE), child)

    # -- wait --

    def _serve_descriptors(self) -> None:
        for descriptor, _ in self._poll.poll(self._wait_s() * 1000):
            if descriptor == self._wake_reader:
                self._told_to_end |= signal.SIGTERM in os.read(self._wake_reader, 4096)
            elif descriptor == self._exec_reader:
                self._read_exec_result()
            elif descriptor == self._supervisor:
                self._read_supervisor()
            elif descriptor in self._output:
                self._pump(descriptor)

    def _wait_s(self) -> float:
        now_s = clock.now_s()
        if self._kill_at_s is not None and now_s >= self._kill_at_s:
            return KILL_TICK_S
        deadlines = [at for at in (self._kill_at_s, self._time_up_s) if at is not None and at > now_s]
        return min([TICK_S, *(at - now_s + 0.001 for at in deadlines)])

    def _pump(self, descriptor: int) -> bool:
        """Move one piece of output; False when there is none left for now, or ever."""
        try:
            piece = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        if not piece:
            self._output.pop(descriptor)
            self._forget_descriptor(descriptor)
            return False
        self._output[descriptor].write(piece)
        return True

    def _drain(self, descriptor: int) -> None:
        while self._pump(descriptor):
            pass

    def _read_supervisor(self) -> None:
        """Nobody ever writes to this pipe: readable means that its other end, the supervisor, is gone."""
        assert self._supervisor is not None
        if os.read(self._supervisor, 1):
            return
        self._forget_descriptor(self._supervisor)
        self._supervisor = None
        self._end("stopped", min(self._launch["grace_s"], SUPERVISOR_GRACE_S), "the local supervisor ended")

    def _forget_descriptor(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        os.close(descriptor)

    # -- reap --

    def _reap(self) -> bool:
        """True when the shim, their subreaper, has no child left: then the replica has no process left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self._program:
                self._program_ended(status)

    def _program_ended(self, status: int) -> None:
        while self._exec_reader >= 0:
            self._read_exec_result()
        if self._exec_error:
            self._write_exit(reason="start_failed", message=self._exec_error.decode(errors="replace"))
        else:
            code = os.waitstatus_to_exitcode(status)
            self._write_exit(
                reason=self._ending or ("exited" if code >= 0 else "signal"),
                exit_code=code if code >= 0 else None,
                signal_number=-code if code < 0 else None,
                message=self._message,
            )
        # what it left running has no owner any more
        self._end_within(self._launch["grace_s"])
        proc.signal_all(self._processes(), signal.SIGTERM)

    # -- end --

    def _check_reasons_to_end(self) -> None:
        now_s = clock.now_s()
        stop = self._read_stop()
        if stop is not None:
            self._end("stopped", stop["grace_s"])
        elif self._told_to_end and self._stop_seen == (0, 0):
            self._end("stopped", self._launch["grace_s"])
        self._told_to_end = False
        if self._time_up_s is not None and now_s >= self._time_up_s:
            self._time_up_s = None
            self._end("time_limit", self._launch["grace_s"])
        if self._launch["on_disconnect"] == "stop" and now_s >= self._lease_deadline_s(now_s):
            self._lease_s = float("inf")
            self._end("lease", self._launch["grace_s"], "no contact with the server for as long as the lease")
        if self._kill_at_s is not None and now_s >= self._kill_at_s:
            self._kill()

    def _read_stop(self) -> records.Stop | None:
        """The agent's wish, once for each time that it was written."""
        path = self._path(records.STOP_FILE)
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        written = (status.st_mtime_ns, status.st_ino)
        if written == self._stop_seen:
            return None
        self._stop_seen = written
        stop: records.Stop | None = files.read_json(path)
        return stop

    def _lease_deadline_s(self, now_s: float) -> float:
        if now_s - self._lease_read_s < LEASE_TICK_S:
            return self._lease_s
        self._lease_read_s = now_s
        lease: records.Lease | None = files.read_json(self._launch["lease_file"])
        if lease is not None and lease["boot_id"] == self._boot_id:
            self._lease_s = max(self._lease_s, lease["deadline_s"])
        return self._lease_s

    def _end(self, reason: str, grace_s: float, message: str = "") -> None:
        self._end_within(grace_s)
        if self._ending is not None or self._exit is not None:
            return
        self._ending = reason
        self._message = message
        # before it is executed it is still our own fork, which would swallow a SIGTERM
        self._signal_group(signal.SIGKILL if self._exec_reader >= 0 else signal.SIGTERM)

    def _end_within(self, grace_s: float) -> None:
        kill_at_s = clock.now_s() + grace_s
        self._kill_at_s = kill_at_s if self._kill_at_s is None else min(self._kill_at_s, kill_at_s)

    def _kill(self) -> None:
        if self._exit is None:
            self._signal_group(signal.SIGKILL)
        proc.signal_all(self._processes(), signal.SIGKILL)

    def _signal_group(self, number: signal.Signals) -> None:
        """Only while the program is not waited for: until then its number still means this group."""
        try:
            os.killpg(self._program, number)
        except ProcessLookupError:  # it has not come as far as making its group
            os.kill(self._program, number)

    def _processes(self) -> list[proc.ProcStat]:
        return list(proc.descendants(os.getpid(), proc.all_stats()))

    # -- records --

    def _write_exit(
        self,
        *,
        reason: str,
        exit_code: int | None = None,
        signal_number: int | None = None,
        message: str = "",
        clean: bool = False,
    ) -> None:
        self._exit = {
            "exit_code": exit_code,
            "signal": signal_number,
            "reason": reason,
            "message": message,
            "ended_s": clock.now_s(),
            "boot_id": self._boot_id,
            "clean": clean,
        }
        self._save_exit(self._exit)

    def _save_exit(self, ended: records.Exit) -> None:
        if not os.path.exists(self._path(records.SHIM_FILE)):
            return  # the folder was taken away, and perhaps made anew for somebody else
        files.write_json(self._path(records.EXIT_FILE), ended, durable=True)

    def _path(self, name: str) -> str:
        return records.path_of(self._folder, name)


def _wake_on_signals() -> int:
    """SIGCHLD and SIGTERM make the poll return; what they mean is read from waitpid and from stop.json."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return reader


def _become_program(
    launch: records.Launch, stdout: int, stderr: int, exec_writer: int, shim_pid: int
) -> NoReturn:
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != shim_pid:  # it died before the line above could count
            os._exit(127)
        signal.set_wakeup_fd(-1)
        for number in (
            signal.SIGCHLD,
            signal.SIGTERM,
            signal.SIGINT,
            signal.SIGHUP,
            signal.SIGPIPE,
            signal.SIGXFSZ,
        ):
            signal.signal(number, signal.SIG_DFL)
        stdin = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
            os.dup2(source, target)
        os.chdir(launch["working_dir"])
        os.execvpe(launch["argv"][0], launch["argv"], launch["env"])  # noqa: S606  # no shell is the point
    except (OSError, ValueError) as error:
        os.write(exec_writer, _start_error(error, launch).encode(errors="replace"))
    finally:
        os._exit(127)


def _start_error(error: OSError | ValueError, launch: records.Launch) -> str:
    if isinstance(error, OSError) and error.filename == launch["working_dir"]:
        return f"working_dir {records.shortened(launch['working_dir'], NAME_CHARS)}: {error.strerror}"
    reason = error.strerror if isinstance(error, OSError) else str(error)
    named = f"command {records.shortened(launch['argv'][0], NAME_CHARS)}: {reason}"
    return records.shortened(named).replace("\0", "\ufffd")


def supervisor_descriptor() -> int | None:
    """The inherited end of the supervisor's pipe, kept from the program; None when there is none."""
    value = os.environ.get(SUPERVISOR_VARIABLE, "")
    if not value.isdigit():
        return None
    descriptor = int(value)
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return None
        os.set_inheritable(descriptor, False)
    except OSError:
        return None
    return descriptor


def main(folder: str) -> int:
    os.chdir("/")
    if os.getpgrp() != os.getpid():
        os.setsid()  # a Ctrl-C in the agent's terminal is not meant for replicas
    lock = os.open(records.path_of(folder, records.LOCK_FILE), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another shim has this replica: an agent was killed between starting it and noting so
    identity_path = records.path_of(folder, records.SHIM_FILE)
    if os.path.exists(identity_path) or os.path.exists(records.path_of(folder, records.EXIT_FILE)):
        return 0  # one had it and is gone: a replica is started at most once
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    launch: records.Launch = files.read_json(records.path_of(folder, records.LAUNCH_FILE))
    shim = Shim(folder, launch, supervisor_descriptor())
    own = proc.read_stat(os.getpid())
    assert own is not None
    identity: records.ShimIdentity = {
        "pid": own.pid,
        "started_ticks": own.started_ticks,
        "boot_id": clock.boot_id(),
    }
    files.write_json(identity_path, identity)
    shim.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
