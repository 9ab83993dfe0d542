"""Which answers of a plan its run folder already holds, and how long the rest may take."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from specbench.inputs.plan import Plan, PlannedArm
from specbench.inputs.suite import Prompt, Suite
from specbench.records.records import MANIFEST, SAMPLES, Cell, Sample, load_manifest, load_samples
from specbench.records.store import HELD


@dataclass(frozen=True)
class Progress:
    """The progress of one arm on one suite.

    Attributes:
        arm: the arm.
        suite: the suite.
        answers: the stored samples by prompt id and turn; failed ones count.
        seconds: mean seconds per answer of this arm on this suite, or else of the same drafter in
            the whole folder; None if there is no answer.
    """

    arm: PlannedArm
    suite: Suite
    answers: dict[tuple[str, int], Sample]
    seconds: float | None

    @property
    def missing(self) -> int:
        """Number of answers that are missing."""
        return self.suite.turns - len(self.answers)

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds for the missing answers; None if unknown."""
        if not self.missing:
            return 0.0
        return None if self.seconds is None else self.missing * self.seconds

    def has(self, prompt: Prompt) -> bool:
        """Return whether every turn of a prompt is answered."""
        return all((prompt.id, turn) in self.answers for turn in range(1, len(prompt.turns) + 1))


def progress(plan: Plan, folder: Path) -> list[Progress]:
    """Return the progress of every arm on every suite; nothing is loaded or changed.

    Raises:
        UserError: the folder's records cannot be read.
    """
    cells, samples = _stored(folder)
    parts = []
    for suite in plan.suites:
        for arm in plan.arms:
            own = {cell.id for cell in cells if _is(cell, plan, arm, suite)}
            same = {cell.id for cell in cells if cell.drafter == arm.name}
            answers = [sample for sample in samples if sample.cell in own]
            seconds = _mean(answers)
            if seconds is None:
                seconds = _mean([sample for sample in samples if sample.cell in same])
            by_turn = {(sample.sample, sample.turn): sample for sample in answers}
            parts.append(Progress(arm, suite, by_turn, seconds))
    return parts


def _stored(folder: Path) -> tuple[list[Cell], list[Sample]]:
    if not (folder / MANIFEST).exists():
        return [], []
    samples = [sample for name in (HELD, SAMPLES) for sample in load_samples(folder, name)]
    return list(load_manifest(folder).cells.values()), samples


def _is(cell: Cell, plan: Plan, arm: PlannedArm, suite: Suite) -> bool:
    """Return whether a stored cell is the arm's cell on a suite, as far as a plan can tell."""
    wanted = plan.cell_settings(arm, suite)
    wanted["options"] = json.loads(json.dumps(wanted["options"]))  # As they are stored.
    return cell.target.name == plan.target and all(
        getattr(cell, key) == value for key, value in wanted.items()
    )


def _mean(samples: list[Sample]) -> float | None:
    """Return the mean seconds of the answers that did not fail, or None if all failed."""
    times = ((s.prefill_seconds, s.decode_seconds) for s in samples if s.status == "ok")
    seconds = [(prefill or 0.0) + (decode or 0.0) for prefill, decode in times]
    return fmean(seconds) if seconds else None
