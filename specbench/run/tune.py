"""Measure what a verification costs, and a drafter at several depths; `stats.costs` has the model.

The cost of a verification is measured alone, over rows and context lengths; AAL and drafting time
at each depth by decoding with a drafter that may propose no deeper.
"""

from collections.abc import Sequence
from dataclasses import replace

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
from specbench.stats import costs, metrics
from specbench.stats.costs import Tuned, Tuning, VerifyCost

ROWS = (1, 2, 4, 8, 16, 32, 64)
REPEATS = 15


def verify_curve(
    target: Target,
    rows: Sequence[int] = ROWS,
    contexts: Sequence[int] = (128, 512),
    repeats: int = REPEATS,
) -> list[VerifyCost]:
    """Time forwards of every size behind every context, alternating, ``repeats`` times each.

    A context that leaves no room for the largest number of rows is left out.
    """
    limit = target.context_limit
    contexts = [c for c in contexts if limit is None or c + max(rows) <= limit]
    seconds: dict[tuple[int, int], list[float]] = {}
    for context in contexts:
        cache = _filled(target, context, max(rows))
        for _ in range(repeats + 1):
            for count in rows:
                seconds.setdefault((count, context), []).append(_verify_once(target, cache, count))
    curve = []
    for (count, context), taken in seconds.items():
        low, middle, high = np.quantile(1e3 * np.array(taken[1:]), [0.25, 0.5, 0.75])
        curve.append(
            VerifyCost(count, context, float(middle), float(low), float(high), len(taken) - 1)
        )
    return curve


def tune(plan: Plan, depths: Sequence[int]) -> Tuning:
    """Measure every drafter of ``plan`` at every depth, on the first turns of its first suite.

    Depths that a drafter cannot reach are left out.

    Raises:
        UserError: a model does not load or fit, or a drafter reaches none of the depths.
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
        costs.milliseconds_per_token(steps),
        tuple(curve),
        tuple(_tuned(base, arm, turns, depths, near) for arm in arms[1:]),
        environment(plan.device),
        base.cells[0].target.revision,
    )


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
    """The answers of both, alternating by turn, as records for the statistics."""
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
    """Both arms turn by turn at every depth, each compared with the fastest on the same prompts."""
    width, cell = arm.bound.width, arm.cells[0]
    kept = [depth for depth in depths if depth <= max(1, width)]
    if not kept:
        raise UserError(
            f"The drafter {cell.drafter!r} proposes at most {width} tokens, fewer than any "
            f"of the depths {', '.join(map(str, depths))}: give a smaller one."
        )
    measured = []
    for depth in kept:
        capped = replace(arm, depth=depth)
        answers = _both(base, capped, turns)
        draft = _draft_milliseconds(capped, turns)
        measured.append((costs.modelled(depth, curve, draft, *answers), answers))
    best, of_best = max(measured, key=lambda one: one[0].measured.value or 0.0)
    compared = [
        one
        if one is best
        else replace(one, over_best=metrics.speedup_change(*answers, *of_best).ratio)
        for one, answers in measured
    ]
    return Tuned(cell.drafter, cell.options, tuple(compared))
