"""Whether a speculative output is still the target's own.

Two forwards over the same tokens round differently when they hold different numbers of rows, so
two outputs may part where the target itself is undecided. What "undecided" means is measured on
the very device and dtype, not assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
FARTHEST = 1e3


def first_difference(expected: tuple[int, ...], emitted: tuple[int, ...]) -> int | None:
    """Index of the first token that differs, a missing one included; None where all agree."""
    for index, (one, other) in enumerate(zip(expected, emitted, strict=False)):
        if one != other:
            return index
    shorter = min(len(expected), len(emitted))
    return None if len(expected) == len(emitted) else shorter


class Judge:
    """Compares outputs with the autoregressive one of the same prompt and seed.

    Args:
        target: computes logits once more where two outputs part.
        sampling: of the outputs.
        prompts: some prompts; the shortest of them measures the tolerance, when it is needed.
        width: the most tokens that any arm proposes at once.
    """

    def __init__(
        self,
        target: Target,
        sampling: Sampling,
        prompts: Callable[[], Sequence[list[int]]],
        width: int,
    ) -> None:
        self.target = target
        self.sampling = sampling
        self._prompts = prompts
        self._width = width

    @cached_property
    def tolerance(self) -> float:
        """See `measure_tolerance`."""
        return measure_tolerance(self.target, min(self._prompts(), key=len), self._width)

    def verdict(
        self, prompt: list[int], seed: int, expected: tuple[int, ...], emitted: tuple[int, ...]
    ) -> Verdict:
        """Judge one output of a rule that keeps the text.

        Where two outputs part, the target's logits after the common prefix are computed once
        more. It is a "near-tie" if both tokens are within `tolerance` (a logit difference) of
        being the target's choice there, else "broken". It is "broken" too where one output ends
        and the other goes on.
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
    """How far logits ``[vocabulary]`` must move for ``uniform`` to draw ``token``.

    Moving every logit by at most d moves the log-odds of a cumulated probability by at most
    2 d / temperature, and moves tokens over the edge of top-k or top-p. The smallest d within
    which both together can reach the draw, to a thousandth; 0 where it is drawn as it is, and
    infinity where nothing within `FARTHEST` does it.
    """
    order = logits.double().sort(descending=True, stable=True)
    reaches = partial(_reaches, order.values / sampling.temperature, order.indices, token)
    if reaches(uniform, sampling, 0.0):
        return 0.0
    low, high = 0.0, 1e-6
    while not reaches(uniform, sampling, high / sampling.temperature):
        low, high = high, 2 * high
        if high > FARTHEST:
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
    """Whether scores (falling; of ``ids``) moved by at most ``shift`` can draw ``token``.

    Tokens at the filter's edge may be in or out: the lowest start of the token's interval leaves
    out those with lower ids and takes in those with higher ones, the highest end the reverse.
    """
    certain, possible = _kept(scores, sampling, shift)
    place = ids == token
    if not bool((possible & place).any()):
        return False
    mass = scores.softmax(-1)
    own = float(mass[place])
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
    """Which tokens the filters keep however, and which they may keep, when falling ``scores``
    move by at most ``shift``: two ``[vocabulary]`` masks over ranks."""
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
    """The mass before each of ``ranks``, of ``whole``."""
    before = torch.cat([mass.new_zeros(1), mass.cumsum(-1)])
    return (before[ranks] / whole).clamp(0, 1)


@torch.inference_mode()
def measure_tolerance(target: Target, prompt: list[int], width: int) -> float:
    """What the target's logits may differ by when rows are computed together, times two.

    A greedy continuation of ``prompt`` is decoded one token at a time, then the same tokens once
    more in blocks of an anchor and ``width`` drafted tokens; the largest absolute difference
    between the logits of the two, with all that rounding has done to the cached keys and values
    by then, is what a true verification can be off by. It counts as at least one rounding step
    of the largest logit, and as no more than a target's self-check lets pass: a fault in the very
    forward that is measured here must not excuse itself.
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
    # A few dozen tokens may all round alike: one step of the dtype can always happen.
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
    """The number in [0, 1) with which the verifier draws output token ``position``."""
    noise = seeded_generator(seed, "verify", torch.device("cpu"))
    return float(torch.rand(position + 1, generator=noise)[position])


def _log_odds(p: float) -> float:
    if p <= 0:
        return -math.inf
    return math.inf if p >= 1 else math.log(p) - math.log1p(-p)
