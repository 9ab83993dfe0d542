"""The one error that a user can cause; any other error is a bug and keeps its traceback."""


class UserError(Exception):
    """A wrong input; the message says what is wrong, where, and what to do (exit code 2)."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message} {hint}")
        self.message = message
        self.hint = hint
