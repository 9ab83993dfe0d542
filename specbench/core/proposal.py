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
        is_chain: whether ``parents`` is ``-1, 0, 1, ...``; known without reading the device.
        finite: 0-d bool on the device, whether the logits behind the tokens are finite; None if
            the drafter has no logits or cannot say. It is read once per round, with the rest.
    """

    tokens: Tensor
    parents: Tensor
    probs: Tensor | None = None
    is_chain: bool = False
    finite: Tensor | None = None

    def __post_init__(self) -> None:
        if self.tokens.ndim != 1 or self.parents.shape != self.tokens.shape:
            shapes = f"{tuple(self.tokens.shape)} and {tuple(self.parents.shape)}"
            raise ValueError(f"tokens and parents must be 1-d and equally long, not {shapes}")
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
        """Make a chain of ``tokens`` ``[n]``; an empty chain is plain autoregression."""
        n = tokens.shape[0]
        parents = torch.arange(-1, n - 1, device=tokens.device)
        return cls(tokens, parents, probs, is_chain=True, finite=finite)

    @classmethod
    def chains(cls, tokens: Tensor, probs: Tensor | None = None) -> Proposal:
        """Make K parallel chains below one anchor.

        Args:
            tokens: ``[K, n]`` token ids.
            probs: ``[K, n, vocabulary]``.
        """
        count, length = tokens.shape
        index = torch.arange(count * length, device=tokens.device).view(count, length)
        parents = torch.cat([torch.full_like(index[:, :1], -1), index[:, :-1]], dim=1)
        flat = None if probs is None else probs.flatten(0, 1)
        return cls(tokens.flatten(), parents.flatten(), flat, is_chain=count == 1)

    @cached_property
    def ancestors(self) -> Tensor:
        """``[n + 1, n + 1]`` bool over anchor + tokens: whether row i may see column j.

        True where j is i itself or one of its ancestors. Every product doubles the length of the
        paths, so the work is log2(n) products of small matrices on the tokens' own device.
        """
        size = len(self) + 1
        device = self.tokens.device
        if self.is_chain:
            return torch.ones(size, size, dtype=torch.bool, device=device).tril_()
        reach = torch.eye(size, device=device)
        # Clamped, because a malformed tree is refused later, when the device is read once.
        reach[torch.arange(1, size, device=device), self.parents.clamp(-1, size - 2) + 1] = 1
        for _ in range(max(1, (size - 1).bit_length())):
            reach = (reach @ reach).clamp_(max=1)
        return reach > 0

    @cached_property
    def depths(self) -> Tensor:
        """``[n + 1]`` depths of the anchor (0) and of the tokens (1, 2, ...)."""
        if self.is_chain:
            return torch.arange(len(self) + 1, device=self.tokens.device)
        return self.ancestors.sum(-1) - 1

    def is_wellformed(self, vocabulary: int) -> Tensor:
        """Check the proposal without waiting for the device.

        Parents must precede their children (and form a chain if ``is_chain`` says so), token ids
        must lie in the vocabulary, logits and distributions must be finite.

        Returns:
            A 0-d bool on the device.
        """
        index = torch.arange(len(self), device=self.tokens.device)
        parents = (self.parents >= (index - 1 if self.is_chain else -1)) & (self.parents < index)
        tokens = (self.tokens >= 0) & (self.tokens < vocabulary)
        sound = (parents & tokens).all()
        if self.finite is not None:
            sound = sound & self.finite
        return sound if self.probs is None else sound & self.probs.sum().isfinite()

    def fault(self, vocabulary: int) -> str:
        """Describe what `is_wellformed` objects to; empty if the proposal is well-formed."""
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
                return f"{where} has parent {parent} in a proposal that claims to be a chain"
            if not 0 <= token < vocabulary:
                return f"{where} is id {token}, outside the target's vocabulary of {vocabulary}"
        sound = self.probs is None or bool(self.probs.sum().isfinite())
        return "" if sound else "the draft's distributions contain NaN or infinity"
