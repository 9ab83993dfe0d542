"""The plain diffusion drafter: what it proposes, and the law of what comes out."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

from drafters.diffusion.draft import Diffusion
from drafters.diffusion.options import DRAFT_ORDERS
from specbench.api import (
    Commit,
    Proposal,
    Request,
    Sampling,
    Target,
    UserError,
    draw,
    probabilities,
)
from specbench.core.decode import generate
from specbench.core.rules import WALK, Kept
from specbench.drafting import proposals
from specbench.testing import CONTRACT, Check, assert_lossless, tiny_target
from tests.helpers.diffusion_drafts import save_twin

PROMPT = [7, 3, 21, 40, 3]
CONTEXT = 64


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(layers=2, context=CONTEXT)


@pytest.fixture(scope="module")
def twin(target: Target, tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_twin(target, tmp_path_factory.mktemp("twin"))


@pytest.fixture(scope="module")
def blocks(target: Target, tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_twin(target, tmp_path_factory.mktemp("blocks"), block_size=4)


def bound(target: Target, model: str | None, **options: Any) -> Diffusion:
    drafter = Diffusion(Diffusion.Options(model=model, **options))
    drafter.bind(target.view())
    return drafter


def proposal(drafter: Diffusion, sampling: Sampling, budget: int = 20) -> Proposal:
    session = drafter.open(Request(sampling, 0, 50))
    session.commit(Commit(tuple(PROMPT), None))
    return session.propose(budget)


KINDS: dict[str, dict[str, Any]] = {
    "one step": {"tokens": 4, "cache": "prefix_causal"},
    "drawn": {"tokens": 3, "sample": True},
    "random order": {"tokens": 4, "steps": 2, "order": "origin"},
}


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_contract(check: Check, kind: str, target: Target, twin: str) -> None:
    check(target, lambda: Diffusion(Diffusion.Options(model=twin, **KINDS[kind])))


@pytest.mark.parametrize(
    "options", [{}, {"steps": 3}, {"sample": True}, {"candidates": 3}], ids=str
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_is_not_a_number_is_refused(
    temperature: float, options: dict[str, Any], target: Target, twin: str
) -> None:
    drafter = bound(target, twin, tokens=4, **options)
    drafter.model.decoder.lm_head.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"the draft's (logits|distributions)"):
        generate(target, drafter, PROMPT, 8, sampling=Sampling(temperature))


@pytest.fixture(scope="module")
def llama() -> Target:
    return tiny_target("llama", layers=2, context=CONTEXT)


@pytest.fixture(scope="module")
def unshifted(llama: Target, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Block-causal and not shifted, as BD3-LM's."""
    folder = tmp_path_factory.mktemp("unshifted")
    return save_twin(llama, folder, shift=False, block_size=4)


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_contract_of_a_block_causal_llama(check: Check, llama: Target, unshifted: str) -> None:
    check(llama, lambda: Diffusion(Diffusion.Options(model=unshifted, tokens=5, steps=2)))


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("cache", ["none", "prefix_causal", "auto"])
def test_greedy_output_is_the_targets(
    steps: int, cache: str, target: Target, twin: str, blocks: str
) -> None:
    model = blocks if cache == "auto" else twin
    drafter = bound(target, model, tokens=4, steps=steps, cache=cache)
    (output,) = assert_lossless(target, drafter, [PROMPT], 30)
    if cache == "prefix_causal" and steps == 1:
        # Shifted, on a causal prefix, with the target's weights: its first token is the target's.
        assert min(r.accepted for r in output.rounds) >= 1


def test_one_step_drafts_the_models_own_marginals(target: Target, twin: str) -> None:
    drafter = bound(target, twin, tokens=4, sample=True)
    ids = torch.tensor([*PROMPT, 64, 64, 64, 64])
    want = drafter.model.predict(ids, torch.arange(5, 9))[:, :64]
    greedy = proposal(drafter, Sampling())
    assert greedy.probs is None
    assert torch.equal(greedy.tokens, want.argmax(-1))
    for sampling in (Sampling(1.0), Sampling(0.7, top_k=5, top_p=0.9)):
        drawn = proposal(drafter, sampling)
        assert drawn.probs is not None
        torch.testing.assert_close(drawn.probs, probabilities(want, sampling))
        assert (drawn.probs.gather(1, drawn.tokens[:, None]) > 0).all()
    short = proposal(drafter, Sampling(), budget=2)
    # Fewer masks are another question, not the start of the same answer.
    fewer = drafter.model.predict(ids[:7], torch.arange(5, 7))[:, :64]
    assert torch.equal(short.tokens, fewer.argmax(-1))


@pytest.mark.parametrize("order", DRAFT_ORDERS)
def test_as_many_steps_as_tokens_fill_one_at_a_time(order: str, target: Target, twin: str) -> None:
    """Filled by hand: the model asked again and again, the surest slot of what is left first."""
    drafter = bound(target, twin, tokens=3, steps=3, order="low_confidence")
    contents = torch.full((3,), 64)
    for _ in range(3):
        ids = torch.cat([torch.tensor(PROMPT), contents])
        probs = drafter.model.predict(ids, torch.arange(5, 8)).softmax(-1)
        best = probs.max(-1).values.masked_fill(contents != 64, -1).argmax()
        contents[best] = probs[best].argmax()
    assert torch.equal(proposal(drafter, Sampling()).tokens, contents)
    other = proposal(bound(target, twin, tokens=3, steps=2, order=order), Sampling())
    assert len(other) == 3
    assert (other.tokens < 64).all()


def test_a_seed_says_a_random_order(target: Target, twin: str) -> None:
    drafter = bound(target, twin, tokens=8, steps=8, order="random")
    drafts = []
    for seed in (0, 0, 1, 2):
        session = drafter.open(Request(Sampling(), seed, 50))
        session.commit(Commit(tuple(PROMPT), None))
        drafts.append(session.propose(8).tokens.tolist())
    assert drafts[0] == drafts[1]
    assert len({tuple(one) for one in drafts}) > 1


@pytest.fixture(scope="module")
def four() -> Target:
    """A target of four tokens."""
    return tiny_target(vocabulary=4, layers=1)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of four tokens and a mask with a law of its own."""
    return save_twin(tiny_target(vocabulary=4, layers=1, seed=3), tmp_path_factory.mktemp("four"))


def pvalue(target: Target, drafter: Diffusion, sampling: Sampling, runs: int = 800) -> float:
    """Chi-square of the two tokens behind [1, 2] against the target's own law."""
    session = drafter.open(Request(sampling, 0, 20))
    session.commit(Commit((1, 2), None))
    marginals = session._prefix.predict_block(2)  # type: ignore[attr-defined]
    session._prefix.predict_block = lambda count: marginals[:count]  # type: ignore[attr-defined]
    pairs = list(itertools.product(range(4), repeat=2))
    logits = target.model(torch.tensor([[1, 2, *pair] for pair in pairs])).logits[:, 1:]
    p = probabilities(logits, sampling)
    noise = torch.Generator().manual_seed(1)
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(runs):
        drafted = session.propose(2)
        rows = logits[pairs.index(tuple(drafted.tokens.tolist()))]
        uniforms = torch.rand(3, generator=noise)
        said = drafter.rule.keep(drafted, rows, sampling, uniforms, noise).tokens
        if len(said) == 1:
            second = draw(p[4 * said[0], 1], torch.rand((), generator=noise))
            said = (*said, int(second))
        counts[said[:2]] += 1
    due = [runs * float(p[4 * a, 0, a] * p[4 * a, 1, b]) for a, b in pairs]
    assert min(due) > 5
    scale = runs / sum(due)
    seen = [counts[pair] for pair in pairs]
    return float(stats.chisquare(seen, [count * scale for count in due]).pvalue)


@pytest.mark.parametrize("sample", [False, True], ids=["one-hot", "marginals"])
def test_the_law_of_the_text_is_the_targets(sample: bool, four: Target, stranger: str) -> None:
    drafter = bound(four, stranger, tokens=2, sample=sample)
    assert pvalue(four, drafter, Sampling(2.0)) > 1e-3


def test_the_same_test_fails_for_tokens_that_were_not_drawn(
    four: Target, stranger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The most likely tokens, handed over as if they were drawn from the marginals."""
    drafter = bound(four, stranger, tokens=2, sample=True)
    monkeypatch.setattr(proposals, "draw", lambda probs, uniforms: probs.argmax(-1))
    assert pvalue(four, drafter, Sampling(2.0)) < 1e-9


def test_the_same_test_fails_for_one_hot_drafts_kept_as_if_drawn(
    four: Target, stranger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One-hot tokens that are kept whenever the target could say them."""
    drafter = bound(four, stranger, tokens=2)

    def keep(drafted: Proposal, *rest: Any) -> Kept:
        return Kept((0, 1), (*drafted.tokens.tolist(), 0))

    bent = replace(WALK, keep=keep)
    monkeypatch.setattr(Diffusion, "rule", property(lambda self: bent))
    assert pvalue(four, drafter, Sampling(2.0)) < 1e-9


def test_one_hot_drafts_give_the_text_of_plain_sampling(target: Target, twin: str) -> None:
    drafter = bound(target, twin, tokens=4, cache="prefix_causal")
    outputs = assert_lossless(target, drafter, [PROMPT], 30, sampling=Sampling(0.5), seeds=(0, 1))
    assert {r.accepted for output in outputs for r in output.rounds} >= {0, 1}


def test_past_its_own_context_it_proposes_nothing(target: Target, tmp_path: Path) -> None:
    model = save_twin(tiny_target(layers=1, context=20), tmp_path)
    drafter = bound(target, model, tokens=4)
    (output,) = assert_lossless(target, drafter, [PROMPT], 30)
    committed = len(PROMPT) + 1
    for r in output.rounds:
        assert r.drafted == max(0, min(4, 20 - committed, len(PROMPT) + 30 - committed))
        committed += len(r.tokens)
    assert output.rounds[-1].drafted == 0


def test_details_say_what_is_approximate(target: Target, twin: str, blocks: str) -> None:
    assert bound(target, twin, cache="prefix_causal").details == {
        "family": "converted",
        "cache": "prefix_causal",
        "candidates": 1,
        "approximate": True,
        "shared_vocabulary": 1.0,
    }
    for model, cache in ((twin, "none"), (blocks, "block")):
        details = bound(target, model).details
        assert (details["cache"], details["approximate"]) == (cache, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 0}, "tokens must be at least 1"),
        ({"tokens": 4, "steps": 5}, "steps from 1 to tokens"),
        ({"order": "first_hitting"}, "low_confidence, random"),
        ({"cache": "blocks"}, "auto, none, prefix_causal, block"),
        ({"steps": 2, "sample": True}, "steps=1 or sample=false"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Diffusion.Options(**({"model": "m"} | options))


def test_a_model_must_have_the_cache(target: Target, twin: str) -> None:
    with pytest.raises(UserError, match="none, or prefix_causal"):
        bound(target, twin, cache="block")
