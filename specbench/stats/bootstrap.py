"""How sure a ratio of sums over prompts is: bootstrap intervals, and how many prompts would do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
CONFIDENCE = 0.95
FEW_PROMPTS = 16
"""Below so many prompts an interval holds the truth less often than it says."""

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """A figure and how sure it is.

    Attributes:
        value: None where it cannot be computed.
        interval: 95 % bootstrap interval over prompts; None below two prompts.
        n: prompts it rests on.
    """

    value: float | None
    interval: Interval | None
    n: int


def estimates(sums: Array, statistic: Statistic, seed: int = 0) -> list[Estimate]:
    """Bootstrap of ``statistic``, which maps ``[..., columns]`` sums to ``[..., figures]``.

    Expanded percentile interval (Hesterberg 2015, "What teachers should know about the
    bootstrap", section 5.2). In simulation it holds the truth 93 to 95 % of the time from 32
    prompts on and 90 to 95 % at 16 (the plain percentile interval: 91 to 94 % and 87 to 92 %). A
    resample in which a figure does not exist (nothing to divide by) is left out of that figure's
    interval.
    """
    n = len(sums)
    values = statistic(sums.sum(0))
    draws = statistic(_resamples(n, seed) @ sums) if n > 1 else np.zeros((0, len(values)))
    intervals = _intervals(draws, n)
    return [
        Estimate(float(value), interval, n) if np.isfinite(value) else Estimate(None, None, n)
        for value, interval in zip(values, intervals, strict=True)
    ]


@lru_cache(maxsize=4)
def _resamples(n: int, seed: int) -> Array:
    """``[RESAMPLES, n]``: how often each prompt is in each resample."""
    drawn = np.random.default_rng(seed).integers(n, size=(RESAMPLES, n))
    flat = drawn + n * np.arange(RESAMPLES)[:, None]
    counts = np.bincount(flat.ravel(), minlength=RESAMPLES * n)
    return counts.reshape(RESAMPLES, n).astype(np.float64)


def _intervals(draws: Array, n: int) -> list[Interval | None]:
    if np.isfinite(draws).all() and draws.size:
        ends = np.quantile(draws, [_tail(n), 1 - _tail(n)], axis=0)
        return [(float(low), float(high)) for low, high in ends.T]
    columns = [column[np.isfinite(column)] for column in draws.T]
    return [_intervals(c[:, None], n)[0] if c.size else None for c in columns]


def _tail(n: int) -> float:
    """Share of resamples outside each end.

    As much wider than 2.5 % as Student's quantile is beyond the normal one and n - 1 below n.
    """
    return NormalDist().cdf(-_student(CONFIDENCE, n - 1) * math.sqrt(n / (n - 1)))


def _student(confidence: float, v: int) -> float:
    """Student's two-sided quantile at ``v`` degrees of freedom.

    By its expansion in 1 / v (Abramowitz and Stegun 26.7.5).
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    t = z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
    return t + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)


def shared(ratio: Estimate, figures: int) -> Estimate:
    """A ratio with the interval it needs as one of so many ``figures``, which share the 5 %.

    With it, the chance that any of them wrongly leaves 1 is about that of a single one at 95 %
    (Bonferroni), whichever of them is picked out afterwards. The resamples do not reach so far
    out: each end is moved away from the figure, on the logarithm's scale, by as much as Student's
    quantile grows.
    """
    if not ratio.value or ratio.interval is None:
        return ratio
    v, confidence = ratio.n - 1, 1 - (1 - CONFIDENCE) / figures
    wider = _student(confidence, v) / _student(CONFIDENCE, v)
    low, high = (ratio.value * (end / ratio.value) ** wider for end in ratio.interval)
    return replace(ratio, interval=(low, high))


def prompts_for(estimate: Estimate, precision: float) -> int | None:
    """Prompts with which the interval would come down to about ± ``precision`` of the figure.

    An interval narrows with the root of the prompts. None without an interval or at figure 0.
    """
    if not estimate.value or estimate.interval is None:
        return None
    low, high = estimate.interval
    half = (high - low) / 2 / abs(estimate.value)
    return max(2, math.ceil(estimate.n * (half / precision) ** 2))


def prompts_to_decide(ratio: Estimate) -> int | None:
    """Prompts with which the interval of a ratio would leave 1, if the ratio is what it seems.

    None without an interval, or where the ratio is 1 as it stands.
    """
    if not ratio.value or ratio.interval is None or ratio.value == 1:
        return None
    low, high = ratio.interval
    if low > 1 or high < 1:
        return ratio.n
    near = low if ratio.value > 1 else high
    return max(ratio.n + 1, math.ceil(ratio.n * ((ratio.value - near) / (ratio.value - 1)) ** 2))
