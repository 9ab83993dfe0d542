"""The one error that a user can cause; any other error is a bug and keeps its traceback."""

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """A wrong input; the message says what is wrong, where, and what to do (exit code 2)."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message} {hint}")
        self.message = message
        self.hint = hint


@contextmanager
def writing(what: object, done: str = "written") -> Iterator[None]:
    """Turn an error of the file system into a `UserError`: "WHAT cannot be written: why"."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{what} cannot be {done}: {error.strerror}.") from error
