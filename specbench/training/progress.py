"""Progress of a training run: a live line on a terminal, plain lines elsewhere."""

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from specbench.measure import now


class Progress:
    """Shows step, loss, tokens a second and the time left."""

    def __init__(self, steps: int, done: int, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._steps = steps
        self._since: tuple[int, float] | None = None
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
        text = (
            f"step {step}/{self._steps}  loss {report['loss']:.3f}  "
            f"{report['tokens_per_second']:.0f} tokens/s  {self._left(step)}"
        )
        self._bar.update(self._task, completed=step, description=text)
        if not self._console.is_terminal:
            self._console.print(text, highlight=False, soft_wrap=True)

    def _left(self, step: int) -> str:
        """Time left by the pace since the first report: what comes before it is warm-up."""
        if self._since is None:
            self._since = step, now()
            return "?:?? left"
        first, start = self._since
        left = round((now() - start) / (step - first) * (self._steps - step))
        return f"{left // 60}:{left % 60:02d} left"

    def note(self, figures: dict[str, Any]) -> None:
        """A line that stays, such as a validation."""
        text = "  ".join(
            f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}"
            for name, value in figures.items()
        )
        self._console.print(text, highlight=False, soft_wrap=True)


class ItemProgress:
    """Counts answered prompts: a live bar on a terminal, a line now and then elsewhere."""

    LINE_EVERY = 10.0
    """Seconds."""

    def __init__(self, total: int, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._total, self._done = total, 0
        self._start = self._shown = now()
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), console=self._console, transient=True
        )
        self._task = self._bar.add_task("starting", total=total)

    def __enter__(self) -> "ItemProgress":
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

    def advance(self, items: int, tokens: int) -> None:
        """So many items more; tokens are those of the whole run."""
        self._done += items
        seconds = now() - self._start
        left = round(seconds / self._done * (self._total - self._done))
        text = (
            f"{self._done}/{self._total}  {tokens} tokens  {tokens / seconds:.0f} tokens/s  "
            f"{left // 60}:{left % 60:02d} left"
        )
        self._bar.update(self._task, completed=self._done, description=text)
        if not self._console.is_terminal and now() - self._shown >= self.LINE_EVERY:
            self._shown = now()
            self._console.print(text, highlight=False, soft_wrap=True)
