"""Keys and values of a draft: written in place, read as far as they are visible."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specbench.core.kv import KVCache
from specbench.drafting.kv import DraftKV, cache_buffers
from specbench.drafting.layers import attention
from specbench.testing import random_prompts, tiny_target

LAYERS, GROUPS, HEADS, CAPACITY, WIDTH = 2, 2, 4, 12, 8


def random_rows(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def filled(rows: int) -> tuple[DraftKV, Tensor, Tensor]:
    kv = DraftKV((LAYERS, GROUPS, CAPACITY, WIDTH), dtype=torch.float32, device=torch.device("cpu"))
    keys, values = (random_rows(seed, LAYERS, GROUPS, rows, WIDTH) for seed in (1, 2))
    kv.append(keys, values)
    return kv, keys, values


def test_appending_keeps_the_places_and_what_was_there() -> None:
    kv, keys, values = filled(3)
    places = [buffer.data_ptr() for buffer in kv.buffers()]
    kv.append(keys[:, :, :2] + 1, values[:, :, :2] + 1)
    assert kv.length == 5
    assert torch.equal(kv.keys[:, :, :5], torch.cat([keys, keys[:, :, :2] + 1], dim=2))
    assert torch.equal(kv.values[:, :, :5], torch.cat([values, values[:, :, :2] + 1], dim=2))
    assert [buffer.data_ptr() for buffer in kv.buffers()] == places


@pytest.mark.parametrize("first", [0, 2])
def test_a_draft_sees_the_history_and_itself_and_is_overwritten(first: int) -> None:
    kv, keys, values = filled(3)
    q, k, v = (random_rows(seed, 2, n, WIDTH) for seed, n in ((3, HEADS), (4, 2), (5, 2)))
    got = kv.attend(1, slice(3, 5), q, k, v, first=first)
    all_keys, all_values = (torch.cat([whole[1], new.transpose(0, 1)], dim=1)[:, first:]
            for whole, new in ((keys, k), (values, v)))  # fmt: skip
    torch.testing.assert_close(got, attention(q, all_keys, all_values, None))
    assert kv.length == 3, "a draft is not committed"
    kv.append(keys[:, :, :1], values[:, :, :1])
    assert torch.equal(kv.keys[1, :, 3], keys[1, :, 0])


def test_causal_is_the_mask_of_a_lower_triangle() -> None:
    triangle = torch.ones(4, 4, dtype=torch.bool).tril()
    q, k, v = (random_rows(seed, 4, n, WIDTH) for seed, n in ((3, HEADS), (4, 2), (5, 2)))
    got, want = (
        filled(1)[0].attend(0, slice(0, 4), q, k, v, **how)
        for how in ({"causal": True}, {"mask": triangle})
    )
    torch.testing.assert_close(got, want)


def test_buffers_of_a_cache_are_named_once_they_exist() -> None:
    target = tiny_target(layers=2)
    cache = KVCache(target.num_layers, 20)
    assert cache_buffers(None) == cache_buffers(cache) == []
    target.forward(torch.tensor(random_prompts(target.vocab_size, (5,))[0]), cache)
    assert [buffer.shape[2] for buffer in cache_buffers(cache)] == [20] * 4
