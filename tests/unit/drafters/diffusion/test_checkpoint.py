"""Published masked-diffusion checkpoints: the authors' network, or a clear refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from drafters.diffusion.families import DIFFULLAMA, FAMILIES, recognise
from drafters.diffusion.model import DiffusionModel
from specbench.api import UserError
from tests.helpers.diffusion_formats import FORMATS, MASK, Format

IDS = torch.randint(MASK, (37,), generator=torch.Generator().manual_seed(1))
IDS[30:] = MASK


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS.keys())
def test_forward_equals_an_independent_one(form: Format, tmp_path: Path) -> None:
    model = DiffusionModel.load(str(form.write(tmp_path)))
    ids = IDS.masked_fill(IDS == MASK, form.mask)
    raw = form.forward(form.tensors(), ids, form.visible(len(ids)))
    got = model(ids[None], model.visibility(len(ids)))[0]
    torch.testing.assert_close(got.double(), raw, atol=1e-5, rtol=1e-5)
    assert (model.shift, model.block_size, model.mask_id) == (form.shift, form.block, form.mask)

    slots = torch.arange(30, 37)
    wanted = raw[slots - 1 if form.shift else slots].float()
    wanted[:, form.mask] = -torch.inf
    torch.testing.assert_close(model.predict(ids, slots), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "name", "base", "shift", "mask", "block", "stops"),
    [
        ("Dream", "Dream-org/Dream-v0-Instruct-7B", "qwen2", True, 151666, None, 151645),
        ("Dream", "apple/DiffuCoder-7B-Instruct", "qwen2", True, 151666, None, 151643),
        ("Dream", "d3LLM/d3LLM_Dream_Coder", "qwen2", True, 151666, None, 151643),
        ("llada", "GSAI-ML/LLaDA-8B-Instruct", "llama", False, 126336, None, 126348),
        ("llada", "d3LLM/d3LLM_LLaDA", "llama", False, 126336, None, 126081),
        ("llama", "diffusionfamily/diffullama", "llama", True, 811, None, 2),
        ("Fast_dLLM_Qwen", "E/Fast_dLLM_v2_7B", "qwen2", True, 151665, 32, 151645),
        (
            "a2d-qwen3",
            "dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1",
            "qwen3",
            False,
            151669,
            None,
            151645,
        ),
        (
            "a2d-qwen3",
            "dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1",
            "qwen3",
            False,
            151669,
            32,
            151645,
        ),
        ("a2d-qwen2", "x/Qwen2.5-Coder-0.5B-diffusion-mdlm", "qwen2", False, 151665, None, 151645),
        ("a2d-qwen2", "x/Qwen2.5-Coder-0.5B-diffusion-bd3lm", "qwen2", False, 151665, 32, 151645),
        ("sdar", "JetLM/SDAR-8B-Chat", "qwen3", False, 151669, 4, 151645),
    ],
)
def test_facts_that_config_json_leaves_out(
    kind: str, name: str, base: str, shift: bool, mask: int, block: int | None, stops: int
) -> None:
    family = recognise({"model_type": kind}, name)
    assert (family.base, family.shift, family.mask_id, family.block_size) == (
        base,
        shift,
        mask,
        block,
    )
    assert stops in family.stop_ids


def test_no_mask_or_added_token_counts_as_text() -> None:
    for family in FAMILIES.values():
        assert family.text_ids is not None
        assert family.mask_id is not None
        assert family.mask_id >= family.text_ids or family.name == "LLaDA"
        assert all(stop < family.text_ids for stop in family.stop_ids)
    assert DIFFULLAMA.text_ids is None


def test_config_json_wins_over_the_table() -> None:
    block = recognise({"model_type": "Fast_dLLM_Qwen", "bd_size": 8, "mask_token_id": 7}, "x")
    assert (block.block_size, block.mask_id) == (8, 7)
    stated = {"model_type": "a2d-qwen3", "block_size": 16}
    assert recognise(stated, "unnamed").block_size == 16
    assert recognise(stated | {"block_size": None}, "some-bd3lm").block_size is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen2"}, "no masked-diffusion family known here: Dream, llada"),
        ({"model_type": "DreamX"}, "'DreamX'"),
        ({"model_type": None}, "None"),
        ({"block_size": 32}, "'block_size': 32"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"mask_token_id": 64}, "mask id of .* is 64, but its embedding has 64 rows"),
        ({"mask_token_id": "60"}, "mask_token_id in the config.json .* integer"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"hidden_size": "32"}, "is not usable: .*hidden_size"),
        ({"model_type": "a2d-qwen3"}, r'add "block_size" to its config.json \(32 for bd3lm, null'),
        ({"diffusion": {}}, "only llama, qwen2, qwen3 are supported with one"),
        ({"model_type": "qwen2", "diffusion": {"shift": True}}, "must hold block_size, mask_tok"),
        (
            {
                "model_type": "qwen2",
                "diffusion": {"mask_token_id": 60, "shift": 1, "block_size": None},
            },
            "shift in the config.json",
        ),
        (
            {
                "model_type": "qwen2",
                "diffusion": {"mask_token_id": 60, "shift": True, "block_size": 0},
            },
            "block_size in the config.json .* at least 1, not 0",
        ),
    ],
)
def test_refused_configs(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = FORMATS["Dream"].write(tmp_path)
    (folder / "config.json").write_text(json.dumps(FORMATS["Dream"].config | changes))
    with pytest.raises(UserError, match=message):
        DiffusionModel.load(str(folder))


@pytest.mark.parametrize("name", ["Dream", "LLaDA"])
def test_tensors_that_do_not_fit_are_named_as_published(name: str, tmp_path: Path) -> None:
    form = FORMATS[name]
    folder = form.write(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    gone, bent = form.names(1)["down"], form.names(0)["k"]
    del tensors[gone]
    tensors[bent] = tensors[bent][:-1].clone()
    tensors["model.extra.weight"] = torch.zeros(1)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError) as error:
        DiffusionModel.load(str(folder))
    rows = len(form.tensors()[bent])
    for part in (
        f"missing {gone} [32, 48]",
        "unknown model.extra.weight [1]",
        f"{bent} is [{rows - 1}, 32] instead of [{rows}, 32]",
    ):
        assert part in str(error.value)


def test_a_null_setting_is_one_left_out(tmp_path: Path) -> None:
    folder = FORMATS["Dream"].write(tmp_path)
    nulls = {"use_sliding_window": None, "use_mrope": None, "mask_token_id": None}
    family = recognise(FORMATS["Dream"].config | nulls, "x")
    assert family.mask_id == 151666
    (folder / "config.json").write_text(
        json.dumps(FORMATS["Dream"].config | nulls | {"mask_token_id": MASK})
    )
    assert DiffusionModel.load(str(folder)).mask_id == MASK


def test_another_llada_network_is_refused(tmp_path: Path) -> None:
    form = FORMATS["LLaDA"]
    folder = form.write(tmp_path)
    (folder / "config.json").write_text(json.dumps(form.config | {"attention_layer_norm": True}))
    with pytest.raises(UserError, match="'attention_layer_norm': True"):
        DiffusionModel.load(str(folder))


def test_a_tied_head_stored_beside_the_embedding(tmp_path: Path) -> None:
    form = FORMATS["A2D-Qwen3 mdlm"]
    folder = form.write(tmp_path)
    stored = folder / "model.safetensors"
    plain = DiffusionModel.load(str(folder))
    tensors = load_file(stored)
    save_file(tensors | {form.head: tensors[form.embedding].clone()}, stored)
    visible = plain.visibility(len(IDS))
    both = DiffusionModel.load(str(folder))
    assert torch.equal(both(IDS[None], visible), plain(IDS[None], visible))

    save_file(tensors | {form.head: tensors[form.embedding] + 1}, stored)
    with pytest.raises(UserError, match="set tie_word_embeddings to false to use it"):
        DiffusionModel.load(str(folder))


def test_rotary_frequencies_of_older_exports_are_skipped(tmp_path: Path) -> None:
    folder = FORMATS["Dream"].write(tmp_path)
    stored = folder / "model.safetensors"
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    save_file(load_file(stored) | {name: torch.ones(4)}, stored)
    DiffusionModel.load(str(folder))


def test_remote_code_is_never_run(tmp_path: Path) -> None:
    folder = FORMATS["Dream"].write(tmp_path)
    ran = tmp_path / "ran"
    (folder / "modeling.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    DiffusionModel.load(str(folder))
    assert not ran.exists()


@pytest.mark.parametrize("name", ["converted", "SDAR", "LLaDA"])
def test_what_is_saved_is_loaded_again(name: str, tmp_path: Path) -> None:
    """Saved under the base's names with a `diffusion` object, whatever it came from."""
    model = DiffusionModel.load(str(FORMATS[name].write(tmp_path)))
    model.save(tmp_path / "saved", torch.float32)
    again = DiffusionModel.load(str(tmp_path / "saved"))
    assert again.family.name == "converted"
    assert (again.shift, again.block_size) == (model.shift, model.block_size)
    assert again.stop_ids >= {5}
    visible = model.visibility(len(IDS))
    assert torch.equal(model(IDS[None], visible), again(IDS[None], visible))


def test_weights_take_the_asked_dtype(tmp_path: Path) -> None:
    model = DiffusionModel.load(str(FORMATS["Dream"].write(tmp_path)), dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.predict(IDS, torch.tensor([31])).dtype == torch.float32
