"""EAGLE checkpoints: the layouts in use, and what is refused."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from drafters.eagle.config import EagleConfig
from drafters.eagle.draft import Eagle1, Eagle2, Eagle3
from specbench.api import Target, UserError
from specbench.testing import tiny_target
from tests.helpers.eagle_drafts import (
    bound,
    change_config,
    change_tensors,
    eagle1_config,
    eagle3_config,
    load,
    run,
    write_head,
)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(layers=7)


def speculators_layout(folder: Path, config: EagleConfig) -> None:
    """What speculators writes for the same head."""
    tensors = load_file(folder / "model.safetensors")
    renamed = {name.replace("midlayer.", "layers.0."): value for name, value in tensors.items()}
    change_tensors(folder, renamed, tuple(name for name in tensors if "midlayer" in name))
    inner = {
        "model_type": "qwen3",
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": config.layers,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.eps,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "tie_word_embeddings": True,
    }
    path = folder / "config.json"
    path.write_text("{}")
    change_config(
        folder,
        {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "speculators_version": "0.9.0",
            "transformer_layer_config": inner,
            "draft_vocab_size": config.draft_vocab_size,
            "norm_before_residual": config.norm_before_residual,
            "norm_before_fc": config.norm_before_fc,
            "fc_norm": config.fc_norm,
            "norm_output": config.norm_output,
            "target_hidden_size": None,
            "eagle_aux_hidden_state_layer_ids": None,
            "embed_requires_grad": False,
            "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "x"}},
        },
    )


def test_speculators(target: Target, tmp_path: Path) -> None:
    config = eagle3_config(
        target,
        layer_ids=None,
        layers=2,
        qk_norm=True,
        max_positions=2048,
        norm_before_residual=True,
        norm_before_fc=True,
        norm_output=True,
    )
    folder = write_head(config, tmp_path)
    want = run(load(folder))
    speculators_layout(folder, config)
    model = load(folder)
    assert model.config == config
    assert torch.equal(run(model), want)


def test_speculators_with_an_unknown_switch(target: Target, tmp_path: Path) -> None:
    config = eagle3_config(target)
    folder = write_head(config, tmp_path)
    speculators_layout(folder, config)
    change_config(folder, {"mix_features": "twice"})
    with pytest.raises(UserError, match="mix_features='twice'"):
        load(folder)


def test_model_optimizer(target: Target, tmp_path: Path) -> None:
    """layers.0 instead of midlayer, ids and switches in eagle_config, no t2d."""
    config = eagle3_config(target, layer_ids=(1, 2, 3))
    folder = write_head(config, tmp_path)
    want = load(folder)
    tensors = load_file(folder / "model.safetensors")
    renamed = {name.replace("midlayer.", "layers.0."): value for name, value in tensors.items()}
    change_tensors(folder, renamed, ("t2d", *(name for name in tensors if "midlayer" in name)))
    eagle = {
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": None,
    }
    change_config(folder, {"eagle_config": eagle})
    model = load(folder)
    assert model.config == config
    assert torch.equal(run(model), run(want))
    assert torch.equal(model.t2d, want.t2d)
    change_config(folder, {"eagle_config": eagle | {"parallel_draft_step": 4}})
    with pytest.raises(UserError, match="parallel_draft_step=4"):
        load(folder)


def test_a_trainers_prefix(target: Target, tmp_path: Path) -> None:
    folder = write_head(eagle3_config(target), tmp_path)
    want = run(load(folder))
    tensors = load_file(folder / "model.safetensors")
    change_tensors(folder, {f"draft_model.{n}": v for n, v in tensors.items()}, tuple(tensors))
    assert torch.equal(run(load(folder)), want)
    change_tensors(folder, {"norm.weight": tensors["norm.weight"]})
    with pytest.raises(UserError, match="twice under two spellings"):
        load(folder)


def test_bin_without_pickled_code(target: Target, tmp_path: Path) -> None:
    folder = write_head(eagle3_config(target), tmp_path)
    want = run(load(folder))
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    torch.save(tensors, path)
    assert torch.equal(run(load(folder)), want)
    torch.save(tensors | {"step": 3}, path)
    with pytest.raises(UserError, match="named tensors and nothing else"):
        load(folder)
    path.write_bytes(pickle.dumps(Path("/"), protocol=2))
    with pytest.raises(UserError, match="cannot be read as a file of tensors"):
        load(folder)
    path.unlink()
    with pytest.raises(UserError, match=r"neither a safetensors nor a \.bin file"):
        load(folder)


def test_safetensors_go_before_bin(target: Target, tmp_path: Path) -> None:
    folder = write_head(eagle3_config(target), tmp_path)
    want = run(load(folder))
    (folder / "pytorch_model.bin").write_bytes(b"not read")
    assert torch.equal(run(load(folder)), want)


BROKEN: dict[str, tuple[dict[str, Any], dict[str, Tensor], tuple[str, ...], str]] = {
    "missing": ({}, {}, ("norm.weight",), r"missing norm\.weight \[32\]"),
    "unknown": ({}, {"other.bias": torch.ones(3)}, (), r"unknown other\.bias \[3\]"),
    "misshapen": ({}, {"norm.weight": torch.ones(31)}, (), r"norm\.weight is \[31\] instead"),
    "not finite": (
        {},
        {"norm.weight": torch.full((32,), torch.nan)},
        (),
        r"not finite .* in norm\.weight",
    ),
    "fc_norm said, not there": ({"fc_norm": True}, {}, (), r"missing fc_norm\.0\.weight"),
    "input_norm there, denied": (
        {"norm_before_fc": False},
        {"input_norm.weight": torch.ones(96)},
        (),
        r"unknown input_norm\.weight",
    ),
    "no fc": ({}, {}, ("fc.weight",), r"fc\.weight .* is missing"),
    "no head": ({}, {}, ("lm_head.weight",), "no lm_head"),
    "no d2t": ({}, {}, ("d2t",), "no d2t"),
    "d2t all zeros": (
        {},
        {"d2t": torch.zeros(32, dtype=torch.long)},
        (),
        "d2t and t2d .* contradict each other",
    ),
    "d2t all zeros, no t2d": (
        {},
        {"d2t": torch.zeros(32, dtype=torch.long)},
        ("t2d",),
        "is all zeros",
    ),
    "d2t as ids": ({}, {"d2t": 63 - torch.arange(32)}, (), "decreases or is negative"),
    "d2t too far": (
        {},
        {"d2t": torch.full((32,), 40, dtype=torch.long)},
        (),
        "leads to the target id 71",
    ),
    "d2t too short": ({}, {"d2t": torch.zeros(31, dtype=torch.long)}, (), r"d2t .* is \[31\]"),
    "t2d as ids": ({}, {"t2d": torch.arange(64)}, (), "contradict each other"),
    "heads": ({"num_attention_heads": 8}, {}, (), r"num_attention_heads \* head_dim .* is 64"),
    "no heads": ({}, {}, (), "num_attention_heads .* is missing"),
    "draft vocabulary": ({"draft_vocab_size": 48}, {}, (), "is 48, but lm_head has 32 rows"),
    "hidden": ({"hidden_size": 64}, {}, (), "hidden_size .* is 64, but fc has 32 rows"),
    "target width": ({"target_hidden_size": 40}, {}, (), "takes 96 inputs"),
    "act": ({"hidden_act": "gelu"}, {}, (), "hidden_act='gelu'"),
    "window": ({"layer_types": ["sliding_attention"]}, {}, (), "sliding_attention"),
    "switched window": ({"use_sliding_window": True}, {}, (), "use_sliding_window=True"),
    "latent attention": ({"kv_lora_rank": 512}, {}, (), "kv_lora_rank=512"),
    "eagle_config": ({"eagle_config": {"x": 1}}, {}, (), r"eagle_config\.x=1"),
    "no features": (
        {"eagle_config": {"use_aux_hidden_state": False}},
        {},
        (),
        "use_aux_hidden_state=False",
    ),
    "rope": ({"rope_parameters": {"rope_type": "dynamic"}}, {}, (), "type 'dynamic'"),
    "ids": (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 2, 1]}},
        {},
        (),
        "must increase",
    ),
    "ids of other kind": (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": "low"}},
        {},
        (),
        "must be a list",
    ),
    "too many ids": (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]}},
        {},
        (),
        r"features for the layers \[1, 2, 3, 4\]",
    ),
    "another method": ({"speculators_model_type": "peagle"}, {}, (), "'peagle'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken(name: str, target: Target, tmp_path: Path) -> None:
    config, tensors, dropped, message = BROKEN[name]
    folder = write_head(eagle3_config(target), tmp_path)
    change_config(folder, config, ("num_attention_heads",) if name == "no heads" else ())
    change_tensors(folder, tensors, dropped)
    with pytest.raises(UserError, match=message) as raised:
        load(folder)
    assert str(folder) in str(raised.value)


def test_all_faults_at_once(target: Target, tmp_path: Path) -> None:
    folder = write_head(eagle3_config(target), tmp_path)
    change_tensors(folder, {"a": torch.ones(1)}, ("norm.weight",))
    with pytest.raises(UserError, match=r"missing norm\.weight .*; unknown a"):
        load(folder)


def test_full_vocabulary(target: Target, tmp_path: Path) -> None:
    """Maps that say nothing are let go; without a head of its own the target's is used."""
    folder = write_head(eagle3_config(target, draft_vocab_size=target.vocab_size), tmp_path)
    zeros = {"d2t": torch.zeros(64, dtype=torch.long), "t2d": torch.ones(64, dtype=torch.bool)}
    change_tensors(folder, zeros)
    model = load(folder)
    assert model.d2t is None
    own = run(model)
    change_tensors(folder, {}, ("lm_head.weight",))
    model = load(folder)
    assert model.lm_head is None
    assert run(model).shape == own.shape
    change_tensors(folder, {"d2t": torch.ones(64, dtype=torch.long)})
    with pytest.raises(UserError, match="leads to the target id 64"):
        load(folder)


def test_tied_embeddings_in_the_config_mean_nothing(target: Target, tmp_path: Path) -> None:
    folder = write_head(eagle3_config(target), tmp_path)
    want = run(load(folder))
    change_config(folder, {"tie_word_embeddings": True, "num_hidden_layers": 36})
    assert torch.equal(run(load(folder)), want)


def test_an_embedding_of_its_own(target: Target, tmp_path: Path) -> None:
    folder = write_head(eagle3_config(target, own_embedding=True), tmp_path)
    with pytest.warns(UserWarning, match="not the target's"):
        drafter = bound(Eagle3, target, folder)
    assert drafter.details["own_embedding"] is True
    assert torch.equal(drafter.embed(torch.arange(4)), drafter.model.embed_tokens.weight[:4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_copy_of_the_targets_embedding_is_let_go(
    dtype: torch.dtype, target: Target, tmp_path: Path
) -> None:
    folder = write_head(eagle3_config(target, own_embedding=True), tmp_path)
    lent = target.view().embedding.weight
    change_tensors(folder, {"embed_tokens.weight": lent.detach().to(dtype)})
    drafter = bound(Eagle3, target, folder)
    assert drafter.details["own_embedding"] is False
    assert drafter.model.embed_tokens is None
    assert torch.equal(drafter.embed(torch.arange(4)), lent[:4])


def test_a_narrower_draft(target: Target, tmp_path: Path) -> None:
    config = eagle3_config(
        target, hidden=24, heads=3, kv_heads=1, own_embedding=True, intermediate=20
    )
    drafter = bound(Eagle3, target, write_head(config, tmp_path))
    assert drafter.config == config


@pytest.mark.parametrize("kind", [Eagle1, Eagle2])
@pytest.mark.parametrize("changes", [{}, {"fc_bias": False}, {"qkv_bias": True}, {"layers": 2}])
def test_heads_of_eagle1(
    kind: Any, changes: dict[str, Any], target: Target, tmp_path: Path
) -> None:
    config = eagle1_config(target, **changes)
    drafter = bound(kind, target, write_head(config, tmp_path))
    assert drafter.config == config
    assert drafter.taps == (target.num_layers,)
    features = torch.randn(5, 1, 32)
    assert torch.equal(drafter.condition(features), target.model.model.norm(features[:, 0]))


def test_a_draft_runs_in_the_targets_dtype(target: Target, tmp_path: Path) -> None:
    folder = write_head(eagle3_config(target), tmp_path)
    view = replace(target.view(), dtype=torch.bfloat16)
    drafter = Eagle3(Eagle3.Options(model=str(folder)))
    drafter.bind(view)
    floats = {v.dtype for v in drafter.model.state_dict().values() if v.is_floating_point()}
    assert floats == {torch.bfloat16}
