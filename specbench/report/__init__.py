"""From run folders to tables."""

from specbench.report.formats import render
from specbench.report.runs import run_folders
from specbench.report.summary import Row, Summary, Table, summarise
from specbench.report.terminal import rich_table

__all__ = ["Row", "Summary", "Table", "render", "rich_table", "run_folders", "summarise"]
