"""Bootstrap intervals of ratios of sums over prompts, and how many prompts would be enough."""

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
"""With fewer prompts, a 95 % interval covers less than 95 %."""

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval.

    Attributes:
        value: None if it cannot be computed.
        interval: 95 % bootstrap interval over prompts; None with fewer than two prompts.
        n: number of prompts.
    """

    value: float | None
    interval: Interval | None
    n: int

    def text(self, digits: int = 2) -> str:
        """``3.10 [2.90, 3.30]``; empty without a value."""
        if self.value is None:
            return ""
        ends = ", ".join(f"{end:.{digits}f}" for end in self.interval or ())
        return f"{self.value:.{digits}f}" + (f" [{ends}]" if ends else "")


def estimates(sums: Array, statistic: Statistic, seed: int = 0) -> list[Estimate]:
    """Bootstrap of ``statistic``, which maps ``[..., columns]`` sums to ``[..., figures]``.

    Expanded percentile interval (Hesterberg 2015, "What teachers should know about the
    bootstrap", section 5.2). Its coverage in simulation is 93 to 95 % from 32 prompts on and 90 to
    95 % at 16 (the plain percentile interval: 91 to 94 % and 87 to 92 %). Resamples in which a
    figure does not exist (division by zero) are left out of that figure's interval.
    """
    n = len(sums)
    values = statistic(sums.sum(0))
    draws = statistic(_resamples(n, seed) @ sums) if n > 1 else np.zeros((0, len(values)))
    return [
        Estimate(float(value), _interval(drawn, n), n)
        if np.isfinite(value)
        else Estimate(None, None, n)
        for value, drawn in zip(values, draws.T, strict=True)
    ]


@lru_cache(maxsize=4)
def _resamples(n: int, seed: int) -> Array:
    """``[RESAMPLES, n]``: how often each resample contains each prompt."""
    drawn = np.random.default_rng(seed).integers(n, size=(RESAMPLES, n))
    flat = drawn + n * np.arange(RESAMPLES)[:, None]
    counts = np.bincount(flat.ravel(), minlength=RESAMPLES * n)
    return counts.reshape(RESAMPLES, n).astype(np.float64)


def _interval(draws: Array, n: int) -> Interval | None:
    known = draws[np.isfinite(draws)]
    if not known.size:
        return None
    low, high = np.quantile(known, [_tail(n), 1 - _tail(n)])
    return float(low), float(high)


def _tail(n: int) -> float:
    """Share of resamples beyond each end: 2.5 % corrected for few prompts.

    Student's quantile replaces the normal one, and n - 1 replaces n in the variance.
    """
    return NormalDist().cdf(-_student(CONFIDENCE, n - 1) * math.sqrt(n / (n - 1)))


def _student(confidence: float, v: int) -> float:
    """Student's two-sided quantile at ``v`` degrees of freedom.

    From its expansion in 1 / v (Abramowitz and Stegun 26.7.5).
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    t = z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
    return t + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)


def shared(ratio: Estimate, figures: int) -> Estimate:
    """A ratio with its interval corrected for the number of ``figures`` (Bonferroni).

    The chance that any of these intervals wrongly excludes 1 is at most about 5 %, whichever
    figure is picked out afterwards. There are too few resamples for quantiles that far out, so
    each end is moved away from the ratio, on a logarithmic scale, by the growth of Student's
    quantile.
    """
    if not ratio.value or ratio.interval is None:
        return ratio
    v, confidence = ratio.n - 1, 1 - (1 - CONFIDENCE) / figures
    wider = _student(confidence, v) / _student(CONFIDENCE, v)
    low, high = (ratio.value * (end / ratio.value) ** wider for end in ratio.interval)
    return replace(ratio, interval=(low, high))


def prompts_for(estimate: Estimate, precision: float) -> int | None:
    """Number of prompts that would narrow the interval to about ± ``precision`` of the figure.

    The width is proportional to one over the square root of the number. None without an interval
    or for a figure of 0.
    """
    if not estimate.value or estimate.interval is None:
        return None
    low, high = estimate.interval
    half = (high - low) / 2 / abs(estimate.value)
    return max(2, math.ceil(estimate.n * (half / precision) ** 2))


def prompts_to_decide(ratio: Estimate) -> int | None:
    """Number of prompts whose interval would exclude 1 if the true ratio is the observed one.

    None without an interval or for a ratio of 1.
    """
    if not ratio.value or ratio.interval is None or ratio.value == 1:
        return None
    low, high = ratio.interval
    if low > 1 or high < 1:
        return ratio.n
    near = low if ratio.value > 1 else high
    return max(ratio.n + 1, math.ceil(ratio.n * ((ratio.value - near) / (ratio.value - 1)) ** 2))
