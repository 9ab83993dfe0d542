"""What a machine makes of a pair: the cost of a verification, and the best draft length.

    speedup = AAL * t_ar / (t_draft + t_verify(rows))

A verification's cost is measured alone, over rows and context lengths; AAL and drafting cost at
each depth by decoding with a drafter that may propose no deeper. The model's speedup stands beside
the one measured in the same pass.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specbench.clock import PhaseProbe, now, synchronise
from specbench.core.drafter import Drafter, DraftSession, Request, TargetView
from specbench.core.kv import KVCache
from specbench.core.proposal import Proposal
from specbench.core.target import Target
from specbench.errors import UserError
from specbench.inputs import chat
from specbench.inputs.plan import Plan
from specbench.records.environment import environment
from specbench.records.records import Sample
from specbench.run.arms import Failure, Ready, load
from specbench.run.measure import Timed, timed_sample, warm_up
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
    if plan.threads is not None:
        torch.set_num_threads(plan.threads)
    target, arms = load(plan)
    suite = plan.suites[0]
    prompts = [
        chat.encode(target.tokenizer, [{"role": "user", "content": p.turns[0]}], plan.thinking)
        for p in suite.prompts
    ]
    context = int(np.mean([len(p) for p in prompts])) + suite.max_new_tokens // 2
    curve = verify_curve(target, contexts=sorted({128, 512, context}))
    if not curve:
        raise UserError(
            f"The context of {plan.target!r} is too short: {max(ROWS)} rows are timed behind 128 "
            "tokens."
        )
    near = [cost for cost in curve if cost.context == context] or curve
    passes = _Passes(plan, target, prompts, suite.max_new_tokens)
    base = _bound(arms[0])
    steps, _ = passes.both(base, base)
    return Tuning(
        plan.target,
        suite.name,
        plan.device,
        plan.dtype,
        len(prompts),
        milliseconds_a_token(steps),
        tuple(curve),
        tuple(_tuned(passes, arm, base, depths, near) for arm in arms[1:]),
        environment(plan.device),
        arms[0].cells[0].target.revision,
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


class _Capped(Drafter):
    """A drafter that is asked for no more than ``depth`` levels."""

    def __init__(self, drafter: Drafter, depth: int) -> None:
        self.options = drafter.options
        self.name = drafter.name  # type: ignore[misc]
        self.taps, self.width = drafter.taps, drafter.width
        self._drafter, self._depth = drafter, depth

    @property
    def rule(self) -> str:
        return self._drafter.rule

    def bind(self, target: TargetView) -> None:
        self._drafter.bind(target)

    def open(self, request: Request) -> DraftSession:
        session = self._drafter.open(request)
        propose = session.propose
        session.propose = lambda budget: propose(min(budget, self._depth))  # type: ignore[method-assign]
        return session


@dataclass(frozen=True)
class _Passes:
    """Decoding of all prompts with one drafter, on the clock and under the probe."""

    plan: Plan
    target: Target
    prompts: list[list[int]]
    budget: int

    def both(self, base: Drafter, drafter: Drafter) -> tuple[list[Sample], list[Sample]]:
        """Answers of both, prompt by prompt, as records, so that the same statistics serve."""
        for one in (base, drafter):
            warm_up(self.target, one, self.prompts[0], self.plan.sampling)
        arms: tuple[list[Sample], list[Sample]] = [], []
        for index, prompt in enumerate(self.prompts):
            order = [(base, arms[0]), (drafter, arms[1])]
            for one, samples in order if index % 2 == 0 else reversed(order):
                samples.append(_sample(index, self._timed(one, prompt, None)))
        return arms

    def draft_milliseconds(self, drafter: Drafter) -> float:
        """A round's time but for the target's forward."""
        probe = PhaseProbe(self.target.device)
        timed = [self._timed(drafter, prompt, probe) for prompt in self.prompts]
        total = sum(one.decode_seconds for one in timed) - probe.seconds.get("verify", 0.0)
        return 1e3 * total / max(1, sum(len(one.rounds) for one in timed))

    def _timed(self, drafter: Drafter, prompt: list[int], probe: PhaseProbe | None) -> Timed:
        return timed_sample(
            self.target,
            drafter,
            prompt,
            self.budget,
            sampling=self.plan.sampling,
            seed=self.plan.seed,
            probe=probe,
        )


def _sample(index: int, timed: Timed) -> Sample:
    return Sample(
        "tuned",
        str(index),
        1,
        "ok",
        output=timed.output,
        finish=timed.finish,
        rounds=tuple((r.drafted, r.accepted, len(r.tokens)) for r in timed.rounds),
        prefill_seconds=timed.prefill_seconds,
        decode_seconds=timed.decode_seconds,
    )


def _tuned(
    passes: _Passes, arm: Ready, base: Drafter, depths: Sequence[int], curve: Sequence[VerifyCost]
) -> Tuned:
    drafter, cell = _bound(arm), arm.cells[0]
    kept = [depth for depth in depths if depth <= max(1, drafter.width)]
    if not kept:
        raise UserError(
            f"The drafter {cell.drafter!r} proposes at most {drafter.width} tokens, fewer than any "
            f"of the depths {', '.join(map(str, depths))}: give a smaller one."
        )
    for prompt in passes.prompts if drafter.rehearses else ():
        passes._timed(drafter, prompt, None)
    return Tuned(
        cell.drafter,
        cell.options,
        tuple(_measure(passes, base, _Capped(drafter, depth), depth, curve) for depth in kept),
    )


def _measure(
    passes: _Passes, base: Drafter, capped: Drafter, depth: int, curve: Sequence[VerifyCost]
) -> Depth:
    """Both arms prompt by prompt, then the drafter once more under the probe."""
    baseline, samples = passes.both(base, capped)
    rounds = [r for sample in samples for r in sample.rounds]
    rows = 1 + sum(drafted for drafted, _, _ in rounds) / max(1, len(rounds))
    step = milliseconds_a_token(baseline)
    draft, verify = passes.draft_milliseconds(capped), _at(curve, rows)
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


def _bound(arm: Ready) -> Drafter:
    if isinstance(arm.drafter, Failure):
        raise UserError(f"The drafter {arm.cells[0].drafter!r} cannot be tuned: {arm.drafter.text}")
    return arm.drafter
