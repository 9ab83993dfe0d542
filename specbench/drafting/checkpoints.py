"""Draft checkpoints on disk: config.json and safetensors, read as data and checked by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specbench.errors import UserError
from specbench.hub import locate

Shape = tuple[int, ...]
T = TypeVar("T")

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Scalings of the rotary embedding that are known to be the same in every trainer."""


class StoredTensors:
    """The tensors of a folder's safetensors files; a value is read when it is requested.

    Attributes:
        shapes: of every tensor, by name.
    """

    def __init__(self, files: Mapping[str, Any]) -> None:
        self._files = files
        self.shapes: dict[str, Shape] = {
            name: tuple(file.get_slice(name).get_shape()) for name, file in files.items()
        }

    def read(self, name: str) -> Tensor:
        """Read one tensor to the CPU, in its stored dtype."""
        value: Tensor = self._files[name].get_tensor(name)
        return value


def find_checkpoint(
    name: str, revision: str | None, fallback: str | None = None, role: str = "draft"
) -> Path:
    """Find the folder of an embedded model, the folder ``name``, or the hub's snapshot of that id.

    Only config.json and safetensors are fetched.

    Args:
        fallback: pattern of the weight files to fetch where there is no safetensors file.
        role: what the model is to the person who named it, for messages.

    Raises:
        UserError: neither an embedded model, nor a folder, nor a hub id that can be fetched.
    """
    folder = Path(locate(name, revision, role))
    if folder.is_dir():
        return folder
    patterns = ["config.json", "*.safetensors"]
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
        if fallback is not None and not list(folder.glob("*.safetensors")):
            patterns.append(fallback)
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"Cannot load the {role} {name!r}: {reason}",
            "Give a folder with config.json and safetensors, or a hub id that this machine can "
            "reach (elsewhere: `hf download`, copy the folder, pass its path).",
        ) from error
    return folder


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json of a folder, as data.

    Raises:
        UserError: it is missing or no JSON object.
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
    return raw


@dataclass(frozen=True)
class ConfigReader:
    """Typed access to the settings of a draft.

    Attributes:
        parts: mappings of a config.json that may hold them; the first that has a key, not null,
            counts.
        where: its path or hub id, for messages.
    """

    parts: Sequence[Mapping[str, Any]]
    where: str

    def value(self, key: str) -> Any:
        """Return a value as it is in the file; None where it is missing or null."""
        return next((part[key] for part in self.parts if part.get(key) is not None), None)

    def optional(self, key: str, kind: type[T]) -> T | None:
        """Return a value or None.

        Raises:
            UserError: it is of another type.
        """
        found = self.value(key)
        if found is not None and type(found) is not kind:
            raise self.error(key, f"must be of type {kind.__name__}, not {found!r}")
        return found

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """Return a whole number; without a default the key is required."""
        found = self.optional(key, int)
        found = default if found is None else found
        if found is None:
            raise self.error(key, "is missing")
        if found < least:
            raise self.error(key, f"must be at least {least}, not {found}")
        return found

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number; without a default the key is required."""
        found = self.value(key)
        found = default if found is None else found
        if found is None:
            raise self.error(key, "is missing")
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self.error(key, f"must be a number, not {found!r}")
        return float(found)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        found = self.optional(key, bool)
        return default if found is None else found

    def rope(self, theta: float | None = None) -> dict[str, Any]:
        """Return ``rope_parameters``, or the same made from the older rope_theta and rope_scaling.

        Args:
            theta: the base for a file that names none; None refuses such a file.
        """
        rope = dict(self.value("rope_parameters") or self.value("rope_scaling") or {})
        kind = rope.pop("type", None)
        rope["rope_type"] = rope.get("rope_type") or kind or "default"
        if rope["rope_type"] not in ROPE_TYPES:
            raise self.error(
                "rope_parameters", f"has the type {rope['rope_type']!r}, not one of {ROPE_TYPES}"
            )
        base = rope.get("rope_theta")
        rope["rope_theta"] = self.number("rope_theta", theta) if base is None else float(base)
        return rope

    def error(self, key: str, fault: str) -> UserError:
        """Make the error that says what is wrong with a setting, and where."""
        return UserError(f"{key} in config.json of {self.where} {fault}.")


@contextmanager
def open_tensors(folder: Path) -> Iterator[StoredTensors]:
    """Open all safetensors files of a folder as one set of tensors, for the ``with`` block.

    Raises:
        UserError: no such file, one that is not safetensors, or a tensor that is in two.
    """
    files: dict[str, Any] = {}
    with ExitStack() as stack:
        for path in sorted(folder.glob("*.safetensors")):
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
            except SafetensorError as error:
                raise UserError(f"{path} is not a safetensors file: {error}.") from error
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                if name in files:
                    raise UserError(f"The tensor {name} is in more than one file of {folder}.")
                files[name] = file
        if not files:
            raise UserError(
                f"There is no safetensors file in {folder}; other weight formats are not read."
            )
        yield StoredTensors(files)


def check_shapes(
    found: Mapping[str, Shape], wanted: Mapping[str, Shape], folder: Path, kind: str
) -> None:
    """Check that a folder holds the wanted tensors and no others.

    Args:
        kind: the kind of draft, for the message: "a DFlash draft".

    Raises:
        UserError: names every tensor that is missing, unknown or of another shape.
    """
    faults = [f"missing {name} {list(wanted[name])}" for name in sorted(wanted.keys() - found)]
    faults += [f"unknown {name} {list(found[name])}" for name in sorted(found.keys() - wanted)]
    faults += [
        f"{name} is {list(found[name])} instead of {list(wanted[name])}"
        for name in sorted(wanted.keys() & found)
        if tuple(found[name]) != tuple(wanted[name])
    ]
    if faults:
        raise UserError(
            f"The tensors in {folder} are not those of {kind} with its config.json: "
            f"{'; '.join(faults)}."
        )
