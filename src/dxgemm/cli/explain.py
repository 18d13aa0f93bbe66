"""`dxgemm explain` and `dxgemm implementations`: the kernel of a product, and all kernels."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any, Literal

import numpy as np
import typer

import dxgemm
from dxgemm.cli.device import enable_simulator_without_gpu
from dxgemm.cli.output import JsonOption, print_json, print_table
from dxgemm.cli.run import MAX_SIMULATED, TooSlowError
from dxgemm.cli.timing import call_us, clock_name, send, time_text, to_dtype
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.dtypes import COMPLEX_PARTS, result_dtypes

SEED = 0

Size = Annotated[int, typer.Argument(min=0)]


Dtype = StrEnum("Dtype", "float32 float64 float16 bfloat16 int8")  # typer lists enums alone
OperandDtype = Literal[
    "float32", "float64", "float16", "bfloat16", "int8", "complex64", "complex128"
]
ResultDtype = Literal["float32", "float64", "float16", "bfloat16", "int32"]


def explain(
    m: Size,
    n: Size,
    k: Size,
    dtype: Annotated[OperandDtype, typer.Option()] = "float32",
    out_dtype: Annotated[ResultDtype | None, typer.Option(help="Of the result.")] = None,
    batch: Annotated[int, typer.Option(min=0)] = 1,
    layout: Annotated[
        Literal["row_row", "row_col", "col_row", "col_col"],
        typer.Option(help="Orders of a and b; row_col for x @ weight.T."),
    ] = "row_row",
    implementation: Annotated[str | None, typer.Option(help="Instead of the choice.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="Permitted: tf32, emulated, emulated2 to emulated20, 3m.")
    ] = None,
    batch_invariant: Annotated[
        bool, typer.Option("--batch-invariant", help="Rows with the same bits for every m.")
    ] = False,
    gpu: Annotated[
        str | None, typer.Option(help='A card that need not be at hand, such as "RTX 4090".')
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Build the kernel and time it too.")
    ] = False,
    show_all: Annotated[
        bool, typer.Option("--all", help="Each kernel, with its time or the reason against it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say how an (m, k) @ (k, n) product would be computed, why, and how fast at best."""
    if gpu is None:
        enable_simulator_without_gpu()
    elif measure:
        raise typer.BadParameter("--measure takes the GPU at hand, not the one of --gpu")
    options: dict[str, Any] = {
        "implementation": implementation,
        "precision": precision,
        "batch_invariant": batch_invariant,
    }
    explanation = dxgemm.explain_shape(
        m, n, k, dtype, batch=batch, layout=layout, out_dtype=out_dtype, gpu=gpu, **options
    )
    measured_us = None
    if measure:
        result_dtype = out_dtype or result_dtypes(dtype)[0]
        a, b, out = _random_operands((batch, m, n, k), dtype, result_dtype, layout)
        plan = dxgemm.plan(a, b, out=out, **options)
        plan()
        measured_us = call_us(plan)
        explanation = plan.explain()  # now with the record of the built kernel
    if as_json:
        values = explanation.as_dict()
        if measure:
            values |= {"measured_us": measured_us, "clock": clock_name()}
        print_json(values)
        return
    typer.echo(explanation.full() if show_all else str(explanation))
    if measured_us is not None:
        is_simulated = explanation.work.is_simulated
        text = time_text if is_simulated else explanation.prediction.against_roofline
        typer.echo(f"  measured        {text(measured_us)}: {clock_name()}")


def _random_operands(
    sizes: tuple[int, int, int, int], dtype: str, out_dtype: str, layout: str
) -> tuple[Any, Any, Any]:
    """Random a, b and out of a batch of (m, k) and (k, n) matrices.

    Raises:
        TooSlowError: the simulator would need minutes or hours.
    """
    batch, m, n, k = sizes
    steps = math.prod(sizes)
    if simulator_enabled() and steps > MAX_SIMULATED:
        raise TooSlowError(
            f"m * n * k is {steps:,}: the simulator measures nothing above {MAX_SIMULATED:,}; "
            "use a machine with an NVIDIA GPU, or leave out --measure."
        )
    rng = np.random.default_rng(SEED)

    def random(rows: int, cols: int, dtype: str) -> Any:
        shape = (rows, cols) if batch == 1 else (batch, rows, cols)
        if dtype in ("int8", "int32"):
            return send(rng.integers(-128, 128, shape, np.dtype(dtype)))
        wide = np.float64 if dtype in ("float64", "complex128") else np.float32
        values = rng.standard_normal(shape, wide)
        if dtype in COMPLEX_PARTS:
            values = values + 1j * rng.standard_normal(shape, wide)
        return to_dtype(send(values), dtype)

    def operand(order: str, rows: int, cols: int) -> Any:
        if order == "row":
            return random(rows, cols, dtype)
        return random(cols, rows, dtype).swapaxes(-1, -2)

    a_order, b_order = layout.split("_")
    return operand(a_order, m, k), operand(b_order, k, n), random(m, n, out_dtype)


def implementations(as_json: JsonOption = False) -> None:
    """List the implementations that --implementation takes."""
    rows = [
        {"name": i.name, "is_own": i.is_own, "summary": i.summary} for i in dxgemm.implementations()
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(("name", "summary"), [(row["name"], row["summary"]) for row in rows])
