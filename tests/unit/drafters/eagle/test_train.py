"""The training recipe of EAGLE-3: what is learned, what a step sees, and that it learns."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from drafters.eagle.checkpoint import load_model
from drafters.eagle.draft import Eagle3
from drafters.eagle.options import Eagle3Options
from drafters.eagle.session import EagleSession
from drafters.eagle.settings import Eagle3Settings
from drafters.eagle.start import draft_ids, frequent_ids
from drafters.eagle.train import Eagle3Recipe, rows_in_responses, unroll
from specbench.api import Autoregressive, Commit, Request, Target, UserError
from specbench.core.decode import generate
from specbench.testing import NO_STOPS, tiny_target
from specbench.training.corpus.batches import Batch
from specbench.training.corpus.tokenizer import Encoded, train_tokenizer
from specbench.training.features import FrozenTarget
from specbench.training.loop import seeded
from specbench.training.recipe import train_draft
from specbench.training.settings import Job, TrainSettings

STEPS = 4
OPTIONS = Eagle3Settings(steps=STEPS)
IDS = torch.arange(1, 64, 2)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(layers=7)


def recipe_for(target: Target, ids: Tensor | None = IDS) -> Eagle3Recipe:
    """Fresh weights, larger than a real start so that everything shows."""
    with seeded(0):
        recipe = Eagle3Recipe(FrozenTarget(target), OPTIONS, ids)
    with torch.no_grad():
        for name, parameter in recipe.draft.named_parameters():
            if parameter.ndim == 2 and name != "lm_head.weight":
                parameter.mul_(4 if name == "fc.weight" else 20)
    return recipe


def random_tokens(shape: tuple[int, ...]) -> Tensor:
    return torch.randint(64, shape, generator=torch.Generator().manual_seed(0))


def outputs_of(recipe: Eagle3Recipe, tokens: Tensor) -> Tensor:
    """``[steps, b, n, H]``."""
    with torch.no_grad():
        outputs, _ = recipe.forward(Batch(tokens, torch.ones_like(tokens).bool()))
        return torch.stack(list(outputs))


@pytest.mark.parametrize("ids", [IDS, None], ids=["reduced", "full"])
def test_training_forward_equals_drafting(
    target: Target, tmp_path: Path, ids: Tensor | None
) -> None:
    """The logits of every level of a chain are those of the steps on the text it proposes."""
    recipe = recipe_for(target, ids)
    recipe.save(tmp_path)
    recipe.draft.load_state_dict(
        {name: p.bfloat16().float() for name, p in recipe.draft.named_parameters()}, strict=False
    )
    drafter = Eagle3(Eagle3Options(model=str(tmp_path), top_k=1, depth=STEPS - 1, total_tokens=8))
    drafter.bind(target.view())
    seen: set[int] = set()
    for length in (5, 9, 14):
        context = random_tokens((14,))[:length]
        features = recipe.target.forward(context[None], drafter.taps)[0][0]
        session = drafter.open(Request(capacity=40))
        assert isinstance(session, EagleSession)
        session.commit(Commit(tuple(context.tolist()), features[:-1]))
        proposed, levels = propose_and_watch(session)
        text = torch.cat([context, proposed])[None]
        outputs = outputs_of(recipe, text)[:, 0, length - 2]
        trained = recipe.draft.logits(outputs, torch.nn.Identity()).detach()
        torch.testing.assert_close(levels, trained, atol=1e-5, rtol=1e-5)
        choice = trained.argmax(-1)
        assert torch.equal(proposed, choice if ids is None else ids[choice])
        seen |= {int(context[-1]), *proposed.tolist()}
    assert len(seen) > 4, "tokens that are all alike would hide a shift"


def propose_and_watch(session: EagleSession) -> tuple[Tensor, Tensor]:
    """The tokens of a chain and the logits ``[steps, Vd]`` of its levels."""
    levels: list[Tensor] = []
    logits = session._logits

    def kept_logits() -> Tensor:
        levels.append(logits())
        return levels[-1]

    session._logits = kept_logits  # type: ignore[method-assign]
    tokens = session.propose(STEPS).tokens
    assert len(tokens) == len(levels) == STEPS
    return tokens.clone(), torch.cat(levels).clone()


def test_a_row_sees_its_past_and_its_own_steps_only(target: Target) -> None:
    recipe = recipe_for(target)
    tokens = random_tokens((1, 20))
    before = outputs_of(recipe, tokens)
    changed = tokens.clone()
    changed[0, 12] = (tokens[0, 12] + 1) % 64
    moved = (outputs_of(recipe, changed) - before).abs().amax(-1)[:, 0] > 1e-6
    for step in range(STEPS):
        # Token 12 is an input of row p's step s when p + 1 + s >= 12.
        assert moved[step].tolist() == [row + 1 + step >= 12 for row in range(20)], step


def test_rows_deal_with_one_response_only() -> None:
    """Tokens 4..8 and 12..14 are responses: a row's anchor and all that it drafts are of one."""
    response = torch.zeros(2, 18, dtype=torch.bool)
    response[0, 4:9] = True
    response[0, 12:15] = True
    rows = rows_in_responses(response, 4)
    found = [step[0].nonzero().flatten().tolist() for step in rows]
    # In step 0 row p predicts p + 2: the second token of each response up to its last one.
    assert found == [[3, 4, 5, 6, 11, 12], [3, 4, 5, 11], [3, 4], [3]]
    assert not any(step[1].any() for step in rows)


def test_the_loss_counts_what_it_says(target: Target) -> None:
    recipe = recipe_for(target)
    tokens = random_tokens((2, 14))
    response = torch.zeros(2, 14, dtype=torch.bool)
    response[0, 5:] = True
    response[1, 2:9] = True
    batch = Batch(tokens, response)
    outputs = outputs_of(recipe, tokens)
    recipe.draft.requires_grad_(False)
    with torch.no_grad():
        logits = target.model(tokens).logits
        loss = float(recipe.loss(batch, torch.Generator()))
    total, first, skipped = 0.0, 0, 0
    for row, (start, end) in enumerate([(5, 14), (2, 9)]):
        for step in range(STEPS):
            for p in range(start - 1, end - 2 - step):
                first += step == 0
                says = logits[row, p + 1 + step]
                if says.argmax() not in IDS:
                    skipped += 1
                    continue
                wanted = says[IDS].softmax(-1)
                got = recipe.draft.logits(outputs[step, row, p], torch.nn.Identity())
                total -= 0.8**step * float((wanted * got.log_softmax(-1)).sum())
    assert skipped > 5
    assert loss == pytest.approx(total / first, rel=1e-5)


def test_padding_changes_nothing(target: Target) -> None:
    recipe = recipe_for(target)
    tokens = random_tokens((1, 14))
    response = torch.ones(1, 14, dtype=torch.bool)
    padded = Batch(
        torch.cat([tokens, random_tokens((1, 6))], 1), torch.cat([response, ~response[:, :6]], 1)
    )
    with torch.no_grad():
        losses = [
            float(recipe.loss(b, torch.Generator())) for b in (Batch(tokens, response), padded)
        ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_only_the_draft_learns(target: Target) -> None:
    recipe = recipe_for(target)
    batch = Batch(random_tokens((1, 20)), torch.ones(1, 20, dtype=torch.bool))
    recipe.loss(batch, torch.Generator()).backward()
    for name, parameter in recipe.draft.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    assert all(p.grad is None and not p.requires_grad for p in target.model.parameters())


@pytest.mark.parametrize("length", [3, 9])
def test_a_batch_without_a_response_teaches_nothing(target: Target, length: int) -> None:
    recipe = recipe_for(target)
    batch = Batch(random_tokens((2, length)), torch.zeros(2, length).bool())
    loss = recipe.loss(batch, torch.Generator())
    loss.backward()
    assert float(loss.detach()) == 0


def test_the_draft_vocabulary_is_what_responses_use_most(target: Target, tmp_path: Path) -> None:
    tokens = np.array([7, 7, 7, 9, 9, 3, 50, 50, 3, 5], dtype=np.int32)
    documents = [Encoded(tokens, np.arange(10) >= 3), Encoded(tokens[:3], np.zeros(3, bool))]
    # 9, 3 and 50 twice, 5 once; of the unused ones the lowest.
    assert frequent_ids(documents, 3, 64).tolist() == [3, 9, 50]
    assert frequent_ids(documents, 6, 64).tolist() == [0, 1, 3, 5, 9, 50]
    options = dataclasses.replace(OPTIONS, draft_vocab_size=6)
    recipe = Eagle3Recipe.for_corpus(FrozenTarget(target), options, documents)
    recipe.save(tmp_path)
    loaded: Any = load_model(tmp_path, torch.device("cpu"), torch.float32)
    assert (loaded.d2t + torch.arange(6)).tolist() == [0, 1, 3, 5, 9, 50]
    assert loaded.t2d.nonzero().flatten().tolist() == [0, 1, 3, 5, 9, 50]
    whole = Eagle3Recipe.for_corpus(FrozenTarget(target), OPTIONS, documents)
    assert whole.draft.config.draft_vocab_size == 64
    assert whole.draft.d2t is None


def test_training_goes_on_from_a_draft(target: Target, tmp_path: Path) -> None:
    first = recipe_for(target)
    first.save(tmp_path)
    options = Eagle3Settings(steps=2, init=str(tmp_path))
    tokens = np.array([1, 3, 62, 62, 3], dtype=np.int32)
    documents = [Encoded(tokens, np.ones(5, dtype=np.bool_))]
    recipe = Eagle3Recipe.for_corpus(FrozenTarget(target), options, documents)
    before, after = first.draft.state_dict(), recipe.draft.state_dict()
    for name in before.keys() - {"d2t", "t2d", "lm_head.weight"}:
        assert torch.equal(after[name], before[name].bfloat16().float())
    ids = draft_ids(recipe.draft).tolist()
    assert {1, 3, 62} < set(ids)
    assert ids == sorted(ids) == after["t2d"].nonzero().flatten().tolist()
    had = IDS.tolist()
    for row, i in zip(after["lm_head.weight"], ids, strict=True):
        old = before["lm_head.weight"][had.index(i)].bfloat16().float() if i in had else None
        assert torch.equal(row, target.view().head.weight[i] if old is None else old)  # type: ignore
    batch = Batch(random_tokens((1, 20)), torch.ones(1, 20, dtype=torch.bool))
    recipe.loss(batch, torch.Generator()).backward()
    assert all(parameter.grad is not None for parameter in recipe.draft.parameters())
    with pytest.raises(ValueError, match="leave heads out, since init="):
        dataclasses.replace(options, heads=2)
    with pytest.raises(UserError, match="does not fit the target"):
        Eagle3Recipe(FrozenTarget(tiny_target(layers=7, vocabulary=70)), options)


def test_an_embedded_draft_can_be_gone_on_from() -> None:
    options = Eagle3Settings(init="tiny-eagle3")
    recipe = Eagle3Recipe.for_corpus(FrozenTarget(Target.load("tiny-target")), options, [])
    assert recipe.settled["draft_vocab_size"] == 2048
    assert all(parameter.requires_grad for parameter in recipe.draft.parameters())


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(UserError, match="6 layers"):
        Eagle3Recipe(FrozenTarget(tiny_target(layers=6)), OPTIONS)
    with pytest.raises(ValueError, match="steps must be at least 1, not 0"):
        Eagle3Settings(steps=0)


def test_it_learns_a_text_by_heart(target: Target, tmp_path: Path) -> None:
    """The draft of a text it has seen nearly fills its chains: nothing is shifted anywhere."""
    plain = Autoregressive()
    plain.bind(target.view())
    prompt = [3, 1, 4, 1, 5]
    text = generate(target, plain, prompt, 40, stop_ids=NO_STOPS).tokens
    response = torch.arange(45)[None] >= len(prompt)
    batch = Batch(torch.tensor([[*prompt, *text]]), response)
    with seeded(0):
        recipe = Eagle3Recipe(FrozenTarget(target), OPTIONS)
    optimizer = torch.optim.AdamW(recipe.draft.parameters(), lr=3e-3)
    for _ in range(220):
        recipe.loss(batch, torch.Generator()).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        figures = recipe.figures(batch, torch.Generator())
    assert figures["emitted_per_round"] > 4
    recipe.save(tmp_path)
    drafter = Eagle3(Eagle3Options(model=str(tmp_path), top_k=1, depth=STEPS - 1, total_tokens=8))
    drafter.bind(target.view())
    output = generate(target, drafter, prompt, 40, stop_ids=NO_STOPS)
    assert output.tokens == text
    # Less than the 5 of full chains: the soft targets of a random model nearly tie.
    assert 39 / len(output.rounds) > 3.5


def test_the_figure_counts_leading_right_steps(target: Target) -> None:
    """One sequence whose every step is right emits 1 + what is left of it, up to all steps."""
    recipe = recipe_for(target, None)
    with torch.no_grad():
        recipe.draft.lm_head.weight.zero_()  # type: ignore[union-attr]
    tokens = torch.zeros(1, 10, dtype=torch.long)
    tokens[0, 6] = 1
    response = torch.ones(1, 10, dtype=torch.bool)
    with torch.no_grad():
        figures = recipe.figures(Batch(tokens, response), torch.Generator())
    # Equal logits choose id 0; row p drafts p + 2 .. p + 5, stopped by token 6 and by the end.
    emitted = [5, 4, 3, 2, 1, 4, 3, 2]
    assert figures["emitted_per_round"] == pytest.approx(sum(emitted) / len(emitted))
    assert math.isfinite(figures["validation_loss"])


def test_unrolled_rows_reach_past_a_short_text(target: Target) -> None:
    recipe = recipe_for(target)
    features = torch.zeros(1, 2, 3 * 32)
    weight: Any = target.view().embedding.weight
    outputs = list(unroll(recipe.draft, weight, features, torch.tensor([[1, 2]]), STEPS))
    assert [tuple(output.shape) for output in outputs] == [(1, 2, 32)] * STEPS


def test_the_command_trains_and_its_draft_runs(tmp_path: Path) -> None:
    chats = [
        [{"role": "user", "content": f"add {i} and 1"}, {"role": "assistant", "content": f"{i+1} it is"}]  # noqa: E501
        for i in range(200)
    ]  # fmt: skip
    corpus = tmp_path / "chats.jsonl"
    corpus.write_text("\n".join(json.dumps({"messages": chat}) for chat in chats))
    tokenizer = train_tokenizer([m["content"] for chat in chats for m in chat], 300)
    target = tiny_target(layers=7, vocabulary=len(tokenizer))
    target.model.save_pretrained(tmp_path / "target")
    tokenizer.save_pretrained(tmp_path / "target")
    settings = TrainSettings(steps=3, batch=4, length=64)
    job = Job(str(tmp_path / "target"), (str(corpus),), (), tmp_path / "draft", "a command")
    options = Eagle3Settings(steps=3, draft_vocab_size=40)
    result = train_draft(Eagle3Recipe, options, job, settings)
    assert result.validation["emitted_per_round"] >= 1
    loaded = Target.load(str(tmp_path / "target"))
    drafter = Eagle3(Eagle3Options(model=str(tmp_path / "draft"), top_k=3, depth=2))
    drafter.bind(loaded.view())
    assert drafter.config.draft_vocab_size == 40
    digits = tokenizer.convert_tokens_to_ids(list("0123456789"))
    assert drafter.model.t2d[digits].all()
    output = generate(loaded, drafter, [5, 6], 9)
    assert len(output.tokens) <= 9
    job = dataclasses.replace(job, out=tmp_path / "more", command="another")
    train_draft(Eagle3Recipe, Eagle3Settings(init=str(tmp_path / "draft")), job, settings)
    card = json.loads((tmp_path / "more" / "card.json").read_text())
    assert [stage["command"] for stage in card["before"]] == ["a command"]
    assert card["options"] == {
        "steps": 7,
        "decay": 0.8,
        "draft_vocab_size": 40,
        "rope_theta": 10000.0,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "intermediate": drafter.config.intermediate,
        "init": str(tmp_path / "draft"),
    }
