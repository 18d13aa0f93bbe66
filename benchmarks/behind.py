"""Counters of the cases in which dxgemm is behind: `results/<gpu>/behind_counters.json`.

    python benchmarks/behind.py                        # on a GPU, with ncu on the PATH
    python benchmarks/behind.py --case 5120 --out /tmp/results

Every kernel of a call is counted, of dxgemm's choice and of the rival's, with cold caches. The file
has an entry for each case: `own` and `rival`, lists of kernels with their counters (`COUNTERS` in
dxgemm.cli.counters), the sum of their times in microseconds, and `why`. "Where it is behind" in
docs/benchmarking.md is generated from it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_symmetric import SymmetricCase, symmetric, syrk
from cases import Case, own, xp
from fused import FusedCase, fused, separate_kernels
from measuring import CUBLAS, Row
from provenance import commit_info, gpu_info, gpu_slug

import dxgemm
from dxgemm.cli.counters import Launch, ncu_command, top_stall
from dxgemm.cli.profile import profiled_launches

RESULTS = Path(__file__).resolve().parent / "results"
MARK = "next_call"  # kernel that is launched before each call
FUSED = "bias | gelu | residual"


def behind(case: Case, why: str, rival: Any = None, mine: Any = None) -> Row:
    """A case, its rival (cuBLAS, if none is given), and the reason that the counters show."""
    variants = {"own": mine or own(), "rival": rival or own(CUBLAS)}
    return Row(case, variants, facts={"why": why})


def rows() -> list[Row]:
    K_MAJOR = "row_col_row"
    return [
        behind(Case("float32", 64, 128256, 4096, K_MAJOR), ""),
        behind(Case("float32", 64, 4099, 4097), ""),
        behind(Case("float64", 64, 4096, 4096, K_MAJOR), ""),
        behind(Case("float32", 1, 3000, 3000), ""),
        behind(Case("float64", 1, 3000, 3000), ""),
        behind(Case("float16", 48, 5120, 5120, K_MAJOR), ""),
        behind(Case("float16", 37, 4099, 4097), ""),
        behind(Case("float16", 39300, 131, 131), ""),
        behind(Case("float32", 77, 77, 64, batch=512), ""),
        behind(Case("float64", 20000, 200, 200), ""),
        behind(
            FusedCase("float64", 2401, 2401, 243, epilogue=FUSED), "", separate_kernels, fused()
        ),
        behind(Case("complex64", 300, 20000, 300), ""),
        behind(Case("complex64", 24, 3000, 3000), ""),
        behind(Case("complex64", 1000, 1003, 517), ""),
        behind(Case("complex64", 1, 4096, 4096), ""),
        behind(Case("complex128", 256, 256, 16384), ""),
        behind(SymmetricCase("float64", 4096, 4096, 64, K_MAJOR), "", syrk, symmetric),
        behind(SymmetricCase("float16", 4096, 4096, 512, K_MAJOR), "", None, symmetric),
        behind(SymmetricCase("float32", 4095, 4095, 4095, K_MAJOR), "", syrk, symmetric),
    ]


def launch(chosen: list[Row]) -> None:
    """Call every variant of the rows, each after a kernel that marks it, while profiled."""
    mark = xp.ElementwiseKernel("", "int32 y", "y = 0", MARK)
    target = xp.zeros(1, "int32")
    for row in chosen:
        operands = row.case.operands(xp.random.default_rng(0))
        for make in row.variants.values():
            call = make(row.case, operands)
            call()
            xp.cuda.Device().synchronize()
            xp.cuda.profiler.start()
            mark(target)
            call()
            xp.cuda.Device().synchronize()
            xp.cuda.profiler.stop()
        del operands, call
        xp.get_default_memory_pool().free_all_blocks()


def by_call(launches: list[Launch]) -> Iterator[list[dict[str, Any]]]:
    """Counters of the kernels of each call, without stalls but the longest."""
    kernels: list[dict[str, Any]] | None = None
    for name, values in launches:
        if MARK in name:
            if kernels is not None:
                yield kernels
            kernels = []
        elif kernels is not None:
            counters = {key: n for key, n in values.items() if not key.startswith("stall_")}
            kernels.append({"kernel": name, "stall": top_stall(values), **counters})
    if kernels is not None:
        yield kernels


def entry(row: Row, own_kernels: list[dict[str, Any]], rivals: list[dict[str, Any]]) -> Any:
    own_us, rival_us = (
        sum(kernel["time_ns"] for kernel in kernels) / 1e3 for kernels in (own_kernels, rivals)
    )
    return {
        "own": own_kernels,
        "own_us": own_us,
        "rival": rivals,
        "rival_us": rival_us,
        **row.facts,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", action="append", help="part of a case's name; default: all")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--launch", action="store_true", help="what the profiler runs")
    given = parser.parse_args()
    chosen = [
        row for row in rows() if not given.case or any(c in str(row.case) for c in given.case)
    ]
    if given.launch:
        launch(chosen)
        return 0
    ncu = shutil.which("ncu")
    if ncu is None:
        print("behind.py: ncu is not on the PATH", file=sys.stderr)
        return 1
    command = ncu_command([*sys.argv, "--launch"], ncu=ncu, launches=None, as_csv=True)
    calls = list(by_call(profiled_launches(command)))
    if len(calls) != 2 * len(chosen):
        print(f"behind.py: {2 * len(chosen)} calls, {len(calls)} counted", file=sys.stderr)
        return 1
    gpu = gpu_info()
    path = given.out / gpu_slug(gpu["name"]) / "behind_counters.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = map(entry, chosen, calls[::2], calls[1::2])
    file = {
        "gpu": gpu,
        "dxgemm": dxgemm.__version__,
        "commit_info": commit_info(),
        "cases": dict(zip((str(row.case) for row in chosen), entries, strict=True)),
    }
    path.write_text(json.dumps(file, indent=1, sort_keys=True) + "\n")
    print(f"{len(chosen)} cases counted in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
