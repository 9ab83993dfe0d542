"""Between the drafter's ids and the target's: what is the same, what is mapped, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from drafters.diffusion.draft import Diffusion
from drafters.diffusion.vocabulary import Vocabulary, stop_id
from specbench.api import Commit, Request, Sampling, Target, UserError
from specbench.drafting.vocabulary import load_tokenizer
from specbench.testing import assert_lossless, tiny_target
from tests.helpers.diffusion_drafts import save_twin, tokenizer

WORDS = [*"abcdefghij", *(f"w{i}" for i in range(50))]
PROMPT = [7, 3, 21, 40, 3]
CPU = torch.device("cpu")


def target_with(words: Any) -> Target:
    model = tiny_target()
    return Target(model.model, words, name="ours")


def drafter(target: Target, folder: Path, words: Any, **options: Any) -> Diffusion:
    """A drafter of 65 ids, the last its mask, with a tokenizer of its own or none."""
    model = save_twin(tiny_target(seed=1), folder)
    if words is not None:
        words.save_pretrained(folder)
    made = Diffusion(Diffusion.Options(model=model, tokens=3, **options))
    made.bind(target.view())
    return made


def shuffled() -> list[str]:
    """The same words, ids reversed, two of them of the drafter's own."""
    words = WORDS[::-1]
    words[words.index("w7")] = "own7"
    words[words.index("w8")] = "own8"
    return words


def test_an_added_mask_is_no_other_tokenizer(tmp_path: Path) -> None:
    target = target_with(tokenizer(WORDS, ("<tool>", "<end>"), eos_token="<end>"))
    made = drafter(target, tmp_path, tokenizer(WORDS, ("<bos>", "<end>", "<mask>")))
    # 60 is <tool> there and <bos> here: never drafted, and not shown as what it is not.
    assert made.vocabulary.prefix([59, 60, 61, 3]) == [59, 61, 3]
    logits = made.vocabulary.logits(torch.zeros(1, 65))
    assert logits.shape == (1, 64)
    assert logits[0].isfinite().nonzero()[:, 0].tolist() == [*range(60), 61]
    assert_lossless(target, made, [PROMPT], 20)


def test_other_words_are_refused_with_the_share_and_the_way_out(tmp_path: Path) -> None:
    target = target_with(tokenizer(WORDS))
    with pytest.raises(UserError) as caught:
        drafter(target, tmp_path, tokenizer(shuffled()))
    message = str(caught.value)
    assert "60 tokens against 60" in message
    assert "'a' (id 0, 59)" in message
    assert "97% of the target's tokens" in message
    assert "--set diffusion.map_vocabulary=true" in message


@pytest.mark.parametrize("steps", [1, 2])
def test_mapped_words_say_the_same_tokens(steps: int, tmp_path: Path) -> None:
    words = tokenizer(shuffled())
    target = target_with(tokenizer(WORDS))
    made = drafter(target, tmp_path, words, map_vocabulary=True, steps=steps)
    session = made.open(Request(Sampling(), 0, 60))
    session.commit(Commit(tuple(PROMPT), None))
    ids = torch.tensor([*(59 - token for token in PROMPT), 64, 64, 64])
    logits = made.model.predict(ids, torch.arange(5, 8)).clone()
    own = [words.convert_tokens_to_ids(word) for word in ("own7", "own8")]
    logits[:, [*own, *range(60, 64)]] = -torch.inf
    best = logits.argmax(-1)
    if steps > 1:
        # Two slots first, the surest ones, then the third with those two in place.
        first = logits.softmax(-1).max(-1).values.argsort(descending=True)[:2]
        ids[5 + first] = best[first]
        (last,) = {0, 1, 2} - set(first.tolist())
        again = made.model.predict(ids, torch.tensor([5 + last])).clone()
        again[:, [*own, *range(60, 64)]] = -torch.inf
        best[last] = again.argmax()
    assert session.propose(3).tokens.tolist() == (59 - best).tolist()
    assert made.details["shared_vocabulary"] == round(58 / 60, 4)
    assert_lossless(target, made, [PROMPT], 20)


def test_a_drawn_draft_has_no_mass_on_what_the_drafter_cannot_say(tmp_path: Path) -> None:
    target = target_with(tokenizer(WORDS))
    made = drafter(target, tmp_path, tokenizer(shuffled()), map_vocabulary=True, sample=True)
    session = made.open(Request(Sampling(1.0), 0, 60))
    session.commit(Commit(tuple(PROMPT), None))
    probs = session.propose(3).probs
    assert probs is not None
    assert (probs[:, [WORDS.index("w7"), WORDS.index("w8")]] == 0).all()
    torch.testing.assert_close(probs.sum(-1), torch.ones(3))


def test_a_prefix_token_without_a_partner_is_spelled(tmp_path: Path) -> None:
    ours = [*WORDS[:-3], "abba", "w12ab", "a?b"]
    target = target_with(tokenizer(ours))
    made = drafter(target, tmp_path, tokenizer(WORDS), map_vocabulary=True)
    ids = {word: i for i, word in enumerate(WORDS)}
    assert made.vocabulary.prefix([0, 57, 1, 58, 59]) == [
        *(ids[x] for x in ("a", "a", "b", "b", "a", "b", "w12", "a", "b")),
        # "?" is in no word of the drafter's.
        *(ids[x] for x in ("a", "b")),
    ]
    assert_lossless(target, made, [[57, 57, 3, 59, 58]], 20)


def test_a_prefix_that_spelling_makes_too_long_is_not_drafted_for(tmp_path: Path) -> None:
    ours = [*WORDS[:-1], "abcdefgh"]
    target = target_with(tokenizer(ours))
    made = drafter(target, tmp_path, tokenizer(WORDS), map_vocabulary=True)
    (output,) = assert_lossless(target, made, [[59] * 40], 8)
    assert [r.drafted for r in output.rounds] == [0] * 7


def test_too_small_a_share_is_refused(tmp_path: Path) -> None:
    target = target_with(tokenizer(WORDS))
    theirs = [*WORDS[:25], *(f"x{i}" for i in range(35))]
    with pytest.raises(UserError, match=r"Only 42% .* needs 50%"):
        drafter(target, tmp_path, tokenizer(theirs), map_vocabulary=True)


def test_without_tokenizers_the_ids_must_be_as_many(tmp_path: Path) -> None:
    made = drafter(tiny_target(), tmp_path, None)
    assert made.vocabulary.share == 1
    with pytest.raises(UserError, match="has 60 token ids and the draft"):
        drafter(tiny_target(vocabulary=60), tmp_path, None)


def test_all_stop_ids_of_the_drafter_are_the_targets(tmp_path: Path) -> None:
    """5 and 6 end the drafter's texts, 2 the target's."""
    partner = {i: i for i in range(7)}
    vocabulary = Vocabulary(partner, width=8, drafter_width=7, device=CPU, stop_ids=(5, 6), stop=2)
    logits = torch.log(torch.tensor([0.1, 0.1, 0.1, 0.1, 0.1, 0.2, 0.3]))
    probs = vocabulary.logits(logits).exp()
    torch.testing.assert_close(probs, torch.tensor([0.1, 0.1, 0.6, 0.1, 0.1, 0, 0, 0]))
    assert vocabulary.sayable(logits)[5:].isfinite().all()


def test_dreams_tokenizer_is_loaded_without_its_code(tmp_path: Path) -> None:
    """vocab.json, merges.txt and a class that only remote code knows."""
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    (tmp_path / "config.json").write_text('{"model_type": "Dream"}')
    config = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = load_tokenizer(str(tmp_path))
    assert found.get_vocab()["ab"] == 2
    (tmp_path / "nothing").mkdir()
    assert load_tokenizer(str(tmp_path / "nothing")) is None


def test_the_targets_stop_id_is_its_tokenizers_then_its_configs() -> None:
    spoken = target_with(tokenizer(WORDS, ("<end>",), eos_token="<end>")).view()
    assert stop_id(spoken) == 60
    silent = replace(spoken, tokenizer=None, stop_ids=frozenset())
    assert stop_id(silent) is None
    assert stop_id(replace(silent, stop_ids=frozenset({9, 4}))) == 4
    silent.config.eos_token_id = [7, 3]
    assert stop_id(silent) == 7
