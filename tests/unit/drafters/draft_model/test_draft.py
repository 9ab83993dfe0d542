"""The classic draft model: vocabularies, its cache, its draws."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from drafters.draft_model.draft import DraftModel
from specbench.api import Request, Sampling, Target, UserError, probabilities
from specbench.core.decode import generate
from specbench.core.verifier import Verifier
from specbench.testing import assert_lossless, tiny_target

PROMPT = [7, 3, 21, 40, 3]


def tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    vocab = {word: i for i, word in enumerate(words)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(vocab, unk_token=words[0])))


WORDS = [f"w{i}" for i in range(60)]


def save(folder: Path, model: Target, words: list[str] | None = None) -> str:
    model.model.save_pretrained(folder)
    if words is not None:
        tokenizer(words).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


@pytest.fixture(scope="module")
def same(target: Target, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The target itself as its draft."""
    return save(tmp_path_factory.mktemp("same"), target)


def bound(target: Target, model: str | None, **options: Any) -> DraftModel:
    drafter = DraftModel(DraftModel.Options(model=model, **options))
    drafter.bind(target.view())
    return drafter


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(0.7, 10, 0.9)], ids=str)
def test_a_draft_that_is_the_target_is_always_kept(
    target: Target, same: str, sampling: Sampling
) -> None:
    drafter = bound(target, same, tokens=4)
    output = generate(target, drafter, PROMPT, 41, sampling=sampling)
    assert [(r.drafted, r.accepted) for r in output.rounds] == [(4, 4)] * 8


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_is_not_a_number_is_refused(
    temperature: float, sample: bool, target: Target, same: str
) -> None:
    drafter = bound(target, same, sample=sample)
    drafter.model.model.get_output_embeddings().weight.data.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"the draft's (logits|distributions)"):
        generate(target, drafter, PROMPT, 8, sampling=Sampling(temperature))


def test_every_drafted_token_costs_one_forward_and_history_none(
    target: Target, same: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = bound(target, same, tokens=4)
    rows: list[int] = []
    original = Target.forward

    def counting(self: Target, ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self is drafter.model:
            rows.append(len(ids))
        return original(self, ids, *args, **kwargs)

    monkeypatch.setattr(Target, "forward", counting)
    generate(target, drafter, PROMPT, 11, stop_ids=frozenset())
    # The prompt and its first token; after a draft kept whole, its last token and the bonus.
    assert rows == [len(PROMPT) + 1, 1, 1, 1, 2, 1, 1, 1]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, 20)], ids=str)
def test_its_cache_equals_a_fresh_one_after_every_round(
    target: Target, tmp_path: Path, sampling: Sampling
) -> None:
    """What it drafts from is its own law given all committed tokens, whatever was rejected."""
    drafter = bound(target, save(tmp_path, tiny_target(seed=1, layers=2)), tokens=3)
    verifier = Verifier(target, sampling, 0, len(PROMPT), 40, drafter.width, rule=drafter.rule)
    session = drafter.open(Request(sampling, 0, verifier.capacity))
    commit = verifier.prefill(PROMPT)
    text: list[int] = []
    accepted = set()
    for _ in range(14):
        text += commit.tokens
        session.commit(commit)
        proposal = session.propose(20)
        drafted = proposal.tokens.tolist()
        logits = drafter.model.model(torch.tensor([text + drafted]), use_cache=False).logits[0]
        logits = logits[len(text) - 1 : -1]
        if proposal.probs is None:
            assert drafted == logits.argmax(-1).tolist()
        else:
            want = probabilities(logits, sampling)
            torch.testing.assert_close(proposal.probs, want, atol=1e-4, rtol=1e-3)
        commit = verifier.verify(proposal)
        accepted.add(commit.accepted)
    assert sampling.greedy or len(accepted) > 1


def test_argmax_drafts_stay_comparable_token_by_token(target: Target, same: str) -> None:
    drafter = bound(target, same, tokens=3, sample=False)
    assert drafter.rule.name == "walk"
    outputs = assert_lossless(target, drafter, [PROMPT], 30, sampling=Sampling(0.6), seeds=(0, 1))
    assert {r.accepted for output in outputs for r in output.rounds} >= {0, 1, 2}


def test_the_law_of_the_text_is_the_targets(tmp_path: Path) -> None:
    target = tiny_target(vocabulary=4, layers=1)
    drafter = bound(target, save(tmp_path, tiny_target(seed=3, vocabulary=4, layers=1)), tokens=2)
    sampling = Sampling(2.0)
    runs = 600
    counts = Counter(
        generate(target, drafter, [1, 2], 3, sampling=sampling, seed=seed).tokens
        for seed in range(runs)
    )
    law = {}
    for a in range(4):
        for b in range(4):
            for c in range(4):
                logits = target.model(torch.tensor([[1, 2, a, b]])).logits[0, 1:]
                rows = probabilities(logits, sampling)
                law[a, b, c] = float(rows[0, a] * rows[1, b] * rows[2, c])
    common = [text for text, p in law.items() if p * runs >= 5]
    seen = [counts[text] for text in common]
    due = [law[text] * runs for text in common]
    seen.append(runs - sum(seen))
    due.append(runs - sum(due))
    assert due[-1] > 0
    assert stats.chisquare(seen, due).pvalue > 1e-3


@pytest.mark.parametrize("size", [60, 72])
def test_padding_rows_of_either_model_are_no_difference(
    target: Target, tmp_path: Path, size: int
) -> None:
    """64 rows in the target, fewer or more in the draft, one tokenizer of 60 tokens."""
    ours = Target(target.model, tokenizer(WORDS))
    drafter = bound(ours, save(tmp_path, tiny_target(seed=1, vocabulary=size), WORDS))
    output = generate(
        ours, drafter, [63, *PROMPT], 30, sampling=Sampling(1.0), stop_ids=frozenset()
    )
    assert len(output.tokens) == 30
    session = drafter.open(Request(Sampling(1.0), 0, 64))
    verifier = Verifier(ours, Sampling(1.0), 0, 6, 40, drafter.width, rule=drafter.rule)
    session.commit(verifier.prefill([63, *PROMPT]))
    probs = session.propose(5).probs
    assert probs is not None
    assert probs.shape == (5, 64)
    assert (probs[:, size:] == 0).all()
    torch.testing.assert_close(probs.sum(-1), torch.ones(5))


def test_another_tokenizer_is_refused_with_both_vocabularies_facts(
    target: Target, tmp_path: Path
) -> None:
    ours = Target(target.model, tokenizer(WORDS), name="ours")
    theirs = [*WORDS[:5], "other", *WORDS[6:58]]
    with pytest.raises(UserError) as caught:
        bound(ours, save(tmp_path, target, theirs))
    message = str(caught.value)
    assert "58 tokens against 60" in message
    assert "'w5' (id 5, None), 'w58' (id 58, None), 'w59' (id 59, None)" in message


def test_a_missing_tokenizer_on_one_side_is_refused(target: Target, same: str) -> None:
    with pytest.raises(UserError, match="has no tokenizer to compare them by"):
        bound(Target(target.model, tokenizer(WORDS)), same)


def test_without_tokenizers_the_ids_must_be_as_many(target: Target, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has 64 token ids and the draft .* has 50"):
        bound(target, save(tmp_path, tiny_target(vocabulary=50)))


def test_past_its_own_context_it_proposes_nothing(target: Target, tmp_path: Path) -> None:
    drafter = bound(target, save(tmp_path, tiny_target(context=16)), tokens=4)
    (output,) = assert_lossless(target, drafter, [PROMPT], 30)
    ends = [len(PROMPT) + 1]
    for r in output.rounds:
        # Positions fed to the draft: all committed ones and all drafted but the last.
        assert r.drafted == max(0, min(4, 17 - ends[-1], len(PROMPT) + 30 - ends[-1]))
        ends.append(ends[-1] + len(r.tokens))
    assert output.rounds[-1].drafted == 0


def test_a_truncated_draft_is_not_called_the_target(target: Target, tmp_path: Path) -> None:
    folder = Path(save(tmp_path, tiny_target(seed=1, layers=1)))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"Cannot load the draft .*"):
        bound(target, str(folder))
