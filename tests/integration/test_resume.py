"""A run that is killed and continued gives the same result as an uninterrupted run."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import shlex
import signal
import subprocess
import sys
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from specbench import cli
from specbench.inputs import registry
from specbench.records.records import MANIFEST, SAMPLES, load_manifest
from specbench.records.store import HELD
from specbench.records.traces import TRACES
from tests.helpers.commands import ONE_THREAD, call, specbench

for module in ("specbench.run.runner", "specbench.report.terminal", "specbench.cli.live"):
    import_module(module)  # Imported once here instead of in every child process; the drafter too.
registry.load("prompt-lookup")

CONTEXT = multiprocessing.get_context("fork")
TIMINGS = ("prefill_seconds", "decode_seconds", "peak_memory_bytes")


def arguments(target: Path, out: Path, temperature: float) -> list[str]:
    return [
        "run",
        *("--target", str(target), "--drafter", "prompt-lookup", "--suite", "smoke"),
        *("--limit", "9", "--max-new-tokens", "24", "--device", "cpu", "--out", str(out)),
        *("--temperature", str(temperature)),
    ]


def start(command: list[str]) -> BaseProcess:
    """Start the command in a forked process: torch is already loaded, so kills act at once."""

    def main() -> None:
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        sys.argv = ["specbench", *command]
        # A background job of a shell ignores SIGINT, and a fork inherits that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        cli.main()

    process = CONTEXT.Process(target=main)
    process.start()
    return process


def finish(command: list[str]) -> int | None:
    process = start(command)
    process.join(timeout=120)
    return process.exitcode


def content(folder: Path) -> list[dict[str, Any]]:
    """Return all samples without timings, in a fixed order."""
    rows = [json.loads(line) for line in (folder / SAMPLES).read_text().splitlines()]
    kept = [{name: row[name] for name in row if name not in TIMINGS} for row in rows]
    return sorted(kept, key=lambda row: (row["cell"], row["sample"], row["turn"]))


def size(folder: Path) -> int:
    """Return the bytes of samples on disk, held samples included."""
    paths = (folder / SAMPLES, folder / HELD)
    return sum(path.stat().st_size for path in paths if path.exists())


def wait_for_growth(folder: Path, process: BaseProcess | subprocess.Popen[Any], by: int) -> None:
    """Wait until ``folder`` holds ``by`` more bytes than now, or the process has ended."""
    goal = size(folder) + by
    while size(folder) < goal and _alive(process):
        Event().wait(0.001)


def _alive(process: BaseProcess | subprocess.Popen[Any]) -> bool:
    return process.is_alive() if isinstance(process, BaseProcess) else process.poll() is None


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_kills_do_not_change_the_result(target: Path, tmp_path: Path, temperature: float) -> None:
    calm, shaken = tmp_path / "calm", tmp_path / "shaken"
    assert finish(arguments(target, calm, temperature)) == 0
    dice = random.Random(5)
    interrupted = 0
    for _ in range(4):
        process = start(arguments(target, shaken, temperature))
        wait_for_growth(shaken, process, by=dice.randrange(1, 1500))
        Event().wait(dice.random() * 0.05)
        process.kill()
        process.join()
        interrupted += process.exitcode == -signal.SIGKILL
    assert interrupted >= 3
    assert len(content_lines(shaken)) < len(content_lines(calm))
    assert finish(arguments(target, shaken, temperature)) == 0
    assert content(shaken) == content(calm)
    assert load_manifest(shaken).cells == load_manifest(calm).cells
    assert sorted(path.name for path in shaken.iterdir()) == [MANIFEST, SAMPLES, TRACES]


def content_lines(folder: Path) -> list[str]:
    return (folder / SAMPLES).read_text().splitlines()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_loses_only_the_sample_in_flight(
    target: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "run"
    process = start(arguments(target, out, 0.0))
    wait_for_growth(out, process, by=2000)
    before = size(out)
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(timeout=60)
    assert process.exitcode == code
    assert size(out) >= before > 0
    assert finish(arguments(target, out, 0.0)) == 0


def test_a_stopped_run_says_what_is_done_and_how_to_continue(target: Path, tmp_path: Path) -> None:
    """The dry run reports the same, and the command that was printed finishes the run."""
    out = tmp_path / "run"
    command = specbench(*arguments(target, out, 0.0))
    process = subprocess.Popen(
        command, cwd=tmp_path, env=ONE_THREAD, stderr=subprocess.PIPE, text=True
    )
    wait_for_growth(out, process, by=2000)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 143
    lines = told.splitlines()
    assert lines[0] == f"Stopped; what was measured is in {out}."
    expected = r"smoke: \d+ of 9 prompts are done(, the last of them [\w-]+)?\."
    assert re.fullmatch(expected, lines[1])
    go_on = lines[-1].removeprefix("To go on: ")
    assert go_on.startswith("specbench run --target")
    stored = len(content_lines(out)) + len((out / HELD).read_text().splitlines())
    dry = call(*shlex.split(go_on)[1:], "--dry-run", cwd=tmp_path).stdout
    rows = [line.split("\t") for line in dry.splitlines() if line.startswith("smoke\t")]
    assert sum(int(answered) for _, _, answered, _, _ in rows) == stored > 0
    assert [name for _, name, *_ in rows] == ["autoregressive", "prompt-lookup"]
    assert call(*shlex.split(go_on)[1:], cwd=tmp_path).returncode == 0
    dry = call(*shlex.split(go_on)[1:], "--dry-run", cwd=tmp_path).stdout
    rows = [line.split("\t") for line in dry.splitlines() if line.startswith("smoke\t")]
    assert {(missing, left) for *_, missing, left in rows} == {("0", "0s")}
    assert f"0 of them missing in {out}, about 0s; nothing was run" in dry


def test_a_finished_run_is_not_changed(target: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert finish(arguments(target, out, 0.0)) == 0
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.iterdir()}
    assert finish(arguments(target, out, 0.0)) == 0
    after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.iterdir()}
    assert after == before


@pytest.mark.slow
def test_ten_kills_of_the_real_command(target: Path, tmp_path: Path) -> None:
    """Kill the command at random moments, from the interpreter's start to the last sample."""
    calm, shaken = tmp_path / "calm", tmp_path / "shaken"
    assert call(*arguments(target, calm, 0.0), cwd=tmp_path).returncode == 0
    dice = random.Random(11)
    for attempt in range(10):
        process = subprocess.Popen(
            specbench(*arguments(target, shaken, 0.0)),
            cwd=tmp_path,
            env=ONE_THREAD,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if attempt % 2:
            wait_for_growth(shaken, process, by=dice.randrange(1, 800))
            Event().wait(dice.random() * 0.05)
        else:
            Event().wait(dice.random() * 12)
        process.kill()
        process.wait()
    assert call(*arguments(target, shaken, 0.0), cwd=tmp_path).returncode == 0
    assert content(shaken) == content(calm)
