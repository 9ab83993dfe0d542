"""The EAGLE networks: EAGLE-3 (arXiv 2503.01840), EAGLE-1 and EAGLE-2 (2401.15077, 2406.16858).

Names of shapes: H hidden, Ht the target's hidden, F taps, h query heads, g key/value heads,
d head_dim, n rows, V target vocabulary, Vd draft vocabulary. Row p joins what is known of token p
(its target feature, or the draft's own output where there is no feature yet) with the embedding
of token p + 1, and predicts token p + 2; its rotary position is p.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drafters.eagle.config import EagleConfig
from specbench.drafting.layers import Attend, Norm, Rope, heads_of, rotate


class Attention(nn.Module):
    """Projections of one layer over inputs ``[..., n, width]``."""

    def __init__(self, config: EagleConfig, width: int) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        rows, kv_rows = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(width, rows, bias=config.qkv_bias)
        self.k_proj = nn.Linear(width, kv_rows, bias=config.qkv_bias)
        self.v_proj = nn.Linear(width, kv_rows, bias=config.qkv_bias)
        self.o_proj = nn.Linear(rows, config.hidden, bias=config.output_bias)
        self.q_norm = Norm(config.head_dim, config.eps) if config.qk_norm else nn.Identity()
        self.k_norm = Norm(config.head_dim, config.eps) if config.qk_norm else nn.Identity()

    def forward(self, index: int, x: Tensor, rope: Rope, attend: Attend) -> Tensor:
        q, k, v = (
            heads_of(part(x), self.head_dim) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(self.q_norm(q), rope), rotate(self.k_norm(k), rope)
        return self.o_proj(attend(index, q, k, v))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """A decoder layer; the first layer of EAGLE-1/2 has no norm in front of its attention."""

    def __init__(self, config: EagleConfig, normed: bool) -> None:
        super().__init__()
        self.self_attn = Attention(config, config.hidden)
        self.mlp = MLP(config)
        self.input_layernorm = Norm(config.hidden, config.eps) if normed else nn.Identity()
        self.post_attention_layernorm = Norm(config.hidden, config.eps)

    def forward(self, index: int, hidden: Tensor, rope: Rope, attend: Attend) -> Tensor:
        hidden = hidden + self.self_attn(index, self.input_layernorm(hidden), rope, attend)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))  # type: ignore[no-any-return]


class MidLayer(nn.Module):
    """EAGLE-3's first layer: the embedding enters through the attention only."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.normed_residual = config.norm_before_residual
        self.self_attn = Attention(config, 2 * config.hidden)
        self.mlp = MLP(config)
        self.hidden_norm = Norm(config.hidden, config.eps)
        self.input_layernorm = Norm(config.hidden, config.eps)
        self.post_attention_layernorm = Norm(config.hidden, config.eps)

    def forward(self, embedding: Tensor, known: Tensor, rope: Rope, attend: Attend) -> Tensor:
        normed = self.hidden_norm(known)
        x = torch.cat([self.input_layernorm(embedding), normed], dim=-1)
        residual = normed if self.normed_residual else known
        hidden = residual + self.self_attn(0, x, rope, attend)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))  # type: ignore[no-any-return]


class Eagle3Model(nn.Module):
    """EAGLE-3; parameters and buffers carry the official checkpoint's names.

    Attributes:
        d2t: ``[Vd]`` int64, draft id i is target id i + d2t[i]; None where Vd = V.
        t2d: ``[V]`` bool, whether a target id is in the draft vocabulary; None where Vd = V.
        embed_tokens, lm_head: its own, or None where the target lends them.
    """

    d2t: Tensor | None
    t2d: Tensor | None

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config = config
        width = config.taps_count * config.target_hidden
        self.fc = nn.Linear(width, config.hidden, bias=config.fc_bias)
        self.midlayer = MidLayer(config)
        self.layers = nn.ModuleDict(
            {str(index): Layer(config, normed=True) for index in range(1, config.layers)}
        )
        self.norm = Norm(config.hidden, config.eps)
        self.input_norm = Norm(width, config.eps) if config.norm_before_fc else nn.Identity()
        self.fc_norm = nn.ModuleList(
            Norm(config.target_hidden, config.eps)
            for _ in range(config.taps_count if config.fc_norm else 0)
        )
        self.embed_tokens = _embedding(config)
        self.lm_head = (
            nn.Linear(config.hidden, config.draft_vocab_size, bias=False)
            if config.own_head
            else None
        )
        reduced = config.draft_vocab_size != config.vocab_size
        d2t = torch.zeros(config.draft_vocab_size, dtype=torch.long) if reduced else None
        t2d = torch.zeros(config.vocab_size, dtype=torch.bool) if reduced else None
        self.register_buffer("d2t", d2t)
        self.register_buffer("t2d", t2d)

    def condition(self, features: Tensor) -> Tensor:
        """Project target features ``[..., F * Ht]``, taps side by side, to ``[..., H]``."""
        features = self.input_norm(features)
        if self.fc_norm:
            parts = features.chunk(len(self.fc_norm), dim=-1)
            features = torch.cat(
                [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1
            )
        return self.fc(features)  # type: ignore[no-any-return]

    def forward(self, embedding: Tensor, known: Tensor, rope: Rope, attend: Attend) -> Tensor:
        """Run one draft step over rows.

        Args:
            embedding: ``[..., n, H]`` of each row's next token.
            known: ``[..., n, H]`` conditioned features, or the output of the step before.

        Returns:
            ``[..., n, H]``, the ``known`` of the step after; `logits` takes it too.
        """
        hidden = self.midlayer(embedding, known, rope, attend)
        for index, layer in self.layers.items():
            hidden = layer(int(index), hidden, rope, attend)
        return self.norm(hidden) if self.config.norm_output else hidden  # type: ignore[no-any-return]

    def logits(self, output: Tensor, head: nn.Module) -> Tensor:
        """Compute ``[..., Vd]`` logits of outputs ``[..., H]``; ``head`` is the target's, used by a
        draft that has none."""
        if not self.config.norm_output:
            output = self.norm(output)
        logits: Tensor = (self.lm_head or head)(output)
        return logits


class EagleModel(nn.Module):
    """EAGLE-1 and EAGLE-2: the draft predicts features, and the target's own head reads them."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(2 * config.hidden, config.hidden, bias=config.fc_bias)
        self.layers = nn.ModuleList(Layer(config, normed=i > 0) for i in range(config.layers))
        self.embed_tokens = _embedding(config)

    def condition(self, features: Tensor) -> Tensor:
        """Take target features ``[..., H]``, past the target's final norm, as they are."""
        return features

    def forward(self, embedding: Tensor, known: Tensor, rope: Rope, attend: Attend) -> Tensor:
        """Run one draft step over rows; arguments and result as in `Eagle3Model.forward`."""
        hidden = self.fc(torch.cat([embedding, known], dim=-1))
        for index, layer in enumerate(self.layers):
            hidden = layer(index, hidden, rope, attend)
        return hidden  # type: ignore[no-any-return]

    def logits(self, output: Tensor, head: nn.Module) -> Tensor:
        """Compute ``[..., V]`` logits of outputs ``[..., H]`` with the target's head."""
        return head(output)  # type: ignore[no-any-return]


def _embedding(config: EagleConfig) -> nn.Embedding | None:
    return nn.Embedding(config.vocab_size, config.hidden) if config.own_embedding else None
