"""Reproducible initial weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator, which initialisers draw from, and restore it afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # noqa: TID251 (initialisers take no generator)
        yield
