"""Drafters by name."""

from __future__ import annotations

from importlib.metadata import Distribution, EntryPoint, entry_points
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from specbench.core.drafter import Autoregressive
from specbench.core.options import NoOptions
from specbench.errors import UserError
from specbench.inputs import registry
from specbench.inputs.options import describe
from specbench.testing import ScriptedDrafter
from tests.helpers.installed import install


class _Distribution(Distribution):
    def __init__(self, name: str) -> None:
        self._name = name

    def read_text(self, filename: str) -> str:
        return f"Metadata-Version: 2.1\nName: {self._name}\nVersion: 1.0\n"

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(path)


def announce(monkeypatch: pytest.MonkeyPatch, *drafters: tuple[str, str, str]) -> None:
    """Let exactly these (name, value, distribution) be installed."""
    entries = []
    for name, value, owner in drafters:
        entry = EntryPoint(name, value, registry.DRAFTERS)
        vars(entry)["dist"] = _Distribution(owner)
        entries.append(entry)
    monkeypatch.setattr(
        registry, "entry_points", lambda group: entries if group == registry.DRAFTERS else []
    )


def test_ours_are_announced() -> None:
    names = [one.name for one in registry.registered()]
    assert {"autoregressive", "dflash", "draft-model", "prompt-lookup"} <= set(names)
    assert names == sorted(names)


def test_make_drafter_is_the_announced_class() -> None:
    assert isinstance(registry.make_drafter("autoregressive", NoOptions()), Autoregressive)


OURS = [
    (group, one.name)
    for group in registry.KINDS
    for one in registry.registered(group)
    if one.distribution.startswith("specbench-harness ") and one.preset is None
]


@pytest.mark.parametrize(("group", "name"), OURS)
def test_the_announced_options_are_those_in_use(group: str, name: str) -> None:
    [entry] = [entry for entry in entry_points(group=f"{group}.options") if entry.name == name]
    announced, owner = entry.load(), registry.load(name, group)
    assert registry.options_class(name, group) is announced
    used = [owner.Options] if isinstance(owner, type) else get_type_hints(owner).values()
    assert announced in used


@pytest.mark.parametrize(("group", "name"), OURS)
def test_every_option_says_what_it_means(group: str, name: str) -> None:
    options = describe(registry.options_class(name, group))
    assert [option.name for option in options if not option.help.endswith(".")] == []


@pytest.mark.parametrize("group", registry.KINDS)
def test_no_options_are_announced_for_nothing(group: str) -> None:
    names = {one.base for one in registry.registered(group)}
    assert {entry.name for entry in entry_points(group=f"{group}.options")} <= names


def test_without_an_entry_the_class_says_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ScriptedDrafter)
    assert registry.options_class(ScriptedDrafter.name) is ScriptedDrafter.Options


def test_unknown_name_says_near_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    announce(monkeypatch, ("dflash", "a.b:C", "x"), ("eagle", "a.c:C", "x"))
    with pytest.raises(UserError, match=r"no drafter 'dflsh'.*Did you mean dflash\?"):
        registry.find("dflsh")
    with pytest.raises(UserError, match="There are: dflash, eagle"):
        registry.find("zzz")


def test_duplicate_names_both_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    announce(monkeypatch, ("twice", "a.b:C", "one"), ("twice", "d.e:F", "two"))
    with pytest.raises(UserError, match=r"one 1\.0 and two 1\.0"):
        registry.find("twice")


def test_a_module_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    announce(monkeypatch, ("gone", "specbench.nowhere:C", "acme"))
    with pytest.raises(UserError, match=r"'gone' of acme 1\.0 cannot be imported"):
        registry.load("gone")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package of the one drafter `base`; it fails when it is imported."""
    folder = tmp_path / "preset_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise ImportError('must not be imported')")
    monkeypatch.syspath_prepend(tmp_path)
    announce(monkeypatch, ("base", "preset_package.draft:Base", "acme"))
    return folder


ROW = '[[preset]]\nname = "shape"\ndrafter = "base"\nnote = "for small machines"\n'


def test_presets_are_read_without_importing_their_drafter(package: Path) -> None:
    (package / registry.PRESETS).write_text(
        ROW + "[preset.options]\ntop_k = 1\nexact = true\nids = [1, 2]\n"
    )
    base, shape = registry.registered()
    assert (base.name, base.base, base.settings) == ("base", "base", {})
    assert (shape.name, shape.base, shape.distribution) == ("shape", "base", "acme 1.0")
    assert shape.settings == {"top_k": "1", "exact": "true", "ids": "1,2"}
    assert registry.find("shape") == shape
    with pytest.raises(UserError, match=r"Did you mean shape\?"):
        registry.find("shap")


def test_a_preset_is_the_class_of_its_drafter_with_options_of_its_own() -> None:
    assert registry.load("eagle3-chain8") is registry.load("eagle3")
    made = registry.make_options("eagle3-chain8", {"model": "x", "depth": "3"})
    assert (made.top_k, made.depth, made.total_tokens, made.model) == (1, 3, 8, "x")
    assert registry.make_drafter("eagle3-chain8", made).options is made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[preset", r"presets\.toml of acme 1\.0 cannot be read"),
        ("[[preset]]\nnam = 'x'\n", r"presets\.toml of acme 1\.0 cannot be read.*must hold"),
        (
            ROW.replace("base", "bose") + "[preset.options]\n",
            "is for the drafter 'bose', which is not",
        ),
        (ROW + "options = 3\n", r"presets\.toml of acme 1\.0 cannot be read"),
    ],
)
def test_a_wrong_preset_is_named(package: Path, text: str, message: str) -> None:
    (package / registry.PRESETS).write_text(text)
    with pytest.raises(UserError, match=message):
        registry.find("base")


def test_a_preset_s_name_is_taken_once(package: Path) -> None:
    row = ROW.replace("shape", "base") + "[preset.options]\n"
    (package / registry.PRESETS).write_text(row)
    with pytest.raises(UserError, match="'base' is announced more than once, by acme"):
        registry.find("base")


def test_a_second_owner_of_drafters_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = {"drafters": ["specbench-harness", "drafters", "specbench-harness"]}
    registry._owners.cache_clear()
    monkeypatch.setattr(registry, "packages_distributions", lambda: owners)
    with pytest.raises(UserError, match="more than one distribution: drafters, specbench-harness"):
        registry.load("prompt-lookup")
    assert registry.load("autoregressive") is Autoregressive
    registry._owners.cache_clear()
