"""Drafts on disk in the z-lab layout: config.json and safetensors, nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from drafters.dflash.config import DFlashConfig, dump_config, parse_config
from drafters.dflash.model import DFlashModel
from specbench.drafting.checkpoints import check_shapes, open_tensors, read_config

_JOINED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


def load_config(folder: Path) -> DFlashConfig:
    """Read config.json of a folder, as data.

    Raises:
        UserError: it is missing, no JSON object, or not z-lab's layout.
    """
    return parse_config(read_config(folder), str(folder))


def load_model(
    folder: Path, config: DFlashConfig, device: torch.device, dtype: torch.dtype
) -> DFlashModel:
    """Load the weights of a folder, all of them and no others, in ``dtype`` on ``device``.

    Raises:
        UserError: names every tensor that is missing, unknown or of the wrong shape.
    """
    with torch.device("meta"):
        model = DFlashModel(config)
    with open_tensors(folder) as stored:
        check_shapes(stored.shapes, _shapes(model, config), folder, "a DFlash draft")
        for name, parameter in list(model.named_parameters()):
            parts = [stored.read(part) for part in part_names(name)]
            value = torch.cat(parts) if len(parts) > 1 else parts[0]
            owner, _, leaf = name.rpartition(".")
            loaded = nn.Parameter(value.to(device, dtype), requires_grad=False)
            model.get_submodule(owner).register_parameter(leaf, loaded)
            assert loaded.shape == parameter.shape
    return model.eval()


def save_model(model: DFlashModel, folder: Path, dtype: torch.dtype) -> None:
    """Write config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        value = parameter.detach().to("cpu", dtype)
        names = part_names(name)
        sizes = [rows for rows, *_ in _part_shapes(names, parameter, model.config)]
        for part, piece in zip(names, torch.split(value, sizes), strict=True):
            tensors[part] = piece.clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = dump_config(model.config, str(dtype).removeprefix("torch."))
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def part_names(parameter: str) -> tuple[str, ...]:
    """Return the names of the checkpoint's tensors that make up a parameter, in order."""
    for joined, parts in _JOINED.items():
        if joined in parameter:
            return tuple(parameter.replace(joined, part) for part in parts)
    return (parameter,)


def _part_shapes(
    names: tuple[str, ...], parameter: Tensor, config: DFlashConfig
) -> Iterator[tuple[int, ...]]:
    rows = {
        "q_proj": config.heads * config.head_dim,
        "k_proj": config.kv_heads * config.head_dim,
        "v_proj": config.kv_heads * config.head_dim,
        "gate_proj": config.intermediate,
        "up_proj": config.intermediate,
    }
    for name in names:
        count = rows.get(name.split(".")[-2], parameter.shape[0])
        yield (count, *parameter.shape[1:])


def _shapes(model: DFlashModel, config: DFlashConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors that a checkpoint of this config holds."""
    return {
        part: shape
        for name, parameter in model.named_parameters()
        for part, shape in zip(
            part_names(name), _part_shapes(part_names(name), parameter, config), strict=True
        )
    }
