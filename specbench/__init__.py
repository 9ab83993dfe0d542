"""specbench: a comparative benchmark of speculative drafters."""

__version__ = "0.1.0"
