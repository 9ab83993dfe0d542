"""DiffuSpec's session: what it drafts, how long, and that the output stays the target's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

from drafters.diffusion.model import DiffusionModel
from drafters.diffuspec.draft import DiffuSpec
from drafters.diffuspec.options import STOP_RULES, DiffuSpecOptions
from specbench.api import AdaptiveLength, Commit, Request, Sampling, Target, UserError
from specbench.core.decode import generate
from specbench.inputs.options import parse_options
from specbench.testing import CONTRACT, Check, assert_lossless, tiny_target
from specbench.testing.contract import sessions_are_independent
from tests.helpers.diffusion_drafts import save_twin
from tests.helpers.diffuspec_scorers import save_scorer

PROMPT = [7, 3, 21, 40, 3]
STOP = 11


@dataclass(frozen=True)
class Files:
    """Folders of a target's drafts and scorers."""

    target: Target
    model: str
    blocks: str
    ngram: str
    lm: str


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    target = tiny_target(layers=2, context=64)
    target.config.eos_token_id = STOP
    root: Path = tmp_path_factory.mktemp("diffuspec")
    target.model.save_pretrained(root / "lm")
    return Files(
        target,
        save_twin(target, root / "model"),
        save_twin(target, root / "blocks", block_size=4),
        save_scorer(root / "ngram", target.vocab_size),
        str(root / "lm"),
    )


def options_of(files: Files, **changes: Any) -> DiffuSpecOptions:
    small = {"k_min": 2, "k_max": 6, "delta": 3, "tokens": 5}
    given = {"model": files.model, "scorer": files.ngram} | small | changes
    return DiffuSpecOptions(**given)


def bound(files: Files, **changes: Any) -> DiffuSpec:
    drafter = DiffuSpec(options_of(files, **changes))
    drafter.bind(files.target.view())
    return drafter


def opened(drafter: DiffuSpec, **request: Any) -> Any:
    session = drafter.open(Request(capacity=60, **request))
    session.commit(Commit(tuple(PROMPT), None))
    return session


SWITCHES: dict[str, dict[str, Any]] = {
    "default": {},
    "no search": {"search": False},
    "fixed length": {"adaptive": False},
    "neither": {"search": False, "adaptive": False},
    "three steps": {"steps": 3},
    "three steps, no search": {"steps": 3, "search": False},
    "causal prefix": {"cache": "prefix_causal"},
    "wide": {"beam": 9, "mass": 1.0, "max_candidates": 30},
    "diffusion alone": {"weight": 1.0},
    "scorer alone": {"weight": 0.0},
    "candidates": {"candidates": 3},
    "candidates, no search": {"candidates": 3, "search": False, "steps": 2},
    **{rule: {"stop_rule": rule} for rule in STOP_RULES if rule != "first-raw"},
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_the_output_is_the_targets(files: Files, switch: str) -> None:
    drafter = bound(files, **SWITCHES[switch])
    assert_lossless(files.target, drafter, [PROMPT], 24, stop_ids=frozenset({STOP}))
    assert_lossless(files.target, drafter, [PROMPT], 16, sampling=Sampling(1.0), seeds=(1,))


def test_the_output_is_the_targets_with_finished_blocks_kept(files: Files) -> None:
    drafter = bound(files, model=files.blocks, cache="block")
    assert_lossless(files.target, drafter, [PROMPT], 24)


def test_the_output_is_the_targets_with_a_causal_lm_as_scorer(files: Files) -> None:
    drafter = bound(files, scorer=files.lm)
    (output,) = assert_lossless(files.target, drafter, [PROMPT], 24)
    # The scorer is the target itself, so its favourites among the candidates are kept now and then.
    assert sum(r.accepted for r in output.rounds) > 0


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_contract(files: Files, check: Check) -> None:
    check(files.target, lambda: DiffuSpec(options_of(files)))


def test_sessions_with_a_causal_lm_are_independent(files: Files) -> None:
    sessions_are_independent(
        files.target, lambda: DiffuSpec(options_of(files, scorer=files.lm, steps=2))
    )


@pytest.mark.parametrize(
    "switch", [*STOP_RULES, "no search", "three steps, no search", "candidates"]
)
def test_a_draft_that_is_not_a_number_is_refused(files: Files, switch: str) -> None:
    drafter = bound(files, **SWITCHES.get(switch, {}))
    drafter.model.decoder.lm_head.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="the draft's logits are NaN or infinite"):
        generate(files.target, drafter, PROMPT, 8)


def raw_draft(drafter: DiffuSpec, tokens: list[int], count: int) -> list[int]:
    """The most likely tokens of one plain pass over prefix and masks."""
    masks = [drafter.model.mask_id] * count
    slots = torch.arange(len(tokens), len(tokens) + count)
    logits = drafter.model.predict(torch.tensor(tokens + masks), slots)
    return drafter.vocabulary.logits(logits).argmax(-1).tolist()


def test_without_search_the_draft_is_the_argmax_of_one_pass(files: Files) -> None:
    drafter = bound(files, search=False)
    session = opened(drafter)
    assert session.propose(9).tokens.tolist() == raw_draft(drafter, PROMPT, 6)
    assert session.propose(4).tokens.tolist() == raw_draft(drafter, PROMPT, 4)
    assert session.propose(4).probs is None
    assert drafter.rule.name == "walk"


def test_search_with_one_candidate_each_is_the_argmax_to_its_stop(files: Files) -> None:
    raw = raw_draft(bound(files), PROMPT, 6)
    assert STOP in raw, "the random model was chosen so that it drafts one"
    session = opened(bound(files, max_candidates=1))
    assert session.propose(9).tokens.tolist() == raw[: raw.index(STOP) + 1]
    assert session.propose(2).tokens.tolist() == raw_draft(bound(files), PROMPT, 2)


def test_the_search_changes_the_draft_and_repeats_itself(files: Files) -> None:
    drafter = bound(files, weight=0.1)
    first, again = (opened(drafter).propose(9).tokens.tolist() for _ in range(2))
    assert first == again
    raw = raw_draft(drafter, PROMPT, 6)
    assert first != raw[: len(first)]


@pytest.mark.parametrize("search", [True, False])
def test_lengths_follow_the_adaptive_rule(
    files: Files, search: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The raw draft's third token is the stop token at first, so 2 tokens were generated."""
    target = tiny_target(layers=2, context=64)
    target.config.eos_token_id = raw_draft(bound(files), PROMPT, 6)[2]
    save = {"model": files.model, "scorer": files.ngram, "search": search}
    drafter = DiffuSpec(DiffuSpecOptions(**save, k_min=2, k_max=6, delta=3))  # type: ignore[arg-type]
    # The twin names no stop of its own, so it is told here.
    load = DiffusionModel.load

    def with_stop(*args: Any, **kwargs: Any) -> Any:
        model = load(*args, **kwargs)
        model.stop_ids = frozenset({target.config.eos_token_id})
        return model

    monkeypatch.setattr(DiffusionModel, "load", with_stop)
    drafter.bind(target.view())
    session, tokens = opened(drafter), list(PROMPT)
    rule = AdaptiveLength(2, 6, 3)
    lengths = []
    for accepted in (2, 0, 3, 1, 4, 0):
        count = len(session.propose(40))
        raw = raw_draft(drafter, tokens, rule.length)
        stop = target.config.eos_token_id
        generated = raw.index(stop) if stop in raw else len(raw)
        if not search:
            assert count == rule.length
        lengths.append(rule.length)
        new = [13] * (accepted + 1)
        session.commit(Commit(tuple(new), None, accepted))
        tokens += new
        rule.update(generated, accepted)
    assert lengths[0] == 6
    assert lengths[1] == 4  # 2 generated and 2 accepted, halved: 1 + 3.
    assert len(set(lengths)) > 2


def test_the_path_is_the_first_of_its_candidates(files: Files) -> None:
    path = opened(bound(files)).propose(9)
    drafter = bound(files, candidates=5, draft_temperature=3.0)
    assert (drafter.rule.name, drafter.width) == ("select", 5 * 6)
    several = opened(drafter).propose(9)
    assert torch.equal(several.tokens[: len(path)], path.tokens)
    assert torch.equal(several.parents[: len(path)], path.parents)
    assert len(path) < len(several) <= 5 * len(path)
    assert int(several.depths.max()) == len(path)


def test_a_fixed_length_stays(files: Files) -> None:
    session = opened(bound(files, adaptive=False, search=False))
    for accepted in (0, 2, 5):
        assert len(session.propose(40)) == 5
        session.commit(Commit((13,) * (accepted + 1), None, accepted))


def test_a_later_step_sees_what_an_earlier_one_filled(files: Files) -> None:
    """Two steps by hand: the surest half of one pass, then the rest given those."""
    drafter = bound(files, steps=2, search=False, adaptive=False, tokens=4)
    masks = [drafter.model.mask_id] * 4
    slots = torch.arange(len(PROMPT), len(PROMPT) + 4)
    logits = drafter.model.predict(torch.tensor(PROMPT + masks), slots)
    surest = logits.softmax(-1).amax(-1).topk(2).indices.tolist()
    block = [int(logits[i].argmax()) if i in surest else mask for i, mask in enumerate(masks)]
    later = drafter.model.predict(torch.tensor(PROMPT + block), slots).argmax(-1).tolist()
    want = [block[i] if i in surest else later[i] for i in range(4)]
    assert opened(drafter).propose(9).tokens.tolist() == want


class Recorder:
    """The phases entered, each with those around it."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.seen: set[tuple[str, ...]] = set()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.open.append(name)
        self.seen.add(tuple(self.open))
        yield
        self.open.pop()


def test_the_search_is_a_phase_of_its_own(files: Files) -> None:
    probe = Recorder()
    opened(bound(files), probe=probe).propose(9)
    assert probe.seen == {("search",)}
    plain = Recorder()
    opened(bound(files, search=False), probe=plain).propose(9)
    assert plain.seen == set()


def test_a_full_context_drafts_nothing(files: Files) -> None:
    drafter = bound(files)
    session = drafter.open(Request(capacity=200))
    session.commit(Commit(tuple(range(60)), None))
    assert len(session.propose(9)) <= 4
    session.commit(Commit(tuple(range(30)), None, 2))
    assert len(session.propose(9)) == 0
    session.commit(Commit((1,), None))
    assert len(session.propose(9)) == 0


def test_options_are_checked(files: Files) -> None:
    for text in ({"beam": "0"}, {"stop_rule": "first"}, {"k_min": "40"}, {"mass": "0"},
                 {"weight": "2"}, {"cache": "all"}):  # fmt: skip
        with pytest.raises(UserError, match=next(iter(text))):
            parse_options("diffuspec", DiffuSpecOptions, text | {"model": "m"})


def test_the_record_says_what_ran(files: Files) -> None:
    details = bound(files, cache="prefix_causal").details
    assert details == {
        "family": "converted",
        "approximate": True,
        "shared_vocabulary": 1.0,
        "scorer": "3-gram",
        "scorer_sha256": sha256((Path(files.ngram) / "ngram.arpa").read_bytes()).hexdigest(),
    }
    nothing = bound(files, search=False).details
    assert (nothing["scorer"], nothing["scorer_sha256"]) == (None, None)


def test_a_stop_token_in_the_answer_ends_it(files: Files) -> None:
    text = generate(files.target, bound(files), PROMPT, 20, stop_ids=frozenset()).tokens
    stops = frozenset({text[6]})
    output = generate(files.target, bound(files), PROMPT, 20, stop_ids=stops)
    assert output.tokens == text[: text.index(text[6]) + 1]
