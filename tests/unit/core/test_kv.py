"""The cache: it stays in place, is exact after every change, and works as a transformers cache."""

from __future__ import annotations

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from specbench.core.kv import KVCache, cache_argument
from specbench.core.proposal import Proposal
from specbench.core.target import Target
from specbench.testing import tiny_target


def mistral() -> Target:
    """Make a target whose layers all have a window, while the config names no layer types."""
    config = MistralConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, intermediate_size=48,
        num_attention_heads=4, num_key_value_heads=2, sliding_window=6, initializer_range=0.3,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Target(MistralForCausalLM(config), name="tiny-mistral")


TARGETS = {
    "qwen3": tiny_target,
    "llama": lambda: tiny_target("llama"),
    "qwen3 sliding": lambda: tiny_target(window=5),
    "qwen3 mixed": lambda: tiny_target(window=5, full_layers=2),
    "mistral": mistral,
}


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    return TARGETS[request.param]()


def fresh_logits(target: Target, text: list[int]) -> torch.Tensor:
    """Return the logits of the model's own forward over the whole text, without a cache."""
    return target.model(torch.tensor([text]), use_cache=False).logits[0]


PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9]
ANCHOR = 32
#          0   1   2   3   4   5   6
TREE = ([40, 41, 42, 43, 44, 45, 46], [-1, -1, 1, 0, 2, 2, 5])
PATHS = [[], [0], [1], [0, 3], [1, 2, 4], [1, 2, 5, 6]]


def prefilled(target: Target, capacity: int = 64) -> KVCache:
    cache = KVCache(target.num_layers, capacity)
    target.forward(torch.tensor(PROMPT), cache, last_only=True)
    return cache


def verify(target: Target, cache: KVCache, anchor: int, proposal: Proposal) -> torch.Tensor:
    ids = torch.cat([torch.tensor([anchor]), proposal.tokens])
    return target.forward(ids, cache, tree=proposal)[0]


@torch.inference_mode()
def test_every_tree_row_sees_its_own_path_only(target: Target) -> None:
    proposal = Proposal(*(torch.tensor(x) for x in TREE))
    logits = verify(target, prefilled(target), ANCHOR, proposal)
    for path in PATHS:
        text = [*PROMPT, ANCHOR, *(TREE[0][i] for i in path)]
        row = path[-1] + 1 if path else 0
        torch.testing.assert_close(logits[row], fresh_logits(target, text)[-1])


@torch.inference_mode()
@pytest.mark.parametrize("path", PATHS, ids=str)
def test_a_compacted_cache_equals_a_fresh_one(target: Target, path: list[int]) -> None:
    cache = prefilled(target)
    start = cache.length
    verify(target, cache, ANCHOR, Proposal(*(torch.tensor(x) for x in TREE)))
    cache.compact(start, [0, *(i + 1 for i in path)])
    text = [*PROMPT, ANCHOR, *(TREE[0][i] for i in path)]
    assert cache.length == len(text)
    following = [50, 51, 52]
    got = verify(target, cache, following[0], Proposal.chain(torch.tensor(following[1:])))
    torch.testing.assert_close(got, fresh_logits(target, text + following)[-3:])


@torch.inference_mode()
def test_rounds_never_move_the_buffers(target: Target) -> None:
    cache = prefilled(target)
    addresses = [(layer.keys.data_ptr(), layer.values.data_ptr()) for layer in cache.layers]
    for offsets in ([0, 2, 3], [0, 1], [0], [0, 1, 3, 5]):
        start = cache.length
        verify(target, cache, ANCHOR, Proposal(*(torch.tensor(x) for x in TREE)))
        cache.compact(start, offsets)
        cache.truncate(cache.length)
    assert addresses == [(x.keys.data_ptr(), x.values.data_ptr()) for x in cache.layers]
    assert cache.length == len(PROMPT) + 3 + 2 + 1 + 4


@torch.inference_mode()
def test_update_returns_views_of_the_buffers() -> None:
    cache = KVCache(1, capacity=8)
    for step in range(3):
        new = torch.full((1, 2, 2, 4), float(step))
        keys, values = cache.update(new, new + 10, 0)
        assert keys.data_ptr() == cache.layers[0].keys.data_ptr()
        assert values.data_ptr() == cache.layers[0].values.data_ptr()
    assert keys[0, 0, :, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert values[0, 1, :, 3].tolist() == [10, 10, 11, 11, 12, 12]


def test_more_than_the_capacity_is_refused() -> None:
    cache = KVCache(1, capacity=3)
    new = torch.zeros(1, 1, 2, 4)
    cache.update(new, new, 0)
    with pytest.raises(ValueError, match="has 3 positions, but 4 are needed"):
        cache.update(new, new, 0)


@torch.inference_mode()
def test_grouped_heads_are_stored_once(target: Target) -> None:
    layer = prefilled(target).layers[0]
    assert layer.keys.shape == layer.values.shape == (1, 2, 64, 8)


def test_transformers_generates_with_it(target: Target) -> None:
    ids = torch.tensor([PROMPT])
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    want = target.model.generate(ids, **options)
    cache = KVCache(target.num_layers, 64)
    given = {cache_argument(target.model): cache}
    for _ in range(2):  # A reset cache works like a new one.
        assert torch.equal(target.model.generate(ids, **options, **given), want)
        assert cache.length == cache.get_seq_length() == want.shape[1] - 1
        cache.reset()
