"""The oracle: the contract, and the counting of rounds against the closed formula."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drafters.oracle.draft import Oracle
from drafters.oracle.options import OracleOptions
from specbench.api import Sampling, Target, TargetView, UserError
from specbench.core.decode import Decoding, generate
from specbench.records.records import Sample
from specbench.stats.metrics import acceptance, pooled_aal
from specbench.testing import CONTRACT, NO_STOPS, Check, plain, random_prompts, tiny_target


class Borrowing(Oracle):
    """Reads the answer off a target that is in memory only."""

    target: Target

    def _load(self, target: TargetView) -> Target:
        return self.target


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(layers=1, context=96)


def oracle(target: Target, **options: float) -> Oracle:
    made = Borrowing(OracleOptions(**options))  # type: ignore[arg-type]
    made.target = target
    return made


@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_contract(check: Check, target: Target, branches: int) -> None:
    check(target, lambda: oracle(target, rate=0.7, tokens=4, branches=branches))


def answers(target: Target, drafter: Oracle, count: int, sampling: Sampling) -> list[Sample]:
    """Samples of as many prompts; the last round, which the budget cuts, is left out."""
    drafter.bind(target.view())
    found = []
    for index, prompt in enumerate(random_prompts(target.vocab_size, [7] * count)):
        output = generate(
            target, drafter, prompt, 88, stop_ids=NO_STOPS, sampling=sampling, seed=index
        )
        rounds = [r for r in output.rounds if r.drafted == drafter.width]
        counts = tuple((r.drafted, r.accepted, len(r.tokens)) for r in rounds)
        tokens = (0,) * (sum(len(r.tokens) for r in rounds) + 1)
        found.append(Sample("cell", str(index), 1, "ok", output=tokens, rounds=counts))
    return found


@pytest.mark.parametrize(
    ("rate", "tokens", "branches", "temperature"),
    [(0.8, 4, 1, 0.0), (0.6, 6, 1, 1.0), (0.7, 3, 3, 0.0)],
)
def test_the_counting_is_that_of_the_formula(
    target: Target, rate: float, tokens: int, branches: int, temperature: float
) -> None:
    """AAL and acceptance at every depth lie in their intervals around the exact figure."""
    drafter = oracle(target, rate=rate, tokens=tokens, branches=branches)
    samples = answers(target, drafter, 12, Sampling(temperature))
    aal = pooled_aal(samples)
    assert aal.value is not None
    assert aal.interval is not None
    expected = (1 - rate ** (tokens + 1)) / (1 - rate)
    low, high = aal.interval
    assert low <= expected <= high
    assert high - low < 0.8, "an interval that holds everything tests nothing"
    depths = acceptance(samples)
    assert len(depths) == tokens
    for depth, share in enumerate(depths, 1):
        assert share.value == pytest.approx(rate**depth, abs=0.1)


def test_the_extremes(target: Target) -> None:
    prompt = random_prompts(target.vocab_size)[0]
    for rate, emitted in ((1.0, {5}), (0.0, {1})):
        drafter = oracle(target, rate=rate, tokens=4)
        drafter.bind(target.view())
        output = generate(target, drafter, prompt, 21, stop_ids=NO_STOPS)
        assert {len(r.tokens) for r in output.rounds} == emitted


def test_an_answer_is_worked_out_once(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = oracle(target, tokens=3)
    drafter.bind(target.view())
    prompt = random_prompts(target.vocab_size)[0]
    generate(target, drafter, prompt, 20, stop_ids=NO_STOPS, sampling=Sampling(0.9), seed=5)
    monkeypatch.delattr(drafter, "copy")
    drafter.copy = type("Blind", (), {"device": target.device, "vocab_size": 64})()
    want = plain(target, prompt, 20, Sampling(0.9), 5)
    got = generate(target, drafter, prompt, 20, stop_ids=NO_STOPS, sampling=Sampling(0.9), seed=5)
    assert got.tokens == want.tokens
    assert got.rounds != want.rounds


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9)], ids=str)
def test_preparing_leaves_nothing_to_be_worked_out(
    target: Target, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = oracle(target, rate=1.0, tokens=4)
    drafter.bind(target.view())
    prompt = random_prompts(target.vocab_size)[0]
    settings: dict[str, Any] = {"sampling": sampling, "seed": 5, "stop_ids": NO_STOPS}
    decoding = Decoding(target, drafter, prompt, 21, **settings)
    drafter.prepare(prompt, decoding.request)
    blind = type("Blind", (), {"device": target.device, "vocab_size": 64})()
    monkeypatch.setattr(drafter, "copy", blind)
    output = decoding.run()
    assert output.tokens == plain(target, prompt, 21, sampling, 5).tokens
    assert {len(r.tokens) for r in output.rounds} == {5}


def test_an_answer_to_a_small_budget_does_not_end_one_to_a_larger(target: Target) -> None:
    drafter = oracle(target, rate=1.0, tokens=4)
    drafter.bind(target.view())
    prompt = random_prompts(target.vocab_size)[0]
    for budget in (6, 21):
        output = generate(target, drafter, prompt, budget, stop_ids=NO_STOPS)
        assert {len(r.tokens) for r in output.rounds} == {5}
    assert len(output.tokens) == 21


def test_it_reads_on_where_the_verifier_turned_off(target: Target) -> None:
    """Another text than foreseen is followed from the next round on."""
    drafter = oracle(target, rate=1.0, tokens=3)
    drafter.bind(target.view())
    prompt = tuple(random_prompts(target.vocab_size)[0])
    want = plain(target, [*prompt, 9, 9], 12).tokens
    from specbench.api import Commit, Request

    session = drafter.open(Request(capacity=40))
    session.commit(Commit((*prompt, 9), None))
    session.commit(Commit((9,), None))
    assert tuple(session.propose(3).tokens.tolist()) == want[:3]


def test_it_is_loaded_by_the_targets_name(target: Target, tmp_path: Path) -> None:
    target.model.save_pretrained(tmp_path)
    found = Target.load(str(tmp_path))
    drafter = Oracle(OracleOptions(rate=1.0, tokens=3))
    drafter.bind(found.view())
    prompt = random_prompts(target.vocab_size)[0]
    assert generate(found, drafter, prompt, 9, stop_ids=NO_STOPS).rounds[0].accepted == 3
    found.name = str(tmp_path / "nowhere")
    with pytest.raises(UserError, match="Cannot load"):
        Oracle().bind(found.view())


@pytest.mark.parametrize("wrong", [{"rate": 1.1}, {"tokens": 0}, {"branches": 0}])
def test_options_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="rate must be within"):
        OracleOptions(**wrong)  # type: ignore[arg-type]
