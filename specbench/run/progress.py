"""How much of a plan its run folder already answers, and how long the rest may take."""

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
    """How far one arm is on one suite.

    Attributes:
        answers: what it has answered, by prompt id and turn; failed answers count.
        seconds: of one answer, the mean over those of the same arm on the same suite, else over
            all of the same drafter in the folder; None where there are none.
    """

    arm: PlannedArm
    suite: Suite
    answers: dict[tuple[str, int], Sample]
    seconds: float | None

    @property
    def missing(self) -> int:
        """Answers that are not there yet."""
        return self.suite.turns - len(self.answers)

    @property
    def seconds_left(self) -> float | None:
        """About how long the missing answers take; None where that is unknown."""
        if not self.missing:
            return 0.0
        return None if self.seconds is None else self.missing * self.seconds

    def has(self, prompt: Prompt) -> bool:
        """Whether every turn of a prompt is answered."""
        return all((prompt.id, turn) in self.answers for turn in range(1, len(prompt.turns) + 1))


def progress(plan: Plan, folder: Path) -> list[Progress]:
    """Every arm on every suite, suite by suite; nothing is loaded and nothing is changed.

    Raises:
        UserError: the folder's records cannot be read.
    """
    cells, samples = _stored(folder)
    found = []
    for suite in plan.suites:
        for arm in plan.arms:
            own = {cell.id for cell in cells if _is(cell, plan, arm, suite)}
            same = {cell.id for cell in cells if cell.drafter == arm.name}
            answers = [sample for sample in samples if sample.cell in own]
            known = _mean(answers)
            if known is None:
                known = _mean([sample for sample in samples if sample.cell in same])
            by_turn = {(sample.sample, sample.turn): sample for sample in answers}
            found.append(Progress(arm, suite, by_turn, known))
    return found


def _stored(folder: Path) -> tuple[list[Cell], list[Sample]]:
    if not (folder / MANIFEST).exists():
        return [], []
    samples = [sample for name in (HELD, SAMPLES) for sample in load_samples(folder, name)]
    return list(load_manifest(folder).cells.values()), samples


def _is(cell: Cell, plan: Plan, arm: PlannedArm, suite: Suite) -> bool:
    """Whether a stored cell is that of an arm on a suite, as far as a plan can tell."""
    wanted = plan.cell_settings(arm, suite)
    wanted["options"] = json.loads(json.dumps(wanted["options"]))  # As they are stored.
    return cell.target.name == plan.target and all(
        getattr(cell, key) == value for key, value in wanted.items()
    )


def _mean(samples: list[Sample]) -> float | None:
    """Mean seconds of the answers that did not fail, or None without any."""
    times = ((s.prefill_seconds, s.decode_seconds) for s in samples if s.status == "ok")
    seconds = [(prefill or 0.0) + (decode or 0.0) for prefill, decode in times]
    return fmean(seconds) if seconds else None
