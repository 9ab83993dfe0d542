"""Masked-diffusion models on disk: config.json as data, safetensors, no remote code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from drafters.diffusion.families import Family
from specbench.api import UserError
from specbench.drafting.checkpoints import StoredTensors, check_shapes, open_tensors

ARCHITECTURES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)
_OPTIONAL = (
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "eos_token_id",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
)
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def base_config(raw: Mapping[str, Any], family: Family, where: str) -> Any:
    """Make the base architecture's configuration from a family's config.json.

    Raises:
        UserError: a key is missing, or a value is not supported.
    """
    wrong = {k: raw[k] for k, v in family.fixed.items() if raw.get(k) not in (None, v)}
    if wrong:
        raise UserError(
            f"The model {where} has {wrong}, but {family.name} models are run with "
            f"{ {key: family.fixed[key] for key in wrong} } only."
        )
    given = {key: _value(raw, family, key) for key in (*_REQUIRED, *_OPTIONAL)}
    missing = [family.keys.get(key, key) for key in _REQUIRED if given[key] is None]
    if missing:
        raise UserError(f"The config.json of {where} lacks {', '.join(missing)}.")
    make = ARCHITECTURES[family.base][0]
    known = {key: value for key, value in given.items() if value is not None}
    known.setdefault("num_key_value_heads", known["num_attention_heads"])
    # The base's own defaults would be ids of another vocabulary.
    known |= {"bos_token_id": None, "pad_token_id": None}
    known.setdefault("eos_token_id", None)
    try:
        return make(**known)
    except (StrictDataclassError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"The config.json of {where} is not usable: {reason}") from error


def _value(raw: Mapping[str, Any], family: Family, key: str) -> Any:
    """Read a setting by the family's name for it, else by the base's."""
    found = raw.get(family.keys.get(key, key))
    return raw.get(key) if found is None else found


def load_decoder(
    folder: Path, config: Any, family: Family, device: torch.device, dtype: torch.dtype
) -> PreTrainedModel:
    """Load the weights of a folder, all of them and no others, in ``dtype`` on ``device``.

    Raises:
        UserError: names every tensor that is missing, unknown or of the wrong shape.
    """
    with torch.device("meta"):
        decoder = ARCHITECTURES[family.base][1](config)
    names = {
        name: family.published(name)
        for name in decoder.state_dict()
        if not (config.tie_word_embeddings and name == _HEAD)
    }
    with open_tensors(folder) as stored:
        shapes = {names[name]: tuple(decoder.get_parameter(name).shape) for name in names}
        _check(stored, shapes, config, family, folder)
        state = {name: stored.read(theirs).to(device, dtype) for name, theirs in names.items()}
    decoder.load_state_dict(state, strict=False, assign=True)
    if config.tie_word_embeddings:
        decoder.lm_head.weight = decoder.model.embed_tokens.weight
    # The rotary frequencies are not in a checkpoint, so they are still on "meta".
    decoder.model.rotary_emb = type(decoder.model.rotary_emb)(config).to(device)
    return decoder.eval().requires_grad_(False)


def _check(
    stored: StoredTensors,
    wanted: dict[str, tuple[int, ...]],
    config: Any,
    family: Family,
    folder: Path,
) -> None:
    # Older exports contain their rotary frequencies.
    found = {k: v for k, v in stored.shapes.items() if not k.endswith("rotary_emb.inv_freq")}
    head, embedding = family.published(_HEAD), family.published(_EMBEDDING)
    if config.tie_word_embeddings and head in found and embedding in found:
        if not torch.equal(stored.read(head), stored.read(embedding)):
            raise UserError(
                f"The config.json in {folder} ties the head to the embedding, but {head} differs "
                f"from {embedding}: set {_tie(family)} to false to use it, or "
                "remove it."
            )
        del found[head]
    check_shapes(found, wanted, folder, f"a {family.name} model")


def _tie(family: Family) -> str:
    return family.keys.get("tie_word_embeddings", "tie_word_embeddings")


def save_decoder(
    decoder: PreTrainedModel, family: Family, folder: Path, dtype: torch.dtype
) -> None:
    """Write config.json with its ``diffusion`` object and model.safetensors ("converted")."""
    folder.mkdir(parents=True, exist_ok=True)
    tied = decoder.config.tie_word_embeddings
    tensors: dict[str, Tensor] = {
        name: value.detach().to("cpu", dtype).contiguous()
        for name, value in decoder.state_dict().items()
        if not (tied and name == _HEAD)
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    raw = decoder.config.to_diff_dict() | {
        "model_type": family.base,
        "architectures": [type(decoder).__name__],
        "dtype": str(dtype).removeprefix("torch."),
        "diffusion": {
            "mask_token_id": family.mask_id,
            "shift": family.shift,
            "block_size": family.block_size,
        },
    }
    (folder / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
