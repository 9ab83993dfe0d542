"""What a machine makes of a pair: the cost of a verification, and the best draft length.

    speedup = AAL * t_ar / (t_draft + t_verify(rows))

A verification's cost is measured alone, over rows and context lengths; AAL and drafting cost at
each depth by decoding with a drafter that may propose no deeper. The model's speedup stands beside
the one measured in the same pass.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specbench.clock import now, synchronise
from specbench.core.kv import KVCache
from specbench.core.proposal import Proposal
from specbench.core.target import Target
from specbench.errors import UserError
from specbench.inputs.plan import Plan
from specbench.records.environment import environment
from specbench.records.records import Sample
from specbench.run.arms import DrafterArm, load
from specbench.run.runner import to_sample
from specbench.run.turns import Asking, Turn
from specbench.stats import metrics
from specbench.stats.metrics import Estimate

TUNING = "tune.json"
SCHEMA = 1
ROWS = (1, 2, 4, 8, 16, 32, 64)
DEPTHS = (1, 2, 4, 8, 16, 32)
REPEATS = 15


@dataclass(frozen=True)
class VerifyCost:
    """One target forward of ``rows`` tokens behind ``context`` cached ones.

    Attributes:
        milliseconds: the median; ``low`` and ``high`` are the quartiles.
    """

    rows: int
    context: int
    milliseconds: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Depth:
    """A drafter that may propose ``depth`` levels, on the plan's prompts.

    Attributes:
        rows: target rows a round, the anchor included, on average.
        draft: milliseconds a round that drafting and its bookkeeping take.
        verify: milliseconds of a forward of so many rows, by the curve.
        break_even: the AAL from which on this pays.
        model: speedup by the formula; ``measured`` is what the clock said.
    """

    depth: int
    rows: float
    aal: Estimate
    draft: float
    verify: float
    break_even: float
    model: float | None
    measured: Estimate


@dataclass(frozen=True)
class Tuned:
    """One drafter's depths; ``best`` is the one with the highest measured speedup."""

    drafter: str
    options: dict[str, Any]
    depths: tuple[Depth, ...]

    @property
    def best(self) -> Depth | None:
        """None where nothing could be measured."""
        known = [d for d in self.depths if d.measured.value is not None]
        return max(known, key=lambda d: d.measured.value or 0.0) if known else None


@dataclass(frozen=True)
class Tuning:
    """All of it; ``step`` is the milliseconds of an autoregressive step.

    Attributes:
        revision: of the target, where it is a hub id.
    """

    target: str
    suite: str
    device: str
    dtype: str
    prompts: int
    step: float
    verify: tuple[VerifyCost, ...]
    drafters: tuple[Tuned, ...]
    environment: dict[str, Any]
    revision: str | None = None
    schema: int = SCHEMA


def verify_curve(
    target: Target,
    rows: Sequence[int] = ROWS,
    contexts: Sequence[int] = (128, 512),
    repeats: int = REPEATS,
) -> list[VerifyCost]:
    """Time forwards of every size behind every context, in turn, ``repeats`` times each.

    Contexts that do not leave room for the most rows are left out.
    """
    limit = target.context_limit
    contexts = [c for c in contexts if limit is None or c + max(rows) <= limit]
    seconds: dict[tuple[int, int], list[float]] = {}
    for context in contexts:
        cache = _filled(target, context, max(rows))
        for _ in range(repeats + 1):
            for count in rows:
                seconds.setdefault((count, context), []).append(_verify_once(target, cache, count))
    costs = []
    for (count, context), taken in seconds.items():
        low, middle, high = np.quantile(1e3 * np.array(taken[1:]), [0.25, 0.5, 0.75])
        costs.append(
            VerifyCost(count, context, float(middle), float(low), float(high), len(taken) - 1)
        )
    return costs


def tune(plan: Plan, depths: Sequence[int] = DEPTHS) -> Tuning:
    """Measure every drafter of ``plan`` at every depth, on the first turns of its first suite.

    Raises:
        UserError: a model that does not load or fit, or a drafter that reaches no depth.
    """
    target, arms = load(plan)
    suite = plan.suites[0]
    turns = Asking(target.tokenizer, plan.thinking, plan.seed).first_turns(suite)
    context = int(np.mean([len(turn.prompt) for turn in turns])) + suite.max_new_tokens // 2
    curve = verify_curve(target, contexts=sorted({128, 512, context}))
    if not curve:
        raise UserError(
            f"The context of {plan.target!r} is too short: {max(ROWS)} rows are timed behind 128 "
            "tokens."
        )
    near = [cost for cost in curve if cost.context == context] or curve
    base = arms[0]
    steps, _ = _both(base, base, turns)
    return Tuning(
        plan.target,
        suite.name,
        plan.device,
        plan.dtype,
        len(turns),
        milliseconds_a_token(steps),
        tuple(curve),
        tuple(_tuned(base, arm, turns, depths, near) for arm in arms[1:]),
        environment(plan.device),
        base.cells[0].target.revision,
    )


def to_json(tuning: Tuning) -> str:
    """What `load_tuning` reads."""
    return json.dumps(asdict(tuning), indent=1) + "\n"


def load_tuning(folder: Path) -> Tuning | None:
    """A tuning that was written to a folder; None where there is none.

    Raises:
        UserError: a file that cannot be read.
    """
    path = folder / TUNING
    if not path.exists():
        return None
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        curve = tuple(VerifyCost(**cost) for cost in raw.pop("verify"))
        drafters = tuple(
            Tuned(d["drafter"], d["options"], tuple(_depth(one) for one in d["depths"]))
            for d in raw.pop("drafters")
        )
        return Tuning(**raw, verify=curve, drafters=drafters)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error


def _depth(raw: dict[str, Any]) -> Depth:
    estimates = {key: Estimate(**raw[key]) for key in ("aal", "measured")}
    return Depth(**{**raw, **estimates})


def _filled(target: Target, context: int, room: int) -> KVCache:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(target.vocab_size, (context,), generator=generator).to(target.device)
    cache = KVCache(target.num_layers, context + room)
    with torch.inference_mode():
        target.forward(ids, cache, last_only=True)
    return cache


@torch.inference_mode()
def _verify_once(target: Target, cache: KVCache, rows: int) -> float:
    ids = torch.arange(rows, device=target.device) % target.vocab_size
    tree, length = Proposal.chain(ids[1:]), cache.length
    synchronise(target.device)
    start = now()
    target.forward(ids, cache, tree=tree)
    synchronise(target.device)
    taken = now() - start
    cache.truncate(length)
    return taken


def _both(
    base: DrafterArm, arm: DrafterArm, turns: Sequence[Turn]
) -> tuple[list[Sample], list[Sample]]:
    """Answers of both, turn by turn, as records, so that the same statistics serve."""
    arms: tuple[list[Sample], list[Sample]] = [], []
    for index, turn in enumerate(turns):
        order = [(base, arms[0]), (arm, arms[1])]
        for one, _ in order:
            one.prepare(turn)
        for one, samples in order if index % 2 == 0 else reversed(order):
            samples.append(to_sample(("tuned", str(index), 1), len(turn.prompt), one.answer(turn)))
    return arms


def _draft_milliseconds(arm: DrafterArm, turns: Sequence[Turn]) -> float:
    """A round's time without the target's forward."""
    traced = [arm.trace(turn) for turn in turns]
    seconds = sum(t.answer.decode_seconds - t.seconds.get("verify", 0.0) for t in traced)
    return 1e3 * seconds / max(1, sum(len(t.answer.output.rounds) for t in traced))


def _tuned(
    base: DrafterArm,
    arm: DrafterArm,
    turns: Sequence[Turn],
    depths: Sequence[int],
    curve: Sequence[VerifyCost],
) -> Tuned:
    width, cell = arm.bound.width, arm.cells[0]
    kept = [depth for depth in depths if depth <= max(1, width)]
    if not kept:
        raise UserError(
            f"The drafter {cell.drafter!r} proposes at most {width} tokens, fewer than any "
            f"of the depths {', '.join(map(str, depths))}: give a smaller one."
        )
    measured = (_measure(base, replace(arm, depth=depth), turns, depth, curve) for depth in kept)
    return Tuned(cell.drafter, cell.options, tuple(measured))


def _measure(
    base: DrafterArm,
    arm: DrafterArm,
    turns: Sequence[Turn],
    depth: int,
    curve: Sequence[VerifyCost],
) -> Depth:
    """Both arms turn by turn, then the drafter once more under the probe."""
    baseline, samples = _both(base, arm, turns)
    rounds = [r for sample in samples for r in sample.rounds]
    rows = 1 + sum(drafted for drafted, _, _ in rounds) / max(1, len(rounds))
    step = milliseconds_a_token(baseline)
    draft, verify = _draft_milliseconds(arm, turns), _at(curve, rows)
    aal = metrics.estimate_pooled_aal(samples)
    return Depth(
        depth,
        rows,
        aal,
        draft,
        verify,
        break_even=(draft + verify) / step,
        model=None if aal.value is None else aal.value * step / (draft + verify),
        measured=metrics.estimate_speedup(baseline, samples),
    )


def milliseconds_a_token(samples: Iterable[Sample]) -> float:
    """Decode milliseconds per emitted token."""
    kept = metrics.ok(samples)
    return 1e3 * sum(s.decode_seconds or 0.0 for s in kept) / max(1, sum(s.emitted for s in kept))


def _at(curve: Sequence[VerifyCost], rows: float) -> float:
    """The curve between its points; beyond them, its nearest."""
    points = sorted(curve, key=lambda cost: cost.rows)
    known = [cost.rows for cost in points], [cost.milliseconds for cost in points]
    return float(np.interp(rows, *known))
