"""Prompt lookup: what is copied."""

from __future__ import annotations

import pytest
import torch

from drafters.prompt_lookup.draft import PromptLookup
from specbench.api import Commit, DraftSession, Request, Target
from specbench.testing import assert_lossless, tiny_target


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(layers=1)


def session(target: Target, *commits: list[int], **options: int) -> DraftSession:
    drafter = PromptLookup(PromptLookup.Options(**options))
    drafter.bind(target.view())
    opened = drafter.open(Request())
    for tokens in commits:
        opened.commit(Commit(tuple(tokens), None))
    return opened


def proposed(target: Target, *commits: list[int], budget: int = 50, **options: int) -> list[int]:
    proposal = session(target, *commits, **options).propose(budget)
    assert proposal.is_chain
    assert proposal.tokens.dtype == torch.long
    return proposal.tokens.tolist()


def test_the_longest_suffix_wins_over_a_newer_shorter_one(target: Target) -> None:
    text = [1, 2, 3, 40, 41, 9, 3, 50, 51, 1, 2, 3]
    assert proposed(target, text, tokens=2) == [40, 41]
    assert proposed(target, text, tokens=2, max_ngram=1) == [50, 51]


def test_the_newest_of_equal_matches_wins(target: Target) -> None:
    assert proposed(target, [1, 2, 30, 1, 2, 31, 8, 1, 2], tokens=1) == [31]


def test_a_match_may_lie_in_the_output_and_across_commits(target: Target) -> None:
    assert proposed(target, [5, 6], [7, 8], [9], [6, 7], tokens=3) == [8, 9, 6]


def test_nothing_is_proposed_without_a_match(target: Target) -> None:
    assert proposed(target, [1, 2, 3, 4]) == []
    assert proposed(target, [1]) == []
    assert proposed(target, [1, 2, 3, 9, 2], min_ngram=2) == []


def test_a_loop_is_continued_past_the_end_of_the_text(target: Target) -> None:
    assert proposed(target, [9, 4, 5, 4, 5], tokens=5) == [4, 5, 4, 5, 4]
    assert proposed(target, [7, 7], tokens=3) == [7, 7, 7]


def test_budget_and_setting_bound_the_copy(target: Target) -> None:
    text = [1, *range(10, 40), 1]
    assert proposed(target, text, budget=3) == [10, 11, 12]
    assert proposed(target, text, tokens=4) == [10, 11, 12, 13]


def test_commits_piecemeal_give_what_one_commit_gives(target: Target) -> None:
    text = torch.randint(6, (80,), generator=torch.Generator().manual_seed(0)).tolist()
    for end in range(1, 80):
        whole = proposed(target, text[:end])
        assert proposed(target, *([token] for token in text[:end])) == whole
        assert whole == brute_force(text[:end], tokens=10)


def brute_force(text: list[int], tokens: int) -> list[int]:
    for length in (3, 2, 1):
        for start in range(len(text) - length - 1, -1, -1):
            if text[start : start + length] == text[-length:]:
                copy = text[start + length :]
                return (copy * tokens)[:tokens]
    return []


def test_a_repeating_target_is_drafted_well(target: Target) -> None:
    drafter = PromptLookup()
    drafter.bind(target.view())
    (output,) = assert_lossless(target, drafter, [[1, 2, 3]], 200)
    assert len(output.rounds) < 150


@pytest.mark.parametrize(
    "wrong", [{"tokens": 0}, {"min_ngram": 0}, {"min_ngram": 3, "max_ngram": 2}]
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="tokens must be at least 1"):
        PromptLookup.Options(**wrong)
