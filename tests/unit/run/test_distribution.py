"""The distribution test: it passes for exact rules, and fails for faulty ones."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import chi2

from specbench.core.proposal import Proposal
from specbench.core.rules import REJECT, Kept, Rule, reject
from specbench.core.sampling import Sampling, probabilities
from specbench.core.target import Target
from specbench.run.distribution import (
    CONTROL,
    chi_square,
    distribution_test,
    interval_points,
    target_distribution,
)
from specbench.testing import ScriptedDrafter, ScriptedOptions, random_prompts, tiny_target

WARM = Sampling(1.0)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(layers=1, vocabulary=12, context=64)


def test_the_distribution_is_the_models_own_forward(target: Target) -> None:
    prompt, output = [1, 2, 3], [4, 5, 6, 7]
    sampling = Sampling(0.7, top_k=5)
    rows = target.model(torch.tensor([prompt + output]), use_cache=False).logits[0]
    want = probabilities(rows[3:6], sampling)
    assert torch.allclose(
        target_distribution(target, prompt, tuple(output), sampling), want, atol=1e-6
    )


def test_points_are_uniform_for_any_distribution() -> None:
    """Check that the tokens' intervals tile [0, 1), each as long as the token's probability."""
    probs = torch.tensor([[0.1, 0.0, 0.6, 0.3]], dtype=torch.double)
    ends = {
        token: [
            float(interval_points(probs, torch.tensor([token]), torch.tensor([u])))
            for u in (0.0, 1.0)
        ]
        for token in (2, 3, 0, 1)
    }
    assert ends[2] == pytest.approx([0.0, 0.6])
    assert ends[3] == pytest.approx([0.6, 0.9])
    assert ends[0] == pytest.approx([0.9, 1.0])
    assert ends[1] == pytest.approx([1.0, 1.0])


def test_the_p_value_equals_scipys() -> None:
    points = torch.rand(500, generator=torch.Generator().manual_seed(1)) ** 1.1
    position = chi_square(3, points.double(), 20)
    counts = torch.histc(points, 20, 0, 1)
    statistic = float(((counts - 25) ** 2 / 25).sum())
    assert (position.position, position.degrees) == (3, 19)
    assert position.chi_square == pytest.approx(statistic)
    assert position.p == pytest.approx(chi2.sf(statistic, 19))


def drawn(
    target: Target, rule: Rule, *, samples: int = 300, sampling: Sampling = WARM, **options: object
):  # type: ignore[no-untyped-def]
    drafter = ScriptedDrafter(target, ScriptedOptions(width=3, sampled=True, **options), [0] * 9)  # type: ignore[arg-type]
    drafter.bind(target.view())
    prompts = random_prompts(target.vocab_size, (4, 6))
    return distribution_test(
        target, drafter, rule, prompts, samples=samples, tokens=3, sampling=sampling
    )


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_exact_rejection_passes_and_face_value_fails(target: Target, shape: str) -> None:
    test = drawn(target, REJECT, shape=shape)
    assert test.passed, test
    assert (test.rule, test.samples, len(test.positions)) == ("reject", 300, 3)
    assert test.drafted > 300
    control = drawn(target, CONTROL, samples=100, shape=shape)
    assert not control.passed
    assert min(p.p for p in control.positions) < 1e-6


def without_residual(
    proposal: Proposal,
    logits: torch.Tensor,
    sampling: Sampling,
    uniforms: torch.Tensor,
    generator: torch.Generator,
) -> Kept:
    """Apply `reject` with a common fault: the token after a rejection is drawn from p itself."""
    kept = reject(proposal, logits, sampling, uniforms, generator)
    row = kept.path[-1] + 1 if kept.path else 0
    bonus = int(probabilities(logits[row], sampling).multinomial(1, generator=generator))
    return Kept(kept.path, (*kept.tokens[:-1], bonus))


def test_a_missing_residual_is_found(target: Target) -> None:
    faulty = replace(REJECT, keep=without_residual)
    assert not drawn(target, faulty, samples=600, shape="chain").passed


def test_an_impossible_token_is_found(target: Target) -> None:
    test = drawn(target, CONTROL, samples=40, sampling=Sampling(1.0, top_k=1), shape="chain")
    assert test.impossible > 0
    assert not test.passed


def test_the_threshold_is_shared_by_the_positions(target: Target) -> None:
    test = drawn(target, REJECT, samples=40, shape="chain")
    assert math.isclose(test.threshold, 0.01 / 3)
