"""config.json of an EAGLE draft in any of the layouts in use, read as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class EagleConfig:
    """What a draft's forward depends on.

    Attributes:
        version: 3, or 1 for the heads that EAGLE-1 and EAGLE-2 share.
        hidden, intermediate, heads, kv_heads, head_dim, layers, eps: the draft's transformer.
        target_hidden: width of one target feature.
        vocab_size: the target's.
        draft_vocab_size: ids the draft can propose.
        taps_count: target features side by side in front of fc (1 in EAGLE-1/2).
        layer_ids: the target layers as the file numbers them; None where it names none.
        rope: transformers' ``rope_parameters``.
        max_positions: of the config; a length that some scalings of the rotary embedding use.
        fc_bias, qkv_bias, output_bias, qk_norm: which tensors there are.
        norm_before_residual: the residual carries the normed feature.
        norm_before_fc: one norm over all features together in front of fc.
        fc_norm: one norm per feature in front of fc.
        norm_output: the normed output is what the next step gets.
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
