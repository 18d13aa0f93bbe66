"""Reduction at the end of a chain of epilogues, and the same reduction of NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dxgemm.epilogues.host import host_values
from dxgemm.errors import (
    EpilogueError,
    ShapeError,
    UnsupportedProblemError,
    named_in_errors,
    shown,
)
from dxgemm.handwritten.parts.operands import FLOAT8_LARGEST, LEAST_LARGEST
from dxgemm.problem.arguments import check_flag

SORTED = ("smallest", "largest")  # the kinds that find values and do not add them up
MOST_VALUES = 32  # that `smallest` and `largest` find: a thread holds as many in registers
VALUES, INDICES, MEANS, SCALES = "values", "indices", "means", "scales"
QUANTISED = "quantised"  # the kind of a `Quantisation`
INTEGERS = ("int32", "int64")  # dtypes of matrices whose sums are int64


def reduced_dtype(dtype: str) -> str:
    """Dtype in which a matrix is reduced: float32 for half precision, else its own."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


class Extremes(NamedTuple):
    """Results of `smallest` and `largest`: the values, best first, and the index of each."""

    values: Any
    indices: Any


@dataclass(frozen=True)
class Reduction:
    """Reduction of rows, of columns or of the whole matrix, at the end of an epilogue.

    Two reductions are equal if they can share kernels, whatever arrays they write to.

    Attributes:
        name: name of the function in `dxgemm.reductions`.
        kind: "sum", "squares" (the root of their sum), "exponentials" (the logarithm of their sum),
            "smallest" or "largest".
        axis: 1 for one result per row, 0 for one per column, None for one per matrix.
        count: number of smallest or largest values that are found.
        is_ranked: True if the results have a dimension of length `count`.
        results: names of the results, of "values" and "indices"; or "means", which are sums divided
            by the number of elements.
        nan_first: True if NaN comes before all other values, False if after them.
        of_magnitudes: True if absolute values are compared.
        fused: True to reduce each tile in the block that computes it, False to store the matrix and
            reduce it by another kernel, None for the one that is predicted to be faster.
        keepdims: True if the results keep a dimension of length 1 for each that is reduced.
        out: an array for each of `results`; empty to allocate them.
    """

    name: str
    kind: str
    axis: int | None
    count: int = 1
    is_ranked: bool = False
    results: tuple[str, ...] = (VALUES,)
    nan_first: bool = True
    of_magnitudes: bool = False
    fused: bool | None = None
    keepdims: bool = False
    out: tuple[Any, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        axis = self.axis
        if axis is not None and not (_is_integer(axis) and -2 <= axis <= 1):
            raise EpilogueError(
                f"gemm: axis is {shown(axis)}; pass 1 or -1 for one result per row, 0 or -2 for "
                "one per column, None for one per matrix."
            )
        if axis is not None:
            object.__setattr__(self, "axis", int(axis) % 2)
        if not _is_integer(self.count) or not 1 <= self.count <= MOST_VALUES:
            raise EpilogueError(
                f"gemm: k is {shown(self.count)}; pass an integer from 1 to {MOST_VALUES}."
            )
        object.__setattr__(self, "keepdims", check_flag("keepdims", self.keepdims))
        if self.fused is not None:
            object.__setattr__(self, "fused", check_flag("fused", self.fused))
        if len(self.out) not in (0, len(self.results)):
            listed = " and ".join(self.results)
            raise EpilogueError(
                f"gemm: out has {len(self.out)} arrays; pass one for {listed} each."
            )

    def __or__(self, other: Any) -> Any:
        raise EpilogueError(
            f"reductions.{self.name}: a reduction is the end of a chain; nothing follows it."
        )

    def __str__(self) -> str:
        count = f"{self.count}, " if self.is_ranked else ""
        return f"{self.name}({count}axis={self.axis})"

    @property
    def is_rounded(self) -> bool:
        """True if it takes the matrix rounded to the dtype of a new result."""
        return self.kind == QUANTISED

    @property
    def takes_magnitudes(self) -> bool:
        """True if nothing but the magnitudes of complex numbers matters."""
        return self.kind == "squares" or self.of_magnitudes

    def check_sizes(self, m: int, n: int, batch: int) -> None:
        """Check that there are as many values as are to be found.

        Raises:
            ShapeError: a row, a column or the matrix has fewer than `count` elements.
        """
        length = {None: m * n, 0: m, 1: n}[self.axis]
        results = batch * {None: 1, 0: n, 1: m}[self.axis]
        if self.kind in SORTED and length < self.count and results:
            what = {None: "matrix", 0: "column", 1: "row"}[self.axis]
            raise ShapeError(
                f"gemm: {self} of a {m} x {n} result: a {what} has {length} elements, fewer than "
                f"the {self.count} that are asked for."
            )

    def shapes(self, m: int, n: int, batch: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Shapes of the results of m x n matrices, by name; batch is () or (matrices,)."""
        rank = (self.count,) if self.is_ranked else ()
        kept = (1,) if self.keepdims else ()
        line = rank or kept  # the results of a row, or of a column
        whole = (*batch, *kept, *line)
        shape = {None: whole, 0: (*batch, *line, n), 1: (*batch, m, *line)}[self.axis]
        pair = (2,) if self.axis is None else ()
        shapes = {VALUES: shape, MEANS: shape, INDICES: (*shape, *pair)}
        return {name: shapes[name] for name in self.results}

    def dtypes(self, dtype: str) -> dict[str, str]:
        """Dtypes of the results, by name; the argument is the dtype of the matrix."""
        value = reduced_dtype(dtype)
        if value in INTEGERS and self.kind not in SORTED:
            value = "int64" if self.kind == "sum" else "float64"
        mean = "float64" if value == "int64" else value
        dtypes = {VALUES: value, MEANS: mean, INDICES: "int64"}
        return {name: dtypes[name] for name in self.results}

    def partial_dtypes(self, dtype: str) -> tuple[str, ...]:
        """Dtypes of partial results: of the values, and of the indices if there are any.

        Values are float64 or int64 for sums, else of the dtype of the reduced matrix.
        """
        if self.kind in SORTED:
            values = reduced_dtype(dtype)
        else:
            values = "int64" if self.kind == "sum" and dtype in INTEGERS else "float64"
        return (values, "int64") if INDICES in self.results else (values,)

    @property
    def partial_count(self) -> int:
        """Number of values of a partial result."""
        return 2 if self.kind == "exponentials" else self.count

    def packed(self, results: Sequence[Any]) -> Any:
        """Pack the results as `gemm` returns them: one array, or `Extremes` of two."""
        return Extremes(*results) if len(results) > 1 else results[0]

    @named_in_errors("on_host")
    def on_host(self, values: Any) -> Any:
        """Reduce a NumPy array.

        Args:
            values: (m, n) or (batch, m, n).

        Returns:
            A NumPy array, or `Extremes` of two.
        """
        values = host_values(values)
        *batch, m, n = values.shape
        self.check_sizes(m, n, math.prod(batch))
        if values.dtype.kind == "c" and self.takes_magnitudes:
            values = np.abs(values)
        shapes, dtypes = self.shapes(m, n, tuple(batch)), self.dtypes(values.dtype.name)
        if values.dtype.itemsize == 2:
            values = values.astype(np.float32)
        axis = -1 if self.axis == 1 else -2
        if self.axis is None:
            values, axis = values.reshape(*batch, m * n), -1
        if self.kind not in SORTED:
            results = dict.fromkeys(self.results, self._totals(values, axis))
        elif values.size == 0:
            results = {name: np.empty(shapes[name]) for name in self.results}
        else:
            results = self._best(values, axis)
            if self.axis is None:
                results[INDICES] = np.stack(np.divmod(results[INDICES], n), axis=-1)
        arrays = (results[name].reshape(shapes[name]).astype(dtypes[name]) for name in self.results)
        return self.packed(tuple(arrays))

    def _totals(self, values: np.ndarray, axis: int) -> np.ndarray:
        """Sums, means, norms or logarithms of sums."""
        kept = np.complex128 if values.dtype.kind == "c" else np.float64
        is_integer = self.kind == "sum" and values.dtype.kind == "i"
        wide = values.astype(np.int64 if is_integer else kept)
        if self.kind == "exponentials":
            return np.asarray(np.logaddexp.reduce(wide, axis=axis))
        if self.kind == "squares":
            return np.asarray(np.sqrt(np.sum(wide * wide, axis=axis)))
        totals = np.asarray(np.sum(wide, axis=axis))
        if self.results != (MEANS,):
            return totals
        with np.errstate(invalid="ignore"):  # the mean of nothing is NaN
            return np.asarray(totals / np.float64(values.shape[axis]))

    def _best(self, values: np.ndarray, axis: int) -> dict[str, np.ndarray]:
        """Smallest or largest values and their indices."""
        if self.of_magnitudes:
            values = np.abs(values)
        order = np.take(self._sorted(values, axis), range(self.count), axis=axis)
        return {VALUES: np.take_along_axis(values, order, axis), INDICES: order}

    def _sorted(self, values: np.ndarray, axis: int) -> np.ndarray:
        """Indices that sort values; equal ones keep their order."""
        is_nan = np.isnan(values)
        wide = values.astype(np.int64 if values.dtype.kind == "i" else np.float64)
        keys = np.where(is_nan, 0, wide if self.kind == "smallest" else -wide)
        return np.lexsort((keys, ~is_nan if self.nan_first else is_nan), axis=axis)


class Quantised(NamedTuple):
    """Results of `quantise_rows`: the elements of float8, and the scale of each row or block."""

    values: Any
    scales: Any


@dataclass(frozen=True)
class Quantisation(Reduction):
    """Rows of the result as float8 with scales: the end of an epilogue, by a kernel of its own.

    Attributes:
        dtype: dtype of the elements.
        block: columns of a row that share a scale; 0 for all.
    """

    dtype: str = "float8_e4m3fn"
    block: int = 0

    def __str__(self) -> str:
        block = f", block={self.block}" if self.block else ""
        return f"{self.name}({self.dtype}{block})"

    def shapes(self, m: int, n: int, batch: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return {VALUES: (*batch, m, n), SCALES: (*batch, m, self.pieces(n))}

    def pieces(self, n: int) -> int:
        """Scales of a row of n elements."""
        return -(-n // self.block) if self.block else 1

    def dtypes(self, dtype: str) -> dict[str, str]:
        if reduced_dtype(dtype) != "float32":
            raise UnsupportedProblemError(
                f"gemm: {self} is for results of float32, float16 and bfloat16, not {dtype}."
            )
        return {VALUES: self.dtype, SCALES: "float32"}

    def partial_dtypes(self, dtype: str) -> tuple[str, ...]:
        return ()

    @property
    def partial_count(self) -> int:
        return self.block

    def packed(self, results: Sequence[Any]) -> Quantised:
        return Quantised(*results)

    @named_in_errors("on_host")
    def on_host(self, values: Any) -> Quantised:
        """Quantise a NumPy array (m, n) or (batch, m, n), to dtypes of ml_dtypes."""
        values = host_values(values)
        self.dtypes(values.dtype.name)
        *batch, m, n = values.shape
        import ml_dtypes

        pieces, wide = self.pieces(n), values.astype(np.float32)
        width = self.block or n
        padded = np.zeros((*batch, m, pieces * width), np.float32)
        padded[..., :n] = wide
        most = np.float32(FLOAT8_LARGEST[self.dtype])
        largest = np.abs(padded.reshape(*batch, m, pieces, width)).max(-1, initial=LEAST_LARGEST)
        with np.errstate(invalid="ignore"):
            scaled = wide * np.repeat(most / largest, width, -1)[..., :n]
            rounded = np.clip(scaled, -most, most).astype(getattr(ml_dtypes, self.dtype))
        return Quantised(rounded, largest / most)
