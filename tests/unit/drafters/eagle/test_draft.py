"""EAGLE drafters on random tiny targets: lossless at any setting, caches, counts, refusals."""

from __future__ import annotations

import itertools
import tomllib
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

from drafters.eagle import draft, tree
from drafters.eagle.base import Eagle
from drafters.eagle.session import EagleSession
from specbench import zoo
from specbench.api import Drafter, Request, Sampling, Target, UserError, probabilities
from specbench.core.decode import generate
from specbench.core.verifier import Verifier
from specbench.testing import CONTRACT, Check, assert_lossless, random_prompts, tiny_target
from tests.helpers.eagle_drafts import bound, eagle1_config, eagle3_config, write_head

KINDS: dict[str, type[Eagle]] = {
    kind.name: kind for kind in (draft.Eagle3, draft.Eagle2, draft.Eagle1)
}
PRESETS: dict[str, tuple[type[Eagle], dict[str, Any]]] = {
    name: (kind, {}) for name, kind in KINDS.items()
} | {
    preset["name"]: (KINDS[preset["drafter"]], preset["options"])
    for preset in tomllib.loads(
        files("drafters.eagle").joinpath("presets.toml").read_text("utf-8")
    )["preset"]
}


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(layers=2, context=64)


@pytest.fixture(scope="module")
def heads(target: Target, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A head of each version."""
    return {
        3: write_head(eagle3_config(target), tmp_path_factory.mktemp("eagle3")),
        1: write_head(eagle1_config(target), tmp_path_factory.mktemp("eagle1")),
    }


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", PRESETS)
def test_contract(name: str, check: Check, target: Target, heads: dict[int, Path]) -> None:
    kind, options = PRESETS[name]
    check(target, lambda: kind(kind.Options(model=str(heads[kind.version]), **options)))


@pytest.mark.parametrize("name", PRESETS)
def test_cache_holds_the_committed_tokens_after_every_round(
    name: str, target: Target, heads: dict[int, Path]
) -> None:
    kind, options = PRESETS[name]
    drafter = bound(kind, target, heads[kind.version], **options)
    (prompt,) = random_prompts(target.vocab_size, (9,))
    sampling = Sampling(1.0)
    verifier = Verifier(target, sampling, 0, len(prompt), 30, drafter.width, drafter.taps)
    session = drafter.open(Request(sampling, 0, verifier.capacity))
    commit = verifier.prefill(prompt)
    committed = 0
    for _ in range(6):
        session.commit(commit)
        committed += len(commit.tokens)
        assert session.kv.length == committed - 1 == verifier.cache.length
        commit = verifier.verify(session.propose(30))
        assert session.kv.length == committed - 1


@pytest.mark.parametrize(
    ("options", "drafted", "levels"),
    [
        ({"depth": 0, "top_k": 4, "total_tokens": 60}, 4, 1),
        ({"depth": 1, "top_k": 3, "total_tokens": 60}, 12, 2),
        ({"depth": 2, "top_k": 2, "total_tokens": 2}, 1, 1),
        ({"depth": 0, "top_k": 1, "total_tokens": 60}, 1, 1),
        ({"depth": 3, "top_k": 1, "total_tokens": 3}, 2, 2),
        ({"depth": 9, "top_k": 1, "total_tokens": 60}, 10, 10),
    ],
)
def test_drafted_is_the_total_clamped_to_the_pool(
    options: dict[str, int], drafted: int, levels: int, target: Target, heads: dict[int, Path]
) -> None:
    drafter = bound(draft.Eagle3, target, heads[3], **options)
    session, _ = opened(target, drafter)
    proposal = session.propose(50)
    assert len(proposal) == drafter.width == drafted
    assert int(proposal.depths.max()) == levels == drafter.details["levels"]
    assert proposal.is_chain == (options["top_k"] == 1)
    assert_lossless(target, drafter, random_prompts(target.vocab_size), 12)


def opened(
    target: Target, drafter: Drafter, length: int = 9, seed: int = 0
) -> tuple[EagleSession, Verifier]:
    (prompt,) = random_prompts(target.vocab_size, (length,), seed)
    verifier = Verifier(target, Sampling(), 0, length, 50, drafter.width, drafter.taps)
    session = drafter.open(Request(capacity=verifier.capacity))
    assert isinstance(session, EagleSession)
    session.commit(verifier.prefill(prompt))
    return session, verifier


@pytest.mark.parametrize("seed", range(3))
def test_catching_up_in_rounds_equals_one_pass(
    seed: int, target: Target, heads: dict[int, Path]
) -> None:
    """What is kept of a draft is made again from target features: nothing of it stays behind."""
    drafter = bound(draft.Eagle3, target, heads[3], top_k=4, depth=3, total_tokens=20)
    session, verifier = opened(target, drafter, 9, seed)
    (text,) = random_prompts(target.vocab_size, (9,), seed)
    for _ in range(4):
        commit = verifier.verify(session.propose(50))
        session.commit(commit)
        text = text + list(commit.tokens)
    # The prefill's own token follows the prompt.
    output = generate(target, drafter, text[:9], 30)
    whole = text[:9] + list(output.tokens)
    fresh_verifier = Verifier(target, Sampling(), 0, session.kv.length, 50, 0, drafter.taps)
    fresh = drafter.open(Request(capacity=verifier.capacity))
    fresh.commit(fresh_verifier.prefill(whole[: session.kv.length]))
    assert fresh.kv.length == session.kv.length
    torch.testing.assert_close(session._outputs, fresh._outputs, rtol=0, atol=1e-4)
    rows = slice(0, session.kv.length)
    torch.testing.assert_close(session.kv.keys[:, :, rows], fresh.kv.keys[:, :, rows],
                               rtol=0, atol=1e-4)  # fmt: skip


LAW = {
    "eagle3": (draft.Eagle3, {"top_k": 2, "depth": 1, "total_tokens": 5}),
    "eagle3 chain": (draft.Eagle3, {"top_k": 1, "depth": 1, "total_tokens": 3}),
    "eagle1": (draft.Eagle1, {}),
}
SAID = 3
RUNS = 200


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("name", LAW)
def test_committed_tokens_follow_the_target(name: str, temperature: float, tmp_path: Path) -> None:
    """Chi-square of the first tokens over many seeds against the target's own law."""
    small = tiny_target(layers=2, vocabulary=6, context=32)
    kind, options = LAW[name]
    config = eagle3_config(small) if kind.version == 3 else eagle1_config(small)
    drafter = bound(kind, small, write_head(config, tmp_path), **options)
    sampling = Sampling(temperature)
    prompt = [1, 2, 3]
    law = joint(small, prompt, sampling)
    outputs = [
        generate(small, drafter, prompt, SAID, stop_ids=frozenset(), sampling=sampling, seed=seed)
        for seed in range(RUNS)
    ]
    assert any(r.accepted for output in outputs for r in output.rounds)
    counts = Counter(output.tokens for output in outputs)
    common = [text for text, p in law.items() if p * RUNS >= 5]
    seen = [counts[text] for text in common]
    due = [law[text] * RUNS for text in common]
    seen.append(RUNS - sum(seen))
    due.append(RUNS - sum(due))
    assert stats.chisquare(seen, due).pvalue > 1e-3


def joint(target: Target, prompt: list[int], sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The target's law of the first `SAID` tokens."""
    texts = list(itertools.product(range(target.vocab_size), repeat=SAID))
    ids = torch.tensor([prompt + list(text) for text in texts])
    with torch.inference_mode():
        logits = target.model(ids, use_cache=False).logits[:, len(prompt) - 1 : -1]
    probs = probabilities(logits, sampling).double()
    said = torch.tensor(texts)
    joint = probs.gather(2, said[..., None])[..., 0].prod(1)
    return dict(zip(texts, (joint / joint.sum()).tolist(), strict=True))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["eagle3", "eagle3-chain8", "eagle2", "eagle1"])
def test_a_draft_that_is_not_a_number_is_refused(
    name: str, temperature: float, target: Target, heads: dict[int, Path]
) -> None:
    kind, options = PRESETS[name]
    drafter = bound(kind, target, heads[kind.version], **options)
    drafter.model.fc.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="the draft's logits are NaN or infinite"):
        generate(target, drafter, [7, 3, 21], 8, sampling=Sampling(temperature))


@pytest.mark.parametrize(
    ("name", "version", "options", "message"),
    [
        ("eagle3", 1, {}, "take the drafter eagle2 or eagle1"),
        ("eagle1", 3, {}, "take the drafter eagle3"),
        ("eagle3", 3, {"top_k": 33}, "the draft knows 32 tokens only"),
        ("eagle3", 3, {"top_k": 0}, "top_k >= 1"),
        ("eagle2", 1, {"depth": -1}, "depth >= 0"),
        ("eagle3-chain8", 3, {"total_tokens": 1}, "total_tokens >= 2"),
    ],
)
def test_refusals(
    name: str,
    version: int,
    options: dict[str, Any],
    message: str,
    target: Target,
    heads: dict[int, Path],
) -> None:
    kind, preset = PRESETS[name]
    with pytest.raises((UserError, ValueError), match=message):
        bound(kind, target, heads[version], **(preset | options))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 66, "draft_vocab_size": 33}, "made for 66 token ids, not 64"),
        ({"target_hidden": 16}, "features are 16 wide, not 32"),
        ({"layer_ids": (0, 1, 3)}, r"boundaries \[0, 1, 3\]; a target of 2 layers"),
        ({"layer_ids": None}, r"at its default layers"),
        ({"hidden": 24, "heads": 3, "kv_heads": 1}, "24 wide and brings no embedding"),
    ],
)
def test_a_draft_for_another_target(
    change: dict[str, Any], message: str, target: Target, tmp_path: Path
) -> None:
    folder = write_head(eagle3_config(target, **change), tmp_path)
    with pytest.raises(UserError, match=message):
        bound(draft.Eagle3, target, folder)


def test_presets_say_what_they_are(target: Target, heads: dict[int, Path]) -> None:
    shapes = {
        name: bound(kind, target, heads[kind.version], **options).details
        for name, (kind, options) in PRESETS.items()
    }
    settled = {name: (d["levels"], d["drafted"]) for name, d in shapes.items()}
    assert settled == {
        "eagle3": (8, 59),
        "eagle3-tree16": (8, 15),
        "eagle3-chain16": (15, 15),
        "eagle3-chain8": (7, 7),
        "eagle2": (6, 59),
        "eagle1": (5, 25),
    }
    assert shapes["eagle3"]["boundaries"] == [0, 1, 2]
    assert shapes["eagle1"]["boundaries"] == [2]


PUBLISHED_PATHS = """
0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001
"""


def test_the_fixed_tree_is_the_published_one() -> None:
    """The published list of paths, by the rank of the child at every node."""
    paths = [""]
    for level, parent in enumerate(levels_of(tree.fixed_parents())):
        ranks: Counter[int] = Counter()
        for node in parent:
            paths.append(paths[node + 1] + str(ranks[node]))
            ranks[node] += 1
        assert {len(path) for path in paths[-len(parent) :]} == {level + 1}
    assert paths[1:] == PUBLISHED_PATHS.split()


def levels_of(parents: list[int]) -> list[list[int]]:
    sizes = [sum(counts) for counts in tree.FIXED_TREE]
    ends = list(itertools.accumulate(sizes))
    return [parents[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def test_siblings_of_eagle1_are_drawn_anew_for_another_seed(
    target: Target, heads: dict[int, Path]
) -> None:
    drafter = bound(draft.Eagle1, target, heads[1])
    (prompt,) = random_prompts(target.vocab_size, (9,))

    def tokens(seed: int, sampling: Sampling) -> list[int]:
        verifier = Verifier(target, sampling, 0, 9, 50, drafter.width, drafter.taps)
        session = drafter.open(Request(sampling, seed, verifier.capacity))
        session.commit(verifier.prefill(prompt))
        proposal = session.propose(50)
        assert (proposal.probs is None) == sampling.greedy
        return proposal.tokens.tolist()  # type: ignore[no-any-return]

    hot = Sampling(1.0)
    assert tokens(0, hot) == tokens(0, hot) != tokens(1, hot)
    assert tokens(0, Sampling()) == tokens(1, Sampling())


@pytest.mark.parametrize("name", PRESETS)
def test_greedy_text_of_the_embedded_target(name: str, tmp_path: Path) -> None:
    """A trained target, an untrained head: nothing but the target decides what is said."""
    trained = Target.load(zoo.resolve("tiny-target"))
    kind, options = PRESETS[name]
    make = eagle3_config if kind.version == 3 else eagle1_config
    changes = {"layer_ids": None} if kind.version == 3 else {}
    drafter = bound(kind, trained, write_head(make(trained, **changes), tmp_path), **options)
    assert_lossless(trained, drafter, random_prompts(trained.vocab_size, (12,)), 20)
