"""`dxgemm bench`: the benchmarks of a checkout, and the report of their results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

import dxgemm
from dxgemm.cli.device import require_gpu

BENCHMARKS = Path(dxgemm.__file__).resolve().parents[2] / "benchmarks"


class NoCheckoutError(dxgemm.DxgemmError, OSError):
    """The installed package has no benchmarks beside it."""


def bench(
    suite: Annotated[list[str] | None, typer.Option(help="Repeatable; default: all.")] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Tiny sizes on the simulator; writes nothing.")
    ] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Measure nothing; rewrite the tables.")
    ] = False,
) -> None:
    """Run the benchmarks of a checkout on its GPU, or report what they measured."""
    if not (BENCHMARKS / "run.py").is_file():
        raise NoCheckoutError(
            "bench: the benchmarks are not part of the installed package; run `make bench` in a "
            "clone of the repository, or install that with `pip install --editable`."
        )
    if not (report or smoke):
        require_gpu("measuring")
    if report:
        command = ["report.py"]
    else:
        command = ["run.py", *(f"--suite={name}" for name in suite or ())]
        command += ["--smoke"] if smoke else []
    path, *arguments = command
    finished = subprocess.run([sys.executable, str(BENCHMARKS / path), *arguments])
    raise typer.Exit(finished.returncode)
