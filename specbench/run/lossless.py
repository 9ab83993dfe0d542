"""Judge whether a speculative output is the target's own.

Forwards with different numbers of rows round differently, so two correct outputs may differ where
two tokens are nearly tied. How near a tie must be is measured on the device and dtype in use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from specbench.core.kv import KVCache
from specbench.core.proposal import Proposal
from specbench.core.sampling import Sampling, seeded_generator
from specbench.core.target import Target, largest_error
from specbench.records.records import Verdict

TOLERANCE_TOKENS = 48
TOLERANCE_FACTOR = 2.0
MAX_LOGIT_SHIFT = 1e3


def first_difference(expected: tuple[int, ...], emitted: tuple[int, ...]) -> int | None:
    """Return the index of the first token that differs or is missing; None if all are equal."""
    if expected == emitted:
        return None
    pairs = zip(expected, emitted, strict=False)
    shorter = min(len(expected), len(emitted))
    return next((index for index, (a, b) in enumerate(pairs) if a != b), shorter)


@dataclass
class Judge:
    """Compares outputs with the baseline's output for the same prompt and seed.

    Attributes:
        target: the model; it computes the logits where two outputs differ again.
        sampling: how the output tokens were drawn.
        prompts: returns some prompts; the tolerance is measured on the shortest, when needed.
        width: the most tokens that any arm proposes at once.
    """

    target: Target
    sampling: Sampling
    prompts: Callable[[], Sequence[list[int]]]
    width: int

    @cached_property
    def tolerance(self) -> float:
        """Largest logit difference of a near tie; see `measure_tolerance`."""
        return measure_tolerance(self.target, min(self.prompts(), key=len), self.width)

    def verdict(
        self, prompt: list[int], seed: int, expected: tuple[int, ...], emitted: tuple[int, ...]
    ) -> Verdict:
        """Judge one output of a rule with `same_text`.

        If the outputs differ, the target's logits after their common prefix are computed again.
        The verdict is "near-tie" if both tokens are within `tolerance` (a logit difference) of
        being the target's choice there, else "broken". It is also "broken" if one output is a
        prefix of the other.

        Args:
            prompt: token ids.
            seed: random seed of both outputs.
            expected: the baseline's output tokens.
            emitted: the output tokens to judge.
        """
        position = first_difference(expected, emitted)
        if position is None:
            return Verdict("identical")
        if position >= min(len(expected), len(emitted)):
            return Verdict("broken", position)
        logits = _next_logits(self.target, [*prompt, *expected[:position]])
        pair = (expected[position], emitted[position])
        if self.sampling.greedy:
            gap = float(logits.max() - logits[list(pair)].min())
        else:
            uniform = _uniform(seed, position)
            gap = max(sampled_gap(logits, token, uniform, self.sampling) for token in pair)
        kind = "near-tie" if gap <= self.tolerance else "broken"
        return Verdict(kind, position, gap if math.isfinite(gap) else None)


def sampled_gap(logits: Tensor, token: int, uniform: float, sampling: Sampling) -> float:
    """Return how far logits ``[vocabulary]`` must move for ``uniform`` to draw ``token``.

    If every logit moves by at most d, the log-odds of a cumulated probability move by at most
    2 d / temperature, and tokens may cross the edge of top-k or top-p. The result is the smallest
    d for which both effects together can make the draw, within 0.1 %. It is 0 if ``token`` is
    drawn without any move, and infinity if no d up to `MAX_LOGIT_SHIFT` is enough.
    """
    order = logits.double().sort(descending=True, stable=True)
    reaches = partial(_reaches, order.values / sampling.temperature, order.indices, token)
    if reaches(uniform, sampling, 0.0):
        return 0.0
    low, high = 0.0, 1e-6
    while not reaches(uniform, sampling, high / sampling.temperature):
        low, high = high, 2 * high
        if high > MAX_LOGIT_SHIFT:
            return math.inf
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        if reaches(uniform, sampling, middle / sampling.temperature):
            high = middle
        else:
            low = middle
    return high


def _reaches(
    scores: Tensor, ids: Tensor, token: int, uniform: float, sampling: Sampling, shift: float
) -> bool:
    """Return whether scores moved by at most ``shift`` can draw ``token``.

    Tokens at the edge of the filters may be kept or not. The token's interval starts lowest if
    those with lower ids are dropped and those with higher ids kept; it ends highest in the
    opposite case.

    Args:
        scores: ``[vocabulary]`` logits / temperature, in descending order.
        ids: ``[vocabulary]`` token ids of the scores.
    """
    certain, possible = _kept(scores, sampling, shift)
    is_token = ids == token
    if not bool((possible & is_token).any()):
        return False
    mass = scores.softmax(-1)
    own = float(mass[is_token])
    below, above = ids < token, ids > token

    def total(side: Tensor, kept: Tensor) -> float:
        return float(mass[side & kept].sum())

    low, most_above = total(below, certain), total(above, possible)
    most_low, least_above = total(below, possible), total(above, certain)
    start = low / (low + own + most_above)
    end = (most_low + own) / (most_low + own + least_above)
    slack, at = 2 * shift, _log_odds(uniform)
    return _log_odds(start) - slack <= at < _log_odds(end) + slack


def _kept(scores: Tensor, sampling: Sampling, shift: float) -> tuple[Tensor, Tensor]:
    """Return which tokens the filters certainly keep, and which they possibly keep.

    Both are ``[vocabulary]`` masks over descending ``scores`` that move by at most ``shift``.
    """
    count, slack = len(scores), 2 * shift
    certain = possible = torch.ones(count, dtype=torch.bool, device=scores.device)
    if 0 < sampling.top_k < count:
        certain = scores - slack >= scores[sampling.top_k]
        possible = scores + slack >= scores[sampling.top_k - 1]
    if sampling.top_p < 1:
        mass = scores.softmax(-1)
        edge = _log_odds(sampling.top_p)
        falling = -scores
        surely_before = torch.searchsorted(falling, falling - slack)
        maybe_before = torch.searchsorted(falling, falling + slack, right=True)
        least = _share(mass * certain, surely_before, float(mass[possible].sum()))
        others = _share(mass * possible, maybe_before, float(mass[certain].sum()))
        most = others - mass / float(mass[certain].sum())
        possible = possible & (torch.logit(least) - slack < edge)
        certain = certain & (torch.logit(most.clamp(0, 1)) + slack < edge)
    return certain, possible


def _share(mass: Tensor, ranks: Tensor, whole: float) -> Tensor:
    """Return the mass before each of ``ranks``, as a share of ``whole``."""
    before = torch.cat([mass.new_zeros(1), mass.cumsum(-1)])
    return (before[ranks] / whole).clamp(0, 1)


@torch.inference_mode()
def measure_tolerance(target: Target, prompt: list[int], width: int) -> float:
    """Measure how far logits may differ if rows are computed together; return twice as much.

    A greedy continuation of ``prompt`` is decoded one token at a time, and then again in blocks
    of an anchor and ``width`` drafted tokens. The largest absolute difference between the two
    sets of logits, which includes the rounding of cached keys and values, is the error that a
    correct verification can have. It is at least one rounding step of the largest logit. It is at
    most what the target's self-check allows, so a faulty forward cannot raise its own tolerance.
    """
    count = target.budget(len(prompt), TOLERANCE_TOKENS)
    cache = KVCache(target.num_layers, len(prompt) + count + width + 1)
    logits, _ = target.forward(_ids(target, prompt), cache, last_only=True)
    tokens, rows = [logits[-1].argmax()], []
    for _ in range(count - 1):
        rows.append(_step(target, cache, torch.stack(tokens[-1:])))
        tokens.append(rows[-1][-1].argmax())
    cache.truncate(len(prompt))
    blocks = torch.split(torch.stack(tokens[:-1] or tokens), width + 1)
    together = torch.cat([_step(target, cache, block) for block in blocks])
    alone = torch.cat(rows) if rows else together
    difference = float((together.float() - alone.float()).abs().max())
    # A few dozen tokens may happen to round alike, so allow at least one step of the dtype.
    largest = float(together.abs().max())
    step = torch.finfo(target.dtype).eps * largest
    return min(TOLERANCE_FACTOR * max(difference, step), largest_error(target.dtype) * largest)


def _step(target: Target, cache: KVCache, ids: Tensor) -> Tensor:
    return target.forward(ids, cache, tree=Proposal.chain(ids[1:]))[0]


@torch.inference_mode()
def _next_logits(target: Target, ids: list[int]) -> Tensor:
    cache = KVCache(target.num_layers, len(ids))
    return target.forward(_ids(target, ids), cache, last_only=True)[0][-1].float()


def _ids(target: Target, tokens: list[int]) -> Tensor:
    return torch.tensor(tokens, device=target.device)


def _uniform(seed: int, position: int) -> float:
    """Return the uniform in [0, 1) with which the verifier draws output token ``position``."""
    noise = seeded_generator(seed, "verify", torch.device("cpu"))
    return float(torch.rand(position + 1, generator=noise)[position])


def _log_odds(p: float) -> float:
    if p <= 0:
        return -math.inf
    return math.inf if p >= 1 else math.log(p) - math.log1p(-p)
