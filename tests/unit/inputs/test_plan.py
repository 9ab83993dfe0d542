"""From what is asked for to what will be run; nothing is loaded."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from drafters.prompt_lookup.options import PromptLookupOptions
from specbench.core.options import NoOptions
from specbench.core.sampling import Sampling
from specbench.errors import UserError
from specbench.inputs import devices, registry
from specbench.inputs.plan import Settings, make_plan, plan_arms
from specbench.records.records import load_manifest
from tests.helpers.data import ROOT

TINY = Settings(drafters=("prompt-lookup",), suites=("smoke",), limit=3)
BOTH = ("autoregressive", "dflash", "draft-model")


def test_the_baseline_is_always_first() -> None:
    assert [arm.name for arm in make_plan(TINY).arms] == ["autoregressive", "prompt-lookup"]
    named = replace(TINY, drafters=("prompt-lookup", "autoregressive", "prompt-lookup"))
    assert [arm.name for arm in make_plan(named).arms] == ["autoregressive", "prompt-lookup"]


def test_defaults_without_a_target() -> None:
    plan = make_plan(TINY)
    assert (plan.target, plan.device, plan.dtype) == ("tiny-target", "cpu", "float32")
    suite = plan.suites[0]
    assert len(suite.prompts) == 3
    assert suite.max_new_tokens == 128
    assert make_plan(replace(TINY, max_new_tokens=7)).suites[0].max_new_tokens == 7
    turns = sum(len(prompt.turns) for prompt in suite.prompts)
    assert plan.answers == 2 * turns


@pytest.mark.parametrize(
    "change",
    [
        {"limit": 4},
        {"seed": 1},
        {"threads": 2},
        {"thinking": "on"},
        {"dtype": "bfloat16"},
        {"max_new_tokens": 5},
        {"sampling": Sampling(1.0)},
        {"overrides": ("prompt-lookup.tokens=4",)},
        {"target": "other/target"},
    ],
)
def test_the_name_changes_with_the_plan(change: dict[str, object]) -> None:
    name = make_plan(TINY).name
    assert make_plan(TINY).name == name
    assert make_plan(replace(TINY, **change)).name != name  # type: ignore[arg-type]


def test_the_name_tells_revisions_apart() -> None:
    hub = replace(TINY, target="other/target")
    names = {make_plan(replace(hub, revision=revision)).name for revision in (None, "v1", "v2")}
    assert len(names) == 3


def test_a_revision_is_of_a_hub_id_only(tmp_path: Path) -> None:
    for target, kind in ((None, "tiny-target is embedded"), (str(tmp_path), "is a folder")):
        with pytest.raises(UserError, match=f"--revision v2 is of a hub id.*{kind}: leave it out"):
            make_plan(replace(TINY, target=target, revision="v2"))


def test_the_name_is_a_folder_name() -> None:
    name = make_plan(replace(TINY, target="some org/Model_7B (new)/")).name
    assert name.startswith("Model-7B-new-")
    assert Path(name).name == name


def test_draft_models_come_from_set_then_option_then_pairs() -> None:
    target = "Qwen/Qwen3-8B"
    arms = {arm.name: arm for arm in plan_arms(BOTH, target, None, ())}
    assert arms["autoregressive"].draft_model is None
    assert arms["dflash"].draft_model == "z-lab/Qwen3-8B-DFlash-b16"
    assert arms["draft-model"].draft_model == "Qwen/Qwen3-0.6B"
    arms = {a.name: a for a in plan_arms(BOTH, target, "mine", ("draft-model.model=other",))}
    assert (arms["dflash"].draft_model, arms["dflash"].found) == ("mine", "--draft-model")
    assert (arms["draft-model"].draft_model, arms["draft-model"].found) == ("other", "--set")
    # Only the draft model has a published partner for this target.
    arms = {arm.name: arm for arm in plan_arms(BOTH, "Qwen/Qwen3-14B", "mine", ())}
    assert arms["dflash"].draft_model == "mine"
    assert arms["draft-model"].draft_model == "Qwen/Qwen3-0.6B"


def test_a_drafter_in_several_configurations_is_several_arms_each_once() -> None:
    texts = ("autoregressive", "prompt-lookup", "prompt-lookup[tokens=4|10]")
    arms = plan_arms(texts, "a/b", None, ("prompt-lookup.max_ngram=2",))
    assert [(arm.name, arm.options) for arm in arms] == [
        ("autoregressive", NoOptions()),
        ("prompt-lookup", PromptLookupOptions(max_ngram=2)),
        ("prompt-lookup", PromptLookupOptions(max_ngram=2, tokens=4)),
    ]
    assert arms[2].label == "prompt-lookup[tokens=4,max_ngram=2]"


def test_settings_are_what_a_person_types_to_get_the_arm() -> None:
    texts = ("prompt-lookup[tokens=4]", "eagle3-chain16[depth=3]", "specdiff2[model=mine]")
    arms = plan_arms(texts, "tiny-target", None, ("eagle3-chain16.rope_theta=10000",))
    assert [arm.settings for arm in arms] == [
        {"tokens": "4"},
        {"model": "tiny-eagle3", "depth": "3", "rope_theta": "10000.0"},
        {"model": "mine"},
    ]
    for arm in arms:
        assert registry.make_options(arm.name, arm.settings) == arm.options
    # A draft model that was found is not said again; one that was set is.
    assert [arm.label for arm in arms] == [
        "prompt-lookup[tokens=4]",
        "eagle3-chain16[depth=3,rope_theta=10000.0]",
        "specdiff2[model=mine]",
    ]


def test_the_demo_is_still_the_committed_baseline() -> None:
    """Its name, so that its command finds it, and its options, so that a new run compares."""
    demo = Settings(
        drafters=("dflash,eagle3,eagle3-chain16,diffuspec,specdiff2,draft-model,prompt-lookup",),
        suites=("smoke",),
        limit=16,
        max_new_tokens=64,
    )
    plan, manifest = make_plan(demo), load_manifest(ROOT / "results" / "baseline")
    assert plan.name == manifest.run
    recorded = {cell.drafter: cell.options for cell in manifest.cells.values()}
    assert {arm.name: asdict(arm.options) for arm in plan.arms} == recorded


@pytest.mark.parametrize(
    ("names", "target", "draft_model", "overrides", "message"),
    [
        (BOTH, "a/b", "mine", (), "--draft-model could be for dflash or for draft-model"),
        (BOTH, "Qwen/Qwen3-8B", "mine", (), "--draft-model could be for dflash or for"),
        (
            ("dflash", "eagle1", "eagle2"),
            "tiny-target",
            "mine",
            (),
            "could be for eagle1 or for eagle2: say",
        ),
        (("autoregressive",), "a/b", "mine", (), "no drafter of this run is left to take it"),
        (BOTH, "a/b", None, (), "'dflash' needs a draft model.*--set dflash.model=ID"),
        (BOTH[:1], "a/b", None, ("dflash.model=x",), "'dflash' is not part of this run"),
        (BOTH[:1], "a/b", None, ("nonsense",), "must look like drafter.key=value"),
        (BOTH[:1], "a/b", None, ("autoregressive.x=1",), "no option 'x'"),
    ],
)
def test_refusals(
    names: tuple[str, ...],
    target: str,
    draft_model: str | None,
    overrides: tuple[str, ...],
    message: str,
) -> None:
    with pytest.raises(UserError, match=message):
        plan_arms(names, target, draft_model, overrides)


def test_devices_and_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert devices.choose_device("auto") == "cuda"
    assert devices.choose_device("auto", "cpu") == "cpu"
    assert devices.choose_device("cuda", "cpu") == "cuda"
    assert devices.choose_dtype("auto", "cuda") == "bfloat16"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices.choose_device("auto") == "cpu"
    with pytest.raises(UserError, match="torch sees no CUDA device"):
        devices.choose_device("cuda")
    with pytest.raises(UserError, match="auto, cpu or cuda, not 'tpu'"):
        devices.choose_device("tpu")
    with pytest.raises(UserError, match="not 'int8'"):
        devices.choose_dtype("int8", "cpu")
