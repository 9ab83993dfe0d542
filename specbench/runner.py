"""Plan -> cells -> records: every prompt by every arm, each answer on disk once it is known."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from specbench import chat, registry, zoo
from specbench.core.drafter import Drafter
from specbench.core.target import Target
from specbench.core.verifier import RULES
from specbench.environment import environment, model_id
from specbench.errors import UserError
from specbench.lossless import judge, measure_tolerance
from specbench.measure import Timed, timed_sample, warm_up
from specbench.options import parse_options
from specbench.plan import DTYPES, Arm, Plan
from specbench.records import Cell, Manifest, ModelId, Sample, Verdict
from specbench.store import Key, Store, refuse_another_machine
from specbench.suite import Prompt, Suite


class Observer(Protocol):
    """Somebody who watches a run."""

    def begins(self, cells: list[Cell], samples: list[Sample], total: int) -> None:
        """``samples`` are those stored before; ``total`` counts them too."""

    def measuring(self, cell: Cell, prompt: str, turn: int) -> None:
        """A sample is about to be measured."""

    def measured(self, cell: Cell, sample: Sample) -> None:
        """A sample is known; its verdict may still be missing."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        failed: samples with an error.
        resumed: samples that were there before.
        finished_before: nothing was left to do.
    """

    folder: Path
    failed: int
    resumed: int
    finished_before: bool


@dataclass(frozen=True)
class Ready:
    """A drafter bound to the target, and its cell on every suite in the plan's order."""

    drafter: Drafter
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Ask:
    """One turn of one prompt, as every arm gets it."""

    ids: list[int]
    budget: int
    seed: int


@dataclass(frozen=True)
class Failure:
    """Kind and text of what went wrong with one sample."""

    text: str


Result = TypeVar("Result")


def run(plan: Plan, folder: Path, command: str, observer: Observer) -> Outcome:
    """Run ``plan`` into ``folder``, or the rest of it.

    Raises:
        UserError: a model that does not load or fit, or a folder that holds something else.
    """
    if plan.threads is not None:
        torch.set_num_threads(plan.threads)
    target, arms = load(plan)
    manifest = Manifest(
        run=folder.name,
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        cells={cell.id: cell for arm in arms for cell in arm.cells},
        environment=environment(plan.device),
    )
    store = Store(folder, manifest)
    try:
        resumed = len(store.done)
        finished = resumed == plan.answers
        if not finished:
            if not store.fresh:
                refuse_another_machine(folder, store.manifest, manifest)
            _Run(plan, target, arms, store, observer).all()
        store.finish()
    finally:
        store.close()
    failed = sum(sample.status != "ok" for sample in store.done.values())
    return Outcome(folder, failed, resumed, finished)


def load(plan: Plan) -> tuple[Target, list[Ready]]:
    """The target, and every arm bound to it with its cells; the baseline comes first.

    Raises:
        UserError: something does not load or does not fit.
    """
    target = Target.load(zoo.resolve(plan.target), device=plan.device, dtype=DTYPES[plan.dtype])
    target.name = plan.target
    if target.tokenizer is None:
        raise UserError(
            f"There is no tokenizer for the target {plan.target!r}:",
            "put its tokenizer files beside the weights.",
        )
    identity = model_id(plan.target)
    view = target.view()
    arms = []
    for arm in plan.arms:
        drafter = arm.make()
        drafter.bind(view)
        cells = tuple(_cell(plan, arm, drafter, target, identity, suite) for suite in plan.suites)
        arms.append(Ready(drafter, cells))
    return target, arms


def rule_name(name: str, drafter: Drafter, greedy: bool) -> str:
    """The acceptance rule that the verifier takes for this drafter's proposals."""
    if name == registry.BASELINE:
        return "none"
    return "reject" if drafter.samples and not greedy else "walk"


def sample_seed(seed: int, suite: str, prompt: str, turn: int) -> int:
    """The seed of one answer: the same for every arm, on every machine."""
    text = f"{seed}\n{suite}\n{prompt}\n{turn}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])


def _cell(
    plan: Plan, arm: Arm, drafter: Drafter, target: Target, identity: ModelId, suite: Suite
) -> Cell:
    rule = rule_name(arm.name, drafter, plan.sampling.greedy)
    return Cell(
        target=identity,
        drafter=arm.name,
        options=asdict(parse_options(arm.name, drafter.Options, arm.options)),
        draft_model=(
            model_id(arm.draft_model, arm.options.get("revision")) if arm.draft_model else None
        ),
        width=drafter.width,
        rule=rule,
        lossless=getattr(RULES.get(rule), "lossless", True),
        suite=suite.name,
        suite_hash=suite.sha256,
        sample_ids=tuple(prompt.id for prompt in suite.prompts),
        **asdict(plan.sampling),
        max_new_tokens=suite.max_new_tokens,
        seed=plan.seed,
        device=plan.device,
        dtype=plan.dtype,
        attention=target.attention,
        template=chat.template_hash(target.tokenizer),
        thinking=chat.thinking_mode(target.tokenizer, plan.thinking),
        details=drafter.details,
    )


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

    def all(self) -> None:
        cells = [cell for arm in self.arms for cell in arm.cells]
        stored = [*self.store.done.values(), *self.store.held.values()]
        self.observer.begins(cells, stored, self.plan.answers)
        for number, suite in enumerate(self.plan.suites):
            for index, prompt in enumerate(suite.prompts):
                for turn in range(1, len(prompt.turns) + 1):
                    self._turn(number, index, prompt, turn)

    def _turn(self, number: int, index: int, prompt: Prompt, turn: int) -> None:
        """One turn by every arm; which arm begins changes from prompt to prompt."""
        keys = [(arm.cells[number].id, prompt.id, turn) for arm in self.arms]
        if all(key in self.store.done for key in keys):
            return
        ask = _attempt(lambda: self._ask(number, prompt, turn))
        for offset in range(len(self.arms)):
            place = (index + offset) % len(self.arms)
            arm, key = self.arms[place], keys[place]
            if key not in self.store.done and key not in self.store.held:
                cell = arm.cells[number]
                self.observer.measuring(cell, prompt.id, turn)
                sample = self._measure(arm, cell, key, ask)
                self.observer.measured(cell, self._keep(cell, sample, ask, keys[0]))
            if keys[0] in self.store.done:
                self._release(number, ask, keys[0])

    def _ask(self, number: int, prompt: Prompt, turn: int) -> Ask:
        """Earlier turns carry the baseline's answers, so that all arms are asked the same."""
        messages: list[dict[str, str]] = []
        for earlier in range(1, turn):
            answer = self.store.done[self.arms[0].cells[number].id, prompt.id, earlier]
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
        self._warm_up(ask)
        timed = _attempt(lambda: self._timed(arm, ask))
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

    def _timed(self, arm: Ready, ask: Ask) -> Timed:
        return timed_sample(
            self.target,
            arm.drafter,
            ask.ids,
            ask.budget,
            sampling=self.plan.sampling,
            seed=ask.seed,
        )

    def _warm_up(self, ask: Ask) -> None:
        """Once a process, every arm; one that fails here fails again where it is recorded."""
        if self._warm:
            return
        for arm in self.arms:
            _attempt(partial(warm_up, self.target, arm.drafter, ask.ids, self.plan.sampling))
        self._warm = True

    def _keep(self, cell: Cell, sample: Sample, ask: Ask | Failure, baseline: Key) -> Sample:
        """Store a sample, judged; without a baseline to judge it by it is held."""
        if cell.rule != "none" and sample.status == "ok":
            if baseline not in self.store.done:
                self.store.hold(sample)
                return sample
            verdict = self._verdict(cell, sample, self.store.done[baseline], ask)
            sample = replace(sample, verdict=verdict)
        self.store.append(sample)
        return sample

    def _release(self, number: int, ask: Ask | Failure, baseline: Key) -> None:
        """Judge what was held; only samples of the turn at hand ever are."""
        cells = {arm.cells[number].id: arm.cells[number] for arm in self.arms}
        for sample in list(self.store.held.values()):
            self._keep(cells[sample.cell], sample, ask, baseline)

    def _verdict(self, cell: Cell, sample: Sample, baseline: Sample, ask: Ask | Failure) -> Verdict:
        if not cell.lossless:
            return Verdict("lossy")
        if cell.rule == "reject" or baseline.status != "ok" or isinstance(ask, Failure):
            return Verdict("untested")
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
        width = max(arm.drafter.width for arm in self.arms)
        return measure_tolerance(self.target, min(asked, key=len), width)


def _message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def _attempt(action: Callable[[], Result]) -> Result | Failure:
    """The boundary of one sample: whatever goes wrong inside is recorded, and the run goes on."""
    try:
        return action()
    except Exception as error:  # noqa: BLE001
        return Failure(f"{type(error).__name__}: {error}")
