"""A target and a draft with a law for every prefix, and whether a rule keeps the target's."""

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


class Laws:
    """A target and a draft that disagree, each with a law for every prefix."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        generator = torch.Generator().manual_seed(5)
        # A proposal may look past the tokens that are counted.
        prefixes = [
            prefix
            for length in range(2 * LENGTH)
            for prefix in itertools.product(range(VOCABULARY), repeat=length)
        ]
        self.logits = {x: 1.5 * torch.randn(VOCABULARY, generator=generator) for x in prefixes}
        self.q = {x: torch.randn(VOCABULARY, generator=generator).softmax(-1) for x in prefixes}

    def joint(self) -> dict[Prefix, float]:
        """The target's law of the first tokens."""
        law = {}
        for text in itertools.product(range(VOCABULARY), repeat=LENGTH):
            p = 1.0
            for i, token in enumerate(text):
                p *= float(probabilities(self.logits[text[:i]], self.sampling)[token])
            law[text] = p
        return law


Draft = Callable[[Laws, Prefix, random.Random], tuple[Proposal, list[Prefix]]]


def pick(q: torch.Tensor, chance: random.Random) -> int:
    return chance.choices(range(VOCABULARY), q.tolist())[0]


def outputs(draft: Draft, sampling: Sampling, rule: Keep, runs: int) -> Counter[Prefix]:
    """How often each text is emitted, round by round, from an empty prefix."""
    laws = Laws(sampling)
    chance = random.Random(1)
    generator = torch.Generator().manual_seed(1)
    counts: Counter[Prefix] = Counter()
    for _ in range(runs):
        uniforms = torch.rand(4 * LENGTH, generator=generator)
        said: Prefix = ()
        while len(said) < LENGTH:
            proposal, texts = draft(laws, said, chance)
            logits = torch.stack([laws.logits[text] for text in texts])
            said += rule(proposal, logits, sampling, uniforms[len(said) :], generator).tokens
        counts[said[:LENGTH]] += 1
    return counts


def pvalue(draft: Draft, sampling: Sampling, rule: Keep, runs: int = RUNS) -> float:
    """Chi-square of what is emitted in many runs against the target's own law."""
    counts = outputs(draft, sampling, rule, runs)
    law = {text: p for text, p in Laws(sampling).joint().items() if p > 0}
    assert counts.keys() <= law.keys(), "something was said that the target never says"
    # Cells too rare for the chi-square are counted as one.
    common = [text for text, p in law.items() if p * runs >= 5]
    seen = [counts[text] for text in common]
    due = [law[text] * runs for text in common]
    rest = runs - sum(due)
    if rest > 1e-6 * runs:
        seen.append(runs - sum(seen))
        due.append(rest)
    scale = runs / sum(due)
    return float(stats.chisquare(seen, [x * scale for x in due]).pvalue)
