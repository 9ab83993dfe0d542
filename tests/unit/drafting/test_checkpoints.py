"""Draft folders: what is read of them, and what is a person's mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specbench import hub
from specbench.drafting import checkpoints
from specbench.drafting.checkpoints import (
    ConfigReader,
    check_shapes,
    find_checkpoint,
    open_tensors,
    read_config,
)
from specbench.errors import UserError


def test_all_files_of_a_folder_are_one_set_of_tensors(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
    for name, value in tensors.items():
        save_file({name: value}, tmp_path / f"{name}.safetensors")
    with open_tensors(tmp_path) as stored:
        assert stored.shapes == {"a": (2, 3), "b": (4,)}
        for name, value in tensors.items():
            assert torch.equal(stored.read(name), value)
            assert stored.read(name).dtype == value.dtype
    save_file({"a": tensors["a"]}, tmp_path / "again.safetensors")
    with (
        pytest.raises(UserError, match="tensor a is in more than one file"),
        open_tensors(tmp_path),
    ):
        pass


def test_other_weight_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match="no safetensors file"), open_tensors(tmp_path):
        pass
    (tmp_path / "model.safetensors").write_bytes(b"no tensors at all")
    with pytest.raises(UserError, match="is not a safetensors file"), open_tensors(tmp_path):
        pass


@pytest.mark.parametrize(
    ("text", "named"), [(None, r"no config\.json"), ("{", "is not JSON"), ("[]", "JSON object")]
)
def test_a_config_that_is_no_object(text: str | None, named: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=named):
        read_config(tmp_path)


def test_every_fault_is_named(tmp_path: Path) -> None:
    found, wanted = {"a": (1,), "b": (2, 3), "c": (4,)}, {"b": (3, 2), "c": (4,), "d": (5,)}
    check_shapes(wanted, wanted, tmp_path, "a draft")
    with pytest.raises(UserError) as caught:
        check_shapes(found, wanted, tmp_path, "a small draft")
    assert caught.value.message == (
        f"The tensors in {tmp_path} are not those of a small draft with its config.json: "
        "missing d [5]; unknown a [1]; b is [2, 3] instead of [3, 2]."
    )


def test_a_folder_is_taken_as_it_is_and_an_id_has_to_be_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_checkpoint(str(tmp_path), None) == tmp_path
    assert (find_checkpoint("tiny-dflash", None) / "card.json").is_file(), "an embedded draft"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("no/such-draft-here", "no/such/folder", "no one/knows it"):
        with pytest.raises(UserError, match=f"Cannot load the draft '{name}'"):
            find_checkpoint(name, None)


@pytest.mark.parametrize("fallback", [None, "*.bin"])
@pytest.mark.parametrize("held", ["model.safetensors", "pytorch_model.bin"])
def test_what_is_fetched(
    held: str, fallback: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but data and, only where it has to be, the fallback."""
    asked = []

    def download(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append(list(allow_patterns))
        if any(Path(held).match(pattern) for pattern in allow_patterns):
            (tmp_path / held).touch()
        return str(tmp_path)

    monkeypatch.setattr(checkpoints, "snapshot_download", download)
    monkeypatch.setattr(hub, "outage", lambda: None)
    assert find_checkpoint("some/draft", "main", fallback) == tmp_path
    assert asked[0] == ["config.json", "*.safetensors"]
    falls_back = fallback is not None and held.endswith(".bin")
    assert asked[1:] == ([["config.json", "*.safetensors", "*.bin"]] if falls_back else [])


def test_settings_are_read_from_the_first_part_that_has_them() -> None:
    read = ConfigReader([{"a": None, "b": 2}, {"a": 1, "b": 3, "yes": True, "eps": 1}], "here")
    assert (read.integer("a"), read.integer("b"), read.integer("c", 7)) == (1, 2, 7)
    assert (read.number("eps"), read.number("c", 0.5)) == (1.0, 0.5)
    assert (read.flag("yes", False), read.flag("c", True)) == (True, True)
    assert read.optional("c", int) is None


@pytest.mark.parametrize(
    ("ask", "fault"),
    [
        (lambda read: read.integer("c"), "c in config.json of here is missing"),
        (lambda read: read.number("c"), "c in config.json of here is missing"),
        (lambda read: read.integer("a", least=2), "at least 2, not 1"),
        (lambda read: read.integer("yes"), "of type int, not True"),
        (lambda read: read.number("yes"), "a number, not True"),
        (lambda read: read.flag("a", True), "of type bool, not 1"),
    ],
)
def test_a_setting_that_cannot_be_is_named(
    ask: Callable[[ConfigReader], object], fault: str
) -> None:
    with pytest.raises(UserError, match=fault):
        ask(ConfigReader([{"a": 1, "yes": True}], "here"))
