"""The only module that reads a clock or waits for a device."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
    """Seconds spent in "draft", "verify" and "commit", waiting for the device at each end.

    A phase inside another one ("search" in "draft") counts for itself and not for the outer one.
    The waiting itself costs time, so a pass with it gives shares and never headline figures.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._device = device
        self._inner = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        synchronise(self._device)
        before, self._inner = self._inner, 0.0
        start = now()
        yield
        synchronise(self._device)
        took = now() - start
        self.seconds[name] += took - self._inner
        self._inner = before + took


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
    verifier = Verifier(
        target, sampling, seed, len(prompt), budget, drafter.width, drafter.taps, drafter.rule
    )
    first = verifier.prefill(prompt)
    synchronise(target.device)
    prefilled = now()
    request = Request(sampling, seed, verifier.capacity, probe or NullProbe())
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


def _reset_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak_memory(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
