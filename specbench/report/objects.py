"""A summary for programs: the json contract, and the same rows as csv."""

import csv
import io
import json
from typing import Any

from specbench.report import figures
from specbench.report.summary import Summary

REPORT_SCHEMA = 1
FIRST = (
    "target", "drafter", "suite", "temperature", "n", "failed", "aal_pooled", "aal_macro", "aal_ci",
    "speedup", "speedup_ci", "speedup_end_to_end", "tokens_per_second", "lossless",
)  # fmt: skip
"""The keys that every reader can rely on. More may be added, none may change its meaning."""


def json_text(summary: Summary) -> str:
    """An object with ``schema`` and ``rows``."""
    report = {"schema": REPORT_SCHEMA, "rows": objects(summary)}
    return json.dumps(report, indent=2, allow_nan=False) + "\n"


def csv_text(summary: Summary) -> str:
    """The rows of json: an interval as two columns, lists and objects as JSON."""
    rows = [_flat(row) for row in objects(summary)]
    file = io.StringIO()
    if rows:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return file.getvalue()


def objects(summary: Summary) -> list[dict[str, Any]]:
    """The rows of json."""
    found = []
    for table in summary.tables:
        for row in table.rows:
            facts: dict[str, Any] = dict.fromkeys(FIRST)
            for figure in figures.FIGURES:
                facts |= figure.facts(row)
            found.append(facts | {"unlike": list(table.unlike)})
    return found


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if key.endswith("_ci"):
            low, high = value or (None, None)
            flat |= {f"{key.removesuffix('_ci')}_low": low, f"{key.removesuffix('_ci')}_high": high}
        elif isinstance(value, dict | list):
            flat[key] = json.dumps(value, sort_keys=True)
        else:
            flat[key] = value
    return flat
