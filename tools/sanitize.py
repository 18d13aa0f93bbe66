"""Every implementation under NVIDIA's compute-sanitizer: `make sanitize`, on a machine with a GPU.

    PYTHONPATH=tests python tools/sanitize.py     # all lanes, everything
    PYTHONPATH=tests python tools/sanitize.py --lane memcheck --subject tuned

A lane is a tool of the sanitizer, after a plain one that builds what is missing. In each, every
subject (an implementation, or what goes beyond one) runs its cases in a process of its own: ragged
and whole sizes, aligned operands and others, results right to the last bit. No pool of memory is
used, and operands end where their memory ends, so that a step outside is seen. Races are reported
without failing: the tool knows little of the copies of Hopper and of cp.async. It is slow, too, and
gets an eighth of the cases.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from oracle.buffers import Slot
from oracle.kinds import KINDS, numpy_dtype, round_to_dtype
from oracle.libraries import LIBRARIES
from recorded_runs import run_info, write_run

import dxgemm
from dxgemm import epilogues, errors, reductions
from dxgemm.gpu.status import probe, simulator_enabled
from dxgemm.runtime import workspace

PLAIN, ADVISORY = "plain", "racecheck"
LANES = (PLAIN, "memcheck", "initcheck", "synccheck", ADVISORY)
SIZES = [(5, 6, 7), (8, 8, 8)] if simulator_enabled() else [(130, 266, 43), (64, 128, 64)]
SEVERAL_TILES = (530, 700, 328)  # of every tile, with edges, and several stages of k
TOOLKITS = ("/usr/local/cuda/bin", "/opt/cuda/bin")
TIMEOUT_S = 1800

home = LIBRARIES["numpy" if simulator_enabled() else "cupy"]
rng = np.random.default_rng(0)


class Outcome(NamedTuple):
    """Outcome of one subject in one lane.

    Attributes:
        cases: number of cases that were computed.
        refused: number of cases that the implementation declines.
        reports: number of errors or hazards that the sanitizer reports.
        failure: last line of output of a process that failed; "" if it did not fail.
    """

    cases: int = 0
    refused: int = 0
    reports: int = 0
    failure: str = ""


def operand(values: np.ndarray, order: str, is_aligned: bool) -> Any:
    """Send values to memory that ends with them; unaligned lines are one element apart."""
    stored = values if order == "row" else values.T
    rows, cols = stored.shape
    unit = 16 // values.itemsize if is_aligned else 1
    line = -(-cols // unit) * unit + (not is_aligned)
    slot = Slot("", 0, stored.shape, (line, 1))
    buffer = np.zeros((rows - 1) * line + cols, values.dtype)
    slot.view(buffer)[...] = stored
    view = home.view(home.send(buffer), slot)
    return view if order == "row" else view.T


def integers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small random integers, whose sums are exact in every arithmetic."""
    return rng.integers(-3, 4, shape).astype(numpy_dtype(dtype))


def check(case: Any, result: Any, expected: np.ndarray) -> None:
    found = home.fetch(result)
    if not np.array_equal(found, round_to_dtype(expected, found.dtype)):
        raise SystemExit(f"wrong result: {case}")


def products(name: str, are_few: bool) -> Iterator[Callable[[], None]]:
    """Yield products of one implementation: first and last config of each kind of arithmetic."""
    orders = [("row", "row"), ("row", "col"), ("col", "row"), ("col", "col")]
    (implementation,) = (i for i in dxgemm.implementations() if i.name == name)
    for kind in KINDS.values():
        configs = implementation.configs(kind.dtype)
        for config in dict.fromkeys((*configs[:1], *configs[-1:])):
            for case in product(
                (config,),
                SIZES[:1] if are_few else SIZES,
                orders[::3] if are_few else orders,
                (True, False),
                (1,) if are_few else (0, 1),
            ):
                yield lambda kind=kind, case=case: multiply(name, kind, *case)


def multiply(
    name: str,
    kind: Any,
    config: Any,
    size: tuple[int, int, int],
    orders: tuple[str, str],
    is_aligned: bool,
    beta: int,
) -> None:
    m, n, k = size
    a, b, c = (
        integers(shape, dtype)
        for shape, dtype in (
            ((m, k), kind.dtype), ((k, n), kind.dtype), ((m, n), kind.out_dtype)
        )
    )  # fmt: skip
    operands = [
        operand(values, order, is_aligned)
        for values, order in zip((a, b, c), (*orders, "row"), strict=True)
    ]
    result = dxgemm.gemm(
        *operands, 1, beta, implementation=(name, config), precision=kind.precision
    )
    label = (name, kind, config, size, orders, is_aligned, beta)
    check(label, result, wide(a) @ wide(b) + beta * wide(c))


def wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64)


def fused() -> Iterator[Callable[[], None]]:
    """Yield products with epilogues (vectors, matrices, an output) and with reductions."""
    for name, dtype, (m, n, k) in product(("tuned", "async_copy"), ("float32", "float64"), SIZES):
        yield lambda name=name, dtype=dtype, size=(m, n, k): fuse(name, dtype, *size)
    for case in product(
        (
            reductions.sum(0),
            reductions.argmin(1),
            reductions.smallest(2),
            reductions.norm(None),
            reductions.logsumexp(1),
        ),
        (None, "emulated"),
        SIZES,
    ):
        yield lambda case=case: reduce(*case)


def fuse(name: str, dtype: str, m: int, n: int, k: int) -> None:
    a, b, added, factors, shift = (
        integers(shape, dtype) for shape in ((m, k), (k, n), (m, n), (m,), (n,))
    )
    kept = home.send(np.zeros((m, n), dtype))
    chain = epilogues.bias(home.send(shift)) | epilogues.keep(kept=kept) | epilogues.relu
    chain |= epilogues.scale_rows(home.send(factors)) | epilogues.residual(home.send(added))
    result = dxgemm.gemm(home.send(a), home.send(b), epilogue=chain, implementation=name)
    sums = wide(a) @ wide(b) + shift
    check((name, dtype, m, n, k, "kept"), kept, sums)
    check((name, dtype, m, n, k), result, np.maximum(sums, 0) * wide(factors)[:, None] + added)


def reduce(reduction: Any, precision: str | None, size: tuple[int, int, int]) -> None:
    m, n, k = size
    a, b = integers((m, k), "float32"), integers((k, n), "float32")
    found = dxgemm.gemm(home.send(a), home.send(b), epilogue=reduction, precision=precision)
    expected = reduction.on_host(a @ b)
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    for mine, theirs in pairs:
        if not np.allclose(home.fetch(mine), theirs, rtol=1e-5):
            raise SystemExit(f"wrong result: {reduction} of {size}, precision {precision}")


def series() -> Iterator[Callable[[], None]]:
    """Yield calls of several kernels or problems: batches, groups, split-K slices."""
    for dtype in ("float32", "float64"):
        yield lambda dtype=dtype: batch(dtype)
        yield lambda dtype=dtype: group(dtype)
        if not simulator_enabled():
            yield lambda dtype=dtype: slices(dtype)
    for dtype in ("float16", "bfloat16"):
        yield lambda dtype=dtype: group(dtype)


def batch(dtype: str) -> None:
    m, n, k = SIZES[0]
    a, b = integers((3, m, k), dtype), integers((k, n), dtype)
    check(("batch", dtype), dxgemm.gemm(home.send(a), home.send(b)), wide(a) @ wide(b))


def group(dtype: str) -> None:
    pairs = [(integers((m, k), dtype), integers((k, n), dtype)) for m, n, k in SIZES]
    results = dxgemm.gemm_grouped(*([home.send(x) for x in each] for each in zip(*pairs)))
    for (a, b), result in zip(pairs, results, strict=True):
        check(("group", dtype, a.shape, b.shape), result, wide(a) @ wide(b))


def slices(dtype: str) -> None:
    name = {"float32": "tuned", "float64": "tensor_core"}[dtype]
    (implementation,) = (i for i in dxgemm.implementations() if i.name == name)
    config = next(config for config in implementation.configs(dtype) if config.split_k == 1)
    a, b = integers((65, 2000), dtype), integers((2000, 33), dtype)
    result = dxgemm.gemm(home.send(a), home.send(b), implementation=(name, config, 5))
    check(("slices", dtype), result, wide(a) @ wide(b))


def tiles() -> Iterator[Callable[[], None]]:
    """Yield products by the tiles of wgmma whose blocks or warpgroups take turns or share."""
    (implementation,) = (i for i in dxgemm.implementations() if i.name == "wgmma")
    kind = KINDS["float16"]
    for config in implementation.configs(kind.dtype):
        if config.is_pingpong or config.is_paired or config.is_turned:
            for order in ("row", "col"):
                case = config, SEVERAL_TILES, (order, order), True, 1
                yield lambda case=case: multiply("wgmma", kind, *case)


BEYOND = {"fused": fused, "series": series, "tiles": tiles}
SUBJECTS = (*(i.name for i in dxgemm.implementations() if i.is_own), *BEYOND)


def run_cases(subject: str, are_few: bool = False) -> Outcome:
    """Compute all cases of a subject in this process, or a selection."""
    cases = refused = 0
    for case in BEYOND[subject]() if subject in BEYOND else products(subject, are_few):
        try:
            case()
            cases += 1
        except errors.UnsupportedProblemError:
            refused += 1
    return Outcome(cases, refused)


def read_output(output: str, status: int, lane: str) -> Outcome:
    """Parse the output of a process that ran `run_cases` under a tool of the sanitizer."""
    counts = re.search(r"^cases (\d+) refused (\d+)$", output, re.M)
    reports = re.search(r"SUMMARY: (\d+) (?:errors?|hazards?)", output)
    failure = ""
    if counts is None or (reports is None and lane != PLAIN) or status:
        lines = [line for line in output.split("\n") if line and not line.startswith("=====")]
        failure = lines[-1] if lines else f"status {status}"
    cases, refused = map(int, counts.groups()) if counts else (0, 0)
    return Outcome(cases, refused, int(reports[1]) if reports else 0, failure)


def run_lane(sanitizer: str, lane: str, subject: str, are_few: bool) -> Outcome:
    """Run the cases of a subject, or a selection, in another process."""
    tool = [sanitizer, "--tool", lane, "--report-api-errors", "no"] if lane != PLAIN else []
    program = [*tool, sys.executable, __file__, "--run", subject, "--lane", lane]
    program += ["--few"] * (are_few or lane == ADVISORY)
    try:
        finished = subprocess.run(
            program,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return Outcome(failure=f"not done after {TIMEOUT_S} s")
    return read_output(finished.stdout, finished.returncode, lane)


def find_sanitizer() -> str | None:
    homes = [f"{os.environ[name]}/bin" for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=os.pathsep.join((*homes, *TOOLKITS))
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Every implementation under compute-sanitizer.")
    parser.add_argument("--lane", action="append", choices=LANES, help="default: all")
    parser.add_argument("--subject", action="append", choices=SUBJECTS, help="default: all")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1), help="processes")
    parser.add_argument("--few", action="store_true", help="an eighth of the cases in every lane")
    parser.add_argument("--out", type=Path, help="add the counts to this file, as JSON")
    parser.add_argument("--run", choices=SUBJECTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        if not simulator_enabled():
            switch_pools_off()
        outcome = run_cases(arguments.run, are_few=arguments.few)
        print(f"cases {outcome.cases} refused {outcome.refused}")
        return 0
    problem, sanitizer = probe().problem, find_sanitizer()
    if problem is None and sanitizer is None:
        problem = (
            "compute-sanitizer is not installed; it is part of the CUDA toolkit "
            "(package cuda-sanitizer), and looked for on PATH, in CUDA_HOME and CUDA_PATH."
        )
    if problem is not None or sanitizer is None:
        print(f"sanitize: {problem}", file=sys.stderr)
        return 2
    lanes, subjects = arguments.lane or LANES, arguments.subject or SUBJECTS
    outcomes: dict[str, dict[str, Outcome]] = {lane: {} for lane in lanes}
    for lane, subject, outcome in run_lanes(
        sanitizer, lanes, subjects, arguments.jobs, arguments.few
    ):
        outcomes[lane][subject] = outcome
        if len(outcomes[lane]) == len(subjects):
            print(report(lane, outcomes[lane]), flush=True)
            if arguments.out:
                add_lane(arguments.out, lane, outcomes[lane])
    has_failed = any(
        outcome.failure or (outcome.reports and lane != ADVISORY)
        for lane, of_lane in outcomes.items()
        for outcome in of_lane.values()
    )
    return int(has_failed)


def run_lanes(
    sanitizer: str, lanes: Sequence[str], subjects: Sequence[str], jobs: int, are_few: bool
) -> Iterator[tuple[str, str, Outcome]]:
    """Yield lane, subject and outcome as they come; the plain lane, which builds, runs first."""
    for together in ([PLAIN] if PLAIN in lanes else [], [lane for lane in lanes if lane != PLAIN]):
        with ThreadPoolExecutor(jobs) as pool:
            futures = {
                pool.submit(run_lane, sanitizer, lane, subject, are_few): (lane, subject)
                for lane, subject in product(together, subjects)
            }
            for future in as_completed(futures):
                yield *futures[future], future.result()


def report(lane: str, outcomes: Mapping[str, Outcome]) -> str:
    """One line of counts, and one for each subject that has something to tell."""
    total = total_of(outcomes.values())
    failed = sum(bool(outcome.failure) for outcome in outcomes.values())
    note = ", advisory" if lane == ADVISORY else ""
    lines = [
        f"{lane}: {len(outcomes)} subjects, {total.cases} cases, {total.refused} refused, "
        f"{total.reports} reports{note}, {failed} failed"
    ]
    for subject, outcome in outcomes.items():
        if outcome.reports or outcome.failure:
            failure = f": {outcome.failure}" if outcome.failure else ""
            lines.append(f"    {subject}: {outcome.reports} reports{failure}")
    return "\n".join(lines)


def total_of(outcomes: Iterable[Outcome]) -> Outcome:
    """Sum the cases, refusals and reports of several outcomes."""
    counts = [outcome[:3] for outcome in outcomes]
    return Outcome(*map(sum, zip(*counts)))


def add_lane(path: Path, lane: str, outcomes: Mapping[str, Outcome]) -> None:
    """Write a lane beside those that a file already has."""
    lanes = json.loads(path.read_text())["lanes"] if path.exists() else {}
    subjects = {subject: outcome._asdict() for subject, outcome in outcomes.items()}
    info = run_info()
    done = {"commit": info.pop("commit_info")["id"], "date": info.pop("date")}
    write_run(path, info | {"lanes": lanes | {lane: done | {"subjects": subjects}}})


def switch_pools_off() -> None:
    """Let the driver allocate and free all memory: no pool keeps any."""
    import cupy

    cupy.cuda.set_allocator(None)
    cupy.cuda.set_pinned_memory_allocator(None)
    workspace.KEPT_BYTES = 0


if __name__ == "__main__":
    sys.exit(main())
