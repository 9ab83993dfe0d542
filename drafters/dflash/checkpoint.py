"""Drafts on disk in the z-lab layout: config.json and safetensors, nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from drafters.dflash.config import DFlashConfig, dump_config, parse_config
from drafters.dflash.model import DFlashModel
from specbench.api import UserError

_JOINED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


def find_checkpoint(name: str, revision: str | None) -> Path:
    """The folder of a draft: ``name`` itself, or the hub's snapshot of that id.

    Raises:
        UserError: neither a folder nor a hub id that can be had.
    """
    folder = Path(name)
    if folder.is_dir():
        return folder
    try:
        return Path(
            snapshot_download(
                name, revision=revision, allow_patterns=["config.json", "*.safetensors"]
            )
        )
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"Cannot load the draft {name!r}: {reason}",
            "Give a folder with config.json and safetensors, or a hub id that this machine can "
            "reach (elsewhere: `hf download`, copy the folder, pass its path).",
        ) from error


def load_config(folder: Path) -> DFlashConfig:
    """config.json of a folder, as data.

    Raises:
        UserError: it is missing, no JSON object, or not z-lab's layout.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"There is no config.json in {folder}: a draft is a folder with one.")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}.") from error
    if not isinstance(raw, dict):
        raise UserError(f"{path} must hold a JSON object, not {type(raw).__name__}.")
    return parse_config(raw, str(folder))


def load_model(
    folder: Path, config: DFlashConfig, device: torch.device, dtype: torch.dtype
) -> DFlashModel:
    """The weights of a folder, all of them and no others, in ``dtype`` on ``device``.

    Raises:
        UserError: names every tensor that is missing, unknown or of the wrong shape.
    """
    with torch.device("meta"):
        model = DFlashModel(config)
    with ExitStack() as stack:
        files = _open(folder, stack)
        _check(folder, files, _shapes(model, config))
        for name, parameter in list(model.named_parameters()):
            parts = [files[part].get_tensor(part) for part in part_names(name)]
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
    """The checkpoint's tensors that make up one parameter of `DFlashModel`, in order."""
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
    """Every tensor a checkpoint of this config holds."""
    return {
        part: shape
        for name, parameter in model.named_parameters()
        for part, shape in zip(
            part_names(name), _part_shapes(part_names(name), parameter, config), strict=True
        )
    }


def _open(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Which open file holds which tensor."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            file = stack.enter_context(safe_open(path, framework="pt"))
        except SafetensorError as error:
            raise UserError(f"{path} is not a safetensors file: {error}.") from error
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            if name in found:
                raise UserError(f"The tensor {name} is in more than one file of {folder}.")
            found[name] = file
    if not found:
        raise UserError(
            f"There is no safetensors file in {folder}; other weight formats are not read."
        )
    return found


def _check(folder: Path, files: dict[str, Any], want: dict[str, tuple[int, ...]]) -> None:
    shapes = {name: tuple(file.get_slice(name).get_shape()) for name, file in files.items()}
    faults = [f"missing {name} {list(want[name])}" for name in sorted(want.keys() - shapes.keys())]
    faults += [
        f"unknown {name} {list(shapes[name])}" for name in sorted(shapes.keys() - want.keys())
    ]
    faults += [
        f"{name} is {list(shapes[name])} instead of {list(want[name])}"
        for name in sorted(want.keys() & shapes.keys())
        if shapes[name] != want[name]
    ]
    if faults:
        raise UserError(
            f"The tensors in {folder} are not those of a DFlash draft with its config.json: "
            f"{'; '.join(faults)}."
        )
