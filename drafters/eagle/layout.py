"""Read config.json of an EAGLE draft, in any of the layouts in use, as data.

Widths come from the tensors. The file says how many heads there are, how positions are rotated,
which target layers are read and which variants of the forward were trained. The layouts are the
official one (also SpecForge's and AngelSlim's), speculators' and Model-Optimizer's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafters.eagle.config import EagleConfig
from specbench.api import UserError
from specbench.drafting.checkpoints import ConfigReader

Shapes = Mapping[str, tuple[int, ...]]
"""Tensor names, in the official spelling, to shapes."""

_NORMS = ("norm_before_fc", "fc_norm", "norm_output", "norm_before_residual")

# Any other value of these keys (null aside) changes the forward.
_FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "partial_rotary_factor": (1, 1.0),
    "use_sliding_window": (False,),
    "position_embedding_type": ("rope",),
    "parallel_drafting": (False,),
    "num_eagle_features": (3,),
    "use_aux_hidden_state": (True,),
    "use_input_layernorm_in_first_layer": (True,),
    "use_last_layernorm": (True,),
    "use_mtp_layernorm": (False,),
    "next_layer_regular": (True,),
    "parallel_draft_step": (1,),
    "parallel_draft_heads_num_layers": (0, 1),
    "has_lm_head": (True, False),
}
# Keys of other methods or attentions; refused where they are present and not null.
_FOREIGN = (
    "q_lora_rank",
    "kv_lora_rank",
    "dflash_config",
    "block_size",
    "markov_rank",
    "medusa_num_heads",
    "lm_head_rank",
    "final_logit_softcapping",
    "attn_logit_softcapping",
    "logit_scale",
    "embedding_multiplier",
    "residual_multiplier",
)
_EAGLE_CONFIG = {
    "eagle_aux_hidden_state_layer_ids",
    "use_aux_hidden_state",
    "use_input_layernorm_in_first_layer",
    "use_last_layernorm",
    "use_mtp_layernorm",
    "next_layer_regular",
    "parallel_draft_step",
    "parallel_draft_heads_num_layers",
    "has_lm_head",
    *_NORMS,
}
_SPECULATORS = {
    "architectures",
    "auto_map",
    "base_model_ep_plan",
    "base_model_pp_plan",
    "base_model_tp_plan",
    "draft_vocab_size",
    "dtype",
    "eagle_aux_hidden_state_layer_ids",
    "embed_requires_grad",
    "has_no_defaults_at_init",
    "model_type",
    "speculators_config",
    "speculators_model_type",
    "speculators_version",
    "target_hidden_size",
    "tie_word_embeddings",
    "torch_dtype",
    "transformer_layer_config",
    "transformers_version",
    *_NORMS,
}


def parse_config(raw: Mapping[str, Any], shapes: Shapes, where: str) -> EagleConfig:
    """Parse the settings that the forward of a checkpoint depends on.

    Args:
        raw: the parsed config.json.
        shapes: of the checkpoint's tensors.
        where: its path or hub id, for messages.

    Raises:
        UserError: a switch that is not implemented, or a value that contradicts the tensors.
    """
    parts = (raw.get("eagle_config"), raw.get("transformer_layer_config"), raw)
    read = ConfigReader([part for part in parts if isinstance(part, Mapping)], where)
    _refuse(raw, read)
    version = 3 if "midlayer.hidden_norm.weight" in shapes else 1
    fc = _shape(shapes, "fc.weight", where)
    hidden = fc[0]
    heads = read.integer("num_attention_heads")
    query_rows = _shape(shapes, f"{_first(version)}.self_attn.q_proj.weight", where)[0]
    head_dim = read.integer("head_dim", query_rows // heads)
    key_rows = _shape(shapes, f"{_first(version)}.self_attn.k_proj.weight", where)[0]
    kv_heads = read.integer("num_key_value_heads", heads)
    _match(read, "num_attention_heads * head_dim", heads * head_dim, query_rows, "q_proj")
    _match(read, "num_key_value_heads * head_dim", kv_heads * head_dim, key_rows, "k_proj")
    _match(read, "hidden_size", read.integer("hidden_size", hidden), hidden, "fc")
    target_hidden = read.integer("target_hidden_size", hidden) if version == 3 else hidden
    vocab_size, draft_vocab_size = _vocabularies(read, shapes)
    return EagleConfig(
        version=version,
        hidden=hidden,
        intermediate=_shape(shapes, f"{_first(version)}.mlp.gate_proj.weight", where)[0],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        target_hidden=target_hidden,
        vocab_size=vocab_size,
        draft_vocab_size=draft_vocab_size,
        taps_count=_taps_count(read, version, fc[1], target_hidden),
        layers=1 + len({name.split(".")[1] for name in shapes if name.startswith("layers.")}
                       - {"0"}),
        layer_ids=_layer_ids(read) if version == 3 else None,
        eps=read.number("rms_norm_eps", 1e-6),
        # The target's base is never taken over: official drafts of Llama-3.1 state no base and
        # were trained with 10000.
        rope=read.rope(10000.0),
        max_positions=read.integer("max_position_embeddings", 2048),
        fc_bias="fc.bias" in shapes,
        qkv_bias=f"{_first(version)}.self_attn.q_proj.bias" in shapes,
        output_bias=f"{_first(version)}.self_attn.o_proj.bias" in shapes,
        qk_norm=f"{_first(version)}.self_attn.q_norm.weight" in shapes,
        norm_before_residual=read.flag("norm_before_residual", False),
        norm_before_fc=read.flag("norm_before_fc", "input_norm.weight" in shapes),
        fc_norm=read.flag("fc_norm", "fc_norm.0.weight" in shapes),
        norm_output=read.flag("norm_output", False),
        own_embedding="embed_tokens.weight" in shapes,
        own_head="lm_head.weight" in shapes,
    )  # fmt: skip


def _first(version: int) -> str:
    return "midlayer" if version == 3 else "layers.0"


def _shape(shapes: Shapes, name: str, where: str) -> tuple[int, ...]:
    found = shapes.get(name)
    if found is None or len(found) != 2:
        have = "is missing" if found is None else f"has the shape {list(found)}, not two axes"
        raise UserError(
            f"The tensor {name} of the draft {where} {have}, so this is no EAGLE checkpoint; it "
            f"holds {', '.join(sorted(shapes)) or 'nothing'}."
        )
    return found


def _match(read: ConfigReader, key: str, said: int, held: int, tensor: str) -> None:
    """Refuse a config that contradicts the tensors."""
    if said != held:
        raise read.error(key, f"is {said}, but {tensor} has {held} rows")


def _refuse(raw: Mapping[str, Any], read: ConfigReader) -> None:
    """Refuse settings that would change the forward and are not implemented.

    Raises:
        UserError: names every such key with its value.
    """
    kind = raw.get("speculators_model_type")
    if kind not in (None, "eagle3"):
        raise read.error("speculators_model_type", f"is {kind!r}; only 'eagle3' can be read")
    found = {key: read.value(key) for key in (*_FIXED, *_FOREIGN)}
    wrong = [
        f"{key}={value!r}"
        for key, value in found.items()
        if value is not None and value not in _FIXED.get(key, ())
    ]
    nested = raw.get("eagle_config") or {}
    wrong += [f"eagle_config.{key}={nested[key]!r}" for key in sorted(set(nested) - _EAGLE_CONFIG)]
    if kind is not None:
        wrong += [f"{key}={raw[key]!r}" for key in sorted(set(raw) - _SPECULATORS)
                  if raw[key] not in (None, False)]  # fmt: skip
    if "sliding_attention" in (read.value("layer_types") or ()):
        wrong.append("layer_types with sliding_attention")
    if wrong:
        raise UserError(
            f"The draft {read.where} needs something that specbench does not implement: "
            f"{', '.join(wrong)}; without it the draft would run, but not as it was trained."
        )


def _vocabularies(read: ConfigReader, shapes: Shapes) -> tuple[int, int]:
    """Return the sizes of the target's vocabulary and of the draft's.

    Raises:
        UserError: a reduced vocabulary without a head of its own or without d2t.
    """
    mask, head, embedding = (
        shapes.get(name, (None,))[0] for name in ("t2d", "lm_head.weight", "embed_tokens.weight")
    )
    vocabulary = mask or embedding or read.integer("vocab_size")
    said = read.value("draft_vocab_size")
    draft = head or said or vocabulary
    if head is not None and said is not None:
        _match(read, "draft_vocab_size", read.integer("draft_vocab_size"), head, "lm_head")
    if draft != vocabulary and head is None:
        raise UserError(
            f"The draft {read.where} has a vocabulary of {draft} of the target's {vocabulary} ids, "
            "but no lm_head.weight: the target's head cannot stand in for it."
        )
    if draft != vocabulary and "d2t" not in shapes:
        raise UserError(
            f"The draft {read.where} has a vocabulary of {draft} of the target's {vocabulary} ids, "
            "but no d2t to say which ones."
        )
    return vocabulary, draft


def _taps_count(read: ConfigReader, version: int, width: int, target_hidden: int) -> int:
    if version == 1:
        return 1
    count, rest = divmod(width, target_hidden)
    ids = _layer_ids(read)
    if rest or count < 1 or (ids is not None and len(ids) != count):
        wanted = f"for the layers {list(ids)}" if ids else "of any number of layers"
        raise UserError(
            f"fc.weight of the draft {read.where} takes {width} inputs, which are not features "
            f"{wanted}, each {target_hidden} wide."
        )
    return count


def _layer_ids(read: ConfigReader) -> tuple[int, ...] | None:
    ids = read.value("eagle_aux_hidden_state_layer_ids")
    if ids is None or ids == []:
        return None
    if not isinstance(ids, list) or any(type(i) is not int or i < 0 for i in ids):
        raise read.error(
            "eagle_aux_hidden_state_layer_ids", f"must be a list of layer numbers, not {ids!r}"
        )
    if sorted(set(ids)) != ids:
        raise read.error("eagle_aux_hidden_state_layer_ids", f"must increase, unlike {ids!r}")
    return tuple(ids)
