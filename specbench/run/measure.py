"""One decoded sequence on the clock."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specbench.clock import now, synchronise
from specbench.core.decode import Round, cut, rounds
from specbench.core.drafter import Drafter, NullProbe, Probe, Request
from specbench.core.sampling import Sampling
from specbench.core.target import Target
from specbench.core.verifier import Verifier

WARM_UP_TOKENS = 16


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


def _reset_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak_memory(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
