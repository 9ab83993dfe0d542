"""Arms: what answers a turn in a comparison. The arms here are drafters in our own loop."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import torch

from specbench.clock import EnergyMeter, PhaseProbe
from specbench.core.decode import Decoding
from specbench.core.drafter import Drafter, Unbound
from specbench.core.rules import Rule
from specbench.core.sampling import Sampling
from specbench.core.target import Target
from specbench.errors import UserError
from specbench.inputs import chat, registry
from specbench.inputs.devices import torch_dtype
from specbench.inputs.plan import Plan, PlannedArm
from specbench.records.environment import model_id
from specbench.records.records import Cell, ModelId
from specbench.run.measure import Answer, timed_answer
from specbench.run.turns import Turn

WARM_UP_TOKENS = 16
Result = TypeVar("Result")


@dataclass(frozen=True)
class TracedAnswer:
    """An answer decoded under a probe: seconds by phase, and joules if they can be read."""

    answer: Answer
    seconds: dict[str, float]
    joules: float | None


class Arm(Protocol):
    """One column of a comparison: something that answers a turn.

    Attributes:
        cells: one cell per suite, in the plan's order.
        same_text: whether its text must equal the baseline's, token for token.
    """

    @property
    def cells(self) -> tuple[Cell, ...]: ...
    @property
    def same_text(self) -> bool: ...

    def prepare(self, turn: Turn) -> None:
        """Do untimed work before an answer, such as a warm-up."""

    def answer(self, turn: Turn) -> Answer:
        """Answer a turn, and time it."""
        ...

    def trace(self, turn: Turn) -> TracedAnswer:
        """Answer a turn under a probe; the seconds are never used for a speedup."""
        ...


@dataclass
class DrafterArm:
    """A drafter in our own loop; see `Arm`.

    Attributes:
        target: the model.
        drafter: the drafter, bound to the target, or an `Unbound`.
        cells: one cell per suite, in the plan's order.
        sampling: how the output tokens are drawn.
        depth: the most levels of a proposal; None means no limit but the budget.
        is_warm: whether the arm has decoded something in this process.
    """

    target: Target
    drafter: Drafter
    cells: tuple[Cell, ...]
    sampling: Sampling
    depth: int | None = None
    is_warm: bool = False

    @property
    def rule(self) -> Rule:
        """The acceptance rule that is used at this sampling."""
        return self.drafter.rule.at(self.sampling)

    @property
    def same_text(self) -> bool:
        return self.rule.same_text

    @property
    def bound(self) -> Drafter:
        """The bound drafter.

        Raises:
            UserError: the drafter could not be bound; the message gives the reason.
        """
        if isinstance(self.drafter, Unbound):
            name, reason = self.cells[0].drafter, describe(self.drafter.error)
            raise UserError(f"The drafter {name!r} cannot be loaded: {reason}.")
        return self.drafter

    def prepare(self, turn: Turn) -> None:
        """Warm up once, so that kernels, buffers and caches exist; then let a control prepare."""
        if not self.is_warm:
            self.answer(replace(turn, budget=WARM_UP_TOKENS))
            self.is_warm = True
        if self.drafter.role == "control":
            decoding = Decoding(
                self.target, self.drafter, turn.prompt, turn.budget, **self._settings(turn)
            )
            self.drafter.prepare(turn.prompt, decoding.request)

    def answer(self, turn: Turn) -> Answer:
        return self._answer(turn, None)

    def trace(self, turn: Turn) -> TracedAnswer:
        probe, meter = PhaseProbe(self.target.device), EnergyMeter(self.target.device)
        answer = self._answer(turn, probe)
        joules = meter.joules()
        seconds = probe.seconds
        seconds["rest"] = max(0.0, answer.decode_seconds - sum(seconds.values()))
        return TracedAnswer(answer, seconds, joules)

    def _settings(self, turn: Turn) -> dict[str, Any]:
        """Return the settings of the `Decoding` of a turn."""
        return {"sampling": self.sampling, "seed": turn.seed, "depth": self.depth}

    def _answer(self, turn: Turn, probe: PhaseProbe | None) -> Answer:
        settings = self._settings(turn)
        return timed_answer(
            self.target, self.drafter, turn.prompt, turn.budget, **settings, probe=probe
        )


def attempt(action: Callable[[], Result], otherwise: Callable[[Exception], Result]) -> Result:
    """Return the result of ``action``, or ``otherwise(error)`` if it raises an error.

    This is the only place where failures are caught. The run continues afterwards, so the memory
    that the failed action held is freed.
    """
    try:
        return action()
    except Exception as error:  # noqa: BLE001 (an error of a drafter fails its own sample only)
        result = otherwise(error.with_traceback(None))
    # Only now are the frames gone that held memory which the next sample may need.
    gc.collect()
    torch.cuda.empty_cache()
    return result


def describe(error: Exception) -> str:
    """Describe an error by kind and text, for a record."""
    return f"{type(error).__name__}: {error}"


def load(plan: Plan) -> tuple[Target, list[DrafterArm]]:
    """Load the target, and bind every arm to it; the baseline comes first.

    Raises:
        UserError: a model cannot be loaded or does not fit.
    """
    if plan.threads is not None:
        torch.set_num_threads(plan.threads)
    target = Target.load(
        plan.target, device=plan.device, dtype=torch_dtype(plan.dtype), revision=plan.revision
    )
    if target.tokenizer is None:
        raise UserError(
            f"The target {plan.target!r} has no tokenizer:",
            "put the tokenizer's files beside the weights.",
        )
    identity = model_id(plan.target, plan.revision)
    return target, [_bind(plan, planned, target, identity) for planned in plan.arms]


def _bind(plan: Plan, planned: PlannedArm, target: Target, identity: ModelId) -> DrafterArm:
    """Bind one drafter. A UserError propagates; any other error fails this drafter's cells only."""
    drafter = attempt(partial(_bound, planned, target), _unbound)
    kind: type[Drafter] = registry.load(planned.name)
    rule, draft = drafter.rule.at(plan.sampling), planned.draft_model
    draft_id = model_id(draft, planned.options.revision) if draft else None
    cells = [
        Cell(
            **plan.cell_settings(planned, suite),
            target=identity,
            role=kind.role,
            draft_model=draft_id,
            width=drafter.width,
            rule="none" if kind.role == "baseline" else rule.name,
            lossless=rule.lossless,
            attention=target.attention,
            template=chat.template_hash(target.tokenizer),
            thinking=chat.thinking_mode(target.tokenizer, plan.thinking),
            details=drafter.details,
        )
        for suite in plan.suites
    ]
    if isinstance(drafter, Unbound):
        cells = [cell.asked for cell in cells]
    return DrafterArm(target, drafter, tuple(cells), plan.sampling)


def _bound(planned: PlannedArm, target: Target) -> Drafter:
    drafter = planned.make()
    if not isinstance(drafter.rule, Rule):
        raise UserError(
            f"The drafter {planned.name!r} hands over {drafter.rule!r} as its acceptance rule:",
            "it must be a specbench.api.Rule, such as WALK or REJECT.",
        )
    drafter.bind(target.view())
    return drafter


def _unbound(error: Exception) -> Drafter:
    if isinstance(error, UserError):
        raise error
    return Unbound(error)
