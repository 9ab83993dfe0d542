"""What a person sees during a run: a bar on a terminal, plain lines elsewhere."""

from collections import defaultdict
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from specbench.clock import now
from specbench.records.records import Cell, Sample, is_broken
from specbench.report.labels import cell_labels
from specbench.run.runner import Observer
from specbench.stats.metrics import pooled_aal, speedup


class Figures:
    """Running AAL and speedup of every cell, from all samples seen so far.

    A sample counts for the speedup once it is judged; a cell with a broken one shows no speedup.
    """

    def __init__(self, cells: list[Cell], samples: list[Sample]) -> None:
        self.labels = cell_labels(cells)
        self._baseline = {cell.suite: cell.id for cell in cells if cell.role == "baseline"}
        self._samples: dict[str, dict[tuple[str, int], Sample]] = defaultdict(dict)
        for sample in samples:
            self.add(sample)

    def add(self, sample: Sample) -> None:
        """Count a sample, or replace what was known of it."""
        self._samples[sample.cell][sample.sample, sample.turn] = sample

    def text(self, cell: Cell) -> str:
        """ "AAL 3.21, 1.84x" or "AAL 3.21, broken"; figures that are not known yet are left out."""
        if cell.role == "baseline":
            return "baseline"
        samples = list(self._samples[cell.id].values())
        aal = pooled_aal(samples).value
        shown = [] if aal is None else [f"AAL {aal:.2f}"]
        if any(is_broken(sample) for sample in samples):
            return ", ".join([*shown, "broken"])
        baseline = list(self._samples[self._baseline[cell.suite]].values())
        ratio = speedup(baseline, [sample for sample in samples if sample.verdict]).value
        return ", ".join(shown if ratio is None else [*shown, f"{ratio:.2f}x"])


class Display(Observer):
    """Keeps the running figures of a run; a subclass shows them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def begins(self, cells: list[Cell], samples: list[Sample], total: int) -> None:
        self.figures = Figures(cells, samples)

    def measured(self, cell: Cell, sample: Sample) -> None:
        self.figures.add(sample)

    def judged(self, cell: Cell, sample: Sample) -> None:
        self.figures.add(sample)

    def failure(self, cell: Cell, sample: Sample) -> str:
        """One line about a failed sample."""
        label = self.figures.labels[cell.id]
        return f"FAILED {label} on {cell.suite}, {sample.sample}: {sample.error}"


class Bar(Display):
    """A live line: cell, prompt, running figures, how much is done and how long the rest takes."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
            auto_refresh=False,  # A refresh thread would disturb the measurements.
        )
        self._task = self._progress.add_task("loading", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def begins(self, cells: list[Cell], samples: list[Sample], total: int) -> None:
        super().begins(cells, samples, total)
        self._progress.reset(self._task, total=total, completed=len(samples))

    def measuring(self, cell: Cell, prompt: str, turn: int) -> None:
        label = self.figures.labels[cell.id]
        where = f"{label} on {cell.suite}, {prompt}" + (f" turn {turn}" if turn > 1 else "")
        figures = self.figures.text(cell)
        text = where + (f" ({figures})" if figures else "")
        self._progress.update(self._task, description=text, refresh=True)

    def measured(self, cell: Cell, sample: Sample) -> None:
        super().measured(cell, sample)
        self._progress.advance(self._task)
        if sample.error is not None:
            self._progress.print(self.failure(cell, sample), markup=False)


class Lines(Display):
    """One line per answer, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def begins(self, cells: list[Cell], samples: list[Sample], total: int) -> None:
        super().begins(cells, samples, total)
        self._total = total
        self._before = self._done = len(samples)
        self._start = now()

    def measured(self, cell: Cell, sample: Sample) -> None:
        super().measured(cell, sample)
        self._done += 1
        left = (now() - self._start) / (self._done - self._before) * (self._total - self._done)
        figures = self.failure(cell, sample) if sample.error else self.figures.text(cell)
        where = f"{self.figures.labels[cell.id]} {cell.suite} {sample.sample}.{sample.turn}"
        line = f"[{self._done}/{self._total}] {where}: {figures} ({duration(left)} left)"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def display(console: Console) -> Display:
    """A bar on a terminal, plain lines elsewhere."""
    return Bar(console) if console.is_terminal else Lines(console)


def duration(seconds: float) -> str:
    """ "45s", "12m 5s" or "3h 7m"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {rest}s" if minutes else f"{rest}s"
