"""What a draft's recipe provides, and the command that runs any of them.

A recipe is a class named under the entry-point group `specbench.trainers`. It needs
nothing of the loop: it builds the draft, gives the loss of a batch, and saves.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from specbench.errors import UserError
from specbench.training.batches import Batch, DocumentBatches, pad_right
from specbench.training.card import write_card
from specbench.training.data import CorpusSpec, Document, load_corpus
from specbench.training.features import FrozenTarget
from specbench.training.loop import TrainResult, TrainSettings, train
from specbench.training.seeding import seeded
from specbench.training.tokenizer import Encoded, encode_chats

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

    @abstractmethod
    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """The scalar loss of a batch; random choices come from `generator` (on the CPU).

        `batch.tokens` ``[b, n]`` holds whole documents from their first token, padded on the
        right; `batch.response` ``[b, n]`` marks what the assistant wrote, its end token too.
        """

    def figures(self, batch: Batch, generator: torch.Generator) -> dict[str, float]:
        """Validation figures of a held-out batch; the loss where a recipe knows no better."""
        return {"validation_loss": float(self.loss(batch, generator))}

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
    options = parse_options(recipe_type.Options, assignments)
    settings = run.settings
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    target = FrozenTarget.load(run.target, device=device)
    corpus = load_corpus([CorpusSpec.parse(c) for c in run.corpora], run.exclude, settings.seed)
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
        recipe = recipe_type(target, options)
    if settings.compile:
        recipe.draft.compile()
    result = train(
        recipe.draft,
        recipe.loss,
        batches,
        settings,
        run.out / "training",
        validate=_validation(recipe, held_out, settings, pad),
        resume=run.resume,
    )
    recipe.save(run.out)
    facts = {
        "recipe": f"{recipe_type.__module__}.{recipe_type.__name__}",
        "target": Path(run.target).name,
        "options": asdict(options),
        "parameters": sum(p.numel() for p in recipe.draft.parameters() if p.requires_grad),
    }
    write_card(run.out, corpus.files, settings, result, command=command, facts=facts)
    return result


def parse_options(options_type: type, assignments: Sequence[str]) -> Any:
    """An options dataclass from `key=value` texts.

    Raises:
        UserError: an unknown key (the allowed ones are named) or a value of the wrong type.
    """
    kinds = typing.get_type_hints(options_type)
    names = [field.name for field in dataclasses.fields(options_type)]
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        key = key.strip().replace("-", "_")
        if not separator or key not in names:
            raise UserError(
                f"{assignment!r} is no setting of this recipe.",
                f"Known: {', '.join(f'{name}=...' for name in names) or 'none'}.",
            )
        values[key] = _parse(text.strip(), kinds[key], key)
    return options_type(**values)


_READERS: Mapping[Any, Callable[[str], Any]] = {int: int, float: float, str: str}
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _parse(text: str, kind: Any, key: str) -> Any:
    """One value: int, float, str, bool, a tuple of these (`1,2,3`), or None where allowed."""
    if isinstance(kind, types.UnionType):
        if text.lower() == "none":
            return None
        kind = next(part for part in typing.get_args(kind) if part is not types.NoneType)
    try:
        if kind is bool:
            return _BOOLEANS[text.lower()]
        if typing.get_origin(kind) is tuple:
            item = typing.get_args(kind)[0]
            return tuple(_READERS[item](part) for part in text.split(",") if part)
        return _READERS[kind](text)
    except (KeyError, ValueError):
        name = getattr(kind, "__name__", str(kind))
        raise UserError(f"{key} must be {name}, not {text!r}.") from None


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
