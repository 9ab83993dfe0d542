"""Plan -> cells -> records: every prompt by every arm, each answer on disk once it is known."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

import torch

from specbench.clock import EnergyMeter, PhaseProbe
from specbench.core.drafter import Drafter, Probe
from specbench.core.target import Target
from specbench.core.verifier import SAME_TEXT
from specbench.errors import UserError
from specbench.inputs import chat, registry
from specbench.inputs.plan import Plan
from specbench.inputs.suite import Prompt
from specbench.records.environment import environment
from specbench.records.records import Cell, Manifest, Sample, Verdict, is_broken
from specbench.records.store import Key, Store
from specbench.records.traces import Trace
from specbench.run.arms import Failure, Ready, attempt, load
from specbench.run.lossless import judge, measure_tolerance
from specbench.run.measure import Timed, timed_sample, warm_up


class Observer(Protocol):
    """Somebody who watches a run."""

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


@dataclass(frozen=True)
class Ask:
    """One turn of one prompt, as every arm gets it."""

    ids: list[int]
    budget: int
    seed: int


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
    if plan.threads is not None:
        torch.set_num_threads(plan.threads)
    target, arms = load(plan)
    manifest = _manifest(plan, folder, command, arms)
    store = Store(folder, manifest)
    try:
        work = _Run(plan, target, arms, store, observer)
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


def _manifest(plan: Plan, folder: Path, command: str, arms: list[Ready]) -> Manifest:
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
    alone = {(cells[c].suite, *rest) for c, *rest in failed if cells[c].rule == "none"}
    return failed | {key for key in store.done if (cells[key[0]].suite, *key[1:]) in alone}


def sample_seed(seed: int, suite: str, prompt: str, turn: int) -> int:
    """The seed of one answer: the same for every arm, on every machine."""
    text = f"{seed}\n{suite}\n{prompt}\n{turn}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])


class _Run:
    """One pass over the plan: whatever the store lacks."""

    def __init__(
        self, plan: Plan, target: Target, arms: list[Ready], store: Store, observer: Observer
    ) -> None:
        self.plan = plan
        self.target = target
        self.arms = arms
        self.store = store
        self.observer = observer
        self._warm = False

    def _cell(self, arm: Ready, number: int) -> Cell:
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
        cells = [self._cell(arm, number) for arm in self.arms]
        keys = [(cell.id, prompt.id, turn) for cell in cells]
        if all(key in self.store.done for key in keys):
            return
        ask = attempt(lambda: self._ask(number, prompt, turn))
        for offset in range(len(self.arms)):
            place = (index + offset) % len(self.arms)
            arm, cell, key = self.arms[place], cells[place], keys[place]
            if key not in self.store.done and key not in self.store.held:
                self.observer.measuring(cell, prompt.id, turn)
                sample = self._measure(arm, cell, key, ask)
                self.observer.measured(cell, self._keep(cell, sample, ask, keys[0]))
            if keys[0] in self.store.done:
                self._release({cell.id: cell for cell in cells}, ask, keys[0])

    def untraced(self, count: int) -> list[tuple[int, Prompt, Ready]]:
        """Answers to the first turn of ``count`` prompts a suite, by suite, that lack a trace."""
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
        """The first turn of ``count`` prompts a suite, once more, under a probe."""
        for number, prompt, arm in self.untraced(count):
            ask, cell = attempt(partial(self._ask, number, prompt, 1)), self._cell(arm, number)
            if isinstance(ask, Failure):
                continue
            self.observer.measuring(cell, f"{prompt.id}, traced", 1)
            trace = attempt(partial(self._traced, arm, (cell.id, prompt.id, 1), ask))
            # What fails under the probe has answered without it: there is its record.
            if not isinstance(trace, Failure):
                self.store.trace(trace)

    def _traced(self, arm: Ready, key: Key, ask: Ask) -> Trace:
        assert not isinstance(arm.drafter, Failure), "it has answered"
        self._make_ready(arm.drafter, ask)
        probe, meter = PhaseProbe(self.target.device), EnergyMeter(self.target.device)
        timed = self._timed(arm.drafter, ask, probe)
        joules = meter.joules()
        seconds = probe.seconds
        seconds["rest"] = max(0.0, timed.decode_seconds - sum(seconds.values()))
        return Trace(
            *key,
            rounds=len(timed.rounds),
            emitted=sum(len(r.tokens) for r in timed.rounds),
            rows=sum(r.drafted + 1 for r in timed.rounds),
            seconds=seconds,
            joules=joules,
        )

    def _ask(self, number: int, prompt: Prompt, turn: int) -> Ask:
        """Earlier turns carry the baseline's answers, so that all arms are asked the same."""
        messages: list[dict[str, str]] = []
        for earlier in range(1, turn):
            answer = self.store.done[self._cell(self.arms[0], number).id, prompt.id, earlier]
            if answer.status != "ok":
                raise UserError(f"The {registry.BASELINE} answer to turn {earlier} is missing.")
            text = self.target.tokenizer.decode(answer.output, skip_special_tokens=True)
            messages += [_message("user", prompt.turns[earlier - 1]), _message("assistant", text)]
        messages.append(_message("user", prompt.turns[turn - 1]))
        suite = self.plan.suites[number]
        return Ask(
            ids=chat.encode(self.target.tokenizer, messages, self.plan.thinking),
            budget=suite.max_new_tokens,
            seed=sample_seed(self.plan.seed, suite.name, prompt.id, turn),
        )

    def _measure(self, arm: Ready, cell: Cell, key: Key, ask: Ask | Failure) -> Sample:
        if isinstance(ask, Failure):
            return Sample(*key, status="error", error=ask.text)
        if isinstance(arm.drafter, Failure):
            return Sample(*key, status="error", error=arm.drafter.text)
        self._make_ready(arm.drafter, ask)
        timed = attempt(partial(self._timed, arm.drafter, ask))
        if isinstance(timed, Failure):
            return Sample(*key, status="error", prompt_tokens=len(ask.ids), error=timed.text)
        return Sample(
            *key,
            status="ok",
            prompt_tokens=len(ask.ids),
            output=timed.output,
            finish=timed.finish,
            rounds=tuple((r.drafted, r.accepted, len(r.tokens)) for r in timed.rounds),
            prefill_seconds=timed.prefill_seconds,
            decode_seconds=timed.decode_seconds,
            peak_memory_bytes=timed.peak_memory_bytes,
        )

    def _timed(self, drafter: Drafter, ask: Ask, probe: Probe | None = None) -> Timed:
        return timed_sample(
            self.target,
            drafter,
            ask.ids,
            ask.budget,
            sampling=self.plan.sampling,
            seed=ask.seed,
            probe=probe,
        )

    def _make_ready(self, drafter: Drafter, ask: Ask) -> None:
        self._warm_up(ask)
        if drafter.rehearses:
            attempt(partial(self._timed, drafter, ask))

    def _warm_up(self, ask: Ask) -> None:
        """Once a process, every arm; one that fails here fails again where it is recorded."""
        if self._warm:
            return
        for drafter in (arm.drafter for arm in self.arms):
            if not isinstance(drafter, Failure):
                warm = partial(warm_up, self.target, drafter, ask.ids, self.plan.sampling)
                # A prompt that no arm can decode warms nothing: the next one does.
                self._warm |= not isinstance(attempt(warm), Failure)

    def _keep(self, cell: Cell, sample: Sample, ask: Ask | Failure, baseline: Key) -> Sample:
        """Store a sample, judged; without a baseline to judge it by it is held."""
        if cell.rule != "none" and sample.status == "ok":
            if baseline not in self.store.done:
                self.store.hold(sample)
                return sample
            judge_it = partial(self._verdict, cell, sample, self.store.done[baseline], ask)
            verdict = attempt(judge_it)
            if isinstance(verdict, Failure):
                verdict = Verdict("untested", reason=verdict.text)
            sample = replace(sample, verdict=verdict)
        self.store.append(sample)
        return sample

    def _release(self, cells: dict[str, Cell], ask: Ask | Failure, baseline: Key) -> None:
        """Judge what was held of this turn; a later one may wait since an earlier process."""
        for key, sample in list(self.store.held.items()):
            if key[0] in cells and key[1:] == baseline[1:]:
                cell = cells[key[0]]
                self.observer.judged(cell, self._keep(cell, sample, ask, baseline))

    def _verdict(self, cell: Cell, sample: Sample, baseline: Sample, ask: Ask | Failure) -> Verdict:
        if not cell.lossless:
            return Verdict("lossy")
        if cell.rule not in SAME_TEXT:
            reason = f"the rule {cell.rule} keeps the law, not the text: see `specbench verify`"
            return Verdict("untested", reason=reason)
        if baseline.status != "ok" or isinstance(ask, Failure):
            return Verdict("untested", reason=f"there is no {registry.BASELINE} answer")
        return judge(
            self.target,
            ask.ids,
            baseline.output,
            sample.output,
            sampling=self.plan.sampling,
            seed=ask.seed,
            tolerance=lambda: self._tolerance,
        )

    @cached_property
    def _tolerance(self) -> float:
        """Measured on the shortest of a few prompts, whatever the order of the run was."""
        few = [prompt for suite in self.plan.suites for prompt in suite.prompts[:8]]
        first = [[_message("user", prompt.turns[0])] for prompt in few]
        asked = [chat.encode(self.target.tokenizer, m, self.plan.thinking) for m in first]
        width = max(cell.width for arm in self.arms for cell in arm.cells)
        return measure_tolerance(self.target, min(asked, key=len), width)


def _message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}
