"""`dxgemm explain` and `dxgemm implementations`: what would run, and why."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

import dxgemm
from dxgemm.cli.device import enable_simulator_without_gpu
from dxgemm.cli.output import JsonOption, print_json, print_table

Size = Annotated[int, typer.Argument(min=0)]


class Dtype(StrEnum):
    float32 = "float32"
    float64 = "float64"
    float16 = "float16"
    bfloat16 = "bfloat16"
    int8 = "int8"


class ResultDtype(StrEnum):
    float32 = "float32"
    float64 = "float64"
    float16 = "float16"
    bfloat16 = "bfloat16"
    int32 = "int32"


class Precision(StrEnum):
    TF32 = "tf32"
    SPLIT = "split"


def explain(
    m: Size,
    n: Size,
    k: Size,
    dtype: Annotated[Dtype, typer.Option()] = Dtype.float32,
    out_dtype: Annotated[ResultDtype | None, typer.Option(help="Of the result.")] = None,
    batch: Annotated[int, typer.Option(min=0)] = 1,
    implementation: Annotated[str | None, typer.Option(help="Instead of the choice.")] = None,
    precision: Annotated[
        Precision | None, typer.Option(help="What float32 may be computed as.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say how an (m, k) @ (k, n) product would be computed, and why."""
    enable_simulator_without_gpu()
    explanation = dxgemm.explain_shape(
        m,
        n,
        k,
        dtype.value,
        batch=batch,
        out_dtype=out_dtype and out_dtype.value,
        implementation=implementation,
        precision=precision and precision.value,
    )
    if as_json:
        print_json(explanation.as_dict())
    else:
        typer.echo(str(explanation))


def implementations(as_json: JsonOption = False) -> None:
    """List the implementations that --implementation takes."""
    rows = [
        {"name": i.name, "is_own": i.is_own, "summary": i.summary} for i in dxgemm.implementations()
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(("name", "summary"), [(row["name"], row["summary"]) for row in rows])
