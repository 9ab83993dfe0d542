"""The command line's manners; what `run` does is tested in integration."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from specbench import __version__, cli
from specbench.errors import UserError
from specbench.inputs import registry

INVOKE = "import sys; sys.argv[1:] = {arguments!r}; from specbench.cli import main; main()"
WITHOUT = "import sys; sys.modules.update(dict.fromkeys({modules!r})); " + INVOKE
HEAVY = ["torch", "transformers", "datasets", "pandas"]


def without_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process where torch and its like cannot be imported."""
    program = WITHOUT.format(modules=HEAVY, arguments=list(arguments))
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--help"], "speculative drafters"),
        (["run", "--help"], "--draft-model"),
        (["train", "--help"], "target"),
        (["list", "drafters"], "prompt-lookup\tdrafters.prompt_lookup.draft:PromptLookup"),
        (["list", "suites"], "gsm8k\t1319"),
        (["list", "suites"], "arXiv 2306.05685"),
        (["list", "pairs"], "Qwen/Qwen3-8B\tdflash\tz-lab/Qwen3-8B-DFlash-b16"),
        (["--version"], f"specbench {__version__}"),
    ],
)
def test_help_and_lists_need_no_torch(arguments: list[str], expected: str) -> None:
    done = without_torch(*arguments)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


NAMES = sorted(
    {
        one.name
        for group in registry.KINDS
        for one in registry.registered(group)
        if one.distribution.startswith("specbench-harness ")
    }
)


def test_no_list_imports_torch() -> None:
    """Every form of `specbench list`, and the options of every name that is ours."""
    forms = [[form] for form in ("drafters", "suites", "pairs")]
    forms += [["options", name] for name in NAMES]
    program = (
        "import sys\n"
        "from specbench.cli import app\n"
        f"for form in {forms!r}:\n"
        "    app(['list', *form], standalone_mode=False)\n"
        f"    print('after', form, [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("after")]
    assert told == [f"after {form} []" for form in forms]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dflash", "drafter dflash: --set dflash.KEY=VALUE or --drafter dflash[KEY=VALUE]"),
        ("dflash", "candidates\tint\t1\tAbove 1: verify"),
        ("dflash", "trainer dflash: specbench train dflash --set KEY=VALUE"),
        ("ngram", "trainer ngram: specbench train ngram --KEY VALUE"),
        ("diffusion", "generator diffusion: specbench generate --set KEY=VALUE"),
        ("diffusion", "steps\tint or none\tnone\tForwards in all"),
        ("eagle3", "total_tokens\tint\t60\t"),
        ("eagle3-chain8", "total_tokens\tint\t8\t"),
        ("draft-model", "model\tstr\trequired\t"),
        ("autoregressive", "option\ttype\tdefault\tmeaning"),
    ],
)
def test_settings_are_listed(name: str, expected: str) -> None:
    done = CliRunner().invoke(cli.app, ["list", "options", name])
    assert done.exit_code == 0
    assert expected in done.stdout


def test_options_of_an_unknown_name() -> None:
    with pytest.raises(UserError, match=r"no drafter 'dflsh'.*Did you mean dflash"):
        CliRunner().invoke(cli.app, ["list", "options", "dflsh"], catch_exceptions=False)


def test_presets_are_listed_with_what_they_set() -> None:
    done = CliRunner().invoke(cli.app, ["list", "drafters"])
    assert "eagle3-chain16\teagle3[top_k=1,depth=14,total_tokens=16]" in done.stdout


def test_the_check_above_can_fail() -> None:
    assert "torch" in without_torch("run", "--drafter", "prompt-lookup", "--dry-run").stderr


def test_python_m() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "specbench", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == f"specbench {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--drafter", "dflsh"], "Did you mean dflash?"),
        (["--drafter", "prompt-lookup", "--suite", "smok"], "smoke"),
        (["--drafter", ","], "--drafter names nothing"),
        (["--drafter", "prompt-lookup", "--top-p", "0"], "top_p must lie in (0, 1]"),
        (["--drafter", "prompt-lookup", "--set", "prompt-lookup.x=1"], "no option 'x'"),
        (["--drafter", "prompt-lookup", "--device", "tpu"], "auto, cpu or cuda"),
        (["--drafter", "prompt-lookup", "--thinking", "x"], "--thinking is on or off, not 'x'"),
        (
            ["--drafter", "prompt-lookup", "--target", "no/such/folder"],
            "There is no folder no/such",
        ),
        (["--drafter", "draft-model", "--draft-model", "./no", "--dry-run"], "There is no folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["specbench", "run", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("specbench: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", ["run", "tune", "distribution", "verify"])
def test_a_revision_goes_with_the_target(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--drafter", "prompt-lookup", "--temperature", "1", "--revision", "v2"]
    if command == "tune":
        del arguments[2:4]
    monkeypatch.setattr(sys, "argv", ["specbench", command, *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "--revision v2 is of a hub id, and the target tiny-target" in capsys.readouterr().err


def test_a_dry_run_tells_the_revision(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ["--target", "some/target", "--revision", "v2", "--device", "cpu"]
    monkeypatch.setattr(
        sys, "argv", ["specbench", "run", "--drafter", "prompt-lookup", *target, "--dry-run"]
    )
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 0
    assert "target   some/target at v2 on cpu in float32" in capsys.readouterr().out
