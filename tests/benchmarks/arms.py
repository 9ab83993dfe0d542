"""Arms that decode the same prompts, run next to each other in alternating order."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

Arm = Callable[[list[int], int], list[int]]
"""(prompt ids, new tokens) -> output ids."""


@dataclass(frozen=True)
class Comparison:
    """Seconds of two arms over the same prompts, and whether their outputs agree.

    Attributes:
        ratio: median over prompts and repeats of reference seconds / our seconds.
        low, high: the middle half of those ratios.
    """

    name: str
    reference_ms: float
    ours_ms: float
    ratio: float
    low: float
    high: float
    n: int
    same_output: bool


def compare(
    name: str, reference: Arm, ours: Arm, prompts: list[list[int]], tokens: int, repeats: int = 5
) -> Comparison:
    """Time both arms on every prompt, in alternating order, after one warm-up of each."""
    same = all(reference(p, tokens) == ours(p, tokens) for p in prompts)
    pairs: list[tuple[float, float]] = []
    for repeat in range(repeats):
        for index, prompt in enumerate(prompts):
            arms = [reference, ours]
            if (repeat + index) % 2:
                arms.reverse()
            took = {arm: seconds(arm, prompt, tokens) for arm in arms}
            pairs.append((took[reference], took[ours]))
    ratios = [a / b for a, b in pairs]
    low, _, high = statistics.quantiles(ratios, n=4)
    per_token = 1e3 / tokens
    return Comparison(
        name,
        statistics.median(a for a, _ in pairs) * per_token,
        statistics.median(b for _, b in pairs) * per_token,
        statistics.median(ratios),
        low,
        high,
        len(pairs),
        same,
    )


def seconds(arm: Arm, prompt: list[int], tokens: int) -> float:
    synchronise()
    start = time.perf_counter()
    arm(prompt, tokens)
    synchronise()
    return time.perf_counter() - start


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
