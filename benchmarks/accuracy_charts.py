"""The suite `accuracy` as charts: the largest error over k, a line for each implementation."""

from __future__ import annotations

from collections.abc import Container, Iterator

from charts import Series, line_chart
from result_files import Extra, Results, distinct, extras

DATA = {"normal": "normal values", "uniform": "values between 0 and 1"}


def accuracy_sections(results: Results) -> Iterator[tuple[str, str, list[Extra]]]:
    """Name, title and rows of each kind of arithmetic on each sort of data."""
    rows = extras(results)
    for kind, data in distinct((row["kind"], row["data"]) for row in rows):
        of_both = [row for row in rows if (row["kind"], row["data"]) == (kind, data)]
        yield f"{kind}-{data}", f"{kind}, {DATA[data]}", of_both


def accuracy_chart(title: str, rows: list[Extra], shown: Container[str]) -> str:
    """The implementations among `shown`, in rows of one kind and one sort of data."""
    lines = [
        Series(
            name,
            sorted((row["k"], row["max_error"]) for row in rows if row["implementation"] == name),
        )
        for name in distinct(row["implementation"] for row in rows)
        if name in shown
    ]
    return line_chart(title, lines, "k", "largest error, eps |A| |B|")
