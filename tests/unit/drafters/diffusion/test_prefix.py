"""A growing prefix: cached passes equal uncached ones, and the history is not run again."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from drafters.diffusion.model import DiffusionModel
from drafters.diffusion.prefix import Prefix
from specbench.api import UserError
from tests.helpers.diffusion_formats import FORMATS, MASK

TOKENS = torch.randint(MASK, (60,), generator=torch.Generator().manual_seed(5))
GROWTH = [1, 6, 1, 4, 8, 3, 9, 1, 16]
"""Tokens committed a round: within a block of 4, up to its end, over several."""
COUNT = 5


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DiffusionModel]:
    folder: Path = tmp_path_factory.mktemp("models")
    names = ("Dream", "LLaDA", "SDAR", "Fast-dLLM v2")
    return {name: DiffusionModel.load(str(FORMATS[name].write(folder))) for name in names}


def rounds(prefix: Prefix) -> list[tuple[int, Tensor]]:
    """Committed length and logits of every round of `GROWTH`."""
    found = []
    for step in GROWTH:
        tokens = TOKENS[prefix.length : prefix.length + step]
        prefix.extend(tokens if step > 4 else tokens.tolist())
        found.append((prefix.length, prefix.predict_block(COUNT)))
    return found


def sequence(committed: int, block: Tensor, size: int = 1) -> Tensor:
    """Committed tokens, the block, and masks up to a multiple of ``size``."""
    missing = -(committed + len(block)) % size
    return torch.cat([TOKENS[:committed], block, torch.full((missing,), MASK)])


@pytest.mark.parametrize("name", ["Dream", "LLaDA", "SDAR", "Fast-dLLM v2"])
def test_without_a_cache_it_is_predict_on_whole_blocks(
    name: str, models: dict[str, DiffusionModel]
) -> None:
    model = models[name]
    for length, logits in rounds(Prefix(model, 80, "none")):
        ids = sequence(length, torch.full((COUNT,), MASK), model.block_size or 1)
        wanted = model.predict(ids, torch.arange(length, length + COUNT))
        torch.testing.assert_close(logits, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["SDAR", "Fast-dLLM v2"])
def test_the_block_cache_is_exact(name: str, models: dict[str, DiffusionModel]) -> None:
    model = models[name]
    pairs = zip(rounds(Prefix(model, 80, "block")), rounds(Prefix(model, 80, "none")), strict=True)
    for (_, cached), (_, plain) in pairs:
        torch.testing.assert_close(cached, plain, atol=1e-5, rtol=1e-5)


def prefix_causal(model: DiffusionModel, length: int, block: Tensor) -> Tensor:
    """One uncached pass under the mask of the approximation, built pair by pair."""
    n = length + len(block)
    mask = torch.tensor([[i >= length or j <= i for j in range(n)] for i in range(n)])
    first = length - int(model.shift)
    raw = model(sequence(length, block)[None], mask, slice(first, first + len(block)))
    return model.finish(raw[0])


@pytest.mark.parametrize("name", ["Dream", "LLaDA"])
def test_prefix_causal_is_a_full_pass_under_its_mask(
    name: str, models: dict[str, DiffusionModel]
) -> None:
    model = models[name]
    masked = torch.full((COUNT,), MASK)
    plain = Prefix(model, 80, "none")
    for (length, cached), (_, full) in zip(
        rounds(Prefix(model, 80, "prefix_causal")), rounds(plain), strict=True
    ):
        wanted = prefix_causal(model, length, masked)
        torch.testing.assert_close(cached, wanted, atol=1e-5, rtol=1e-5)
        # It is an approximation: full attention says something else wherever there is a prefix
        # of two tokens that could have seen one another.
        if length > 1:
            assert (cached - full)[:, :MASK].abs().max() > 1e-3


def test_behind_a_causal_prefix_the_first_token_is_the_next_token(
    models: dict[str, DiffusionModel],
) -> None:
    """A shifted model's first slot is read where plain decoding reads its next token."""
    model = models["Dream"]
    decoder = copy.deepcopy(model.decoder)
    decoder.set_attn_implementation("sdpa")
    for length, logits in rounds(Prefix(model, 80, "prefix_causal")):
        plain = decoder(TOKENS[None, :length], use_cache=False).logits[0, -1]
        torch.testing.assert_close(logits[0], model.finish(plain), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "cache"),
    [("Dream", "none"), ("Dream", "prefix_causal"), ("LLaDA", "prefix_causal")]
    + [(name, cache) for name in ("SDAR", "Fast-dLLM v2") for cache in ("none", "block")],
)
def test_blocks_filled_step_by_step(
    name: str, cache: str, models: dict[str, DiffusionModel]
) -> None:
    """What a step wrote is seen by the next step, and forgotten once the truth is committed."""
    model = models[name]
    prefix = Prefix(model, 80, cache)
    masked = torch.full((COUNT,), MASK)
    for step in GROWTH:
        prefix.extend(TOKENS[prefix.length : prefix.length + step])
        length = prefix.length
        for filled in ([], [2], [2, 0], [2, 0, 4]):
            block = masked.clone()
            block[filled] = torch.tensor(filled, dtype=torch.long) + 20
            if cache == "prefix_causal":
                wanted = prefix_causal(model, length, block)
            else:
                ids = sequence(length, block, model.block_size or 1)
                wanted = model.predict(ids, torch.arange(length, length + COUNT))
            got = prefix.predict_given(block)
            torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "cache", "rows"),
    [
        # Behind a causal prefix: the new tokens and the slots; in a second step the slots, and
        # the token before them where its row predicts the first.
        ("LLaDA", "prefix_causal", [step + COUNT for step in GROWTH] + [COUNT]),
        ("Dream", "prefix_causal", [step + COUNT for step in GROWTH] + [1 + COUNT]),
        # Lengths 1 7 8 12 20 23 32 33 49: from the last block that was finished a round ago, up
        # to the end of the block that holds the last slot.
        ("SDAR", "block", [8, 12, 12, 12, 16, 8, 20, 8, 24, 8]),
        ("LLaDA", "none", [6, 12, 13, 17, 25, 28, 37, 38, 54, 54]),
    ],
)
def test_only_what_can_have_changed_is_run(
    name: str, cache: str, rows: list[int], models: dict[str, DiffusionModel]
) -> None:
    model = models[name]
    seen: list[int] = []

    def count(module: Any, args: Any, kwargs: Any) -> None:
        seen.append(kwargs["input_ids"].shape[1])

    handle = model.decoder.model.register_forward_pre_hook(count, with_kwargs=True)
    prefix = Prefix(model, 80, cache)
    rounds(prefix)
    prefix.predict_block(COUNT)
    handle.remove()
    assert seen == rows


@pytest.mark.parametrize(("name", "cache"), [("Dream", "prefix_causal"), ("SDAR", "block")])
def test_the_history_stays_where_it_is(
    name: str, cache: str, models: dict[str, DiffusionModel]
) -> None:
    prefix = Prefix(models[name], 80, cache)
    places = set()
    for step in GROWTH:
        prefix.extend(TOKENS[prefix.length : prefix.length + step])
        prefix.predict_block(COUNT)
        assert prefix._cache is not None
        layers = prefix._cache.layers
        places |= {(i, x.keys.data_ptr(), x.values.data_ptr()) for i, x in enumerate(layers)}
    assert len(places) == len(layers)


def test_a_full_capacity_is_enough(models: dict[str, DiffusionModel]) -> None:
    for name, cache in (("Dream", "prefix_causal"), ("SDAR", "block"), ("Fast-dLLM v2", "none")):
        prefix = Prefix(models[name], 6, cache)
        prefix.extend([1])
        assert prefix.predict_block(5).shape[0] == 5


def test_a_shifted_model_needs_a_token_to_start_from(models: dict[str, DiffusionModel]) -> None:
    with pytest.raises(ValueError, match="committed token"):
        Prefix(models["Dream"], 8, "none").predict_block(2)
    assert Prefix(models["LLaDA"], 8, "prefix_causal").predict_block(2).shape[0] == 2


@pytest.mark.parametrize(
    ("name", "cache", "message"),
    [
        ("Dream", "block", "attends to every position"),
        ("SDAR", "prefix_causal", "block-causal: take the cache block"),
        ("SDAR", "suffix", "no cache 'suffix'"),
    ],
)
def test_caches_that_a_family_cannot_have(
    name: str, cache: str, message: str, models: dict[str, DiffusionModel]
) -> None:
    with pytest.raises(UserError, match=message):
        Prefix(models[name], 8, cache)
