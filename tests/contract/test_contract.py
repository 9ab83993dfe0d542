"""Our drafters pass the contract kit on every kind of target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from drafters.draft_model.draft import DraftModel
from drafters.prompt_lookup.draft import PromptLookup
from specbench.api import Autoregressive, Drafter, Target
from specbench.testing import CONTRACT, Check, ScriptedDrafter, ScriptedOptions, tiny_target

TARGETS = {"llama": {"family": "llama"}, "qwen3": {"window": 6, "full_layers": 1}}


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    return tiny_target(layers=2, context=64, **TARGETS[request.param])


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a one-layer draft of the target's shape, which sometimes agrees with the target."""
    folder = tmp_path_factory.mktemp("draft")
    tiny_target(layers=1).model.save_pretrained(folder)
    return folder


Factory = Callable[[Target, Path], Drafter]

DRAFTERS: dict[str, Factory] = {
    "autoregressive": lambda target, folder: Autoregressive(),
    "prompt-lookup": lambda target, folder: PromptLookup(),
    "draft-model": lambda target, folder: DraftModel(DraftModel.Options(model=str(folder))),
    "draft-model argmax": lambda target, folder: DraftModel(
        DraftModel.Options(model=str(folder), tokens=3, sample=False)
    ),
    "scripted chain": lambda target, folder: ScriptedDrafter(
        target, ScriptedOptions(shape="chain")
    ),
    "scripted chains": lambda target, folder: ScriptedDrafter(
        target, ScriptedOptions(shape="chains", wrong=0.3)
    ),
    "scripted tree": lambda target, folder: ScriptedDrafter(target, ScriptedOptions(wrong=0.3)),
    "scripted sampled tree": lambda target, folder: ScriptedDrafter(
        target, ScriptedOptions(sampled=True)
    ),
}


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", DRAFTERS)
def test_contract(name: str, check: Check, target: Target, small_model: Path) -> None:
    check(target, lambda: DRAFTERS[name](target, small_model))
