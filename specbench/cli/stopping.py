"""Being asked to stop: SIGTERM ends a command as Ctrl-C does, with an exit code of its own."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` where the command stands when SIGTERM comes."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_code(stop: KeyboardInterrupt) -> int:
    """128 and the signal's number, as shells have it."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)
