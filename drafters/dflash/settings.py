"""Settings of DFlash's training; importing them loads no torch."""

from dataclasses import dataclass
from typing import Annotated

from specbench.training.settings import DraftSettings, MaskToken


@dataclass(frozen=True)
class DFlashSettings(DraftSettings):
    """Settings of `drafters.dflash.train.DFlashRecipe`."""

    decided_by_init = ("block_size", "layers", "taps", "target_layer_ids", "mask_token_id",
                       "heads", "kv_heads", "head_dim", "intermediate")  # fmt: skip

    block_size: Annotated[int, "Rows of a block, the anchor included."] = 16
    layers: Annotated[int, "Layers of the draft."] = 5
    taps: Annotated[int, "Target layers it reads, spread as in published drafts."] = 5
    target_layer_ids: Annotated[
        tuple[int, ...] | None, "Those layers by number, from 0; overrides taps."
    ] = None
    anchors: Annotated[int, "Blocks drawn from each sequence at every step."] = 64
    gamma: Annotated[
        float | None,
        "Slot k of a block weighs exp(-(k - 1) / gamma); none: the published 7, 5, 4 for blocks of "
        "16, 10, 8, and half the block otherwise.",
    ] = None
    mask_token_id: MaskToken = None
    heads: Annotated[int | None, "Query heads per layer; none: the target's."] = None
    kv_heads: Annotated[int | None, "Key and value heads per layer; none: the target's."] = None
    head_dim: Annotated[int | None, "Width of a head; none: the target's."] = None
    intermediate: Annotated[int | None, "Feed-forward width; none: the target's."] = None
