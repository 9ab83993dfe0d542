"""A failure affects one sample or drafter only, is named, and can be measured again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.api import Autoregressive, Commit, Drafter, DraftSession, Proposal, Request, Target
from specbench.core.rules import REJECT, WALK, Rule
from specbench.core.sampling import Sampling
from specbench.core.verifier import Verifier
from specbench.errors import UserError
from specbench.inputs.plan import Plan, Settings, make_plan
from specbench.records.records import SAMPLES, Cell, Sample, Verdict, load_manifest, load_samples
from specbench.records.store import HELD
from specbench.run import runner
from specbench.run.lossless import Judge
from specbench.run.runner import Observer
from specbench.run.runner import run as run_plan
from tests.helpers.installed import install


class Sick(Autoregressive):
    """Fails with ``binding`` or ``fault``, or makes ``proposal``, if they are set."""

    name = "sick"
    role = "method"
    width = 3
    binding: Callable[[], None] | None = None
    fault: Callable[[], None] | None = None
    proposal: Callable[[], Proposal] | None = None
    kind = WALK
    bound = 0

    @property
    def rule(self) -> Rule:
        return Sick.kind

    def bind(self, target: Any) -> None:
        Sick.bound += 1
        if Sick.binding is not None:
            Sick.binding()
        super().bind(target)

    def open(self, request: Request) -> DraftSession:
        if Sick.fault is not None:
            Sick.fault()
        return super().open(request) if Sick.proposal is None else _Sick()


class _Sick(DraftSession):
    def commit(self, commit: Commit) -> None:
        pass

    def propose(self, budget: int) -> Proposal:
        assert Sick.proposal is not None
        return Sick.proposal()


@pytest.fixture(autouse=True)
def sick(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Register the drafter, without any fault."""
    install(monkeypatch, Sick)
    monkeypatch.setattr(Sick, "bound", 0)
    return monkeypatch


def raiser(error: Exception) -> staticmethod[[], None]:
    def fault() -> None:
        raise error

    return staticmethod(fault)


def plan(target: Path, **changes: Any) -> Plan:
    settings = {"limit": 2, "max_new_tokens": 6, "device": "cpu", **changes}
    return make_plan(Settings(("sick",), ("smoke",), str(target), **settings))


def by_drafter(folder: Path, name: str) -> list[Sample]:
    cells = load_manifest(folder).cells
    return [s for s in load_samples(folder) if cells[s.cell].drafter == name]


def errors(target: Path, folder: Path, **changes: Any) -> set[str]:
    """Return the errors of the drafter's samples; the baseline must not have failed."""
    run_plan(plan(target, **changes), folder, "c", Observer())
    assert {s.status for s in by_drafter(folder, "autoregressive")} == {"ok"}
    return {s.error or "" for s in by_drafter(folder, "sick")}


@pytest.mark.parametrize(
    "error", [RuntimeError("no such kernel"), MemoryError("40 GB"), torch.OutOfMemoryError("80 GB")]
)
def test_a_drafter_that_does_not_load_fails_alone(
    target: Path, tmp_path: Path, sick: pytest.MonkeyPatch, error: Exception
) -> None:
    sick.setattr(Sick, "binding", raiser(error))
    outcome = run_plan(plan(target), tmp_path / "r", "c", Observer())
    failed = by_drafter(tmp_path / "r", "sick")
    assert outcome.failed == len(failed) == len(by_drafter(tmp_path / "r", "autoregressive")) > 1
    assert {s.error for s in failed} == {f"{type(error).__name__}: {error}"}
    assert Sick.bound == 1, "it is loaded once, and not for every sample"
    assert {s.status for s in by_drafter(tmp_path / "r", "autoregressive")} == {"ok"}


def test_a_checkpoint_that_does_not_fit_ends_the_command(
    target: Path, tmp_path: Path, sick: pytest.MonkeyPatch
) -> None:
    sick.setattr(Sick, "binding", raiser(UserError("wrong shapes")))
    with pytest.raises(UserError, match="wrong shapes"):
        run_plan(plan(target), tmp_path / "r", "c", Observer())
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "error", [KeyError("x"), MemoryError("40 GB"), torch.OutOfMemoryError("80 GB")]
)
def test_an_error_of_a_drafter_is_recorded(
    target: Path, tmp_path: Path, sick: pytest.MonkeyPatch, error: Exception
) -> None:
    sick.setattr(Sick, "fault", raiser(error))
    assert errors(target, tmp_path / "r") == {f"{type(error).__name__}: {error}"}


def ids(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


NAN = torch.full((2, 259), torch.nan)
MALFORMED: dict[str, tuple[Callable[[], Proposal], str, float]] = {
    "cycle": (lambda: Proposal(ids(1, 2), ids(1, 0)), "parent 1, which does not come before", 0),
    "self": (lambda: Proposal(ids(1, 2), ids(-1, 1)), "token 1 of 2 has parent 1", 0),
    "below": (lambda: Proposal(ids(1, 2), ids(-1, -2)), "token 1 of 2 has parent -2", 0),
    "id": (lambda: Proposal.chain(ids(1, 10**6)), "id 1000000, outside the target's", 0),
    "negative": (lambda: Proposal.chain(ids(-1)), "id -1, outside the target's", 0),
    "wide": (lambda: Proposal.chain(ids(1, 2, 3, 4)), "4 tokens exceed the drafter's width", 0),
    "nan": (lambda: Proposal.chain(ids(1, 2), NAN), "distributions contain NaN or infinity", 1),
    "nan tree": (
        lambda: Proposal(ids(1, 2), ids(-1, -1), NAN), "distributions contain NaN or infinity", 1,
    ),
    "drawn id": (
        lambda: Proposal.chain(ids(1, 300), torch.full((2, 259), 1 / 259)), "id 300, outside", 1,
    ),
    "ignored distributions": (lambda: Proposal.chain(ids(1, 2), NAN), "proposes distributions", 0),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_proposal_is_named(
    target: Path, tmp_path: Path, sick: pytest.MonkeyPatch, name: str
) -> None:
    proposal, message, temperature = MALFORMED[name]
    sick.setattr(Sick, "proposal", staticmethod(proposal))
    if temperature:
        sick.setattr(Sick, "kind", REJECT)
    recorded = errors(target, tmp_path / "r", limit=1, sampling=Sampling(temperature))
    assert all(message in error for error in recorded), recorded


@pytest.mark.parametrize("at", ["prefill", "later"])
def test_a_target_that_is_not_finite_is_named(
    target: Path, tmp_path: Path, sick: pytest.MonkeyPatch, at: str
) -> None:
    whole = Target.forward

    def spoilt(self: Target, *args: Any, **kwargs: Any) -> Any:
        logits, features = whole(self, *args, **kwargs)
        spoil = kwargs.get("last_only", False) == (at == "prefill")
        return (logits * torch.nan if spoil else logits), features

    loaded = runner.load

    def load(plan: Plan) -> Any:
        ready = loaded(plan)
        sick.setattr(Target, "forward", spoilt)  # After the self-check, which would refuse it too.
        return ready

    sick.setattr(runner, "load", load)
    outcome = run_plan(plan(target, limit=1), tmp_path / "r", "c", Observer())
    found = list(load_samples(tmp_path / "r"))
    assert outcome.failed == len(found) == 2
    assert all("the target's logits are not finite" in (s.error or "") for s in found)


def test_a_failed_comparison_gives_the_verdict_untested(
    target: Path, tmp_path: Path, sick: pytest.MonkeyPatch
) -> None:
    sick.setattr(Judge, "verdict", lambda *args: raiser(MemoryError("logits")).__func__())
    outcome = run_plan(plan(target), tmp_path / "r", "c", Observer())
    assert (outcome.failed, outcome.broken) == (0, 0)
    untested = Verdict("untested", reason="MemoryError: logits")
    assert {s.verdict for s in by_drafter(tmp_path / "r", "sick")} == {untested}


def lines(folder: Path) -> dict[tuple[str, str, int], Sample]:
    return {sample.key: sample for sample in load_samples(folder)}


def test_only_failed_samples_are_measured_again(
    target: Path, tmp_path: Path, sick: pytest.MonkeyPatch
) -> None:
    sick.setattr(Sick, "fault", raiser(RuntimeError("flaky")))
    run_plan(plan(target), tmp_path / "r", "c", Observer())
    before = lines(tmp_path / "r")
    sick.setattr(Sick, "fault", None)
    idle = run_plan(plan(target), tmp_path / "r", "c", Observer())
    assert (idle.finished_before, idle.failed) == (True, 2)
    outcome = run_plan(plan(target), tmp_path / "r", "c", Observer(), retry_failed=True)
    assert (outcome.failed, outcome.resumed, outcome.finished_before) == (0, 2, False)
    after = lines(tmp_path / "r")
    assert after.keys() == before.keys()
    for key, sample in before.items():
        assert (after[key] == sample) == (sample.status == "ok")
    again = run_plan(plan(target), tmp_path / "r", "c", Observer(), retry_failed=True)
    assert again.finished_before


class Killing(Observer):
    """Lets the drafter fail once, and stops the run at the baseline's second answer."""

    asked = 0

    def measuring(self, cell: Cell, prompt: str, turn: int) -> None:
        self.asked += cell.role == "baseline"
        if self.asked == 2:
            raise KeyboardInterrupt

    def measured(self, cell: Cell, sample: Sample) -> None:
        if sample.status != "ok":
            Sick.fault = None


def test_a_held_answer_waits_while_an_earlier_prompt_is_measured_again(
    target: Path, tmp_path: Path, sick: pytest.MonkeyPatch
) -> None:
    sick.setattr(Sick, "fault", raiser(RuntimeError("flaky")))
    with pytest.raises(KeyboardInterrupt):
        run_plan(plan(target), tmp_path / "r", "c", Killing())
    held = list(load_samples(tmp_path / "r", HELD))
    assert [s.sample for s in held] == [plan(target).suites[0].prompts[1].id]
    run_plan(plan(target), tmp_path / "r", "c", Observer(), retry_failed=True)
    found = by_drafter(tmp_path / "r", "sick")
    assert len(found) == 2
    assert {s.verdict for s in found} == {Verdict("identical")}


def unbinding(target: Path, folder: Path, sick: pytest.MonkeyPatch, **changes: Any) -> None:
    """Run a drafter that cannot be loaded; afterwards it can be loaded."""
    sick.setattr(Sick, "binding", raiser(MemoryError("40 GB")))
    run_plan(plan(target, **changes), folder, "c", Observer())
    sick.setattr(Sick, "binding", None)


def facts(folder: Path) -> dict[str, tuple[int, str, bool]]:
    """Return width, rule and bound of each cell; every sample must belong to a cell."""
    cells = load_manifest(folder).cells
    assert {s.cell for s in load_samples(folder)} == cells.keys()
    assert all(key == cell.id for key, cell in cells.items())
    return {cell.drafter: (cell.width, cell.rule, cell.bound) for cell in cells.values()}


def test_a_drafter_that_loads_later_is_measured_by_the_same_command(
    target: Path, tmp_path: Path, sick: pytest.MonkeyPatch
) -> None:
    unbinding(target, tmp_path / "r", sick)
    assert facts(tmp_path / "r")["sick"] == (0, "unbound", False)
    before = lines(tmp_path / "r")
    idle = run_plan(plan(target), tmp_path / "r", "c", Observer())
    assert (idle.finished_before, idle.failed) == (True, 2)
    assert lines(tmp_path / "r") == before, "without the option nothing changes"
    outcome = run_plan(plan(target), tmp_path / "r", "c", Observer(), retry_failed=True, trace=1)
    assert (outcome.failed, outcome.resumed, outcome.finished_before) == (0, 2, False)
    assert facts(tmp_path / "r") == {"autoregressive": (0, "none", True), "sick": (3, "walk", True)}
    assert {s.verdict for s in by_drafter(tmp_path / "r", "sick")} == {Verdict("identical")}
    kept = {s.key: s for s in by_drafter(tmp_path / "r", "autoregressive")}
    assert kept == {key: sample for key, sample in before.items() if sample.status == "ok"}
    assert run_plan(plan(target), tmp_path / "r", "c", Observer(), trace=1).finished_before


def test_an_interrupted_run_measures_a_drafter_that_loads_now(
    target: Path, tmp_path: Path, sick: pytest.MonkeyPatch
) -> None:
    unbinding(target, tmp_path / "r", sick)
    path = tmp_path / "r" / SAMPLES
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    outcome = run_plan(plan(target), tmp_path / "r", "c", Observer())
    assert (outcome.failed, outcome.finished_before) == (0, False)
    assert facts(tmp_path / "r")["sick"] == (3, "walk", True)


def test_a_drafter_that_can_no_longer_be_loaded_keeps_its_answers(
    target: Path, tmp_path: Path, sick: pytest.MonkeyPatch
) -> None:
    run_plan(plan(target), tmp_path / "r", "c", Observer())
    cells, path = load_manifest(tmp_path / "r").cells, tmp_path / "r" / SAMPLES
    whole = path.read_text()
    path.write_text("".join(whole.splitlines(keepends=True)[:2]))
    unbinding(target, tmp_path / "r", sick)
    assert load_manifest(tmp_path / "r").cells == cells
    assert sorted(s.status for s in by_drafter(tmp_path / "r", "sick")) == ["error", "ok"]
    outcome = run_plan(plan(target), tmp_path / "r", "c", Observer(), retry_failed=True)
    assert (outcome.failed, outcome.resumed) == (0, 3)
    assert facts(tmp_path / "r")["sick"] == (3, "walk", True)


def test_with_a_failed_baseline_all_its_arms_are_measured_again(
    target: Path, tmp_path: Path, sick: pytest.MonkeyPatch
) -> None:
    opened = Autoregressive.open

    def once(self: Drafter, request: Request) -> DraftSession:
        if type(self) is Autoregressive and request.seed:  # The warm-up has seed 0.
            raise RuntimeError("flaky")
        return opened(self, request)  # type: ignore[arg-type]

    sick.setattr(Autoregressive, "open", once)
    assert run_plan(plan(target), tmp_path / "r", "c", Observer()).failed == 2
    kinds = {s.verdict.kind for s in by_drafter(tmp_path / "r", "sick") if s.verdict}
    assert kinds == {"untested"}
    sick.setattr(Autoregressive, "open", opened)
    outcome = run_plan(plan(target), tmp_path / "r", "c", Observer(), retry_failed=True)
    assert (outcome.failed, outcome.resumed) == (0, 0)
    assert {s.verdict for s in by_drafter(tmp_path / "r", "sick")} == {Verdict("identical")}


def test_broken_output_has_no_speedup_until_it_is_allowed(
    target: Path, tmp_path: Path, sick: pytest.MonkeyPatch
) -> None:
    """This holds in every format, and for the exit code of the command."""
    import json

    from typer.testing import CliRunner

    from specbench.cli import app
    from specbench.report.formats import render
    from specbench.report.summary import summarise

    kept = Verifier._commit

    def careless(self: Verifier, tokens: tuple[int, ...], *rest: Any, **more: Any) -> Commit:
        # Change the last token of every round of the drafter with width 3.
        spoilt = (tokens[-1] + 1) % 200 if self.width == 3 and len(tokens) < 4 else tokens[-1]
        return kept(self, (*tokens[:-1], spoilt), *rest, **more)

    sick.setattr(Verifier, "_commit", careless)
    sick.setattr("sys.argv", ["specbench", "run"])
    sick.chdir(tmp_path)
    asked = ["run", "--drafter", "sick", "--target", str(target), "--limit", "1", "--out", "r"]
    asked += ["--device", "cpu", "--max-new-tokens", "6"]
    for allowed, code in ((), 1), (("--allow-broken",), 0):
        assert CliRunner().invoke(app, [*asked, *allowed]).exit_code == code
    for allowed in (False, True):
        summary = summarise([Path("r")], allow_broken=allowed)
        (row,) = [r for r in json.loads(render(summary, "json"))["rows"] if r["drafter"] == "sick"]
        assert row["lossless"] == "broken"
        figures = [row[f"speedup{kind}"] for kind in ("", "_ci", "_end_to_end")]
        assert [f is None for f in figures] == [not allowed, True, not allowed]
        assert row["aal_pooled"] is not None
        assert "BROKEN" in render(summary, "markdown")
