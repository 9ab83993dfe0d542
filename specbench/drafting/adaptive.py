"""The adaptive draft length of DiffuSpec (arXiv 2510.02358), for any drafter with a free length.

This module imports no torch, so that options can use it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class AdaptiveLength:
    """The next draft's length, from what past drafts held and how much of them was accepted.

    Both counts are smoothed, x~ <- (1 - rho) x~ + rho x from 0, and the next length is
    floor(generated~) + delta [accepted~ >= generated~], clipped after the addition. The paper
    states no rounding. Starting at 0 halves the first count, so that the second draft usually has
    k_min tokens.

    A drafter drafts ``length`` tokens and reports every round: `drafted` when it proposes,
    `committed` when it learns what was accepted. Or it counts by itself and calls `update`.

    Args:
        k_min: the shortest draft.
        k_max: the longest draft, and the first one; equal to ``k_min``, the length is fixed.
        delta: tokens added while everything drafted is accepted.
        rho: weight of the newest round.

    Raises:
        ValueError: bounds or a weight out of range.
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
        self._pending: Tensor | None = None
        self.length = k_max

    def drafted(self, tokens: Tensor, stop_ids: Tensor) -> None:
        """Count a raw draft ``[n]`` before its first stop token; the count stays on the device."""
        self._pending = before_stop(tokens, stop_ids)

    def committed(self, accepted: int) -> None:
        """Learn from the round of the last draft; the device has been waited for by now."""
        if self._pending is not None:
            self.update(int(self._pending), accepted)
            self._pending = None

    def update(self, generated: int, accepted: int) -> None:
        """Learn from one round.

        Args:
            generated: drafted tokens before the first stop token of the raw draft; all of them
                where it has none.
            accepted: drafted tokens that were accepted, the bonus not counted.
        """
        self._generated += self._rho * (generated - self._generated)
        self._accepted += self._rho * (accepted - self._accepted)
        added = self._delta if self._accepted >= self._generated else 0
        least, most = self._bounds
        self.length = min(max(math.floor(self._generated) + added, least), most)


def before_stop(tokens: Tensor, stop_ids: Tensor) -> Tensor:
    """Count ``tokens`` ``[n]`` before the first that is in ``stop_ids`` ``[m]``: 0-d, on the
    device."""
    return (tokens[:, None] != stop_ids).all(-1).long().cumprod(0).sum()
