"""What a person sees while a run is on: a bar on a terminal, plain lines elsewhere."""

from collections import defaultdict
from contextlib import AbstractContextManager

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

    A sample counts for the speedup once it is judged, and a broken one leaves its cell without.
    """

    def __init__(self, cells: list[Cell], samples: list[Sample]) -> None:
        self.labels = cell_labels(cells)
        self._baseline = {cell.suite: cell.id for cell in cells if cell.role == "baseline"}
        self._samples: dict[str, dict[tuple[str, int], Sample]] = defaultdict(dict)
        for sample in samples:
            self.add(sample)

    def add(self, sample: Sample) -> None:
        """Count a sample, or put it in the place of what was known of it."""
        self._samples[sample.cell][sample.sample, sample.turn] = sample

    def text(self, cell: Cell) -> str:
        """ "AAL 3.21, 1.84x" or "AAL 3.21, broken"; what is not known yet is left out."""
        if cell.role == "baseline":
            return "baseline"
        samples = list(self._samples[cell.id].values())
        aal = pooled_aal(samples)
        shown = [] if aal is None else [f"AAL {aal:.2f}"]
        if any(is_broken(sample) for sample in samples):
            return ", ".join([*shown, "broken"])
        baseline = list(self._samples[self._baseline[cell.suite]].values())
        ratio = speedup(baseline, [sample for sample in samples if sample.verdict])
        return ", ".join(shown if ratio is None else [*shown, f"{ratio:.2f}x"])


class Bar(Observer):
    """A live line: cell, prompt, running figures, how much is done and how long it takes."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
            auto_refresh=False,  # A refresh thread would run into the measurements.
        )
        self._task = self._progress.add_task("loading", total=None)

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def begins(self, cells: list[Cell], samples: list[Sample], total: int) -> None:
        self._figures = Figures(cells, samples)
        self._progress.reset(self._task, total=total, completed=len(samples))

    def measuring(self, cell: Cell, prompt: str, turn: int) -> None:
        label = self._figures.labels[cell.id]
        where = f"{label} on {cell.suite}, {prompt}" + (f" turn {turn}" if turn > 1 else "")
        figures = self._figures.text(cell)
        text = where + (f" ({figures})" if figures else "")
        self._progress.update(self._task, description=text, refresh=True)

    def measured(self, cell: Cell, sample: Sample) -> None:
        self._figures.add(sample)
        self._progress.advance(self._task)
        if sample.error is not None:
            label = self._figures.labels[cell.id]
            self._progress.print(failure(label, cell, sample), markup=False)

    def judged(self, cell: Cell, sample: Sample) -> None:
        self._figures.add(sample)


class Lines(Observer):
    """One line an answer, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def begins(self, cells: list[Cell], samples: list[Sample], total: int) -> None:
        self._figures = Figures(cells, samples)
        self._total = total
        self._before = self._done = len(samples)
        self._start = now()

    def measured(self, cell: Cell, sample: Sample) -> None:
        self._figures.add(sample)
        self._done += 1
        left = (now() - self._start) / (self._done - self._before) * (self._total - self._done)
        label = self._figures.labels[cell.id]
        figures = failure(label, cell, sample) if sample.error else self._figures.text(cell)
        where = f"{label} {cell.suite} {sample.sample}.{sample.turn}"
        line = f"[{self._done}/{self._total}] {where}: {figures} ({duration(left)} left)"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def judged(self, cell: Cell, sample: Sample) -> None:
        self._figures.add(sample)


def display(console: Console) -> AbstractContextManager[Bar | Lines]:
    """The display that fits where the output goes."""
    return Bar(console) if console.is_terminal else Lines(console)


def failure(label: str, cell: Cell, sample: Sample) -> str:
    """One line about a failed sample."""
    return f"FAILED {label} on {cell.suite}, {sample.sample}: {sample.error}"


def duration(seconds: float) -> str:
    """ "45s", "12m 5s" or "3h 7m"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {rest}s" if minutes else f"{rest}s"
