"""What concerns the whole process: quiet libraries, and being asked to stop."""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer


@contextmanager
def terminable(last_words: Callable[[], Iterable[str]] = tuple) -> Iterator[None]:
    """End the command at once when Ctrl-C is pressed or SIGTERM comes.

    The exit code is 128 plus the signal's number, as shells have it.

    Args:
        last_words: the lines that are then printed to stderr.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt as stopped:
        for line in last_words():
            typer.echo(line, err=True)
        number = stopped.args[0] if stopped.args else signal.SIGINT
        raise typer.Exit(128 + number) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def silence() -> None:
    """Keep the libraries' bars and advice away from a command's own output."""
    import logging
    import warnings

    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="transformers")
