"""Whether a drafter's emitted tokens follow the target's own law, where texts cannot be compared.

Under a rule that draws (`reject`) a speculative text equals plain sampling in law only. The law is
tested token by token: given the tokens before it, an emitted token x of the target's distribution
p, laid out from its most to its least likely token, covers an interval of length p(x). A point
drawn evenly from that interval is uniform on [0, 1) if, and only if, x follows p (the randomised
probability integral transform), whatever the vocabulary and however the prefixes differ. So at
every output position the points of all samples are counted in equal bins.

A test that cannot fail says nothing. The same prompts and seeds are run once more under
`face_value`, which takes drafted tokens as they come, and that run must fail.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.core.decode import rounds
from specbench.core.drafter import Drafter, Request
from specbench.core.kv import KVCache
from specbench.core.proposal import Proposal
from specbench.core.rules import Kept, walk
from specbench.core.sampling import Sampling, draw, probabilities
from specbench.core.target import Target
from specbench.core.verifier import RULES, Verifier

SIGNIFICANCE = 0.01
PER_BIN = 10
MOST_BINS = 10
NO_STOPS: frozenset[int] = frozenset()


def face_value(
    proposal: Proposal,
    logits: Tensor,
    sampling: Sampling,
    uniforms: Tensor,
    generator: torch.Generator,
) -> Kept:
    """The negative control: keep a deepest path as it was drafted, then draw the bonus from the
    target. Wrong wherever the drafter's law is not the target's."""
    if len(proposal) == 0:
        return walk(proposal, logits, sampling, uniforms)
    node = int(proposal.depths.argmax()) - 1
    bonus = draw(probabilities(logits[node + 1], sampling), uniforms[proposal.depths[node + 1]])
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = int(proposal.parents[node])
    return Kept(tuple(path), (*(int(proposal.tokens[i]) for i in path), int(bonus)))


face_value.lossless = False  # type: ignore[attr-defined]
RULES["face-value"] = face_value


@dataclass(frozen=True)
class Position:
    """The test at one output position; the first that a round emits is 1.

    Attributes:
        chi_square: Pearson's statistic over ``degrees`` + 1 equal bins.
        p: probability of one at least as large under the target's law.
    """

    position: int
    chi_square: float
    degrees: int
    p: float


@dataclass(frozen=True)
class LawTest:
    """What was found of one rule.

    Attributes:
        impossible: emitted tokens to which the target gives no probability at all.
        drafted: tokens proposed in all rounds.
    """

    rule: str
    samples: int
    positions: tuple[Position, ...]
    impossible: int
    drafted: int

    @property
    def threshold(self) -> float:
        """What a p must fall below: `SIGNIFICANCE` shared among the positions (Bonferroni)."""
        return SIGNIFICANCE / len(self.positions)

    @property
    def passed(self) -> bool:
        """Whether no position speaks against the target's law."""
        return self.impossible == 0 and all(p.p >= self.threshold for p in self.positions)


def law_test(
    target: Target,
    drafter: Drafter,
    rule: str,
    prompts: Sequence[list[int]],
    *,
    samples: int,
    tokens: int,
    sampling: Sampling,
    seed: int = 0,
    tell: Callable[[], None] = lambda: None,
) -> LawTest:
    """Draw ``samples`` answers with a bound drafter, prompts taking turns, and test their law.

    Args:
        rule: a name in `RULES`.
        tokens: emitted tokens an answer, and so positions tested; the prefill's token, which no
            drafter touches, comes before them.
        tell: called after every sample.
    """
    noise = torch.Generator().manual_seed(seed)
    points = torch.empty(samples, tokens, dtype=torch.double)
    impossible = drafted = 0
    for index in range(samples):
        prompt = prompts[index % len(prompts)]
        output, proposed = _answer(
            target, drafter, rule, prompt, tokens + 1, sampling, _seed(seed, index)
        )
        probs = _law(target, prompt, output, sampling).double().cpu()
        taken = torch.tensor(output[1:])
        points[index] = _points(probs, taken, torch.rand(tokens, generator=noise).double())
        impossible += int((probs.gather(1, taken[:, None]) == 0).sum())
        drafted += proposed
        tell()
    bins = max(2, min(MOST_BINS, samples // PER_BIN))
    positions = tuple(_chi_square(t + 1, points[:, t], bins) for t in range(tokens))
    return LawTest(rule, samples, positions, impossible, drafted)


def _answer(
    target: Target,
    drafter: Drafter,
    rule: str,
    prompt: list[int],
    count: int,
    sampling: Sampling,
    seed: int,
) -> tuple[list[int], int]:
    """``count`` output tokens, past any stop token, and how many tokens were drafted."""
    verifier = Verifier(
        target, sampling, seed, len(prompt), count, drafter.width, drafter.taps, rule
    )
    first = verifier.prefill(prompt)
    request = Request(sampling, seed, verifier.capacity)
    done = list(rounds(verifier, drafter, first, count, NO_STOPS, request))
    output = [first.tokens[-1], *(token for r in done for token in r.tokens)]
    return output, sum(r.drafted for r in done)


@torch.inference_mode()
def _law(target: Target, prompt: list[int], output: list[int], sampling: Sampling) -> Tensor:
    """``[tokens, vocabulary]`` the target's distribution of every output token but the first, all
    given those before them; one forward without any cache of a round."""
    ids = torch.tensor([*prompt, *output[:-1]], device=target.device)
    logits, _ = target.forward(ids, KVCache(target.num_layers, len(ids)))
    return probabilities(logits[len(prompt) :], sampling)


def _points(probs: Tensor, taken: Tensor, uniforms: Tensor) -> Tensor:
    """A point in the interval of each token ``taken`` ``[n]`` of ``probs`` ``[n, vocabulary]``."""
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    ordered = ordered / ordered.sum(-1, keepdim=True)
    place = (order == taken[:, None]).long().argmax(-1, keepdim=True)
    own = ordered.gather(1, place)[:, 0]
    below = ordered.cumsum(-1).gather(1, place)[:, 0] - own
    return below + own * uniforms


def _chi_square(position: int, points: Tensor, bins: int) -> Position:
    counts = (points * bins).long().clamp(0, bins - 1).bincount(minlength=bins).double()
    expected = len(points) / bins
    statistic = ((counts - expected) ** 2 / expected).sum()
    half = torch.tensor((bins - 1) / 2, dtype=torch.double)
    p = torch.special.gammaincc(half, statistic / 2)
    return Position(position, float(statistic), bins - 1, float(p))


def _seed(seed: int, index: int) -> int:
    """Far apart, so that no two answers share a stream."""
    return int.from_bytes(hashlib.sha256(f"{seed}\n{index}".encode()).digest()[:6])
