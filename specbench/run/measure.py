"""Time one answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from specbench.clock import now, synchronise
from specbench.core.decode import Decoding, Output
from specbench.core.drafter import Drafter
from specbench.core.target import Target


@dataclass(frozen=True)
class Answer:
    """One decoded sequence with its seconds and memory.

    Attributes:
        output: tokens and rounds.
        prefill_seconds: seconds until the prefill's token is known.
        decode_seconds: seconds from then to the end, the drafter's own prefill included.
        peak_memory_bytes: peak device memory, every loaded model included; None on a CPU.
    """

    output: Output
    prefill_seconds: float
    decode_seconds: float
    peak_memory_bytes: int | None


def timed_answer(
    target: Target, drafter: Drafter, prompt: list[int], max_new_tokens: int, **settings: Any
) -> Answer:
    """Decode ``prompt`` once with a bound drafter, and time it.

    Args:
        target: the model.
        drafter: a drafter bound to it.
        prompt: token ids.
        max_new_tokens: the most output tokens.
        settings: sampling, seed, depth and probe of `Decoding`.

    Raises:
        UserError: the prompt leaves no room for a token in the target's context.
    """
    device = target.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    synchronise(device)
    start = now()
    decoding = Decoding(target, drafter, prompt, max_new_tokens, **settings)
    decoding.prefill()
    synchronise(device)
    prefilled = now()
    for _ in decoding.rounds():
        pass
    synchronise(device)
    end = now()
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return Answer(decoding.output(), prefilled - start, end - prefilled, peak)
