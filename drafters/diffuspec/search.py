"""Causal-consistency path search (CPS): the best path of a lattice, read from left to right."""

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
        """The score per token."""
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
    """Search the lattice from left to right with a beam (arXiv 2510.02358, equation 8).

    The score of a path is the sum over its tokens of weight * log q(token), q being the diffusion
    model's probability, and (1 - weight) * log p(token | the tokens before it), p being the causal
    scorer's; both are natural logarithms. A path that takes the stop token is finished and leaves
    the beam. The best of the finished paths and those of full depth is the draft.

    The path is a function of the prefix, so it is verified as a one-hot proposal, which is exact
    at every temperature. The ratio rule min(1, p / q) would not be: a searched path is not a
    sample of q.

    Args:
        context: the scorer's context of the committed tokens.
        beam: unfinished paths that are kept.
        by_mean: compare the final paths by score per token instead of by score.
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
