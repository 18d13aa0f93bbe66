"""Messages to a person at work: the logger `dxgemm`, and progress bars.

Logged are each choice (DEBUG), each build and stand-in (INFO), bad wheels (WARNING).

Python prints warnings alone until a program configures logging, or `DXGEMM_LOG` names the level
from which on it prints to standard error.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dxgemm.errors import SettingError

LEVELS = ("debug", "info", "warning")

logger = logging.getLogger("dxgemm")


def print_from(level: str) -> None:
    """Print to standard error what has this level or a higher one.

    Raises:
        SettingError: the level is none of `LEVELS`.
    """
    if level not in LEVELS:
        raise SettingError(f"DXGEMM_LOG is {level!r}; it can be {', '.join(LEVELS)}.")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("dxgemm: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level.upper())


# report(steps done, steps in all or None, name of the next one)
Report = Callable[[int, int | None, str], None]


@contextmanager
def progress_bar(is_shown: bool = True, is_timed: bool = False) -> Iterator[Report]:
    """Show a bar on stderr, if that is a terminal: steps and the time left, or the time so far."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True, markup=False)
    left = TimeRemainingColumn(), TextColumn("left")
    count = (TimeElapsedColumn(),) if is_timed else (MofNCompleteColumn(), *left)
    columns = BarColumn(), *count, TextColumn("{task.description}", markup=False)
    is_shown = is_shown and console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not is_shown) as progress:
        task = progress.add_task("", total=None)

        def report(done: int, total: int | None, name: str) -> None:
            progress.update(task, completed=done, total=total, description=name)

        yield report


if os.environ.get("DXGEMM_LOG"):
    print_from(os.environ["DXGEMM_LOG"])
