"""Paths of the real suites' data, for tests that read it."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("SPECBENCH_DATA") or ROOT / "../shared/data")
