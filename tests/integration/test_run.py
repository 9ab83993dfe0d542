"""`specbench run` from its arguments to its records, on a random target."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from specbench.cli import app
from specbench.core import rules
from specbench.core.drafter import Autoregressive, Commit, Drafter, DraftSession, Request
from specbench.core.proposal import Proposal
from specbench.core.rules import REJECT, WALK, Rule, walk
from specbench.core.sampling import Sampling
from specbench.core.target import Target
from specbench.errors import UserError
from specbench.inputs import chat
from specbench.inputs.plan import Plan, Settings, make_plan
from specbench.records.records import SAMPLES, Cell, Sample, Verdict, load_manifest, load_samples
from specbench.records.traces import PHASES, TRACES, load_traces, split
from specbench.run import arms, runner
from specbench.run.runner import run as run_plan
from tests.helpers.commands import call
from tests.helpers.installed import install
from tests.helpers.observers import Recorder


class Faulty(Autoregressive):
    """Fails on every second sequence, the warm-up included."""

    name = "faulty"
    role = "method"
    opened = 0

    def open(self, request: Request) -> DraftSession:
        Faulty.opened += 1
        if Faulty.opened % 2 == 0:
            raise RuntimeError("lost the thread")
        return super().open(request)


class Sampler(Drafter):
    """Proposes one token with the uniform distribution."""

    name = "sampler"
    width = 1

    @property
    def rule(self) -> Rule:
        return REJECT

    def bind(self, target: object) -> None:
        self.vocabulary: int = target.vocab_size  # type: ignore[attr-defined]

    def open(self, request: Request) -> DraftSession:
        return _Sampling(self.vocabulary, not request.sampling.greedy)


class _Sampling(DraftSession):
    def __init__(self, vocabulary: int, warm: bool) -> None:
        self.probs = torch.full((1, vocabulary), 1 / vocabulary) if warm else None

    def commit(self, commit: Commit) -> None:
        pass

    def propose(self, budget: int) -> Proposal:
        return Proposal.chain(torch.tensor([7]), self.probs)


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the drafters of this file."""
    install(monkeypatch, Faulty, Sampler)
    monkeypatch.setattr(Faulty, "opened", 0)


def plan(target: Path, *drafters: str, suite: str = "smoke", **changes: object) -> Plan:
    settings = {"limit": 4, "max_new_tokens": 12, "device": "cpu", **changes}
    return make_plan(Settings(drafters, (suite,), str(target), **settings))  # type: ignore[arg-type]


def samples_of(folder: Path, drafter: str) -> list[Sample]:
    cells = load_manifest(folder).cells
    return [s for s in load_samples(folder) if cells[s.cell].drafter == drafter]


def test_every_prompt_by_both_arms_in_turn(target: Path, tmp_path: Path) -> None:
    seen = Recorder()
    outcome = run_plan(plan(target, "prompt-lookup"), tmp_path / "r", "command", seen)
    assert (outcome.failed, outcome.finished_before) == (0, False)
    firsts: dict[tuple[str, int], str] = {}
    for drafter, prompt, turn in seen.order:
        firsts.setdefault((prompt, turn), drafter)
    by_prompt = {prompt: drafter for (prompt, _), drafter in firsts.items()}
    assert list(by_prompt.values()) == ["autoregressive", "prompt-lookup"] * 2
    assert len(seen.order) == len(set(seen.order)) == seen.total
    assert seen.verdicts == {s.key: s.verdict for s in load_samples(tmp_path / "r")}
    found = samples_of(tmp_path / "r", "prompt-lookup")
    assert {s.verdict for s in found} == {Verdict("identical")}
    assert all(s.verdict is None for s in samples_of(tmp_path / "r", "autoregressive"))


def test_the_manifest_holds_every_setting(target: Path, tmp_path: Path) -> None:
    asked = plan(target, "prompt-lookup", overrides=("prompt-lookup.tokens=6",), seed=4)
    run_plan(asked, tmp_path / "r", "the command", Recorder())
    manifest = load_manifest(tmp_path / "r")
    assert manifest.command == "the command"
    assert {"torch", "transformers"} <= set(manifest.environment["packages"])
    cells = {cell.drafter: cell for cell in manifest.cells.values()}
    assert cells["autoregressive"].rule == "none"
    cell = cells["prompt-lookup"]
    assert cell.options == {"tokens": 6, "max_ngram": 3, "min_ngram": 1}
    assert (cell.width, cell.rule, cell.seed, cell.dtype) == (6, "walk", 4, "float32")
    assert cell.target.sha256 is not None
    assert cell.sample_ids == tuple(prompt.id for prompt in asked.suites[0].prompts)


def test_second_turn_sees_the_baselines_answer(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[dict[str, str]]] = []
    encode = chat.encode

    def spy(tokenizer: object, messages: list[dict[str, str]], thinking: str) -> list[int]:
        asked.append(messages)
        return encode(tokenizer, messages, thinking)  # type: ignore[arg-type]

    monkeypatch.setattr(chat, "encode", spy)
    suite = tmp_path / "own.jsonl"
    suite.write_text(json.dumps({"id": "x", "turns": ["first", "second"]}))
    run_plan(plan(target, "prompt-lookup", suite=str(suite)), tmp_path / "r", "c", Recorder())
    baseline = {s.turn: s for s in samples_of(tmp_path / "r", "autoregressive")}
    copy = {s.turn: s for s in samples_of(tmp_path / "r", "prompt-lookup")}
    assert [[m["role"] for m in messages] for messages in asked] == [
        ["user"],
        ["user", "assistant", "user"],
    ]
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)
    assert asked[1][1]["content"] == tokenizer.decode(baseline[1].output, skip_special_tokens=True)
    assert baseline[2].prompt_tokens == copy[2].prompt_tokens > baseline[1].prompt_tokens


def test_a_failed_sample_is_recorded_and_the_run_goes_on(
    target: Path, tmp_path: Path, plugged: None
) -> None:
    outcome = run_plan(plan(target, "faulty"), tmp_path / "r", "c", Recorder())
    found = samples_of(tmp_path / "r", "faulty")
    assert {s.status for s in found} == {"ok", "error"}
    failed = [s for s in found if s.status == "error"]
    assert outcome.failed == len(failed)
    assert {s.error for s in failed} == {"RuntimeError: lost the thread"}
    assert all(s.decode_seconds is None and s.verdict is None for s in failed)
    assert {s.status for s in samples_of(tmp_path / "r", "autoregressive")} == {"ok"}
    again = run_plan(plan(target, "faulty"), tmp_path / "r", "c", Recorder())
    assert again.finished_before
    assert len(samples_of(tmp_path / "r", "faulty")) == len(found)


def test_only_a_prompt_longer_than_the_context_fails(target: Path, tmp_path: Path) -> None:
    suite = tmp_path / "own.jsonl"
    rows = [{"id": "long", "turns": ["x" * 2000, "and then?"]}, {"id": "short", "prompt": "hi"}]
    suite.write_text("\n".join(map(json.dumps, rows)))
    own = plan(target, "prompt-lookup", suite=str(suite))
    outcome = run_plan(own, tmp_path / "r", "c", Recorder())
    assert outcome.failed == 4
    errors = {
        (s.sample, s.turn): s.error or "" for s in samples_of(tmp_path / "r", "prompt-lookup")
    }
    assert "the context of" in errors["long", 1]
    assert "answer to turn 1 is missing" in errors["long", 2]
    assert errors["short", 1] == ""


@pytest.mark.parametrize(
    ("temperature", "rule", "kind"), [(0.0, "walk", "identical"), (1.0, "reject", "untested")]
)
def test_sampled_proposals_are_verified_by_reject(
    target: Path, tmp_path: Path, plugged: None, temperature: float, rule: str, kind: str
) -> None:
    warm = plan(target, "sampler", sampling=Sampling(temperature), limit=2)
    assert run_plan(warm, tmp_path / "r", "c", Recorder()).failed == 0
    cells = load_manifest(tmp_path / "r").cells.values()
    assert [cell.rule for cell in cells] == ["none", rule]
    verdicts = [s.verdict for s in samples_of(tmp_path / "r", "sampler") if s.verdict]
    assert {v.kind for v in verdicts} == {kind}
    assert {bool(v.reason) for v in verdicts} == {kind == "untested"}


def test_a_rule_must_be_an_object(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name could be unknown, and would then count as lossless."""
    monkeypatch.setattr("drafters.prompt_lookup.draft.PromptLookup.rule", "wak")
    with pytest.raises(UserError, match=r"hands over 'wak' .* must be a specbench.api.Rule"):
        run_plan(plan(target, "prompt-lookup", limit=1), tmp_path / "r", "c", Recorder())


def test_a_rule_that_changes_the_text(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its output is broken, or it is marked as lossy if the rule says that it is not lossless."""

    def generous(proposal, logits, sampling, uniforms, generator):  # type: ignore[no-untyped-def]
        kept = walk(proposal, logits, sampling, uniforms, generator)
        worst = int(logits[len(kept.path)].argmin())
        return type(kept)(kept.path, (*kept.tokens[:-1], worst)) if len(proposal) else kept

    monkeypatch.setattr(rules, "WALK", replace(WALK, keep=generous))
    run_plan(plan(target, "prompt-lookup", limit=2), tmp_path / "a", "c", Recorder())
    kinds = {s.verdict.kind for s in samples_of(tmp_path / "a", "prompt-lookup") if s.verdict}
    assert "broken" in kinds
    monkeypatch.setattr(rules, "WALK", replace(WALK, keep=generous, lossless=False))
    run_plan(plan(target, "prompt-lookup", limit=2), tmp_path / "b", "c", Recorder())
    assert {s.verdict for s in samples_of(tmp_path / "b", "prompt-lookup")} == {Verdict("lossy")}


def test_another_target_under_the_same_name_is_refused(target: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in target.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    run_plan(plan(copy, "prompt-lookup", limit=1), tmp_path / "r", "c", Recorder())
    weights = load_file(copy / "model.safetensors")
    changed = {name: tensor * 1.01 for name, tensor in weights.items()}
    save_file(changed, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"holds another run \(target of"):
        run_plan(plan(copy, "prompt-lookup", limit=1), tmp_path / "r", "c", Recorder())


def test_the_command(target: Path, tmp_path: Path) -> None:
    """Test exit codes, default folder, plain lines, table and dry run in another process."""
    command = ("run", "--target", target, "--drafter", "prompt-lookup", "--limit", 2)
    dry = call(*command, "--dry-run", cwd=tmp_path)
    assert dry.returncode == 0
    assert "2 cells" in dry.stdout
    assert "nothing was run" in dry.stdout
    assert not (tmp_path / "results").exists()
    first = call(*command, "--max-new-tokens", 8, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stderr == ""
    assert "prompt-lookup smoke" in first.stdout
    (folder,) = (tmp_path / "results").iterdir()
    assert f"Records: results/{folder.name}" in first.stdout
    assert load_manifest(folder).command.startswith("specbench run --target")


def test_failures_give_exit_code_1(
    target: Path, tmp_path: Path, plugged: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["specbench", "run"])
    monkeypatch.chdir(tmp_path)
    asked = ["run", "--drafter", "faulty", "--target", str(target), "--limit", "2"]
    asked += ["--max-new-tokens", "4", "--device", "cpu"]
    for _ in ("measured", "finished before"):
        assert CliRunner().invoke(app, asked).exit_code == 1


def test_the_traced_pass_records_the_phases_of_a_round(target: Path, tmp_path: Path) -> None:
    asked, folder = plan(target, "prompt-lookup"), tmp_path / "r"
    run_plan(asked, folder, "command", Recorder(), trace=2)
    found = list(load_traces(folder))
    assert len(found) == 2 * len(asked.arms)
    samples = {s.key: s for s in load_samples(folder)}
    for trace in found:
        sample = samples[trace.cell, trace.sample, trace.turn]
        assert (trace.rounds, trace.emitted) == (len(sample.rounds), sample.emitted)
        assert trace.rows == sum(drafted + 1 for drafted, _, _ in sample.rounds)
        assert set(trace.seconds) <= set(PHASES)
        assert trace.seconds["verify"] > 0
    shares = split(found)
    assert shares is not None
    assert shares.total > shares.milliseconds["verify"]


def test_a_run_stopped_in_the_traced_pass_continues_there(target: Path, tmp_path: Path) -> None:
    class Stopping(Recorder):
        def measuring(self, cell: Cell, prompt: str, turn: int) -> None:
            if cell.rule == "walk" and prompt.endswith("traced"):
                raise KeyboardInterrupt

    asked, folder = plan(target, "prompt-lookup", limit=2), tmp_path / "r"
    with pytest.raises(KeyboardInterrupt):
        run_plan(asked, folder, "command", Stopping(), trace=2)
    assert len(list(load_traces(folder))) == 1
    for finished_before in (False, True):
        outcome = run_plan(asked, folder, "command", Recorder(), trace=2)
        assert outcome.finished_before is finished_before
        assert outcome.resumed == asked.answers
        assert len(list(load_traces(folder))) == 2 * len(asked.arms)


def test_traces_may_be_taken_later_on_the_same_machine(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, folder = plan(target, "prompt-lookup", limit=3), tmp_path / "r"
    run_plan(asked, folder, "command", Recorder())
    samples = (folder / SAMPLES).read_bytes()
    wanted = 0
    for count in (1, 3, 3, 2):
        seen = Recorder()
        outcome = run_plan(asked, folder, "command", seen, trace=count)
        lacking = max(0, 2 * count - wanted)
        wanted += lacking
        assert outcome.finished_before is (lacking == 0)
        assert len(seen.order) == lacking
        assert len({(t.cell, t.sample) for t in load_traces(folder)}) == wanted
        assert len(list(load_traces(folder))) == wanted
        assert (folder / SAMPLES).read_bytes() == samples
    (folder / TRACES).unlink()
    files = sorted(path.name for path in folder.iterdir())
    facts = runner.environment("cpu")
    monkeypatch.setattr(runner, "environment", lambda device: facts | {"cpu": "another"})
    with pytest.raises(UserError, match="began in another environment"):
        run_plan(asked, folder, "command", Recorder(), trace=1)
    assert run_plan(asked, folder, "command", Recorder()).finished_before
    assert sorted(path.name for path in folder.iterdir()) == files


def test_a_prompt_that_no_arm_can_decode_is_no_warm_up(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warmed: list[int] = []
    timed = arms.timed_answer

    def counted(model: Target, drafter: Drafter, prompt: list[int], count: int, **rest: Any) -> Any:
        if count == arms.WARM_UP_TOKENS:
            warmed.append(len(prompt))
        return timed(model, drafter, prompt, count, **rest)

    monkeypatch.setattr(arms, "timed_answer", counted)
    suite = tmp_path / "own.jsonl"
    rows = [{"id": "b", "prompt": "x" * 2000}, {"id": "long", "prompt": "hi"}]
    suite.write_text("\n".join(map(json.dumps, rows)))
    run_plan(plan(target, "prompt-lookup", suite=str(suite)), tmp_path / "r", "c", Recorder())
    assert [length > 1000 for length in warmed] == [True] * 2 + [False] * 2
