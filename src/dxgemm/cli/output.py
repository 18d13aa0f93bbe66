"""Output of the commands: results on stdout, as text or JSON; everything else on stderr."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

# Width of a table if stdout is no terminal, so that its lines are not folded.
PIPED_WIDTH = 240


def note(text: str) -> None:
    """Print a remark in one line on stderr."""
    typer.echo(f"dxgemm: {' '.join(text.split())}", err=True)


def print_json(value: Any, *, is_remark: bool = False) -> None:
    """Print on stdout; or on stderr, as a remark, where stdout has other bytes."""
    typer.echo(json.dumps(value, indent=2, default=str), err=is_remark)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table on stdout; columns whose name starts with ">" are aligned to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        is_number = column.startswith(">")
        table.add_column(
            column.removeprefix(">"), justify="right" if is_number else "left", no_wrap=is_number
        )
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    console.print(table)


def figure(value: float | None, format_spec: str) -> str | None:
    """Format a number; None stays."""
    return None if value is None else format(value, format_spec)


def byte_text(count: int) -> str:
    """Format a number of bytes: `51200` -> `"50.0 KiB"`."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
