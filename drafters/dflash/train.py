"""Training of a DFlash draft (arXiv 2602.06036, section 4): many blocks of a sequence at once."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.dflash.checkpoint import load_config, load_model, save_model
from drafters.dflash.config import DFlashConfig, default_layer_ids, dump_config, parse_config
from drafters.dflash.draft import check_fit, visible
from drafters.dflash.model import Attention, DFlashModel
from drafters.dflash.settings import DFlashSettings
from specbench.api import TargetView
from specbench.drafting.checkpoints import find_checkpoint
from specbench.drafting.layers import Rope, RopeTables
from specbench.training.corpus.batches import Batch
from specbench.training.features import FrozenTarget, draw_matrices, sizes_like
from specbench.training.masking import Blocks, draw_blocks, emitted_per_round, mask_token
from specbench.training.recipe import Recipe

PUBLISHED_GAMMA = {16: 7.0, 10: 5.0, 8: 4.0}


class DFlashRecipe(Recipe):
    """A DFlash draft, whose embedding and head are the frozen target's."""

    Options = DFlashSettings
    draft: DFlashModel

    def __init__(self, target: FrozenTarget, options: DFlashSettings) -> None:
        self.target, self.options = target, options
        self.draft = _started(target.view, options)
        self.config = self.draft.config
        block = self.config.block_size
        self.gamma = options.gamma or PUBLISHED_GAMMA.get(block, block / 2)
        self._rope = RopeTables(self.config, target.view.device)

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Compute the cross entropy of the learned slots, slot k weighing exp(-(k - 1) / gamma)."""
        blocks, logits = self._drafted(batch, generator)
        return self._weighted(blocks, logits)

    def figures(self, batch: Batch, generator: torch.Generator) -> dict[str, float]:
        """Compute the loss and `emitted_per_round`."""
        blocks, logits = self._drafted(batch, generator)
        right = torch.zeros_like(blocks.learned)
        right[blocks.learned] = logits.argmax(-1) == blocks.labels[blocks.learned]
        loss = float(self._weighted(blocks, logits))
        return {"validation_loss": loss, "emitted_per_round": emitted_per_round(right, blocks)}

    @property
    def settled(self) -> dict[str, Any]:
        read = {"taps": len(self.config.target_layer_ids), "gamma": self.gamma}
        decided = self.Options.decided_by_init
        return {name: getattr(self.config, name) for name in decided if name not in read} | read

    def save(self, folder: Path) -> None:
        save_model(self.draft, folder, torch.bfloat16)

    def hidden(self, tokens: Tensor, anchors: Tensor) -> Tensor:
        """Compute final hidden states ``[b, A, B, H]`` of the blocks at ``anchors`` ``[b, A]``."""
        config = self.config
        features, _ = self.target.forward(tokens, config.taps)
        context = self.draft.condition(features.flatten(2))
        positions = anchors[..., None] + torch.arange(config.block_size, device=tokens.device)
        length = tokens.shape[1]
        cos, sin = self._rope(length + config.block_size)
        attend = BlockAttention(self.draft, context, positions, (cos[:length], sin[:length]))
        ids = torch.full_like(positions, config.mask_token_id)
        ids[..., 0] = tokens.gather(1, anchors)
        weight: Tensor = self.target.view.embedding.weight  # type: ignore[assignment]
        block = F.embedding(ids, weight) * config.embedding_scale
        hidden: Tensor = self.draft(block, (cos[positions], sin[positions]), attend)
        return hidden

    def _drafted(self, batch: Batch, generator: torch.Generator) -> tuple[Blocks, Tensor]:
        """Draw blocks, and run the head on their learned rows alone: ``[learned, vocabulary]``."""
        blocks = draw_blocks(batch, self.options.anchors, self.config.block_size, generator)
        rows = self.hidden(batch.tokens, blocks.anchors)[:, :, 1:][blocks.learned]
        return blocks, self.draft.logits(rows, self.target.view.head).float()

    def _weighted(self, blocks: Blocks, logits: Tensor) -> Tensor:
        slots = torch.arange(blocks.labels.shape[-1], device=logits.device)
        weights = torch.exp(-slots / self.gamma).expand_as(blocks.labels)[blocks.learned]
        losses = F.cross_entropy(logits, blocks.labels[blocks.learned], reduction="none")
        return (losses * weights).sum() / weights.sum().clamp(min=1e-9)


class BlockAttention:
    """Attention under the sparse block mask: a block sees the context before its anchor and itself.

    All blocks of a sequence share the keys of its context ``[b, n]``, and each has keys of its own,
    so scores are ``n + B`` wide and nothing is computed across blocks. Plain products, since
    backward through fused attention is slower on a CPU.
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
    """Make the additive mask ``[b, 1, A, 1, B or 1, n + B]`` of one kind of layer."""
    before = torch.arange(length, device=positions.device)
    seen = torch.cat([before.expand(*positions.shape[:2], -1), positions], dim=-1)
    allowed = seen < positions[..., :1]
    allowed[..., length:] = True
    allowed = allowed[:, :, None]
    if window is not None or causal:
        allowed = allowed & visible(positions, seen, window, causal)
    bias = torch.zeros(allowed.shape, device=positions.device)
    return bias.masked_fill_(~allowed, -torch.inf)[:, None, :, None]


def _started(view: TargetView, options: DFlashSettings) -> DFlashModel:
    """Make the draft as training begins: fresh, or the one that ``init`` names.

    Raises:
        UserError: it does not fit the target.
    """
    if options.init is None:
        model = DFlashModel(shape_for(view, options)).to(view.device, torch.float32)
        draw_matrices(model)
        return model
    folder = find_checkpoint(options.init, None)
    config = load_config(folder)
    check_fit(config, view, options.init)
    model = load_model(folder, config, view.device, torch.float32)
    return model.train().requires_grad_(True)


def shape_for(view: TargetView, options: DFlashSettings) -> DFlashConfig:
    """Configure a fresh draft for a target.

    Raises:
        UserError: no mask token can be found, or the target does not have the taps.
    """
    ids = options.target_layer_ids or default_layer_ids(view.num_layers, options.taps)
    config = DFlashConfig(
        **sizes_like(view, options),
        layers=options.layers,
        block_size=options.block_size,
        mask_token_id=mask_token(view, options.mask_token_id),
        target_layer_ids=tuple(ids),
        windows=(None,) * options.layers,
        causal=(False,) * options.layers,
        rope=dict(view.config.rope_parameters),
        num_target_layers=view.num_layers,
    )
    check_fit(config, view, "in training")
    return parse_config(dump_config(config, "bfloat16"), "in training")
