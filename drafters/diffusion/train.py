"""Training of masked-diffusion drafts, from the weights of an autoregressive target."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.diffusion import objectives
from drafters.diffusion.checkpoint import ARCHITECTURES, base_config
from drafters.diffusion.families import BASES, converted
from drafters.diffusion.model import DiffusionModel
from drafters.diffusion.settings import DiffusionSettings
from drafters.diffusion.windows import check_prefix, figure_windows, window_figures, window_logits
from specbench.api import UserError
from specbench.training.corpus.batches import Batch
from specbench.training.features import FrozenTarget
from specbench.training.masking import Blocks, draw_blocks, mask_token
from specbench.training.recipe import Recipe


class DiffusionRecipe(Recipe):
    """A draft of the target's own architecture that fills masked tokens."""

    Options = DiffusionSettings
    draft: DiffusionModel

    def __init__(self, target: FrozenTarget, options: DiffusionSettings) -> None:
        self.options = options
        self.draft = started(target, options)
        check_prefix(options.prefix, self.draft)
        self._share = 0.0 if options.anneal_steps else 1.0

    @property
    def settled(self) -> dict[str, Any]:
        facts = {"layers": self.draft.num_layers, "mask_token_id": self.draft.mask_id}
        return facts | ({"block_size": self.draft.block_size} if self.draft.block_size else {})

    def at_step(self, step: int) -> None:
        """Anneal the attention from causal to full."""
        if self.options.anneal_steps:
            self._share = min(1.0, (step + 1) / self.options.anneal_steps)

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Compute the objective's loss, or for a share of the batches that of practised windows."""
        if float(torch.rand((), generator=generator)) < self.options.practice:
            blocks = draw_blocks(batch, self.options.windows, self.options.window + 1, generator)
            return window_loss(self._window_logits(batch, blocks), blocks, self.options.decay)
        return self.objective_loss(batch, generator)

    def objective_loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Nats per token of the trained part: the bound that the objective estimates."""
        if self.options.objective == "bd3":
            return self._bd3_loss(batch, generator)
        tokens, response = batch
        device = tokens.device
        learned = self._learned(response)
        rates = objectives.sequence_rates(len(tokens), self.options.eps, generator).to(device)
        masked = objectives.draw_masks(learned, rates, generator)
        # Padding sees itself, since a row that sees nothing has no softmax.
        itself = torch.eye(tokens.shape[1], dtype=torch.bool, device=device)
        visible = objectives.document_columns(response)[:, None] | itself
        if self._share < 1.0:
            annealed = objectives.annealed_mask(tokens.shape[1], self._share, generator)
            visible = visible & annealed.to(device)
        ids = tokens.masked_fill(masked, self.draft.mask_id)
        losses = self._losses(self.draft(ids, visible), tokens)
        return objectives.weighted_bound(losses, masked / rates, learned)

    def figures(self, batch: Batch, generator: torch.Generator) -> dict[str, float]:
        """Compute the expected loss of a batch, and the figures of drafts of ``window`` tokens."""
        options = self.options
        blocks = figure_windows(batch, options.window)
        logits = self._window_logits(batch, blocks)
        loss = options.practice * float(window_loss(logits, blocks, options.decay))
        if options.practice < 1:
            loss += (1 - options.practice) * float(self.objective_loss(batch, generator))
        return {"validation_loss": loss, **window_figures(logits, blocks)}

    def save(self, folder: Path) -> None:
        self.draft.save(folder)

    def _bd3_loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Run noisy and clean tokens in one forward; the clean half is context only."""
        tokens, response = batch
        options, device = self.options, tokens.device
        length = tokens.shape[1]
        block = self.draft.block_size or length
        learned = self._learned(response)
        low, high = options.low, options.high
        rates = objectives.block_rates(len(tokens), -(-length // block), low, high, generator)
        rates = rates.to(device)
        masked = objectives.draw_block_masks(learned, rates, block, low, high, generator)
        weights = objectives.block_weights(rates, low).repeat_interleave(block, dim=1)
        noisy = tokens.masked_fill(masked, self.draft.mask_id)
        places = torch.arange(length, device=device)
        logits = self.draft(
            torch.cat([noisy, tokens], dim=1),
            objectives.bd3_mask(length, block).to(device),
            slice(0, length),
            positions=torch.cat([places, places]),
        )
        losses = self._losses(logits, tokens)
        return objectives.weighted_bound(losses, masked * weights[:, :length], learned)

    def _learned(self, response: Tensor) -> Tensor:
        """The trained part: the answers, without a first token that no row predicts."""
        learned = response.clone()
        if self.draft.shift or self.options.objective == "bd3":
            learned[:, 0] = False
        return learned

    def _losses(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Cross entropy ``[b, n]`` of every token; the mask and other banned ids are impossible."""
        logits = self.draft.finish(logits)
        if not self.draft.shift:
            return cross_entropies(logits, tokens)
        return F.pad(cross_entropies(logits[:, :-1], tokens[:, 1:]), (1, 0))

    def _window_logits(self, batch: Batch, blocks: Blocks) -> Tensor:
        return window_logits(self.draft, batch.tokens, blocks, self.options.prefix)


def window_loss(logits: Tensor, blocks: Blocks, decay: float | None) -> Tensor:
    """Mean cross entropy of the learned slots, slot k weighted by exp(-(k - 1) / decay)."""
    losses = cross_entropies(logits, blocks.labels)
    slots = torch.arange(blocks.labels.shape[-1], device=losses.device)
    weights = torch.exp(-slots / decay) if decay else torch.ones_like(slots)
    weights = blocks.learned * weights
    return (losses * weights).sum() / weights.sum().clamp(min=1e-9)


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropies of logits ``[..., V]`` and labels ``[...]``.

    0 for a label that can never be drafted, such as padding, or an ordinary token that the draft
    masks with (DiffuLLaMA).
    """
    losses = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    return losses.masked_fill(losses.isinf(), 0.0).view_as(labels)


def started(target: FrozenTarget, options: DiffusionSettings) -> DiffusionModel:
    """Make the draft as training begins: the target's weights, or those of ``init``.

    Raises:
        UserError: the target's architecture cannot be converted, it has fewer layers, or ``init``
            does not fit the target or the objective.
    """
    shift = options.objective == "shifted"
    if options.init is None:
        return _from_target(target, options)
    model = started_from(target, options.init)
    if model.shift != shift or (model.block_size is not None) != (options.objective == "bd3"):
        raise UserError(
            f"{options.init} has shift {model.shift} and block size {model.block_size}, which the "
            f"objective {options.objective} does not train."
        )
    return model


def started_from(target: FrozenTarget, name: str) -> DiffusionModel:
    """Load an earlier draft, ready for training.

    Raises:
        UserError: it cannot be loaded, or has another vocabulary than the target.
    """
    view = target.view
    model = DiffusionModel.load(name, device=view.device)
    if model.decoder.config.vocab_size != view.vocab_size:
        raise UserError(
            f"{name} has a vocabulary of {model.decoder.config.vocab_size}, the target {view.name} "
            f"one of {view.vocab_size}: train it for a target with its tokenizer."
        )
    return model.train().requires_grad_(True)


def _from_target(target: FrozenTarget, options: DiffusionSettings) -> DiffusionModel:
    view = target.view
    base = view.config.model_type
    if base not in BASES:
        raise UserError(
            f"The target {view.name} is of the type {base}; a diffusion draft can start from "
            f"{', '.join(BASES)} only."
        )
    count = view.num_layers if options.layers is None else options.layers
    if not 1 <= count <= view.num_layers:
        raise UserError(f"layers={count} must be 1 to {view.num_layers}, those of {view.name}.")
    mask_id = mask_token(view, options.mask_token_id)
    shift = options.objective == "shifted"
    block_size = options.block_size if options.objective == "bd3" else None
    family = converted(base, mask_id, shift=shift, block_size=block_size)
    raw = view.config.to_dict() | {"num_hidden_layers": count}
    decoder = ARCHITECTURES[base][1](base_config(raw, family, view.name))
    chosen = torch.linspace(0, view.num_layers - 1, count).round().long().tolist()
    parts = {
        decoder.model.embed_tokens: view.embedding,
        decoder.model.norm: view.norm,
        decoder.lm_head: view.head,
        **{decoder.model.layers[i]: target.layers[k] for i, k in enumerate(chosen)},
    }
    for own, of_target in parts.items():
        own.load_state_dict(of_target.state_dict())
    decoder = decoder.to(view.device, torch.float32)
    return DiffusionModel(decoder, family, view.name).train().requires_grad_(True)
