"""The drafting session: its context, its block, its draws."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from drafters.dflash.draft import DFlash, DFlashSession
from drafters.dflash.options import DFlashOptions
from specbench.api import (
    AdaptiveLength,
    Commit,
    Proposal,
    Request,
    Sampling,
    Target,
    UserError,
    probabilities,
)
from specbench.core.decode import generate
from specbench.testing import CONTRACT, Check, assert_lossless, tiny_target
from tests.helpers.dflash_drafts import bound_draft, draft_config, write_draft

KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "sliding": {"windows": (6, None), "causal": (True, False)},
    "bidirectional window": {"windows": (6, 6), "causal": (False, False)},
    "causal": {"causal": (True, True)},
}


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(layers=5)


def features_of(drafter: DFlash, rows: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, len(drafter.taps), drafter.config.hidden, generator=generator)


def session_with(drafter: DFlash, *pieces: Tensor, anchor: int = 7, **request: Any) -> Any:
    session = drafter.open(Request(capacity=64, **request))
    for piece in pieces:
        session.commit(Commit((1,) * (len(piece) - 1) + (anchor,), piece))
    return session


@pytest.mark.parametrize("options", [{}, {"sample": False}, {"candidates": 3}], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_is_not_a_number_is_refused(
    temperature: float, options: dict[str, Any], target: Target, tmp_path: Path
) -> None:
    drafter = bound_draft(target, write_draft(draft_config(target), tmp_path), **options)
    drafter.model.norm.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"the draft's (logits|distributions)"):
        generate(target, drafter, [7, 3, 21], 8, sampling=Sampling(temperature))


@pytest.mark.parametrize("kind", KINDS)
def test_context_added_round_by_round_equals_all_at_once(
    target: Target, tmp_path: Path, kind: str
) -> None:
    drafter = bound_draft(target, write_draft(draft_config(target, **KINDS[kind]), tmp_path))
    features = features_of(drafter, 23)
    session = session_with(drafter, features[:9])
    for start, end in [(9, 10), (10, 15), (15, 16), (16, 20), (20, 23)]:
        session.propose(30)
        session.commit(Commit((1, 7), features[start:end]))
    whole = session_with(drafter, features)
    torch.testing.assert_close(session.logits(5), whole.logits(5), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_who_sees_whom(target: Target, tmp_path: Path, kind: str) -> None:
    """Which slots' logits change with the context's first row, and with the block's last mask."""
    drafter = bound_draft(target, write_draft(draft_config(target, **KINDS[kind]), tmp_path))
    features = features_of(drafter, 20)
    plain = session_with(drafter, features).logits(5)
    features[0] += 1
    by_context = (session_with(drafter, features).logits(5) - plain).abs().amax(-1) > 1e-4
    features[0] -= 1
    drafter.blank = drafter.blank.clone()
    drafter.blank[4] += 1
    by_last = (session_with(drafter, features).logits(5) - plain).abs().amax(-1) > 1e-4
    sees_all = {"full": True, "sliding": True, "bidirectional window": False, "causal": True}
    assert by_context.tolist() == [sees_all[kind]] * 4
    # Slot 1 is three rows before slot 4: within a window of 6.
    assert by_last.tolist() == ([False] * 3 if kind == "causal" else [True] * 3) + [True]


def test_only_the_distance_to_the_anchor_matters(target: Target, tmp_path: Path) -> None:
    drafter = bound_draft(target, write_draft(draft_config(target, windows=(6, 6)), tmp_path))
    near = features_of(drafter, 20)
    far = torch.cat([features_of(drafter, 30, seed=1), near])
    # Two windows of 6 reach back 12 rows, so what lies 20 and more before is out of sight.
    torch.testing.assert_close(
        session_with(drafter, near).logits(5),
        session_with(drafter, far).logits(5),
        atol=1e-5,
        rtol=0,
    )


def test_scale_multiplier_and_cap(target: Target, tmp_path: Path) -> None:
    config = draft_config(target)
    features = torch.randn(6, 2, 32, generator=torch.Generator().manual_seed(3))

    def logits(**changes: Any) -> Tensor:
        folder = write_draft(draft_config(target, **changes), tmp_path / str(changes))
        return session_with(bound_draft(target, folder), features).logits(config.block_size)

    plain = logits()
    torch.testing.assert_close(logits(output_multiplier=0.5), plain * 0.5)
    both = logits(output_multiplier=0.5, softcap=3.0)
    torch.testing.assert_close(both, 3 * torch.tanh(plain * 0.5 / 3))
    assert not torch.allclose(logits(embedding_scale=5.0), plain, atol=0.1)


def test_a_scaled_target_embedding_is_read_raw(target: Target, tmp_path: Path) -> None:
    """Gemma's embedding module multiplies its rows; a draft wants them as they are stored."""

    class Scaled(torch.nn.Embedding):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) * 7

    drafter = bound_draft(target, write_draft(draft_config(target), tmp_path))
    scaled = Scaled.from_pretrained(target.view().embedding.weight)
    ids = torch.tensor([3, 4])
    object.__setattr__(drafter.target, "embedding", scaled)
    assert torch.equal(drafter.embed(ids), scaled.weight[ids])


def test_a_small_budget_makes_a_small_block(target: Target, tmp_path: Path) -> None:
    drafter = bound_draft(target, write_draft(draft_config(target), tmp_path))
    session = session_with(drafter, features_of(drafter, 6))
    assert [len(session.propose(budget)) for budget in (1, 2, 4, 5, 99)] == [1, 2, 4, 4, 4]
    assert session.logits(3).shape == (2, 64)


def test_greedy_takes_the_argmax_and_no_distribution(target: Target, tmp_path: Path) -> None:
    drafter = bound_draft(target, write_draft(draft_config(target), tmp_path))
    session = session_with(drafter, features_of(drafter, 6))
    proposal = session.propose(9)
    assert proposal.probs is None
    assert torch.equal(proposal.tokens, session.logits(5).argmax(-1))


def test_it_draws_from_its_filtered_marginals(target: Target, tmp_path: Path) -> None:
    folder = write_draft(draft_config(target), tmp_path)
    drafter = bound_draft(target, folder)
    features = features_of(drafter, 6)
    sampling = Sampling(1.5, top_k=3)
    session = session_with(drafter, features, sampling=sampling)
    proposals: list[Proposal] = [session.propose(9) for _ in range(400)]
    want = probabilities(session.logits(5), sampling)
    assert all(torch.allclose(p.probs, want) for p in proposals if p.probs is not None)
    counts = torch.stack([torch.bincount(x, minlength=64) for x in
                          torch.stack([p.tokens for p in proposals]).T])  # fmt: skip
    assert (counts[want == 0] == 0).all()
    assert (counts / 400 - want).abs().max() < 0.1
    again = session_with(drafter, features, sampling=sampling).propose(9)
    assert torch.equal(again.tokens, proposals[0].tokens)
    other = [session_with(drafter, features, sampling=sampling, seed=s).propose(9) for s in (1, 2)]
    assert any(not torch.equal(p.tokens, proposals[0].tokens) for p in other)
    assert drafter.rule.name == "reject"


def test_without_sample_it_stays_one_hot(target: Target, tmp_path: Path) -> None:
    folder = write_draft(draft_config(target), tmp_path)
    drafter = bound_draft(target, folder, sample=False)
    session = session_with(drafter, features_of(drafter, 6), sampling=Sampling(1.0))
    proposal = session.propose(9)
    assert proposal.probs is None
    assert torch.equal(proposal.tokens, session.logits(5).argmax(-1))
    assert drafter.rule.name == "walk"


def test_rounds_work_in_place(target: Target, tmp_path: Path) -> None:
    drafter = bound_draft(target, write_draft(draft_config(target), tmp_path))
    session = session_with(drafter, features_of(drafter, 6))
    assert isinstance(session, DFlashSession)
    places = [buffer.data_ptr() for buffer in session.buffers()]
    assert len(places) == 2
    for _ in range(5):
        session.propose(9)
        session.commit(Commit((2, 3), features_of(drafter, 2)))
    assert places == [buffer.data_ptr() for buffer in session.buffers()]
    assert session.kv.length == 16


def test_joined_weights_are_held_once(target: Target, tmp_path: Path) -> None:
    model = bound_draft(target, write_draft(draft_config(target), tmp_path)).model
    for index, layer in enumerate(model.layers):
        weight = layer.self_attn.qkv_proj.weight
        assert weight.data_ptr() == model._stacked[index].data_ptr()


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_greedy_output_is_the_targets_own(data: st.DataObject) -> None:
    window = data.draw(st.sampled_from([None, 4, 9]), label="target window")
    target = tiny_target(layers=4, window=window, full_layers=2, seed=data.draw(st.integers(0, 3)))
    layers = data.draw(st.integers(1, 3), label="draft layers")
    choose = st.lists(st.sampled_from([None, 3, 8]), min_size=layers, max_size=layers)
    causal = data.draw(st.sampled_from([None, True, False]), label="is_causal")
    windows = data.draw(choose, label="draft windows")
    window = next((w for w in windows if w is not None), None)
    windows = [w and window for w in windows]
    config = draft_config(
        target,
        layers=layers,
        windows=tuple(windows),
        causal=tuple(w is not None if causal is None else causal for w in windows),
        block_size=data.draw(st.integers(2, 9), label="block"),
        target_layer_ids=tuple(data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=3))),
    )
    with tempfile.TemporaryDirectory() as folder:
        drafter = bound_draft(target, write_draft(config, Path(folder)))
    assert drafter.config == config
    prompt = data.draw(st.lists(st.integers(0, 63), min_size=1, max_size=20), label="prompt")
    assert_lossless(target, drafter, [prompt], data.draw(st.integers(1, 20), label="budget"))


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("sample", [True, False])
def test_contract(target: Target, tmp_path: Path, check: Check, sample: bool) -> None:
    folder = write_draft(draft_config(target), tmp_path)
    check(target, lambda: DFlash(DFlashOptions(model=str(folder), sample=sample)))


def test_candidates_are_its_best_tokens_and_draws(target: Target, tmp_path: Path) -> None:
    folder = write_draft(draft_config(target), tmp_path)
    drafter = bound_draft(target, folder, candidates=8, draft_temperature=3.0)
    assert (drafter.rule.name, drafter.width) == ("select", 8 * 4)
    session = session_with(drafter, features_of(drafter, 6), sampling=Sampling(1.0))
    proposal = session.propose(3)
    assert proposal.probs is None
    assert torch.equal(proposal.tokens[:3], session.logits(4).argmax(-1))
    leaves = (proposal.depths == 3).sum()
    assert 1 < leaves <= 8
    prompts = [[5, 6, 7], list(range(20, 31))]
    assert_lossless(target, drafter, prompts, 12)
    assert_lossless(target, drafter, prompts, 12, sampling=Sampling(1.0), seeds=(0, 1))


@pytest.mark.parametrize("options", [{}, {"sample": False}, {"candidates": 3}])
def test_adaptive_blocks_keep_the_output(
    target: Target, tmp_path: Path, options: dict[str, Any]
) -> None:
    folder = write_draft(draft_config(target), tmp_path)
    drafter = bound_draft(target, folder, adaptive=True, k_min=1, **options)
    (output,) = assert_lossless(target, drafter, [[3, 9, 12]], 30)
    assert {r.drafted for r in output.rounds} != {drafter.width}


def test_adaptive_lengths_follow_the_rule(tmp_path: Path) -> None:
    """Rounds of one session, the stop token being the draft's second one at first."""
    target = tiny_target(layers=5)
    folder = write_draft(draft_config(target), tmp_path)
    plain = bound_draft(target, folder)
    features = features_of(plain, 6)
    stop = int(session_with(plain, features).logits(5).argmax(-1)[1])
    target.model.generation_config.eos_token_id = stop
    drafter = bound_draft(target, folder, adaptive=True, k_min=1, sample=False)
    session, rule = session_with(drafter, features), AdaptiveLength(1, 4, 3)
    seen = []
    for accepted in (1, 0, 0, 2, 4):
        tokens = session.propose(30).tokens.tolist()
        seen.append((len(tokens), rule.length))
        rule.update(tokens.index(stop) if stop in tokens else len(tokens), accepted)
        features = features_of(drafter, accepted + 1, seed=accepted)
        session.commit(Commit((1,) * accepted + (7,), features, accepted))
    assert all(got == want for got, want in seen)
    assert seen[:2] == [(4, 4), (3, 3)]  # 1 generated, 1 accepted, halved: 0 + 3.


def test_adaptive_bounds_fit_the_block(target: Target, tmp_path: Path) -> None:
    folder = write_draft(draft_config(target), tmp_path)
    drafter = bound_draft(target, folder, adaptive=True)
    assert drafter.details["k_min"] == 3  # two thirds of 4
    assert "k_min" not in bound_draft(target, folder).details
    for k_min in (0, 5):
        with pytest.raises(UserError, match="1 to 4 tokens"):
            bound_draft(target, folder, adaptive=True, k_min=k_min)
