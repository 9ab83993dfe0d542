"""Progress of a training run: a live line on a terminal, plain lines elsewhere."""

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress as Bar, TextColumn

from specbench.measure import now


class Progress:
    """Shows step, loss, tokens a second and the time left."""

    def __init__(self, steps: int, done: int, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._steps, self._first, self._start = steps, done, now()
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), console=self._console, transient=True
        )
        self._task = self._bar.add_task("starting", total=steps, completed=done)

    def __enter__(self) -> "Progress":
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def show(self, report: dict[str, Any]) -> None:
        """A report of the loop: step, loss, tokens_per_second."""
        step = report["step"]
        per_step = (now() - self._start) / max(1, step - self._first)
        left = round(per_step * (self._steps - step))
        text = (
            f"step {step}/{self._steps}  loss {report['loss']:.3f}  "
            f"{report['tokens_per_second']:.0f} tokens/s  {left // 60}:{left % 60:02d} left"
        )
        self._bar.update(self._task, completed=step, description=text)
        if not self._console.is_terminal:
            self._console.print(text, highlight=False, soft_wrap=True)

    def note(self, figures: dict[str, Any]) -> None:
        """A line that stays, such as a validation."""
        text = "  ".join(
            f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}"
            for name, value in figures.items()
        )
        self._console.print(text, highlight=False, soft_wrap=True)
