"""The one clock of agent and shims: seconds since this machine booted.

CLOCK_BOOTTIME is monotonic, the same in every process, and goes on counting while the machine is suspended,
so a lease runs out during a suspend too. It means nothing after a reboot: whatever stores it stores
`boot_id()` beside it.
"""

import time

_BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"


def now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    with open(_BOOT_ID_FILE) as boot_file:
        return boot_file.read().strip()
