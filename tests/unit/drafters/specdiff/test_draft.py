"""SpecDiff and SpecDiff-2: what they draw, what they hand over, and to which rule."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from drafters.diffusion.draft import Diffusion
from drafters.diffusion.options import DiffusionOptions
from drafters.specdiff.draft import SpecDiff, SpecDiff2
from drafters.specdiff.options import RULES, SpecDiff2Options, SpecDiffOptions
from specbench.api import Commit, Drafter, Request, Sampling, Target, probabilities
from specbench.core.decode import generate
from specbench.errors import UserError
from specbench.inputs.options import parse_options
from specbench.testing import CONTRACT, Check, assert_lossless, tiny_target
from tests.helpers.diffusion_drafts import save_twin

PROMPT = [5, 9, 2, 7]


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(layers=2, context=96)


@pytest.fixture(scope="module")
def model(target: Target, tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_twin(target, tmp_path_factory.mktemp("twin"))


def bound(target: Target, drafter: Drafter) -> Drafter:
    drafter.bind(target.view())
    return drafter


def two(target: Target, model: str, **options: Any) -> Drafter:
    return bound(target, SpecDiff2(SpecDiff2Options(model=model, **options)))


def session_of(drafter: Drafter, temperature: float = 1.0, seed: int = 0) -> Any:
    session = drafter.open(Request(Sampling(temperature), seed, 200))
    session.commit(Commit(tuple(PROMPT), None))
    return session


def test_specdiff_is_one_draw_a_slot_with_its_marginals(target: Target, model: str) -> None:
    drafter = bound(target, SpecDiff(SpecDiffOptions(model=model, tokens=6)))
    assert (drafter.rule.name, drafter.width) == ("reject", 6)
    plain = Diffusion(DiffusionOptions(model=model, tokens=6, sample=True))
    want = session_of(bound(target, plain)).propose(9)
    got = session_of(drafter).propose(9)
    assert got.is_chain
    assert torch.equal(got.tokens, want.tokens)
    assert torch.equal(got.probs, want.probs)
    assert session_of(drafter, 0.0).propose(9).probs is None


def test_specdiff2_draws_its_candidates_from_the_marginals(target: Target, model: str) -> None:
    drafter = two(target, model, candidates=400, tokens=3, draft_top_k=5, rule="reject")
    session = session_of(drafter)
    proposal = session.propose(9)
    assert proposal.probs is not None
    want = proposal.probs.view(400, 3, -1)
    assert (want == want[0]).all()
    logits = session._vocabulary.logits(session._prefix.predict_block(3))
    assert torch.equal(want[0], probabilities(logits, Sampling(1.5, top_k=5)))
    tokens = proposal.tokens.view(400, 3)
    share = torch.stack([column.bincount(minlength=64) for column in tokens.T]) / 400
    assert (share[want[0] == 0] == 0).all()
    assert (share - want[0]).abs().max() < 0.1


@pytest.mark.parametrize("rule", ["select", "walk", "select-ratio"])
def test_candidates_are_merged_where_the_rule_allows(target: Target, model: str, rule: str) -> None:
    whole = session_of(two(target, model, tokens=4, rule="reject")).propose(9)
    drafter = two(target, model, tokens=4, rule=rule)
    merged = session_of(drafter).propose(9)
    assert drafter.rule.name == rule
    assert drafter.width == len(whole) == 8 * 4
    assert len(merged) < len(whole)
    assert (merged.probs is None) == (rule != "select-ratio")
    assert paths(merged) == paths(whole)


def paths(proposal: Any) -> set[tuple[int, ...]]:
    """The texts of all nodes."""
    texts: list[tuple[int, ...]] = [()]
    for token, parent in zip(proposal.tokens.tolist(), proposal.parents.tolist(), strict=True):
        texts.append((*texts[parent + 1], token))
    return set(texts)


def test_greedy_decoding_drafts_at_the_draft_temperature(target: Target, model: str) -> None:
    greedy = session_of(two(target, model, rule="reject"), 0.0).propose(9)
    warm = session_of(two(target, model)).propose(9)
    assert greedy.probs is None
    assert torch.equal(greedy.tokens, warm.tokens)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_is_not_a_number_is_refused(
    temperature: float, rule: str, target: Target, model: str
) -> None:
    drafter: Any = two(target, model, candidates=3, tokens=4, rule=rule)
    drafter.model.decoder.lm_head.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"the draft's (logits|distributions)"):
        generate(target, drafter, PROMPT, 8, sampling=Sampling(temperature))


@pytest.mark.parametrize("rule", ["select", "walk"])
def test_the_text_is_that_of_plain_sampling(target: Target, model: str, rule: str) -> None:
    drafter = two(target, model, candidates=4, tokens=3, rule=rule)
    outputs = assert_lossless(
        target, drafter, [PROMPT], 20, sampling=Sampling(0.8), seeds=(0, 1, 2)
    )
    assert sum(r.accepted for output in outputs for r in output.rounds), "nothing is ever kept"


DRAFTERS = {
    "specdiff": lambda model: SpecDiff(SpecDiffOptions(model=model, tokens=5)),
    "specdiff cached": lambda model: SpecDiff(
        SpecDiffOptions(model=model, tokens=5, cache="prefix_causal")
    ),
    **{
        f"specdiff2 {rule}": lambda model, rule=rule: SpecDiff2(
            SpecDiff2Options(model=model, tokens=4, candidates=3, rule=rule)
        )
        for rule in RULES
    },
    "diffusion candidates": lambda model: Diffusion(
        DiffusionOptions(model=model, tokens=4, candidates=3)
    ),
}


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", DRAFTERS)
def test_contract(name: str, check: Check, target: Target, model: str) -> None:
    check(target, lambda: DRAFTERS[name](model))


def test_diffusion_s_candidates_begin_with_its_own_draft(target: Target, model: str) -> None:
    drafter = bound(target, Diffusion(DiffusionOptions(model=model, tokens=4, candidates=6)))
    assert (drafter.rule.name, drafter.width) == ("select", 24)
    alone = bound(target, Diffusion(DiffusionOptions(model=model, tokens=4)))
    proposal = session_of(drafter).propose(9)
    assert torch.equal(proposal.tokens[:4], session_of(alone).propose(9).tokens)
    assert len(proposal) > 4


@pytest.mark.parametrize(
    "options",
    [
        {"candidates": "0"},
        {"draft_temperature": "0"},
        {"draft_top_k": "-1"},
        {"rule": "best"},
        {"tokens": "0"},
        {"cache": "all"},
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        parse_options("specdiff2", SpecDiff2Options, options | {"model": "m"})


def test_one_step_settles_the_candidates_of_diffusion() -> None:
    for options in ({"steps": "2"}, {"sample": "true"}):
        with pytest.raises(UserError, match="single step"):
            parse_options(
                "diffusion", DiffusionOptions, {"model": "m", "candidates": "4"} | options
            )
