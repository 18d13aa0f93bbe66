"""`dxgemm tune`: measure the speed of kernels on this GPU, for the automatic choice."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

import typer

from dxgemm.choice.selection import forget_candidates
from dxgemm.choice.tables import own_folder, table_for
from dxgemm.cli.device import require_gpu
from dxgemm.cli.output import note, print_table
from dxgemm.compiler import default_directory
from dxgemm.compiler.toolkit import installed_versions
from dxgemm.errors import BuildError, MissingPackageError
from dxgemm.log import progress_bar
from dxgemm.tuning.observations import append, read
from dxgemm.tuning.workloads import (
    ARITHMETICS,
    COMPLEX_ARITHMETICS,
    Workload,
    random_workloads,
    read_workloads,
    square_workloads,
)

BUILT_FOR = 64  # number of workloads whose kernels are built together, in parallel
SEED = 1
PACKAGES = ("dxgemm", "numba-cuda", "cuda-core")


# bfloat16 takes the measurements of float16.
TunedDtype = StrEnum("TunedDtype", "float32 float64 float16 int8 complex64 complex128")


def tune(
    dtype: Annotated[
        list[TunedDtype] | None,
        typer.Option("--dtype", "--dtypes", help="Repeatable; default: all."),
    ] = None,
    budget_minutes: Annotated[
        float, typer.Option(min=0.1, help="For building kernels and measuring.")
    ] = 15.0,
    shapes: Annotated[
        Path | None,
        typer.Option(help="Lines of m n k, or m n k batch; default: squares, then random ones."),
    ] = None,
    fresh: Annotated[bool, typer.Option(help="Forget what was measured before.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="The table's folder; default: the user's configuration.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Parallel builds; default: the CPUs.")] = None,
) -> None:
    """Measure kernels on this GPU and write the table that the automatic choice uses.

    Measurements are kept: an interrupted search is continued, a longer one adds to them.
    """
    require_gpu("tuning")
    try:
        from dxgemm.tuning.timing import EventTimer, l2_bytes
    except ImportError as error:
        raise MissingPackageError(f"tuning times with CuPy ({error}); pip install cupy.") from error
    if shapes and not shapes.is_file():
        raise typer.BadParameter(f"there is no file {shapes}")
    from dxgemm.runtime.device import device_facts
    from dxgemm.tuning.fit import fit_table
    from dxgemm.tuning.measure import build_candidates, measure

    device = device_facts(0)
    folder = out or own_folder(device)
    kept = (default_directory() or folder) / "tuning" / f"{folder.name}.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    if fresh:
        kept.unlink(missing_ok=True)
    known = read(kept)
    dtypes = {chosen.value for chosen in dtype or TunedDtype}
    arithmetics = [one for one in (*ARITHMETICS, *COMPLEX_ARITHMETICS) if one[0] in dtypes]
    wanted: Iterable[Workload] = (
        read_workloads(shapes, arithmetics)
        if shapes
        else chain(square_workloads(arithmetics), random_workloads(arithmetics, SEED))
    )
    waiting = (workload for workload in wanted if workload not in known)
    timer = EventTimer(l2_bytes())
    begin, budget_s = time.monotonic(), 60 * budget_minutes

    def build_some() -> list[Workload]:
        """Build the kernels of the next workloads; those that fail are not measured."""
        few = list(islice(waiting, BUILT_FOR))
        with suppress(BuildError):
            build_candidates(few, device, jobs)
        return few

    with progress_bar() as report, ThreadPoolExecutor(1) as builder:
        report(0, round(budget_s), "s, building kernels")
        building = builder.submit(build_some)
        while (few := building.result()) and time.monotonic() - begin < budget_s:
            building = builder.submit(build_some)  # meanwhile
            for workload in few:
                spent_s = time.monotonic() - begin
                report(min(round(spent_s), round(budget_s)), round(budget_s), f"s, {workload}")
                if spent_s >= budget_s:
                    break
                known[workload] = measure(workload, device, timer)
                append(kept, known[workload])
    own = [one for one in known.values() if one.workload.dtype in dtypes]
    fits = fit_table(folder, own, device, table_for(device), _about(len(known)))
    forget_candidates()
    lines = [
        (name, fit.workloads, f"{fit.error:.1%}", f"{fit.corrected_error:.1%}")
        for name, fit in fits.items()
    ]
    print_table((">dtype", ">workloads", ">error of the model", ">corrected"), lines)
    note(f"{len(known)} workloads; the table is {folder}; new processes go by it.")


def _about(workloads: int) -> dict[str, Any]:
    packages = installed_versions([(name,) for name in PACKAGES])
    return {"measured": date.today().isoformat(), "packages": packages, "workloads": workloads}
