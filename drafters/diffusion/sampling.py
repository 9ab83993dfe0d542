"""Filling masked slots step by step, as masked-diffusion language models are sampled.

One loop, `denoise`. What differs between the published samplers is which of the masked slots a
step fills: an order (one function each) with counts known beforehand, or d3LLM's rule. A filled
slot is never masked again, LLaDA's "re-masking" included: it predicts every masked slot in each
step and puts the mask back on those it trusts least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from specbench.api import Sampling, probabilities

Predict = Callable[[Tensor], Tensor]
"""Contents ``[n]``, the mask id where masked, to ``[n, vocabulary]`` logits of those slots."""

TIME_END = 1e-3
"""Where Dream's time grid ends (its `eps`)."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one forward filled: slots ``[m]``, ascending, and their tokens ``[m]``."""

    slots: Tensor
    tokens: Tensor


@dataclass(frozen=True)
class Candidates:
    """The masked slots that a step may fill.

    Attributes:
        slots: ``[m]`` ascending indices into the contents.
        logits: ``[m, vocabulary]`` as predicted, without noise.
        tokens: ``[m]`` the token each slot would take.
        sampling: how those tokens were drawn.
    """

    slots: Tensor
    logits: Tensor
    tokens: Tensor
    sampling: Sampling

    @cached_property
    def filtered(self) -> Tensor:
        """``[m, vocabulary]`` probabilities after temperature (1 where greedy), top-k, top-p."""
        temperature = self.sampling.temperature or 1.0
        return probabilities(self.logits, replace(self.sampling, temperature=temperature))

    def own(self, probs: Tensor) -> Tensor:
        """``[m]`` entries of ``probs`` ``[m, vocabulary]`` at the candidates' own tokens."""
        return probs.gather(-1, self.tokens[:, None])[:, 0]


Order = Callable[[Candidates, torch.Generator], Tensor]
"""Scores ``[m]`` of the candidates; the highest are filled first, the left one of equals."""


def low_confidence(candidates: Candidates, generator: torch.Generator) -> Tensor:
    """LLaDA (arXiv 2502.09992, algorithm 5): the token's probability, whatever the temperature.

    The noise that drew the token has no part in it (ML-GSAI/LLaDA issue 42).
    """
    return candidates.own(candidates.logits.double().softmax(-1))


def uniform(candidates: Candidates, generator: torch.Generator) -> Tensor:
    """Any masked slot as likely as any other: LLaDA's random re-masking, Dream's `origin`, and
    the first-hitting sampler of BD3-LM (arXiv 2503.09573)."""
    device = candidates.slots.device
    return torch.rand(len(candidates.slots), generator=generator, device=generator.device).to(
        device
    )


def maskgit_plus(candidates: Candidates, generator: torch.Generator) -> Tensor:
    """Dream: the token's probability in the distribution it was drawn from."""
    return candidates.own(candidates.filtered)


def topk_margin(candidates: Candidates, generator: torch.Generator) -> Tensor:
    """Dream: how far the most likely token is ahead of the second."""
    first, second = candidates.filtered.topk(2, dim=-1).values.unbind(-1)
    return first - second


def entropy(candidates: Candidates, generator: torch.Generator) -> Tensor:
    """Dream: minus the entropy in nats."""
    return -entropies(candidates.filtered)


def entropies(probs: Tensor) -> Tensor:
    """``[...]`` nats of distributions ``[..., vocabulary]``."""
    return torch.special.entr(probs).sum(-1)  # type: ignore[no-any-return]


Counts = Callable[[int, int, torch.Generator], list[int]]
"""How many of ``slots`` each of ``steps`` steps fills; they add up to ``slots``."""


def even(slots: int, steps: int, generator: torch.Generator | None = None) -> list[int]:
    """LLaDA: as many every step, the first steps one more where it does not come out even.

    6 slots in 3 steps are 2, 2, 2, and 7 are 3, 2, 2. An article that introduces DFlash works
    the first example with 4, 1, 1 (and calls for 4 and 2): that is not LLaDA's schedule, whose
    paper unmasks an expected L / T a step.
    """
    share, rest = divmod(slots, steps)
    return [share + (step < rest) for step in range(steps)]


def time_grid(slots: int, steps: int, generator: torch.Generator | None = None) -> list[int]:
    """Dream: of what is masked at time t, the share 1 - s/t is filled on the way to time s,
    rounded down, and all the rest in the last step. The times fall evenly from 1 to `TIME_END`.

    6 slots in 3 steps are 1, 2, 3; a step may fill none.
    """
    counts: list[int] = []
    for share in _shares(steps):
        counts.append(int((slots - sum(counts)) * share))
    return counts


def independent(slots: int, steps: int, generator: torch.Generator) -> list[int]:
    """Dream's `origin`: on the same time grid every masked slot is filled by chance of its own."""
    counts: list[int] = []
    for share in _shares(steps):
        chances = torch.rand(slots - sum(counts), generator=generator, device=generator.device)
        counts.append(int((chances < share).sum()))
    return counts


def one_by_one(slots: int, steps: int, generator: torch.Generator | None = None) -> list[int]:
    """BD3-LM's first-hitting sampler: one slot a step, whatever ``steps`` says."""
    return [1] * slots


def _shares(steps: int) -> list[float]:
    """1 - s/t of every step of Dream's time grid, 1 in the last."""
    times = [1 - (1 - TIME_END) * step / steps for step in range(steps + 1)]
    return [*(1 - s / t for t, s in pairwise(times[:-1])), 1.0]


ORDERS: dict[str, tuple[Order, Counts]] = {
    "low_confidence": (low_confidence, even),
    "random": (uniform, even),
    "entropy": (entropy, time_grid),
    "topk_margin": (topk_margin, time_grid),
    "maskgit_plus": (maskgit_plus, time_grid),
    "origin": (uniform, independent),
    "first_hitting": (uniform, one_by_one),
}
"""The samplers with counts known beforehand, under the names their authors gave the option."""


class Choice(Protocol):
    """Which slots a step fills."""

    def open(self, contents: Tensor) -> Tensor:
        """``[m]`` ascending slots that the next step may fill; none ends the loop."""

    def choose(self, candidates: Candidates) -> Tensor:
        """Indices into the candidates, ascending, of those to fill: at least one."""


class Ranked:
    """The best slots by an order, as many as the step's count; a count of 0 is no step."""

    def __init__(
        self, slots: Tensor, counts: Sequence[int], order: Order, generator: torch.Generator
    ) -> None:
        self._slots = slots
        self._counts = [count for count in counts if count]
        self._order = order
        self._generator = generator

    def open(self, contents: Tensor) -> Tensor:
        return self._slots if self._counts else self._slots[:0]

    def choose(self, candidates: Candidates) -> Tensor:
        scores = self._order(candidates, self._generator)
        ranking = scores.argsort(descending=True, stable=True)
        count = self._counts.pop(0)
        self._slots = candidates.slots[ranking[count:].sort().values]
        return ranking[:count].sort().values


class MultiBlock:
    """d3LLM (arXiv 2601.07568): several blocks in flight, every certain enough slot is filled.

    A step fills all slots of the opened blocks whose entropy, of the unscaled distribution, is at
    most ``threshold`` nats; where the first unfinished block has none, its most certain one. The
    next block is opened, at most one a step, once ``add`` of the newest is filled. Behind a stop
    token everything is that token, as d3LLM's early stop has it. Defaults are those of its
    evaluation scripts; their third threshold (0.95, when a block must go on) is left out, since
    the first unfinished block passes it always.
    """

    def __init__(
        self,
        length: int,
        mask_id: int,
        stop_ids: frozenset[int] = frozenset(),
        block: int = 32,
        threshold: float = 0.5,
        add: float = 0.1,
    ) -> None:
        self._blocks = [range(i, min(i + block, length)) for i in range(0, length, block)]
        self._mask_id = mask_id
        self._stop_ids = sorted(stop_ids)
        self._threshold, self._add = threshold, add
        self._opened = 1
        self._masked: list[bool] = []

    def open(self, contents: Tensor) -> Tensor:
        stop_ids = torch.tensor(self._stop_ids, dtype=torch.long, device=contents.device)
        stops = torch.isin(contents, stop_ids)
        if stops.any():
            first = int(stops.int().argmax())
            contents[first + 1 :] = contents[first]
        self._masked = (contents == self._mask_id).tolist()
        more = self._opened < len(self._blocks) and self._filled(self._opened - 1) >= self._add
        if more and any(self._masked):
            self._opened += 1
        end = self._blocks[self._opened - 1].stop
        slots = [slot for slot in range(end) if self._masked[slot]]
        return torch.tensor(slots, dtype=torch.long, device=contents.device)

    def choose(self, candidates: Candidates) -> Tensor:
        nats = entropies(candidates.logits.double().softmax(-1))
        certain = nats <= self._threshold
        first = next(block for block in self._blocks if any(self._masked[i] for i in block))
        inside = candidates.slots < first.stop
        if not (certain & inside).any():
            certain[nats.masked_fill(~inside, torch.inf).argmin()] = True
        return certain.nonzero()[:, 0]

    def _filled(self, block: int) -> float:
        """The share of a block that is filled."""
        slots = self._blocks[block]
        return 1 - sum(self._masked[slot] for slot in slots) / len(slots)


@torch.inference_mode()
def draw_tokens(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Tokens ``[m]`` of logits ``[m, vocabulary]``, by Gumbel noise in float64.

    The largest noisy logit is a draw from the filtered distribution; in lower precision the
    noise's tail is cut and the draws are too sure (arXiv 2409.02908).
    """
    if sampling.greedy:
        return logits.argmax(-1)
    noise = torch.rand(
        logits.shape, generator=generator, dtype=torch.float64, device=generator.device
    )
    gumbel = -(-noise.log()).log()
    kept = probabilities(logits, sampling) > 0
    scores = logits.double() / sampling.temperature + gumbel.to(logits.device)
    return scores.masked_fill(~kept, -torch.inf).argmax(-1)


@torch.inference_mode()
def denoise(
    predict: Predict,
    contents: Tensor,
    choice: Choice,
    sampling: Sampling,
    generator: torch.Generator,
) -> Iterator[Step]:
    """Fill masked slots of ``contents`` ``[n]`` in place, one forward a step.

    Nothing is fetched from the device where the counts are known beforehand.
    """
    while len(slots := choice.open(contents)):
        logits = predict(contents)[slots]
        tokens = draw_tokens(logits, sampling, generator)
        picked = choice.choose(Candidates(slots, logits, tokens, sampling))
        contents[slots[picked]] = tokens[picked]
        yield Step(slots[picked], tokens[picked])
