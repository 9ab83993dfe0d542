"""The token lattice of one diffusion pass: the tokens that a path may take at each position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Lattice:
    """Candidates of every position, most likely first, and their natural log-probabilities."""

    tokens: list[list[int]]
    logprobs: list[NDArray[np.float64]]

    def __len__(self) -> int:
        return len(self.tokens)


def build_lattice(
    logits: Tensor, *, mass: float, most: int, stop: int | None, stop_rule: str = "first-raw"
) -> Lattice:
    """Build the lattice of a draft's logits (arXiv 2510.02358, equation 7); one host sync.

    A position's candidates are the fewest most likely tokens that cover ``mass`` together, at most
    ``most``, and the stop token as ``stop_rule`` says. The lattice is no deeper than the first stop
    token of the raw argmax draft: a diffusion model writes only padding behind it.

    Args:
        logits: ``[k, vocabulary]``, k at least 1; banned ids are -inf and never candidates.
        stop: the id that ends a text; None where there is none.
        stop_rule: one of `STOP_RULES`.

    Raises:
        ValueError: logits that are not finite.
    """
    logprobs = logits.float().log_softmax(-1)
    best = logprobs.topk(min(most, logprobs.shape[-1]))
    ends = logprobs[:, :1] if stop is None else logprobs[:, stop : stop + 1]
    # Ids are exact in float64, so everything can be fetched at once.
    host = torch.cat([best.values.double(), best.indices.double(), ends.double()], dim=-1)
    table = host.cpu().numpy()
    width = best.indices.shape[-1]
    logs, ids, stop_logs = table[:, :width], table[:, width:-1].astype(np.int64), table[:, -1]
    if not np.isfinite(logs[:, 0]).all():
        raise ValueError("the draft's logits are NaN or infinite")
    depth = _depth(ids[:, 0], stop)
    finite = np.isfinite(logs)
    kept = (np.exp(logs).cumsum(-1) - np.exp(logs) < mass) & finite
    if stop is not None and stop_rule == "first-raw":
        kept &= ids != stop
        kept[:, 0] = True  # Within the depth, only the last position's best token can be the stop.
    elif stop is not None:
        kept |= (ids == stop) & finite
    tokens = [ids[place][kept[place]] for place in range(depth)]
    scores = [logs[place][kept[place]] for place in range(depth)]
    if stop is not None and stop_rule in ("mean", "literal"):
        for place in range(depth):
            if stop not in tokens[place] and np.isfinite(stop_logs[place]):
                tokens[place] = np.append(tokens[place], stop)
                scores[place] = np.append(scores[place], stop_logs[place])
    return Lattice([row.tolist() for row in tokens], scores)


def _depth(raw: NDArray[np.int64], stop: int | None) -> int:
    """Count the positions up to and including the first stop token of the raw draft."""
    ends = (raw == stop).nonzero()[0]
    return int(ends[0]) + 1 if len(ends) else len(raw)
