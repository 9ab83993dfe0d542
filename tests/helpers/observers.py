"""Observers of a run, for tests of what happened in which order."""

from __future__ import annotations

from specbench.records.records import Cell, Sample, Verdict
from specbench.run.runner import Observer


class Recorder(Observer):
    """Records the order in which samples were measured."""

    def __init__(self) -> None:
        self.order: list[tuple[str, str, int]] = []
        self.stored: list[Sample] = []
        self.verdicts: dict[tuple[str, str, int], Verdict | None] = {}

    def begins(self, cells: list[Cell], samples: list[Sample], total: int) -> None:
        self.stored = samples
        self.total = total

    def measuring(self, cell: Cell, prompt: str, turn: int) -> None:
        self.order.append((cell.drafter, prompt, turn))

    def measured(self, cell: Cell, sample: Sample) -> None:
        self.verdicts[sample.key] = sample.verdict

    def judged(self, cell: Cell, sample: Sample) -> None:
        assert self.verdicts[sample.key] is None
        self.verdicts[sample.key] = sample.verdict
