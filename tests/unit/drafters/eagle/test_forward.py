"""EAGLE-3's forward in every variant, against one written from its description alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from drafters.eagle.config import EagleConfig
from specbench.api import Target
from specbench.testing import tiny_target
from tests.helpers.eagle_drafts import change_config, eagle3_config, load, run, write_head


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(layers=7)


def norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


class Plain:
    """EAGLE-3's forward once more, head by head and written from its description alone."""

    def __init__(self, tensors: dict[str, Tensor], config: EagleConfig) -> None:
        self.tensors = tensors
        self.config = config

    def attention(self, prefix: str, x: Tensor) -> Tensor:
        c, w = self.config, self.tensors
        q, k, v = (
            F.linear(x, w[f"{prefix}.{n}_proj.weight"], w.get(f"{prefix}.{n}_proj.bias"))
            .view(len(x), -1, c.head_dim) for n in "qkv"
        )  # fmt: skip
        if c.qk_norm:
            q, k = (norm(y, w[f"{prefix}.{n}_norm.weight"]) for y, n in ((q, "q"), (k, "k")))
        half = c.head_dim // 2
        angle = torch.arange(len(x))[:, None] * 10000.0 ** (-torch.arange(half) / half)
        turn = torch.polar(torch.ones_like(angle), angle)[:, None]

        def rotated(y: Tensor) -> Tensor:
            z = torch.complex(y[..., :half], y[..., half:]) * turn
            return torch.cat([z.real, z.imag], dim=-1)

        q, k = rotated(q), rotated(k)
        heads = []
        for head in range(c.heads):
            group = head * c.kv_heads // c.heads
            scores = q[:, head] @ k[:, group].T / c.head_dim**0.5
            hidden = torch.ones_like(scores).triu(1).bool()
            heads.append(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v[:, group])
        out = f"{prefix}.o_proj"
        return F.linear(torch.cat(heads, -1), w[f"{out}.weight"], w.get(f"{out}.bias"))

    def mlp(self, prefix: str, x: Tensor) -> Tensor:
        w = {name: self.tensors[f"{prefix}.{name}_proj.weight"] for name in ("gate", "up", "down")}
        return (F.silu(x @ w["gate"].T) * (x @ w["up"].T)) @ w["down"].T

    def step(self, embedding: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """What the next step gets, and the logits."""
        w, m = self.tensors, "midlayer"
        normed = norm(known, w[f"{m}.hidden_norm.weight"])
        x = torch.cat([norm(embedding, w[f"{m}.input_layernorm.weight"]), normed], -1)
        r = (normed if self.config.norm_before_residual else known) + self.attention(
            f"{m}.self_attn", x
        )
        h = r + self.mlp(f"{m}.mlp", norm(r, w[f"{m}.post_attention_layernorm.weight"]))
        for i in range(1, self.config.layers):
            m = f"layers.{i}"
            h = h + self.attention(f"{m}.self_attn", norm(h, w[f"{m}.input_layernorm.weight"]))
            h = h + self.mlp(f"{m}.mlp", norm(h, w[f"{m}.post_attention_layernorm.weight"]))
        last = norm(h, w["norm.weight"])
        return (last if self.config.norm_output else h), last @ w["lm_head.weight"].T

    def run(self, rows: int = 6) -> Tensor:
        c, w = self.config, self.tensors
        generator = torch.Generator().manual_seed(1)
        features = torch.randn(rows, c.taps_count * c.target_hidden, generator=generator)
        embedding = torch.randn(rows, c.hidden, generator=generator)
        if c.norm_before_fc:
            features = norm(features, w["input_norm.weight"])
        if c.fc_norm:
            parts = features.chunk(c.taps_count, -1)
            features = torch.cat(
                [norm(p, w[f"fc_norm.{i}.weight"]) for i, p in enumerate(parts)], -1
            )
        known, first = self.step(embedding, features @ w["fc.weight"].T)
        return torch.cat([first, self.step(embedding, known)[1]])


VARIANTS: dict[str, dict[str, Any]] = {
    "official": {},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_before_fc": {"norm_before_fc": True},
    "fc_norm": {"fc_norm": True},
    "norm_output": {"norm_output": True},
    "qk_norm": {"qk_norm": True},
    "attention_bias": {"qkv_bias": True, "output_bias": True},
    "three layers": {"layers": 3, "qk_norm": True},
    "five taps": {"taps_count": 5, "layer_ids": (0, 1, 2, 4, 6)},
    "free head_dim": {"head_dim": 12},
    "all of 3.1": {"fc_norm": True, "norm_output": True, "norm_before_residual": True},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_forward(name: str, target: Target, tmp_path: Path) -> None:
    config = eagle3_config(target, **VARIANTS[name])
    folder = write_head(config, tmp_path)
    model = load(folder)
    assert model.config == config
    want = Plain(load_file(folder / "model.safetensors"), config).run()
    torch.testing.assert_close(run(model), want, rtol=1e-4, atol=1e-4)


def test_every_variant_shows_in_the_logits(target: Target, tmp_path: Path) -> None:
    """Those that need no tensor of their own, so that ignoring them would load."""
    folder = write_head(eagle3_config(target), tmp_path)
    plain = run(load(folder))
    for switch in ("norm_before_residual", "norm_output"):
        change_config(folder, {switch: True})
        assert (run(load(folder)) - plain).abs().max() > 0.1
        change_config(folder, {}, (switch,))
