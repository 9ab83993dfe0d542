"""Timing with a clock that only the test moves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import specbench.clock
from specbench.clock import EnergyMeter, PhaseProbe, synchronise
from specbench.core.decode import generate
from specbench.core.drafter import (
    Autoregressive,
    Commit,
    Drafter,
    DraftSession,
    Request,
    TargetView,
)
from specbench.core.proposal import Proposal
from specbench.core.sampling import Sampling
from specbench.core.target import Target
from specbench.core.verifier import Verifier
from specbench.run import measure

PROMPT = [3, 4, 5]


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Slow(Drafter):
    """Proposes nothing. It takes 4 s to open, 1 s per commit and 2 s per proposal."""

    name = "slow"

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def bind(self, target: TargetView) -> None:
        pass

    def open(self, request: Request) -> DraftSession:
        self.clock.seconds += 4
        return _Slow(self.clock)


class _Slow(DraftSession):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def commit(self, commit: Commit) -> None:
        self.clock.seconds += 1

    def propose(self, budget: int) -> Proposal:
        self.clock.seconds += 2
        return Proposal.chain(torch.empty(0, dtype=torch.long))


@pytest.fixture(scope="module")
def target() -> Target:
    config = Qwen3Config(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        eos_token_id=None,
        max_position_embeddings=16,
    )
    return Target(Qwen3ForCausalLM(config))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (specbench.clock, measure):
        monkeypatch.setattr(module, "now", clock)
    return clock


def test_decode_time_includes_the_drafters_own_prefill(target: Target, clock: Clock) -> None:
    timed = measure.timed_answer(target, Slow(clock), PROMPT, 4, sampling=Sampling(), seed=0)
    assert timed.prefill_seconds == 0
    # Opening and the first commit take 5 s; then three proposals and two commits.
    assert timed.decode_seconds == 5 + 3 * 2 + 2 * 1
    assert timed.peak_memory_bytes is None


def test_prefill_is_timed_separately(
    target: Target, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill = Verifier.prefill

    def slow_prefill(verifier: Verifier, prompt: list[int]) -> Commit:
        clock.seconds += 7
        return prefill(verifier, prompt)

    monkeypatch.setattr(Verifier, "prefill", slow_prefill)
    timed = measure.timed_answer(target, Slow(clock), PROMPT, 2, sampling=Sampling(), seed=0)
    assert (timed.prefill_seconds, timed.decode_seconds) == (7, 7)


def test_the_answer_equals_generate(target: Target) -> None:
    drafter = Autoregressive()
    drafter.bind(target.view())
    warm = Sampling(temperature=1.0)
    timed = measure.timed_answer(target, drafter, PROMPT, 6, sampling=warm, seed=9)
    plain = generate(target, drafter, PROMPT, 6, sampling=warm, seed=9)
    assert timed.output == plain
    assert sum(len(r.tokens) for r in plain.rounds) + 1 == len(plain.tokens) == 6


def test_one_token_needs_no_round(target: Target, clock: Clock) -> None:
    timed = measure.timed_answer(target, Slow(clock), PROMPT, 1, sampling=Sampling(), seed=0)
    assert (len(timed.output.tokens), timed.output.rounds) == (1, ())
    assert timed.output.finish == "length"
    assert timed.decode_seconds == 0


def test_phase_probe_splits_a_round(target: Target, clock: Clock) -> None:
    probe = PhaseProbe(target.device)
    measure.timed_answer(target, Slow(clock), PROMPT, 4, sampling=Sampling(), seed=0, probe=probe)
    assert probe.seconds == {"draft": 5 + 3 * 2, "verify": 0, "accept": 0, "update": 2}


def test_an_inner_phase_is_not_counted_twice(clock: Clock) -> None:
    probe = PhaseProbe(torch.device("cpu"))
    with probe.phase("draft"):
        clock.seconds += 2
        for _ in range(2):
            with probe.phase("search"):
                clock.seconds += 3
        clock.seconds += 1
    assert probe.seconds == {"draft": 3, "search": 6}


def test_energy_is_the_increase_of_the_counters(tmp_path: Path) -> None:
    for package, microjoules in enumerate((1_000_000, 500_000)):
        (tmp_path / f"intel-rapl:{package}").mkdir()
        (tmp_path / f"intel-rapl:{package}" / "energy_uj").write_text(f"{microjoules}\n")
    meter = EnergyMeter(torch.device("cpu"), tmp_path)
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("2500000\n")
    assert meter.joules() == 2
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("0\n")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("0\n")
    assert meter.joules() is None
    assert EnergyMeter(torch.device("cpu"), tmp_path / "none").joules() is None


def test_only_a_cuda_device_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    synchronise(torch.device("cpu"))
    synchronise(torch.device("cuda"))
    assert waited == [torch.device("cuda")]
