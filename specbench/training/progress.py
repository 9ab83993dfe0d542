"""Progress of a training run: a live line on a terminal, plain lines elsewhere."""

from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from specbench.clock import now


class _Live:
    """A bar on a terminal while the block lasts; lines elsewhere."""

    def __init__(self, total: int, done: int, console: Console | None) -> None:
        self._console = console or Console(stderr=True)
        self._total = total
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), console=self._console, transient=True
        )
        self._task = self._bar.add_task("starting", total=total, completed=done)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def _update(self, done: int, text: str, line: bool = True) -> None:
        """Move the bar; without a terminal print the text if ``line``."""
        self._bar.update(self._task, completed=done, description=text)
        if line and not self._console.is_terminal:
            self._print(text)

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)


def _left(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} left"


class Progress(_Live):
    """Show step, loss, tokens per second and the time left."""

    def __init__(self, steps: int, done: int, console: Console | None = None) -> None:
        super().__init__(steps, done, console)
        self._since: tuple[int, float] | None = None

    def show(self, report: dict[str, Any]) -> None:
        """Show a report of the loop: step, loss, tokens_per_second."""
        step = report["step"]
        text = (
            f"step {step}/{self._total}  loss {report['loss']:.3f}  "
            f"{report['tokens_per_second']:.0f} tokens/s  {self._pace(step)}"
        )
        self._update(step, text)

    def _pace(self, step: int) -> str:
        """Time left by the pace since the first report; the steps before it are warm-up."""
        if self._since is None:
            self._since = step, now()
            return "?:?? left"
        first, start = self._since
        return _left((now() - start) / (step - first) * (self._total - step))

    def note(self, figures: dict[str, Any]) -> None:
        """Print a line that stays, such as a validation."""
        self._print(
            "  ".join(
                f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}"
                for name, value in figures.items()
            )
        )


class ItemProgress(_Live):
    """Count answered prompts; without a terminal a line only now and then."""

    LINE_EVERY = 10.0
    """Seconds."""

    def __init__(self, total: int, console: Console | None = None) -> None:
        super().__init__(total, 0, console)
        self._done = 0
        self._start = self._shown = now()

    def advance(self, items: int, tokens: int) -> None:
        """Count ``items`` more; ``tokens`` are those of the whole run."""
        self._done += items
        seconds = now() - self._start
        left = _left(seconds / self._done * (self._total - self._done))
        text = (
            f"{self._done}/{self._total}  {tokens} tokens  {tokens / seconds:.0f} tokens/s  {left}"
        )
        line = now() - self._shown >= self.LINE_EVERY
        if line:
            self._shown = now()
        self._update(self._done, text, line)
