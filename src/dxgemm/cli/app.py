"""Application of all commands; errors become one line and an exit status."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dxgemm import DxgemmError, __version__
from dxgemm.cli.bench import bench
from dxgemm.cli.demo import demo
from dxgemm.cli.explain import explain, implementations
from dxgemm.cli.info import info
from dxgemm.cli.kernels import build, cache
from dxgemm.cli.ladder import ladder
from dxgemm.cli.occupancy import occupancy
from dxgemm.cli.output import note
from dxgemm.cli.profile import profile
from dxgemm.cli.run import run
from dxgemm.cli.tune import tune

BAD_INPUT, FAILED = 2, 1


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"dxgemm {__version__}")
        raise typer.Exit


class _OneLineErrors(TyperGroup):
    """Group of commands that reports expected errors as `dxgemm: ...`, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        warnings.showwarning = lambda message, *_: note(f"warning: {message}")
        try:
            return super().invoke(ctx)
        except DxgemmError as error:
            error.name_call(ctx.invoked_subcommand)  # in the place of the functions that it calls
            note(str(error))
            is_bad_input = isinstance(error, ValueError | TypeError | OSError)
            raise typer.Exit(BAD_INPUT if is_bad_input else FAILED) from None


app = typer.Typer(
    cls=_OneLineErrors,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print it and exit."
        ),
    ] = False,
) -> None:
    """GEMM on NVIDIA GPUs: C = alpha * A @ B + beta * C."""


for command in (
    *(run, demo, explain, implementations, info, build, cache),
    *(ladder, profile, occupancy, bench, tune),
):
    app.command()(command)


def main() -> None:
    """Entry point of the `dxgemm` script."""
    app(prog_name="dxgemm")
