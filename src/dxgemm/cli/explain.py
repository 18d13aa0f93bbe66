"""`dxgemm explain` and `dxgemm implementations`: the kernel of a product, and all kernels."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import numpy as np
import typer

import dxgemm
from dxgemm.cli.device import enable_simulator_without_gpu
from dxgemm.cli.output import JsonOption, print_json, print_table
from dxgemm.cli.run import MAX_SIMULATED, TooSlowError
from dxgemm.cli.timing import call_us, clock_name, send, time_text, to_dtype
from dxgemm.problem.dtypes import COMPLEX_PARTS

SEED = 0

Size = Annotated[int, typer.Argument(min=0)]


class Dtype(StrEnum):
    float32 = "float32"
    float64 = "float64"
    float16 = "float16"
    bfloat16 = "bfloat16"
    int8 = "int8"


class OperandDtype(StrEnum):
    float32 = "float32"
    float64 = "float64"
    float16 = "float16"
    bfloat16 = "bfloat16"
    int8 = "int8"
    complex64 = "complex64"
    complex128 = "complex128"


class ResultDtype(StrEnum):
    float32 = "float32"
    float64 = "float64"
    float16 = "float16"
    bfloat16 = "bfloat16"
    int32 = "int32"


class Order(StrEnum):
    row_row = "row_row"
    row_col = "row_col"
    col_row = "col_row"
    col_col = "col_col"


def explain(
    m: Size,
    n: Size,
    k: Size,
    dtype: Annotated[OperandDtype, typer.Option()] = OperandDtype.float32,
    out_dtype: Annotated[ResultDtype | None, typer.Option(help="Of the result.")] = None,
    batch: Annotated[int, typer.Option(min=0)] = 1,
    layout: Annotated[
        Order, typer.Option(help="Orders of a and b; row_col for x @ weight.T.")
    ] = Order.row_row,
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
    as_json: JsonOption = False,
) -> None:
    """Say how an (m, k) @ (k, n) product would be computed, why, and how fast at best."""
    if gpu is None:
        enable_simulator_without_gpu()
    elif measure:
        raise typer.BadParameter("--measure takes the GPU at hand, not the one of --gpu")
    explanation = dxgemm.explain_shape(
        m,
        n,
        k,
        dtype.value,
        batch=batch,
        layout=layout.value,
        out_dtype=out_dtype and out_dtype.value,
        implementation=implementation,
        precision=precision,
        batch_invariant=batch_invariant,
        gpu=gpu,
    )
    measured_us = None
    if measure:
        plan = _plan_of(
            explanation, (m, n, k, batch), dtype, layout, implementation, precision, batch_invariant
        )
        plan()
        measured_us = call_us(plan)
        explanation = plan.explain()  # now with the record of the built kernel
    if as_json:
        values = explanation.as_dict()
        if measure:
            values |= {"measured_us": measured_us, "clock": clock_name()}
        print_json(values)
        return
    typer.echo(str(explanation))
    if measured_us is not None:
        text = time_text if explanation.is_simulated else explanation.against_roofline
        typer.echo(f"  measured        {text(measured_us)}: {clock_name()}")


def _plan_of(
    explanation: dxgemm.Explanation,
    sizes: tuple[int, int, int, int],
    dtype: OperandDtype,
    layout: Order,
    implementation: str | None,
    precision: str | None,
    batch_invariant: bool,
) -> dxgemm.Plan:
    """Plan the explained product with random operands.

    Raises:
        TooSlowError: the simulator would need minutes or hours.
    """
    m, n, k, batch = sizes
    is_complex = dtype.value in COMPLEX_PARTS  # then those of the explanation are of a real product
    steps = batch * m * n * k
    if explanation.is_simulated and steps > MAX_SIMULATED:
        raise TooSlowError(
            f"m * n * k is {steps:,}: the simulator measures nothing above {MAX_SIMULATED:,}; "
            "use a machine with an NVIDIA GPU, or leave out --measure."
        )
    rng = np.random.default_rng(SEED)

    def random(rows: int, cols: int, dtype: str) -> Any:
        shape = (batch, rows, cols) if batch > 1 else (rows, cols)
        if dtype in ("int8", "int32"):
            return send(rng.integers(-128, 128, shape, np.dtype(dtype)))
        wide = np.float64 if dtype in ("float64", "complex128") else np.float32
        values = rng.standard_normal(shape, wide)
        if is_complex:
            values = values + 1j * rng.standard_normal(shape, wide)
        return to_dtype(send(values), dtype)

    def operand(order: str, rows: int, cols: int) -> Any:
        if order == "row":
            return random(rows, cols, dtype.value)
        return random(cols, rows, dtype.value).swapaxes(-1, -2)

    a_order, b_order = layout.value.split("_")
    return dxgemm.plan(
        operand(a_order, m, k),
        operand(b_order, k, n),
        out=random(m, n, dtype.value if is_complex else explanation.out_dtype),
        implementation=implementation,
        precision=precision,
        batch_invariant=batch_invariant,
    )


def implementations(as_json: JsonOption = False) -> None:
    """List the implementations that --implementation takes."""
    rows = [
        {"name": i.name, "is_own": i.is_own, "summary": i.summary} for i in dxgemm.implementations()
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(("name", "summary"), [(row["name"], row["summary"]) for row in rows])
