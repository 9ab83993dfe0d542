"""Verdicts against hand-made outputs of a tiny random target."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from specbench.core.decode import generate
from specbench.core.drafter import Autoregressive
from specbench.core.sampling import Sampling
from specbench.core.target import Target
from specbench.run.lossless import first_difference, judge, measure_tolerance, sampled_gap

PROMPT = [5, 6, 7, 8, 9]
WARM = Sampling(temperature=0.8)


@pytest.fixture(scope="module")
def target() -> Target:
    config = Qwen3Config(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        initializer_range=0.3,
        eos_token_id=0,
    )
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        return Target(Qwen3ForCausalLM(config))


@pytest.fixture(scope="module")
def autoregressive(target: Target) -> Autoregressive:
    drafter = Autoregressive()
    drafter.bind(target.view())
    return drafter


def output(target: Target, drafter: Autoregressive, sampling: Sampling) -> tuple[int, ...]:
    return generate(
        target, drafter, PROMPT, 12, stop_ids=frozenset(), sampling=sampling, seed=3
    ).tokens


def swapped(tokens: tuple[int, ...], position: int, token: int) -> tuple[int, ...]:
    return (*tokens[:position], token, *tokens[position + 1 :])


def next_logits(target: Target, tokens: tuple[int, ...]) -> torch.Tensor:
    ids = torch.tensor([[*PROMPT, *tokens]])
    with torch.inference_mode():
        return target.model(ids, use_cache=False).logits[0, -1]


def test_first_difference() -> None:
    assert first_difference((1, 2, 3), (1, 2, 3)) is None
    assert first_difference((1, 2, 3), (1, 9, 3)) == 1
    assert first_difference((1, 2, 3), (1, 2)) == 2
    assert first_difference((), (1,)) == 0


def test_greedy_gap_is_the_targets_own(target: Target, autoregressive: Autoregressive) -> None:
    tokens = output(target, autoregressive, Sampling())
    logits = next_logits(target, tokens[:4])
    best, second = logits.topk(2).indices.tolist()
    assert best == tokens[4]
    other = swapped(tokens, 4, second)
    gap = float(logits[best] - logits[second])

    def verdict(tolerance: float) -> tuple[str, int | None, float | None]:
        found = judge(
            target, PROMPT, tokens, other, sampling=Sampling(), seed=3, tolerance=lambda: tolerance
        )
        return found.kind, found.position, found.gap

    assert verdict(gap * 1.01) == ("near-tie", 4, pytest.approx(gap, rel=1e-4))
    assert verdict(gap * 0.99) == ("broken", 4, pytest.approx(gap, rel=1e-4))


def test_sampled_gap_moves_the_draw(target: Target, autoregressive: Autoregressive) -> None:
    """Shifting logits by the gap, in the best direction, is what lets the other token be drawn."""
    logits = torch.tensor([0.3, 1.0, -0.5, 0.2])
    probs = (logits / WARM.temperature).softmax(-1)
    inside = float(probs[0] + probs[1] / 2)
    assert sampled_gap(logits, 1, inside, WARM) == 0
    gap = sampled_gap(logits, 0, inside, WARM)
    direction = torch.tensor([1.0, -1.0, -1.0, -1.0])
    assert sampled_gap(logits + direction * gap * 1.01, 0, inside, WARM) == 0
    assert sampled_gap(logits + direction * gap * 0.99, 0, inside, WARM) > 0


def test_sampled_outputs(target: Target, autoregressive: Autoregressive) -> None:
    tokens = output(target, autoregressive, WARM)
    worst = int(next_logits(target, tokens[:6]).argmin())
    for other, kind in ((tokens, "identical"), (swapped(tokens, 6, worst), "broken")):
        found = judge(target, PROMPT, tokens, other, sampling=WARM, seed=3, tolerance=lambda: 1e-4)
        assert found.kind == kind
    found = judge(
        target, PROMPT, tokens, swapped(tokens, 6, worst), sampling=WARM, seed=3,
        tolerance=lambda: 1e4,
    )  # fmt: skip
    assert (found.kind, found.position) == ("near-tie", 6)


def test_an_early_end_is_broken_and_needs_no_tolerance(
    target: Target, autoregressive: Autoregressive
) -> None:
    tokens = output(target, autoregressive, Sampling())

    def unwanted() -> float:
        raise AssertionError("nothing to compare")

    found = judge(
        target, PROMPT, tokens, tokens[:-2], sampling=Sampling(), seed=3, tolerance=unwanted
    )
    assert (found.kind, found.position) == ("broken", len(tokens) - 2)


def test_tolerance_is_rounding_and_grows_with_it(target: Target) -> None:
    exact = measure_tolerance(target, PROMPT, width=7)
    assert 0 < exact < 1e-3
    rough = Target(target.model.to(torch.bfloat16))
    try:
        assert measure_tolerance(rough, PROMPT, width=7) > 10 * exact
    finally:
        target.model.to(torch.float32)


def test_a_fault_in_blocks_does_not_excuse_itself(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of several rows that are plainly wrong: the tolerance stays one of rounding."""
    forward = Target.forward

    def faulty(self: Target, *args: object, **kwargs: object):  # type: ignore[no-untyped-def]
        logits, features = forward(self, *args, **kwargs)  # type: ignore[arg-type]
        return (logits if len(logits) == 1 else logits.roll(1, -1)), features

    largest = float(next_logits(target, ()).abs().max())
    monkeypatch.setattr(Target, "forward", faulty)
    assert measure_tolerance(target, PROMPT, width=7) < 0.01 * largest
