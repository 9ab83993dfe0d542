"""What a drafter proposes: a token tree below the anchor."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Proposal:
    """A token tree below the anchor; a chain is the tree where every node has one child.

    Attributes:
        tokens: ``[n]`` int64 token ids, on the target's device.
        parents: ``[n]`` int64 index of each token's parent; -1 is the anchor, and a parent
            precedes its children.
        probs: ``[n, vocabulary]`` float32 distribution each token was drawn from, only where
            tokens were sampled. None means one-hot: the tokens are deterministic.
        is_chain: whether ``parents`` is ``-1, 0, 1, ...``; known without looking at the device.
        finite: 0-d bool on the device, whether the logits that the tokens come from hold numbers;
            None where the drafter has none or cannot say. It is read with all else, once a round.
    """

    tokens: Tensor
    parents: Tensor
    probs: Tensor | None = None
    is_chain: bool = False
    finite: Tensor | None = None

    def __post_init__(self) -> None:
        if self.tokens.ndim != 1 or self.parents.shape != self.tokens.shape:
            shapes = f"{tuple(self.tokens.shape)} and {tuple(self.parents.shape)}"
            raise ValueError(f"tokens and parents must be one-dimensional and alike, not {shapes}")
        if self.probs is not None and (self.probs.ndim != 2 or len(self.probs) != len(self)):
            raise ValueError(f"probs must be [{len(self)}, vocabulary], not {self.probs.shape}")
        if len(self) == 0:
            object.__setattr__(self, "is_chain", True)

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @classmethod
    def chain(
        cls, tokens: Tensor, probs: Tensor | None = None, finite: Tensor | None = None
    ) -> Proposal:
        """A chain of ``tokens`` ``[n]``; no token at all is plain autoregression."""
        n = tokens.shape[0]
        parents = torch.arange(-1, n - 1, device=tokens.device)
        return cls(tokens, parents, probs, is_chain=True, finite=finite)

    @classmethod
    def chains(cls, tokens: Tensor, probs: Tensor | None = None) -> Proposal:
        """K parallel chains ``[K, n]`` below one anchor; ``probs`` is ``[K, n, vocabulary]``."""
        count, length = tokens.shape
        index = torch.arange(count * length, device=tokens.device).view(count, length)
        parents = torch.cat([torch.full_like(index[:, :1], -1), index[:, :-1]], dim=1)
        flat = None if probs is None else probs.flatten(0, 1)
        return cls(tokens.flatten(), parents.flatten(), flat, is_chain=count == 1)

    @cached_property
    def ancestors(self) -> Tensor:
        """``[n + 1, n + 1]`` bool over anchor + tokens: row i may see column j.

        True where j is i itself or one of its ancestors. Paths are doubled instead of walked, so
        the work is log2(depth) products of small matrices on the tokens' own device.
        """
        size = len(self) + 1
        device = self.tokens.device
        if self.is_chain:
            return torch.ones(size, size, dtype=torch.bool, device=device).tril_()
        reach = torch.eye(size, device=device)
        # Clamped, since a malformed tree is only refused at the round's one synchronisation.
        reach[torch.arange(1, size, device=device), self.parents.clamp(-1, size - 2) + 1] = 1
        for _ in range(max(1, (size - 1).bit_length())):
            reach = (reach @ reach).clamp_(max=1)
        return reach > 0

    @cached_property
    def depths(self) -> Tensor:
        """``[n + 1]`` depth of anchor (0) and tokens (1, 2, ...)."""
        if self.is_chain:
            return torch.arange(len(self) + 1, device=self.tokens.device)
        return self.ancestors.sum(-1) - 1

    def is_wellformed(self, vocabulary: int) -> Tensor:
        """A 0-d bool on the device: parents precede children (and are those of a chain, where it
        says so), ids lie in the vocabulary, logits and distributions hold numbers."""
        index = torch.arange(len(self), device=self.tokens.device)
        parents = (self.parents >= (index - 1 if self.is_chain else -1)) & (self.parents < index)
        tokens = (self.tokens >= 0) & (self.tokens < vocabulary)
        sound = (parents & tokens).all()
        if self.finite is not None:
            sound = sound & self.finite
        return sound if self.probs is None else sound & self.probs.sum().isfinite()

    def fault(self, vocabulary: int) -> str:
        """What `is_wellformed` objects to, in words; empty where it does not."""
        if self.finite is not None and not self.finite:
            return (
                "the draft's logits are NaN or infinite, so its weights are broken or too large "
                "for this dtype"
            )
        for index, (token, parent) in enumerate(
            zip(self.tokens.tolist(), self.parents.tolist(), strict=True)
        ):
            where = f"token {index} of {len(self)}"
            if not -1 <= parent < index:
                return f"{where} has parent {parent}, which does not come before it"
            if self.is_chain and parent != index - 1:
                return f"{where} has parent {parent} in what is called a chain"
            if not 0 <= token < vocabulary:
                return f"{where} is id {token}, outside the target's vocabulary of {vocabulary}"
        sound = self.probs is None or bool(self.probs.sum().isfinite())
        return "" if sound else "the draft's distributions hold NaN or infinity"
