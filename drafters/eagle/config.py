"""The settings of an EAGLE draft, independent of the layout that its checkpoint came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specbench.api import UserError


@dataclass(frozen=True)
class EagleConfig:
    """The settings that a draft's forward depends on.

    Attributes:
        version: 3, or 1 for the heads that EAGLE-1 and EAGLE-2 share.
        hidden, intermediate, heads, kv_heads, head_dim, layers, eps: the draft's transformer.
        target_hidden: width of one target feature.
        vocab_size: the target's.
        draft_vocab_size: ids the draft can propose.
        taps_count: target features side by side in front of fc (1 in EAGLE-1/2).
        layer_ids: the target layers as the file numbers them; None where it names none.
        rope: transformers' ``rope_parameters``.
        max_positions: a length that some scalings of the rotary embedding use.
        fc_bias, qkv_bias, output_bias, qk_norm: which tensors there are.
        norm_before_residual: the residual carries the normed feature.
        norm_before_fc: one norm over all features together in front of fc.
        fc_norm: one norm per feature in front of fc.
        norm_output: the next step gets the normed output.
        own_embedding, own_head: whether the draft brings its own instead of the target's.
    """

    version: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    target_hidden: int
    vocab_size: int
    draft_vocab_size: int
    taps_count: int = 3
    layers: int = 1
    layer_ids: tuple[int, ...] | None = None
    eps: float = 1e-6
    rope: Mapping[str, Any] = field(
        default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0}
    )
    max_positions: int = 2048
    fc_bias: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    own_embedding: bool = False
    own_head: bool = True

    @property
    def ids_count_outputs(self) -> bool:
        """True if `layer_ids` name layers by their output, False if they are boundaries.

        Two conventions are in use, and no file says which it follows. Only with the first, that of
        SpecForge and Model-Optimizer, does a published list begin with 1.
        """
        return self.layer_ids is not None and self.layer_ids[0] == 1

    def boundaries(self, target_layers: int) -> tuple[int, ...]:
        """Return the boundaries whose features it reads, in a target of ``target_layers`` layers.

        EAGLE-1/2 read the last boundary (and apply the target's final norm). EAGLE-3 without layer
        ids in its file reads those in front of layers 2, N // 2 and N - 3.

        Raises:
            UserError: the target has too few layers for them.
        """
        if self.version != 3:
            return (target_layers,)
        if self.layer_ids is None:
            found: tuple[int, ...] = (2, target_layers // 2, target_layers - 3)
        else:
            found = tuple(i + self.ids_count_outputs for i in self.layer_ids)
        if list(found) != sorted(set(found)) or found[-1] > target_layers:
            said = "its default" if self.layer_ids is None else f"its {list(self.layer_ids)}"
            raise UserError(
                f"The draft reads the target at {said} layers, which are the boundaries "
                f"{list(found)}; a target of {target_layers} layers has no such boundaries in "
                "this order."
            )
        return found


def dump_config(config: EagleConfig, dtype: str) -> dict[str, Any]:
    """Make config.json in the official layout; `drafters.eagle.layout.parse_config` reads it."""
    kind = "LlamaForCausalLMEagle3" if config.version == 3 else "LlamaForCausalLM"
    dumped: dict[str, Any] = {
        "architectures": [kind],
        "model_type": "llama",
        "dtype": dtype,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": config.layers,
        "hidden_act": "silu",
        "rms_norm_eps": config.eps,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_positions,
        "rope_parameters": dict(config.rope),
        "tie_word_embeddings": False,
    }
    if config.version != 3:
        return dumped | {"bias": config.fc_bias, "qkv_bias": config.qkv_bias}
    if config.layer_ids is not None:
        dumped["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": list(config.layer_ids)}
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    return dumped | {
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden,
        **{name: True for name in flags if getattr(config, name)},
    }
