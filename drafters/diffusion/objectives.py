"""The masked-diffusion objectives: masked tokens, their weights, attention masks."""

import torch
import torch.nn.functional as F
from torch import Tensor

RESAMPLES = 16
"""Most redraws of a block whose masked share lies outside the clipped range; a block with few
learned tokens may have no share inside it."""


def document_columns(response: Tensor) -> Tensor:
    """``[b, n]`` bool: the columns up to the last that the assistant wrote; padding follows."""
    return response.flip(1).cumsum(1).flip(1) > 0


def sequence_rates(batch: int, eps: float, generator: torch.Generator) -> Tensor:
    """Draw masking probabilities ``[batch, 1]``: (1 - eps) t + eps, one t ~ U(0, 1) per sequence.

    LLaDA, arXiv 2502.09992, section 2.2 and its released code.
    """
    return (1 - eps) * torch.rand(batch, 1, generator=generator) + eps


def block_rates(
    batch: int, blocks: int, low: float, high: float, generator: torch.Generator
) -> Tensor:
    """Draw masking probabilities ``[batch, blocks]``: t ~ U[low, high], one per block.

    BD3-LM, arXiv 2503.09573, section 5.3. Antithetic: each of batch x blocks equal strata of the
    range gives one t, which lowers the variance; the assignment to blocks is random.
    """
    count = batch * blocks
    strata = torch.randperm(count, generator=generator).view(batch, blocks)
    inside = torch.rand(batch, blocks, generator=generator)
    return low + (high - low) * (strata + inside) / count


def draw_masks(learned: Tensor, rates: Tensor, generator: torch.Generator) -> Tensor:
    """``[b, n]`` bool: mask each learned token independently, with its probability ``[b, n]``."""
    noise = torch.rand(learned.shape, generator=generator).to(learned.device)
    return (noise < rates) & learned


def draw_block_masks(
    learned: Tensor, rates: Tensor, block: int, low: float, high: float, generator: torch.Generator
) -> Tensor:
    """`draw_masks` with the rates of blocks ``[b, blocks]``.

    A block whose masked share lies outside [low, high] is drawn again (BD3-LM's clipped schedule).
    """
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
    """Count the marks ``[b, n]`` of each block: ``[b, blocks]``."""
    padded = F.pad(marks.long(), (0, -marks.shape[1] % block))
    return padded.view(len(marks), -1, block).sum(-1)


def block_weights(rates: Tensor, low: float) -> Tensor:
    """The weight 1 / t of the log-linear schedule.

    1 where the range begins above one half, as in BD3-LM's released code.
    """
    return torch.ones_like(rates) if low > 0.5 else 1 / rates


def weighted_bound(losses: Tensor, weights: Tensor, learned: Tensor) -> Tensor:
    """Mean over sequences of the weighted losses, divided by the length of the trained part.

    Times that length, with weights 1 / p at the masked tokens, 0 elsewhere and uniform p, it is an
    unbiased estimate of the bound on the negative log-likelihood (LLaDA, equation 3).

    Args:
        losses, weights: ``[b, n]``.
        learned: ``[b, n]`` bool, the trained part: the answer of a chat.
    """
    lengths = learned.sum(1).clamp(min=1)
    return ((losses * weights).sum(1) / lengths).mean()


def annealed_mask(length: int, share: float, generator: torch.Generator) -> Tensor:
    """Draw a mask ``[length, length]`` between causal and full.

    Each later column is visible with probability ``share``: attention mask annealing (DiffuLLaMA,
    arXiv 2410.17891, section 3.3).
    """
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
        [torch.cat([own, before], dim=1), torch.cat([torch.zeros_like(own), own | before], dim=1)]
    )
