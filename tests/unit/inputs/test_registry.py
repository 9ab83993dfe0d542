"""Drafters by name."""

from __future__ import annotations

from importlib.metadata import Distribution, EntryPoint
from typing import Any

import pytest

from specbench.core.drafter import Autoregressive
from specbench.core.options import NoOptions
from specbench.errors import UserError
from specbench.inputs import registry


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
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)


def test_ours_are_announced() -> None:
    names = [one.name for one in registry.registered()]
    assert {"autoregressive", "dflash", "draft-model", "prompt-lookup"} <= set(names)
    assert names == sorted(names)


def test_make_drafter_is_the_announced_class() -> None:
    assert isinstance(registry.make_drafter("autoregressive", NoOptions()), Autoregressive)


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


def test_a_second_owner_of_drafters_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = {"drafters": ["specbench-harness", "drafters", "specbench-harness"]}
    registry._owners.cache_clear()
    monkeypatch.setattr(registry, "packages_distributions", lambda: owners)
    with pytest.raises(UserError, match="more than one distribution: drafters, specbench-harness"):
        registry.load("prompt-lookup")
    assert registry.load("autoregressive") is Autoregressive
    registry._owners.cache_clear()
