"""Adaptive draft length of DiffuSpec (arXiv 2510.02358), for any drafter whose length is free.

A drafter drafts `AdaptiveLength.length` tokens and tells it afterwards what came of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class AdaptiveLength:
    """The next draft's length from what past drafts held and what was kept of them.

    Both counts are smoothed, x~ <- (1 - rho) x~ + rho x from 0, and the next length is
    floor(generated~) + delta [accepted~ >= generated~], clipped after the addition. The paper
    states no rounding. Starting at 0 halves the first count, so that the second draft usually has
    k_min tokens.

    Args:
        k_min: the shortest draft.
        k_max: the longest, and the first.
        delta: tokens added while all that is drafted is kept.
        rho: weight of the newest round.

    Raises:
        ValueError: lengths or a weight that make no sense.
    """

    def __init__(self, k_min: int = 20, k_max: int = 30, delta: int = 10, rho: float = 0.5) -> None:
        if not 1 <= k_min <= k_max or delta < 0 or not 0 < rho <= 1:
            raise ValueError(
                "an adaptive length needs 1 <= k_min <= k_max, delta >= 0 and rho in (0, 1], not "
                f"{k_min}, {k_max}, {delta} and {rho}"
            )
        self._bounds = k_min, k_max
        self._delta = delta
        self._rho = rho
        self._generated = 0.0
        self._accepted = 0.0
        self.length = k_max

    def update(self, generated: int, accepted: int) -> None:
        """Learn from a round.

        Args:
            generated: drafted tokens before the first stop token of the raw draft, all of them
                where it has none.
            accepted: drafted tokens that were kept, the bonus not among them.
        """
        self._generated += self._rho * (generated - self._generated)
        self._accepted += self._rho * (accepted - self._accepted)
        grown = self._delta if self._accepted >= self._generated else 0
        least, most = self._bounds
        self.length = min(max(math.floor(self._generated) + grown, least), most)


def before_stop(tokens: Tensor, stop_ids: Tensor) -> Tensor:
    """0-d count of ``tokens`` ``[n]`` before the first that is in ``stop_ids`` ``[m]``.

    It stays on the device: a drafter reads it in its next commit, when the round has been waited
    for anyway.
    """
    return (tokens[:, None] != stop_ids).all(-1).long().cumprod(0).sum()
