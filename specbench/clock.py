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


def now() -> float:
    """Return monotonic seconds since an arbitrary start."""
    return time.perf_counter()


def synchronise(device: torch.device) -> None:
    """Wait until ``device`` has finished all work that was queued on it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class PhaseProbe:
    """Measures seconds per phase, with device events on CUDA and with the clock elsewhere.

    The time of a phase inside another one ("search" in "draft") is not counted for the outer
    one. Probing costs time, so a pass with this probe gives shares and never headline figures.
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
        """Seconds by phase name, over all phases that have ended."""
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
    """Mark this moment: an event in the device's stream on CUDA, seconds elsewhere."""
    if device.type != "cuda":
        return now()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def _between(start: Any, end: Any) -> float:
    return float(end - start if isinstance(start, float | int) else start.elapsed_time(end) / 1e3)


class EnergyMeter:
    """Measures the joules that a device has used since the meter was made.

    It reads NVIDIA's total energy counter through NVML (the optional package nvidia-ml-py), or
    the processor packages' RAPL counters in the kernel's powercap folder.
    """

    def __init__(self, device: torch.device, powercap: Path = Path("/sys/class/powercap")) -> None:
        self._read = _nvml(device) if device.type == "cuda" else _rapl(powercap)
        self._start = self._read() if self._read else None

    def joules(self) -> float | None:
        """Return the joules used so far; None without a counter, or if it wrapped around."""
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
        except (OSError, ValueError):  # On most systems only root may read them (since 2020).
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
