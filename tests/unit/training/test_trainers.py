"""`specbench train` and a third party's trainers: found and run without an edit of ours."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specbench.cli import app
from specbench.errors import UserError

SETTINGS = """
from dataclasses import dataclass
from typing import Annotated
from specbench.training.settings import RecipeSettings

@dataclass(frozen=True)
class ScaleSettings(RecipeSettings):
    scale: Annotated[float, "Of the loss."] = 1.0

@dataclass(frozen=True)
class CountSettings:
    words: Annotated[tuple[str, ...], "Words to count."]
    lower: Annotated[bool, "Ignore the case."] = False
    limit: Annotated[int | None, "Most rows."] = None
"""
TRAINERS = """
import torch
from acme_settings import ScaleSettings
from specbench.training.recipe import Recipe

class Scale(Recipe):
    Options = ScaleSettings

    def __init__(self, target, options):
        self.draft, self.options = torch.nn.Linear(2, 1), options

    def loss(self, batch, generator):
        return self.options.scale * self.draft(torch.ones(2)).square().mean()

    def save(self, folder):
        (folder / "scale.txt").write_text(str(self.options.scale))

def count(settings, job):
    return f"{settings.words} {settings.lower} {settings.limit} for {job.target}"
"""
ENTRIES = """
[specbench.trainers]
acme-scale = acme_trainers:Scale
acme-count = acme_trainers:count

[specbench.trainers.options]
acme-count = acme_settings:CountSettings
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution that announces a recipe, and a trainer with options of its own."""
    facts = tmp_path / "acme-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(ENTRIES)
    (tmp_path / "acme_settings.py").write_text(SETTINGS)
    (tmp_path / "acme_trainers.py").write_text(TRAINERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_recipe_is_trained_by_the_loop(acme: Path) -> None:
    rows = ({"instruction": f"Say {i}", "output": f"{i}!"} for i in range(200))
    (acme / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["train", "acme-scale", "--target", "tiny-target", "--out", str(acme / "out")]
    arguments += ["--corpus", str(acme / "rows.jsonl"), "--length", "32", "--steps", "2"]
    done = CliRunner().invoke(app, [*arguments, "--set", "scale=0.5"])
    assert done.exit_code == 0, done.output
    assert (acme / "out" / "scale.txt").read_text() == "0.5"
    card = json.loads((acme / "out" / "card.json").read_text())
    assert (card["recipe"], card["settings"]["steps"]) == ("acme_trainers.Scale", 2)
    done = CliRunner().invoke(app, [*arguments, "--set", "size=1"])
    assert str(done.exception) == "'acme-scale' has no option 'size'; its options are: scale."


def test_another_trainer_has_its_settings_as_options(acme: Path) -> None:
    arguments = ["train", "acme-count", "--target", "some/target", "--corpus", "x", "--out", "o"]
    done = CliRunner().invoke(app, [*arguments, "--words", "a,b", "--lower", "--limit", "3"])
    assert done.output == "o: ('a', 'b') True 3 for some/target\n"
    done = CliRunner().invoke(app, [*arguments, "--words", "a"])
    assert done.output == "o: ('a',) False None for some/target\n"
    assert "Missing option '--words'" in CliRunner().invoke(app, arguments).output
    done = CliRunner().invoke(app, [*arguments, "--words", "a", "--limit", "few"])
    assert isinstance(done.exception, UserError)
    assert str(done.exception).startswith("acme-count.limit=few is wrong")


def test_near_names_are_suggested(acme: Path) -> None:
    output = CliRunner().invoke(app, ["train", "acme-cont"]).output
    assert "Did you mean" in output
    assert "'acme-count'" in output


@pytest.mark.parametrize("arguments", [["--help"], ["dflash", "--help"], ["ngram", "--help"]])
def test_help_needs_no_torch(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom specbench.cli.train import app\n"
        f"result = CliRunner().invoke(app, {arguments})\nprint(result.output)\n"
        "assert result.exit_code == 0, result.output\nassert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = {"dflash": "--steps", "ngram": "--prune"}.get(arguments[0], "responses")
    assert shown in done.stdout
