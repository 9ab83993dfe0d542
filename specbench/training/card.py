"""Model cards: card.json for programs, README.md for people."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specbench.training.corpus.data import FileFacts, sha256_of
from specbench.training.loop import TrainResult, TrainSettings

_OWN = {"card.json", "README.md"}
_SHOWN = ("shape", "recipe", "options", "target", "parameters", "loss", "figures")


def write_card(
    folder: Path,
    data: Sequence[FileFacts],
    settings: TrainSettings,
    result: TrainResult,
    *,
    command: str,
    facts: Mapping[str, Any],
) -> None:
    """Writes both forms beside the weights; hashes cover every other file there."""
    card = {
        "command": command,
        **facts,
        "settings": asdict(settings),
        "tokens_seen": result.tokens,
        "final_train_loss": result.loss,
        "validation": result.validation,
        "data": [asdict(file) for file in data],
        "sha256": file_hashes(folder),
    }
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    (folder / "README.md").write_text(_readme(folder.name, card))


def file_hashes(folder: Path) -> dict[str, str]:
    """Sha256 of a model's files, its card aside."""
    return {
        path.name: sha256_of(path)
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name not in _OWN
    }


def stages_of(folder: str) -> list[dict[str, Any]]:
    """The runs that made a model, oldest first, by its card; none without a card."""
    path = Path(folder) / "card.json"
    if not path.is_file():
        return []
    card = json.loads(path.read_text())
    return [*card.get("before", []), _stage(card)]


def _stage(card: Mapping[str, Any]) -> dict[str, Any]:
    """What a later card says about this run."""
    kept = ("command", "settings", "tokens_seen", "final_train_loss", "validation")
    return {key: card[key] for key in kept}


def _readme(name: str, card: Mapping[str, Any]) -> str:
    stages = [*card.get("before", []), _stage(card)]
    files = "\n".join(
        f"| {f['file']} | {f['weight']:g} | {f['train']} | {f['held_out']} | {f['excluded']} "
        f"| {f['licence']} | `{f['sha256'][:16]}` |"
        for f in card["data"]
    )
    runs = "\n".join(
        f"| {s['settings']['steps']} | {s['tokens_seen']:,} | {s['settings']['seed']} "
        f"| {s['final_train_loss']:.4f} | {s['validation'].get('validation_loss', math.nan):.4f} |"
        for s in stages
    )
    validation = "\n".join(f"| {key} | {value:.4f} |" for key, value in card["validation"].items())
    hashes = "\n".join(f"- `{file}`: `{digest}`" for file, digest in card["sha256"].items())
    facts = "\n".join(f"- {key}: {card[key]}" for key in card if key in _SHOWN)
    commands = "\n".join(s["command"] for s in stages)
    return f"""# {name}

Trained with

```
{commands}
```

{facts}

| steps | tokens seen | seed | final training loss | validation loss |
| ---: | ---: | ---: | ---: | ---: |
{runs}

Losses are nats a token (or whatever the recipe's loss is). On the held-out rows:

| figure | |
| --- | ---: |
{validation}

| data | times an epoch | train | held out | left out | licence | sha256 |
| --- | ---: | ---: | ---: | ---: | --- | --- |
{files}

Rows left out quote an evaluation prompt or share a run of 13 words with an excluded file.

{hashes}
"""
