"""Practice of drafting: a window of masks after a clean prefix, predicted at once."""

import torch
from torch import Tensor

from drafters.diffusion.model import DiffusionModel
from specbench.api import UserError
from specbench.training.corpus.batches import Batch
from specbench.training.masking import Blocks, draw_blocks, emitted_per_round

FIGURE_WINDOWS = 8
"""Windows per held-out sequence that drafting figures are measured on."""
_FIGURE_SEED = 0


def check_prefix(prefix: str, model: DiffusionModel) -> None:
    """Refuse a prefix that the model's attention cannot have.

    Raises:
        UserError: a prefix other than "full" of a model that attends in blocks.
    """
    if prefix != "full" and model.block_size is not None:
        raise UserError(
            f"prefix={prefix} is for full attention, but this model attends in blocks of "
            f"{model.block_size}: use prefix=full, which means its own attention."
        )


def window_logits(model: DiffusionModel, tokens: Tensor, blocks: Blocks, prefix: str) -> Tensor:
    """Compute float32 logits ``[b, A, k, vocab_size]`` of the k masked slots after each anchor.

    Args:
        tokens: ``[b, n]`` clean.
        blocks: anchors ``[b, A]``; the labels say how many slots follow them.
        prefix: one of `settings.PREFIXES`.
    """
    size = blocks.labels.shape[-1]
    if prefix == "causal":
        logits = _together(model, tokens, blocks.anchors, size)
    else:
        logits = _apart(model, tokens, blocks.anchors, size, cut=prefix == "cut")
    return model.finish(logits)


def _apart(model: DiffusionModel, tokens: Tensor, anchors: Tensor, size: int, cut: bool) -> Tensor:
    """Run one row per window: its prefix may see the masks, so windows share nothing.

    Rows are padded on the left, so all windows stand in the same columns. A block-causal model
    always sees whole blocks: positions after the window are masked up to the end of its block.
    """
    block = model.block_size or 1
    ends = anchors.flatten()[:, None] + 1 + size
    behind = block - 1
    width = int(ends.max()) + behind
    columns = torch.arange(width, device=tokens.device)
    positions = columns - (width - behind - ends)
    real = (positions >= 0) & (positions < (ends + behind) // block * block)
    positions = positions.clamp(min=0)
    masked = columns >= width - behind - size
    whole = tokens.repeat_interleave(anchors.shape[1], dim=0)
    ids = whole.gather(1, positions.clamp(max=tokens.shape[1] - 1))
    ids = ids.masked_fill(masked, model.mask_id)
    visible = real[:, None].expand(-1, width, -1)
    by_block = model.visibility(width)
    if by_block is not None:
        visible = visible & by_block[positions[:, :, None], positions[:, None, :]]
    if cut:
        visible = visible & (masked[:, None] | ~masked)
    visible = visible | torch.eye(width, dtype=torch.bool, device=tokens.device)
    first = width - behind - size - model.shift
    logits: Tensor = model(ids, visible, slice(first, first + size), positions=positions)
    return logits.view(*anchors.shape, size, -1)


def _together(model: DiffusionModel, tokens: Tensor, anchors: Tensor, size: int) -> Tensor:
    """Run all windows of a sequence in one row, after its clean tokens that they share.

    A window repeats its anchor, so that the logits of every slot stand in its own rows; the
    repeated anchor sees what the clean one sees.
    """
    batch, length = tokens.shape
    count = anchors.shape[1]
    device = tokens.device
    offsets = torch.arange(size + 1, device=device)
    slots = anchors[..., None] + offsets
    windows = torch.full_like(slots, model.mask_id)
    windows[..., 0] = tokens.gather(1, anchors)
    before = torch.arange(length, device=device)
    total = length + count * (size + 1)
    visible = torch.zeros(batch, total, total, dtype=torch.bool, device=device)
    visible[:, :length, :length] = before <= before[:, None]
    starts = anchors.repeat_interleave(size + 1, dim=1)
    visible[:, length:, :length] = before < starts[..., None]
    window = torch.arange(count, device=device).repeat_interleave(size + 1)
    first = (offsets == 0).repeat(count)
    visible[:, length:, length:] = (window == window[:, None]) & (first | ~first[:, None])
    logits: Tensor = model(
        torch.cat([tokens, windows.flatten(1)], dim=1),
        visible,
        slice(length, None),
        positions=torch.cat([before.expand(batch, length), slots.flatten(1)], dim=1),
    )
    logits = logits.view(batch, count, size + 1, -1)
    return logits[:, :, :-1] if model.shift else logits[:, :, 1:]


def figure_windows(batch: Batch, size: int) -> Blocks:
    """Choose the windows of ``size`` slots to measure a batch on.

    They do not depend on the recipe's other draws, so that figures of two drafts are comparable.
    """
    generator = torch.Generator().manual_seed(_FIGURE_SEED)
    return draw_blocks(batch, FIGURE_WINDOWS, size + 1, generator)


def window_figures(logits: Tensor, blocks: Blocks) -> dict[str, float]:
    """Compute `emitted_per_round` and the expected streak, which streak distillation maximises.

    The latter is the sum over m of the products of the first m true tokens' probabilities.
    """
    right = (logits.argmax(-1) == blocks.labels) & blocks.learned
    chosen = logits.log_softmax(-1).gather(-1, blocks.labels[..., None]).squeeze(-1).exp()
    streak = (chosen * blocks.learned).cumprod(-1).sum(-1)
    expected = float(streak[blocks.learned.any(-1)].mean())
    return {"emitted_per_round": emitted_per_round(right, blocks), "expected_streak": expected}
