"""What concerns the whole process: quiet libraries, and being asked to stop."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` at once when SIGTERM comes, as Ctrl-C raises KeyboardInterrupt."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_code(stop: KeyboardInterrupt) -> int:
    """128 plus the signal's number, as shells have it."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


def silence() -> None:
    """Keep the libraries' bars and advice away from a command's own output."""
    import logging
    import warnings

    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="transformers")
