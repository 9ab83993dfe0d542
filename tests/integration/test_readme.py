"""README's examples work: its drafter is measured, and its commands and options exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specbench.cli import app
from tests.helpers.commands import specbench
from tests.helpers.data import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def install(folder: Path) -> str:
    """Install README's drafter as a distribution in ``folder``, and return its name."""
    (code,) = [block for block in blocks("python") if "(Drafter)" in block]
    (project,) = [tomllib.loads(b) for b in blocks("toml") if "specbench.drafters" in b]
    name, version = project["project"]["name"], project["project"]["version"]
    (module,) = project["tool"]["setuptools"]["py-modules"]
    ((drafter, entry),) = project["project"]["entry-points"]["specbench.drafters"].items()
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[specbench.drafters]\n{drafter} = {entry}\n")
    return str(drafter)


def test_its_drafter_is_measured(target: Path, tmp_path: Path) -> None:
    drafter = install(tmp_path)
    (tmp_path / "mine.jsonl").write_text('{"prompt": "aaaa"}\n{"prompt": "bcbc"}\n')
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = specbench(
        *("run", "--drafter", drafter, "--suite", "mine.jsonl", "--target", target),
        *("--max-new-tokens", "12", "--out", "out", "--device", "cpu"),
    )
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cells = json.loads((tmp_path / "out/manifest.json").read_text())["cells"].values()
    assert [cell["drafter"] for cell in cells] == ["autoregressive", drafter]


def commands() -> list[str]:
    """Return every `specbench` command of a code block, with continued lines joined."""
    text = "\n".join(re.findall(r"^```\w*\n(.*?)^```", README, re.MULTILINE | re.DOTALL))
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [line.partition(" #")[0].strip() for line in lines if line.startswith("specbench ")]


@pytest.mark.parametrize("line", commands())
def test_a_command_and_its_options_exist(line: str) -> None:
    words = shlex.split(line)[1:]
    options = [word for word in words if word.startswith("--")]
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    # Arguments are not commands, but `--help` is handled first at any position.
    help_text = CliRunner().invoke(
        app, [*words[:first], "--help"], env={"COLUMNS": "300"}, catch_exceptions=False
    )
    assert help_text.exit_code == 0
    assert [option for option in options if option not in help_text.output] == []
