"""The training recipe: which tokens are learned, what a block sees, and that it learns."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.dflash.checkpoint import load_config
from drafters.dflash.settings import DFlashSettings
from drafters.dflash.train import DFlashRecipe, shape_for
from specbench.api import Autoregressive, Commit, Request, Target, UserError
from specbench.core.decode import generate
from specbench.testing import NO_STOPS, tiny_target
from specbench.training.corpus.batches import Batch
from specbench.training.corpus.tokenizer import train_tokenizer
from specbench.training.features import FrozenTarget
from specbench.training.loop import seeded
from specbench.training.masking import draw_blocks
from specbench.training.recipe import train_draft
from specbench.training.settings import Job, TrainSettings
from tests.helpers.dflash_drafts import bound_draft

OPTIONS = DFlashSettings(block_size=5, layers=2, taps=2, anchors=8, mask_token_id=63)
KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "sliding": {"windows": (6, None), "causal": (True, False)},
    "bidirectional window": {"windows": (6, 6), "causal": (False, False)},
    "causal": {"causal": (True, True)},
}


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(layers=5)


def recipe_for(target: Target, changes: dict[str, Any] | None = None) -> DFlashRecipe:
    """Fresh weights, larger than a real start so that everything shows."""
    with seeded(0):
        recipe = DFlashRecipe(FrozenTarget(target), OPTIONS)
    recipe.config = dataclasses.replace(recipe.config, **(changes or {}))
    recipe.draft.config = recipe.config
    with torch.no_grad():
        for parameter in recipe.draft.parameters():
            parameter.mul_(10 if parameter.ndim == 2 else 1)
    return recipe


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def random_tokens(shape: tuple[int, ...]) -> Tensor:
    return torch.randint(60, shape, generator=generator())


def test_anchors_and_labels_come_from_responses() -> None:
    tokens = torch.arange(40).view(2, 20)
    response = torch.zeros(2, 20, dtype=torch.bool)
    response[0, 3:9] = True
    response[0, 15:] = True
    response[1, 10] = True
    blocks = draw_blocks(Batch(tokens, response), 50, 4, generator())
    assert blocks.anchors.shape == (2, 9)
    assert sorted(blocks.anchors[0].tolist()) == [3, 4, 5, 6, 7, 15, 16, 17, 18]
    assert not blocks.learned[1].any(), "a response of one token has no anchor with a successor"
    last = {3: 8, 15: 19}
    for anchor, labels, learned in zip(
        blocks.anchors[0].tolist(), blocks.labels[0], blocks.learned[0], strict=True
    ):
        end = last[3] if anchor < 9 else last[15]
        want = [token for token in range(anchor + 1, anchor + 4) if token <= end]
        assert labels[learned].tolist() == want


def test_anchors_are_redrawn_and_reproducible() -> None:
    batch = Batch(random_tokens((1, 50)), torch.ones(1, 50, dtype=torch.bool))
    draws = [draw_blocks(batch, 6, 4, torch.Generator().manual_seed(s)).anchors for s in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert len(set(draws[0][0].tolist())) == 6


@pytest.mark.parametrize("kind", KINDS)
def test_training_forward_equals_drafting(target: Target, tmp_path: Path, kind: str) -> None:
    recipe = recipe_for(target, KINDS[kind])
    tokens = random_tokens((3, 24))
    anchors = torch.tensor([[4, 11, 20], [1, 2, 3], [9, 22, 5]])
    recipe.save(tmp_path)
    drafter = bound_draft(target, tmp_path)
    rounded = {name: p.bfloat16().float() for name, p in recipe.draft.named_parameters()}
    recipe.draft.load_state_dict(rounded)
    with torch.no_grad():
        hidden = recipe.hidden(tokens, anchors)
        trained = recipe.draft.logits(hidden[:, :, 1:], target.view().head)
        features, _ = recipe.target.forward(tokens, drafter.taps)
    for row in range(3):
        for column, anchor in enumerate(anchors[row].tolist()):
            session: Any = drafter.open(Request(capacity=40))
            session.commit(
                Commit(tuple(tokens[row, : anchor + 1].tolist()), features[row, :anchor])
            )
            torch.testing.assert_close(
                session.logits(5), trained[row, column], atol=1e-5, rtol=1e-5
            )


def test_a_block_sees_no_other_block_and_nothing_from_its_anchor_on(target: Target) -> None:
    recipe = recipe_for(target)
    tokens = random_tokens((1, 24))
    with torch.no_grad():
        alone = recipe.hidden(tokens, torch.tensor([[10]]))
        among = recipe.hidden(tokens, torch.tensor([[12, 10, 9, 3]]))[:, 1:2]
        tokens[0, 11:] = 5
        changed = recipe.hidden(tokens, torch.tensor([[10]]))
        tokens[0, 9] = 5
        context = recipe.hidden(tokens, torch.tensor([[10]]))
    torch.testing.assert_close(alone, among, atol=1e-5, rtol=0)
    torch.testing.assert_close(alone, changed, atol=1e-5, rtol=0)
    assert (context - alone).abs().max() > 0.01


def test_the_loss_is_the_weighted_cross_entropy_of_the_learned_slots(target: Target) -> None:
    recipe = recipe_for(target)
    tokens = random_tokens((2, 20))
    response = torch.zeros(2, 20, dtype=torch.bool)
    response[0, 6:] = True
    response[1, 2:9] = True
    batch = Batch(tokens, response)
    loss = recipe.loss(batch, generator())
    blocks = draw_blocks(batch, 8, 5, generator())
    hidden = recipe.hidden(tokens, blocks.anchors).detach()
    total = weight_sum = 0.0
    for row in range(2):
        end = [20, 9][row]
        for column, anchor in enumerate(blocks.anchors[row].tolist()):
            if not (response[row, anchor] and response[row, anchor + 1]):
                continue
            for slot in range(1, 5):
                if anchor + slot >= end:
                    continue
                logits = target.view().head(hidden[row, column, slot])
                weight = 2.718281828 ** (-(slot - 1) / 2.5)
                total += weight * float(F.cross_entropy(logits, tokens[row, anchor + slot]))
                weight_sum += weight
    assert float(loss.detach()) == pytest.approx(total / weight_sum, rel=1e-4)


def test_only_the_draft_learns(target: Target) -> None:
    recipe = recipe_for(target)
    batch = Batch(random_tokens((1, 20)), torch.ones(1, 20, dtype=torch.bool))
    recipe.loss(batch, generator()).backward()
    for name, parameter in recipe.draft.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    assert all(p.grad is None and not p.requires_grad for p in target.model.parameters())


def test_a_batch_without_an_anchor_teaches_nothing(target: Target) -> None:
    recipe = recipe_for(target)
    loss = recipe.loss(Batch(random_tokens((2, 9)), torch.zeros(2, 9).bool()), generator())
    loss.backward()
    assert float(loss.detach()) == 0


def test_published_gammas_and_shapes(target: Target) -> None:
    view = target.view()
    for block, gamma in [(16, 7.0), (10, 5.0), (8, 4.0), (4, 2.0)]:
        options = dataclasses.replace(OPTIONS, block_size=block)
        assert DFlashRecipe(FrozenTarget(target), options).gamma == gamma
    config = shape_for(view, dataclasses.replace(OPTIONS, target_layer_ids=(0, 3), heads=8))
    assert (config.taps, config.heads, config.kv_heads) == ((1, 4), 8, 2)
    assert config.rope["rope_theta"] == target.config.rope_parameters["rope_theta"]
    with pytest.raises(UserError, match="mask_token_id=ID"):
        shape_for(view, dataclasses.replace(OPTIONS, mask_token_id=None))
    with pytest.raises(UserError, match="target_layer_ids go to 4"):
        shape_for(view, dataclasses.replace(OPTIONS, target_layer_ids=(4,)))


def test_going_on_from_a_draft(target: Target, tmp_path: Path) -> None:
    first = recipe_for(target, KINDS["sliding"])
    first.save(tmp_path)
    second = DFlashRecipe(FrozenTarget(target), DFlashSettings(init=str(tmp_path), anchors=3))
    assert second.config == first.config
    tokens, anchors = random_tokens((1, 20)), torch.tensor([[9]])
    torch.testing.assert_close(
        first.hidden(tokens, anchors), second.hidden(tokens, anchors), atol=0.1, rtol=0
    )
    second.loss(Batch(tokens, torch.ones(1, 20).bool()), generator()).backward()
    assert all(p.grad is not None for p in second.draft.parameters())
    with pytest.raises(ValueError, match="leave layers, heads out, since init="):
        DFlashSettings(init=str(tmp_path), layers=2, heads=2, anchors=9)
    other = tiny_target(layers=4)
    with pytest.raises(UserError, match="made for 5 layers, the target has 4"):
        DFlashRecipe(FrozenTarget(other), DFlashSettings(init=str(tmp_path)))


def test_an_embedded_draft_can_be_gone_on_from() -> None:
    recipe = DFlashRecipe(
        FrozenTarget(Target.load("tiny-target")), DFlashSettings(init="tiny-dflash")
    )
    assert (recipe.config.block_size, recipe.config.layers) == (8, 2)
    assert all(parameter.requires_grad for parameter in recipe.draft.parameters())


def test_it_learns_a_text_by_heart(target: Target, tmp_path: Path) -> None:
    """The draft of a text it has seen nearly fills its blocks: nothing is shifted anywhere."""
    plain = Autoregressive()
    plain.bind(target.view())
    prompt = [3, 1, 4, 1, 5]
    text = generate(target, plain, prompt, 40, stop_ids=NO_STOPS).tokens
    batch = Batch(torch.tensor([[*prompt, *text]]), torch.ones(1, 45, dtype=torch.bool))
    with seeded(0):
        recipe = DFlashRecipe(FrozenTarget(target), dataclasses.replace(OPTIONS, anchors=44))
    optimizer = torch.optim.AdamW(recipe.draft.parameters(), lr=3e-3)
    for _ in range(200):
        recipe.loss(batch, generator()).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        figures = recipe.figures(batch, generator())
    assert figures["validation_loss"] < 0.05
    recipe.save(tmp_path)
    rounds = generate(target, bound_draft(target, tmp_path), prompt, 40, stop_ids=NO_STOPS).rounds
    assert 39 / len(rounds) > 4


def test_the_command_trains_and_its_draft_runs(tmp_path: Path) -> None:
    chats = [
        [{"role": "user", "content": f"add {i} and 1"}, {"role": "assistant", "content": f"{i+1}"}]
        for i in range(200)
    ]  # fmt: skip
    corpus = tmp_path / "chats.jsonl"
    corpus.write_text("\n".join(json.dumps({"messages": chat}) for chat in chats))
    tokenizer = train_tokenizer([m["content"] for chat in chats for m in chat], 300)
    target = tiny_target(layers=5, vocabulary=len(tokenizer))
    target.model.save_pretrained(tmp_path / "target")
    tokenizer.save_pretrained(tmp_path / "target")
    settings = TrainSettings(steps=3, batch=4, length=64)
    job = Job(str(tmp_path / "target"), (str(corpus),), (), tmp_path / "draft", "a command")
    options = DFlashSettings(block_size=4, layers=1, taps=2)
    result = train_draft(DFlashRecipe, options, job, settings)
    assert result.validation["emitted_per_round"] >= 1
    config = load_config(tmp_path / "draft")
    assert config.mask_token_id == tokenizer.mask_token_id
    job = dataclasses.replace(job, out=tmp_path / "more", command="another")
    options = DFlashSettings(init=str(tmp_path / "draft"), anchors=9)
    train_draft(DFlashRecipe, options, job, settings)
    told = json.loads((tmp_path / "more" / "card.json").read_text())["options"]
    assert (told["block_size"], told["layers"], told["taps"]) == (4, 1, 2)
    assert told["target_layer_ids"] == list(config.target_layer_ids)
    assert (told["mask_token_id"], told["anchors"]) == (config.mask_token_id, 9)
    loaded = Target.load(str(tmp_path / "target"))
    output = generate(loaded, bound_draft(loaded, tmp_path / "draft"), [5, 6], 9)
    assert len(output.tokens) <= 9
