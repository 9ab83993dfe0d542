"""Properties of EAGLE's trees with artificial scores: ties, limits, brute force."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from drafters.eagle import tree
from drafters.eagle.tree import (
    chain,
    fixed,
    fixed_parents,
    fixed_ranks,
    grow,
    rerank,
    without_replacement,
)

VOCABULARY = 6


class Source:
    """Logits by path; few different ``values`` force ties everywhere, 0 means normal noise."""

    def __init__(self, seed: int, values: int) -> None:
        self.seed = seed
        self.values = values
        self.paths: list[tuple[int, ...]] = [()]

    def row(self, path: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(hash((self.seed, path)) % 2**31)
        if self.values:
            return torch.randint(self.values, (VOCABULARY,), generator=generator).float() * 40
        return torch.randn(VOCABULARY, generator=generator)

    def expand(self, tokens: Tensor, ranks: Tensor) -> Tensor:
        pairs = zip(tokens.tolist(), ranks.tolist(), strict=True)
        self.paths = [(*self.paths[rank], token) for token, rank in pairs]
        return torch.stack([self.row(path) for path in self.paths])


def paths_of(tokens: Tensor, parents: Tensor) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    values=st.sampled_from([0, 1, 2]),
    top_k=st.integers(1, 4),
    depth=st.integers(0, 4),
    count=st.integers(1, 90),
)
def test_a_parent_is_never_lost(seed: int, values: int, top_k: int, depth: int, count: int) -> None:
    source = Source(seed, values)
    pool = grow(source.row(())[None], top_k, depth, source.expand)
    assert len(pool.tokens) == top_k + depth * top_k**2
    tokens, parents = rerank(pool, count)
    size = min(count, len(pool.tokens))
    assert len(tokens) == size
    assert bool((parents < torch.arange(size)).all())
    # Every node keeps its path from the pool, and no path occurs twice.
    whole = paths_of(pool.tokens, pool.parents(torch.arange(len(pool.tokens))))
    kept = paths_of(tokens, parents)
    assert len(set(kept)) == size
    order = sorted(range(len(whole)), key=lambda i: (-float(pool.scores[i]), i))[:size]
    assert kept == [whole[i] for i in sorted(order)]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), top_k=st.integers(1, 4), depth=st.integers(0, 3))
def test_scores_are_the_log_probabilities_of_the_paths(seed: int, top_k: int, depth: int) -> None:
    source = Source(seed, 0)
    pool = grow(source.row(())[None], top_k, depth, source.expand)
    for path, score in zip(
        paths_of(pool.tokens, pool.parents(torch.arange(len(pool.tokens)))),
        pool.scores,
        strict=True,
    ):
        steps = [source.row(path[:i]).log_softmax(-1)[path[i]] for i in range(len(path))]
        assert float(score) == pytest.approx(float(sum(steps)), abs=1e-4)


@given(st.integers(0, 1000), st.integers(1, 6))
def test_a_chain_is_the_greedy_path(seed: int, count: int) -> None:
    source = Source(seed, 0)
    logits, tokens = chain(source.row(())[None], count, source.expand)
    want: tuple[int, ...] = ()
    for _ in range(count):
        want = (*want, int(source.row(want).argmax()))
    assert tuple(tokens.tolist()) == want
    assert logits.tolist() == [float(source.row(want[:i]).max()) for i in range(count)]
    alone = grow(Source(seed, 0).row(())[None], 1, count - 1, Source(seed, 0).expand)
    assert alone.tokens.tolist() == tokens.tolist()


def test_a_lost_parent_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break ties in the opposite order, as an unstable sort may do; the test above fails."""

    def last_first(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
        values, order = scores.flip(0).sort(descending=True, stable=True)
        return values[:count], len(scores) - 1 - order[:count]

    monkeypatch.setattr(tree, "_best", last_first)
    with pytest.raises(AssertionError):
        test_a_parent_is_never_lost.hypothesis.inner_test(0, 1, 3, 3, 8)


def best(logits: Tensor, count: int) -> tuple[Tensor, None]:
    return logits.topk(count).indices, None


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 5))
def test_the_fixed_tree_takes_the_best_children(seed: int, levels: int) -> None:
    source = Source(seed, 0)
    ranks = [torch.tensor(ranks) for ranks in fixed_ranks()[: levels - 1]]
    tokens, probs = fixed(source.row(())[None], ranks, best, source.expand)
    assert len(tokens) == sum(map(sum, tree.FIXED_TREE[:levels]))
    paths = paths_of(tokens, torch.tensor(fixed_parents())[: len(tokens)])
    assert probs is None
    for parent, children in itertools.groupby(paths, key=lambda path: path[:-1]):
        tokens_found = [path[-1] for path in children]
        assert tokens_found == source.row(parent).topk(len(tokens_found)).indices.tolist()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(1, VOCABULARY))
def test_siblings_are_drawn_from_their_own_rows(seed: int, support: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(2, VOCABULARY, generator=generator) + 0.01
    weights[:, support:] = 0
    probs = weights / weights.sum(-1, keepdim=True)
    ids, rows = without_replacement(probs, 4, generator)
    for node in range(2):
        left = probs[node].clone()
        for i, token in enumerate(ids[node].tolist()):
            if float(left.sum()) > 0:
                torch.testing.assert_close(rows[node, i], left / left.sum())
                assert float(left[token]) > 0
            else:
                assert rows[node, i].tolist() == [float(t == token) for t in range(VOCABULARY)]
            left[token] = 0
        assert len(set(ids[node].tolist())) == 4


def test_ordered_siblings_have_the_distribution_of_drawing_one_by_one() -> None:
    probs = torch.tensor([0.5, 0.3, 0.2])
    runs = 4000
    ids, _ = without_replacement(probs.repeat(runs, 1), 2, torch.Generator().manual_seed(0))
    for first, second in itertools.permutations(range(3), 2):
        p = float(probs[first] * probs[second] / (1 - probs[first]))
        seen = int(((ids[:, 0] == first) & (ids[:, 1] == second)).sum())
        assert abs(seen - runs * p) < 4 * (runs * p * (1 - p)) ** 0.5
