"""Python's cycle collector, paused while a pass makes objects by the hundred thousand.

Nearly all of them live until the pass ends, so each look at them is a look for nothing: a tenth of a full pass.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """What is unreachable is still freed at once, but for cycles: those wait until the outermost pause ends."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
