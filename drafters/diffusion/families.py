"""The published masked-diffusion families: everything that differs between them, in one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specbench.api import UserError

BASES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True)
class Family:
    """Facts of a family; `recognise` fills in what one checkpoint settles for itself.

    Attributes:
        name: as in the table and in messages.
        base: the architecture its weights are run with: "qwen2", "qwen3" or "llama".
        shift: True where the logits row at position p - 1 predicts position p.
        mask_id: the id that stands for a masked position; config.json's ``mask_token_id`` wins.
        block_size: of block-causal attention: a position sees its own block and those before;
            None where every position sees every other.
        banned: ids never drafted beside the mask: begin of text, padding.
        stop_ids: ids that end a text, beside config.json's ``eos_token_id``.
        text_ids: ids from here on are special or padding rows and never drafted; None: none are.
        tensors: fragments of the base's tensor names and what the family calls them.
        keys: the base's config keys and what the family calls them.
        fixed: settings whose other values would be another network; refused.
    """

    name: str
    base: str
    shift: bool
    mask_id: int | None = None
    block_size: int | None = None
    banned: tuple[int, ...] = ()
    stop_ids: tuple[int, ...] = ()
    text_ids: int | None = None
    tensors: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def published(self, parameter: str) -> str:
        """The checkpoint's name of one of the base architecture's parameters."""
        for ours, theirs in self.tensors.items():
            parameter = parameter.replace(ours, theirs)
        return parameter


def converted(base: str, mask_id: int, *, shift: bool, block_size: int | None = None) -> Family:
    """A family of our own: a base architecture with a ``diffusion`` object in config.json."""
    return Family("converted", base, shift, mask_id, block_size)


def recognise(raw: Mapping[str, Any], where: str) -> Family:
    """The family of a config.json, with its mask id and block size settled.

    Args:
        raw: the parsed file; ``auto_map`` and the like are never looked at.
        where: the name it was asked for by, for messages.

    Raises:
        UserError: no known family, or settings that are not the family's.
    """
    if "diffusion" in raw:
        return _converted(raw, where)
    raise UserError(
        f"The model {where} has the model_type {raw.get('model_type')!r}, which is no "
        f"masked-diffusion family known here; known are {', '.join(BASES)} with a `diffusion` "
        "object."
    )


def _converted(raw: Mapping[str, Any], where: str) -> Family:
    base, given = raw.get("model_type"), raw["diffusion"]
    if base not in BASES:
        raise UserError(
            f"The model {where} has a `diffusion` object and the model_type {base!r}, but only "
            f"{', '.join(BASES)} can be run so."
        )
    wanted = {"mask_token_id", "shift", "block_size"}
    if not isinstance(given, dict) or set(given) != wanted:
        raise UserError(
            f"The `diffusion` object of {where} must hold {', '.join(sorted(wanted))}, not "
            f"{given!r}."
        )
    mask, shift, block = given["mask_token_id"], given["shift"], given["block_size"]
    if type(mask) is not int or type(shift) is not bool or type(block) not in (int, type(None)):
        raise UserError(
            f"In the `diffusion` object of {where} mask_token_id must be an integer, shift true "
            f"or false, and block_size an integer or null, not {given!r}."
        )
    return replace(converted(base, mask, shift=shift), block_size=block)
