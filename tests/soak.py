"""Random problems of every sort on several threads and streams, each result checked.

    python tests/soak.py --minutes 20 --seed 1
    python tests/soak.py --seed 1 --problem 4711      # one of them again, alone

Problems are drawn from a list of kernels, so that few are built: of each implementation its first
and last config in every kind of arithmetic, in layouts of all sorts, with epilogues, reductions,
slices of k, groups, and the automatic choice. Sizes, batches, scalars, data, streams and whether
`gemm` or a plan is called vary. Most data are small integers, whose results must be right to the
last bit; the others are judged by the acceptance rule. Operands lie between guards.

It stops at the first wrong result, and when the GPU's memory has grown since all kernels were
loaded. `--out` writes the counts, which docs/reliability.md shows.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from contract import fitting_layouts, inability

import dxgemm
from dxgemm import epilogues, errors, reductions
from dxgemm._gpu import probe, simulator_enabled
from dxgemm._registry import Pipelined
from dxgemm.runtime import workspace
from dxgemm.testing.compare import compare
from dxgemm.testing.inputs import random
from dxgemm.testing.kinds import KINDS, numpy_dtype, round_to_dtype
from dxgemm.testing.layouts import LAYOUTS
from dxgemm.testing.libraries import LIBRARIES
from dxgemm.testing.padded import Padded
from dxgemm.testing.reference import combine, product

THREADS = 1 if simulator_enabled() else 8  # numba's simulator knows one kernel at a time
STREAMS = 3  # of each thread, besides the default ones
MOST, MOST_K = (6, 9) if simulator_enabled() else (400, 600)
MOST_INEXACT, MOST_INEXACT_K = (6, 9) if simulator_enabled() else (96, 200)  # longdouble is slow
AUTOMATIC_SIZES = [(4, 5, 6)] if simulator_enabled() else [(300, 200, 100), (33, 65, 5000)]
SAMPLE_S = 5.0
# Bytes of the GPU's memory: what is kept for workspaces, and the pieces that the driver hands out.
MOST_GROWTH = workspace.KEPT_BYTES + (64 << 20)
WARM_UP = 3  # samples before memory has to stay flat
GROUP, GROUP_SIZE = "group", 6

# Of a, b and c. What is aligned stays so at every size, and what is not does too.
FULL_LAYOUTS = (
    ("row_aligned", "row_aligned", "row_aligned"),
    ("col_aligned", "row_aligned", "row_aligned"),
    ("row@1", "col@1", "row@1"),
    ("row_reversed", "row/2", "row_aligned"),
    ("row_aligned", "col_aligned", "col_aligned"),
    ("cols_equal", "row@3", "row/2"),
)

home = LIBRARIES["numpy" if simulator_enabled() else "cupy"]


class WrongResultError(Exception):
    """A result is not what it should be."""


@dataclass(frozen=True)
class Kernel:
    """What a problem is computed with.

    Attributes:
        kind: a name from `KINDS`.
        implementation: as `gemm` takes it, or GROUP.
        layouts: of a, b and c, names from `LAYOUTS`.
        extra: a name from EXTRAS: an epilogue or a reduction.
        deterministic: as `gemm` takes it.
        size: m, n and k where they decide on the kernel; None where all sizes do.
    """

    kind: str
    implementation: Any
    layouts: tuple[str, str, str]
    extra: str = ""
    deterministic: bool = False
    size: tuple[int, int, int] | None = None

    @property
    def name(self) -> str:
        """Of the implementation."""
        given = self.implementation
        return "automatic" if given is None else given if isinstance(given, str) else given[0]

    def __str__(self) -> str:
        given = self.implementation
        way = self.name if given is None or isinstance(given, str) else " ".join(map(str, given))
        flag = "deterministic" if self.deterministic else ""
        return " ".join(filter(None, (self.kind, way, "_".join(self.layouts), self.extra, flag)))


# Each makes an epilogue of (m, n, dtype, integers), and what that makes of a matrix on the host.
Extra = tuple[Any, Callable[[np.ndarray], Any]]


def relu(m: int, n: int, dtype: str, integers: Callable[..., np.ndarray]) -> Extra:
    return epilogues.relu, lambda x: np.maximum(x, 0)


def bias(m: int, n: int, dtype: str, integers: Callable[..., np.ndarray]) -> Extra:
    shift = integers((n,))
    chain = epilogues.bias(home.send(shift.astype(dtype))) | epilogues.relu
    return chain, lambda x: np.maximum(x + shift, 0)


def residual(m: int, n: int, dtype: str, integers: Callable[..., np.ndarray]) -> Extra:
    factors, added = integers((m,)), integers((m, n))
    chain = epilogues.scale_rows(home.send(factors.astype(dtype)))
    chain |= epilogues.residual(home.send(added.astype(dtype)))
    return chain, lambda x: x * factors[:, None] + added


def reduced(reduction: Any, m: int, n: int, dtype: str, integers: Any) -> Extra:
    return reduction, reduction.on_host


EXTRAS: dict[str, Callable[..., Extra]] = {
    "relu": relu,
    "bias": bias,
    "residual": residual,
    "row sums": partial(reduced, replace(reductions.sum(axis=1), fused=True)),
    "column argmin": partial(reduced, reductions.argmin(axis=0)),
    "row sums, stored": partial(reduced, replace(reductions.sum(axis=1), fused=False)),
    "largest magnitude": partial(reduced, reductions.abs_max()),
}
REDUCTIONS = [name for name, make in EXTRAS.items() if isinstance(make, partial)]


@cache
def kernels() -> tuple[Kernel, ...]:
    """What problems are drawn from."""
    found: list[Kernel] = []
    layouts = itertools.cycle(FULL_LAYOUTS)
    for kind, wanted in KINDS.items():
        for implementation in filter(lambda i: i.is_own, dxgemm.implementations()):
            is_left_out = isinstance(implementation, Pipelined) and not (
                implementation.is_automatic(wanted.dtype)
            )
            if is_left_out or inability(implementation, kind) is not None:
                continue
            fitting = fitting_layouts(implementation, kind)
            configs = implementation.configs(wanted.dtype)
            for config in dict.fromkeys((configs[0], configs[-1])):
                chosen = fitting if wanted.is_reduced else next(layouts)
                found.append(Kernel(kind, (implementation.name, config), chosen))
        automatic = [Kernel(kind, None, FULL_LAYOUTS[0], size=size) for size in AUTOMATIC_SIZES]
        found += automatic
        if not wanted.is_integer:
            found.append(replace(automatic[0], deterministic=True))
            found.append(replace(automatic[0], extra="relu"))
    for implementation in filter(lambda i: i.fuses_reductions, dxgemm.implementations()):
        for kind in ("float32", "float64"):
            is_chosen = implementation.is_automatic(kind) or simulator_enabled()
            if is_chosen and inability(implementation, kind) is None:
                way = (implementation.name, whole_k(implementation, kind))
                found += [Kernel(kind, way, next(layouts), extra) for extra in EXTRAS]
    for kind in ("float32", "float64"):
        found += [Kernel(kind, GROUP, lying) for lying in FULL_LAYOUTS[:3]]
        found += [Kernel(kind, way, next(layouts)) for way in sliced(kind)]
    return tuple(found)


def sliced(kind: str) -> Iterator[tuple[str, Any, int]]:
    """Ways to compute slices of k."""
    for implementation in filter(lambda i: i.is_automatic(kind), dxgemm.implementations()):
        if implementation.slices_k and inability(implementation, kind) is None:
            config = whole_k(implementation, kind)
            yield from ((implementation.name, config, slices) for slices in (2, 5))


def whole_k(implementation: Any, kind: str) -> Any:
    """The first config whose blocks do not share the sums of an element."""
    configs = implementation.configs(KINDS[kind].dtype)
    return next(config for config in configs if getattr(config, "split_k", 1) == 1)


@dataclass(frozen=True)
class Problem:
    """One call, and the random numbers that decide about its data."""

    kernel: Kernel
    m: int
    n: int
    k: int
    batch: tuple[int | None, int | None, int | None]
    alpha: int
    beta: int
    is_exact: bool
    is_planned: bool
    in_place: bool
    rng: np.random.Generator

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of a, b and c."""
        matrices = ((self.m, self.k), (self.k, self.n), (self.m, self.n))
        return [
            matrix if extent is None else (extent, *matrix)
            for extent, matrix in zip(self.batch, matrices, strict=True)
        ]

    def __str__(self) -> str:
        return (
            f"{self.kernel}: {self.m} x {self.n} x {self.k}, batch {self.batch}, alpha "
            f"{self.alpha}, beta {self.beta}, {'exact' if self.is_exact else 'random'}, "
            f"{'plan' if self.is_planned else 'gemm'}{', in place' if self.in_place else ''}"
        )


def draw(seed: int, number: int) -> Problem:
    """The problem of that number; the first ones take one kernel after the other."""
    rng = np.random.default_rng((seed, number))
    listed = kernels()
    kernel = listed[number if number < len(listed) else rng.integers(len(listed))]
    is_plain = not (kernel.extra or kernel.size or kernel.implementation == GROUP)
    must_be_exact = kernel.extra or kernel.implementation == GROUP or KINDS[kernel.kind].is_integer
    is_exact = bool(must_be_exact or rng.random() < 0.8)
    most, most_k = (MOST, MOST_K) if is_exact else (MOST_INEXACT, MOST_INEXACT_K)
    m, n, k = (extent(rng, limit) for limit in (most, most, most_k))
    if kernel.size is not None:
        m, n, k = kernel.size
    elif kernel.extra or rng.random() > 0.05:
        m, n, k = max(m, 1), max(n, 1), max(k, 1)
    batch: tuple[int | None, int | None, int | None] = (None, None, None)
    if is_plain and rng.random() < 0.25:
        matrices = int(rng.integers(1, 5))
        batch = (matrices, None if rng.random() < 0.5 else matrices, matrices)
    return Problem(
        kernel,
        m,
        n,
        k,
        batch,
        alpha=int(rng.choice([1, 2, -1])),
        beta=int(rng.choice([0, 1, -2])),
        is_exact=is_exact,
        is_planned=bool(rng.random() < 0.5),
        in_place=bool(rng.random() < 0.5),
        rng=rng,
    )


def extent(rng: np.random.Generator, most: int) -> int:
    """From 0 to most, small ones as often as large ones."""
    return int(np.exp(rng.uniform(0, np.log(most + 1)))) - bool(rng.random() < 0.02)


def compute(problem: Problem) -> None:
    """Run a problem on the current stream, and check everything that it wrote.

    Raises:
        WrongResultError: saying what is wrong.
    """
    if problem.kernel.implementation == GROUP:
        compute_group(problem)
        return
    kernel, rng = problem.kernel, problem.rng
    kind = KINDS[kernel.kind]
    integers = partial(rng.integers, -3, 4)
    fill = (lambda shape, dtype: integers(shape)) if problem.is_exact else partial(random, rng)
    dtypes = kind.dtype, kind.dtype, kind.out_dtype
    a, b, c = (
        LAYOUTS[layout].hold(np.asarray(fill(shape, dtype)).astype(numpy_dtype(dtype)))
        for shape, dtype, layout in zip(problem.shapes, dtypes, kernel.layouts, strict=True)
    )
    padded = [Padded(home, x, layout) for x, layout in zip((a, b, c), kernel.layouts, strict=True)]
    options: dict[str, Any] = {"implementation": kernel.implementation}
    if kernel.deterministic:
        options["deterministic"] = True
    if kind.precision:
        options["precision"] = kind.precision
    finish: Callable[[np.ndarray], Any] = np.asarray
    if kernel.extra:
        make = EXTRAS[kernel.extra]
        options["epilogue"], finish = make(problem.m, problem.n, kind.scalar_dtype, integers)
    is_reduced = kernel.extra in REDUCTIONS
    target = padded[2]
    if not problem.in_place and not is_reduced:
        target = Padded(home, np.full(c.shape, -7).astype(c.dtype), kernel.layouts[2])
        options["out"] = target.array
    arguments = (*(operand.array for operand in padded), problem.alpha, problem.beta)
    result = call(problem, arguments, options)

    for operand in padded:
        if operand is not target or is_reduced:
            unchanged(operand)
    found = home.fetch(result) if is_reduced else fetched(target)
    if not problem.is_exact:
        expected = combine(product(a, b, kind.precision), c, *arguments[3:], kind.dtype)
        verdict = compare(found, expected)
        if verdict.failures:
            raise WrongResultError(verdict.message)
        return
    matrix = problem.alpha * (wide(a) @ wide(b)) + problem.beta * wide(c)
    exact = finish(matrix)
    if not np.array_equal(found, round_to_dtype(np.asarray(exact), found.dtype)):
        raise WrongResultError("not exact")


def call(problem: Problem, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """gemm, or a plan; one that overwrites its result is run twice."""
    if not problem.is_planned:
        return dxgemm.gemm(*arguments, **options)
    plan = dxgemm.plan(*arguments, **options)
    if "out" in options:
        plan()
    return plan()


def compute_group(problem: Problem) -> None:
    """Several problems in one launch, of sizes up to the problem's."""
    kind = KINDS[problem.kernel.kind].dtype
    integers = partial(problem.rng.integers, -3, 4)
    most = (problem.m, problem.n, problem.k)
    sizes = [[int(problem.rng.integers(0, x + 1)) for x in most] for _ in range(GROUP_SIZE)]
    values = [
        [integers(shape).astype(kind) for shape in ((m, k), (k, n), (m, n))] for m, n, k in sizes
    ]
    values = [
        [LAYOUTS[layout].hold(x) for x, layout in zip(of_one, problem.kernel.layouts, strict=True)]
        for of_one in values
    ]
    padded = [
        [Padded(home, x, layout) for x, layout in zip(of_one, problem.kernel.layouts, strict=True)]
        for of_one in values
    ]
    a, b, c = ([of_one[i].array for of_one in padded] for i in range(3))
    if problem.is_planned:
        dxgemm.plan_grouped(a, b, c, problem.alpha, problem.beta)()
    else:
        dxgemm.gemm_grouped(a, b, c, problem.alpha, problem.beta)
    for of_one, arrays in zip(padded, values, strict=True):
        for operand in of_one[:2]:
            unchanged(operand)
        x, y, z = map(wide, arrays)
        if not np.array_equal(fetched(of_one[2]), problem.alpha * (x @ y) + problem.beta * z):
            raise WrongResultError("not exact")


def wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64)


def unchanged(operand: Padded) -> None:
    with wrong_if_asserted():
        operand.assert_unchanged()


def fetched(operand: Padded) -> np.ndarray:
    with wrong_if_asserted():
        return operand.fetch()


@contextlib.contextmanager
def wrong_if_asserted() -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise WrongResultError(str(error)) from None


class Soak:
    """A run: what was computed so far, and the first failure.

    Attributes:
        counts: of problems, also by kind, implementation and extra, and of refusals.
        failure: what went wrong, with the command that does it again; "" as long as nothing did.
    """

    def __init__(self, seed: int, most_problems: int | None = None) -> None:
        self.seed = seed
        self.counts: Counter[tuple[str, str]] = Counter()
        self.failure = ""
        self._end = len(kernels()) + most_problems if most_problems else sys.maxsize
        self._numbers = itertools.count(len(kernels()))
        self._lock = threading.Lock()

    def step(self, number: int) -> None:
        """Compute one problem; an error is the run's failure."""
        problem = draw(self.seed, number)
        try:
            compute(problem)
            names = [
                ("problems", ""),
                ("kind", problem.kernel.kind),
                ("implementation", problem.kernel.name),
                ("with", problem.kernel.extra or "nothing"),
            ]
        except errors.UnsupportedProblemError:
            names = [("refused", problem.kernel.name)]
        except Exception as error:
            what = f"wrong result: {error}"
            if not isinstance(error, WrongResultError):
                what = traceback.format_exc()
            again = f"python tests/soak.py --seed {self.seed} --problem {number}"
            with self._lock:
                self.failure = self.failure or f"{problem}\n{what}\n{again}"
            return
        with self._lock:
            self.counts.update(names)

    def work(self, until: float) -> None:
        """Compute problems in this thread, on streams of its own, until a time."""
        streams = [contextlib.nullcontext()]
        if not simulator_enabled():
            import cupy

            streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(STREAMS)]
            streams += [cupy.cuda.Stream.null, cupy.cuda.Stream.ptds]
        for stream in itertools.cycle(streams):
            number = next(self._numbers)
            if self.failure or number >= self._end or time.monotonic() > until:
                return
            with stream:
                self.step(number)

    def load_all(self) -> None:
        """Compute one problem with each kernel."""
        for number in range(len(kernels())):
            if not self.failure:
                self.step(number)

    def run(self, minutes: float, threads: int) -> list[int]:
        """Compute problems in several threads; returns samples of the GPU's memory, in bytes."""
        until = time.monotonic() + 60 * minutes
        samples = [memory_bytes()]
        with ThreadPoolExecutor(threads) as pool:
            workers = [pool.submit(self.work, until) for _ in range(threads)]
            while wait(workers, SAMPLE_S).not_done:
                samples.append(memory_bytes())
                growth = samples[-1] - samples[:WARM_UP][-1]
                if growth > MOST_GROWTH and not self.failure:
                    self.failure = f"the GPU's memory has grown by {growth} bytes: {samples}"
        for worker in workers:
            worker.result()
        return [*samples, memory_bytes()]


def memory_bytes() -> int:
    """What is taken of the GPU's memory, but for what CuPy keeps for its arrays."""
    if simulator_enabled():
        return 0
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    return int(total - free - cupy.get_default_memory_pool().total_bytes())


def build(seed: int, number: int) -> str:
    """Build a kernel by computing a problem with it, in a process of its own; a failure, or ""."""
    soak = Soak(seed)
    soak.step(number)
    return soak.failure


def report(soak: Soak, samples: list[int], seconds: float, threads: int) -> dict[str, Any]:
    """What a run gave, as it is committed."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
    import provenance

    by: dict[str, dict[str, int]] = {}
    for (group, name), count in sorted(soak.counts.items()):
        by.setdefault(group, {})[name] = count
    return {
        "machine_info": {
            "gpu": {} if simulator_enabled() else provenance.gpu_info(),
            "packages": provenance.package_versions(),
            "python_version": sys.version.split()[0],
        },
        "commit_info": provenance.commit_info(),
        "date": datetime.date.today().isoformat(),
        "seed": soak.seed,
        "seconds": round(seconds, 1),
        "threads": threads,
        "streams": threads * STREAMS + 2,
        "kernels": len(kernels()),
        "problems": soak.counts["problems", ""],
        "refused": by.get("refused", {}),
        "by_kind": by.get("kind", {}),
        "by_implementation": by.get("implementation", {}),
        "by_extra": by.get("with", {}),
        "memory_bytes": {
            "start": samples[:WARM_UP][-1],
            "most": max(samples[WARM_UP - 1 :] or samples),
            "end": samples[-1],
        },
        "failure": soak.failure,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--problem", type=int, help="compute this one only")
    parser.add_argument("--out", type=Path, help="write the counts here, as JSON")
    jobs = min(15, os.cpu_count() or 1)
    parser.add_argument("--jobs", type=int, default=jobs, help="processes that build kernels first")
    arguments = parser.parse_args()
    problem = probe().problem
    if problem is not None and not simulator_enabled():
        print(f"soak: {problem}", file=sys.stderr)
        return 2
    os.environ["DXGEMM_BUILD"] = "block"
    soak = Soak(arguments.seed)
    if arguments.problem is not None:
        print(draw(arguments.seed, arguments.problem))
        soak.step(arguments.problem)
        print(soak.failure or "right")
        return bool(soak.failure)
    if arguments.jobs > 1:
        with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
            numbers = range(len(kernels()))
            failures = pool.map(partial(build, arguments.seed), numbers, chunksize=1)
        soak.failure = next(filter(None, failures), "")
    soak.load_all()
    soak.counts.clear()
    start = time.monotonic()
    samples = soak.run(arguments.minutes, arguments.threads)
    counts = report(soak, samples, time.monotonic() - start, arguments.threads)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n")
    print(json.dumps({**counts, "failure": bool(soak.failure)}, indent=1))
    if soak.failure:
        print(soak.failure, file=sys.stderr)
    return bool(soak.failure)


if __name__ == "__main__":
    sys.exit(main())
