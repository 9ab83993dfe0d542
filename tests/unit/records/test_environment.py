"""The recorded environment of a run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specbench.records import environment as env
from specbench.records.machine import differences


def test_environment_is_json_with_the_versions() -> None:
    facts = env.environment("cpu")
    assert facts["packages"]["torch"] == torch.__version__
    assert facts["threads"] == torch.get_num_threads()
    assert facts["gpu"] is None
    assert json.loads(json.dumps(facts)) == facts


def test_differences_leave_out_the_commit() -> None:
    before = {"commit": "a", "dirty": False, "threads": 2, "gpu": None}
    after = {"commit": "b", "dirty": True, "threads": 4, "gpu": None}
    assert differences(before, after) == ["threads: 2 -> 4"]
    assert differences({}, {"gpu": "H"}) == ["gpu: None -> H"]


def test_git_state(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@x"]
    (tmp_path / "file").write_text("1")
    for command in (["init", "-q"], ["add", "file"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    clean = env.git_state(tmp_path)
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "file").write_text("2")
    assert env.git_state(tmp_path) == {"commit": clean["commit"], "dirty": True}
    assert env.git_state(inside) == {"commit": None, "dirty": None}


def test_a_folder_is_identified_by_its_weights(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(2)}, tmp_path / "model.safetensors")
    first = env.model_id(str(tmp_path))
    assert first.name == str(tmp_path)
    assert first == env.model_id(str(tmp_path))
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    assert env.model_id(str(tmp_path)).sha256 != first.sha256


def test_a_hub_model_is_identified_by_its_cached_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = tmp_path / "snapshots" / "0123abcd" / "config.json"
    monkeypatch.setattr(env, "try_to_load_from_cache", lambda name, file, revision: str(cached))
    assert env.model_id("some/model").revision == "0123abcd"
    monkeypatch.setattr(env, "try_to_load_from_cache", lambda name, file, revision: None)
    assert env.model_id("some/model") == env.ModelId("some/model")
