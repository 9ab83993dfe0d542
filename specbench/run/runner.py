"""Plan -> cells -> records: every prompt by every arm, each answer on disk once it is known."""

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
    """Is told how a run goes on; this one does nothing with it."""

    def begins(self, cells: list[Cell], samples: list[Sample], total: int) -> None:
        """``samples`` are those stored before; ``total`` counts them too."""

    def measuring(self, cell: Cell, prompt: str, turn: int) -> None:
        """A sample is about to be measured."""

    def measured(self, cell: Cell, sample: Sample) -> None:
        """A sample is known; its verdict may still be missing."""

    def judged(self, cell: Cell, sample: Sample) -> None:
        """A sample whose verdict was missing has it."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        failed: samples with an error.
        broken: samples whose text is not the target's own.
        resumed: samples that were there before.
        finished_before: nothing was left to do.
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
    """Run ``plan`` into ``folder``, or the rest of it.

    With ``retry_failed``, samples that failed before are measured once more, and with a failed
    baseline all that waited for it. Wherever answers are lacking, so are those of a drafter that
    could not be bound before and now can. Then ``trace`` prompts a suite are decoded once more, to
    see where the time of a round goes; a run that lacks only some of these takes only them.

    Raises:
        UserError: a model that does not load or fit, or a folder that holds something else.
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
        # A kill in the traced pass leaves all answers, and traces to be taken.
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
    """The first prompts of every suite, whatever the order of the run is."""
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
    """Failed samples, and the answers of all arms that a failed baseline left unjudged."""
    cells = store.manifest.cells
    failed = {key for key, sample in store.done.items() if sample.status != "ok"}
    alone = {(cells[c].suite, *rest) for c, *rest in failed if cells[c].role == "baseline"}
    return failed | {key for key in store.done if (cells[key[0]].suite, *key[1:]) in alone}


class _Run:
    """One pass over the plan: whatever the store lacks.

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
        """The arm's cell on a suite, as the store knows it."""
        return self.store.cell(arm.cells[number])

    def all(self) -> None:
        """Every answer that the store lacks."""
        suites = range(len(self.plan.suites))
        cells = [self._cell(arm, number) for arm in self.arms for number in suites]
        stored = [*self.store.done.values(), *self.store.held.values()]
        self.observer.begins(cells, stored, self.plan.answers)
        for number, suite in enumerate(self.plan.suites):
            for index, prompt in enumerate(suite.prompts):
                for turn in range(1, len(prompt.turns) + 1):
                    self._turn(number, index, prompt, turn)

    def _turn(self, number: int, index: int, prompt: Prompt, turn: int) -> None:
        """One turn by every arm; which arm begins changes from prompt to prompt."""
        asked = cache(partial(self._asked, number, prompt, turn))
        cells = {self._cell(arm, number).id: (arm, self._cell(arm, number)) for arm in self.arms}
        keys = [(cell, prompt.id, turn) for cell in cells]
        lacking = [k for k in keys if k not in self.store.done and k not in self.store.held]
        if all(key in self.store.done for key in keys):
            return
        for key in lacking:
            # An arm that cannot prepare fails again where it answers, and there it is recorded.
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
        """Earlier turns carry the baseline's answers, so that all arms are asked the same."""
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
        """Store a sample, judged; without a baseline to judge it by it is held."""
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
        """Judge what was held of this turn; a later one may wait since an earlier process."""
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
                reason=f"the rule {cell.rule} keeps the distribution, not the text: "
                "`specbench distribution` tests it",
            )
        if baseline.status != "ok":
            return Verdict("untested", reason="there is no baseline answer")
        turn = asked()
        return self.judge.verdict(turn.prompt, turn.seed, baseline.output, sample.output)

    def untraced(self, count: int) -> list[tuple[int, Prompt, Arm]]:
        """Answers to the first turn of ``count`` prompts per suite, by suite, without a trace."""
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
        """The first turn of ``count`` prompts per suite, once more, under a probe."""
        for number, prompt, arm in self.untraced(count):
            cell = self._cell(arm, number)
            self.observer.measuring(cell, f"{prompt.id}, traced", 1)
            asked = partial(self._asked, number, prompt, 1)
            traced = partial(self._traced, arm, (cell.id, prompt.id, 1), asked)
            # What fails under the probe has answered without it: there is its record.
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
    """The record of an answer."""
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
