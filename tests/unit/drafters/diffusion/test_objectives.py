"""The diffusion objectives: the bound against enumeration, what may see what, rates and masks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.diffusion import objectives
from drafters.diffusion.model import DiffusionModel
from drafters.diffusion.train import DiffusionRecipe
from specbench.api import Target
from specbench.testing import tiny_target
from specbench.training.corpus.batches import Batch
from tests.helpers.diffusion_recipes import MASK, chat, random_tokens, recipe_for, seeded


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(layers=5)


# --- the bound ---------------------------------------------------------------------------------


def exact_bound(model: DiffusionModel, tokens: Tensor, learned: list[int]) -> float:
    """Nats a token of revealing the learned positions one at a time, in a random order."""
    seen = torch.ones(len(tokens), len(tokens), dtype=torch.bool)
    orders = list(itertools.permutations(learned))
    total = 0.0
    for order in orders:
        ids = tokens.clone()
        ids[learned] = MASK
        for place in order:
            row = model(ids[None], seen)[0, place - int(model.shift)].clone()
            row[MASK] = -torch.inf
            total -= float(row.log_softmax(-1)[tokens[place]])
            ids[place] = tokens[place]
    return total / len(orders) / len(learned)


def expected_loss(
    recipe: DiffusionRecipe, batch: Batch, learned: list[int], monkeypatch: pytest.MonkeyPatch
) -> float:
    """The loss integrated over the masking probability and summed over all masks.

    Three nodes integrate polynomials of degree 5 exactly; with three tokens it has degree 2.
    """
    nodes, weights = np.polynomial.legendre.leggauss(3)
    total = 0.0
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        for chosen in itertools.product([False, True], repeat=len(learned)):
            masked = torch.zeros(batch.tokens.shape, dtype=torch.bool)
            masked[0, learned] = torch.tensor(chosen)
            rates = torch.full((1, 1), float(node), dtype=torch.float64)
            monkeypatch.setattr(objectives, "sequence_rates", lambda *a, r=rates: r)
            monkeypatch.setattr(objectives, "draw_masks", lambda *a, m=masked: m)
            chance = float(node) ** sum(chosen) * (1 - float(node)) ** (len(chosen) - sum(chosen))
            total += weight * chance * float(recipe.objective_loss(batch, seeded()))
    return total


@pytest.mark.parametrize("objective", ["llada", "shifted"])
def test_the_loss_is_an_unbiased_bound(
    target: Target, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_for(target, objective=objective)
    recipe.draft.double()
    tokens = random_tokens(1, 5)
    learned = [2, 3, 4]
    with torch.no_grad():
        want = exact_bound(recipe.draft, tokens[0], learned)
        got = expected_loss(recipe, chat(tokens, 2), learned, monkeypatch)
        monkeypatch.setattr(
            objectives, "weighted_bound", lambda losses, w, on: (losses * (w > 0)).sum() / on.sum()
        )
        unweighted = expected_loss(recipe, chat(tokens, 2), learned, monkeypatch)
    assert got == pytest.approx(want, rel=1e-5)
    assert unweighted != pytest.approx(want, rel=0.05), "without 1 / p it is no bound"


def test_rates_and_masks() -> None:
    rates = objectives.sequence_rates(20_000, 0.25, seeded())
    assert 0.25 <= rates.min() < 0.26
    assert float(rates.mean()) == pytest.approx(0.625, abs=0.01)
    learned = torch.zeros(2, 20_000, dtype=torch.bool)
    learned[:, 5_000:] = True
    masked = objectives.draw_masks(learned, torch.tensor([[0.2], [0.9]]), seeded())
    assert not (masked & ~learned).any()
    torch.testing.assert_close(masked.sum(1) / 15_000, torch.tensor([0.2, 0.9]), atol=0.01, rtol=0)


@pytest.mark.parametrize("objective", ["llada", "shifted"])
def test_a_row_predicts_its_own_or_the_next_token(
    target: Target, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that puts the true token of p in row p (or p - 1) has no loss, in other rows much."""
    recipe = recipe_for(target, objective=objective)
    tokens = random_tokens(2, 12)
    shift = int(objective == "shifted")
    answers = {
        row: 50.0 * F.one_hot(torch.roll(tokens, -row, dims=1), 64).float() for row in (0, 1)
    }
    batch = chat(tokens, 3)
    monkeypatch.setattr(recipe.draft, "forward", lambda ids, visible: answers[shift])
    assert float(recipe.objective_loss(batch, seeded())) < 1e-6
    monkeypatch.setattr(recipe.draft, "forward", lambda ids, visible: answers[1 - shift])
    assert float(recipe.objective_loss(batch, seeded())) > 10


def test_prompts_are_never_masked_and_padding_is_never_seen(target: Target) -> None:
    recipe = recipe_for(target, objective="llada")
    tokens = random_tokens(2, 16)
    response = torch.zeros(2, 16, dtype=torch.bool)
    response[0, 4:10] = True
    response[1, 4:] = True
    seen: list[tuple[Tensor, Tensor]] = []
    recipe.draft.register_forward_pre_hook(lambda module, args: seen.append(args))
    losses = []
    for padding in (0, 5):
        tokens[0, 10:] = padding
        loss = recipe.objective_loss(Batch(tokens, response), seeded(3))
        losses.append(float(loss.detach()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    ids, visible = seen[0]
    assert (ids == MASK).any()
    assert not ((ids == MASK) & ~response).any()
    assert visible[0, :10, :10].all()
    assert not visible[0, :10, 10:].any()
    assert visible[1].all()


# --- annealing ---------------------------------------------------------------------------------


def test_the_attention_anneals_from_causal_to_full(target: Target) -> None:
    recipe = recipe_for(target, anneal_steps=4)
    seen: list[Tensor] = []
    recipe.draft.register_forward_pre_hook(lambda module, args: seen.append(args[1]))
    batch = chat(random_tokens(2, 32), 2)
    shares = []
    for step in (0, 1, 3, 9):
        recipe.at_step(step)
        recipe.objective_loss(batch, seeded())
        later = torch.ones(32, 32, dtype=torch.bool).triu(1)
        assert seen[-1][:, ~later].all()
        shares.append(float(seen[-1][0][later].float().mean()))
    assert shares == pytest.approx([0.25, 0.5, 1.0, 1.0], abs=0.06)
    assert objectives.annealed_mask(9, 0.0, seeded()).equal(torch.ones(9, 9).tril().bool())


# --- blocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "block"), [(8, 4), (7, 3), (5, 1), (4, 9)])
def test_the_mask_of_bd3_is_the_union_of_its_three_parts(length: int, block: int) -> None:
    mask = objectives.bd3_mask(length, block)
    for row, column in itertools.product(range(2 * length), repeat=2):
        noisy_row, noisy_column = row < length, column < length
        mine, other = row % length // block, column % length // block
        block_diagonal = mine == other and noisy_row == noisy_column
        offset_causal = noisy_row and not noisy_column and other < mine
        block_causal = not noisy_row and not noisy_column and other <= mine
        want = block_diagonal or offset_causal or block_causal
        assert bool(mask[row, column]) == want, (row, column)


def test_the_loss_of_bd3_is_that_of_each_block_by_itself(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_for(target, objective="bd3")
    batch = chat(random_tokens(2, 11), 5)
    masked = torch.zeros(2, 11, dtype=torch.bool)
    masked[0, [5, 6, 10]] = masked[1, [7, 8, 9]] = True
    rates = torch.tensor([[0.5, 0.25, 0.8], [0.9, 0.4, 0.1]])
    monkeypatch.setattr(objectives, "block_rates", lambda *a: rates)
    monkeypatch.setattr(objectives, "draw_masks", lambda *a: masked)
    got = float(recipe.objective_loss(batch, seeded()).detach())
    model = recipe.draft
    want = 0.0
    for row, block in itertools.product(range(2), range(3)):
        end = min(11, 4 * block + 4)
        ids = batch.tokens[row, :end].clone()
        places = [p for p in range(4 * block, end) if masked[row, p]]
        ids[places] = MASK
        blocks = torch.arange(end) // 4
        logits = model(ids[None], blocks[:, None] >= blocks)[0].clone()
        logits[:, MASK] = -torch.inf
        for place in places:
            nats = -float(logits[place].log_softmax(-1)[batch.tokens[row, place]])
            want += nats / float(rates[row, block]) / 6 / 2
    assert got == pytest.approx(want, rel=1e-4)


def test_block_rates_take_every_stratum_once_and_weigh_by_their_inverse() -> None:
    rates = objectives.block_rates(3, 4, 0.2, 0.8, seeded())
    strata = ((rates - 0.2) / 0.6 * 12).floor().flatten().long()
    assert sorted(strata.tolist()) == list(range(12))
    assert strata.tolist() != list(range(12)), "no block always gets the same stratum"
    torch.testing.assert_close(objectives.block_weights(rates, 0.2), 1 / rates)
    assert objectives.block_weights(rates, 0.51).eq(1).all()


def test_masked_shares_stay_inside_the_clipped_range() -> None:
    learned = torch.ones(64, 32, dtype=torch.bool)
    rates = objectives.block_rates(64, 4, 0.3, 0.8, seeded())
    plain = objectives.draw_masks(learned, rates.repeat_interleave(8, 1), seeded())
    clipped = objectives.draw_block_masks(learned, rates, 8, 0.3, 0.8, seeded())

    def outside(masked: Tensor) -> int:
        shares = masked.view(64, 4, 8).float().mean(-1)
        return int(((shares < 0.3) | (shares > 0.8)).sum())

    assert outside(plain) > 20
    assert outside(clipped) <= 2
    whole = objectives.draw_block_masks(learned, rates, 8, 0.0, 1.0, seeded())
    assert whole.equal(plain)
