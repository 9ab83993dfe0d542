"""Progress of a run: a live line on a terminal, plain lines elsewhere."""

from collections.abc import Mapping
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from specbench.clock import now


class Progress:
    """A bar with the time left on a terminal while the block lasts; lines elsewhere.

    Args:
        total: steps or items to do.
        done: those of an earlier run.
        quiet: without a terminal, least seconds between two lines.
    """

    def __init__(self, total: int, done: int = 0, quiet: float = 0.0) -> None:
        self._total, self._quiet = total, quiet
        self._console = Console(stderr=True)
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), console=self._console, transient=True
        )
        self._task = self._bar.add_task("starting", total=total, completed=done)
        self._shown = now()
        self._since: tuple[int, float] | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def show(self, done: int, text: str) -> None:
        """Move the bar; without a terminal print a line."""
        text = f"{done}/{self._total}  {text}  {self._left(done)} left"
        self._bar.update(self._task, completed=done, description=text)
        if not self._console.is_terminal and now() - self._shown >= self._quiet:
            self._shown = now()
            self._print(text)

    def note(self, step: int, figures: Mapping[str, float]) -> None:
        """Print a line that stays, such as a validation."""
        values = (f"{name} {value:.4f}" for name, value in figures.items())
        self._print("  ".join([f"step {step}", *values]))

    def _left(self, done: int) -> str:
        """Time left by the pace since the first call; what came before is warm-up."""
        if self._since is None:
            self._since = done, now()
            return "?:??"
        first, start = self._since
        seconds = (now() - start) / (done - first) * (self._total - done)
        return "{}:{:02d}".format(*divmod(round(seconds), 60))

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)
