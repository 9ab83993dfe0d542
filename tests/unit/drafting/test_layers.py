"""The parts that draft networks share, against plainer ways to compute the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from specbench.drafting.layers import (
    Norm,
    RopeTables,
    attention,
    grouped_attention,
    rope_table,
    rotate,
)


@dataclass(frozen=True)
class Rotary:
    head_dim: int = 16
    rope: dict[str, Any] = field(
        default_factory=lambda: {"rope_type": "default", "rope_theta": 5e5}
    )
    max_positions: int = 64


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norm_is_llamas(dtype: torch.dtype) -> None:
    ours, theirs = Norm(24, 1e-5).to(dtype), LlamaRMSNorm(24, 1e-5).to(dtype)
    weight = noise(24, seed=1, dtype=dtype)
    x = 3 * noise(5, 24, dtype=dtype)
    for module in (ours, theirs):
        module.weight.data.copy_(weight)
    assert ours(x).dtype == dtype
    torch.testing.assert_close(ours(x), theirs(x))


def test_rotation_is_llamas() -> None:
    x = noise(7, 3, 16)
    positions = torch.tensor([0, 5, 5, 2, 63, 64, 4000])
    cos, sin = rope_table(Rotary(), positions)
    plain = torch.cat([-sin[..., :8], sin[..., 8:]], dim=-1)
    want, _ = apply_rotary_pos_emb(x, x, cos[:, 0], plain[:, 0])
    assert torch.equal(rotate(x, (cos, sin)), want)
    angle = positions[:, None].double() * 5e5 ** (-torch.arange(8).double() / 8)
    torch.testing.assert_close(cos[:, 0, :8].double(), angle.cos(), atol=1e-3, rtol=0)


def test_rotation_keeps_a_16_bit_dtype_though_its_tables_are_finer() -> None:
    x, positions = noise(2, 1, 16, dtype=torch.bfloat16), torch.tensor([3, 3000])
    fine = rope_table(Rotary(), positions)
    assert rotate(x, fine).dtype == torch.bfloat16
    torch.testing.assert_close(rotate(x, fine), rotate(x.float(), fine).to(x.dtype))
    coarse = rope_table(Rotary(), positions, torch.bfloat16)
    assert coarse[0].dtype == torch.bfloat16
    assert torch.equal(coarse[0], fine[0].to(torch.bfloat16))


def test_tables_have_the_shape_of_the_positions() -> None:
    positions = torch.tensor([[1, 2, 3], [7, 7, 0]])
    for table, flat in zip(
        rope_table(Rotary(), positions), rope_table(Rotary(), positions.flatten()), strict=True
    ):
        assert table.shape == (2, 3, 1, 16)
        assert torch.equal(table.flatten(0, 1), flat)


def test_tables_grow_with_what_is_asked() -> None:
    tables = RopeTables(Rotary(), torch.device("cpu"))
    short = tables(5)
    assert len(short[0]) == 5
    assert tables(3) is short
    cos, _ = tables(100)
    assert len(cos) == 100
    assert torch.equal(cos[:5], short[0])


def one_head_at_a_time(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """q ``[n, h, d]``, keys and values ``[g, m, d]``."""
    heads = []
    for head in range(q.shape[1]):
        group = head * len(keys) // q.shape[1]
        scores = q[:, head] @ keys[group].T / q.shape[2] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        heads.append(scores.softmax(-1) @ values[group])
    return torch.cat(heads, dim=-1)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (2, 1), (2, 2), (6, 2)])
@pytest.mark.parametrize("rows", [1, 4])
def test_attention_of_groups(heads: int, kv_heads: int, rows: int) -> None:
    q, keys, values = noise(rows, heads, 8), noise(kv_heads, 9, 8, seed=1), noise(kv_heads, 9, 8)
    mask = noise(rows, 9, seed=3) > 0
    mask[:, 0] = True
    torch.testing.assert_close(
        attention(q, keys, values, None), one_head_at_a_time(q, keys, values, None)
    )
    want = one_head_at_a_time(q, keys, values, mask)
    repeated = mask.repeat(heads // kv_heads, 1)
    for given in (mask, repeated):
        torch.testing.assert_close(attention(q, keys, values, given), want)
    batched = grouped_attention(
        q.transpose(0, 1)[None] * 2, keys[None], values[None], mask[None, None], 8**-0.5 / 2
    )
    torch.testing.assert_close(batched[0].flatten(1), want)
