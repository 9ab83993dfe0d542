"""Test whether emitted tokens follow the target's distribution, if texts cannot be compared.

Under a rule that draws (`reject`) a speculative text equals plain sampling in distribution only.
So the distribution is tested for every token, given the tokens before it. The target's
distribution p is sorted from the most to the least likely token, so that an emitted token x covers
an interval of length p(x) in [0, 1). A point drawn uniformly from this interval is uniform on
[0, 1) if and only if x follows p (the randomised probability integral transform), for any
vocabulary and any prefix. The points of all answers are counted in equal bins per output position.

A test that cannot fail shows nothing. Therefore the same prompts and seeds are run again under
`CONTROL`, which accepts drafted tokens without verifying them, and that run must fail.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor

from specbench.core.decode import Decoding
from specbench.core.drafter import Drafter
from specbench.core.kv import KVCache
from specbench.core.proposal import Proposal
from specbench.core.rules import Kept, Rule, walk
from specbench.core.sampling import Sampling, draw, probabilities
from specbench.core.target import Target
from specbench.inputs.plan import Plan
from specbench.records.records import Cell
from specbench.run.arms import DrafterArm
from specbench.run.turns import Asking, derived_seed

SCHEMA = 2
"""Schema of `to_json`; in schema 1 the verdict "inconclusive" was "no power"."""

SUITE = "smoke"
"""The suite whose shortest prompts are answered."""

PASSED, FAILED, INCONCLUSIVE = "passed", "failed", "inconclusive"
SIGNIFICANCE = 0.01
PER_BIN = 10
MOST_BINS = 10


def face_value(
    proposal: Proposal,
    logits: Tensor,
    sampling: Sampling,
    uniforms: Tensor,
    generator: torch.Generator,
) -> Kept:
    """Keep a deepest path unverified, then draw the bonus from the target.

    This is wrong wherever the drafter's distribution differs from the target's.
    """
    if len(proposal) == 0:
        return walk(proposal, logits, sampling, uniforms)
    node = int(proposal.depths.argmax()) - 1
    bonus = draw(probabilities(logits[node + 1], sampling), uniforms[proposal.depths[node + 1]])
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = int(proposal.parents[node])
    return Kept(tuple(path), (*(int(proposal.tokens[i]) for i in path), int(bonus)))


CONTROL = Rule("face-value", face_value, lossless=False, same_text=False)
"""The negative control, whose test must fail."""


@dataclass(frozen=True)
class Position:
    """The test at one output position.

    Attributes:
        position: output position; the first token that a round emits has position 1.
        chi_square: Pearson's statistic over ``degrees`` + 1 equal bins.
        degrees: degrees of freedom.
        p: probability of a statistic at least as large under the target's distribution.
    """

    position: int
    chi_square: float
    degrees: int
    p: float


@dataclass(frozen=True)
class DistributionTest:
    """The result of the test for one rule.

    Attributes:
        rule: name of the acceptance rule.
        samples: number of answers.
        positions: the test at each output position.
        impossible: number of emitted tokens with probability 0 under the target.
        drafted: number of tokens proposed in all rounds.
    """

    rule: str
    samples: int
    positions: tuple[Position, ...]
    impossible: int
    drafted: int

    @property
    def threshold(self) -> float:
        """The p below which a position fails: `SIGNIFICANCE` / number of positions (Bonferroni)."""
        return SIGNIFICANCE / len(self.positions)

    @property
    def passed(self) -> bool:
        """Whether no position rejects the target's distribution and no token is impossible."""
        return self.impossible == 0 and all(p.p >= self.threshold for p in self.positions)


@dataclass(frozen=True)
class Effort:
    """The size of a test.

    Attributes:
        samples: number of answers per test; four times as many detect half the deviation.
        tokens: emitted tokens per answer.
        prompts: number of the shortest prompts of `SUITE` that are used in turn.
    """

    samples: int
    tokens: int
    prompts: int


@dataclass(frozen=True)
class Finding:
    """The test of one drafter and its control."""

    cell: Cell
    test: DistributionTest
    control: DistributionTest

    @property
    def verdict(self) -> str:
        """`PASSED`, `FAILED`, or `INCONCLUSIVE` if the control passes too."""
        if not self.test.passed:
            return FAILED
        return INCONCLUSIVE if self.control.passed else PASSED


def examine(
    plan: Plan,
    target: Target,
    arm: DrafterArm,
    effort: Effort,
    tell: Callable[[], None] = lambda: None,
) -> Finding:
    """Test a drafter under its own rule and under `CONTROL`, on the same prompts and seeds.

    Args:
        plan: plan with `SUITE` and the sampling of the test.
        target: the model.
        arm: the drafter to test.
        effort: size of the test.
        tell: called after every answer, twice ``effort.samples`` times in all.

    Raises:
        UserError: the drafter could not be bound.
    """
    drafter = arm.bound
    turns = Asking(target.tokenizer, plan.thinking).first_turns(plan.suites[0])
    shortest = sorted((turn.prompt for turn in turns), key=len)[: effort.prompts]
    test = partial(
        distribution_test,
        target,
        drafter,
        prompts=shortest,
        samples=effort.samples,
        tokens=effort.tokens,
        sampling=plan.sampling,
        seed=plan.seed,
        tell=tell,
    )
    return Finding(arm.cells[0], test(rule=arm.rule), test(rule=CONTROL))


def to_json(findings: Sequence[Finding], effort: Effort, seed: int) -> str:
    """Convert findings to a JSON document."""
    results = [
        {"verdict": finding.verdict, "threshold": finding.test.threshold, **asdict(finding)}
        for finding in findings
    ]
    document = {"schema": SCHEMA, **asdict(effort), "seed": seed, "results": results}
    return json.dumps(document, indent=2) + "\n"


def distribution_test(
    target: Target,
    drafter: Drafter,
    rule: Rule,
    prompts: Sequence[list[int]],
    *,
    samples: int,
    tokens: int,
    sampling: Sampling,
    seed: int = 0,
    tell: Callable[[], None] = lambda: None,
) -> DistributionTest:
    """Draw ``samples`` answers with a bound drafter, and test their distribution.

    Args:
        target: the model.
        drafter: a drafter bound to it.
        rule: acceptance rule for the drafter's proposals.
        prompts: token ids; the answers use them in turn.
        samples: number of answers.
        tokens: emitted tokens per answer, which is the number of positions tested. The prefill's
            token comes before them and is not tested.
        sampling: how the output tokens are drawn.
        seed: random seed.
        tell: called after every answer.
    """
    noise = torch.Generator().manual_seed(seed)
    points = torch.empty(samples, tokens, dtype=torch.double)
    impossible = drafted = 0
    for index in range(samples):
        prompt = prompts[index % len(prompts)]
        output = Decoding(
            target,
            drafter,
            prompt,
            tokens + 1,
            sampling=sampling,
            seed=derived_seed(seed, index),
            stop_ids=frozenset(),
            rule=rule,
        ).run()
        probs = target_distribution(target, prompt, output.tokens, sampling).double().cpu()
        taken = torch.tensor(output.tokens[1:])
        points[index] = interval_points(probs, taken, torch.rand(tokens, generator=noise).double())
        impossible += int((probs.gather(1, taken[:, None]) == 0).sum())
        drafted += sum(r.drafted for r in output.rounds)
        tell()
    bins = max(2, min(MOST_BINS, samples // PER_BIN))
    positions = tuple(chi_square(t + 1, points[:, t], bins) for t in range(tokens))
    return DistributionTest(rule.name, samples, positions, impossible, drafted)


@torch.inference_mode()
def target_distribution(
    target: Target, prompt: list[int], output: tuple[int, ...], sampling: Sampling
) -> Tensor:
    """Compute the target's distribution of every output token but the first, in one forward.

    Returns:
        ``[tokens, vocabulary]``; each row is conditional on all tokens before it.
    """
    ids = torch.tensor([*prompt, *output[:-1]], device=target.device)
    logits, _ = target.forward(ids, KVCache(target.num_layers, len(ids)))
    return probabilities(logits[len(prompt) :], sampling)


def interval_points(probs: Tensor, taken: Tensor, uniforms: Tensor) -> Tensor:
    """Return a point in the interval of each token, ``[n]``.

    Args:
        probs: ``[n, vocabulary]`` distributions.
        taken: ``[n]`` emitted tokens.
        uniforms: ``[n]`` relative places in the intervals.
    """
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    ordered = ordered / ordered.sum(-1, keepdim=True)
    rank = (order == taken[:, None]).long().argmax(-1, keepdim=True)
    own = ordered.gather(1, rank)[:, 0]
    below = ordered.cumsum(-1).gather(1, rank)[:, 0] - own
    return below + own * uniforms


def chi_square(position: int, points: Tensor, bins: int) -> Position:
    """Test ``points`` ``[n]`` in [0, 1) against the uniform distribution (Pearson)."""
    counts = (points * bins).long().clamp(0, bins - 1).bincount(minlength=bins).double()
    expected = len(points) / bins
    statistic = ((counts - expected) ** 2 / expected).sum()
    half = torch.tensor((bins - 1) / 2, dtype=torch.double)
    p = torch.special.gammaincc(half, statistic / 2)
    return Position(position, float(statistic), bins - 1, float(p))
