"""Options where there are none; without torch, so that they can be listed at once."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NoOptions:
    """No settings."""
