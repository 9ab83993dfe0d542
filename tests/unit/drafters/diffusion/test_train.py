"""Diffusion training: the start, practised windows, and what is refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.diffusion.prefix import Prefix
from drafters.diffusion.settings import DiffusionSettings
from drafters.diffusion.train import window_loss
from drafters.diffusion.windows import window_figures, window_logits
from specbench.api import Target, UserError
from specbench.testing import tiny_target
from specbench.training.masking import Blocks, draw_blocks
from tests.helpers.diffusion_recipes import MASK, chat, random_tokens, recipe_for, seeded


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(layers=5)


# --- the start ---------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_with_all_layers_and_causal_attention_the_start_is_the_target(family: Any) -> None:
    target = tiny_target(family)
    draft = recipe_for(target, layers=None).draft
    ids = random_tokens(1, 20)
    with torch.no_grad():
        got = draft(ids, torch.ones(20, 20, dtype=torch.bool).tril())
        want = target.model(ids, use_cache=False).logits
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_layers_are_evenly_spaced_copies(target: Target) -> None:
    draft = recipe_for(target, layers=3).draft
    for mine, theirs in zip((0, 1, 2), (0, 2, 4), strict=True):
        got = draft.decoder.model.layers[mine].mlp.up_proj.weight
        assert torch.equal(got, target.layers[theirs].mlp.up_proj.weight)
    assert all(p.requires_grad for p in draft.parameters())
    with torch.no_grad():
        draft.decoder.model.layers[0].mlp.up_proj.weight.zero_()
    assert target.layers[0].mlp.up_proj.weight.abs().max() > 0, "the target keeps its own"


def test_a_draft_is_saved_and_gone_on_from(target: Target, tmp_path: Path) -> None:
    recipe = recipe_for(target)
    recipe.save(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())["diffusion"]
    assert stored == {"mask_token_id": MASK, "shift": True, "block_size": None}
    later = recipe_for(target, layers=None, mask_token_id=None, init=str(tmp_path))
    assert later.settled == {"layers": 2, "mask_token_id": MASK}, "the card tells what init decided"
    again = later.draft
    assert again.shift
    for name, parameter in again.named_parameters():
        assert parameter.requires_grad
        assert torch.equal(parameter, recipe.draft.get_parameter(name).bfloat16().float())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 6}, "1 to 5"),
        ({"objective": "bd3", "prefix": "cut"}, "blocks of 4"),
        ({"mask_token_id": 99}, "64 rows"),
    ],
)
def test_what_the_target_cannot_have_is_named(
    target: Target, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        recipe_for(target, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "mdlm"}, "llada, shifted, bd3"),
        ({"objective": "bd3", "practice": 0.5}, "whole blocks"),
        ({"prefix": "half"}, "full, cut, causal"),
        ({"low": 0.8, "high": 0.3}, "low < high"),
        ({"init": "any", "layers": 2, "mask_token_id": 3}, "leave layers, mask_token_id out"),
        ({"objective": "llada", "anneal_steps": 2}, "anneal_steps is for"),
        ({"window": 0, "windows": 0}, "window must be at least 1, not 0; windows must be"),
        ({"practice": 1.5}, r"practice=1\.5 in \[0, 1\]"),
        ({"eps": 0.0}, r"eps=0\.0 must lie in \(0, 1\]"),
        ({"decay": 0.0}, r"decay=0\.0 must be above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DiffusionSettings(**options)


def test_an_init_of_another_kind_is_refused(target: Target, tmp_path: Path) -> None:
    recipe_for(target, objective="llada").save(tmp_path)
    with pytest.raises(UserError, match="shift False"):
        recipe_for(target, layers=None, mask_token_id=None, init=str(tmp_path))
    other = tiny_target(vocabulary=80)
    with pytest.raises(UserError, match="vocabulary of 64"):
        recipe_for(other, layers=None, mask_token_id=None, objective="llada", init=str(tmp_path))


# --- windows -----------------------------------------------------------------------------------

ANCHORS = torch.tensor([[4, 11, 15], [1, 7, 2]])
CACHES = {"full": "none", "causal": "prefix_causal"}


def blocks_at(anchors: Tensor, tokens: Tensor, size: int) -> Blocks:
    slots = anchors[..., None] + torch.arange(1, size + 1)
    labels = tokens.gather(1, slots.flatten(1)).view_as(slots)
    return Blocks(anchors, labels, torch.ones_like(labels, dtype=torch.bool))


@pytest.mark.parametrize(
    ("objective", "prefix"),
    [(o, p) for o in ("llada", "shifted", "bd3") for p in CACHES if (o, p) != ("bd3", "causal")],
)
def test_windows_are_predicted_as_a_draft_is(target: Target, prefix: str, objective: str) -> None:
    model = recipe_for(target, objective=objective).draft
    tokens = random_tokens(2, 22)
    with torch.no_grad():
        logits = window_logits(model, tokens, blocks_at(ANCHORS, tokens, 5), prefix)
    for row, column in itertools.product(range(2), range(3)):
        anchor = int(ANCHORS[row, column])
        drafting = Prefix(model, 32, CACHES[prefix])
        drafting.extend(tokens[row, : anchor + 1])
        torch.testing.assert_close(
            drafting.predict_block(5), logits[row, column], atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("objective", ["llada", "shifted"])
def test_a_cut_prefix_sees_itself_and_no_mask(target: Target, objective: str) -> None:
    model = recipe_for(target, objective=objective).draft
    tokens = random_tokens(2, 22)
    with torch.no_grad():
        logits = window_logits(model, tokens, blocks_at(ANCHORS, tokens, 5), "cut")
        whole = window_logits(model, tokens, blocks_at(ANCHORS, tokens, 5), "full")
        for row, column in itertools.product(range(2), range(3)):
            start = int(ANCHORS[row, column]) + 1
            ids = torch.cat([tokens[row, :start], torch.full((5,), MASK)])
            seen = torch.tensor(
                [[i >= start or j < start for j in range(start + 5)] for i in range(start + 5)]
            )
            rows = torch.arange(start, start + 5) - int(model.shift)
            want = model.finish(model(ids[None], seen, rows))[0]
            torch.testing.assert_close(logits[row, column], want, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(logits, whole, atol=1e-2)


def test_window_loss_and_figures_count_by_hand() -> None:
    labels = torch.tensor([[[1, 2, 0], [0, 2, 1], [2, 2, 2]]])
    learned = torch.tensor([[[1, 1, 1], [1, 1, 0], [0, 0, 0]]]).bool()
    guess = torch.tensor([[[1, 2, 2], [1, 2, 1], [2, 2, 2]]])
    logits = 2.0 * F.one_hot(guess, 3).float()
    right, wrong = (float(torch.tensor([2.0, 0, 0]).softmax(0)[i]) for i in (0, 1))
    figures = window_figures(logits, Blocks(torch.zeros(1, 3), labels, learned))
    assert figures["emitted_per_round"] == pytest.approx(1 + (2 + 0) / 2)
    streaks = right + right**2 + right**2 * wrong, wrong + wrong * right
    assert figures["expected_streak"] == pytest.approx(sum(streaks) / 2)
    decay = [1.0, np.exp(-1 / 2), np.exp(-2 / 2)]
    nats = [[right, right, wrong], [wrong, right]]
    total = sum(-np.log(p) * w for row in nats for p, w in zip(row, decay, strict=False))
    got = window_loss(logits, Blocks(torch.zeros(1, 3), labels, learned), 2.0)
    assert float(got) == pytest.approx(total / (2 * decay[0] + 2 * decay[1] + decay[2]))


def test_practice_replaces_its_share_of_the_batches(target: Target) -> None:
    batch = chat(random_tokens(2, 24), 4)
    always = recipe_for(target, practice=1.0, window=4, windows=2)
    blocks = draw_blocks(batch, 2, 5, _after_a_draw(seeded()))
    logits = window_logits(always.draft, batch.tokens, blocks, "full")
    assert float(always.loss(batch, seeded())) == float(window_loss(logits, blocks, None))
    half = recipe_for(target, practice=0.5, window=4)
    windows: list[int] = []
    half._window_logits = lambda *a: windows.append(1) or always._window_logits(*a)  # type: ignore[method-assign, func-returns-value]
    with torch.no_grad():
        for seed in range(40):
            half.loss(batch, seeded(seed))
    assert 10 < len(windows) < 30


def _after_a_draw(generator: torch.Generator) -> torch.Generator:
    torch.rand((), generator=generator)
    return generator


@pytest.mark.parametrize(
    "options",
    [{"objective": "llada"}, {"practice": 1.0}, {"objective": "bd3"}],
    ids=["llada", "practice", "bd3"],
)
def test_it_learns(target: Target, options: dict[str, Any]) -> None:
    recipe = recipe_for(target, window=4, windows=4, **options)
    batch = chat(torch.arange(48).view(2, 24), 4)
    optimizer = torch.optim.Adam(recipe.draft.parameters(), lr=5e-3)
    with torch.no_grad():
        before = recipe.figures(batch, seeded())
    for step in range(20):
        recipe.loss(batch, seeded(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        after = recipe.figures(batch, seeded())
    assert after["validation_loss"] < 0.8 * before["validation_loss"]
    assert after["emitted_per_round"] >= before["emitted_per_round"]


@pytest.mark.parametrize(
    "options",
    [{}, {"objective": "llada"}, {"objective": "bd3"}, {"practice": 1.0, "window": 4}],
    ids=["shifted", "llada", "bd3", "practice"],
)
def test_a_mask_token_in_the_text_teaches_nothing(target: Target, options: dict[str, Any]) -> None:
    tokens = random_tokens(2, 24)
    tokens[:, ::3] = MASK
    recipe = recipe_for(target, **options)
    for seed in range(3):
        loss = recipe.loss(chat(tokens, 4), seeded(seed))
        loss.backward()
        assert loss.isfinite()
    grads = [p.grad for p in recipe.draft.parameters() if p.grad is not None]
    assert grads
    assert all(grad.isfinite().all() for grad in grads)


def test_two_recipes_are_measured_on_the_same_windows(target: Target) -> None:
    batch = chat(random_tokens(3, 40), 6)
    recipes = [recipe_for(target, practice=share, window=4) for share in (0.0, 0.5, 1.0)]
    generators = [seeded(n) for n in range(3)]
    with torch.no_grad():
        for _ in range(2):
            figures = [r.figures(batch, g) for r, g in zip(recipes, generators, strict=True)]
            assert len({f["expected_streak"] for f in figures}) == 1
    assert len({f["validation_loss"] for f in figures}) == 3
