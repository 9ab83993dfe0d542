"""Fill masked slots step by step, as masked-diffusion language models are sampled.

One loop, `denoise`. The published samplers differ in which of the masked slots a step fills: an
order (one function each) with counts known beforehand, or d3LLM's rule. A filled slot is never
masked again. That holds for LLaDA's "re-masking" too, which predicts every masked slot in each
step and masks the predictions with the lowest confidence again.
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
"""The end of Dream's time grid (its `eps`)."""


@dataclass(frozen=True, slots=True)
class Step:
    """The slots ``[m]`` that one forward filled, ascending, and their tokens ``[m]``."""

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
        """``[m, vocabulary]`` probabilities after temperature (1 where greedy), top-k and top-p."""
        temperature = self.sampling.temperature or 1.0
        return probabilities(self.logits, replace(self.sampling, temperature=temperature))

    def own(self, probs: Tensor) -> Tensor:
        """Pick the entries ``[m]`` of ``probs`` ``[m, vocabulary]`` at the candidates' tokens."""
        return probs.gather(-1, self.tokens[:, None])[:, 0]


Order = Callable[[Candidates, torch.Generator], Tensor]
"""Scores ``[m]`` of the candidates: the highest are filled first, of equals the leftmost."""


def low_confidence(candidates: Candidates, generator: torch.Generator) -> Tensor:
    """LLaDA (arXiv 2502.09992, algorithm 5): the token's probability, whatever the temperature.

    It does not depend on the noise that drew the token (ML-GSAI/LLaDA issue 42).
    """
    return candidates.own(candidates.logits.double().softmax(-1))


def uniform(candidates: Candidates, generator: torch.Generator) -> Tensor:
    """Every masked slot is equally likely: LLaDA's random re-masking, Dream's `origin`, and the
    first-hitting sampler of BD3-LM (arXiv 2503.09573)."""
    device = candidates.slots.device
    return torch.rand(len(candidates.slots), generator=generator, device=generator.device).to(
        device
    )


def maskgit_plus(candidates: Candidates, generator: torch.Generator) -> Tensor:
    """Dream: the token's probability in the distribution it was drawn from."""
    return candidates.own(candidates.filtered)


def topk_margin(candidates: Candidates, generator: torch.Generator) -> Tensor:
    """Dream: the difference between the two highest probabilities."""
    first, second = candidates.filtered.topk(2, dim=-1).values.unbind(-1)
    return first - second


def entropy(candidates: Candidates, generator: torch.Generator) -> Tensor:
    """Dream: minus the entropy in nats."""
    return -entropies(candidates.filtered)


def entropies(probs: Tensor) -> Tensor:
    """Compute the entropies ``[...]``, in nats, of distributions ``[..., vocabulary]``."""
    return torch.special.entr(probs).sum(-1)  # type: ignore[no-any-return]


Counts = Callable[[int, int, torch.Generator], list[int]]
"""The number of ``slots`` that each of ``steps`` steps fills; they add up to ``slots``."""


def even(slots: int, steps: int, generator: torch.Generator | None = None) -> list[int]:
    """LLaDA: the same number in every step; the first steps fill one more where there is a rest.

    6 slots in 3 steps are 2, 2, 2, and 7 slots are 3, 2, 2. An article that introduces DFlash
    computes the first example with 4, 1, 1 (and asks for 4 and 2). That is not LLaDA's schedule:
    its paper unmasks an expected L / T slots per step.
    """
    share, rest = divmod(slots, steps)
    return [share + (step < rest) for step in range(steps)]


def time_grid(slots: int, steps: int, generator: torch.Generator | None = None) -> list[int]:
    """Dream: a step from time t to time s fills the share 1 - s/t of the masked slots, rounded
    down; the last step fills the rest. The times fall evenly from 1 to `TIME_END`.

    6 slots in 3 steps are 1, 2, 3; a step may fill none.
    """
    counts: list[int] = []
    for share in _shares(steps):
        counts.append(int((slots - sum(counts)) * share))
    return counts


def independent(slots: int, steps: int, generator: torch.Generator) -> list[int]:
    """Dream's `origin`: on the same time grid every masked slot is filled independently, with the
    step's probability."""
    counts: list[int] = []
    for share in _shares(steps):
        chances = torch.rand(slots - sum(counts), generator=generator, device=generator.device)
        counts.append(int((chances < share).sum()))
    return counts


def one_by_one(slots: int, steps: int, generator: torch.Generator | None = None) -> list[int]:
    """BD3-LM's first-hitting sampler: one slot per step, whatever ``steps`` is."""
    return [1] * slots


def _shares(steps: int) -> list[float]:
    """Compute 1 - s/t of every step of Dream's time grid; 1 in the last step."""
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
"""The samplers with counts known beforehand, by the names that their authors gave them."""


class Choice(Protocol):
    """Decides which slots a step fills."""

    def open(self, contents: Tensor) -> Tensor:
        """Return the slots ``[m]``, ascending, that the next step may fill; none ends the loop."""

    def choose(self, candidates: Candidates) -> Tensor:
        """Return indices into the candidates, ascending, of those to fill: at least one."""


class Ranked:
    """Fills the best slots by an order, as many as the step's count; a count of 0 is no step."""

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
    """d3LLM (arXiv 2601.07568): several blocks are open, and every slot of low entropy is filled.

    A step fills all slots of the open blocks whose entropy, of the unscaled distribution, is at
    most ``threshold`` nats. Where the first unfinished block has no such slot, its slot of lowest
    entropy is filled. The next block is opened, at most one per step, once the share ``add`` of
    the newest block is filled. Everything behind a stop token becomes that token, as in d3LLM's
    early stop. Defaults are those of its evaluation scripts. Their third threshold (0.95, when a
    block must go on) is left out, since the first unfinished block always passes it.
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
        """Compute the share of a block that is filled."""
        slots = self._blocks[block]
        return 1 - sum(self._masked[slot] for slot in slots) / len(slots)


@torch.inference_mode()
def draw_tokens(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Draw tokens ``[m]`` from logits ``[m, vocabulary]``, by Gumbel noise in float64.

    The largest noisy logit is a draw from the filtered distribution. In lower precision the tail
    of the noise is cut, so that likely tokens are drawn too often (arXiv 2409.02908).
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
    """Fill masked slots of ``contents`` ``[n]`` in place, one forward per step.

    Nothing is fetched from the device where the counts are known beforehand.
    """
    while len(slots := choice.open(contents)):
        logits = predict(contents)[slots]
        tokens = draw_tokens(logits, sampling, generator)
        picked = choice.choose(Candidates(slots, logits, tokens, sampling))
        contents[slots[picked]] = tokens[picked]
        yield Step(slots[picked], tokens[picked])
