"""What a draft's recipe provides, and the command that runs any of them.

A recipe is a class named under the entry-point group `specbench.trainers`. It needs
nothing of the loop: it builds the draft, gives the loss of a batch, and saves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from specbench.errors import UserError
from specbench.inputs.options import parse_options
from specbench.training.card import stages_of, write_card
from specbench.training.corpus.batches import Batch, DocumentBatches, pad_right
from specbench.training.corpus.data import CorpusSpec, Document, load_corpus
from specbench.training.corpus.evaluation import refuse_evaluation_rows
from specbench.training.corpus.tokenizer import Encoded, encode_chats
from specbench.training.features import FrozenTarget
from specbench.training.loop import TrainResult, TrainSettings, train
from specbench.training.seeding import seeded
from specbench.zoo import resolve

VALIDATION_SEED = 1


@dataclass(frozen=True)
class NoOptions:
    """A recipe without settings of its own."""


class Recipe(ABC):
    """One draft in training against a frozen target.

    Attributes:
        Options: frozen dataclass of the recipe's settings (`--set key=value`).
        draft: the module to train; a parameter that requires no gradient stays as it is.
    """

    Options: ClassVar[type] = NoOptions
    draft: nn.Module

    @abstractmethod
    def __init__(self, target: FrozenTarget, options: Any) -> None:
        """Build `draft` with fresh weights on the target's device, in float32.

        torch's global generator is seeded, so ordinary initialisers are reproducible.
        """

    @classmethod
    def for_corpus(cls, target: FrozenTarget, options: Any, documents: Sequence[Encoded]) -> Self:
        """The recipe for training documents; one whose draft depends on them overrides this."""
        return cls(target, options)

    @abstractmethod
    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """The scalar loss of a batch; random choices come from `generator` (on the CPU).

        `batch.tokens` ``[b, n]`` holds whole documents from their first token, padded on the
        right; `batch.response` ``[b, n]`` marks what the assistant wrote, its end token too.
        """

    def at_step(self, step: int) -> None:  # noqa: B027 (few recipes keep a schedule)
        """Told the number of the step that comes, from 0, for a recipe that keeps a schedule."""

    def figures(self, batch: Batch, generator: torch.Generator) -> dict[str, float]:
        """Validation figures of a held-out batch; the loss where a recipe knows no better."""
        return {"validation_loss": float(self.loss(batch, generator))}

    @property
    def settled(self) -> dict[str, Any]:
        """Settings as the draft has them, where an option left them to the target or to the draft
        that was gone on from; the card tells these instead."""
        return {}

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the draft in the layout its drafter loads, 16-bit safetensors."""


@dataclass(frozen=True)
class DraftRun:
    """The settings that every recipe shares."""

    target: str
    corpora: tuple[str, ...]
    exclude: tuple[Path, ...]
    out: Path
    settings: TrainSettings
    resume: bool = False


def train_draft(
    recipe_type: type[Recipe], assignments: Sequence[str], run: DraftRun, command: str
) -> TrainResult:
    """Trains a draft on chats and writes it with its card to `run.out`."""
    options = parse_options(recipe_type.__name__, recipe_type.Options, assigned(assignments))
    settings = run.settings
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    target = FrozenTarget.load(run.target, device=device)
    corpus = refuse_evaluation_rows(
        load_corpus([CorpusSpec.parse(c) for c in run.corpora], run.exclude, settings.seed)
    )
    tokenizer = target.view.tokenizer
    pad = int(tokenizer.pad_token_id or 0)
    documents, kept = _answered(tokenizer, corpus.train, settings.length)
    held_out, _ = _answered(tokenizer, corpus.held_out, settings.length)
    weights = corpus.weights()
    batches = DocumentBatches(
        documents,
        [weights[i] for i in kept],
        batch=settings.batch,
        length=settings.length,
        seed=settings.seed,
        pad=pad,
    )
    with seeded(settings.seed):
        recipe = recipe_type.for_corpus(target, options, documents)
    if settings.compile:
        recipe.draft.compile()
    result = train(
        recipe.draft,
        recipe.loss,
        batches,
        settings,
        run.out / "training",
        validate=_validation(recipe, held_out, settings, pad),
        before_step=recipe.at_step,
        resume=run.resume,
    )
    recipe.save(run.out)
    facts = {
        "recipe": f"{recipe_type.__module__}.{recipe_type.__name__}",
        "target": Path(run.target).name,
        "options": asdict(options) | recipe.settled,
        "parameters": sum(p.numel() for p in recipe.draft.parameters() if p.requires_grad),
        "before": stages_of(resolve(options.init)) if getattr(options, "init", None) else [],
    }
    write_card(run.out, corpus.files, settings, result, command=command, facts=facts)
    return result


def assigned(assignments: Sequence[str]) -> dict[str, str]:
    """`key=value` texts as a mapping.

    Raises:
        UserError: a text without an equals sign.
    """
    settings: dict[str, str] = {}
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator:
            raise UserError(f"--set {assignment} must look like key=value.")
        settings[key.strip().replace("-", "_")] = text.strip()
    return settings


def _answered(
    tokenizer: Any, documents: Sequence[Document], length: int
) -> tuple[list[Encoded], list[int]]:
    """Encoded documents that the assistant speaks in within ``length``, and their indices."""
    encoded = encode_chats(tokenizer, [document.messages for document in documents])
    kept = [i for i, document in enumerate(encoded) if document.response[:length].any()]
    return [encoded[i] for i in kept], kept


def _validation(
    recipe: Recipe, held_out: Sequence[Encoded], settings: TrainSettings, pad: int
) -> Callable[[], dict[str, float]]:
    """Mean figures over held-out batches, the same random choices every time."""

    def validate() -> dict[str, float]:
        generator = torch.Generator().manual_seed(VALIDATION_SEED)
        sums: dict[str, float] = {}
        starts = range(0, len(held_out), settings.batch)
        for start in starts:
            part = held_out[start : start + settings.batch]
            batch = pad_right(part, settings.length, pad).to(next(recipe.draft.parameters()).device)
            for name, value in recipe.figures(batch, generator).items():
                sums[name] = sums.get(name, 0.0) + value / len(starts)
        return sums

    return validate
