"""Distributions of a target and a draft, and a test whether a rule keeps the target's."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable

import torch
from scipy import stats

from specbench.core.proposal import Proposal
from specbench.core.rules import Keep
from specbench.core.sampling import Sampling, probabilities

VOCABULARY = 3
LENGTH = 3
RUNS = 1500

Prefix = tuple[int, ...]


class Distributions:
    """A distribution per prefix for a target and a draft that disagree."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        generator = torch.Generator().manual_seed(5)
        # A proposal may be longer than the tokens that are counted.
        prefixes = [
            prefix
            for length in range(2 * LENGTH)
            for prefix in itertools.product(range(VOCABULARY), repeat=length)
        ]
        self.logits = {x: 1.5 * torch.randn(VOCABULARY, generator=generator) for x in prefixes}
        self.q = {x: torch.randn(VOCABULARY, generator=generator).softmax(-1) for x in prefixes}

    def joint(self) -> dict[Prefix, float]:
        """Return the target's joint distribution of the first tokens."""
        joint = {}
        for text in itertools.product(range(VOCABULARY), repeat=LENGTH):
            p = 1.0
            for i, token in enumerate(text):
                p *= float(probabilities(self.logits[text[:i]], self.sampling)[token])
            joint[text] = p
        return joint


Draft = Callable[[Distributions, Prefix, random.Random], tuple[Proposal, list[Prefix]]]


def pick(q: torch.Tensor, chance: random.Random) -> int:
    return chance.choices(range(VOCABULARY), q.tolist())[0]


def outputs(draft: Draft, sampling: Sampling, rule: Keep, runs: int) -> Counter[Prefix]:
    """Count how often each text is emitted, round by round, from an empty prefix."""
    model = Distributions(sampling)
    chance = random.Random(1)
    generator = torch.Generator().manual_seed(1)
    counts: Counter[Prefix] = Counter()
    for _ in range(runs):
        uniforms = torch.rand(4 * LENGTH, generator=generator)
        emitted: Prefix = ()
        while len(emitted) < LENGTH:
            proposal, texts = draft(model, emitted, chance)
            logits = torch.stack([model.logits[text] for text in texts])
            emitted += rule(proposal, logits, sampling, uniforms[len(emitted) :], generator).tokens
        counts[emitted[:LENGTH]] += 1
    return counts


def pvalue(draft: Draft, sampling: Sampling, rule: Keep, runs: int = RUNS) -> float:
    """Test the texts of many runs against the target's own distribution (chi-square)."""
    counts = outputs(draft, sampling, rule, runs)
    joint = {text: p for text, p in Distributions(sampling).joint().items() if p > 0}
    assert counts.keys() <= joint.keys(), "a text was emitted that the target never emits"
    # Texts that are too rare for the chi-square test are counted together.
    common = [text for text, p in joint.items() if p * runs >= 5]
    observed = [counts[text] for text in common]
    expected = [joint[text] * runs for text in common]
    rest = runs - sum(expected)
    if rest > 1e-6 * runs:
        observed.append(runs - sum(observed))
        expected.append(rest)
    scale = runs / sum(expected)
    return float(stats.chisquare(observed, [x * scale for x in expected]).pvalue)
