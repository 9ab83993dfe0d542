"""The published masked-diffusion families: everything that differs between them, in one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specbench.api import UserError

BASES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True)
class Family:
    """Facts of a family; `recognise` fills in those that depend on the checkpoint.

    Attributes:
        name: as in the table and in messages.
        base: the architecture its weights are run with: "qwen2", "qwen3" or "llama".
        shift: True where the logits row at position p - 1 predicts position p.
        mask_id: the id of a masked position; ``mask_token_id`` in config.json overrides it.
        block_size: of block-causal attention: a position sees its own block and those before it;
            None where every position sees every other.
        block_key: where config.json states the block size.
        variants: block sizes by a word of the model's name, where config.json states none.
        banned: ids that are never drafted, besides the mask and the ids from ``text_ids`` on.
        text_ids: number of ids that are text; added tokens and padding rows follow. None: all.
        stop_ids: ids that end a text, besides ``eos_token_id`` in config.json.
        tensors: fragments of the base's tensor names, and the family's names for them.
        keys: the base's config keys, and the family's names for them.
        fixed: settings with one supported value; other values are another network and refused.
    """

    name: str
    base: str
    shift: bool
    mask_id: int | None = None
    block_size: int | None = None
    block_key: str | None = None
    variants: Mapping[str, int | None] = field(default_factory=dict)
    banned: tuple[int, ...] = ()
    text_ids: int | None = None
    stop_ids: tuple[int, ...] = ()
    tensors: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def published(self, parameter: str) -> str:
        """Return the checkpoint's name for a parameter of the base architecture."""
        for ours, theirs in self.tensors.items():
            parameter = parameter.replace(ours, theirs)
        return parameter


_QWEN_STOPS = (151643, 151645)  # <|endoftext|>, <|im_end|>
_ONE_WINDOW = {"use_sliding_window": False}

FAMILIES: dict[str, Family] = {
    # Dream, DiffuCoder, Dream-Coder, d3LLM-Dream and -Dream-Coder: the Qwen2.5 vocabulary with
    # <|beginoftext|> 151665, <|mask|> 151666 and, in DiffuCoder, padding 151667. A block size
    # marks Dream's unshifted, block-causal successors, which share only the model_type.
    "Dream": Family(
        "Dream",
        "qwen2",
        shift=True,
        mask_id=151666,
        text_ids=151665,
        stop_ids=_QWEN_STOPS,
        fixed={**_ONE_WINDOW, "use_mrope": False, "block_size": None},
    ),
    # LLaDA, LLaDA-1.5 and d3LLM-LLaDA. 126080 begins a text; the last token with a name is
    # 126348, the end of a turn (no source states the end of the vocabulary; it follows from this).
    "llada": Family(
        "LLaDA",
        "llama",
        shift=False,
        mask_id=126336,
        banned=(126080,),
        text_ids=126349,
        stop_ids=(126081, 126348),
        tensors={
            "model.embed_tokens": "model.transformer.wte",
            "model.norm": "model.transformer.ln_f",
            "lm_head": "model.transformer.ff_out",
            "model.layers": "model.transformer.blocks",
            "input_layernorm": "attn_norm",
            "post_attention_layernorm": "ff_norm",
            "self_attn.o_proj": "attn_out",
            "self_attn.": "",
            "mlp.gate_proj": "ff_proj",
            "mlp.up_proj": "up_proj",
            "mlp.down_proj": "ff_out",
        },
        keys={
            "vocab_size": "embedding_size",
            "hidden_size": "d_model",
            "intermediate_size": "mlp_hidden_size",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "num_key_value_heads": "n_kv_heads",
            "max_position_embeddings": "max_sequence_length",
            "tie_word_embeddings": "weight_tying",
            "hidden_act": "activation_type",
        },
        fixed={
            "activation_type": "silu",
            "alibi": False,
            "attention_layer_norm": False,
            "bias_for_layer_norm": False,
            "block_type": "llama",
            "include_bias": False,
            "include_qkv_bias": False,
            "input_emb_norm": False,
            "layer_norm_type": "rms",
            "multi_query_attention": None,
            "rope": True,
            "scale_logits": False,
        },
    ),
    # The mask id stands in the released code, not in config.json.
    "Fast_dLLM_Qwen": Family(
        "Fast-dLLM v2",
        "qwen2",
        shift=True,
        mask_id=151665,
        block_size=32,
        block_key="bd_size",
        text_ids=151665,
        stop_ids=_QWEN_STOPS,
        fixed=_ONE_WINDOW,
    ),
    # The dllm-hub conversions. Their classes attend to everything and the sampler makes the
    # blocks, so only the name distinguishes an mdlm from a bd3lm model.
    "a2d-qwen3": Family(
        "A2D-Qwen3",
        "qwen3",
        shift=False,
        mask_id=151669,
        block_key="block_size",
        variants={"bd3lm": 32, "mdlm": None},
        text_ids=151669,
        stop_ids=_QWEN_STOPS,
        fixed=_ONE_WINDOW,
    ),
    "a2d-qwen2": Family(
        "A2D-Qwen2",
        "qwen2",
        shift=False,
        mask_id=151665,
        block_key="block_size",
        variants={"bd3lm": 32, "mdlm": None},
        text_ids=151665,
        stop_ids=_QWEN_STOPS,
        fixed=_ONE_WINDOW,
    ),
    "sdar": Family(
        "SDAR",
        "qwen3",
        shift=False,
        mask_id=151669,
        block_size=4,
        block_key="block_size",
        text_ids=151669,
        stop_ids=_QWEN_STOPS,
        fixed=_ONE_WINDOW,
    ),
}

# A plain Llama by its config.json; its mask, 811, is an ordinary token of Llama 2.
DIFFULLAMA = Family("DiffuLLaMA", "llama", shift=True, mask_id=811, stop_ids=(2,))


def converted(base: str, mask_id: int, *, shift: bool, block_size: int | None = None) -> Family:
    """Make the family of a base architecture with a ``diffusion`` object in config.json, the layout
    that training writes."""
    return Family("converted", base, shift, mask_id, block_size, fixed=_ONE_WINDOW)


def recognise(raw: Mapping[str, Any], name: str) -> Family:
    """Find the family of a config.json, with its mask id and block size.

    Args:
        raw: the parsed file; ``auto_map`` and the like are never read.
        name: hub id or folder, as the user wrote it.

    Raises:
        UserError: no known family, or settings that are not the family's.
    """
    kind = raw.get("model_type")
    if "diffusion" in raw:
        return _converted(raw, name)
    if kind == "llama" and "diffullama" in name.lower():
        return DIFFULLAMA
    if kind not in FAMILIES:
        raise UserError(
            f"The model {name!r} has the model_type {kind!r}, which is no masked-diffusion family "
            f"known here: {', '.join(FAMILIES)}, or {' / '.join(BASES)} with an object "
            '"diffusion": {"mask_token_id": ..., "shift": ..., "block_size": ...} in config.json '
            "(DiffuLLaMA is a llama known by its name; under another name give it that object: "
            "811, true, null)."
        )
    family = FAMILIES[kind]
    mask = raw.get("mask_token_id")
    if mask is not None:
        family = replace(family, mask_id=_integer("mask_token_id", mask, 0, name))
    return replace(family, block_size=_block_size(family, raw, name))


def _block_size(family: Family, raw: Mapping[str, Any], name: str) -> int | None:
    """Take the block size of config.json, else of a word in the name, else of the family."""
    key = family.block_key
    if key is None:
        return family.block_size
    if raw.get(key) is not None:
        return _integer(key, raw[key], 1, name)
    if not family.variants:
        return family.block_size
    words = [word for word in family.variants if word in name.lower()]
    if key not in raw and len(words) != 1:
        meanings = ", ".join(f"{size or 'null'} for {w}" for w, size in family.variants.items())
        raise UserError(
            f"Neither the name nor the config.json of {name!r} says whether the model was trained "
            f'in blocks: add "{key}" to its config.json ({meanings}).'
        )
    return None if key in raw else family.variants[words[0]]


def _converted(raw: Mapping[str, Any], name: str) -> Family:
    base, given = raw.get("model_type"), raw["diffusion"]
    if base not in BASES:
        raise UserError(
            f"The model {name!r} has a `diffusion` object and the model_type {base!r}, but only "
            f"{', '.join(BASES)} are supported with one."
        )
    wanted = {"mask_token_id", "shift", "block_size"}
    if not isinstance(given, dict) or set(given) != wanted:
        raise UserError(
            f"The `diffusion` object of {name!r} must hold {', '.join(sorted(wanted))}, not "
            f"{given!r}."
        )
    shift, block = given["shift"], given["block_size"]
    if type(shift) is not bool:
        raise UserError(f"shift in the config.json of {name!r} must be true or false: {shift!r}.")
    return converted(
        base,
        _integer("mask_token_id", given["mask_token_id"], 0, name),
        shift=shift,
        block_size=None if block is None else _integer("block_size", block, 1, name),
    )


def _integer(key: str, value: Any, least: int, name: str) -> int:
    if type(value) is not int or value < least:
        raise UserError(
            f"{key} in the config.json of {name!r} must be an integer of at least {least}, not "
            f"{value!r}."
        )
    return value
