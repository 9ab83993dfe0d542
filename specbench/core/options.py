"""The options of a drafter that has none; this module does not import torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NoOptions:
    """A drafter without settings."""
