"""`dxgemm explain` and `dxgemm implementations`: the kernel of a product, and all kernels."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

import typer

import dxgemm
from dxgemm.cli.device import enable_simulator_without_gpu
from dxgemm.cli.output import JsonOption, print_json, print_table
from dxgemm.cli.run import PrecisionOption, refuse_hours
from dxgemm.cli.timing import call_us, clock_name, time_text
from dxgemm.tuning.measure import array_module, random_operands, to_dtype
from dxgemm.tuning.workloads import Workload

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
    precision: PrecisionOption = None,
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
        refuse_hours(explanation.work, "leave out --measure")
        a, b, out = random_operands(Workload(dtype, m, n, k, batch, layout=layout))
        if out_dtype is not None:
            out = to_dtype(array_module().zeros(out.shape, "float32"), out_dtype)
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


def implementations(as_json: JsonOption = False) -> None:
    """List the implementations that --implementation takes."""
    rows = [
        {"name": i.name, "is_own": i.is_own, "summary": i.summary} for i in dxgemm.implementations()
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(("name", "summary"), [(row["name"], row["summary"]) for row in rows])
