"""The causal scorers: scores against the models' own, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drafters.diffuspec.ngram import load_kenlm, tokenizer_hash
from drafters.diffuspec.scorer import causal_scorer, load_scorer, ngram_scorer
from specbench.api import Target, UserError
from specbench.testing import tiny_target
from tests.helpers.diffuspec_scorers import save_scorer

VOCABULARY = 64


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(layers=2, context=40)


class Words:
    """As much of a tokenizer as tells two apart."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def get_vocab(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self._words)}


def sentence(model: Any, tokens: list[int]) -> float:
    """KenLM's own score of a beginning of text, natural logarithm."""
    return math.log(10) * float(model.score(" ".join(map(str, tokens)), bos=True, eos=False))


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("committed", [[], [7], [7, 3], [7, 3, 0, 12, 60, 5]])
def test_ngram_paths_score_as_kenlm_scores_the_text(
    tmp_path: Path, order: int, committed: list[int]
) -> None:
    folder = Path(save_scorer(tmp_path, VOCABULARY, order=order, unseen=4))
    model = load_kenlm(folder / "ngram.arpa")
    context = ngram_scorer(folder / "ngram.arpa").open(50, 10)
    for token in committed:  # Told bit by bit, as rounds do.
        context.extend([token])
    states, candidates = [context.start()], [3, 0, 61, 63]
    first = context.score(states, candidates)
    states = [context.step(states[0], token) for token in (0, 63, 3)]
    second = context.score(states, candidates)
    base = sentence(model, committed)
    for column, token in enumerate(candidates):
        want = sentence(model, [*committed, token]) - base
        assert first[0, column] == pytest.approx(want, abs=1e-4)
        for row, begun in enumerate((0, 63, 3)):
            behind = sentence(model, [*committed, begun, token])
            want = behind - sentence(model, [*committed, begun])
            assert second[row, column] == pytest.approx(want, abs=1e-4)


def full_scores(target: Target, tokens: list[int], candidates: list[int]) -> np.ndarray:
    """One whole forward, without any cache of ours."""
    with torch.inference_mode():
        logits = target.model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
    return logits.log_softmax(-1)[candidates].double().numpy()


def test_a_causal_lm_scores_paths_as_its_own_forward_does(target: Target) -> None:
    context = causal_scorer(target).open(60, 12)
    committed = [4, 9, 33, 2]
    context.extend(committed)
    candidates = [1, 40, 63]
    for new in ([], [7, 7, 12], [5]):
        context.extend(new)
        committed += new
        state = context.start()
        got = context.score([state], candidates)[0]
        np.testing.assert_allclose(got, full_scores(target, committed, candidates), atol=1e-5)
        paths = [[8, 1, 1], [8, 2, 0], [30, 31, 32]]
        states = [state] * 3
        for depth in range(3):
            states = [context.step(s, path[depth]) for s, path in zip(states, paths, strict=True)]
        got = context.score(states, candidates)
        for row, path in enumerate(paths):
            want = full_scores(target, committed + path, candidates)
            np.testing.assert_allclose(got[row], want, atol=1e-5)


def test_a_causal_lm_has_no_opinion_past_its_context(target: Target) -> None:
    context = causal_scorer(target).open(60, 12)
    context.extend(range(38))
    state = context.start()
    assert context.score([state], [1, 2]).any()
    assert context.score([(3, 4)], [1, 2]).any()
    assert context.score([(3, 4, 5)], [1, 2]).tolist() == [[0, 0]]
    context.extend([1, 2, 3, 4])
    assert context.score([context.start()], [1, 2]).tolist() == [[0, 0]]
    context.extend([5])
    assert context.score([context.start()], [1]).tolist() == [[0]]


def test_ids_beyond_a_causal_lms_rows_are_impossible_and_harmless(target: Target) -> None:
    context = causal_scorer(target).open(60, 12)
    context.extend([4, 70])
    scores = context.score([context.start()], [1, 70])
    assert scores[0, 1] == -99
    assert np.isfinite(context.score([context.step((), 70)], [1])).all()


def test_a_scorer_belongs_to_one_tokenizer(target: Target, tmp_path: Path) -> None:
    words = Words("a", "b", "c")
    view = replace(target.view(), tokenizer=words)
    mine = save_scorer(tmp_path / "mine", 3, tokenizer_hash(words))
    assert load_scorer(mine, view).kind == "3-gram"
    for number, tokenizer in enumerate((Words("a", "c", "b"), Words("a", "b"), None)):
        other = save_scorer(tmp_path / str(number), 3, tokenizer_hash(tokenizer))
        with pytest.raises(UserError, match="was counted with another tokenizer"):
            load_scorer(other, view)
    with pytest.raises(UserError, match=r"specbench train ngram --target tiny-qwen3.*search=false"):
        load_scorer(None, view)


def test_a_causal_lm_can_be_named(target: Target, tmp_path: Path) -> None:
    target.model.save_pretrained(tmp_path)
    assert load_scorer(str(tmp_path), target.view()).kind == "causal LM, 2 layers"
    other = replace(target.view(), vocab_size=65)
    with pytest.raises(UserError, match=r"has 65 token ids and the scorer .* has 64"):
        load_scorer(str(tmp_path), other)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no n-gram scorer in"):
        load_scorer(str(tmp_path / "empty"), target.view())
