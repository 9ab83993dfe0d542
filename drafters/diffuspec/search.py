"""Causal-consistency path search (CPS): the path of a lattice that reads best left to right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from drafters.diffuspec.lattice import Lattice
from drafters.diffuspec.scorer import ScorerContext


@dataclass(frozen=True)
class Hypothesis:
    """A path, its score, and the scorer's state behind its last token."""

    tokens: tuple[int, ...]
    score: float
    state: Any

    @property
    def mean(self) -> float:
        """The score a token."""
        return self.score / max(1, len(self.tokens))


def search_path(
    lattice: Lattice,
    context: ScorerContext,
    *,
    beam: int,
    weight: float,
    stop: int | None,
    by_mean: bool = False,
) -> Hypothesis:
    """Left-to-right beam search (arXiv 2510.02358, equation 8).

    The score of a path is the sum over its tokens of weight * log q(token), the diffusion model's,
    and (1 - weight) * log p(token | what is before it), the causal scorer's, natural logarithms
    both. A path that takes the stop token is finished and leaves the beam. The best of the
    finished and the full-depth paths is the draft.

    The path is a function of the prefix, so it is judged as a one-hot proposal, which is exact at
    every temperature. (The ratio rule min(1, p / q) is not: a searched path is no sample of q.)

    Args:
        context: of the committed tokens.
        beam: unfinished paths that are kept.
        by_mean: compare the last ones by score a token instead of by score.
    """
    live = [Hypothesis((), 0.0, context.start())]
    finished: list[Hypothesis] = []
    for tokens, logprobs in zip(lattice.tokens, lattice.logprobs, strict=True):
        causal = context.score([one.state for one in live], tokens)
        ahead = np.array([one.score for one in live])[:, None]
        scores = ahead + weight * logprobs + (1 - weight) * causal
        grown: list[Hypothesis] = []
        ended = False
        for flat in np.argsort(-scores, axis=None, kind="stable").tolist():
            parent, index = divmod(flat, len(tokens))
            source, token = live[parent], tokens[index]
            path, score = (*source.tokens, token), float(scores[parent, index])
            if token != stop and len(grown) < beam:
                grown.append(Hypothesis(path, score, context.step(source.state, token)))
            elif token == stop and not ended:
                finished.append(Hypothesis(path, score, None))
                ended = True
            if len(grown) == beam and (ended or stop is None):
                break
        live = grown
        if not live:
            break
    return max(finished + live[:1], key=lambda one: one.mean if by_mean else one.score)
