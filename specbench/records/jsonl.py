"""JSON Lines on disk: one reader and one writer, with the schema checked on every line."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from specbench.errors import UserError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record")
_log = logging.getLogger(__name__)


def to_line(record: DataclassInstance) -> str:
    """A record as one line."""
    return json.dumps(asdict(record), separators=(",", ":")) + "\n"


def read(path: Path, schema: int, parse: Callable[[dict[str, Any]], Record]) -> Iterator[Record]:
    """The records of a file; none where there is no file.

    A last line that a kill cut off is left out, with a warning.

    Args:
        schema: the one that this version reads.
        parse: makes a record of an object, whose schema has been checked.

    Raises:
        UserError: a line that cannot be read; it is named.
    """
    if not path.exists():
        return
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    _warn_of_torn_line(path)
                    return
                yield _parsed(path, number, line, schema, parse)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def append(file: BinaryIO, text: str) -> None:
    """Put lines on disk before returning; where that fails, take back what was written of them.

    Args:
        file: unbuffered, so that nothing is left that closing would write again.

    Raises:
        OSError: such as a full disk.
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
    """Remove what a kill left of a last line."""
    content = path.read_bytes() if path.exists() else b""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        _warn_of_torn_line(path)
        os.truncate(path, whole)


def build(kind: type[Record], raw: dict[str, Any]) -> Record:
    """A record of a dataclass.

    Raises:
        ValueError: fields that the dataclass does not have.
    """
    unknown = set(raw) - {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if unknown:
        raise ValueError(f"unknown fields {sorted(unknown)}")
    return kind(**raw)


def refuse_other_schema(raw: dict[str, Any], *readable: int) -> None:
    """Refuse an object of a schema that this version cannot read.

    Raises:
        ValueError: it has another one; a newer one asks for a newer specbench.
    """
    schema = raw.get("schema")
    if schema not in readable:
        newer = isinstance(schema, int) and schema > max(readable)
        advice = ": take the newer specbench that wrote it" if newer else ""
        known = " and ".join(map(str, readable))
        raise ValueError(f"it has schema {schema}, this version reads {known}{advice}")


def _parsed(
    path: Path,
    number: int,
    line: bytes,
    schema: int,
    parse: Callable[[dict[str, Any]], Record],
) -> Record:
    try:
        raw = json.loads(line)
        if not isinstance(raw, dict):
            raise ValueError("not an object")
        refuse_other_schema(raw, schema)
        return parse(raw)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}, line {number}, cannot be read: {error}.") from error


def _warn_of_torn_line(path: Path) -> None:
    _log.warning("%s ends in half a line, which is left out.", path)
