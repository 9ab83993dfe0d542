"""Run a plan: every arm answers every prompt, and each answer is stored once it is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path

from specbench.errors import UserError
from specbench.inputs.plan import Plan
from specbench.inputs.suite import Prompt
from specbench.records.environment import environment
from specbench.records.records import Cell, Manifest, Sample, Verdict, is_broken
from specbench.records.store import Key, Store
from specbench.records.traces import Trace
from specbench.run.arms import Arm, attempt, describe, load
from specbench.run.lossless import Judge
from specbench.run.measure import Answer
from specbench.run.turns import Asking, Turn


class Observer:
    """Watches a run. Every method of this class does nothing."""

    def begins(self, cells: list[Cell], samples: list[Sample], total: int) -> None:
        """The run begins. ``total`` includes ``samples``, which were stored before."""

    def measuring(self, cell: Cell, prompt: str, turn: int) -> None:
        """A sample is about to be measured."""

    def measured(self, cell: Cell, sample: Sample) -> None:
        """A sample has been measured; its verdict may still be missing."""

    def judged(self, cell: Cell, sample: Sample) -> None:
        """A sample has got the verdict that was missing."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        folder: the run's folder.
        failed: number of samples with an error.
        broken: number of samples whose text is not the target's own.
        resumed: number of samples that were stored before.
        finished_before: whether nothing was left to do.
    """

    folder: Path
    failed: int
    broken: int
    resumed: int
    finished_before: bool


def run(
    plan: Plan,
    folder: Path,
    command: str,
    observer: Observer,
    *,
    retry_failed: bool = False,
    trace: int = 0,
) -> Outcome:
    """Run ``plan`` into ``folder``, or continue a run there.

    If answers are missing, a drafter that could not be bound before is tried again. After the
    answers, the missing traces are taken.

    Args:
        plan: what to measure.
        folder: the run's folder.
        command: command line, for the manifest.
        observer: is told about every sample.
        retry_failed: measure failed samples again. For a failed baseline this includes the
            samples of all other arms on the same turn.
        trace: number of prompts per suite that are decoded again under a probe.

    Raises:
        UserError: a model cannot be loaded or does not fit, or the folder holds another run.
    """
    target, arms = load(plan)
    manifest = _manifest(plan, folder, command, arms)
    store = Store(folder, manifest)
    try:
        asking = Asking(target.tokenizer, plan.thinking, plan.seed)
        width = max(cell.width for arm in arms for cell in arm.cells)
        judge = Judge(target, plan.sampling, partial(_few_prompts, plan, asking), width)
        work = _Run(plan, arms, asking, judge, store, observer)
        again = _to_retry(store) if retry_failed else set()
        lacking = plan.answers - (len(store.done) - len(again))
        # After a kill in the traced pass no answer is missing, but traces may be.
        finished = not (lacking or store.interrupted or work.untraced(trace))
        if not finished:
            store.begin(manifest)
        if lacking:
            store.forget(again)
            store.adopt(manifest)
        resumed = len(store.done)
        if not finished:
            work.all()
            work.trace(trace)
            store.finish()
    finally:
        store.close()
    return Outcome(
        folder,
        failed=sum(sample.status != "ok" for sample in store.done.values()),
        broken=sum(is_broken(sample) for sample in store.done.values()),
        resumed=resumed,
        finished_before=finished,
    )


def _few_prompts(plan: Plan, asking: Asking) -> list[list[int]]:
    """Encode the first prompts of every suite."""
    few = (replace(suite, prompts=suite.prompts[:8]) for suite in plan.suites)
    return [turn.prompt for suite in few for turn in asking.first_turns(suite)]


def _manifest(plan: Plan, folder: Path, command: str, arms: Sequence[Arm]) -> Manifest:
    return Manifest(
        run=folder.name,
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        cells={cell.id: cell for arm in arms for cell in arm.cells},
        environment=environment(plan.device),
    )


def _to_retry(store: Store) -> set[Key]:
    """Return failed samples, and the samples that a failed baseline left unjudged."""
    cells = store.manifest.cells
    failed = {key for key, sample in store.done.items() if sample.status != "ok"}
    alone = {(cells[c].suite, *rest) for c, *rest in failed if cells[c].role == "baseline"}
    return failed | {key for key in store.done if (cells[key[0]].suite, *key[1:]) in alone}


class _Run:
    """One pass over the plan, for all that the store lacks.

    It knows no drafter, verifier or target: arms answer, ``asking`` makes the turns, and ``judge``
    compares the outputs.
    """

    def __init__(
        self,
        plan: Plan,
        arms: Sequence[Arm],
        asking: Asking,
        judge: Judge,
        store: Store,
        observer: Observer,
    ) -> None:
        self.plan = plan
        self.arms = arms
        self.asking = asking
        self.judge = judge
        self.store = store
        self.observer = observer

    def _cell(self, arm: Arm, number: int) -> Cell:
        """Return the arm's cell on a suite, as the store has it."""
        return self.store.cell(arm.cells[number])

    def all(self) -> None:
        """Measure every answer that the store lacks."""
        suites = range(len(self.plan.suites))
        cells = [self._cell(arm, number) for arm in self.arms for number in suites]
        stored = [*self.store.done.values(), *self.store.held.values()]
        self.observer.begins(cells, stored, self.plan.answers)
        for number, suite in enumerate(self.plan.suites):
            for index, prompt in enumerate(suite.prompts):
                for turn in range(1, len(prompt.turns) + 1):
                    self._turn(number, index, prompt, turn)

    def _turn(self, number: int, index: int, prompt: Prompt, turn: int) -> None:
        """Let every arm answer one turn; each prompt starts with the next arm."""
        asked = cache(partial(self._asked, number, prompt, turn))
        cells = {self._cell(arm, number).id: (arm, self._cell(arm, number)) for arm in self.arms}
        keys = [(cell, prompt.id, turn) for cell in cells]
        lacking = [k for k in keys if k not in self.store.done and k not in self.store.held]
        if all(key in self.store.done for key in keys):
            return
        for key in lacking:
            # An arm that cannot prepare fails again when it answers, and this failure is recorded.
            attempt(partial(self._prepare, cells[key[0]][0], asked), lambda error: None)
        baseline, start = keys[0], index % len(keys)
        for key in keys[start:] + keys[:start]:
            arm, cell = cells[key[0]]
            if key in lacking:
                self.observer.measuring(cell, prompt.id, turn)
                sample = attempt(partial(self._answered, arm, key, asked), partial(_failed, key))
                self.observer.measured(cell, self._keep(arm, cell, sample, asked, baseline))
            if baseline in self.store.done:
                self._release(cells, asked, baseline)

    def _prepare(self, arm: Arm, asked: Callable[[], Turn]) -> None:
        arm.prepare(asked())

    def _answered(self, arm: Arm, key: Key, asked: Callable[[], Turn]) -> Sample:
        turn = asked()
        return to_sample(key, len(turn.prompt), arm.answer(turn))

    def _asked(self, number: int, prompt: Prompt, turn: int) -> Turn:
        """Make a turn; its history has the baseline's answers, so all arms get the same prompt."""
        cell = self._cell(self.arms[0], number)
        earlier = [self.store.done[cell.id, prompt.id, n] for n in range(1, turn)]
        for sample in earlier:
            if sample.status != "ok":
                raise UserError(f"The {cell.drafter} answer to turn {sample.turn} is missing.")
        answers = [sample.output for sample in earlier]
        return self.asking.turn(self.plan.suites[number], prompt, turn, answers)

    def _keep(
        self, arm: Arm, cell: Cell, sample: Sample, asked: Callable[[], Turn], baseline: Key
    ) -> Sample:
        """Judge a sample and store it; hold it if there is no baseline answer yet."""
        if cell.role != "baseline" and sample.status == "ok":
            if baseline not in self.store.done:
                self.store.hold(sample)
                return sample
            verdict = attempt(
                partial(self._verdict, arm, cell, sample, asked, self.store.done[baseline]),
                lambda error: Verdict("untested", reason=describe(error)),
            )
            sample = replace(sample, verdict=verdict)
        self.store.append(sample)
        return sample

    def _release(
        self, cells: dict[str, tuple[Arm, Cell]], asked: Callable[[], Turn], baseline: Key
    ) -> None:
        """Judge the held samples of this turn; an earlier process may have left those of others."""
        for key, sample in list(self.store.held.items()):
            if key[0] in cells and key[1:] == baseline[1:]:
                arm, cell = cells[key[0]]
                self.observer.judged(cell, self._keep(arm, cell, sample, asked, baseline))

    def _verdict(
        self, arm: Arm, cell: Cell, sample: Sample, asked: Callable[[], Turn], baseline: Sample
    ) -> Verdict:
        if not cell.lossless:
            return Verdict("lossy")
        if not arm.same_text:
            return Verdict(
                "untested",
                reason=f"the rule {cell.rule} keeps the distribution, but not the text: "
                "test it with `specbench distribution`",
            )
        if baseline.status != "ok":
            return Verdict("untested", reason="there is no baseline answer")
        turn = asked()
        return self.judge.verdict(turn.prompt, turn.seed, baseline.output, sample.output)

    def untraced(self, count: int) -> list[tuple[int, Prompt, Arm]]:
        """Return the answers to the first turn of ``count`` prompts per suite that lack a trace."""
        return [
            (number, prompt, arm)
            for number, suite in enumerate(self.plan.suites)
            for prompt in suite.prompts[:count]
            for arm in self.arms
            if self._is_untraced((self._cell(arm, number).id, prompt.id, 1))
        ]

    def _is_untraced(self, key: Key) -> bool:
        sample = self.store.done.get(key)
        return sample is not None and sample.status == "ok" and key not in self.store.traced

    def trace(self, count: int) -> None:
        """Decode the first turn of ``count`` prompts per suite again, under a probe."""
        for number, prompt, arm in self.untraced(count):
            cell = self._cell(arm, number)
            self.observer.measuring(cell, f"{prompt.id}, traced", 1)
            asked = partial(self._asked, number, prompt, 1)
            traced = partial(self._traced, arm, (cell.id, prompt.id, 1), asked)
            # An answer that fails only under the probe keeps its sample and has no trace.
            trace = attempt(traced, lambda error: None)
            if trace is not None:
                self.store.trace(trace)

    def _traced(self, arm: Arm, key: Key, asked: Callable[[], Turn]) -> Trace | None:
        turn = asked()
        arm.prepare(turn)
        traced = arm.trace(turn)
        rounds = traced.answer.output.rounds
        return Trace(
            *key,
            rounds=len(rounds),
            emitted=sum(len(r.tokens) for r in rounds),
            rows=sum(r.drafted + 1 for r in rounds),
            seconds=traced.seconds,
            joules=traced.joules,
        )


def to_sample(key: Key, prompt_tokens: int, answer: Answer) -> Sample:
    """Make the record of an answer."""
    output = answer.output
    return Sample(
        *key,
        status="ok",
        prompt_tokens=prompt_tokens,
        output=output.tokens,
        finish=output.finish,
        rounds=tuple((r.drafted, r.accepted, len(r.tokens)) for r in output.rounds),
        prefill_seconds=answer.prefill_seconds,
        decode_seconds=answer.decode_seconds,
        peak_memory_bytes=answer.peak_memory_bytes,
    )


def _failed(key: Key, error: Exception) -> Sample:
    return Sample(*key, status="error", error=describe(error))
