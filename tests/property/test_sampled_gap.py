"""The gap against moved logits: a token that a move by d can draw has a gap of at most d."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.core.sampling import Sampling, draw, probabilities
from specbench.run.lossless import sampled_gap

FILTERS = [Sampling(0.7), Sampling(1.0, top_k=3), Sampling(0.8, 0, 0.7), Sampling(1.3, 4, 0.8)]


def drawn(logits: torch.Tensor, uniform: float, sampling: Sampling) -> int:
    return int(draw(probabilities(logits, sampling), torch.tensor(uniform, dtype=torch.double)))


@settings(max_examples=40, deadline=None)
@given(
    sampling=st.sampled_from(FILTERS),
    seed=st.integers(0, 2**31),
    size=st.sampled_from([1e-3, 0.05, 0.5]),
)
def test_the_gap_of_a_drawn_token_is_at_most_the_move(
    sampling: Sampling, seed: int, size: float
) -> None:
    noise = torch.Generator().manual_seed(seed)
    logits = torch.randn(8, generator=noise)
    uniform = float(torch.rand(1, generator=noise))
    moves = size * (2 * torch.rand(30, 8, generator=noise) - 1).sign()
    for token in {drawn(logits + move, uniform, sampling) for move in moves}:
        assert sampled_gap(logits, token, uniform, sampling) <= size * 1.002 + 1e-5


SIGNS = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 6)


def moves_something(sampling: Sampling, seed: int) -> bool:
    """Return whether a move by four times the smallest gap draws another token (64 directions)."""
    noise = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, generator=noise)
    uniform = float(torch.rand(1, generator=noise))
    gaps = [sampled_gap(logits, token, uniform, sampling) for token in range(6)]
    nearest = min(gap for gap in gaps if gap > 1e-5)
    return len({drawn(logits + s * 4 * nearest, uniform, sampling) for s in SIGNS}) > 1


@pytest.mark.parametrize("sampling", FILTERS, ids=str)
def test_a_gap_is_not_much_smaller_than_the_move_that_is_needed(sampling: Sampling) -> None:
    """Test the other direction. A gap is a lower bound, so a few draws need more than 4 gaps."""
    assert sum(moves_something(sampling, seed) for seed in range(40)) >= 36


@pytest.mark.parametrize(
    ("sampling", "logits"),
    [
        (Sampling(1.0, top_k=2), [2.0, 1.0, 0.999, -3.0]),
        # Probabilities 0.5, 0.3 and 0.2: the third is kept if the first two sum to less than top_p.
        (Sampling(1.0, 0, 0.7999), [-0.6931, -1.204, -1.6094, -30.0]),
    ],
)
def test_a_token_at_the_filters_edge_is_near(sampling: Sampling, logits: list[float]) -> None:
    """Token 2 is just filtered out; without the filter the uniform would draw it."""
    scores = torch.tensor(logits)
    assert drawn(scores, 0.99, sampling) == 1
    assert sampled_gap(scores, 2, 0.99, sampling) < 0.002
    assert sampled_gap(scores, 3, 0.99, sampling) > 1.0
    # If token 2 is kept, the shares of all others shrink: token 1 is drawn instead of token 0.
    assert sampled_gap(scores, 1, 0.6, sampling) < 0.3
