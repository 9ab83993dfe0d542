"""Training of a DFlash draft (arXiv 2602.06036, section 4): many blocks of a sequence at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.dflash.checkpoint import load_config, load_model, save_model
from drafters.dflash.config import DFlashConfig, default_layer_ids, dump_config, parse_config
from drafters.dflash.draft import check_fit, visible
from drafters.dflash.model import Attention, DFlashModel
from specbench.api import TargetView, UserError
from specbench.drafting.checkpoints import find_checkpoint
from specbench.drafting.layers import Rope, RopeTables
from specbench.training.corpus.batches import Batch
from specbench.training.features import FrozenTarget
from specbench.training.masking import Blocks, draw_blocks, mask_token
from specbench.training.recipe import Recipe

PUBLISHED_GAMMA = {16: 7.0, 10: 5.0, 8: 4.0}


@dataclass(frozen=True)
class DFlashTraining:
    """Settings of `DFlashRecipe`; None takes the target's own value.

    Attributes:
        block_size: rows of a block, the anchor included.
        layers: of the draft.
        taps: how many target layers it reads, spread as in published drafts.
        target_layer_ids: those layers by number (0-based); overrides ``taps``.
        anchors: blocks drawn from each sequence at every step.
        gamma: slot k of a block weighs exp(-(k - 1) / gamma); None takes the published 7, 5, 4
            for blocks of 16, 10, 8, and half the block otherwise.
        mask_token_id: None takes the tokenizer's mask token, or the embedding's first row past
            the tokenizer's entries.
        heads, kv_heads, head_dim, intermediate: shape of the draft's layers.
        init: folder or hub id of a draft to go on from, in place of fresh weights; every setting
            but ``anchors`` and ``gamma`` then is that draft's.
    """

    block_size: int = 16
    layers: int = 5
    taps: int = 5
    target_layer_ids: tuple[int, ...] | None = None
    anchors: int = 64
    gamma: float | None = None
    mask_token_id: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    intermediate: int | None = None
    init: str | None = None


class DFlashRecipe(Recipe):
    """A draft with fresh weights; embedding and head are the frozen target's."""

    Options = DFlashTraining
    draft: DFlashModel

    def __init__(self, target: FrozenTarget, options: DFlashTraining) -> None:
        view = target.view
        self.target = target
        self.options = options
        self.draft = _started(view, options)
        self.config = self.draft.config
        block = self.config.block_size
        self.gamma = options.gamma or PUBLISHED_GAMMA.get(block, block / 2)
        self._rope = RopeTables(self.config, view.device)

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Cross entropy of the learned slots, weighted by exp(-(k - 1) / gamma)."""
        blocks = draw_blocks(batch, self.options.anchors, self.config.block_size, generator)
        hidden = self.hidden(batch.tokens, blocks.anchors)
        return self._weighted(blocks, self._logits(hidden, blocks), blocks.labels[blocks.learned])

    def figures(self, batch: Batch, generator: torch.Generator) -> dict[str, float]:
        """The loss, and the tokens a round would emit if the text were the target's own: one
        more than the leading slots whose most likely token is right."""
        blocks = draw_blocks(batch, self.options.anchors, self.config.block_size, generator)
        labels = blocks.labels[blocks.learned]
        logits = self._logits(self.hidden(batch.tokens, blocks.anchors), blocks)
        right = torch.zeros_like(blocks.learned)
        right[blocks.learned] = logits.argmax(-1) == labels
        real = blocks.learned.any(-1)
        emitted = 1 + right.cumprod(-1).sum(-1)[real].float().mean()
        return {
            "validation_loss": float(self._weighted(blocks, logits, labels)),
            "emitted_per_round": float(emitted),
        }

    @property
    def settled(self) -> dict[str, Any]:
        names = ("block_size", "layers", "target_layer_ids", "mask_token_id", "heads", "kv_heads",
                 "head_dim", "intermediate")  # fmt: skip
        shape = {name: getattr(self.config, name) for name in names}
        return shape | {"taps": len(self.config.target_layer_ids), "gamma": self.gamma}

    def save(self, folder: Path) -> None:
        save_model(self.draft, folder, torch.bfloat16)

    def hidden(self, tokens: Tensor, anchors: Tensor) -> Tensor:
        """Final hidden states ``[b, A, B, H]`` of the blocks at ``anchors`` ``[b, A]``."""
        config = self.config
        features = self.target.features(tokens, config.taps).flatten(2)
        context = self.draft.condition(features)
        offsets = torch.arange(config.block_size, device=tokens.device)
        positions = anchors[..., None] + offsets
        cos, sin = self._rope(tokens.shape[1] + config.block_size)
        attend = BlockAttention(
            self.draft, context, positions, (cos[: tokens.shape[1]], sin[: tokens.shape[1]])
        )
        ids = torch.full_like(positions, config.mask_token_id)
        ids[..., 0] = tokens.gather(1, anchors)
        weight: Tensor = self.target.view.embedding.weight  # type: ignore[assignment]
        block = F.embedding(ids, weight) * config.embedding_scale
        hidden: Tensor = self.draft(block, (cos[positions], sin[positions]), attend)
        return hidden

    def _logits(self, hidden: Tensor, blocks: Blocks) -> Tensor:
        """``[learned, vocabulary]`` float32: no other row goes through the head."""
        rows = hidden[:, :, 1:][blocks.learned]
        return self.draft.logits(rows, self.target.view.head).float()

    def _weighted(self, blocks: Blocks, logits: Tensor, labels: Tensor) -> Tensor:
        slots = torch.arange(blocks.labels.shape[-1], device=labels.device)
        weights = torch.exp(-slots / self.gamma).expand_as(blocks.labels)[blocks.learned]
        losses = F.cross_entropy(logits, labels, reduction="none")
        return (losses * weights).sum() / weights.sum().clamp(min=1e-9)


class BlockAttention:
    """The sparse block mask: a block sees the context before its anchor and itself.

    Keys of the context ``[b, n]`` are shared by all blocks of a sequence and those of a block are
    its own, so the scores are ``n + B`` wide and nothing is computed across blocks. Plain
    products: backward through fused attention is slower on a CPU.
    """

    def __init__(
        self, model: DFlashModel, context: Tensor, positions: Tensor, context_rope: Rope
    ) -> None:
        self._context, self._rope = context, context_rope
        self._parts = [part for part in model.modules() if isinstance(part, Attention)]
        kinds = list(zip(model.config.windows, model.config.causal, strict=True))
        made = {kind: _bias(*kind, context.shape[1], positions) for kind in set(kinds)}
        self._biases = [made[kind] for kind in kinds]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q ``[b, A, B, h, d]``, k and v ``[b, A, B, g, d]`` to ``[b, A, B, h * d]``."""
        past_k, past_v = self._parts[layer].context(self._context, self._rope)
        b, count, rows, heads, width = q.shape
        groups = k.shape[3]
        grouped = q.view(b, count, rows, groups, -1, width).permute(0, 3, 1, 4, 2, 5)
        grouped = grouped * width**-0.5
        over_all = grouped.reshape(b, groups, -1, width)
        per_block = grouped.reshape(b, groups, count, -1, width)
        past = (over_all @ past_k.permute(0, 2, 3, 1)).view(*grouped.shape[:-1], -1)
        own = (per_block @ k.permute(0, 3, 1, 4, 2)).view(*grouped.shape[:-1], rows)
        weights = (torch.cat([past, own], dim=-1) + self._biases[layer]).softmax(-1).to(past_v)
        past, own = torch.split(weights, [past.shape[-1], rows], dim=-1)
        out = (past.flatten(2, 4) @ past_v.transpose(1, 2)).view(grouped.shape)
        inside = own.flatten(3, 4) @ v.permute(0, 3, 1, 2, 4)
        out = out + inside.view(grouped.shape)
        return out.permute(0, 2, 4, 1, 3, 5).reshape(b, count, rows, heads * width)


def _bias(window: int | None, causal: bool, length: int, positions: Tensor) -> Tensor:
    """Additive mask ``[b, 1, A, 1, B or 1, n + B]`` of one kind of layer."""
    before = torch.arange(length, device=positions.device)
    seen = torch.cat([before.expand(*positions.shape[:2], -1), positions], dim=-1)
    allowed = seen < positions[..., :1]
    allowed[..., length:] = True
    allowed = allowed[:, :, None]
    if window is not None or causal:
        allowed = allowed & visible(positions, seen, window, causal)
    bias = torch.zeros(allowed.shape, device=positions.device)
    return bias.masked_fill_(~allowed, -torch.inf)[:, None, :, None]


def _started(view: TargetView, options: DFlashTraining) -> DFlashModel:
    """The draft as training begins: fresh, or that of ``init``.

    Raises:
        UserError: it does not fit the target, or ``init`` comes with settings of another draft.
    """
    if options.init is None:
        model = DFlashModel(shape_for(view, options)).to(view.device, torch.float32)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=0.02)
        return model
    free = DFlashTraining(anchors=options.anchors, gamma=options.gamma, init=options.init)
    if options != free:
        raise UserError(
            f"With init={options.init} only anchors and gamma can be set: everything else is that "
            "draft's own."
        )
    folder = find_checkpoint(options.init, None)
    config = load_config(folder)
    check_fit(config, view, options.init)
    model = load_model(folder, config, view.device, torch.float32)
    return model.train().requires_grad_(True)


def shape_for(view: TargetView, options: DFlashTraining) -> DFlashConfig:
    """The draft's settings for a target.

    Raises:
        UserError: no mask token can be found, or taps that the target does not have.
    """
    of_target = view.config
    ids = options.target_layer_ids or default_layer_ids(view.num_layers, options.taps)
    heads = options.heads or of_target.num_attention_heads
    config = DFlashConfig(
        layers=options.layers,
        hidden=view.hidden_size,
        intermediate=options.intermediate or of_target.intermediate_size,
        heads=heads,
        kv_heads=options.kv_heads or of_target.num_key_value_heads,
        head_dim=options.head_dim or getattr(of_target, "head_dim", None) or view.hidden_size
        // of_target.num_attention_heads,
        vocab_size=view.vocab_size,
        block_size=options.block_size,
        mask_token_id=mask_token(view, options.mask_token_id),
        target_layer_ids=tuple(ids),
        windows=(None,) * options.layers,
        causal=(False,) * options.layers,
        eps=getattr(of_target, "rms_norm_eps", 1e-6),
        rope=dict(of_target.rope_parameters),
        max_positions=of_target.max_position_embeddings,
        num_target_layers=view.num_layers,
    )  # fmt: skip
    check_fit(config, view, "in training")
    return parse_config(dump_config(config, "bfloat16"), "in training")
