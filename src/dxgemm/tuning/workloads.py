"""Workloads: problems for tuning a GPU, and for evaluating its choice."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dxgemm.call.epilogue import fuse
from dxgemm.epilogues import gelu_tanh
from dxgemm.epilogues.chain import bound_epilogue
from dxgemm.errors import ShapeError
from dxgemm.problem.complex_form import direct_form
from dxgemm.problem.define import Result, define_problem
from dxgemm.problem.dtypes import (
    COMPLEX_PARTS,
    result_dtypes,
    scalar_dtype,
    step_flops,
)
from dxgemm.problem.layout import Layout, contiguous_layout, transposed
from dxgemm.problem.problem import Problem

# Pairs of dtype and precision with kernels of their own. bfloat16 takes the measurements of
# float16, whose kernels differ in the multiplied type only.
ARITHMETICS: tuple[tuple[str, str | None], ...] = (
    ("float32", None),
    ("float64", None),
    ("float16", None),
    ("int8", None),
    ("float32", "tf32"),
    ("float32", "emulated"),
    ("float64", "emulated"),
)
# Those with kernels that read complex elements in place, without epilogues.
COMPLEX_ARITHMETICS = tuple((dtype, None) for dtype in COMPLEX_PARTS)
LAYOUTS = ("row_col", "row_col", "col_row", "col_col")

SQUARES = (512, 1024, 2048, 4096, 8192)
TINY = 64  # a square that takes as long as the launches of a kernel; all candidates are measured

# Extents of single products, of the thin side of thin ones, and of matrices of batches.
USUAL, THIN, IN_BATCH = (16, 16384), (1, 15), (4, 2048)
# Extents of products that may be large enough for emulation, by dtype.
LARGE = {"float32": (256, 8192), "float64": (2048, 8192)}
MATRICES = (2, 2**15)
ROUND = tuple(
    sorted([2**power for power in range(6, 14)] + [3 * 2**power for power in range(5, 12)])
)
ALIGNED = 16  # elements; with such sizes rows of every dtype start at multiples of 16 bytes
# Half of the batches have small matrices; in half of the batches m = n = k.
SMALL_IN_BATCH = (4, 128)
MOST_ELEMENTS = 2**27  # limit on the elements of all matrices of an operand
LONGEST_US = 20e3  # rough limit on the time at the peak outside tensor cores


class Workload(NamedTuple):
    """Product, or batch of products: a is (m, k), b is (k, n).

    Attributes:
        dtype: dtype of a and b.
        m, n, k, batch: sizes.
        precision: as `gemm` takes it.
        layout: layouts of a and b, "row_row" to "col_col"; the result is row-major.
        epilogue: True if gelu is applied to each element.
    """

    dtype: str
    m: int
    n: int
    k: int
    batch: int = 1
    precision: Any = None
    layout: str = "row_row"
    epilogue: bool = False

    def __str__(self) -> str:
        times = f"{self.batch} of " if self.batch > 1 else ""
        notes = "".join(f" {note}" for note in (self.precision, self.layout) if note)
        size = f"{self.m} x {self.n} x {self.k}"
        return f"{self.dtype} {times}{size}{notes}{' gelu' if self.epilogue else ''}"

    @property
    def out_dtype(self) -> str:
        """Dtype of the result; float32 for int8 with an epilogue."""
        if self.epilogue and self.dtype == "int8":
            return "float32"
        return result_dtypes(self.dtype)[0]

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], bool]]:
        """Shapes of a, b and out by name, each with True if it is column-major."""
        batch = (self.batch,) if self.batch != 1 else ()
        a, b = (layout == "col" for layout in self.layout.split("_"))
        sizes = {"a": (self.m, self.k), "b": (self.k, self.n), "out": (self.m, self.n)}
        return {
            name: ((*batch, *size), is_col)
            for (name, size), is_col in zip(sizes.items(), (a, b, False), strict=True)
        }

    def problem(self) -> Problem:
        """Problem that `gemm` defines for contiguous operands, complex ones read in place."""
        layouts = {}
        for name, (shape, is_col) in self.shapes.items():
            dtype = self.out_dtype if name == "out" else self.dtype
            layouts[name] = _contiguous(shape, is_col, dtype)
        problem, _ = define_problem(
            layouts["a"],
            layouts["b"],
            None,
            layouts["out"],
            alpha_is_zero=False,
            beta_is_zero=True,
            precision=self.precision,
            result=Result(has_functions=self.epilogue),
            takes_complex=True,
        )
        if self.dtype in COMPLEX_PARTS:
            return direct_form(problem, "").product
        if self.epilogue:
            problem, _ = fuse(problem, bound_epilogue(gelu_tanh).shape, layouts)
        return problem


def _contiguous(shape: tuple[int, ...], is_col: bool, dtype: str) -> Layout:
    *batch, rows, cols = shape
    if is_col:
        return transposed(contiguous_layout((*batch, cols, rows), dtype, 0))
    return contiguous_layout(shape, dtype, 0)


def square_workloads(arithmetics: Sequence[tuple[str, str | None]]) -> list[Workload]:
    """List squares of powers of two, the smallest first: a tiny one, others in every layout.

    Users ask for them more often than for others, and few random workloads are as large.

    Args:
        arithmetics: pairs of dtype and precision.
    """
    tiny = [Workload(dtype, TINY, TINY, TINY, 1, precision) for dtype, precision in arithmetics]
    return tiny + [
        Workload(dtype, n, n, n, 1, precision, layout)
        for n in SQUARES
        for layout in ("row_row", *dict.fromkeys(LAYOUTS))
        for dtype, precision in arithmetics
    ]


def random_workloads(
    arithmetics: Sequence[tuple[str, str | None]], seed: int
) -> Iterator[Workload]:
    """Yield random workloads without end, the arithmetics in turn.

    Three of ten are usual products, one of these with round sizes; two are thin; two have another
    layout; two are batches; one has an epilogue. Sizes are distributed log-uniformly; half of the
    problems are aligned. Half of the usual emulated products are large, since emulation is faster
    on large ones only.

    Args:
        arithmetics: pairs of dtype and precision.
        seed: seed of the random numbers.
    """
    numbers = random.Random(seed)
    while True:
        for kind in ("usual", "batch", "thin", "round", "layout", "batch", "usual", "epilogue",
                     "layout", "thin"):  # fmt: skip
            for dtype, precision in arithmetics:
                yield _random(numbers, kind, dtype, precision)


def _random(numbers: random.Random, kind: str, dtype: str, precision: str | None) -> Workload:
    if kind == "epilogue":
        inner = numbers.choice(("usual", "usual", "batch"))
        has_epilogue = dtype not in COMPLEX_PARTS
        return _random(numbers, inner, dtype, precision)._replace(epilogue=has_epilogue)
    while True:
        is_aligned = numbers.random() < 0.5
        batch, layout, extents = 1, "row_row", USUAL
        if precision == "emulated" and kind in ("usual", "layout") and numbers.random() < 0.5:
            extents = LARGE[dtype]
        if kind == "batch":
            batch = _log_uniform(numbers, MATRICES)
            extents = SMALL_IN_BATCH if numbers.random() < 0.5 else IN_BATCH
        elif kind == "layout":
            layout = numbers.choice(LAYOUTS)
        sizes = [_log_uniform(numbers, extents) for _ in range(3)]
        if kind == "round":
            sizes = [numbers.choice(ROUND) for _ in range(3)]
        if kind in ("batch", "round") and numbers.random() < 0.5:
            sizes = sizes[:1] * 3
        if is_aligned:
            unit = 4 if extents is SMALL_IN_BATCH else ALIGNED
            sizes = [max(unit, round(size / unit) * unit) for size in sizes]
        if kind == "thin":
            sizes[numbers.randrange(3)] = _log_uniform(numbers, THIN)
        m, n, k = sizes
        most = batch * max(m * n, m * k, n * k)
        if most <= MOST_ELEMENTS and batch * m * n * k <= _most_products(dtype):
            return Workload(dtype, m, n, k, batch, precision, layout)


def _most_products(dtype: str) -> float:
    """Limit on the multiplications: those of a large GPU in LONGEST_US outside tensor cores."""
    per_us = {"float64": 15e6, "float32": 30e6}.get(scalar_dtype(dtype), 15e6)
    return per_us * LONGEST_US * 2 / step_flops(dtype)


def _log_uniform(numbers: random.Random, extents: tuple[int, int]) -> int:
    least, most = extents
    return round(least * (most / least) ** numbers.random())


def read_workloads(path: Path, arithmetics: Sequence[tuple[str, str | None]]) -> list[Workload]:
    """Read workloads from a text file with m, n and k on each line; `#` begins a comment.

    A fourth number is the batch size. Each line gives a workload for every arithmetic.

    Raises:
        ShapeError: a line is not three or four positive integers.
    """
    found = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        try:
            m, n, k, batch = map(int, words if len(words) == 4 else [*words, "1"])
        except ValueError:
            m = n = k = batch = 0
        if min(m, n, k, batch) < 1:
            raise ShapeError(
                f"{path}:{number}: {line.strip()!r} is not m, n and k, or these and a batch."
            )
        found += [Workload(dtype, m, n, k, batch, precision) for dtype, precision in arithmetics]
    return found
