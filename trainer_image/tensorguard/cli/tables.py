"""Small tables on standard output: coloured on a terminal, plain in a pipe, and never cut off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from tensafe_api.job_status import RecordedCheckpoint

PIPE_WIDTH = 160
"""Width when the output is not a terminal: wide enough that no row is wrapped."""


PUBLISHED = ("PUBLISHED", "STEP", "ATTEMPT", "URI")
"""The headers of a table of published checkpoints."""
Row = tuple[str, str, str]
"""A name, a value and a remark."""


def print_facts(rows: Iterable[Row], title: str = "") -> None:
    """Print rows of a name, a value and a remark, under an optional title."""
    grid = Table.grid(padding=(0, 2))
    for style in ("dim", "bold", "dim"):
        grid.add_column(style=style, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    _print(*([Text(title, style="bold cyan")] if title else []), grid)


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table with headers; columns of numbers are right-aligned."""
    rows = [list(row) for row in rows]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for number, header in enumerate(headers):
        numeric = all(row[number].replace(",", "").replace(".", "").isdigit() for row in rows)
        table.add_column(header, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    _print(table)


def published_rows(checkpoints: Iterable[RecordedCheckpoint]) -> list[tuple[str, ...]]:
    """The rows of a table of published checkpoints."""
    return [("final" if each.final else "", f"{each.step:,}", str(each.attempt), each.uri) for each in checkpoints]


def _print(*parts: RenderableType) -> None:
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(*parts, sep="\n")
        return
    console = Console(highlight=False, width=PIPE_WIDTH)
    with console.capture() as capture:
        console.print(*parts, sep="\n")
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))
