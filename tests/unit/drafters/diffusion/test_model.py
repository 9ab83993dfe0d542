"""What a masked position sees, which row predicts it, and what is never drafted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from drafters.diffusion.model import DiffusionModel
from drafters.diffusion.prefix import Prefix
from specbench.api import UserError
from tests.helpers.diffusion_formats import FORMATS, MASK

LENGTH, BLOCK = 15, slice(10, 15)
IDS = torch.randint(MASK, (LENGTH,), generator=torch.Generator().manual_seed(3))
IDS[BLOCK] = MASK
SLOTS = torch.arange(10, 15)
ALL = torch.ones(LENGTH, LENGTH, dtype=torch.bool)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DiffusionModel]:
    folder: Path = tmp_path_factory.mktemp("models")
    names = ("converted", "Dream", "LLaDA", "SDAR", "Fast-dLLM v2")
    return {name: DiffusionModel.load(str(FORMATS[name].write(folder))) for name in names}


def moved(before: Tensor, after: Tensor) -> list[bool]:
    """Which rows differ, away from rounding."""
    change = (before - after).nan_to_num(0.0).abs().amax(-1)
    assert ((change < 1e-5) | (change > 1e-3)).all()
    return (change > 1e-3).tolist()


def causal_twin(model: DiffusionModel, ids: Tensor) -> Tensor:
    """The decoder as it would run by itself."""
    with torch.no_grad():
        raw = model(ids[None], ALL.tril(), SLOTS - int(model.shift))
    return model.finish(raw[0])


@pytest.mark.parametrize("name", ["converted", "Dream", "LLaDA"])
def test_the_last_mask_is_seen_by_every_slot(name: str, models: dict[str, DiffusionModel]) -> None:
    model = models[name]
    changed = IDS.clone()
    changed[-1] = 7
    assert all(moved(model.predict(IDS, SLOTS), model.predict(changed, SLOTS)))
    # The twin that turned causal: only the row of the changed position itself moves, and a
    # shifted model does not even read that one.
    assert moved(causal_twin(model, IDS), causal_twin(model, changed)) == [
        slot == LENGTH - 1 and not model.shift for slot in SLOTS.tolist()
    ]


@pytest.mark.parametrize("name", ["SDAR", "Fast-dLLM v2"])
def test_blocks_see_themselves_and_the_past(name: str, models: dict[str, DiffusionModel]) -> None:
    """Blocks of 4: positions 12 to 15 are one, and nothing before it sees into it."""
    model = models[name]
    changed = IDS.clone()
    changed[-1] = 7
    rows = SLOTS - int(model.shift)
    expected = [row // 4 == (LENGTH - 1) // 4 for row in rows.tolist()]
    assert moved(model.predict(IDS, SLOTS), model.predict(changed, SLOTS)) == expected


@pytest.mark.parametrize("first", [0, 9])
def test_visibility_by_pairs(first: int, models: dict[str, DiffusionModel]) -> None:
    wanted = FORMATS["SDAR"].visible(LENGTH)[first:]
    assert torch.equal(models["SDAR"].visibility(LENGTH, first), wanted)


@pytest.mark.parametrize("name", ["converted", "Dream", "LLaDA"])
def test_where_all_is_seen_attention_gets_no_mask(
    name: str, models: dict[str, DiffusionModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, masks = models[name], []
    original = torch.nn.functional.scaled_dot_product_attention

    def recording(*args: Tensor, attn_mask: Tensor | None = None, **settings: Any) -> Tensor:
        masks.append(attn_mask)
        return original(*args, attn_mask=attn_mask, **settings)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", recording)
    sequence = Prefix(model, LENGTH)
    sequence.extend(IDS[:10])
    got = sequence.predict_block(5)
    assert masks == [None] * model.num_layers
    rows = SLOTS - int(model.shift)
    torch.testing.assert_close(got, model.finish(model(IDS[None], ALL, rows)[0]))
    assert all(mask is not None for mask in masks[model.num_layers :])


@pytest.mark.parametrize("name", ["converted", "Dream", "Fast-dLLM v2"])
def test_a_shifted_first_token_is_the_row_of_the_last_prefix_token(
    name: str, models: dict[str, DiffusionModel]
) -> None:
    model, form = models[name], FORMATS[name]
    raw = form.forward(form.tensors(), IDS, form.visible(LENGTH))
    next_token = raw[9].index_fill(-1, torch.tensor([MASK]), -torch.inf).argmax()
    first = model.predict(IDS, SLOTS)[0]
    assert first.argmax() == next_token
    # Off by one is another row, not a rounding matter.
    assert moved(first[None], model.finish(raw[10].float())[None]) == [True]


def test_the_first_position_of_a_shifted_model_has_no_row(
    models: dict[str, DiffusionModel],
) -> None:
    with pytest.raises(ValueError, match="position 0"):
        models["Dream"].predict(IDS, torch.tensor([0]))
    assert models["LLaDA"].predict(IDS, torch.tensor([0])).isfinite().any()


def test_mask_added_and_padding_ids_are_never_drafted(models: dict[str, DiffusionModel]) -> None:
    plain = models["LLaDA"]
    family = replace(plain.family, banned=(3, 61), text_ids=50, stop_ids=(4, 55))
    model = DiffusionModel(plain.decoder, family)
    assert (model.vocab_size, model.stop_ids) == (50, {4, 5})
    logits = model.predict(IDS, SLOTS)
    assert logits.shape == (5, 50)
    assert (logits == -torch.inf).nonzero()[:, 1].unique().tolist() == [3]
    allowed = [token for token in range(50) if token != 3]
    assert torch.equal(logits[:, allowed], plain.predict(IDS, SLOTS)[:, allowed])
    # The mask stands inside the text ids of DiffuLLaMA.
    inside = DiffusionModel(plain.decoder, replace(family, mask_id=8))
    assert (inside.predict(IDS, SLOTS)[:, 8] == -torch.inf).all()


def test_a_mask_id_outside_the_embedding_is_refused(models: dict[str, DiffusionModel]) -> None:
    model = models["LLaDA"]
    with pytest.raises(UserError, match="64 rows"):
        DiffusionModel(model.decoder, replace(model.family, mask_id=64))


def test_batches_rows_and_positions(models: dict[str, DiffusionModel]) -> None:
    model = models["converted"]
    both = torch.stack([IDS, IDS.flip(0)])
    torch.testing.assert_close(
        model.predict(both, SLOTS), torch.stack([model.predict(ids, SLOTS) for ids in both])
    )
    masks = torch.stack([ALL, ALL.tril()])
    rows = torch.tensor([2, 11])
    got = model(both, masks, rows)
    for row, ids, mask in zip(got, both, masks, strict=True):
        torch.testing.assert_close(row, model(ids[None], mask)[0, rows])
    # Rotary positions are relative: moving all changes nothing, moving some does.
    there = torch.arange(LENGTH)
    torch.testing.assert_close(model(IDS[None], masks[0], positions=there + 40), got_all(model))
    assert (model(IDS[None], masks[0], positions=there * 2) - got_all(model)).abs().max() > 1e-2


def got_all(model: DiffusionModel) -> Tensor:
    logits: Tensor = model(IDS[None], model.visibility(LENGTH))
    return logits


def test_no_mask_of_another_kind_gets_through(models: dict[str, DiffusionModel]) -> None:
    model = models["converted"]
    for wrong in (torch.zeros(LENGTH, LENGTH), ALL[:, 1:]):
        with pytest.raises(ValueError, match="visible must be bool"):
            model(IDS[None], wrong)


def test_every_weight_learns(models: dict[str, DiffusionModel]) -> None:
    plain = models["Dream"]
    model = DiffusionModel(plain.decoder, plain.family).requires_grad_(True)
    model(IDS[None], model.visibility(LENGTH), slice(9, 14)).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
    model.requires_grad_(False)
