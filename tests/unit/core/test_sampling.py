"""Sampling: the filters against brute force, and draws against their distribution."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specbench.core.sampling import Sampling, draw, probabilities, seeded_generator


def brute_force(logits: list[float], sampling: Sampling) -> list[float]:
    scaled = [x / sampling.temperature for x in logits]
    order = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))
    if sampling.top_k:
        least = scaled[order[min(sampling.top_k, len(order)) - 1]]
        order = [i for i in order if scaled[i] >= least]
    weights = {i: math.exp(scaled[i] - scaled[order[0]]) for i in order}
    total = sum(weights.values())
    kept, mass = {}, 0.0
    for i in order:
        if mass < sampling.top_p:
            kept[i] = weights[i] / total
        mass += weights[i] / total
    norm = sum(kept.values())
    return [kept.get(i, 0.0) / norm for i in range(len(logits))]


@given(
    st.lists(st.integers(-40, 40), min_size=1, max_size=12),
    st.sampled_from([0.3, 0.6, 1.0, 2.0]),
    st.integers(0, 14),
    st.sampled_from([0.05, 0.33, 0.77, 0.95, 1.0]),
)
def test_the_filter(steps: list[int], temperature: float, top_k: int, top_p: float) -> None:
    logits = [step / 8 for step in steps]
    sampling = Sampling(temperature, top_k, top_p)
    got = probabilities(torch.tensor(logits), sampling)
    want = torch.tensor(brute_force(logits, sampling))
    if (got > 0).ne(want > 0).any():
        # Only a mass that equals top_p within rounding may be kept or dropped.
        ordered = probabilities(torch.tensor(logits), Sampling(temperature, top_k))
        masses = ordered.sort(descending=True).values.cumsum(0)
        assert (masses - top_p).abs().min() < 1e-5
    else:
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.7), Sampling(1, 5), Sampling(1, 0, 0.9)]
)
def test_distributions_are_float32_for_every_dtype_of_logits(sampling: Sampling) -> None:
    logits = torch.randn(3, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    probs = probabilities(logits, sampling)
    assert probs.dtype == torch.float32
    torch.testing.assert_close(probs.sum(-1), torch.ones(3))
    torch.testing.assert_close(probs, probabilities(logits.float(), sampling))


@pytest.mark.parametrize("sampling", [Sampling(1, top_k=7), Sampling(1, top_p=0.6)])
def test_ties_do_not_depend_on_the_number_of_rows(sampling: Sampling) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(6, 5000, generator=generator).mul(4).round() / 4
    together = probabilities(rows, sampling) > 0
    alone = torch.stack([probabilities(row, sampling) > 0 for row in rows])
    assert torch.equal(together, alone)


def test_draws_follow_the_distribution() -> None:
    probs = torch.tensor([0.5, 0.0, 0.2, 0.05, 0.25])
    uniforms = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    tokens = draw(probs.expand(20_000, 5), uniforms)
    counts = torch.bincount(tokens, minlength=5)
    assert counts[1] == 0
    live = probs > 0
    assert stats.chisquare(counts[live].numpy(), (probs[live] * 20_000).numpy()).pvalue > 1e-3


def test_a_draw_is_a_function_of_its_uniform() -> None:
    probs = torch.tensor([0.0, 0.25, 0.25, 0.0, 0.5, 0.0])
    edges = torch.tensor([0.0, 0.2499, 0.25, 0.4999, 0.5, 1 - 2**-24])
    assert draw(probs.expand(6, 6), edges).tolist() == [1, 1, 2, 2, 4, 4]
    assert [int(draw(probs, u)) for u in edges] == [1, 1, 2, 2, 4, 4]


def test_the_tail_of_a_large_vocabulary_is_drawn() -> None:
    probs = torch.full((200_000,), 1 / 200_000)
    uniforms = torch.tensor([0.0, 0.25, 0.5, 0.75, 1 - 2**-24])
    want = (uniforms.double() * 200_000).long()
    assert (draw(probs.expand(5, -1), uniforms) - want).abs().max() <= 1


def test_streams_and_seeds_differ_and_are_reproducible() -> None:
    def first(seed: int, stream: str) -> float:
        return float(torch.rand(1, generator=seeded_generator(seed, stream, torch.device("cpu"))))

    values = [first(seed, stream) for seed in range(4) for stream in ("verify", "reject", "draft")]
    assert len(set(values)) == 12
    assert values[4] == first(1, "reject")


@pytest.mark.parametrize("wrong", [{"temperature": -1}, {"top_k": -1}, {"top_p": 0}, {"top_p": 2}])
def test_settings_outside_their_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="top_p must lie in"):
        Sampling(**wrong)  # type: ignore[arg-type]
