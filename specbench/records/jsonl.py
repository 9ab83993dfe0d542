"""JSON Lines on disk: one reader and one writer; the schema is checked on every line."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from specbench.errors import UserError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record")
_log = logging.getLogger(__name__)


def to_line(record: DataclassInstance) -> str:
    """Convert a record to one line of JSON."""
    return json.dumps(asdict(record), separators=(",", ":")) + "\n"


def read(path: Path, schema: int, parse: Callable[[dict[str, Any]], Record]) -> Iterator[Record]:
    """Read the records of a file; there are none if there is no file.

    An incomplete last line, which a killed process leaves, is skipped with a warning.

    Args:
        path: the file.
        schema: the schema that this version reads.
        parse: makes a record from a JSON object whose schema has been checked.

    Raises:
        UserError: a line cannot be read; the message gives its number.
    """
    if not path.exists():
        return
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    _warn_of_torn_line(path)
                    return
                try:
                    raw = json.loads(line)
                    if not isinstance(raw, dict):
                        raise ValueError("not an object")
                    refuse_other_schema(raw, schema)
                    record = parse(raw)
                except (ValueError, TypeError) as error:
                    raise UserError(f"{path}, line {number}, cannot be read: {error}.") from error
                yield record
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def append(file: BinaryIO, text: str) -> None:
    """Put lines on disk before returning; if that fails, remove what was written of them.

    Args:
        file: an unbuffered file; closing a buffered one would write the rest after a failure.
        text: whole lines.

    Raises:
        OSError: the lines cannot be written, for example because the disk is full.
    """
    start = file.seek(0, os.SEEK_END)
    rest = memoryview(text.encode())
    try:
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    except OSError:
        file.truncate(start)
        raise


def cut_torn_line(path: Path) -> None:
    """Remove an incomplete last line, which a killed process leaves."""
    content = path.read_bytes() if path.exists() else b""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        _warn_of_torn_line(path)
        os.truncate(path, whole)


def refuse_other_schema(raw: dict[str, Any], *readable: int) -> None:
    """Refuse an object whose schema this version cannot read.

    Raises:
        ValueError: the schema is not among ``readable``; the message says what to do.
    """
    schema = raw.get("schema")
    if schema not in readable:
        newer = isinstance(schema, int) and schema > max(readable)
        advice = ": use the newer specbench that wrote it" if newer else ""
        known = " and ".join(map(str, readable))
        raise ValueError(f"it has schema {schema}, but this version reads {known}{advice}")


def _warn_of_torn_line(path: Path) -> None:
    _log.warning("%s ends with an incomplete line, which is skipped.", path)
