"""`dxgemm run`: one GEMM on matrices in files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer

import dxgemm
from dxgemm.cli.device import enable_simulator_without_gpu
from dxgemm.cli.matrices import STDOUT, read_matrix, written_atomically
from dxgemm.cli.output import JsonOption, print_json
from dxgemm.epilogues import Epilogue, catalogue
from dxgemm.errors import EpilogueError
from dxgemm.gpu.status import simulator_enabled
from dxgemm.log import progress_bar
from dxgemm.problem.arguments import Precision, check_name

# Multiply-adds of the simulator per second, roughly, and the most without --allow-slow.
SIMULATED_PER_S = 100_000
MAX_SIMULATED = 2_000_000


def _number(text: Any) -> Any:
    """Read a number: an integer keeps all its digits."""
    for kind in (int, float, complex):
        try:
            return kind(str(text))
        except ValueError:
            continue
    raise typer.BadParameter(f"{text!r} is no number, such as 2, 0.5 or 1+2j")


def _number_option(of: str) -> Any:
    return typer.Option(parser=_number, metavar="NUMBER", help=f"Factor of {of}; may be 1+2j.")


PrecisionOption = Annotated[
    str | None, typer.Option(help="Permitted: tf32, emulated, emulated2 to emulated20, 3m.")
]


class TooSlowError(dxgemm.DxgemmError, ValueError):
    """The simulator would need minutes or hours."""


def run(
    a_path: Annotated[Path, typer.Argument(metavar="A.npy", help="(m, k) or (batch, m, k).")],
    b_path: Annotated[Path, typer.Argument(metavar="B.npy", help="(k, n) or (batch, k, n).")],
    c_path: Annotated[
        Path | None, typer.Argument(metavar="C.npy", help="(m, n) or (batch, m, n).")
    ] = None,
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="OUT.npy", help="May be one of the inputs; - for stdout."
        ),
    ],
    alpha: Annotated[Any, _number_option("A @ B")] = 1,
    beta: Annotated[Any, _number_option("C")] = 0,
    epilogue: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of dxgemm.epilogues, such as relu.")
    ] = None,
    precision: PrecisionOption = None,
    implementation: Annotated[
        str | None, typer.Option(help="A name from `dxgemm implementations`.")
    ] = None,
    allow_slow: Annotated[
        bool,
        typer.Option("--allow-slow", help=f"Simulate more than m * n * k = {MAX_SIMULATED:,}."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compute alpha * A @ B + beta * C from .npy files of any dtype that `dxgemm.gemm` takes."""
    a, b = read_matrix(a_path), read_matrix(b_path)
    c = read_matrix(c_path) if c_path is not None else None
    enable_simulator_without_gpu()
    with written_atomically(output) as file:
        plan = dxgemm.plan(
            *(a, b, c, alpha, beta),
            epilogue=None if epilogue is None else _ready_epilogue(epilogue),
            precision=cast(Precision | None, precision),
            implementation=implementation,
        )
        explanation = plan.explain()
        if not allow_slow:
            refuse_hours(explanation.work, "pass --allow-slow")
        start = time.perf_counter()
        with _time_left():
            result = plan()
        seconds = time.perf_counter() - start
        np.save(file, result)

    is_on_stdout = output == STDOUT
    if as_json:
        print_json(
            {
                "output": output,
                "shape": result.shape,
                "dtype": result.dtype.name,
                "alpha": alpha,
                "beta": beta,
                "implementation": explanation.implementation,
                "config": explanation.config,
                "device": explanation.work.device,
                "seconds": seconds,
            },
            is_remark=is_on_stdout,
        )
        return
    copies = "" if simulator_enabled() else ", copies to and from it included"
    formula = _formula(alpha, a, b, beta, c)
    formula = formula if epilogue is None else f"{epilogue}({formula})"
    where = "stdout" if is_on_stdout else output
    typer.echo(
        f"{where}: {_shape_text(result)} {result.dtype} = {formula}\n"
        f"by {explanation.choice.kernel} on {explanation.work.device} in {seconds:.3g} s{copies}",
        err=is_on_stdout,
    )


@contextmanager
def _time_left() -> Iterator[None]:
    """Show a bar of the simulated blocks, and the time left."""
    if not simulator_enabled():
        yield
        return
    from dxgemm.runtime.simulator import blocks_reported

    with progress_bar() as report, blocks_reported(lambda done, of: report(done, of, "blocks")):
        yield


def _ready_epilogue(name: str) -> Epilogue:
    """Find an epilogue of the catalogue that needs no operand."""
    ready = {
        entry.name: entry
        for entry in vars(catalogue).values()
        if isinstance(entry, Epilogue)
        and not entry.outputs
        and all(parameter.default for parameter in entry.parameters)
    }
    check_name("epilogue", name, tuple(ready), EpilogueError)
    return ready[name]


def refuse_hours(work: Any, way_out: str) -> None:
    """Refuse a product that takes the simulator minutes or hours."""
    count = work.batch * work.m * work.n * work.k
    if simulator_enabled() and count > MAX_SIMULATED:
        raise TooSlowError(
            f"m * n * k is {count:,}, above the {MAX_SIMULATED:,} that run on the simulator "
            f"unasked: it would take about {_duration(count / SIMULATED_PER_S)}. Use a machine "
            f"with an NVIDIA GPU, or {way_out}."
        )


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def _formula(alpha: Any, a: np.ndarray, b: np.ndarray, beta: Any, c: np.ndarray | None) -> str:
    product = f"{_factor(alpha)}{_shape_text(a)} @ {_shape_text(b)}"
    return product if beta == 0 or c is None else f"{product} + {_factor(beta)}{_shape_text(c)}"


def _factor(value: Any) -> str:
    return "" if value == 1 else f"{value} * ".replace(".0 ", " ")


def _shape_text(array: np.ndarray) -> str:
    return "x".join(map(str, array.shape))
