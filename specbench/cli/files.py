"""Files that commands write."""

from pathlib import Path

from specbench.errors import UserError


def write(path: Path, text: str) -> None:
    """Write a file, and make its folder where there is none.

    Raises:
        UserError: it cannot be written.
    """
    make_folder(path.parent)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from error


def make_folder(folder: Path) -> None:
    """Make a folder, before anything is measured for it, where there is none.

    Raises:
        UserError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made: {error.strerror}.") from error
