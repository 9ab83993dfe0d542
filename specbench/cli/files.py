"""Files that commands write."""

from pathlib import Path

from specbench.errors import UserError, writing

RESULTS = Path("results")
"""Where runs are kept, one folder each."""


def write(path: Path, text: str) -> None:
    """Write a file, and make its folder where there is none.

    Raises:
        UserError: it cannot be written.
    """
    make_folder(path.parent)
    with writing(path):
        path.write_text(text, encoding="utf-8")


def make_folder(folder: Path) -> None:
    """Make a folder, before anything is measured for it, where there is none.

    Raises:
        UserError: it cannot be made.
    """
    with writing(folder, "made"):
        folder.mkdir(parents=True, exist_ok=True)


def check_output(output: Path, overwrite: bool) -> None:
    """Refuse, before any work, a file that cannot or must not be written.

    Raises:
        UserError: it exists and ``overwrite`` is not set, or its folder does not exist.
    """
    if output.is_dir() or not output.parent.is_dir():
        raise UserError(f"--output {output} must name a file in a folder that exists.")
    if output.exists() and not overwrite:
        raise UserError(
            f"{output} exists already: take another --output, or overwrite with --overwrite."
        )
