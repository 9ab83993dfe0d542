"""A diffusion model on its own: blocks, steps, samplers, and `specbench generate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from drafters.diffusion.generate import DiffusionGenerator
from drafters.diffusion.options import MULTI_BLOCK, SAMPLERS
from drafters.diffusion.sampling import ORDERS
from specbench import cli
from specbench.api import Sampling, Target, UserError
from specbench.drafting.generation import Filled, TextRequest
from specbench.inputs import chat
from specbench.testing import plain, tiny_target
from tests.helpers.diffusion_drafts import save_twin, tokenizer

PROMPT = [7, 3, 21, 40, 3]
MASK = 64
GREEDY = Sampling()


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(layers=2, context=64)


@pytest.fixture(scope="module")
def folder(target: Target, tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_twin(target, tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="module")
def full(folder: str) -> DiffusionGenerator:
    return load(folder)


@pytest.fixture(scope="module")
def causal(target: Target, tmp_path_factory: pytest.TempPathFactory) -> DiffusionGenerator:
    return load(save_twin(target, tmp_path_factory.mktemp("causal"), block_size=4))


def load(folder: str) -> DiffusionGenerator:
    found = DiffusionGenerator.load(folder, None, device=torch.device("cpu"), dtype=torch.float32)
    assert found is not None
    return found


def run(
    generator: DiffusionGenerator,
    length: int = 8,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    **options: Any,
) -> list[Filled]:
    request = TextRequest(length, generator.Options(**options), sampling, seed)
    return list(generator.steps(PROMPT, request))


def text(steps: list[tuple[list[int], list[int]]]) -> list[int]:
    pairs = [pair for slots, tokens in steps for pair in zip(slots, tokens, strict=True)]
    filled = dict(pairs)
    assert len(filled) == len(pairs), "a slot was filled twice"
    assert sorted(filled) == list(range(len(filled)))
    return [filled[i] for i in range(len(filled))]


def by_hand(generator: DiffusionGenerator, windows: list[range], counts: list[int]) -> list[int]:
    """Every slot of the text masked from the start, one window after the other."""
    ids = torch.tensor([*PROMPT, *[MASK] * windows[-1].stop])
    for window in windows:
        for count in counts:
            masked = [5 + i for i in window if ids[5 + i] == MASK]
            if not masked:
                break
            slots = torch.tensor(masked)
            probs = generator.model.predict(ids, slots).softmax(-1)
            best = probs.max(-1).values.argsort(descending=True)[:count]
            ids[slots[best]] = probs[best].argmax(-1)
    return ids[5:].tolist()


def test_without_blocks_any_slot_may_come_first(full: DiffusionGenerator) -> None:
    steps = run(full, steps=4)
    assert [len(slots) for slots, _ in steps] == [2, 2, 2, 2]
    assert text(steps) == by_hand(full, [range(8)], [2, 2, 2, 2])


def test_blocks_come_from_the_left_and_see_the_masks_behind_them(
    full: DiffusionGenerator,
) -> None:
    steps = run(full, steps=4, block=4)
    assert [set(slots) <= set(range(4)) for slots, _ in steps] == [True, True, False, False]
    assert text(steps) == by_hand(full, [range(4), range(4, 8)], [2, 2])


def test_a_block_causal_models_blocks_are_its_own(causal: DiffusionGenerator) -> None:
    """5 prompt tokens: blocks end at 8, 12 and 13, so the windows are 3, 4 and 1 slots."""
    steps = run(causal)
    assert text(steps) == by_hand(causal, [range(3), range(3, 7), range(7, 8)], [1] * 4)
    order = [slot for slots, _ in steps for slot in slots]
    assert sorted(order[:3]) == [0, 1, 2]
    assert sorted(order[3:7]) == [3, 4, 5, 6]


def test_every_sampler_is_an_option() -> None:
    assert set(SAMPLERS) == {*ORDERS, MULTI_BLOCK}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_fills_the_text(
    sampler: str, full: DiffusionGenerator, causal: DiffusionGenerator
) -> None:
    for generator in (full, causal):
        steps = run(generator, sampler=sampler, sampling=Sampling(1.0, top_k=8), seed=1)
        tokens = text(steps)
        assert len(tokens) == 8
        assert MASK not in tokens
        assert steps == run(generator, sampler=sampler, sampling=Sampling(1.0, top_k=8), seed=1)


def test_nothing_is_filled_behind_the_block_with_a_stop_token(
    full: DiffusionGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = text(run(full, block=2))
    monkeypatch.setattr(full, "stop_ids", frozenset({tokens[3]}))
    end = (tokens.index(tokens[3]) // 2 + 1) * 2
    assert text(run(full, block=2)) == tokens[:end]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sampler": "first_hitting", "steps": 3}, "8 steps, not 3"),
        ({"block": 2, "steps": 3}, "too few for 4 blocks"),
        ({"length": 60}, "5 tokens and 60 new ones"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    given: dict[str, Any], message: str, full: DiffusionGenerator
) -> None:
    with pytest.raises(UserError, match=message):
        run(full, **given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "best"}, "multi_block, not 'best'"),
        ({"sampler": "multi_block", "steps": 3}, "leave steps out"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"block": 0}, "block must be at least 1"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        DiffusionGenerator.Options(**options)


def test_a_block_causal_model_keeps_its_block(causal: DiffusionGenerator) -> None:
    with pytest.raises(UserError, match="in blocks of 4"):
        run(causal, block=8)


def test_an_autoregressive_folder_is_not_taken(target: Target, tmp_path: Path) -> None:
    target.model.save_pretrained(tmp_path)
    device, dtype = torch.device("cpu"), torch.float32
    assert DiffusionGenerator.load(str(tmp_path), None, device=device, dtype=dtype) is None


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["specbench", "generate", "--device", "cpu", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code in (0, 2)


def test_the_command_shows_the_steps_of_a_diffusion_model(
    folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ("--model", folder, "--prompt", "w7 w3 w21 w40 w3", "--length", "6")
    command(monkeypatch, *asked)
    assert "name a model that has its with --tokenizer" in capsys.readouterr().err
    tokenizer([f"w{i}" for i in range(64)]).save_pretrained(tmp_path)
    command(monkeypatch, *asked, "--tokenizer", str(tmp_path), "--set", "steps=3", "--trace")
    out, err = capsys.readouterr()
    *trace, said = out.splitlines()
    assert [line.count("·") for line in trace] == [4, 2, 0]
    assert "6 tokens, 3 steps" in err
    assert sorted(err.splitlines()[-1].split()) == ["1", "1", "2", "2", "3", "3"]
    monkeypatch.undo()
    filled = text(run(load(folder), 6, steps=3))
    assert said == " ".join(f"w{token}" for token in filled)


def test_the_command_decodes_an_autoregressive_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = Target.load("tiny-target")
    prompt = chat.encode(target.tokenizer, [{"role": "user", "content": "hi"}], "off")
    asked = ("--model", "tiny-target", "--prompt", "hi")
    command(monkeypatch, *asked, "--length", "5")
    out, err = capsys.readouterr()
    assert out == target.tokenizer.decode(plain(target, prompt, 5).tokens) + "\n"
    assert err.splitlines()[-1] == "1 2 3 4 5"
    command(monkeypatch, *asked, "--set", "steps=3")
    assert "'tiny-target' has no option 'steps'; its options are: none" in capsys.readouterr().err
    command(monkeypatch, *asked, "--set", "steps")
    assert "--set steps must look like key=value" in capsys.readouterr().err
