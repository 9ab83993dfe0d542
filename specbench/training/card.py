"""Model cards: card.json for programs, README.md for people."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specbench.drafting.checkpoints import find_checkpoint
from specbench.training.corpus.data import EXCLUSION_WORDS, FileFacts
from specbench.training.corpus.formats import sha256_of
from specbench.training.loop import TrainResult

_OWN = {"card.json", "README.md"}
_SHOWN = ("shape", "recipe", "options", "target", "parameters", "loss", "figures")


def write_card(
    folder: Path, data: Sequence[FileFacts], facts: Mapping[str, Any], text: str
) -> None:
    """Write both forms of a card beside a model's files.

    Args:
        facts: what card.json holds besides the data and the hashes of all other files there.
        text: Markdown about them; the heading, the table of the data and the hashes are added.
    """
    hashes = {
        path.name: sha256_of(path)
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name not in _OWN
    }
    card = {**facts, "data": [asdict(file) for file in data], "sha256": hashes}
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    rows = "\n".join(
        f"| {f.file} | {f.weight:g} | {f.train} | {f.held_out} | {f.excluded} "
        f"| {f.licence} | `{f.sha256[:16]}` |"
        for f in data
    )
    listed = "\n".join(f"- `{file}`: `{digest}`" for file, digest in hashes.items())
    (folder / "README.md").write_text(f"""# {folder.name}

{text}

| data | times per epoch | train | held out | left out | licence | sha256 |
| --- | ---: | ---: | ---: | ---: | --- | --- |
{rows}

Rows left out quote an evaluation prompt or share a run of {EXCLUSION_WORDS} words with an excluded
file.

{listed}
""")


def write_loop_card(
    folder: Path, data: Sequence[FileFacts], result: TrainResult, facts: Mapping[str, Any]
) -> None:
    """Write the card of a model that the loop trained; ``facts`` begin with its command."""
    card = {
        **facts,
        "settings": asdict(result.settings),
        "tokens_seen": result.tokens,
        "final_train_loss": result.loss,
        "validation": result.validation,
    }
    stages = _stages(card)
    runs = "\n".join(
        f"| {s['settings']['steps']} | {s['tokens_seen']:,} | {s['settings']['seed']} "
        f"| {s['final_train_loss']:.4f} | {s['validation'].get('validation_loss', math.nan):.4f} |"
        for s in stages
    )
    figures = "\n".join(f"| {key} | {value:.4f} |" for key, value in result.validation.items())
    shown = "\n".join(f"- {key}: {card[key]}" for key in card if key in _SHOWN)
    commands = "\n".join(stage["command"] for stage in stages)
    text = f"""Trained with

```
{commands}
```

{shown}

| steps | tokens seen | seed | final training loss | validation loss |
| ---: | ---: | ---: | ---: | ---: |
{runs}

Losses are nats per token (or whatever the recipe's loss is). On the held-out rows:

| figure | |
| --- | ---: |
{figures}"""
    write_card(folder, data, card, text)


def stages_of(name: str) -> list[dict[str, Any]]:
    """The runs that made a model (a folder, a hub id or an embedded one), oldest first.

    They come from its card; there are none without one.

    Raises:
        UserError: there is no such model.
    """
    path = find_checkpoint(name, None, role="model") / "card.json"
    return _stages(json.loads(path.read_text())) if path.is_file() else []


def _stages(card: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a later card says about the run of this card, and about those before it."""
    kept = ("command", "settings", "tokens_seen", "final_train_loss", "validation")
    return [*card.get("before", []), {key: card[key] for key in kept}]
