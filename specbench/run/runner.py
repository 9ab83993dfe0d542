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


@dataclass(frozen=True)
class _Due:
    """One answer that an arm owes to one turn; ``asked`` makes the turn and may raise."""

    arm: Arm
    cell: Cell
    key: Key
    asked: Callable[[], Turn]

    def prepare(self) -> None:
        self.arm.prepare(self.asked())

    def answer(self) -> Sample:
        turn = self.asked()
        return to_sample(self.key, len(turn.prompt), self.arm.answer(turn))

    def failed(self, error: Exception) -> Sample:
        return Sample(*self.key, status="error", error=describe(error))

    def trace(self) -> Trace | None:
        turn = self.asked()
        self.arm.prepare(turn)
        traced = self.arm.trace(turn)
        rounds = traced.answer.output.rounds
        return Trace(
            *self.key,
            rounds=len(rounds),
            emitted=sum(len(r.tokens) for r in rounds),
            rows=sum(r.drafted + 1 for r in rounds),
            seconds=traced.seconds,
            joules=traced.joules,
        )


@dataclass(frozen=True)
class _Run:
    """One pass over the plan, for all that the store lacks.

    It knows no drafter, verifier or target: arms answer, ``asking`` makes the turns, and ``judge``
    compares the outputs.
    """

    plan: Plan
    arms: Sequence[Arm]
    asking: Asking
    judge: Judge
    store: Store
    observer: Observer

    def all(self) -> None:
        """Measure every answer that the store lacks."""
        cells = [self.store.cell(cell) for arm in self.arms for cell in arm.cells]
        stored = [*self.store.done.values(), *self.store.held.values()]
        self.observer.begins(cells, stored, self.plan.answers)
        for number, suite in enumerate(self.plan.suites):
            for index, prompt in enumerate(suite.prompts):
                for turn in range(1, len(prompt.turns) + 1):
                    self._turn(self._dues(number, prompt, turn), index % len(self.arms))

    def _dues(self, number: int, prompt: Prompt, turn: int) -> list[_Due]:
        """Return every arm's answer to one turn, the baseline's first."""
        cells = [self.store.cell(arm.cells[number]) for arm in self.arms]
        asked = cache(partial(self._asked, number, prompt, turn, cells[0]))
        return [
            _Due(arm, cell, (cell.id, prompt.id, turn), asked)
            for arm, cell in zip(self.arms, cells, strict=True)
        ]

    def _asked(self, number: int, prompt: Prompt, turn: int, baseline: Cell) -> Turn:
        """Make a turn; its history has the baseline's answers, so all arms get the same prompt."""
        earlier = [self.store.done[baseline.id, prompt.id, n] for n in range(1, turn)]
        for sample in earlier:
            if sample.status != "ok":
                raise UserError(f"The {baseline.drafter} answer to turn {sample.turn} is missing.")
        answers = [sample.output for sample in earlier]
        return self.asking.turn(self.plan.suites[number], prompt, turn, answers)

    def _turn(self, dues: list[_Due], start: int) -> None:
        """Let every arm answer one turn, from the arm at ``start`` on."""
        done, held = self.store.done, self.store.held
        if all(due.key in done for due in dues):
            return
        lacking = [due for due in dues if due.key not in done and due.key not in held]
        for due in lacking:
            # An arm that cannot prepare fails again when it answers, and this failure is recorded.
            attempt(due.prepare, lambda error: None)
        baseline = dues[0].key
        for due in dues[start:] + dues[:start]:
            if due in lacking:
                self.observer.measuring(due.cell, *due.key[1:])
                sample = attempt(due.answer, due.failed)
                self.observer.measured(due.cell, self._keep(due, sample, baseline))
            if baseline in done:
                for one in dues:
                    if one.key in held:
                        self.observer.judged(one.cell, self._keep(one, held[one.key], baseline))

    def _keep(self, due: _Due, sample: Sample, baseline: Key) -> Sample:
        """Judge a sample and store it; hold it if there is no baseline answer yet."""
        if due.cell.role != "baseline" and sample.status == "ok":
            if baseline not in self.store.done:
                self.store.hold(sample)
                return sample
            verdict = attempt(
                partial(self._verdict, due, sample, self.store.done[baseline]),
                lambda error: Verdict("untested", reason=describe(error)),
            )
            sample = replace(sample, verdict=verdict)
        self.store.append(sample)
        return sample

    def _verdict(self, due: _Due, sample: Sample, baseline: Sample) -> Verdict:
        if not due.cell.lossless:
            return Verdict("lossy")
        if not due.arm.same_text:
            return Verdict(
                "untested",
                reason=f"the rule {due.cell.rule} keeps the distribution, but not the text: "
                "test it with `specbench distribution`",
            )
        if baseline.status != "ok":
            return Verdict("untested", reason="there is no baseline answer")
        turn = due.asked()
        return self.judge.verdict(turn.prompt, turn.seed, baseline.output, sample.output)

    def untraced(self, count: int) -> list[_Due]:
        """Return the answers to the first turn of ``count`` prompts per suite that lack a trace."""
        answered = {sample.key for sample in self.store.done.values() if sample.status == "ok"}
        return [
            due
            for number, suite in enumerate(self.plan.suites)
            for prompt in suite.prompts[:count]
            for due in self._dues(number, prompt, 1)
            if due.key in answered - self.store.traced
        ]

    def trace(self, count: int) -> None:
        """Decode the first turn of ``count`` prompts per suite again, under a probe."""
        for due in self.untraced(count):
            self.observer.measuring(due.cell, f"{due.key[1]}, traced", 1)
            # An answer that fails only under the probe keeps its sample and has no trace.
            trace = attempt(due.trace, lambda error: None)
            if trace is not None:
                self.store.trace(trace)


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
