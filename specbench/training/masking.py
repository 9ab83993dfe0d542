"""What drafts that fill masked slots share in training: a mask token, and anchors to learn from."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.api import TargetView, UserError
from specbench.training.corpus.batches import Batch


@dataclass(frozen=True)
class Blocks:
    """The blocks of one batch.

    Attributes:
        anchors: ``[b, A]`` positions; in a sequence with too few, the rest are arbitrary and weigh
            nothing.
        labels: ``[b, A, B - 1]`` tokens at slots 1 .. B - 1.
        learned: ``[b, A, B - 1]`` bool, the slots up to the end of the anchor's response.
    """

    anchors: Tensor
    labels: Tensor
    learned: Tensor


def draw_blocks(batch: Batch, count: int, block_size: int, generator: torch.Generator) -> Blocks:
    """Draw random anchors of each sequence, without replacement.

    An anchor and the token after it belong to a response.
    """
    tokens, response = batch
    candidates = response[:, :-1] & response[:, 1:]
    count = max(1, min(count, int(candidates.sum(1).max())))
    noise = torch.rand(candidates.shape, generator=generator).to(tokens.device)
    found, anchors = noise.masked_fill(~candidates, -1.0).topk(count, dim=1)
    slots = anchors[..., None] + torch.arange(1, block_size, device=tokens.device)
    inside = slots.clamp(max=tokens.shape[1] - 1)
    learned = response.gather(1, inside.flatten(1)).view_as(slots) & (slots == inside)
    learned = learned.cumprod(-1).bool() & (found >= 0)[..., None]
    return Blocks(anchors, tokens.gather(1, inside.flatten(1)).view_as(slots), learned)


def emitted_per_round(right: Tensor, blocks: Blocks) -> float:
    """Tokens emitted per round if the text were the target's own.

    One more than the leading slots whose most likely token is right (``right``: ``[b, A, B - 1]``).
    """
    leading = right.cumprod(-1).sum(-1)[blocks.learned.any(-1)]
    return float(1 + leading.float().mean())


def mask_token(view: TargetView, wanted: int | None) -> int:
    """Choose ``wanted``, else the tokenizer's mask token, else the first unused embedding row.

    Raises:
        UserError: there is none of these.
    """
    if wanted is not None:
        return wanted
    found = getattr(view.tokenizer, "mask_token_id", None)
    if found is not None:
        return int(found)
    used = view.vocab_size if view.tokenizer is None else len(view.tokenizer)
    if used >= view.vocab_size:
        raise UserError(
            f"The tokenizer of {view.name} has no mask token and its embedding no unused row: "
            "name a token that does not occur in text with --set mask_token_id=ID."
        )
    return used
