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
import sys
from pathlib import Path
from typing import Any

from bench_fp8 import DTYPE, Float8Case
from bench_fp8 import own as own8
from bench_fp8 import rival as rival8
from bench_symmetric import SymmetricCase, symmetric, syrk
from cases import Case, own, xp
from counters import profiled, write
from fused import FusedCase, cublaslt_epilogue, fused, separate_kernels
from measuring import CUBLAS, Row
from result_files import RESULTS

from dxgemm.cli.counters import Launch, top_stall

MARK = "next_call"  # kernel that is launched before each call
K_MAJOR, FUSED = "row_col_row", "bias | gelu | residual"
ONE_WAVE = "One tile per SM: nothing multiplies while the ring is filled and the result stored."
PIECES = "Rows begin at no cache line: each row of a box is read from L2 in pieces."
WORDS = "No load of 16 bytes begins at an odd address: lines are shifted in registers."
READING = "Both read b at the speed of memory; the rest is launch and start."
BANKS = "Real and imaginary parts alternate between two banks of registers, and some collide."
STORES = "Storing both triangles takes about as long as multiplying; syrk stores one."
MIRRORED = "Mirror images are stored by columns, whose elements are in separate cache lines."

HALF = [
    (1576, 768, 3072, K_MAJOR, ONE_WAVE), (512, 2560, 2560, K_MAJOR, ONE_WAVE),
    (1576, 3072, 768, "row_row_row", ONE_WAVE), (560, 7000, 3000, K_MAJOR, PIECES),
    (1720, 2360, 4120, K_MAJOR, PIECES), (9000, 712, 2008, K_MAJOR, PIECES),
]  # fmt: skip
OTHERS = [
    ("float16", 48, 5120, 5120, K_MAJOR, "80 tiles, or 40, for 132 SMs."),
    ("float16", 37, 4099, 4097, WORDS),
    ("float16", 39300, 131, 131, WORDS),
    ("float32", 64, 128256, 4096, K_MAJOR, "A wider tile reads less from L2."),
    ("float32", 64, 4099, 4097, "Rows of odd width are copied by elements."),
    ("float64", 64, 4096, 4096, K_MAJOR, "64 tiles for 132 SMs: slices of k are added."),
    ("float32", 1, 3000, 3000, READING),
    ("float64", 1, 3000, 3000, READING),
    ("float64", 20000, 200, 200, "Tiles of 32 columns read a from L2 seven times, cuBLAS's twice."),
    ("complex64", 300, 20000, 300, BANKS),
    ("complex64", 1000, 1003, 517, BANKS),
    ("complex64", 24, 3000, 3000, "k is cut in slices, whose sums are added."),
    ("complex64", 1, 4096, 4096, "Another kernel copies the real and imaginary parts first."),
    ("complex128", 256, 256, 16384, "64 tiles of 32 x 32, two blocks each."),
]
SYMMETRIC = [
    ("float64", 4096, 4096, 64, K_MAJOR, STORES, syrk),
    ("float16", 4096, 4096, 512, K_MAJOR, STORES, None),
    ("float32", 4095, 4095, 4095, K_MAJOR, MIRRORED, syrk),
]
FLOAT8 = [
    (DTYPE, 512, 2560, 2560, K_MAJOR, "tensor", ONE_WAVE, rival8),
    (DTYPE, 1024, 1024, 8192, K_MAJOR, "tensor", "64 tiles of 128 x 128 for 132 SMs.", rival8),
    (DTYPE, 8192, 1280, 8192, K_MAJOR, "block", "Scales pass shared memory too.", rival8),
]


def behind(case: Case, why: str, rival: Any = None, mine: Any = None) -> Row:
    """A case, its rival (cuBLAS, if none is given), and the reason that the counters show."""
    variants = {"own": mine or own(), "rival": rival or own(CUBLAS)}
    return Row(case, variants, facts={"why": why})


def rows() -> list[Row]:
    """The cases, with what their counters show."""
    relu = FusedCase("bfloat16", 1576, 3072, 768, epilogue="bias | relu")
    gelu = FusedCase("float64", 2401, 2401, 243, epilogue=FUSED)
    return [
        *(behind(Case("bfloat16", *case), why) for *case, why in HALF),
        behind(relu, ONE_WAVE, cublaslt_epilogue, fused()),
        *(behind(Case(*case), why) for *case, why in OTHERS),
        behind(Case("float32", 77, 77, 64, batch=512), "A block multiplies what has all arrived."),
        behind(
            gelu,
            "The residual is read, and erf computed, after the tile.",
            separate_kernels,
            fused(),
        ),
        *(behind(SymmetricCase(*case), why, rival, symmetric) for *case, why, rival in SYMMETRIC),
        *(behind(Float8Case(*case, scales=s), why, rival, own8) for *case, s, why, rival in FLOAT8),
    ]


def launch(chosen: list[Row]) -> None:
    """Call both variants of the rows while profiled, each after a kernel with a block a call.

    Rows that another machine cannot compute are left out.
    """
    mark = xp.RawKernel(f'extern "C" __global__ void {MARK}() {{}}', MARK)
    for number, row in enumerate(chosen):
        operands = row.case.operands(xp.random.default_rng(0))
        try:
            calls = [make(row.case, operands) for make in row.variants.values()]
            for call in calls:
                call()
        except Exception as error:  # of whatever type: other libraries raise their own
            print(f"{row.case} is left out: {error}", file=sys.stderr)
            continue
        for place, call in enumerate(calls):
            xp.cuda.Device().synchronize()
            xp.cuda.profiler.start()
            mark((2 * number + place + 1,), (1,), ())
            call()
            xp.cuda.Device().synchronize()
            xp.cuda.profiler.stop()
        del operands, calls, call
        xp.get_default_memory_pool().free_all_blocks()


def by_call(launches: list[Launch]) -> dict[int, list[dict[str, Any]]]:
    """Counters of the kernels of each call, by its number, without stalls but the longest."""
    found: dict[int, list[dict[str, Any]]] = {}
    for name, values in launches:
        if MARK in name:
            kernels = found[int(values["blocks"]) - 1] = []
        elif found:
            counters = {key: n for key, n in values.items() if not key.startswith("stall_")}
            short = name.partition("[abi")[0]  # without what numba adds
            kernels.append({"kernel": short, "stall": top_stall(values), **counters})
    return found


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
    calls = by_call(profiled(None))
    cases = {
        str(row.case): entry(row, calls[2 * number], calls[2 * number + 1])
        for number, row in enumerate(chosen)
        if calls.get(2 * number) and calls.get(2 * number + 1)
    }
    write(given.out, "behind_counters", cases=cases)
    return 0


if __name__ == "__main__":
    sys.exit(main())
