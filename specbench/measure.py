"""The only module that reads a clock."""

import time


def now() -> float:
    """Monotonic seconds since an arbitrary start."""
    return time.perf_counter()
