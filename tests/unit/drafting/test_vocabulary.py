"""What two tokenizers have in common."""

from __future__ import annotations

import pytest

from specbench.api import Target, UserError
from specbench.drafting.vocabulary import difference, load_tokenizer, require_same_vocabulary
from specbench.testing import tiny_target
from tests.helpers.diffusion_drafts import tokenizer


def test_the_first_differing_tokens_are_named_with_both_ids() -> None:
    ours, theirs = {"a": 0, "b": 1, "c": 2}, {"a": 0, "c": 1, "d": 3}
    assert difference(ours, ours) == ""
    assert difference(ours, theirs) == (
        "3 tokens against 3, first differing (target, draft) "
        "'b' (id 1, None), 'c' (id 2, 1), 'd' (id None, 3)"
    )
    assert difference(ours, theirs, {"b", "c", "d"}) == ""


def test_a_model_of_the_targets_tokens_passes_and_no_other() -> None:
    model = tiny_target().model
    words = [f"w{i}" for i in range(60)]
    target = Target(model, tokenizer(words), name="ours").view()
    require_same_vocabulary(target, Target(model, tokenizer(words), name="theirs"))
    with pytest.raises(UserError, match=r"The scorer 'theirs' has another tokenizer .* 'w0'"):
        require_same_vocabulary(target, Target(model, tokenizer(words[::-1]), "theirs"), "scorer")
    with pytest.raises(UserError, match="'theirs' has no tokenizer to compare them by"):
        require_same_vocabulary(target, Target(model, None, "theirs"))


def test_an_embedded_model_is_found_by_its_name() -> None:
    assert load_tokenizer("tiny-draft-lm").get_vocab() == load_tokenizer("tiny-target").get_vocab()
    assert load_tokenizer("tiny-dflash") is None
