"""Read config.json of a DFlash draft in the z-lab layout, as data; refuse other layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specbench.api import UserError
from specbench.drafting.checkpoints import ConfigReader

ARCHITECTURE = "DFlashDraftModel"
DRAFT_KEYS = {
    "block_size",
    "mask_token_id",
    "target_layer_ids",
    "input_embedding_scale",
    "output_multiplier",
    "final_logit_softcapping",
}
_FOREIGN_KEYS = {
    "speculators": {
        "speculators_model_type",
        "speculators_config",
        "transformer_layer_config",
        "aux_hidden_state_layer_ids",
        "draft_vocab_size",
        "sample_from_anchor",
        "sliding_window_non_causal",
    },
    "DeepSpec": {"markov_rank", "enable_confidence_head", "num_anchors"},
    "DFlash 2": {"conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"},
    "Domino/DSpark (SpecForge)": {"projector_type", "shift_label"},
    "JetSpec": {"causal_head"},
}
_FOREIGN_ARCHITECTURES = {
    "DFlash2DraftModel": "DFlash 2",
    "Qwen3DSparkModel": "DeepSpec",
    "Gemma4DSparkModel": "DeepSpec",
}
_UNKNOWN_TO_US = {"causal", "logit_scale", "is_neox_style", "use_swa", "swa_window_size"}


@dataclass(frozen=True)
class DFlashConfig:
    """The settings that a draft's forward depends on.

    Attributes:
        layers, hidden, intermediate, heads, kv_heads, head_dim, eps: the draft's transformer.
        vocab_size: the target's.
        block_size: rows of a block, the anchor included.
        mask_token_id: the id whose embedding fills every row of a block except the first.
        target_layer_ids: 0-based target decoder layers whose output the draft reads.
        windows: each layer's sliding window; None where it sees the whole context.
        causal: for each layer, whether a row of a block sees only itself and the rows before it.
        rope: transformers' ``rope_parameters``.
        num_target_layers: the target's depth, or None where the file does not say.
        embedding_scale: factor on the raw rows of the target's embedding.
        output_multiplier, softcap: ``cap * tanh(multiplier * logits / cap)``.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    windows: tuple[int | None, ...]
    causal: tuple[bool, ...]
    eps: float = 1e-6
    rope: Mapping[str, Any] = field(default_factory=dict)
    max_positions: int = 32768
    num_target_layers: int | None = None
    embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    softcap: float | None = None

    @property
    def taps(self) -> tuple[int, ...]:
        """The boundaries that the draft reads: decoder layer t's output is boundary t + 1."""
        return tuple(t + 1 for t in self.target_layer_ids)


def default_layer_ids(target_layers: int, count: int) -> tuple[int, ...]:
    """Return the reference's taps for a file without any: ``count`` ids spread over 1 .. N - 3."""
    if count == 1:
        return (target_layers // 2,)
    return tuple(round(1 + i * (target_layers - 4) / (count - 1)) for i in range(count))


def parse_config(raw: Mapping[str, Any], where: str) -> DFlashConfig:
    """Parse the settings of a config.json, from whichever of the known places holds them.

    Args:
        raw: the parsed file.
        where: its path or hub id, for messages.

    Raises:
        UserError: another project's layout, a key whose meaning is unknown, or a bad value.
    """
    refuse_foreign(raw, where)
    nested = raw.get("dflash_config") or {}
    read = ConfigReader((nested, raw), where)
    layers = read.integer("num_hidden_layers")
    windows, kinds = _windows(read, layers)
    causal = read.optional("is_causal", bool)
    cap = read.number("final_logit_softcapping", 0.0)
    return DFlashConfig(
        layers=layers,
        hidden=read.integer("hidden_size"),
        intermediate=read.integer("intermediate_size"),
        heads=read.integer("num_attention_heads"),
        kv_heads=read.integer("num_key_value_heads"),
        head_dim=read.integer("head_dim"),
        vocab_size=read.integer("vocab_size"),
        block_size=read.integer("block_size", 16, least=2),
        mask_token_id=read.integer("mask_token_id", least=0),
        target_layer_ids=_layer_ids(read, layers),
        windows=windows,
        causal=tuple(kind == "sliding_attention" if causal is None else causal for kind in kinds),
        eps=read.number("rms_norm_eps", 1e-6),
        rope=read.rope(),
        max_positions=read.integer("max_position_embeddings", 32768),
        num_target_layers=read.optional("num_target_layers", int),
        embedding_scale=read.number("input_embedding_scale", 1.0),
        output_multiplier=read.number("output_multiplier", 1.0),
        softcap=cap if cap > 0 else None,
    )


def refuse_foreign(raw: Mapping[str, Any], where: str) -> None:
    """Refuse any other layout than z-lab's, and settings that would be ignored.

    Raises:
        UserError: names the layout or the keys.
    """
    nested = raw.get("dflash_config") or {}
    architectures = raw.get("architectures") or []
    layouts = {name for arch, name in _FOREIGN_ARCHITECTURES.items() if arch in architectures}
    present = {key for part in (raw, nested) for key, value in part.items() if value is not None}
    layouts |= {name for name, keys in _FOREIGN_KEYS.items() if keys & present}
    if layouts:
        found = sorted(present & set().union(*(_FOREIGN_KEYS[name] for name in layouts)))
        raise UserError(
            f"The draft {where} is a {' / '.join(sorted(layouts))} checkpoint "
            f"({', '.join([*found, *architectures])}), which specbench cannot run yet: its labels, "
            "taps or heads differ from z-lab's, so a run with it would be wrong without a warning.",
            "Give a draft in the z-lab layout (architecture DFlashDraftModel).",
        )
    if ARCHITECTURE not in architectures:
        raise UserError(
            f"The draft {where} has the architecture {architectures or 'none'}, not "
            f"{ARCHITECTURE}: give a DFlash draft in the z-lab layout."
        )
    unknown = sorted(set(nested) - DRAFT_KEYS) + sorted(_UNKNOWN_TO_US & present - set(nested))
    if unknown:
        raise UserError(
            f"The draft {where} sets {', '.join(unknown)}, whose meaning is unknown; the known "
            f"keys of dflash_config are {', '.join(sorted(DRAFT_KEYS))}."
        )
    fixed = {"hidden_act": "silu", "attention_bias": False}
    wrong = {k: raw[k] for k, v in fixed.items() if k in raw and raw[k] != v}
    if wrong:
        raise UserError(f"The draft {where} has {wrong}, but DFlash drafts have {fixed}.")


def _layer_ids(read: ConfigReader, layers: int) -> tuple[int, ...]:
    found = read.value("target_layer_ids")
    if found is None:
        return default_layer_ids(read.integer("num_target_layers", least=4), layers)
    if not isinstance(found, list) or not found or any(type(i) is not int or i < 0 for i in found):
        raise read.error("target_layer_ids", f"must be a list of layer numbers, not {found!r}")
    return tuple(found)


def _windows(read: ConfigReader, layers: int) -> tuple[tuple[int | None, ...], list[str]]:
    """Return each layer's window and kind; without layer_types by Qwen3's own rule."""
    window = read.optional("sliding_window", int)
    used = read.flag("use_sliding_window", False)
    kinds = read.value("layer_types")
    if kinds is None:
        first = read.integer("max_window_layers", 28, least=0) if used and window else layers
        kinds = ["full_attention" if i < first else "sliding_attention" for i in range(layers)]
    if len(kinds) != layers or set(kinds) - {"full_attention", "sliding_attention"}:
        raise read.error(
            "layer_types",
            f"must name full_attention or sliding_attention for each of {layers} layers, "
            f"not {kinds!r}",
        )
    if "sliding_attention" in kinds and not (used and window):
        raise read.error(
            "layer_types",
            "names sliding layers, but sliding_window is not set together with use_sliding_window "
            "true, so it is unclear whether they have a window",
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds), list(kinds)


def dump_config(config: DFlashConfig, dtype: str) -> dict[str, Any]:
    """Make config.json of a draft, with keys in the newer places; `parse_config` reads it back.

    Raises:
        ValueError: windows or causality that one file cannot express.
    """
    sliding = _only({w for w in config.windows if w is not None} or {None})
    nested: dict[str, Any] = {
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.target_layer_ids),
        "input_embedding_scale": config.embedding_scale,
        "output_multiplier": config.output_multiplier,
        "final_logit_softcapping": config.softcap,
    }
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "dtype": dtype,
        "num_hidden_layers": config.layers,
        "num_target_layers": config.num_target_layers,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.eps,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_positions,
        "rope_parameters": dict(config.rope),
        "layer_types": ["full_attention" if w is None else "sliding_attention"
                        for w in config.windows],
        "sliding_window": sliding,
        "use_sliding_window": sliding is not None,
        "is_causal": _shared(config),
        "attention_bias": False,
        "tie_word_embeddings": False,
        "dflash_config": {key: value for key, value in nested.items() if value is not None},
    }  # fmt: skip


def _shared(config: DFlashConfig) -> bool | None:
    """Return the file's ``is_causal``: None where every layer has the default of its kind."""
    if all(c == (w is not None) for c, w in zip(config.causal, config.windows, strict=True)):
        return None
    return bool(_only(set(config.causal)))


def _only(values: set[Any]) -> Any:
    if len(values) != 1:
        raise ValueError(f"a config.json has one value for all layers, not {values}")
    return values.pop()
