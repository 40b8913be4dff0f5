"""One Valkey (or Redis) server on 127.0.0.1 for this machine."""

import os
import signal
import subprocess
from pathlib import Path

import redis

from gpuyard.local import binaries, processes
from gpuyard.local.state import LocalServicesError, secret, server_user

_ATTEMPTS = 3


class ValkeyServer:
    """Keeps its port over restarts, so that URLs handed out stay right."""

    name = "valkey"

    def __init__(self, state: Path) -> None:
        self._state = state
        self._user = server_user()
        self._program = binaries.valkey(state, self._user)
        self._home = state / "valkey"
        self.log = state / "logs" / "valkey.log"
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://:{secret(self._state, 'valkey')}@127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        return {"REDIS_URL": self.url}

    def start(self) -> None:
        for _attempt in range(_ATTEMPTS):
            self.port = self.port or processes.free_port()
            if self.restart():
                return
            self.stop()
            self.port = 0  # somebody took it between our look and its start
        raise LocalServicesError(f"Valkey does not start. See {self.log}.")

    def restart(self) -> bool:
        """Starts it on the same port; False if it does not come up."""
        self.log.parent.mkdir(mode=0o700, exist_ok=True)
        with self.log.open("ab") as output:
            self.process = processes.spawn(
                [self._program, self._configuration()],
                user=self._user,
                death_signal=signal.SIGTERM,
                output=output,
            )
        process = self.process
        processes.wait_until(lambda: process.poll() is not None or self._is_ours(process.pid), timeout_s=20)
        return process.poll() is None

    def stop(self) -> None:
        if self.process is not None:
            processes.stop(self.process, signal.SIGTERM, patience_s=10)
            self.process = None

    def _configuration(self) -> Path:
        """A file, not arguments: everybody can read those, and the password is in here."""
        self._home.mkdir(exist_ok=True)
        path = self._home / "valkey.conf"
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(
                f"bind 127.0.0.1\nport {self.port}\ndir {self._home}\n"
                f"requirepass {secret(self._state, 'valkey')}\n"
                'appendonly yes\nsave ""\nmaxmemory-policy noeviction\n'  # a broker must not forget
            )
        if self._user is not None:
            for owned in (self._home, path):
                os.chown(owned, self._user.uid, self._user.gid)
        self._home.chmod(0o700)
        return path

    def _is_ours(self, pid: int) -> bool:
        try:
            with redis.Redis.from_url(self.url, socket_timeout=1, retry=None) as client:
                info = client.info("server")
        except redis.RedisError:
            return False
        return isinstance(info, dict) and int(info["process_id"]) == pid
