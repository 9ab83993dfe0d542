"""What all EAGLE drafters share: loading, and what a session needs of the draft and the target."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.eagle.checkpoint import load_model, own_embedding_differs
from drafters.eagle.config import EagleConfig
from specbench.api import Drafter, TargetView, UserError
from specbench.drafting.checkpoints import find_checkpoint
from specbench.drafting.layers import RopeTables


class Eagle(Drafter):
    """An EAGLE head next to its target; subclasses decide on the tree.

    Attributes:
        version: of the heads it runs: 3, or 1 for those of EAGLE-1 and EAGLE-2.
        scratch: rows of a session's buffers that a tree needs behind the committed ones.
        level_size: the most of these rows that run at once.
    """

    version = 3
    scratch = 0
    level_size = 1

    def bind(self, target: TargetView) -> None:
        """Load the draft in the target's dtype, on its device.

        Raises:
            UserError: it cannot be loaded, or does not fit the target or the tree.
        """
        options = self.options
        folder = find_checkpoint(options.model, options.revision, fallback="*.bin")
        self.model = load_model(folder, target.device, target.dtype, self._adjust)
        self.config: EagleConfig = self.model.config
        self.target = target
        check_fit(self.config, target, self.name, options.model, self.version)
        self.taps = self.config.boundaries(target.num_layers)
        lent = target.embedding.weight
        own = own_embedding_differs(self.model, lent)  # type: ignore[arg-type]
        self._embedding: Tensor = self.model.embed_tokens.weight if own else lent  # type: ignore
        offsets = getattr(self.model, "d2t", None)
        self._ids = None if offsets is None else offsets + torch.arange(
            len(offsets), device=offsets.device
        )  # fmt: skip
        self.rope = RopeTables(self.config, target.device)
        self._shape()

    @abstractmethod
    def _shape(self) -> None:
        """Set `width`, `scratch` and `level_size`.

        Raises:
            UserError: the draft cannot grow such a tree.
        """

    def _adjust(self, config: EagleConfig) -> EagleConfig:
        """Apply the options that override settings of the checkpoint."""
        theta = self.options.rope_theta
        if theta is not None:
            config = replace(config, rope={**config.rope, "rope_theta": theta})
        norm_output = getattr(self.options, "norm_output", None)
        return config if norm_output is None else replace(config, norm_output=norm_output)

    @property
    def details(self) -> dict[str, Any]:
        ids = self.config.layer_ids
        return {
            "rope": dict(self.config.rope),
            "layer_ids": None if ids is None else list(ids),
            "boundaries": list(self.taps),
            "draft_vocabulary": self.config.draft_vocab_size,
            "own_embedding": self.model.embed_tokens is not None,
            "norm_output": self.config.norm_output,
            "drafted": self.width,
        }

    def embed(self, ids: Tensor) -> Tensor:
        """Look up raw embedding rows of target ids."""
        return F.embedding(ids, self._embedding)

    def to_target(self, ids: Tensor) -> Tensor:
        """Map draft ids to target ids."""
        return ids if self._ids is None else self._ids.index_select(0, ids)

    def condition(self, features: Tensor) -> Tensor:
        """Turn the target's features ``[n, taps, Ht]`` into the draft's inputs ``[n, H]``."""
        flat = features.flatten(1)
        if self.version == 1:
            # These heads were trained on the input of the target's head.
            flat = self.target.norm(flat)  # type: ignore[misc]
        return self.model.condition(flat)


def check_fit(
    config: EagleConfig, target: TargetView, drafter: str, name: str, version: int
) -> None:
    """Check that a draft was made for this target and for this drafter.

    Raises:
        UserError: names everything that does not fit.
    """
    kinds = {1: "an EAGLE-1/2 head", 3: "an EAGLE-3 head"}
    if config.version != version:
        better = "eagle2 or eagle1" if config.version == 1 else "eagle3"
        raise UserError(
            f"{drafter} runs {kinds[version]}, but {name!r} is {kinds[config.version]}: take "
            f"the drafter {better} for it."
        )
    faults = []
    if config.target_hidden != target.hidden_size:
        faults.append(f"its features are {config.target_hidden} wide, not {target.hidden_size}")
    if config.vocab_size != target.vocab_size:
        faults.append(f"it was made for {config.vocab_size} token ids, not {target.vocab_size}")
    if config.hidden != target.hidden_size and not config.own_embedding:
        faults.append(
            f"it is {config.hidden} wide and brings no embedding, the target's is "
            f"{target.hidden_size} wide"
        )
    if config.hidden != target.hidden_size and not (config.own_head and version == 3):
        faults.append(f"it is {config.hidden} wide and brings no head of its own")
    if version == 1 and target.norm is None:
        faults.append("it reads the output of the target's final norm, and that norm was not found")
    if faults:
        raise UserError(
            f"The draft {name!r} does not fit the target {target.name!r}: {'; '.join(faults)}."
        )
