"""The machine and the models of a run: all that can change a number without being a setting."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from importlib.metadata import version
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
    """Return versions, commit, machine and threads as JSON values; unknown facts are None."""
    gpu = torch.cuda.get_device_name(device) if device == "cuda" else None
    return {
        "specbench": specbench.__version__,
        **git_state(ROOT),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
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
    """Return the commit of the checkout at ``root``, and whether tracked files differ from it.

    Both are None unless ``root`` itself is a checkout: a package installed inside another
    repository must not report that repository's commit.
    """
    if not (root / ".git").exists():
        return {"commit": None, "dirty": None}
    commit = _command("git", "-C", str(root), "rev-parse", "HEAD")
    changes = _command("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit or None, "dirty": None if changes is None else bool(changes)}


def cpu_model() -> str:
    """Return the processor's name as the system reports it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def model_id(name: str, revision: str | None = None) -> ModelId:
    """Identify a folder or an embedded model by the hash of its files, a hub id by its revision.

    The revision is read from the hub's cache, so the model must have been loaded before.
    """
    folder = Path(zoo.resolve(name))
    if folder.is_dir():
        return ModelId(name, sha256=content_hash(folder))
    config = try_to_load_from_cache(name, "config.json", revision=revision)
    return ModelId(name, revision=Path(config).parent.name if isinstance(config, str) else None)


def content_hash(folder: Path) -> str:
    """Return the SHA-256 of a model's weights, configs and tokenizer, in order of file names."""
    digest = hashlib.sha256()
    kinds = ("*.safetensors", "*config.json", "tokenizer.json", "*.jinja", "*.bin")
    for path in sorted({path for kind in kinds for path in folder.glob(kind)}):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _command(*command: str) -> str | None:
    """Return the output of a command; None if the command is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
