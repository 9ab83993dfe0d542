"""The lattice and the path search against brute force and against cases worked by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from drafters.diffuspec.lattice import Lattice, build_lattice
from drafters.diffuspec.options import STOP_RULES
from drafters.diffuspec.search import search_path

STOP = 5
Path = tuple[int, ...]


class PathTable:
    """A causal scorer with a distribution of its own behind every path."""

    def __init__(self, seed: int = 0, known: dict[tuple[Path, int], float] | None = None) -> None:
        self._seed = seed
        self._known = known
        self.kept: list[Path] = []

    def extend(self, tokens: Iterable[int]) -> None:
        raise AssertionError("the search commits nothing")

    def start(self) -> Path:
        return ()

    def logprob(self, path: Path, token: int) -> float:
        if self._known is not None:
            return math.log(self._known[path, token])
        return math.log((1 + hash((self._seed, path, token)) % 997) / 998)

    def score(self, states: Sequence[Path], tokens: Sequence[int]) -> Any:
        return np.array([[self.logprob(path, token) for token in tokens] for path in states])

    def step(self, state: Path, token: int) -> Path:
        self.kept.append((*state, token))
        return (*state, token)


def lattice_of(rows: list[dict[int, float]]) -> Lattice:
    return Lattice([list(row) for row in rows], [np.log(list(row.values())) for row in rows])


def all_paths(lattice: Lattice) -> Iterator[tuple[Path, float]]:
    """Every path that ends in the stop token or at full depth, and its diffusion score."""

    def grow(path: Path, score: float) -> Iterator[tuple[Path, float]]:
        if len(path) == len(lattice) or (path and path[-1] == STOP):
            yield path, score
            return
        for token, logprob in zip(
            lattice.tokens[len(path)], lattice.logprobs[len(path)], strict=True
        ):
            yield from grow((*path, token), score + logprob)

    return grow((), 0.0)


def total(path: Path, diffusion: float, table: PathTable, weight: float) -> float:
    causal = sum(table.logprob(path[:i], token) for i, token in enumerate(path))
    return weight * diffusion + (1 - weight) * causal


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_the_best_path_of_all_where_the_beam_is_wide_enough(data: st.DataObject) -> None:
    rows = data.draw(
        st.lists(
            st.dictionaries(st.integers(0, 7), st.floats(0.01, 1), min_size=1, max_size=4),
            min_size=1,
            max_size=4,
        ),
        label="lattice",
    )
    weight = data.draw(st.sampled_from([0.0, 0.3, 0.5, 1.0]), label="weight")
    by_mean = data.draw(st.booleans(), label="by mean")
    narrow = data.draw(st.integers(1, 4), label="narrow beam")
    table, lattice = PathTable(data.draw(st.integers(0, 99))), lattice_of(rows)

    def value(path: Path, score: float) -> float:
        return score / len(path) if by_mean else score

    scores = {path: total(path, q, table, weight) for path, q in all_paths(lattice)}
    best = max(value(path, score) for path, score in scores.items())
    how: dict[str, Any] = {"weight": weight, "stop": STOP, "by_mean": by_mean}
    wide = search_path(lattice, table, beam=4**4, **how)
    assert value(wide.tokens, scores[wide.tokens]) == pytest.approx(best)
    assert wide.score == pytest.approx(scores[wide.tokens])
    found = search_path(lattice, table, beam=narrow, **how)
    assert found.score == pytest.approx(scores[found.tokens])
    assert value(found.tokens, found.score) <= best + 1e-9


def test_a_narrow_beam_can_miss_the_best_path() -> None:
    lattice = lattice_of([{1: 0.6, 2: 0.4}, {3: 1.0}])
    known = {((), 1): 0.5, ((), 2): 0.5, ((1,), 3): 0.1, ((2,), 3): 0.9}
    how: dict[str, Any] = {"weight": 0.5, "stop": None}
    assert search_path(lattice, PathTable(known=known), beam=1, **how).tokens == (1, 3)
    assert search_path(lattice, PathTable(known=known), beam=2, **how).tokens == (2, 3)


def test_to_solve_x() -> None:
    """The example of the article that introduces DiffuSpec, with the beam it keeps at each place.

    The causal probabilities are ours (the article gives none): products of both, without the
    exponent 1/2 that changes no order, stand behind.
    """
    words = ["To", "For", "The", "solve", "find", "get", "x", "it", "the", ",", "we", "."]
    ids = {word: i for i, word in enumerate(words)}
    diffusion = [
        {"To": 0.6, "For": 0.3, "The": 0.1},
        {"solve": 0.7, "find": 0.2, "get": 0.1},
        {"x": 0.8, "it": 0.1, "the": 0.1},
        {",": 0.5, "we": 0.3, ".": 0.2},
    ]
    causal = [
        ("", {"To": 0.5, "For": 0.3, "The": 0.2}),
        ("To", {"solve": 0.5, "find": 0.3, "get": 0.2}),  # .105, .018, .006
        ("For", {"solve": 0.2, "find": 0.4, "get": 0.4}),  # .0126, .0072, .0036
        ("The", {"solve": 0.3, "find": 0.3, "get": 0.4}),  # .0042, .0012, .0008
        ("To solve", {"x": 0.5, "it": 0.4, "the": 0.1}),  # .042, .0042, .00105
        ("To find", {"x": 0.5, "it": 0.3, "the": 0.2}),  # .0072, .00054, .00036
        ("For solve", {"x": 0.1, "it": 0.1, "the": 0.8}),  # .001008, .000126, .001008
        ("To solve x", {",": 0.6, "we": 0.1, ".": 0.3}),
        ("To solve it", {",": 0.5, "we": 0.1, ".": 0.4}),
        ("To find x", {",": 0.6, "we": 0.1, ".": 0.3}),
    ]
    known = {
        (tuple(ids[word] for word in path.split()), ids[token]): p
        for path, row in causal
        for token, p in row.items()
    }
    table = PathTable(known=known)
    lattice = lattice_of([{ids[word]: q for word, q in row.items()} for row in diffusion])
    found = search_path(lattice, table, beam=3, weight=0.5, stop=None)
    assert " ".join(words[token] for token in found.tokens) == "To solve x ,"
    kept = [" ".join(words[token] for token in path) for path in table.kept]
    assert kept[:3] == ["To", "For", "The"]
    assert kept[3:6] == ["To solve", "To find", "For solve"]
    assert set(kept[6:9]) == {"To solve x", "To solve it", "To find x"}


def logits_of(rows: Sequence[dict[int, float]], vocabulary: int = 40) -> Tensor:
    """Rows of probabilities; what is left of one is shared by all other ids."""
    out = torch.empty(len(rows), vocabulary)
    for place, row in enumerate(rows):
        out[place] = (1 - sum(row.values())) / (vocabulary - len(row))
        for token, p in row.items():
            out[place, token] = p
    return out.log()


SHARP = logits_of([{10 + place % 3: 0.95, STOP: 1e-6} for place in range(30)])


class Trigramlike(PathTable):
    """Finds the drafted tokens fairly likely and the stop token unlikely, everywhere."""

    def logprob(self, path: Path, token: int) -> float:
        return math.log(0.01 if token == STOP else 0.3 if token >= 10 else 0.01)


def drafted(logits: Tensor, stop_rule: str) -> Path:
    lattice = build_lattice(logits, mass=0.8, most=15, stop=STOP, stop_rule=stop_rule)
    by_mean = stop_rule == "mean"
    return search_path(
        lattice, Trigramlike(), beam=3, weight=0.5, stop=STOP, by_mean=by_mean
    ).tokens


@pytest.mark.parametrize("stop_rule", ["first-raw", "natural", "mean"])
def test_a_sharp_lattice_is_drafted_whole(stop_rule: str) -> None:
    assert drafted(SHARP, stop_rule) == tuple(10 + place % 3 for place in range(30))


def test_the_literal_rule_collapses_to_the_stop_token() -> None:
    assert drafted(SHARP, "literal") == (STOP,)


@pytest.mark.parametrize("stop_rule", STOP_RULES)
def test_the_lattice_ends_with_the_raw_draft(stop_rule: str) -> None:
    rows = [{10: 0.9}, {11: 0.9}, {STOP: 0.9}, {12: 0.9}]
    lattice = build_lattice(logits_of(rows), mass=0.8, most=15, stop=STOP, stop_rule=stop_rule)
    assert len(lattice) == 3
    assert lattice.tokens[2] == [STOP]
    want = [[10], [11]] if stop_rule in ("first-raw", "natural") else [[10, STOP], [11, STOP]]
    # Behind the likeliest all are equally likely here, so the stop token can be among the 15.
    natural = [[t for t in row if t != STOP] for row in lattice.tokens[:2]]
    assert (natural if stop_rule == "natural" else lattice.tokens[:2]) == want


def test_candidates_hold_the_mass_and_no_more() -> None:
    rows = [
        {1: 0.5, 2: 0.2, 3: 0.15, 4: 0.1},  # .7 is too little, .85 enough
        {1: 0.81, 2: 0.1},
        {i: 0.06 - i / 1000 for i in range(10, 22)},  # flat: more than five are needed
    ]
    lattice = build_lattice(logits_of(rows), mass=0.8, most=5, stop=None)
    assert lattice.tokens == [[1, 2, 3], [1], [10, 11, 12, 13, 14]]
    got = [round(math.exp(logprob), 4) for logprob in lattice.logprobs[0]]
    assert got == [0.5, 0.2, 0.15]
    whole = build_lattice(logits_of(rows[:1]), mass=1.0, most=4, stop=None)
    assert whole.tokens == [[1, 2, 3, 4]]


def test_where_the_stop_token_is_a_candidate() -> None:
    rows = [{1: 0.5, STOP: 0.4}, {1: 0.9, STOP: 0.05}, {1: 0.9, STOP: 1e-7}]
    want = {
        "first-raw": [[1], [1], [1]],
        "natural": [[1, STOP], [1, STOP], [1]],
        "mean": [[1, STOP], [1, STOP], [1, STOP]],
        "literal": [[1, STOP], [1, STOP], [1, STOP]],
    }
    for stop_rule, tokens in want.items():
        how: dict[str, Any] = {"mass": 0.8, "most": 15, "stop": STOP, "stop_rule": stop_rule}
        assert build_lattice(logits_of(rows), **how).tokens == tokens, stop_rule


@pytest.mark.parametrize("stop_rule", STOP_RULES)
def test_banned_ids_are_no_candidates(stop_rule: str) -> None:
    logits = logits_of([{1: 0.6, 2: 0.3}, {1: 0.6, STOP: 0.3}], vocabulary=8)
    logits[:, [2, STOP, 7]] = -torch.inf
    how: dict[str, Any] = {"mass": 1.0, "most": 15, "stop": STOP, "stop_rule": stop_rule}
    lattice = build_lattice(logits, **how)
    assert not {2, STOP, 7} & {token for row in lattice.tokens for token in row}
    assert all(np.isfinite(row).all() for row in lattice.logprobs)
