"""A plan's drafters, bound to the target, each with its cells; one that fails fails alone."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch

from specbench import zoo
from specbench.core.drafter import Drafter
from specbench.core.target import Target
from specbench.core.verifier import RULES
from specbench.errors import UserError
from specbench.inputs import chat, registry
from specbench.inputs.options import parse_options
from specbench.inputs.plan import DTYPES, Arm, Plan
from specbench.inputs.suite import Suite
from specbench.records.environment import model_id
from specbench.records.records import UNBOUND, Cell, ModelId

Result = TypeVar("Result")


@dataclass(frozen=True)
class Failure:
    """Kind and text of what went wrong with one sample."""

    text: str


@dataclass(frozen=True)
class Ready:
    """A drafter bound to the target, and its cell on every suite in the plan's order.

    Where the drafter could not be bound, every sample of its cells fails by that reason.
    """

    drafter: Drafter | Failure
    cells: tuple[Cell, ...]


def attempt(
    action: Callable[[], Result], passing: type[Exception] | tuple[()] = ()
) -> Result | Failure:
    """The boundary of one sample: whatever goes wrong inside is recorded, and the run goes on."""
    try:
        return action()
    except passing:
        raise
    except Exception as error:  # noqa: BLE001
        failure = Failure(f"{type(error).__name__}: {error}")
    # Only here are the frames gone that held what the next sample may need.
    gc.collect()
    torch.cuda.empty_cache()
    return failure


def load(plan: Plan) -> tuple[Target, list[Ready]]:
    """The target, and every arm bound to it with its cells; the baseline comes first.

    Raises:
        UserError: something does not load or does not fit.
    """
    target = Target.load(
        zoo.resolve(plan.target),
        device=plan.device,
        dtype=DTYPES[plan.dtype],
        revision=plan.revision,
    )
    target.name = plan.target
    if target.tokenizer is None:
        raise UserError(
            f"There is no tokenizer for the target {plan.target!r}:",
            "put its tokenizer files beside the weights.",
        )
    identity = model_id(plan.target, plan.revision)
    return target, [_ready(plan, arm, target, identity) for arm in plan.arms]


def _ready(plan: Plan, arm: Arm, target: Target, identity: ModelId) -> Ready:
    """Bind; what goes wrong there, but for a person's mistake, fails this drafter's cells alone."""

    def bind() -> Ready:
        drafter = arm.make()
        drafter.bind(target.view())
        rule = rule_name(arm.name, drafter, plan.sampling.greedy)
        rehearsed = {"rehearsed": True} if drafter.rehearses else {}
        return Ready(drafter, cells(drafter.width, rule, drafter.details | rehearsed))

    def cells(width: int, rule: str, details: dict[str, Any]) -> tuple[Cell, ...]:
        told = (width, rule, details)
        return tuple(_cell(plan, arm, target, identity, suite, *told) for suite in plan.suites)

    ready = attempt(bind, passing=UserError)
    if isinstance(ready, Ready):
        return ready
    return Ready(ready, tuple(cell.asked for cell in cells(0, UNBOUND, {})))


def rule_name(name: str, drafter: Drafter, greedy: bool) -> str:
    """The acceptance rule that the verifier takes for this drafter's proposals."""
    if name == registry.BASELINE:
        return "none"
    return "walk" if greedy else drafter.rule


def _cell(
    plan: Plan,
    arm: Arm,
    target: Target,
    identity: ModelId,
    suite: Suite,
    width: int,
    rule: str,
    details: dict[str, Any],
) -> Cell:
    options = registry.drafter_class(arm.name).Options
    return Cell(
        target=identity,
        drafter=arm.name,
        options=asdict(parse_options(arm.name, options, arm.options)),
        draft_model=(
            model_id(arm.draft_model, arm.options.get("revision")) if arm.draft_model else None
        ),
        width=width,
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
        details=details,
    )
