"""gunicorn's settings for one machine."""

import signal
from typing import Any

from gpuyard.local.processes import die_with_parent

graceful_timeout = 5
control_socket_disable = True


def post_fork(server: Any, worker: Any) -> None:
    """gunicorn's workers notice a killed master only after a while; the kernel tells them at once."""
    die_with_parent(signal.SIGKILL, parent=server.pid)()
