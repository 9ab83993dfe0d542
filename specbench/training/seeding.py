"""Reproducible initial weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's global generator, which initialisers draw from, and puts it back after."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # noqa: TID251 (initialisers take no generator)
        yield
