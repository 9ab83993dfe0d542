"""From records to numbers: AAL, acceptance, speed, and how sure they are.

Every figure is a ratio of sums over prompts, never a mean of rates, so one bootstrap serves all:
prompts (a sample id with all its turns) are drawn with replacement, their sums are added up, and
the ratio is taken again. Only answers with status "ok" count. What cannot be computed is None,
never 0 or NaN.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbench.records import Sample

RESAMPLES = 2000
CONFIDENCE = 0.95

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """A figure and how sure it is.

    Attributes:
        value: None where it cannot be computed.
        interval: 95 % bootstrap percentile interval over prompts; None below two prompts.
        n: prompts it rests on.
    """

    value: float | None
    interval: Interval | None
    n: int


def ok(samples: Iterable[Sample]) -> list[Sample]:
    """The answers that count, in one order whatever order they came in."""
    return sorted((s for s in samples if s.status == "ok"), key=lambda s: (s.sample, s.turn))


def pooled_aal(samples: Iterable[Sample]) -> float | None:
    """Emitted tokens per round over all rounds; None without rounds."""
    return _value(_aal_sums(samples))


def speedup(baseline: Iterable[Sample], samples: Iterable[Sample]) -> float | None:
    """Decode-only speedup on the (sample, turn) pairs that both arms have; None without any."""
    return _value(_decode_pairs(baseline, samples), _quotient_of_ratios)


def estimate_pooled_aal(samples: Iterable[Sample], seed: int = 0) -> Estimate:
    """`pooled_aal` with its interval."""
    return _estimate(_aal_sums(samples), seed=seed)


def estimate_macro_aal(samples: Iterable[Sample], seed: int = 0) -> Estimate:
    """Mean over answers of each answer's emitted tokens per round.

    Answers without a round (their first token ended them) are left out.
    """
    means = [(s.sample, (s.emitted / len(s.rounds), 1.0)) for s in ok(samples) if s.rounds]
    return _estimate(_prompt_sums(means, 2), seed=seed)


def estimate_tokens_per_second(samples: Iterable[Sample], seed: int = 0) -> Estimate:
    """Emitted tokens over decode seconds; prefill and its token are in neither."""
    sums = [(s.sample, (s.emitted, seconds)) for s, seconds in _decode_timed(samples)]
    return _estimate(_prompt_sums(sums, 2), seed=seed)


def estimate_speedup(
    baseline: Iterable[Sample], samples: Iterable[Sample], seed: int = 0
) -> Estimate:
    """`speedup` with its interval: a resample draws a prompt with both its arms."""
    return _estimate(_decode_pairs(baseline, samples), _quotient_of_ratios, seed)


def estimate_end_to_end_speedup(
    baseline: Iterable[Sample], samples: Iterable[Sample], seed: int = 0
) -> Estimate:
    """Speedup with the prefill: seconds of prefill and decode per output token.

    The prefill's own token is counted here, since its seconds are.
    """
    return _estimate(
        _pair_sums(
            [(s, seconds, len(s.output)) for s, seconds in _fully_timed(baseline)],
            [(s, seconds, len(s.output)) for s, seconds in _fully_timed(samples)],
        ),
        _quotient_of_ratios,
        seed,
    )


def estimate_acceptance(samples: Iterable[Sample], seed: int = 0) -> list[Estimate]:
    """Share of all rounds whose kept path reached depth 1, 2, ... up to the deepest reached."""
    return _estimates(_depth_sums(samples), lambda sums: _ratio(sums[..., 1:], sums[..., :1]), seed)


def estimate_conditional_acceptance(samples: Iterable[Sample], seed: int = 0) -> list[Estimate]:
    """Share of the rounds that reached depth k - 1 which reached depth k too, for k = 1, 2, ..."""
    return _estimates(
        _depth_sums(samples), lambda sums: _ratio(sums[..., 1:], sums[..., :-1]), seed
    )


def emitted_histogram(samples: Iterable[Sample]) -> dict[int, int]:
    """How many rounds emitted 1, 2, ... tokens."""
    counts = Counter(emitted for s in ok(samples) for _, _, emitted in s.rounds)
    return dict(sorted(counts.items()))


def estimate_repeated_4grams(samples: Iterable[Sample], seed: int = 0) -> Estimate:
    """Share of an answer's 4-grams of token ids that already stood in it, over all answers.

    Text in a loop is easy to draft, so a high share means an AAL that proper text would not give.
    """
    sums = [(s.sample, _repeated_4grams(s.output)) for s in ok(samples)]
    return _estimate(_prompt_sums(sums, 2), seed=seed)


def estimate_cut_at_budget(samples: Iterable[Sample], seed: int = 0) -> Estimate:
    """Share of answers that ended because the budget did."""
    sums = [(s.sample, (float(s.finish == "length"), 1.0)) for s in ok(samples)]
    return _estimate(_prompt_sums(sums, 2), seed=seed)


def _aal_sums(samples: Iterable[Sample]) -> Array:
    return _prompt_sums([(s.sample, (s.emitted, len(s.rounds))) for s in ok(samples)], 2)


def _decode_pairs(baseline: Iterable[Sample], samples: Iterable[Sample]) -> Array:
    return _pair_sums(
        [(s, seconds, s.emitted) for s, seconds in _decode_timed(baseline)],
        [(s, seconds, s.emitted) for s, seconds in _decode_timed(samples)],
    )


def _decode_timed(samples: Iterable[Sample]) -> list[tuple[Sample, float]]:
    return [(s, s.decode_seconds) for s in ok(samples) if s.decode_seconds is not None]


def _fully_timed(samples: Iterable[Sample]) -> list[tuple[Sample, float]]:
    return [
        (s, s.prefill_seconds + seconds)
        for s, seconds in _decode_timed(samples)
        if s.prefill_seconds is not None
    ]


def _pair_sums(
    baseline: Sequence[tuple[Sample, float, int]], samples: Sequence[tuple[Sample, float, int]]
) -> Array:
    """``[prompts, 4]``: seconds and tokens of the baseline, seconds and tokens of the drafter."""
    arm = {(s.sample, s.turn): (seconds, tokens) for s, seconds, tokens in baseline}
    rows = [
        (s.sample, (*arm[s.sample, s.turn], seconds, tokens))
        for s, seconds, tokens in samples
        if (s.sample, s.turn) in arm
    ]
    return _prompt_sums(rows, 4)


def _depth_sums(samples: Iterable[Sample]) -> Array:
    """``[prompts, 1 + deepest]``: rounds, then rounds that reached depth 1, 2, ..."""
    answers = ok(samples)
    deepest = max((accepted for s in answers for _, accepted, _ in s.rounds), default=0)
    depths = np.arange(deepest + 1)
    rows = [
        (s.sample, (np.array([r[1] for r in s.rounds], dtype=int)[:, None] >= depths).sum(0))
        for s in answers
    ]
    return _prompt_sums(rows, deepest + 1)


def _repeated_4grams(tokens: Sequence[int]) -> tuple[int, int]:
    grams = list(zip(tokens, tokens[1:], tokens[2:], tokens[3:], strict=False))
    return len(grams) - len(set(grams)), len(grams)


def _prompt_sums(
    rows: Iterable[tuple[str, Sequence[float] | NDArray[np.int_]]], width: int
) -> Array:
    """``[prompts, width]``: what the answers of one prompt add up to."""
    sums: dict[str, Array] = {}
    for prompt, row in rows:
        sums[prompt] = sums.get(prompt, np.zeros(width)) + np.asarray(row, dtype=np.float64)
    return np.stack(list(sums.values())) if sums else np.zeros((0, width))


def _ratio(over: Array, under: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return over / under


def _first_over_second(sums: Array) -> Array:
    return _ratio(sums[..., :1], sums[..., 1:])


def _quotient_of_ratios(sums: Array) -> Array:
    return _ratio(_first_over_second(sums[..., :2]), _first_over_second(sums[..., 2:]))


def _value(sums: Array, statistic: Statistic = _first_over_second) -> float | None:
    value = float(statistic(sums.sum(0))[0])
    return value if np.isfinite(value) else None


def _estimate(sums: Array, statistic: Statistic = _first_over_second, seed: int = 0) -> Estimate:
    return _estimates(sums, statistic, seed)[0]


def _estimates(sums: Array, statistic: Statistic, seed: int) -> list[Estimate]:
    """Bootstrap of ``statistic``, which maps ``[..., columns]`` sums to ``[..., figures]``.

    Percentile interval (Efron and Tibshirani 1993, section 13.3); in simulation it holds the
    truth 93 % of the time from 32 prompts on, 89 % at 16 and 79 % at 4. A resample in which a
    figure does not exist (nothing to divide by) is left out of that figure's interval.
    """
    n = len(sums)
    values = statistic(sums.sum(0))
    draws = statistic(_resamples(n, seed) @ sums) if n > 1 else np.zeros((0, len(values)))
    return [
        Estimate(float(value), _interval(draws[:, index]), n)
        if np.isfinite(value)
        else Estimate(None, None, n)
        for index, value in enumerate(values)
    ]


def _resamples(n: int, seed: int) -> Array:
    """``[RESAMPLES, n]``: how often each prompt is in each resample."""
    drawn = np.random.default_rng(seed).integers(n, size=(RESAMPLES, n))
    flat = drawn + n * np.arange(RESAMPLES)[:, None]
    counts = np.bincount(flat.ravel(), minlength=RESAMPLES * n)
    return counts.reshape(RESAMPLES, n).astype(np.float64)


def _interval(draws: Array) -> Interval | None:
    draws = draws[np.isfinite(draws)]
    if not draws.size:
        return None
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
