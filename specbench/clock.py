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
    """Monotonic seconds since an arbitrary start."""
    return time.perf_counter()


def synchronise(device: torch.device) -> None:
    """Wait until ``device`` has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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
