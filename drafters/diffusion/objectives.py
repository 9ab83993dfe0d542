"""The masked-diffusion objectives: which tokens are masked, what they weigh, what may see what."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

RESAMPLES = 16
"""Times that the masks of a block outside the clipped range are drawn again; a block with few
learned tokens may have no share inside it."""


def document_columns(response: Tensor) -> Tensor:
    """``[b, n]`` bool: the columns up to the last the assistant wrote; padding is behind it."""
    return response.flip(1).cumsum(1).flip(1) > 0


def sequence_rates(batch: int, eps: float, generator: torch.Generator) -> Tensor:
    """``[batch, 1]`` masking probabilities (1 - eps) t + eps, one t ~ U(0, 1) a sequence
    (LLaDA, arXiv 2502.09992, section 2.2 and its released code)."""
    return (1 - eps) * torch.rand(batch, 1, generator=generator) + eps


def block_rates(
    batch: int, blocks: int, low: float, high: float, generator: torch.Generator
) -> Tensor:
    """``[batch, blocks]`` masking probabilities t ~ U[low, high], one a block (BD3-LM, arXiv
    2503.09573, section 5.3).

    Antithetic: of the batch x blocks equal strata of the range each gives one t, which lowers the
    variance; which block gets which stratum is random.
    """
    count = batch * blocks
    strata = torch.randperm(count, generator=generator).view(batch, blocks)
    inside = torch.rand(batch, blocks, generator=generator)
    return low + (high - low) * (strata + inside) / count


def draw_masks(learned: Tensor, rates: Tensor, generator: torch.Generator) -> Tensor:
    """``[b, n]`` bool: each learned token masked on its own with its probability ``[b, n]``."""
    noise = torch.rand(learned.shape, generator=generator).to(learned.device)
    return (noise < rates) & learned


def draw_block_masks(
    learned: Tensor,
    rates: Tensor,
    block: int,
    low: float,
    high: float,
    generator: torch.Generator,
) -> Tensor:
    """`draw_masks` with the rates of blocks ``[b, blocks]``; a block whose masked share falls
    outside [low, high] is drawn again (BD3-LM's clipped schedule)."""
    length = learned.shape[1]
    of_token = rates.repeat_interleave(block, dim=1)[:, :length]
    masked = draw_masks(learned, of_token, generator)
    if (low, high) == (0.0, 1.0):
        return masked
    for _ in range(RESAMPLES):
        counts, sizes = (_by_block(part, block) for part in (masked, learned))
        outside = (counts < low * sizes) | (counts > high * sizes)
        if not outside.any():
            break
        again = outside.repeat_interleave(block, dim=1)[:, :length]
        masked = torch.where(again, draw_masks(learned, of_token, generator), masked)
    return masked


def _by_block(marks: Tensor, block: int) -> Tensor:
    """Marks ``[b, n]`` counted in each block: ``[b, blocks]``."""
    padded = F.pad(marks.long(), (0, -marks.shape[1] % block))
    return padded.view(len(marks), -1, block).sum(-1)


def block_weights(rates: Tensor, low: float) -> Tensor:
    """1 / t, the weight of the log-linear schedule; 1 where the range begins above one half, as in
    BD3-LM's released code."""
    return torch.ones_like(rates) if low > 0.5 else 1 / rates


def weighted_bound(losses: Tensor, weights: Tensor, learned: Tensor) -> Tensor:
    """Mean over sequences of the weighted losses over the length of the trained part.

    With weights 1 / p at the masked tokens, 0 elsewhere and p uniform it is, times that length,
    an unbiased estimate of the bound on the negative log-likelihood (LLaDA, equation 3).

    Args:
        losses, weights: ``[b, n]``.
        learned: ``[b, n]`` bool, the trained part: the answer of a chat.
    """
    lengths = learned.sum(1).clamp(min=1)
    return ((losses * weights).sum(1) / lengths).mean()


def annealed_mask(length: int, share: float, generator: torch.Generator) -> Tensor:
    """``[length, length]`` bool between causal and full: each later column is visible with
    probability ``share`` (DiffuLLaMA, arXiv 2410.17891, section 3.3: attention mask annealing)."""
    seen = torch.rand(length, length, generator=generator) < share
    return seen | torch.ones(length, length, dtype=torch.bool).tril()


def bd3_mask(length: int, block: int) -> Tensor:
    """``[2 length, 2 length]`` bool over noisy then clean tokens (BD3-LM, section 3.2).

    The union of three: a noisy token sees its own noisy block, and the clean blocks strictly
    before it; a clean one sees clean blocks up to its own.
    """
    blocks = torch.arange(length) // block
    own = blocks[:, None] == blocks
    before = blocks[:, None] > blocks
    return torch.cat(
        [
            torch.cat([own, before], dim=1),
            torch.cat([torch.zeros_like(own), own | before], dim=1),
        ]
    )
