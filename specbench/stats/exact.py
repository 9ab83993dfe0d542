"""An exact paired test for few prompts, where a bootstrap interval covers less than it says."""

from dataclasses import dataclass

import numpy as np

from specbench.stats.bootstrap import Array, Statistic

MOST_PROMPTS = 20
"""Prompts up to which all swaps are tried; from there on the bootstrap interval is trusted."""
ROUNDING = 1e-9


@dataclass(frozen=True)
class SwapTest:
    """One-sided p-values of "the two runs do not differ", for a loss and for a gain.

    Attributes:
        n: prompts; no p-value can be below ``2 ** -n``.
    """

    loss: float
    gain: float
    n: int


def swap_test(after: Array, before: Array, figure: Statistic) -> SwapTest:
    """Compare a figure of two runs under every way to swap the runs, prompt by prompt.

    If nothing changed, each prompt's two results could as well have come the other way round, so
    all ``2 ** n`` swaps are equally likely (Fisher's permutation test for pairs). The p-value of
    a loss is the share of swaps whose ratio of figures is as low as the observed one or lower; the
    observed one is among them.

    Args:
        after, before: ``[prompts, columns]`` sums of the same prompts, at most `MOST_PROMPTS`.
        figure: maps sums ``[..., columns]`` to ``[..., 1]``.
    """
    moved = np.zeros((1, after.shape[1]))
    for step in before - after:
        moved = np.concatenate([moved, moved + step])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = (figure(after.sum(0) + moved) / figure(before.sum(0) - moved))[:, 0]
    # A ratio that does not exist counts on both sides, which can only raise the p-values.
    higher = ratios > ratios[0] * (1 + ROUNDING)
    lower = ratios < ratios[0] * (1 - ROUNDING)
    return SwapTest(float(1 - higher.mean()), float(1 - lower.mean()), len(after))
