"""A summary as text, by the name of a format. Only the format asked for is imported."""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING

from specbench.errors import UserError

if TYPE_CHECKING:
    from specbench.report.summary import Summary

FORMATS = {
    "markdown": "specbench.report.markdown:markdown_text",
    "csv": "specbench.report.objects:csv_text",
    "json": "specbench.report.objects:json_text",
    "latex": "specbench.report.latex:latex_text",
    "html": "specbench.report.html:html_text",
}
"""Every format with its writer, which maps a `Summary` to a text that ends with a newline."""


def render(summary: Summary, name: str) -> str:
    """The report in the format called ``name``.

    Raises:
        UserError: no format has that name.
    """
    if name not in FORMATS:
        raise UserError(f"--format is {', '.join(FORMATS)}, not {name!r}.")
    return str(pkgutil.resolve_name(FORMATS[name])(summary))
