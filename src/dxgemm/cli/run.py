"""`dxgemm run`: one GEMM on matrices in files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import dxgemm
from dxgemm.cli.device import enable_simulator_without_gpu
from dxgemm.cli.matrices import read_matrix, written_atomically
from dxgemm.cli.output import JsonOption, print_json
from dxgemm.gpu.status import simulator_enabled

# Multiply-adds of the simulator per second, roughly, and the most without --allow-slow.
SIMULATED_PER_S = 50_000
MAX_SIMULATED = 2_000_000


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
        Path, typer.Option("--output", "-o", metavar="OUT.npy", help="May be one of the inputs.")
    ],
    alpha: Annotated[float, typer.Option(help="Factor of A @ B.")] = 1.0,
    beta: Annotated[float, typer.Option(help="Factor of C.")] = 0.0,
    implementation: Annotated[
        str | None, typer.Option(help="A name from `dxgemm implementations`.")
    ] = None,
    allow_slow: Annotated[
        bool,
        typer.Option("--allow-slow", help=f"Simulate more than m * n * k = {MAX_SIMULATED:,}."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compute alpha * A @ B + beta * C from .npy files of float32, float64, or int8 (C int32)."""
    a, b = read_matrix(a_path), read_matrix(b_path)
    c = read_matrix(c_path) if c_path is not None else None
    enable_simulator_without_gpu()
    with written_atomically(output) as file:
        plan = dxgemm.plan(a, b, c, alpha, beta, implementation=implementation)
        explanation = plan.explain()
        if simulator_enabled() and not allow_slow:
            _refuse_hours(explanation)
        start = time.perf_counter()
        result = plan()
        seconds = time.perf_counter() - start
        np.save(file, result)

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
            }
        )
        return
    copies = "" if simulator_enabled() else ", copies to and from it included"
    typer.echo(
        f"{output}: {_shape_text(result)} {result.dtype} = {_formula(alpha, a, b, beta, c)}\n"
        f"by {explanation.choice.kernel} on {explanation.work.device} in {seconds:.3g} s{copies}"
    )


def _refuse_hours(explanation: dxgemm.Explanation) -> None:
    work = explanation.work
    count = work.batch * work.m * work.n * work.k
    if count > MAX_SIMULATED:
        raise TooSlowError(
            f"m * n * k is {count:,}, above the {MAX_SIMULATED:,} that run on the simulator "
            f"unasked: it would take about {_duration(count / SIMULATED_PER_S)}. Use a machine "
            "with an NVIDIA GPU, or pass --allow-slow."
        )


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def _formula(alpha: float, a: np.ndarray, b: np.ndarray, beta: float, c: np.ndarray | None) -> str:
    product = f"{_factor(alpha)}{_shape_text(a)} @ {_shape_text(b)}"
    return product if beta == 0 or c is None else f"{product} + {_factor(beta)}{_shape_text(c)}"


def _factor(value: float) -> str:
    return "" if value == 1 else f"{value} * ".replace(".0 ", " ")


def _shape_text(array: np.ndarray) -> str:
    return "x".join(map(str, array.shape))
