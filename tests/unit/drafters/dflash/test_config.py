"""Reading config.json: key places, rope spellings, windows, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from drafters.dflash.config import default_layer_ids, dump_config, parse_config
from specbench.api import UserError
from specbench.drafting.layers import rope_table

BASE: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "block_size": 16,
    "num_target_layers": 36,
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 512,
    "dflash_config": {"mask_token_id": 127, "target_layer_ids": [1, 9, 17, 25, 33]},
}


def parse(**changes: Any) -> Any:
    raw = {key: value for key, value in (BASE | changes).items() if value is not ...}
    return parse_config(raw, "the/draft")


def test_dflash_config_wins_over_the_top_level() -> None:
    nested = BASE["dflash_config"] | {"block_size": 8, "final_logit_softcapping": 30.0}
    config = parse(dflash_config=nested, final_logit_softcapping=50.0, mask_token_id=5)
    assert (config.block_size, config.softcap, config.mask_token_id) == (8, 30.0, 127)
    outside = parse(final_logit_softcapping=50.0)
    assert (outside.block_size, outside.softcap) == (16, 50.0)
    assert parse(final_logit_softcapping=0.0).softcap is None


def test_scale_multiplier_and_taps_are_read() -> None:
    nested = BASE["dflash_config"] | {"input_embedding_scale": 2.5, "output_multiplier": 0.5}
    config = parse(dflash_config=nested)
    assert (config.embedding_scale, config.output_multiplier) == (2.5, 0.5)
    assert config.taps == (2, 10, 18, 26, 34)


@pytest.mark.parametrize(
    ("layers", "count", "ids"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (32, 5, (1, 8, 15, 22, 29)),
        (64, 5, (1, 16, 31, 46, 61)),
        (40, 5, (1, 10, 19, 28, 37)),
        (36, 1, (18,)),
    ],
)
def test_default_taps_are_the_published_ones(layers: int, count: int, ids: tuple[int, ...]) -> None:
    assert default_layer_ids(layers, count) == ids


def test_default_taps_are_as_many_as_draft_layers() -> None:
    config = parse(dflash_config={"mask_token_id": 127}, num_hidden_layers=5)
    assert config.target_layer_ids == (1, 9, 17, 25, 33)


SLIDING = {"sliding_window": 32, "use_sliding_window": True}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("changes", "windows", "causal"),
    [
        ({}, (None,) * 3, (False,) * 3),
        ({"is_causal": True}, (None,) * 3, (True,) * 3),
        (SLIDING | {"layer_types": MIXED}, (32, None, 32), (True, False, True)),
        (SLIDING | {"layer_types": MIXED, "is_causal": False}, (32, None, 32), (False,) * 3),
        (SLIDING | {"layer_types": MIXED, "is_causal": True}, (32, None, 32), (True,) * 3),
        (SLIDING | {"max_window_layers": 1}, (None, 32, 32), (False, True, True)),
        ({"sliding_window": 32, "use_sliding_window": False}, (None,) * 3, (False,) * 3),
    ],
)
def test_windows_and_causality(changes: Any, windows: Any, causal: Any) -> None:
    config = parse(**changes)
    assert (config.windows, config.causal) == (windows, causal)


@pytest.mark.parametrize(
    "changes",
    [{}, SLIDING | {"layer_types": MIXED}, SLIDING | {"layer_types": MIXED, "is_causal": False}],
)
def test_what_is_written_is_read_back(changes: Any) -> None:
    config = parse(**changes, rms_norm_eps=1e-5, final_logit_softcapping=9.0)
    assert parse_config(dump_config(config, "bfloat16"), "again") == config


@pytest.mark.parametrize("changes", [{"windows": (3, 4, 3)}, {"causal": (True, False, False)}])
def test_what_one_file_cannot_say_is_not_written(changes: Any) -> None:
    config = dataclasses.replace(parse(), **changes)
    with pytest.raises(ValueError, match="one value for all layers"):
        dump_config(config, "bfloat16")


YARN = {"factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 24.0}


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5e5, "rope_scaling": YARN | {"type": "yarn"}},
        {"rope_theta": 5e5, "rope_scaling": YARN | {"rope_type": "yarn"}},
        {"rope_theta": ..., "rope_parameters": YARN | {"rope_type": "yarn", "rope_theta": 5e5}},
    ],
    ids=["type", "rope_type", "rope_parameters"],
)
def test_yarn_tables_are_those_of_transformers(spelling: dict[str, Any]) -> None:
    positions = torch.arange(300)
    cos, signed = rope_table(parse(**spelling), positions, torch.float32)
    own = Qwen3Config(
        head_dim=16,
        max_position_embeddings=512,
        rope_parameters=YARN | {"rope_type": "yarn", "rope_theta": 5e5},
    )
    want_cos, want_sin = Qwen3RotaryEmbedding(own)(torch.empty(0), positions[None])
    assert torch.equal(cos[:, 0], want_cos[0])
    assert torch.equal(signed[:, 0].abs(), want_sin[0].abs())
    assert torch.equal(signed[:, 0, 8:], want_sin[0, :, 8:])
    plain, _ = rope_table(parse(rope_theta=5e5), positions, torch.float32)
    assert not torch.allclose(cos, plain, atol=0.1)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "speculators": (
        {
            "architectures": ["DFlashSpeculator"],
            "speculators_model_type": "dflash",
            "transformer_layer_config": {},
            "aux_hidden_state_layer_ids": [2, 18, 33],
        },
        "speculators",
    ),
    "speculators, disguised": ({"draft_vocab_size": 32000}, "speculators"),
    "DeepSpec": ({"architectures": ["Qwen3DSparkModel"]}, "DeepSpec"),
    "DeepSpec Gemma": ({"architectures": ["Gemma4DSparkModel"]}, "DeepSpec"),
    "DeepSpec, disguised": ({"markov_rank": 0, "enable_confidence_head": False}, "DeepSpec"),
    "DFlash 2": ({"architectures": ["DFlash2DraftModel"]}, "DFlash 2"),
    "DFlash 2, rewritten": (
        {"dflash_config": BASE["dflash_config"] | {"conv_kernel_size": 2}},
        "DFlash 2",
    ),
    "Domino": (
        {"dflash_config": BASE["dflash_config"] | {"projector_type": "domino"}},
        "Domino",
    ),
    "DSpark": (
        {"dflash_config": BASE["dflash_config"] | {"projector_type": "dspark"}},
        "DSpark",
    ),
    "JetSpec": ({"dflash_config": BASE["dflash_config"] | {"causal_head": True}}, "JetSpec"),
    "unknown key": ({"dflash_config": BASE["dflash_config"] | {"novelty": 1}}, "novelty"),
    "causal": ({"dflash_config": BASE["dflash_config"] | {"causal": True}}, "causal"),
    "logit_scale": ({"logit_scale": 0.5}, "logit_scale"),
    "a target": ({"architectures": ["Qwen3ForCausalLM"]}, "Qwen3ForCausalLM"),
    "no architecture": ({"architectures": ...}, "DFlashDraftModel"),
    "bias": ({"attention_bias": True}, "attention_bias"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act"),
    "no mask id": ({"dflash_config": {"target_layer_ids": [1]}}, "mask_token_id"),
    "mask id as text": ({"dflash_config": {"mask_token_id": "<mask>"}}, "mask_token_id"),
    "no taps, no depth": (
        {"dflash_config": {"mask_token_id": 1}, "num_target_layers": ...},
        "num_target_layers",
    ),
    "bad taps": ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": [-1]}}, "[-1]"),
    "block of one": ({"block_size": 1}, "at least 2"),
    "no width": ({"hidden_size": ...}, "hidden_size"),
    "too few layer types": ({"layer_types": ["full_attention"]}, "layer_types"),
    "recurrent": ({"layer_types": ["linear_attention"] * 3}, "linear_attention"),
    "window unclear": ({"layer_types": MIXED, "sliding_window": 32}, "use_sliding_window"),
    "dynamic rope": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
    "no theta": ({"rope_theta": ...}, "rope_theta"),
    "causal as a word": ({"is_causal": "yes"}, "is_causal"),
    "cap as a word": ({"final_logit_softcapping": "30"}, "final_logit_softcapping"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_sentence_that_names_the_reason(case: str) -> None:
    changes, named = REFUSED[case]
    with pytest.raises(UserError) as caught:
        parse(**changes)
    assert named in caught.value.message
    assert "the/draft" in caught.value.message
