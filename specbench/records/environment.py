"""Where a run happened and with which models: all that could change a number but is no setting."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache

import specbench
from specbench import zoo
from specbench.records.records import ModelId

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "huggingface-hub")
ROOT = Path(specbench.__file__).resolve().parent.parent


def environment(device: str) -> dict[str, Any]:
    """Versions, commit, machine and threads, as JSON values; absent facts are None."""
    gpu = torch.cuda.get_device_name(device) if device == "cuda" else None
    return {
        "specbench": specbench.__version__,
        **git_state(ROOT),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "os": platform.platform(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "driver": _command("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        if gpu
        else None,
        "cuda": torch.version.cuda if gpu else None,
    }


def git_state(root: Path) -> dict[str, Any]:
    """Commit of the checkout at ``root`` and whether tracked files differ from it.

    Both None unless ``root`` itself is a checkout: an installed package inside somebody's
    repository must not report that repository's commit.
    """
    if not (root / ".git").exists():
        return {"commit": None, "dirty": None}
    commit = _command("git", "-C", str(root), "rev-parse", "HEAD")
    changes = _command("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit or None, "dirty": None if changes is None else bool(changes)}


def cpu_model() -> str:
    """The processor's name as the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def model_id(name: str, revision: str | None = None) -> ModelId:
    """A folder (embedded models too) by the hash of its files, a hub id by its revision.

    The revision is the cached one, so the model must have been loaded before.
    """
    folder = Path(zoo.resolve(name))
    if folder.is_dir():
        return ModelId(name, sha256=content_hash(folder))
    config = try_to_load_from_cache(name, "config.json", revision=revision)
    return ModelId(name, revision=Path(config).parent.name if isinstance(config, str) else None)


def content_hash(folder: Path) -> str:
    """SHA-256 over what a model is loaded from: weights, configs and tokenizer, by file name."""
    digest = hashlib.sha256()
    kinds = ("*.safetensors", "*config.json", "tokenizer.json", "*.jinja", "*.bin")
    for path in sorted({path for kind in kinds for path in folder.glob(kind)}):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _command(*command: str) -> str | None:
    """The output of a command that only looks; None where it is absent or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
