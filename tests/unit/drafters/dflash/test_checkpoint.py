"""Loading weights: every tensor is consumed and none is missing, or the load names them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from drafters.dflash.checkpoint import load_config, load_model, save_model
from specbench.api import Target, UserError
from specbench.testing import tiny_target
from tests.helpers.dflash_drafts import bound_draft, draft_config, write_draft


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(layers=5)


@pytest.fixture
def folder(target: Target, tmp_path: Path) -> Path:
    return write_draft(draft_config(target), tmp_path)


def rewrite(folder: Path, change: dict[str, Tensor | None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, value in change.items():
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value
    save_file(tensors, folder / "model.safetensors")


def load(folder: Path) -> object:
    return load_model(folder, load_config(folder), torch.device("cpu"), torch.float32)


def test_names_are_those_of_published_drafts(folder: Path) -> None:
    shapes = {name: list(t.shape) for name, t in load_file(folder / "model.safetensors").items()}
    assert len(shapes) == 11 * 2 + 3
    assert shapes["fc.weight"] == [32, 64]
    assert shapes["layers.1.self_attn.q_proj.weight"] == [32, 32]
    assert shapes["layers.1.self_attn.v_proj.weight"] == [16, 32]
    assert shapes["layers.0.mlp.up_proj.weight"] == [40, 32]
    assert shapes["layers.0.self_attn.k_norm.weight"] == [8]
    assert {"norm.weight", "hidden_norm.weight"} <= shapes.keys()


def test_saved_again_it_is_the_same_file(folder: Path, tmp_path: Path) -> None:
    model = load_model(folder, load_config(folder), torch.device("cpu"), torch.float32)
    save_model(model, tmp_path / "again", torch.float32)
    first, second = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "again"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert load_config(tmp_path / "again") == load_config(folder)


def test_weights_may_lie_in_several_files(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for index, name in enumerate(tensors):
        save_file({name: tensors[name]}, folder / f"model-{index}.safetensors")
    load(folder)


def test_all_faults_are_named_at_once(folder: Path) -> None:
    rewrite(
        folder,
        {
            "fc.weight": torch.zeros(32, 96),
            "layers.1.self_attn.k_norm.weight": None,
            "lm_head.weight": torch.zeros(64, 32),
            "embed_tokens.weight": torch.zeros(64, 32),
        },
    )
    with pytest.raises(UserError) as caught:
        load(folder)
    for part in (
        "missing layers.1.self_attn.k_norm.weight [8]",
        "unknown embed_tokens.weight [64, 32]; unknown lm_head.weight [64, 32]",
        "fc.weight is [32, 96] instead of [32, 64]",
    ):
        assert part in caught.value.message


@pytest.mark.parametrize(
    "extra",
    [
        "layers.0.attention_conv.base_kernel",
        "candidate_selector.predecessor_codebook",
        "prefix_gru.weight_ih_l0",
        "markov_w1.weight",
        "t2d",
        "mask_embedding",
        "layers.0.self_attn.q_proj.bias",
    ],
)
def test_a_tensor_of_another_layout_is_refused(folder: Path, extra: str) -> None:
    rewrite(folder, {extra: torch.zeros(3)})
    with pytest.raises(UserError, match=f"unknown {extra}"):
        load(folder)


def test_a_config_that_promises_more_layers_is_noticed(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"missing layers\.2\."):
        load(folder)


def test_pickles_are_never_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="no safetensors file"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden": 48}, "hidden_size is 48, the target's 32"),
        ({"vocab_size": 60, "mask_token_id": 3}, "vocab_size is 60, the target's 64"),
        ({"num_target_layers": 36}, "made for 36 layers, the target has 5"),
        ({"target_layer_ids": (0, 4)}, "target_layer_ids go to 4"),
        ({"mask_token_id": 64}, "mask_token_id is 64, the target's embedding has 64 rows"),
    ],
)
def test_a_draft_of_another_target_is_refused(
    target: Target, tmp_path: Path, changes: dict[str, object], named: str
) -> None:
    folder = write_draft(draft_config(target, **changes), tmp_path)
    with pytest.raises(UserError, match=named):
        bound_draft(target, folder)


def test_a_block_has_to_fit_the_draft(target: Target, folder: Path) -> None:
    for size in (1, 6):
        with pytest.raises(UserError, match="take 2 to 5"):
            bound_draft(target, folder, block_size=size)
    assert bound_draft(target, folder, block_size=3).width == 2
