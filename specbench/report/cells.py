"""What a table's cell holds: a figure of a row with its interval, a mark, or words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from specbench.report.summary import Row
from specbench.stats.bootstrap import Estimate

ABSENT = "-"
Value = TypeVar("Value")


@dataclass(frozen=True)
class Shown:
    """One line of a table's cell.

    Attributes:
        text: a number with its unit, or words.
        interval: ``[2.90, 3.30]``; "" for a line that is no estimate.
        note: what stands behind it in brackets.
        number: what a page sorts by; None for words.
        mark, verdict: what a page colours the line by, as "broken" or "near-tie".
    """

    text: str
    interval: str = ""
    note: str = ""
    number: float | None = None
    mark: str = ""
    verdict: str = ""

    @property
    def parts(self) -> list[str]:
        """Text, interval and note, as far as there are any."""
        note = f"({self.note})" if self.note else ""
        return [part for part in (self.text, self.interval, note) if part]

    def __str__(self) -> str:
        return " ".join(self.parts)


@dataclass(frozen=True)
class TableCell:
    """Lines of one cell below one another, or, for a list by depth, side by side."""

    lines: tuple[Shown, ...]
    listed: bool = False

    @classmethod
    def words(cls, text: str) -> TableCell:
        """A cell of plain text."""
        return cls((Shown(text),))

    def joined(self, line_break: str) -> str:
        """The cell as text."""
        return (", " if self.listed else line_break).join(map(str, self.lines))


@dataclass(frozen=True)
class Section:
    """A table with one line per row of the report.

    Attributes:
        has: whether a row has a line in it.
    """

    title: str
    has: Callable[[Row], bool]


@dataclass(frozen=True)
class Figure(Generic[Value]):
    """One thing that a row says.

    Attributes:
        key: its name in json and csv; "" for a figure of tables only.
        value: an `Estimate`, a tuple of them by depth, or a plain value of JSON.
        title: the head of its column, without the unit; "" for a figure of json and csv only.
        section: the table with a column for it.
        unit: "x" stands behind each number, "%" and "ms" in the head; "%" multiplies by 100.
        interval: its interval's name in json; "" for ``key_ci``.
        counted: whether json holds its own number of prompts, as ``key_n``.
        show: what tables say in place of the number; None for the number.
    """

    key: str
    value: Callable[[Row], Value]
    title: str = ""
    section: Section | None = None
    unit: Literal["", "x", "%", "ms"] = ""
    digits: int = 2
    interval: str = ""
    counted: bool = False
    show: Callable[[Row], Shown | None] = lambda row: None

    @property
    def header(self) -> str:
        """The head of its column."""
        return f"{self.title} {self.unit}" if self.unit in ("%", "ms") else self.title

    def of(self, row: Row) -> Value:
        """Its value in a row, computed once."""
        if self not in row.known:
            row.known[self] = self.value(row)
        known: Value = row.known[self]
        return known

    def cell(self, row: Row) -> TableCell:
        """What a table says of it in a row."""
        shown = self.show(row)
        if shown is not None:
            return TableCell((shown,))
        value = self.of(row)
        if isinstance(value, tuple):
            return TableCell(tuple(map(self.line, value)), listed=True)
        return TableCell((self.line(value),))

    def line(self, value: Any) -> Shown:
        """A single value with its interval."""
        number = value.value if isinstance(value, Estimate) else value
        if number is None:
            return Shown(ABSENT)
        if not isinstance(number, int | float):
            return Shown(str(number))
        text = self._form(number) + ("x" if self.unit == "x" else "")
        if not isinstance(value, Estimate):
            return Shown(text, number=number)
        ends = ", ".join(map(self._form, value.interval or ())) or "no interval"
        return Shown(text, f"[{ends}]", number=number)

    def facts(self, row: Row) -> dict[str, Any]:
        """Its keys and values in json."""
        value = self.of(row)
        if not self.key:
            return {}
        if isinstance(value, Estimate):
            interval = {self.interval or f"{self.key}_ci": value.interval}
            n = {f"{self.key}_n": value.n} if self.counted else {}
            return {self.key: value.value, **interval, **n}
        if isinstance(value, tuple):
            intervals = [estimate.interval for estimate in value]
            return {self.key: [e.value for e in value], f"{self.key}_intervals": intervals}
        return {self.key: value}

    def _form(self, number: float) -> str:
        return f"{number * 100:.0f}" if self.unit == "%" else f"{number:.{self.digits}f}"
