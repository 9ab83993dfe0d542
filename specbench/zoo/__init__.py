"""The embedded tiny models as package data: one folder per model, each with its card."""

from pathlib import Path


def resolve(name: str) -> str:
    """Return the folder of an embedded model (``tiny-target``), or any other name unchanged."""
    folder = Path(__file__).parent / name
    embedded = Path(name).name == name and (folder / "card.json").is_file()
    return str(folder) if embedded else name
