"""Recorded runs of the published EAGLE modules, repeated with our loader, drafters and loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from drafters.eagle import draft
from drafters.eagle.options import Eagle2Options, Eagle3Options
from drafters.eagle.session import EagleSession
from specbench.api import Drafter, Proposal, Request, Sampling, Target
from specbench.core import rules
from specbench.core.decode import generate
from specbench.core.verifier import Verifier

HERE = Path(__file__).parent / "eagle"
BONUS = 0.5


def part(arrays: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Select the arrays whose names begin with ``prefix``, and remove the prefix."""
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def test_a_part_of_a_recording_holds_no_other_level() -> None:
    assert part({"lvl1_in": 1, "lvl10_in": 2}, "lvl1_") == {"in": 1}
    assert part({"lvl1_in": 1, "lvl10_in": 2}, "lvl10_") == {"in": 2}


ATOL = 1e-4


def tree_of(kind: type[Any], options: type[Any], **shape: int) -> Callable[[], Drafter]:
    version = "eagle3" if kind.version == 3 else "eagle1"
    return lambda: kind(options(model=str(HERE / version), **shape))


CASES: dict[str, Callable[[], Drafter]] = {
    "eagle3_tree_k4_d3_t16": tree_of(
        draft.Eagle3, Eagle3Options, top_k=4, depth=3, total_tokens=16
    ),
    "eagle3_tree_k10_d5_t60": tree_of(
        draft.Eagle3, Eagle3Options, top_k=10, depth=5, total_tokens=60
    ),
    "eagle3_chain_d6_t8": tree_of(draft.Eagle3, Eagle3Options, top_k=1, depth=6, total_tokens=8),
    "eagle1_tree_k4_d3_t16": tree_of(
        draft.Eagle2, Eagle2Options, top_k=4, depth=3, total_tokens=16
    ),
}


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load(str(HERE / "target"))


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Drafter, dict[str, Any]]:
    arrays = dict(np.load(HERE / f"{request.param}.npz"))
    return CASES[request.param](), arrays


class Watched:
    """A session that keeps the inputs and outputs of its forwards."""

    def __init__(self, session: EagleSession) -> None:
        self.session = session
        self.calls: list[dict[str, Any]] = []
        step, logits = session._step, session._logits

        def kept_step(
            ids: Tensor, known: Tensor, positions: slice, rows: slice, mask: Tensor | None
        ) -> Tensor:
            out = step(ids, known, positions, rows, mask)
            self.calls.append(
                {
                    "ids": ids,
                    "known": known,
                    "positions": positions,
                    "rows": rows,
                    "mask": None if mask is None else mask.clone(),
                }
                | {"out": out}
            )
            return out

        def kept_logits() -> Tensor:
            out = logits()
            self.calls[-1]["logits"] = out
            return out

        session._step = kept_step  # type: ignore[method-assign]
        session._logits = kept_logits  # type: ignore[method-assign]


def same(got: Tensor, want: np.ndarray) -> None:
    torch.testing.assert_close(got, torch.from_numpy(want), rtol=0, atol=ATOL)


def drive(target: Target, drafter: Drafter, arrays: dict[str, Any]) -> None:
    """Compare each round: the draft's forwards, the tree and the accepted tokens."""
    drafter.bind(target.view())
    prompt, want = arrays["prompt"].tolist(), arrays["output_ids"].tolist()
    verifier = Verifier(
        target, Sampling(), 0, len(prompt), len(want) + 20, drafter.width, drafter.taps
    )
    session = drafter.open(Request(capacity=verifier.capacity))
    assert isinstance(session, EagleSession)
    watched = Watched(session)
    commit = verifier.prefill(prompt)
    text = list(commit.tokens)
    accepted = []
    for index in range(int(arrays["num_rounds"])):
        watched.calls.clear()
        session.commit(commit)
        assert session.kv.length == len(text) - 1
        proposal = session.propose(1000)
        if index < int(arrays["n_rounds_recorded"]):
            recorded = part(arrays, f"r{index}_")
            assert text == recorded["context_ids"].tolist()
            check_catch_up(watched.calls[0], commit.features, recorded)
            check_levels(watched.calls[1:], session.kv.length, recorded)
            check_tree(proposal, text[-1], session.kv.length, recorded)
        commit = verifier.verify(proposal)
        accepted.append(commit.accepted)
        text += commit.tokens
    assert accepted == arrays["accept_lengths"].tolist()
    # The recording ends before the newest token is committed.
    assert text[:-1] == want == arrays["plain_greedy_ids"].tolist()


def check_catch_up(call: dict[str, Any], features: Tensor | None, want: dict[str, Any]) -> None:
    assert features is not None
    if want["root_in_features"].shape[1] == features.shape[1] * features.shape[2]:
        if features.shape[1] > 1:
            same(features.flatten(1), want["root_in_features"])
        else:
            same(call["known"], want["root_in_features"])
    assert call["ids"].tolist() == want["root_in_ids"].tolist()
    positions = range(call["positions"].start, call["positions"].stop)
    assert list(positions) == want["root_positions"].tolist()
    assert call["rows"].start == int(want["root_past_len"])
    assert call["rows"].stop == int(want["draft_kv_len_committed"])
    same(call["out"][-1], want["root_out_hidden_last"])
    same(call["logits"][0], want["root_logits"])


def check_levels(calls: list[dict[str, Any]], length: int, want: dict[str, Any]) -> None:
    levels = sum(name.startswith("lvl") and name.endswith("_in_ids") for name in want)
    assert len(calls) == levels
    for level, call in enumerate(calls):
        of = part(want, f"lvl{level}_")
        assert call["ids"].tolist() == of["in_ids"].tolist()
        assert {call["positions"].start} == set(of["positions"].tolist())
        assert call["positions"].stop == call["positions"].start + 1
        assert call["rows"].start == int(of["past_len"])
        if call["mask"] is None:
            assert of["mask"].all()
        else:
            # The two query heads of a group have the same mask.
            for seen in call["mask"].chunk(2):
                assert bool(seen[:, :length].all())
                assert seen[:, length:].tolist() == of["mask"].tolist()
        if "in_hidden" in of:
            same(call["known"], of["in_hidden"])
        same(call["out"], of["out_hidden"])
        same(call["logits"], of["logits"])


def check_tree(proposal: Proposal, root: int, length: int, want: dict[str, Any]) -> None:
    assert [root, *proposal.tokens.tolist()] == want["draft_tokens"].tolist()
    # The recording counts the root as node 0 and gives it the parent -1.
    assert [-1, *(proposal.parents + 1).tolist()] == want["tree_parents"].tolist()
    assert proposal.depths.tolist() == want["tree_depths"].tolist()
    assert (proposal.depths + length).tolist() == want["verify_position_ids"].tolist()
    assert proposal.ancestors.tolist() == want["tree_mask"].astype(bool).tolist()


def test_every_round(target: Target, case: tuple[Drafter, dict[str, Any]]) -> None:
    drive(target, *case)


def test_through_the_loop(target: Target, case: tuple[Drafter, dict[str, Any]]) -> None:
    """Compare the counts of the whole run, up to the recording's last token."""
    drafter, arrays = case
    drafter.bind(target.view())
    prompt, want = arrays["prompt"].tolist(), arrays["output_ids"].tolist()
    output = generate(target, drafter, prompt, len(want) - len(prompt), stop_ids=frozenset())
    assert prompt + list(output.tokens) == want
    rounds = output.rounds[: int(arrays["num_rounds"]) - 1]
    assert [r.accepted for r in rounds] == arrays["accept_lengths"].tolist()[: len(rounds)]
    assert arrays["accept_lengths"].mean() + 1 == pytest.approx(float(arrays["tau"]))


SAMPLING = dict(np.load(HERE / "sampling_verify_k4_d3_t16.npz"))
VERDICTS = [part(SAMPLING, f"c{i}_") for i in range(16)]


@pytest.mark.parametrize("want", VERDICTS, ids=range(16))
def test_sampling_verdicts(want: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Siblings are one-hot, tried in order of their scores with the recorded uniforms."""
    mask = torch.from_numpy(want["tree_mask"]).bool()
    above = mask & ~torch.eye(len(mask), dtype=torch.bool)
    # The parent is the last ancestor, because a parent comes before its children.
    parents = torch.tensor([max(row.nonzero().flatten().tolist()) for row in above[1:]]) - 1
    proposal = Proposal(torch.from_numpy(want["draft_tokens"])[1:], parents)
    given = want["uniforms"].tolist()
    drawn_from: list[Tensor] = []

    def recorded(count: int, like: Tensor, generator: torch.Generator) -> Tensor:
        """Return the recorded uniforms, one for the bonus, and NaN after them."""
        rest = [math.nan] * (count - len(given) - 1)
        return torch.tensor([*given, BONUS, *rest], dtype=torch.float64)

    def kept_draw(p: Tensor, u: Tensor) -> Tensor:
        drawn_from.append(p)
        assert u == BONUS, "the number of uniforms used differs from the recording"
        return p.argmax()

    monkeypatch.setattr(rules, "_uniform", recorded)
    monkeypatch.setattr(rules, "draw", kept_draw)
    kept = rules.reject(
        proposal,
        torch.from_numpy(want["node_logits"]),
        Sampling(float(want["temperature"])),
        torch.empty(0),
        torch.Generator(),
    )
    assert len(given) == int(want["num_uniforms_used"])
    assert len(kept.path) == int(want["accept_length"])
    path = want["retrieve_indices"][int(want["best_candidate"])]
    assert [0, *(node + 1 for node in kept.path)] == path[: len(kept.path) + 1].tolist()
    assert [0, *(node + 1 for node in kept.path)] == want["accepted_node_path"].tolist()
    residual = torch.from_numpy(want["residual_probs"])
    torch.testing.assert_close(drawn_from[0], residual, rtol=0, atol=1e-6)
