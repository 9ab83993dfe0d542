"""EAGLE drafts on disk: config.json with safetensors, or with a .bin that holds only tensors."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from drafters.eagle.config import EagleConfig, dump_config
from drafters.eagle.layout import parse_config
from drafters.eagle.model import Eagle3Model, EagleModel
from specbench.api import UserError
from specbench.drafting.checkpoints import Shape, check_shapes, open_tensors, read_config

AnyEagle = Eagle3Model | EagleModel


def load_model(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    adjust: Callable[[EagleConfig], EagleConfig] = lambda config: config,
) -> AnyEagle:
    """Load a draft with all its tensors and no others, in ``dtype`` on ``device``.

    Args:
        adjust: changes the settings read from the folder before the model is made.

    Raises:
        UserError: no config.json or weights, a switch that is not implemented, tensors that are
            missing, unknown, misshapen or not finite (all named), a broken d2t or t2d.
    """
    raw = read_config(folder)
    tensors = _official_names(_read_tensors(folder), folder)
    config = adjust(parse_config(raw, _shapes(tensors), str(folder)))
    _settle_vocabulary(tensors, config, folder)
    with torch.device("meta"):
        model = Eagle3Model(config) if config.version == 3 else EagleModel(config)
    check_shapes(_shapes(tensors), _shapes(model.state_dict()), folder, "an EAGLE draft")
    loaded = {name: _cast(value, device, dtype) for name, value in tensors.items()}
    _check_finite(folder, loaded)
    model.load_state_dict(loaded, assign=True)
    return model.eval().requires_grad_(False)


def save_model(model: AnyEagle, folder: Path, dtype: torch.dtype) -> None:
    """Write config.json and model.safetensors in the official layout."""
    folder.mkdir(parents=True, exist_ok=True)
    cpu = torch.device("cpu")
    tensors = {name: _cast(value.detach(), cpu, dtype).contiguous()
               for name, value in model.state_dict().items()}  # fmt: skip
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = dump_config(model.config, str(dtype).removeprefix("torch."))
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, Shape]:
    return {name: tuple(value.shape) for name, value in tensors.items()}


def _cast(value: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    return value.to(device, dtype) if value.is_floating_point() else value.to(device)


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a folder by name; .bin files only where there is no safetensors file."""
    if list(folder.glob("*.safetensors")):
        with open_tensors(folder) as stored:
            return {name: stored.read(name) for name in stored.shapes}
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.bin")):
        for name, value in _read_bin(path).items():
            if name in found:
                raise UserError(f"The tensor {name} is in more than one file of {folder}.")
            found[name] = value
    if not found:
        raise UserError(f"There is neither a safetensors nor a .bin file in {folder}.")
    return found


def _read_bin(path: Path) -> dict[str, Tensor]:
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "it is cut short"
        raise UserError(
            f"{path} cannot be read as a file of tensors and nothing else: {reason}"
        ) from error
    if not isinstance(held, dict) or not all(isinstance(value, Tensor) for value in held.values()):
        raise UserError(f"{path} must hold named tensors and nothing else.")
    return held


def _official_names(tensors: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """Rename tensors to the official spelling: no trainer's prefix, EAGLE-3's first layer is
    ``midlayer``."""
    plain = {name.removeprefix("draft_model."): value for name, value in tensors.items()}
    if "layers.0.hidden_norm.weight" in plain:
        plain = {_midlayer(name): value for name, value in plain.items()}
    if len(plain) != len(tensors):
        raise UserError(f"Some tensors in {folder} are there twice under two spellings.")
    return plain


def _midlayer(name: str) -> str:
    return "midlayer." + name.removeprefix("layers.0.") if name.startswith("layers.0.") else name


def _settle_vocabulary(tensors: dict[str, Tensor], config: EagleConfig, folder: Path) -> None:
    """Check d2t and t2d, rebuild a missing t2d, drop both where the vocabulary is not reduced.

    Raises:
        UserError: the two contradict each other or the sizes.
    """
    offsets, mask = tensors.pop("d2t", None), tensors.pop("t2d", None)
    if config.version != 3 or offsets is None:
        return
    if offsets.shape != (config.draft_vocab_size,) or offsets.is_floating_point():
        raise UserError(
            f"d2t in {folder} is {list(offsets.shape)} of {offsets.dtype} instead of "
            f"[{config.draft_vocab_size}] of integers."
        )
    ids = torch.arange(config.draft_vocab_size) + offsets.long()
    if not bool((offsets.diff() >= 0).all()) or not bool(((ids >= 0) & (offsets >= 0)).all()):
        raise UserError(
            f"d2t in {folder} decreases or is negative: it must hold target id minus draft id, "
            "with draft ids in the order of their target ids."
        )
    if int(ids[-1]) >= config.vocab_size:
        raise UserError(
            f"d2t in {folder} leads to the target id {int(ids[-1])}, but there are only "
            f"{config.vocab_size} ids."
        )
    if config.draft_vocab_size == config.vocab_size:
        return
    rebuilt = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill_(0, ids, True)
    if mask is not None and (mask.shape != rebuilt.shape or not torch.equal(mask.bool(), rebuilt)):
        raise UserError(
            f"d2t and t2d in {folder} contradict each other: t2d marks {int(mask.sum())} target "
            f"ids, d2t leads to {int(rebuilt.sum())}, and they are not the same."
        )
    if not bool(offsets.any()) and mask is None:
        raise UserError(
            f"d2t in {folder} is all zeros though the draft has {config.draft_vocab_size} of the "
            f"target's {config.vocab_size} ids, and there is no t2d that would confirm it."
        )
    tensors["d2t"], tensors["t2d"] = offsets.long(), rebuilt


def _check_finite(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    broken = [name for name, value in tensors.items() if not bool(value.isfinite().all())]
    if broken:
        raise UserError(
            f"The draft in {folder} holds numbers that are not finite (or not in the target's "
            f"dtype) in {', '.join(sorted(broken))}."
        )


def own_embedding_differs(model: AnyEagle, target_embedding: Tensor) -> bool:
    """True if the draft's embedding differs from the target's; an identical copy is dropped.

    Some exporters write the target's embedding, also in another 16-bit format, and one exporter
    wrote a random embedding.
    """
    own = model.embed_tokens
    if own is None:
        return False
    if own.weight.shape != target_embedding.shape:
        return True
    if torch.allclose(own.weight, target_embedding, rtol=2**-8, atol=1e-6):
        model.embed_tokens = None
        return False
    warnings.warn(
        "The draft brings an embedding that is not the target's. It is used; if acceptance is near "
        "zero, the checkpoint may have been exported with a wrong embedding.",
        stacklevel=2,
    )
    return True
