"""What a person sees during a run."""

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
    """Shows how a run goes on: one live line on a terminal, one line per answer elsewhere.

    The live line names cell and prompt, running figures, how much is done, and the time left.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
            auto_refresh=False,  # A refresh thread would disturb the measurements.
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("loading", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def begins(self, cells: list[Cell], samples: list[Sample], total: int) -> None:
        self._figures = Figures(cells, samples)
        self._before = self._done = len(samples)
        self._total, self._start = total, now()
        self._bar.reset(self._task, total=total, completed=self._done)

    def measuring(self, cell: Cell, prompt: str, turn: int) -> None:
        where = f"{self._figures.labels[cell.id]} on {cell.suite}, {prompt}"
        figures = self._figures.text(cell)
        text = where + (f" turn {turn}" if turn > 1 else "") + (f" ({figures})" if figures else "")
        self._bar.update(self._task, description=text, refresh=True)

    def measured(self, cell: Cell, sample: Sample) -> None:
        self._figures.add(sample)
        self._done += 1
        self._bar.advance(self._task)
        label = self._figures.labels[cell.id]
        text = self._figures.text(cell)
        if sample.error is not None:
            text = f"FAILED {label} on {cell.suite}, {sample.sample}: {sample.error}"
        if not self._console.is_terminal:
            left = (now() - self._start) / (self._done - self._before) * (self._total - self._done)
            where = f"{label} {cell.suite} {sample.sample}.{sample.turn}"
            text = f"[{self._done}/{self._total}] {where}: {text} ({duration(left)} left)"
        if sample.error is not None or not self._console.is_terminal:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def judged(self, cell: Cell, sample: Sample) -> None:
        self._figures.add(sample)


def duration(seconds: float) -> str:
    """ "45s", "12m 5s" or "3h 7m"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {rest}s" if minutes else f"{rest}s"
