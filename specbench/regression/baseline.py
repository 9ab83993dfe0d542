"""A run takes the place of the baseline on disk."""

import shutil
from pathlib import Path

from specbench.errors import UserError, writing
from specbench.records.records import MANIFEST, SAMPLES, load_manifest
from specbench.records.traces import TRACES


def replace_baseline(baseline: Path, candidate: Path) -> None:
    """Copy the candidate's manifest, samples and traces over those of the baseline.

    Raises:
        UserError: the candidate holds no run, is the baseline itself, or cannot be copied.
    """
    load_manifest(candidate)
    if candidate.resolve() == baseline.resolve():
        raise UserError(f"{candidate} is the baseline already.")
    with writing(baseline):
        baseline.mkdir(parents=True, exist_ok=True)
        if (candidate / TRACES).exists():
            shutil.copyfile(candidate / TRACES, baseline / TRACES)
        else:
            (baseline / TRACES).unlink(missing_ok=True)
        for name in (SAMPLES, MANIFEST):
            temporary = baseline / f"{name}.new"
            shutil.copyfile(candidate / name, temporary)
            temporary.replace(baseline / name)
