"""EAGLE-1, EAGLE-2 and EAGLE-3 as drafters: one class, and presets that differ in their tree."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.eagle.checkpoint import load_model, own_embedding_differs
from drafters.eagle.config import EagleConfig
from drafters.eagle.options import Eagle1Options, Eagle2Options, Eagle3Options
from drafters.eagle.session import ChainSession, FixedSession, TreeSession
from drafters.eagle.tree import FIXED_TREE
from specbench.api import REJECT, WALK, Drafter, DraftSession, Request, Rule, TargetView, UserError
from specbench.drafting.checkpoints import find_checkpoint
from specbench.drafting.layers import RopeTables


class Eagle(Drafter):
    """What all presets share: loading, and what a session needs of the draft and the target.

    Attributes:
        version: of the heads it runs: 3, or 1 for those of EAGLE-1 and EAGLE-2.
        scratch: rows of a session's buffers that a tree needs behind the committed ones.
        level_size: the most of them that run at once.
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
        """The settings of the checkpoint with what the options override."""
        theta = self.options.rope_theta
        if theta is not None:
            config = replace(config, rope={**config.rope, "rope_theta": theta})
        norm_output = getattr(self.options, "norm_output", None)
        return config if norm_output is None else replace(config, norm_output=norm_output)

    @property
    def details(self) -> dict[str, Any]:
        """What was settled at `bind`, beside the options: for a person or a record to keep."""
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
        """Raw embedding rows of target ids."""
        return F.embedding(ids, self._embedding)

    def to_target(self, ids: Tensor) -> Tensor:
        """Target ids of draft ids."""
        return ids if self._ids is None else self._ids.index_select(0, ids)

    def condition(self, features: Tensor) -> Tensor:
        """``[n, taps, Ht]`` from the target to ``[n, H]``, as the draft's forward wants it."""
        flat = features.flatten(1)
        if self.version == 1:
            # These heads were trained on what the target's head sees.
            flat = self.target.norm(flat)  # type: ignore[misc]
        return self.model.condition(flat)


class Eagle3(Eagle):
    """EAGLE-3 with EAGLE-2's tree, sized as in its paper for 7-8B targets."""

    name = "eagle3"
    Options: ClassVar[type] = Eagle3Options

    def _shape(self) -> None:
        options = self.options
        if options.top_k > self.config.draft_vocab_size:
            raise UserError(
                f"{self.name}.top_k is {options.top_k}, but the draft knows "
                f"{self.config.draft_vocab_size} tokens only."
            )
        self.top_k = self.level_size = int(options.top_k)
        pool = self.top_k + options.depth * self.top_k**2
        self.width = min(options.total_tokens - 1, pool)
        # A node of level l needs l nodes above it, so deeper ones could never be kept.
        self.depth = min(options.depth, self.width - 1)
        self.scratch = self.depth * self.top_k

    def open(self, request: Request) -> DraftSession:
        return ChainSession(self, request) if self.top_k == 1 else TreeSession(self, request)

    @property
    def details(self) -> dict[str, Any]:
        # What is grown: fewer levels than asked for where the drafted tokens would not reach.
        return super().details | {"depth": self.depth, "levels": self.depth + 1}


class Eagle2(Eagle3):
    """The heads of EAGLE-1 with a tree grown by score (arXiv 2406.16858)."""

    name = "eagle2"
    version = 1
    Options: ClassVar[type] = Eagle2Options


class Eagle1(Eagle):
    """EAGLE (arXiv 2401.15077) with its fixed tree."""

    name = "eagle1"
    version = 1
    Options: ClassVar[type] = Eagle1Options

    @property
    def rule(self) -> Rule:
        return REJECT if self.options.sample else WALK

    def _shape(self) -> None:
        self.width = sum(map(sum, FIXED_TREE))
        self.scratch = sum(map(len, FIXED_TREE[1:]))
        self.level_size = max(map(len, FIXED_TREE))

    def open(self, request: Request) -> DraftSession:
        return FixedSession(self, request)

    @property
    def details(self) -> dict[str, Any]:
        return super().details | {"levels": len(FIXED_TREE)}


def check_fit(
    config: EagleConfig, target: TargetView, drafter: str, name: str, version: int
) -> None:
    """Whether a draft was made for this target, and for this drafter.

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
        faults.append("it reads what the target's final norm gives, and that norm was not found")
    if faults:
        raise UserError(
            f"The draft {name!r} does not fit the target {target.name!r}: {'; '.join(faults)}."
        )
