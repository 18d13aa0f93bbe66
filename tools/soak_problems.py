"""Problems of the soak test: random ones on a fixed list of kernels, and their right results."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from oracle.abilities import fitting_layouts, inability
from oracle.compare import compare
from oracle.inputs import random
from oracle.kinds import KINDS, numpy_dtype, round_to_dtype
from oracle.layouts import LAYOUTS
from oracle.libraries import LIBRARIES
from oracle.padded import Padded
from oracle.reference import combine, product

import dxgemm
from dxgemm import epilogues, reductions
from dxgemm.choice.implementation import Pipelined
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.fusion import FusedReduction, Fusion
from dxgemm.runtime.device import device_facts

MOST, MOST_K = (6, 9) if simulator_enabled() else (400, 600)
MOST_INEXACT, MOST_INEXACT_K = (6, 9) if simulator_enabled() else (96, 200)  # longdouble is slow
AUTOMATIC_SIZES = [(4, 5, 6)] if simulator_enabled() else [(300, 200, 100), (33, 65, 5000)]
FUSED = "row sums"
PLAIN = "thread_tile_2d"  # fuses epilogues, but no reductions
GROUP, GROUP_SIZE = "group", 6
INTEGERS = (-3, 4)  # whose sums every kind of arithmetic holds

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


@dataclass(frozen=True)
class Kernel:
    """Kernel that computes a problem, with the properties of the call that decide on it.

    Attributes:
        kind: a name from `KINDS`.
        implementation: as `gemm` takes it, or GROUP.
        layouts: layouts of a, b and c, names from `LAYOUTS`.
        extra: a name from EXTRAS, of an epilogue or a reduction; "" for none.
        batch_invariant: as `gemm` takes it.
        size: m, n and k if they decide on the kernel; None if all sizes will do.
    """

    kind: str
    implementation: Any
    layouts: tuple[str, str, str]
    extra: str = ""
    batch_invariant: bool = False
    size: tuple[int, int, int] | None = None

    @property
    def name(self) -> str:
        """Name of the implementation; "automatic" if `gemm` chooses."""
        given = self.implementation
        return "automatic" if given is None else given if isinstance(given, str) else given[0]

    def __str__(self) -> str:
        given = self.implementation
        pinned = self.name if given is None or isinstance(given, str) else " ".join(map(str, given))
        flag = "batch_invariant" if self.batch_invariant else ""
        return " ".join(filter(None, (self.kind, pinned, "_".join(self.layouts), self.extra, flag)))


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
    FUSED: partial(reduced, replace(reductions.sum(axis=1), fused=True)),
    "column argmin": partial(reduced, reductions.argmin(axis=0)),
    "row sums, stored": partial(reduced, replace(reductions.sum(axis=1), fused=False)),
    "largest magnitude": partial(reduced, reductions.abs_max()),
}
REDUCTIONS = [name for name, make in EXTRAS.items() if isinstance(make, partial)]


@cache
def kernels() -> tuple[Kernel, ...]:
    """List the kernels; each problem is drawn for one of them."""
    found: list[Kernel] = []
    layouts = itertools.cycle(FULL_LAYOUTS)
    for kind, wanted in KINDS.items():
        for implementation in filter(lambda i: i.is_own, dxgemm.implementations()):
            if isinstance(implementation, Pipelined) or not is_able(implementation, kind):
                continue
            fitting = fitting_layouts(implementation, kind)
            configs = implementation.configs(wanted.dtype)
            for config in dict.fromkeys((configs[0], configs[-1])):
                chosen = fitting if wanted.is_reduced else next(layouts)
                found.append(Kernel(kind, (implementation.name, config), chosen))
        automatic = [Kernel(kind, None, FULL_LAYOUTS[0], size=size) for size in AUTOMATIC_SIZES]
        found += automatic
        if not wanted.is_integer:
            found.append(replace(automatic[0], batch_invariant=True))
            found.append(replace(automatic[0], extra="relu"))
    for implementation in dxgemm.implementations():
        for kind in ("float32", "float64", "emulated"):
            is_left_out = not (fuses(implementation, kind) or implementation.name == PLAIN)
            if is_left_out or not implementation.is_automatic():
                continue
            if is_able(implementation, kind):
                pinned = (implementation.name, whole_k(implementation, kind))
                found += [
                    Kernel(kind, pinned, next(layouts), extra)
                    for extra in EXTRAS
                    if extra != FUSED or fuses(implementation, kind)
                ]
    for kind in ("float32", "float64", "float16", "bfloat16_to_float32"):
        found += [Kernel(kind, GROUP, lying) for lying in FULL_LAYOUTS[:3]]
    for kind in ("float32", "float64"):
        found += [Kernel(kind, pinned, next(layouts)) for pinned in sliced(kind)]
    return tuple(found)


def is_able(implementation: Any, kind: str) -> bool:
    """True if the implementation computes the kind on this device."""
    return inability(implementation, kind, device_facts(0).arch) is None


def fuses(implementation: Any, kind: str) -> bool:
    """True if the implementation reduces the rows of a result without storing it."""
    wanted, reduction = KINDS[kind], FusedReduction("sum", 1, ("float64",))
    problem = contiguous_problem(wanted.dtype, 64, 64, 64, precision=wanted.precision)
    fusion = Fusion((), reduction.buffers, reduction=reduction)
    fused: bool = implementation.fuses_reduction(replace(problem, epilogue=fusion))
    return fused


def sliced(kind: str) -> Iterator[tuple[str, Any, int]]:
    """Yield (implementation, config, slices) for split-K in several slices."""
    for implementation in filter(lambda i: i.is_automatic(), dxgemm.implementations()):
        if implementation.kernel.slices_k and is_able(implementation, kind):
            config = whole_k(implementation, kind)
            yield from ((implementation.name, config, slices) for slices in (2, 5))


def whole_k(implementation: Any, kind: str) -> Any:
    """First config without cluster split-K."""
    configs = implementation.configs(KINDS[kind].dtype)
    return next(config for config in configs if getattr(config, "split_k", 1) == 1)


@dataclass(frozen=True)
class Problem:
    """One call, and the generator of its random data."""

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
        """Shapes of a, b and c."""
        matrices = ((self.m, self.k), (self.k, self.n), (self.m, self.n))
        return [
            matrix if extent is None else (extent, *matrix)
            for extent, matrix in zip(self.batch, matrices, strict=True)
        ]

    @property
    def has_out(self) -> bool:
        """True if the result is written to `out` instead of c."""
        is_stored = self.kernel.extra not in REDUCTIONS and self.kernel.implementation != GROUP
        return is_stored and not self.in_place

    @property
    def calls(self) -> int:
        """Number of runs: two for a plan that only reads its operands, else one."""
        return 2 if self.is_planned and self.has_out else 1

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
    """Random extent from 0 to most, distributed log-uniformly; 0 is rare."""
    return int(np.exp(rng.uniform(0, np.log(most + 1)))) - bool(rng.random() < 0.02)


def compute(problem: Problem) -> None:
    """Run a problem on the current stream.

    Raises:
        AssertionError: the result is wrong, or something else was written.
    """
    if problem.kernel.implementation == GROUP:
        compute_group(problem)
        return
    kernel, kind = problem.kernel, KINDS[problem.kernel.kind]
    (a, b, c), padded = place(problem, problem.shapes)
    options: dict[str, Any] = {"implementation": kernel.implementation}
    if kernel.batch_invariant:
        options["batch_invariant"] = True
    if kind.precision:
        options["precision"] = kind.precision
    finish: Callable[[np.ndarray], Any] = np.asarray
    if kernel.extra:
        make = EXTRAS[kernel.extra]
        integers = partial(problem.rng.integers, *INTEGERS)
        options["epilogue"], finish = make(problem.m, problem.n, kind.scalar_dtype, integers)
    is_reduced = kernel.extra in REDUCTIONS
    target = padded[2]
    if problem.has_out:
        target = Padded(home, np.full(c.shape, -7).astype(c.dtype), kernel.layouts[2])
        options["out"] = target.array
    arguments = (*(operand.array for operand in padded), problem.alpha, problem.beta)
    run = partial(dxgemm.gemm, *arguments, **options)
    if problem.is_planned:
        run = dxgemm.plan(*arguments, **options)
    for _ in range(problem.calls):
        result = run()

    for operand in padded:
        if operand is not target or is_reduced:
            operand.assert_unchanged()
    found = home.fetch(result) if is_reduced else target.fetch()
    if problem.is_exact:
        exact = finish(problem.alpha * (wide(a) @ wide(b)) + problem.beta * wide(c))
        assert np.array_equal(found, round_to_dtype(np.asarray(exact), found.dtype)), "not exact"
        return
    expected = combine(product(a, b, kind.precision), c, problem.alpha, problem.beta, kind.dtype)
    comparison = compare(found, expected)
    assert not comparison.failures, comparison.message


def compute_group(problem: Problem) -> None:
    """Run several problems in one launch, with sizes up to the problem's."""
    most = problem.m, problem.n, problem.k
    members = []
    for _ in range(GROUP_SIZE):
        m, n, k = (int(problem.rng.integers(0, extent + 1)) for extent in most)
        members.append(place(problem, [(m, k), (k, n), (m, n)]))
    a, b, c = ([padded[i].array for _, padded in members] for i in range(3))
    if problem.is_planned:
        dxgemm.plan_grouped(a, b, c, problem.alpha, problem.beta)()
    else:
        dxgemm.gemm_grouped(a, b, c, problem.alpha, problem.beta)
    for values, padded in members:
        for operand in padded[:2]:
            operand.assert_unchanged()
        x, y, z = map(wide, values)
        exact, found = problem.alpha * (x @ y) + problem.beta * z, padded[2].fetch()
        assert np.array_equal(found, round_to_dtype(exact, found.dtype)), "not exact"


def place(problem: Problem, shapes: list[tuple[int, ...]]) -> tuple[list[np.ndarray], list[Padded]]:
    """Make a, b and c of these shapes: on the host, and padded by guards for the call."""
    kind, layouts = KINDS[problem.kernel.kind], problem.kernel.layouts
    values, padded = [], []
    for shape, dtype, layout in zip(
        shapes, (kind.dtype, kind.dtype, kind.out_dtype), layouts, strict=True
    ):
        if problem.is_exact:
            drawn = problem.rng.integers(*INTEGERS, shape).astype(numpy_dtype(dtype))
        else:
            drawn = random(problem.rng, shape, dtype)
        values.append(LAYOUTS[layout].hold(drawn))
        padded.append(Padded(home, values[-1], layout))
    return values, padded


def wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64)
