"""The DFlash network (arXiv 2602.06036): a block of masks attends to target features.

Names of shapes: L layers, H hidden, F taps, B rows of a block, h query heads, g key/value heads,
d head_dim, n context rows. A context row only becomes one key and one value per layer; the rows
of a block alone run through the layers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drafters.dflash.config import DFlashConfig
from specbench.drafting.layers import Attend, Norm, Rope, heads_of, rms_norm, rotate


class Attention(nn.Module):
    """Projections of one layer, with a fused q/k/v projection."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        rows = (config.heads + 2 * config.kv_heads) * config.head_dim
        self.qkv_proj = nn.Linear(config.hidden, rows, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden, bias=False)
        self.q_norm = Norm(config.head_dim, config.eps)
        self.k_norm = Norm(config.head_dim, config.eps)

    def block(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """Project rows ``[..., B, H]`` to q ``[..., B, h, d]``, k and v ``[..., B, g, d]``."""
        packed = heads_of(self.qkv_proj(x), self.head_dim)
        qk, v = torch.split(packed, [self.heads + self.kv_heads, self.kv_heads], dim=-2)
        weight = torch.cat(
            [
                self.q_norm.weight.expand(self.heads, -1),
                self.k_norm.weight.expand(self.kv_heads, -1),
            ]
        )
        qk = rotate(rms_norm(qk, weight, self.q_norm.eps), rope)
        return qk[..., : self.heads, :], qk[..., self.heads :, :], v

    def context(self, c: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """Project conditioned features ``[..., n, H]`` to k and v ``[..., n, g, d]``."""
        weight = self.qkv_proj.weight[self.heads * self.head_dim :]
        packed = heads_of(F.linear(c, weight), self.head_dim)
        k, v = packed.chunk(2, dim=-2)
        return rotate(self.k_norm(k), rope), v


class MLP(nn.Module):
    """SwiGLU with a fused gate/up projection."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden, 2 * config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)  # type: ignore[no-any-return]


class Layer(nn.Module):
    """One decoder layer over block rows."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = Norm(config.hidden, config.eps)
        self.post_attention_layernorm = Norm(config.hidden, config.eps)

    def forward(self, index: int, hidden: Tensor, rope: Rope, attend: Attend) -> Tensor:
        q, k, v = self.self_attn.block(self.input_layernorm(hidden), rope)
        hidden = hidden + self.self_attn.o_proj(attend(index, q, k, v))
        return hidden + self.mlp(self.post_attention_layernorm(hidden))  # type: ignore[no-any-return]


class DFlashModel(nn.Module):
    """The draft network; embedding and head are the target's.

    Parameters carry the checkpoint's names, except that q, k, v and gate, up are fused.
    """

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        width = len(config.target_layer_ids) * config.hidden
        self.fc = nn.Linear(width, config.hidden, bias=False)
        self.hidden_norm = Norm(config.hidden, config.eps)
        self.norm = Norm(config.hidden, config.eps)
        self._stacked = self._key_norms = torch.empty(0)

    def condition(self, features: Tensor) -> Tensor:
        """Turn features ``[..., F * H]``, taps side by side, into what every layer attends to."""
        return self.hidden_norm(self.fc(features))  # type: ignore[no-any-return]

    def forward(self, hidden: Tensor, rope: Rope, attend: Attend) -> Tensor:
        """Run block embeddings ``[..., B, H]``; returns final hidden states of that shape."""
        for index, layer in enumerate(self.layers):
            hidden = layer(index, hidden, rope, attend)
        return self.norm(hidden)  # type: ignore[no-any-return]

    def stack(self) -> None:
        """Stack the layers' q/k/v weights, so that one product gives all context keys and values.

        The layers' own matrices become views of the stack, so nothing is held twice. Call it
        before `context`; it freezes the weights.
        """
        attentions = [part for part in self.modules() if isinstance(part, Attention)]
        self.requires_grad_(False)
        self._stacked = torch.stack([a.qkv_proj.weight for a in attentions])
        self._key_norms = torch.stack([a.k_norm.weight for a in attentions])[:, None, None]
        for attention, weight in zip(attentions, self._stacked, strict=True):
            attention.qkv_proj.weight = nn.Parameter(weight, requires_grad=False)

    def context(self, features: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """Compute all layers' keys and values ``[L, g, n, d]`` of features ``[n, F * H]``."""
        c = self.config
        weight = self._stacked[:, c.heads * c.head_dim :].transpose(1, 2)
        packed = heads_of(torch.matmul(self.condition(features), weight), c.head_dim)
        k, v = packed.chunk(2, dim=-2)
        k = rotate(rms_norm(k, self._key_norms, c.eps), rope)
        return k.transpose(1, 2), v.transpose(1, 2)

    def logits(self, hidden: Tensor, head: nn.Module) -> Tensor:
        """Apply the target's head to ``[..., H]``, with the draft's own multiplier and soft cap."""
        logits: Tensor = head(hidden)
        if self.config.output_multiplier != 1:
            logits = logits * self.config.output_multiplier
        cap = self.config.softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap
