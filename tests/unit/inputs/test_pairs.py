"""Published drafts by target."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from specbench.errors import UserError
from specbench.inputs import pairs, registry


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed drafter `other` whose package fails when it is imported."""
    package = tmp_path / "other_drafter"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('must not be imported')")
    monkeypatch.syspath_prepend(tmp_path)
    entry = EntryPoint("other", "other_drafter.draft:Other", registry.DRAFTERS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    return package


def test_ours() -> None:
    found = pairs.find_pair("dflash", "Qwen/Qwen3-8B")
    assert found is not None
    assert found.draft == "z-lab/Qwen3-8B-DFlash-b16"
    assert pairs.find_pair("draft-model", "tiny-target") == pairs.Pair(
        "tiny-target", "tiny-draft-lm", "embedded"
    )
    assert pairs.find_pair("dflash", "nobody/knows") is None
    assert pairs.find_pair("autoregressive", "Qwen/Qwen3-8B") is None


def test_targets_that_cannot_run_say_so() -> None:
    noted = {pair.target: pair.note for drafter, pair in pairs.all_pairs() if drafter == "dflash"}
    assert "not supported" in noted["Qwen/Qwen3.5-9B"]
    assert "not supported" not in noted["Qwen/Qwen3-8B"]


def test_a_plug_ins_pairs_are_read_without_importing_it(plug_in: Path) -> None:
    (plug_in / pairs.FILE).write_text('[[pair]]\ntarget = "a/t"\ndraft = "a/d"\n')
    assert pairs.all_pairs() == [("other", pairs.Pair("a/t", "a/d"))]


def test_a_row_may_be_for_some_drafters_of_a_package(plug_in: Path) -> None:
    rows = "".join(
        f'[[pair]]\ndrafters = {names}\ntarget = "a/t"\ndraft = "{draft}"\n'
        for names, draft in (("['another']", "no"), ("['another', 'oth*']", "yes"))
    )
    (plug_in / pairs.FILE).write_text(rows)
    [(drafter, pair)] = pairs.all_pairs()
    assert (drafter, pair.target, pair.draft) == ("other", "a/t", "yes")


def test_heads_of_eagle_go_to_the_drafters_that_run_them() -> None:
    llama = "meta-llama/Llama-3.1-8B-Instruct"
    found = {name: pairs.find_pair(name, llama) for name in ("eagle3", "eagle3-chain8", "eagle1")}
    drafts = {name: pair.draft for name, pair in found.items() if pair is not None}
    assert drafts == {
        "eagle3": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
        "eagle3-chain8": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
        "eagle1": "yuhuili/EAGLE-LLaMA3.1-Instruct-8B",
    }
    assert "eagle3-chain8" not in {drafter for drafter, _ in pairs.all_pairs()}


def test_a_drafter_without_pairs(plug_in: Path) -> None:
    assert pairs.all_pairs() == []


@pytest.mark.parametrize("text", ["[[pair", '[[pair]]\ntarget = "a"\ndarft = "b"\n'])
def test_an_unreadable_file_is_named(plug_in: Path, text: str) -> None:
    (plug_in / pairs.FILE).write_text(text)
    with pytest.raises(UserError, match=r"pairs\.toml of .* cannot be read"):
        pairs.all_pairs()
