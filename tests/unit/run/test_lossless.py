"""Verdicts on hand-made outputs of a tiny random target."""

from __future__ import annotations

import pytest
import torch

from specbench.core.decode import generate
from specbench.core.drafter import Autoregressive
from specbench.core.sampling import Sampling
from specbench.core.target import Target
from specbench.run.lossless import Judge, first_difference, measure_tolerance, sampled_gap
from specbench.testing import tiny_target

PROMPT = [5, 6, 7, 8, 9]
WARM = Sampling(temperature=0.8)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(layers=2)


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


def judge(target: Target, sampling: Sampling, tolerance: float) -> Judge:
    judge = Judge(target, sampling, lambda: [PROMPT], 7)
    judge.tolerance = tolerance
    return judge


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

    def judged(tolerance: float) -> tuple[str, int | None, float | None]:
        verdict = judge(target, Sampling(), tolerance).verdict(PROMPT, 3, tokens, other)
        return verdict.kind, verdict.position, verdict.gap

    assert judged(gap * 1.01) == ("near-tie", 4, pytest.approx(gap, rel=1e-4))
    assert judged(gap * 0.99) == ("broken", 4, pytest.approx(gap, rel=1e-4))


def test_sampled_gap_moves_the_draw(target: Target, autoregressive: Autoregressive) -> None:
    """The other token is drawn if the logits move by the gap in the best direction."""
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
        verdict = judge(target, WARM, 1e-4).verdict(PROMPT, 3, tokens, other)
        assert verdict.kind == kind
    verdict = judge(target, WARM, 1e4).verdict(PROMPT, 3, tokens, swapped(tokens, 6, worst))
    assert (verdict.kind, verdict.position) == ("near-tie", 6)


def test_an_early_end_is_broken_and_needs_no_tolerance(
    target: Target, autoregressive: Autoregressive
) -> None:
    tokens = output(target, autoregressive, Sampling())

    def unwanted() -> list[list[int]]:
        raise AssertionError("nothing to compare")

    verdict = Judge(target, Sampling(), unwanted, 7).verdict(PROMPT, 3, tokens, tokens[:-2])
    assert (verdict.kind, verdict.position) == ("broken", len(tokens) - 2)


def test_tolerance_is_rounding_and_grows_with_it(target: Target) -> None:
    exact = measure_tolerance(target, PROMPT, width=7)
    assert 0 < exact < 1e-3
    rough = Target(target.model.to(torch.bfloat16))
    try:
        assert measure_tolerance(rough, PROMPT, width=7) > 10 * exact
    finally:
        target.model.to(torch.float32)


def test_a_faulty_forward_does_not_raise_its_own_tolerance(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of several rows give wrong logits, but the tolerance stays small."""
    forward = Target.forward

    def faulty(self: Target, *args: object, **kwargs: object):  # type: ignore[no-untyped-def]
        logits, features = forward(self, *args, **kwargs)  # type: ignore[arg-type]
        return (logits if len(logits) == 1 else logits.roll(1, -1)), features

    largest = float(next_logits(target, ()).abs().max())
    monkeypatch.setattr(Target, "forward", faulty)
    assert measure_tolerance(target, PROMPT, width=7) < 0.01 * largest
