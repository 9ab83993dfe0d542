"""Streak distillation: the objective against enumeration, its windows, adapters, the start."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from drafters.diffusion.model import DiffusionModel
from drafters.diffusion.settings import DiffusionSettings
from drafters.diffusion.train import DiffusionRecipe
from drafters.specdiff.settings import StreakSettings
from drafters.specdiff.train import (
    FLOOR,
    StreakRecipe,
    ce_loss,
    streak_loss,
    token_log_probabilities,
)
from specbench.api import Target, UserError
from specbench.inputs.options import parse_options
from specbench.testing import tiny_target
from specbench.training.corpus.batches import Batch
from specbench.training.features import FrozenTarget
from specbench.training.loop import seeded as seeded_globally
from specbench.training.masking import draw_blocks

MASK = 63


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


@pytest.fixture(scope="module")
def start(target: Target, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A shifted diffusion draft of two layers."""
    folder = tmp_path_factory.mktemp("start")
    options = DiffusionSettings(layers=2, mask_token_id=MASK)
    DiffusionRecipe(FrozenTarget(target), options).save(folder)
    return str(folder)


def recipe_for(target: Target, start: str, **options: Any) -> StreakRecipe:
    made = StreakSettings(**{"init": start, "gamma": 4, **options})
    with seeded_globally(0):
        return StreakRecipe(FrozenTarget(target), made)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def completions() -> Batch:
    tokens = torch.randint(60, (2, 18), generator=seeded())
    response = torch.zeros(2, 18, dtype=torch.bool)
    response[0, 5:] = True
    response[1, 8:12] = True
    return Batch(tokens, response)


def enumerated_streak(logits: Tensor, truth: Tensor) -> Tensor:
    """Leading tokens right in an average draft: all drafts ``[k]``, by their probabilities."""
    size, vocabulary = logits.shape
    q = logits.softmax(-1)
    total = logits.new_zeros(())
    for draft in itertools.product(range(vocabulary), repeat=size):
        chance = torch.stack([q[slot, token] for slot, token in enumerate(draft)]).prod()
        right = [token == int(t) for token, t in zip(draft, truth, strict=True)]
        total = total + chance * [*right, False].index(False)
    return total


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_objective_and_its_gradient_are_those_of_enumeration(temperature: float) -> None:
    logits = torch.randn(3, 4, 3, generator=seeded(), dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[0, 1, 2, 2], [2, 0, 0, 1], [1, 1, 0, 2]])
    learned = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    loss = streak_loss(token_log_probabilities(logits / temperature, labels), learned)
    loss.backward()
    got, logits.grad = logits.grad, None
    lengths = (4, 2)
    streaks = [
        enumerated_streak(logits[w, :length] / temperature, labels[w, :length])
        for w, length in enumerate(lengths)
    ]
    want = -torch.stack(streaks).mean()
    want.backward()
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(got, logits.grad)


def test_probabilities_are_floored() -> None:
    logits = torch.tensor([[0.0, 100.0], [100.0, 0.0]], requires_grad=True)
    log_q = token_log_probabilities(logits, torch.tensor([0, 0]))
    torch.testing.assert_close(log_q.exp(), torch.tensor([FLOOR, 1.0]))


def test_the_cross_entropies_weigh_by_the_chance_to_get_there() -> None:
    log_q = torch.tensor([[0.5, 0.25, 0.8], [0.9, 0.1, 0.3]]).log().requires_grad_()
    learned = torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()
    loss = ce_loss(log_q, learned)
    loss.backward()
    weights = torch.tensor([[1, 0.5, 0.125], [1, 0.9, 0.0]])
    torch.testing.assert_close(loss, -(weights * log_q).sum() / 2)
    torch.testing.assert_close(log_q.grad, -weights / 2)


@pytest.mark.parametrize("loss", ["streak", "ce"])
@pytest.mark.parametrize("prefix", ["full", "cut", "causal"])
def test_a_window_is_the_tokens_behind_a_clean_prefix(
    target: Target, start: str, loss: str, prefix: str
) -> None:
    recipe = recipe_for(target, start, loss=loss, prefix=prefix, windows=3, temperature=0.8)
    batch = completions()
    blocks = draw_blocks(batch, 3, 5, seeded())
    values = []
    for row, column in itertools.product(range(2), range(3)):
        begin = int(blocks.anchors[row, column]) + 1
        end = 12 if row else 18
        if not blocks.learned[row, column].any():
            continue
        q = marginals(recipe.draft, batch.tokens[row, :begin], prefix, 0.8)
        reached, value = 1.0, 0.0
        for slot, place in enumerate(range(begin, min(begin + 4, end))):
            chance = float(q[slot, batch.tokens[row, place]])
            value += reached * (float(torch.tensor(chance).log()) if loss == "ce" else chance)
            reached *= chance
        values.append(value)
    got = recipe.loss(batch, seeded()).detach()
    assert float(got) == pytest.approx(-sum(values) / len(values), rel=1e-3)


@torch.no_grad()
def marginals(model: DiffusionModel, prefix: Tensor, kind: str, temperature: float) -> Tensor:
    """One pass over a prefix and four masks under a mask written out pair by pair."""
    start, total = len(prefix), len(prefix) + 4
    seen = torch.ones(total, total, dtype=torch.bool)
    for row, column in itertools.product(range(start), range(total)):
        if kind == "cut":
            seen[row, column] = column < start
        elif kind == "causal":
            seen[row, column] = column <= row
    ids = torch.cat([prefix, torch.full((4,), MASK)])
    logits = model(ids[None], seen)[0, start - 1 : total - 1]
    logits[:, MASK] = -torch.inf
    return (logits / temperature).softmax(-1)


def test_every_offset_is_taken_without_a_number(target: Target, start: str) -> None:
    recipe = recipe_for(target, start, windows=None)
    batch = completions()
    found: list[set[int]] = []
    inner = recipe._logits

    def spy(batch: Batch, blocks: Any) -> Tensor:
        pairs = zip(blocks.anchors, blocks.learned.any(-1), strict=True)
        found.extend({int(a) for a in anchors[real]} for anchors, real in pairs)
        return inner(batch, blocks)

    recipe._logits = spy  # type: ignore[method-assign]
    recipe.loss(batch, seeded())
    assert found == [set(range(5, 17)), {8, 9, 10}]


def test_adapters_alone_learn_and_are_merged_in_the_saved_draft(
    target: Target, start: str, tmp_path: Path
) -> None:
    recipe = recipe_for(target, start, rank=2, alpha=4.0)
    ids, seen = completions().tokens, torch.ones(18, 18, dtype=torch.bool)
    with torch.no_grad():
        before = DiffusionModel.load(start)(ids, seen)
        torch.testing.assert_close(recipe.draft(ids, seen), before)
    names = [name for name, p in recipe.draft.named_parameters() if p.requires_grad]
    assert len(names) == 2 * 7 * 2, "two matrices for each of seven projections of two layers"
    parameters = [p for p in recipe.draft.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    for step in range(4):
        recipe.loss(completions(), seeded(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        tuned = recipe.draft(ids, seen)
        assert (tuned - before).abs().max() > 0.05
        recipe.save(tmp_path)
        merged = DiffusionModel.load(str(tmp_path))
        torch.testing.assert_close(merged(ids, seen), tuned, atol=0.1, rtol=0.02)
        torch.testing.assert_close(recipe.draft(ids, seen), tuned)
    assert [n for n, p in recipe.draft.named_parameters() if p.requires_grad] == names
    old = DiffusionModel.load(start).state_dict()
    changed = {name for name, v in merged.state_dict().items() if not torch.equal(v, old[name])}
    assert changed <= {name for name in old if "_proj" in name}
    assert len(changed) == 14


def test_all_weights_learn_a_longer_streak(target: Target, start: str) -> None:
    recipe = recipe_for(target, start, windows=None)
    batch = completions()
    optimizer = torch.optim.Adam(recipe.draft.parameters(), lr=1e-2)
    with torch.no_grad():
        before = recipe.figures(batch, seeded())
    for step in range(12):
        recipe.loss(batch, seeded(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        after = recipe.figures(batch, seeded())
    assert after["expected_streak"] > before["expected_streak"] + 0.5
    assert after["validation_loss"] == pytest.approx(-after["expected_streak"], rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "kl"}, "streak, ce"),
        ({"gamma": 0}, "gamma must be at least 1, not 0"),
        ({"temperature": 0.0}, "temperature=0"),
        ({"windows": 0}, "windows must be at least 1"),
        ({"rank": 0}, "rank must be at least 1"),
        ({"prefix": "half"}, "full, cut, causal"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StreakSettings(init="a/draft", **options)


def test_a_draft_to_distil_into_is_needed() -> None:
    with pytest.raises(UserError, match="needs the option 'init'"):
        parse_options("streak", StreakSettings, {})
