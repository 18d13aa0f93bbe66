"""`dxgemm tune`: measure what kernels reach on this GPU, for the automatic choice to go by."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import platformdirs
import typer

from dxgemm._errors import GpuUnavailableError, MissingPackageError
from dxgemm._gpu import probe, simulator_enabled
from dxgemm._speeds import Table, table_file, write_table
from dxgemm.cli.output import note, print_table, progress_bar
from dxgemm.tuning.observations import Measured, append, by_shape, read
from dxgemm.tuning.shapes import Shape, read_shapes, shapes_to_tune, unmeasured

BUILT_FOR = 64  # shapes whose kernels are built at a time, in parallel
SEED = 1
LEARNED_FROM = 250_000  # problems of a dtype that has speeds, which the model answers
PACKAGES = ("dxgemm", "numba-cuda", "cuda-core")


class TunedDtype(StrEnum):
    """Those of which tables know; of others the kernel files say how fast they are."""

    float32 = "float32"
    float64 = "float64"


def tune(
    dtype: Annotated[
        list[TunedDtype] | None,
        typer.Option("--dtype", "--dtypes", help="Repeatable; default: both."),
    ] = None,
    budget_minutes: Annotated[float, typer.Option(min=0.1, help="For measuring.")] = 10.0,
    shapes: Annotated[
        Path | None,
        typer.Option(help="Lines of m n k, or m n k batch; default: random ones."),
    ] = None,
    fresh: Annotated[bool, typer.Option(help="Forget what was measured before.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="The table; default: in the user's configuration.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Parallel builds; default: the CPUs.")] = None,
) -> None:
    """Measure kernels on this GPU and write the table that the automatic choice goes by.

    What was measured is kept: an interrupted search is taken up again, a longer one adds to it.
    """
    problem = "this is numba's simulator." if simulator_enabled() else probe().problem
    if problem:
        raise GpuUnavailableError(f"tuning needs a GPU: {problem}")
    try:
        from dxgemm.tuning.timing import EventTimer, l2_bytes
    except ImportError as error:
        raise MissingPackageError(f"tuning times with CuPy ({error}); pip install cupy.") from error
    if shapes and not shapes.is_file():
        raise typer.BadParameter(f"there is no file {shapes}")
    from dxgemm.runtime.device import device_facts
    from dxgemm.tuning.fit import fit_speeds
    from dxgemm.tuning.measure import build_candidates, measure
    from dxgemm.tuning.trees import grow_trees, tree_learner

    tree_learner()  # or an error, before anything is measured

    device = device_facts(0)
    target = out or table_file(device.name)
    kept = Path(platformdirs.user_cache_dir("dxgemm")) / "tuning" / f"{target.stem}.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    if fresh:
        kept.unlink(missing_ok=True)
    known = by_shape(read(kept))
    dtypes = tuple(chosen.value for chosen in dtype or TunedDtype)
    wanted: Iterable[Shape] = (
        read_shapes(shapes, dtypes) if shapes else shapes_to_tune(dtypes, SEED)
    )
    batches = unmeasured(wanted, known, BUILT_FOR)
    timer = EventTimer(l2_bytes())
    spent_s, budget_s = 0.0, 60 * budget_minutes
    with progress_bar() as report:
        while spent_s < budget_s and (batch := next(batches, None)):
            build_candidates(batch, jobs, report)
            for shape in batch:
                report(round(spent_s), round(budget_s), f"seconds, {shape}")
                start = time.monotonic()
                known[shape] = measure(shape, timer)
                append(kept, known[shape])
                spent_s += time.monotonic() - start
                if spent_s >= budget_s:
                    break
    fits = fit_speeds(known.values(), device)
    speeds = {key: fit.speed for key, fit in fits.items()}
    tuned = replace(device, speeds=speeds, trees={})
    with progress_bar() as report:
        trees = grow_trees(tuned, LEARNED_FROM, jobs, report)
    write_table(target, device.name, device.arch, Table(speeds, trees), _about(known))
    print_table(
        ("dtype", "kernel", ">shapes", ">error", ">efficiency", ">launch, us"),
        [
            (d, c, fit.observations, f"{fit.error:.1%}", f"{fit.speed.efficiency:.2f}",
             f"{fit.speed.launch_us:.1f}")
            for (d, c), fit in sorted(fits.items())
        ],
    )  # fmt: skip
    note(f"{len(known)} shapes; the table is {target}; new processes go by it.")


def _about(known: dict[Shape, Measured]) -> dict[str, Any]:
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"measured": date.today().isoformat(), "packages": packages, "shapes": len(known)}
