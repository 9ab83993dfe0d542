"""Model cards: card.json for programs, README.md for people."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specbench.training.data import FileFacts, sha256_of
from specbench.training.loop import TrainResult, TrainSettings

_OWN = {"card.json", "README.md"}


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
        "sha256": {
            path.name: sha256_of(path)
            for path in sorted(folder.iterdir())
            if path.is_file() and path.name not in _OWN
        },
    }
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    (folder / "README.md").write_text(_readme(folder.name, card))


def commands_of(folder: str) -> list[str]:
    """The commands that made a model, oldest first, by its card; none without a card."""
    path = Path(folder) / "card.json"
    if not path.is_file():
        return []
    card = json.loads(path.read_text())
    return [*card.get("before", []), card["command"]]


def _readme(name: str, card: dict[str, Any]) -> str:
    files = "\n".join(
        f"| {f['file']} | {f['weight']:g} | {f['train']} | {f['held_out']} | {f['excluded']} "
        f"| {f['licence']} | `{f['sha256'][:16]}` |"
        for f in card["data"]
    )
    validation = "\n".join(f"| {key} | {value:.4f} |" for key, value in card["validation"].items())
    hashes = "\n".join(f"- `{file}`: `{digest}`" for file, digest in card["sha256"].items())
    commands = "\n".join([*card.get("before", []), card["command"]])
    facts = "\n".join(f"- {k}: {card[k]}" for k in card if k in ("shape", "parameters", "recipe"))
    return f"""# {name}

Trained with

```
{commands}
```

{facts}
- seed: {card["settings"]["seed"]}; steps: {card["settings"]["steps"]}; \
tokens seen: {card["tokens_seen"]:,}
- final training loss: {card["final_train_loss"]:.4f} nats a token

| held-out rows | |
| --- | ---: |
{validation}

Bits per byte count every token, those of the chat template too, over the bytes
of the messages' contents.

| data | times an epoch | train | held out | left out | licence | sha256 |
| --- | ---: | ---: | ---: | ---: | --- | --- |
{files}

Rows left out share a run of 13 words with an evaluation file.

{hashes}
"""
