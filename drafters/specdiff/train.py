"""Streak distillation (SpecDiff-2, arXiv 2511.00606, section 4.2 and equation 6).

Under greedy acceptance a round emits the leading drafted tokens that the target would have
written. Within a window of the target's own text, their expected number is the sum over m of the
products of the first m tokens' probabilities under the drafter's one-pass marginals. Training
maximises that sum, not the likelihood of each token by itself.
"""

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.diffusion.model import DiffusionModel
from drafters.diffusion.train import started_from
from drafters.diffusion.windows import check_prefix, figure_windows, window_figures, window_logits
from drafters.specdiff.lora import add_adapters, merged
from drafters.specdiff.settings import StreakSettings
from specbench.training.corpus.batches import Batch
from specbench.training.features import FrozenTarget
from specbench.training.masking import Blocks, draw_blocks
from specbench.training.recipe import Recipe

FLOOR = 1e-8
"""Least probability of a token in a product, as in the released code."""


class StreakRecipe(Recipe):
    """A diffusion draft tuned on completions that the target wrote.

    Its training corpus must be the target's own answers (`specbench train responses`): the
    objective is an expectation over them.
    """

    Options = StreakSettings
    draft: DiffusionModel

    def __init__(self, target: FrozenTarget, options: StreakSettings) -> None:
        self.options = options
        self.draft = started_from(target, options.init)
        check_prefix(options.prefix, self.draft)
        if options.rank is not None:
            add_adapters(self.draft, options.rank, options.alpha)

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Compute minus the expected streak of a window, or the weighted cross entropy."""
        count = self.options.windows or batch.tokens.shape[1]
        blocks = draw_blocks(batch, count, self.options.gamma + 1, generator)
        return self._loss(self._logits(batch, blocks), blocks)

    def figures(self, batch: Batch, generator: torch.Generator) -> dict[str, float]:
        """Compute the loss, the expected streak, and the tokens that greedy drafts would emit."""
        blocks = figure_windows(batch, self.options.gamma)
        logits = self._logits(batch, blocks)
        loss = float(self._loss(logits, blocks))
        return {"validation_loss": loss, **window_figures(logits, blocks)}

    def save(self, folder: Path) -> None:
        merged(self.draft).save(folder)

    def _logits(self, batch: Batch, blocks: Blocks) -> Tensor:
        return window_logits(self.draft, batch.tokens, blocks, self.options.prefix)

    def _loss(self, logits: Tensor, blocks: Blocks) -> Tensor:
        loss = ce_loss if self.options.loss == "ce" else streak_loss
        log_q = token_log_probabilities(logits / self.options.temperature, blocks.labels)
        return loss(log_q, blocks.learned)


def token_log_probabilities(logits: Tensor, labels: Tensor) -> Tensor:
    """log q_j(x_j) ``[..., k]`` of the true tokens, floored at log `FLOOR`."""
    found = logits.log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1)
    return found.clamp(min=math.log(FLOOR))


def streak_loss(log_q: Tensor, learned: Tensor) -> Tensor:
    """Minus the mean over windows of sum_m prod_{j <= m} q_j; slots past the text do not count.

    Args:
        log_q: ``[..., k]``.
        learned: ``[..., k]`` bool; a window without any does not count.
    """
    products = log_q.cumsum(-1).exp() * learned
    return -_mean_of_windows(products, learned)


def ce_loss(log_q: Tensor, learned: Tensor) -> Tensor:
    """Mean over windows of the weighted cross entropies.

    The weight of a slot is the detached product of the probabilities before it: 1 for the first.
    """
    products = log_q[..., :-1].detach().cumsum(-1).exp()
    weights = F.pad(products, (1, 0), value=1.0)
    return -_mean_of_windows(weights * log_q * learned, learned)


def _mean_of_windows(values: Tensor, learned: Tensor) -> Tensor:
    real = learned.any(-1)
    return (values.sum(-1) * real).sum() / real.sum().clamp(min=1)
