"""A development session: somebody works for a while, then leaves it open. It ends when it is stopped."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from types import FrameType


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy-seconds", type=float, default=10)
    args = parser.parse_args()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        print("session closed", flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    print("session open", flush=True)
    began, cells, total = time.monotonic(), 0, 0
    while time.monotonic() - began < args.busy_seconds:
        total = sum(number * number for number in range(300_000))
        cells += 1
    print(f"{cells} cells run, the last gave {total}; now waiting for input that does not come", flush=True)
    while True:
        time.sleep(1)


if __name__ == "__main__":
    raise SystemExit(main())
