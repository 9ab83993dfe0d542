"""Checkpoints of a training run: one folder each, written completely or not at all."""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

_PREFIX = "checkpoint-"


def save_checkpoint(folder: Path, module: nn.Module, state: dict[str, Any], step: int) -> None:
    """Write the trained parameters and the run's state, then remove older checkpoints."""
    final = folder / f"{_PREFIX}{step}"
    unfinished = folder / f"unfinished-{step}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    trained = {
        name: parameter.detach().contiguous()
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }
    save_file(trained, unfinished / "model.safetensors")
    torch.save(state, unfinished / "state.pt")
    shutil.rmtree(final, ignore_errors=True)
    unfinished.replace(final)
    for other in folder.glob(f"{_PREFIX}*"):
        if other != final:
            shutil.rmtree(other)


def latest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint with the most steps; None if there is none."""
    found = folder.glob(f"{_PREFIX}*")
    return max(found, key=lambda path: int(path.name.removeprefix(_PREFIX)), default=None)


def load_checkpoint(path: Path, module: nn.Module) -> dict[str, Any]:
    """Load the parameters into ``module``; return the run's state.

    Raises:
        ValueError: the checkpoint holds other parameters.
    """
    trained = load_file(path / "model.safetensors")
    names = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    if names != trained.keys():
        raise ValueError(f"{path} holds other parameters: {sorted(names ^ trained.keys())}")
    module.load_state_dict(trained, strict=False)
    state: dict[str, Any] = torch.load(path / "state.pt", weights_only=True, map_location="cpu")
    return state
