"""The one error a person can cause; everything else is a bug and keeps its traceback."""


class UserError(Exception):
    """A wrong input: one sentence that says what, where, and what would be right (exit code 2)."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message} {hint}")
        self.message = message
        self.hint = hint
