"""Each of our registered drafters passes the contract kit; none can be forgotten."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from specbench.api import Drafter, Target
from specbench.drafting.options import ModelOptions
from specbench.inputs import registry
from specbench.inputs.options import parse_options
from specbench.testing import CONTRACT, Check, ScriptedDrafter, ScriptedOptions, tiny_target
from tests.helpers.dflash_drafts import draft_config, write_draft
from tests.helpers.diffusion_drafts import save_twin
from tests.helpers.diffuspec_scorers import save_scorer
from tests.helpers.eagle_drafts import eagle1_config, eagle3_config, write_head

OURS = registry.find("autoregressive").distribution
ENTRIES = [entry for entry in registry.registered() if entry.distribution == OURS]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """Save a target and load it from its folder, because the oracle loads it again by name."""
    folder = tmp_path_factory.mktemp("target")
    tiny_target(layers=4, context=64).model.save_pretrained(folder)
    return Target.load(str(folder))


Settings = dict[str, str]
"""Options of a drafter, as a user types them."""


def small_lm(target: Target, folder: Path) -> Settings:
    """Write a one-layer draft of the target's shape, which sometimes agrees with the target."""
    tiny_target(layers=1).model.save_pretrained(folder)
    return {"model": str(folder)}


def dflash(target: Target, folder: Path) -> Settings:
    return {"model": str(write_draft(draft_config(target), folder))}


def eagle1(target: Target, folder: Path) -> Settings:
    return {"model": str(write_head(eagle1_config(target), folder))}


def eagle3(target: Target, folder: Path) -> Settings:
    return {"model": str(write_head(eagle3_config(target), folder))}


def diffusion(target: Target, folder: Path) -> Settings:
    return {"model": save_twin(target, folder), "tokens": "5"}


def diffuspec(target: Target, folder: Path) -> Settings:
    scorer = save_scorer(folder / "ngram", target.vocab_size)
    lengths = {"k_min": "2", "k_max": "6", "delta": "3"}
    return diffusion(target, folder / "model") | lengths | {"scorer": scorer}


DRAFTS: dict[str, Callable[[Target, Path], Settings]] = {
    "dflash": dflash,
    "diffusion": diffusion,
    "diffuspec": diffuspec,
    "draft-model": small_lm,
    "eagle1": eagle1,
    "eagle2": eagle1,
    "eagle3": eagle3,
    "specdiff": diffusion,
    "specdiff2": diffusion,
}
"""Functions that write the draft of a drafter; a preset uses the draft of its drafter."""


@pytest.fixture(scope="module")
def settings(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Settings]:
    @cache
    def made(name: str) -> Settings:
        if not issubclass(registry.options_class(name), ModelOptions):
            return {}
        return DRAFTS[name](target, tmp_path_factory.mktemp(name))

    return made


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_drafter_keeps_the_contract(
    entry: registry.Registered,
    check: Check,
    target: Target,
    settings: Callable[[str], Settings],
) -> None:
    def make() -> Drafter:
        given = settings(entry.base) | entry.settings
        return registry.make_drafter(
            entry.base, parse_options(entry.base, registry.options_class(entry.base), given)
        )

    check(target, make)


SCRIPTED = {
    "chain": ScriptedOptions(shape="chain"),
    "chains": ScriptedOptions(shape="chains", wrong=0.3),
    "tree": ScriptedOptions(wrong=0.3),
    "sampled tree": ScriptedOptions(sampled=True),
}
TARGETS = {"llama": {"family": "llama"}, "qwen3": {"window": 6, "full_layers": 1}}


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("shape", SCRIPTED)
@pytest.mark.parametrize("kind", TARGETS)
def test_every_shape_keeps_the_contract_on_every_kind_of_target(
    kind: str, shape: str, check: Check
) -> None:
    target = tiny_target(layers=2, context=64, **TARGETS[kind])  # type: ignore[arg-type]
    check(target, lambda: ScriptedDrafter(target, SCRIPTED[shape]))


PLAIN = {"prompt-lookup": {}, "draft-model": {}, "draft-model argmax": {"sample": "false"}}


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("variant", PLAIN)
@pytest.mark.parametrize("kind", TARGETS)
def test_drafters_for_any_target_keep_the_contract(
    kind: str, variant: str, check: Check, settings: Callable[[str], Settings]
) -> None:
    name = variant.partition(" ")[0]
    target = tiny_target(layers=2, context=64, **TARGETS[kind])  # type: ignore[arg-type]
    options = parse_options(name, registry.options_class(name), settings(name) | PLAIN[variant])
    check(target, lambda: registry.make_drafter(name, options))
