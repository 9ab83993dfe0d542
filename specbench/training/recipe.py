"""What a draft's recipe provides, and the run that trains any of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import compress
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from specbench.api import Target
from specbench.training.card import stages_of, write_loop_card
from specbench.training.corpus.batches import Batch, DocumentBatches, pad_right
from specbench.training.corpus.data import Document, load_corpus
from specbench.training.corpus.tokenizer import Encoded, encode_chats
from specbench.training.features import FrozenTarget
from specbench.training.loop import TrainResult, best_device, seeded, train
from specbench.training.settings import DraftSettings, Job, RecipeSettings, TrainSettings

VALIDATION_SEED = 1


class Recipe(ABC):
    """One draft in training against a frozen target.

    A recipe needs nothing of the loop: it builds the draft, computes its loss, and saves it.

    Attributes:
        Options: its settings; those of a recipe that can go on from an earlier draft inherit
            `DraftSettings`.
        draft: the module to train; a parameter that requires no gradient stays as it is.
    """

    Options: ClassVar[type[RecipeSettings]] = RecipeSettings
    draft: nn.Module

    @abstractmethod
    def __init__(self, target: FrozenTarget, options: Any) -> None:
        """Build ``draft`` on the target's device, in float32.

        torch's global generator is seeded, so ordinary initialisers are reproducible.
        """

    @classmethod
    def for_corpus(cls, target: FrozenTarget, options: Any, documents: Sequence[Encoded]) -> Self:
        """Make the recipe for training documents; override it where the draft depends on them."""
        return cls(target, options)

    @abstractmethod
    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Compute the scalar loss of a batch; random choices come from ``generator`` (on the CPU).

        ``batch.tokens`` ``[b, n]`` holds whole documents from their first token, padded on the
        right; ``batch.response`` ``[b, n]`` marks what the assistant wrote, its end token too.
        """

    def at_step(self, step: int) -> None:  # noqa: B027 (few recipes keep a schedule)
        """Learn the number of the next step, from 0: for a recipe that keeps a schedule."""

    def figures(self, batch: Batch, generator: torch.Generator) -> dict[str, float]:
        """Compute validation figures of a held-out batch; the loss alone unless overridden."""
        return {"validation_loss": float(self.loss(batch, generator))}

    @property
    def settled(self) -> dict[str, Any]:
        """Values for the card that settings left to the target or to the earlier draft."""
        return {}

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the draft in the layout its drafter loads, 16-bit safetensors."""


def train_draft(
    recipe_type: type[Recipe],
    options: RecipeSettings,
    job: Job,
    settings: TrainSettings,
    *,
    resume: bool = False,
) -> TrainResult:
    """Train a draft on chats and write it with its card to ``job.out``.

    Raises:
        UserError: unreadable or evaluation text, or a target or an earlier draft that does not fit.
    """
    target = FrozenTarget(Target.load(job.target, device=best_device()))
    tokenizer = target.view.tokenizer
    before = stages_of(options.init) if isinstance(options, DraftSettings) and options.init else []
    corpus = load_corpus(job.corpora, job.exclude, settings.seed)
    documents, weights = _answered(tokenizer, corpus.train, corpus.weights(), settings.length)
    with seeded(settings.seed):
        recipe = recipe_type.for_corpus(target, options, documents)
    if settings.compile:
        recipe.draft.compile()
    pad = int(tokenizer.pad_token_id or 0)
    result = train(
        recipe.draft,
        recipe.loss,
        DocumentBatches(documents, weights, pad=pad, **settings.shape),
        settings,
        job.out / "training",
        validate=_validation(recipe, tokenizer, corpus.held_out, settings, pad),
        before_step=recipe.at_step,
        resume=resume,
    )
    recipe.save(job.out)
    facts = {
        "command": job.command,
        "target": Path(job.target).name,
        "recipe": f"{recipe_type.__module__}.{recipe_type.__name__}",
        "options": asdict(options) | recipe.settled,
        "parameters": sum(p.numel() for p in recipe.draft.parameters() if p.requires_grad),
        "before": before,
    }
    write_loop_card(job.out, corpus.files, result, facts)
    return result


def _answered(
    tokenizer: Any, documents: Sequence[Document], weights: Sequence[float], length: int
) -> tuple[list[Encoded], list[float]]:
    """Encode the documents in which the assistant speaks within ``length``; also their weights."""
    encoded = encode_chats(tokenizer, [document.messages for document in documents])
    spoken = [bool(document.response[:length].any()) for document in encoded]
    return list(compress(encoded, spoken)), list(compress(weights, spoken))


def _validation(
    recipe: Recipe, tokenizer: Any, held_out: Sequence[Document], settings: TrainSettings, pad: int
) -> Callable[[], dict[str, float]]:
    """Mean figures over held-out batches, the same random choices every time."""
    documents, _ = _answered(tokenizer, held_out, [1.0] * len(held_out), settings.length)
    device = next(recipe.draft.parameters()).device

    def validate() -> dict[str, float]:
        generator = torch.Generator().manual_seed(VALIDATION_SEED)
        sums: dict[str, float] = {}
        starts = range(0, len(documents), settings.batch)
        for start in starts:
            part = documents[start : start + settings.batch]
            batch = pad_right(part, settings.length, pad).to(device)
            for name, value in recipe.figures(batch, generator).items():
                sums[name] = sums.get(name, 0.0) + value / len(starts)
        return sums

    return validate
