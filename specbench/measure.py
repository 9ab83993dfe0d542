"""The only module that reads a clock or waits for a device."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specbench.core.decode import Round, cut, rounds
from specbench.core.drafter import Drafter, NullProbe, Probe, Request
from specbench.core.sampling import Sampling
from specbench.core.target import Target
from specbench.core.verifier import Verifier

WARM_UP_TOKENS = 16


def now() -> float:
    """Monotonic seconds since an arbitrary start."""
    return time.perf_counter()


def synchronise(device: torch.device) -> None:
    """Wait until ``device`` has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Timed:
    """One decoded sequence and what it took.

    Attributes:
        output: output tokens, the prefill's first.
        rounds: what each round did.
        finish: "stop" or "length".
        prefill_seconds: until the prefill's token is known.
        decode_seconds: from then to the end, the drafter's own prefill included.
        peak_memory_bytes: most device memory held meanwhile, every loaded model included; None
            on a CPU.
    """

    output: tuple[int, ...]
    rounds: tuple[Round, ...]
    finish: str
    prefill_seconds: float
    decode_seconds: float
    peak_memory_bytes: int | None


class PhaseProbe:
    """Seconds by phase: the device's own events on CUDA, the clock elsewhere.

    A phase inside another one ("search" in "draft") counts for itself and not for the outer one.
    Looking costs time, so a pass with it gives shares and never headline figures.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._phases: list[_Phase] = []
        self._open: list[_Phase] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        phase = _Phase(name, self._open[-1] if self._open else None, _mark(self._device))
        self._phases.append(phase)
        self._open.append(phase)
        yield
        self._open.pop()
        phase.end = _mark(self._device)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by name of phase, of all that has ended."""
        synchronise(self._device)
        totals: dict[str, float] = defaultdict(float)
        for phase in self._phases:
            took = _between(phase.start, phase.end)
            totals[phase.name] += took
            if phase.outer is not None:
                totals[phase.outer.name] -= took
        return dict(totals)


@dataclass
class _Phase:
    name: str
    outer: _Phase | None
    start: Any
    end: Any = None


def _mark(device: torch.device) -> Any:
    """This moment: an event in the device's stream on CUDA, seconds elsewhere."""
    if device.type != "cuda":
        return now()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def _between(start: Any, end: Any) -> float:
    return float(end - start if isinstance(start, float | int) else start.elapsed_time(end) / 1e3)


def timed_sample(
    target: Target,
    drafter: Drafter,
    prompt: list[int],
    max_new_tokens: int,
    *,
    sampling: Sampling,
    seed: int,
    probe: Probe | None = None,
) -> Timed:
    """Decode ``prompt`` once with a bound drafter, on the clock.

    Raises:
        UserError: the prompt leaves no room for a token in the target's context.
    """
    budget = target.budget(len(prompt), max_new_tokens)
    stop_ids = target.stop_ids
    _reset_peak_memory(target.device)
    synchronise(target.device)
    start = now()
    probe = probe or NullProbe()
    verifier = Verifier(
        target,
        sampling,
        seed,
        len(prompt),
        budget,
        drafter.width,
        drafter.taps,
        drafter.rule,
        probe,
    )
    first = verifier.prefill(prompt)
    synchronise(target.device)
    prefilled = now()
    request = Request(sampling, seed, verifier.capacity, probe)
    done = tuple(rounds(verifier, drafter, first, budget, stop_ids, request))
    synchronise(target.device)
    end = now()
    opening, finish = cut(first.tokens[-1:], budget, stop_ids)
    return Timed(
        output=opening + tuple(token for one in done for token in one.tokens),
        rounds=done,
        finish=(done[-1].finish if done else finish) or "length",
        prefill_seconds=prefilled - start,
        decode_seconds=end - prefilled,
        peak_memory_bytes=_peak_memory(target.device),
    )


def warm_up(target: Target, drafter: Drafter, prompt: list[int], sampling: Sampling) -> None:
    """Decode a few tokens that nobody counts: kernels, buffers and caches come into being."""
    timed_sample(target, drafter, prompt, WARM_UP_TOKENS, sampling=sampling, seed=0)


class EnergyMeter:
    """Joules a device has taken since some moment, where the driver or the kernel tells.

    NVIDIA's total energy counter through NVML (the optional package nvidia-ml-py), or the
    processor packages' RAPL counters in the kernel's powercap folder.
    """

    def __init__(self, device: torch.device, powercap: Path = Path("/sys/class/powercap")) -> None:
        self._read = _nvml(device) if device.type == "cuda" else _rapl(powercap)
        self._start = self._read() if self._read else None

    def joules(self) -> float | None:
        """Since the meter was made; None where nothing tells, or a counter wrapped around."""
        if self._read is None or self._start is None:
            return None
        end = self._read()
        return end - self._start if end is not None and end >= self._start else None


def _rapl(powercap: Path) -> Callable[[], float | None] | None:
    counters = sorted(powercap.glob("intel-rapl:[0-9]/energy_uj"))
    if not counters:
        return None

    def read() -> float | None:
        try:
            return sum(int(counter.read_text()) for counter in counters) / 1e6
        except (OSError, ValueError):  # Since 2020 only root may read them on most systems.
            return None

    return read


def _nvml(device: torch.device) -> Callable[[], float | None] | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except (ImportError, AttributeError):
        return None
    except pynvml.NVMLError:
        return None
    return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3


def _reset_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak_memory(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
