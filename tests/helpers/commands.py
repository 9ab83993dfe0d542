"""Run the command line in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def specbench(*arguments: object) -> list[str]:
    """Return the command line for another process."""
    return [sys.executable, "-m", "specbench", *map(str, arguments)]


ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
"""The environment of every such process: a run may be continued only with as many threads."""


def call(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run specbench in ``cwd`` and wait for its end."""
    return subprocess.run(
        specbench(*arguments),
        cwd=cwd,
        env=ONE_THREAD,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
