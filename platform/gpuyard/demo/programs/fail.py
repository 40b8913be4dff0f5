"""Fails on purpose, with exit code 3, after saying why: to see what a failed run looks like."""

from __future__ import annotations

import sys
import time


def main() -> int:
    print("loading the data set", flush=True)
    time.sleep(2)
    print("error: /data/labels.csv has 9,999 rows, 10,000 were expected", file=sys.stderr, flush=True)
    return 3


if __name__ == "__main__":
    raise SystemExit(main())
