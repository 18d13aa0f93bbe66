"""Reductions of the result, fused and split, and by other means: checked first, then interleaved.

Like `fused_comparison.py`, for results that are reduced and not stored. The others are cuBLAS,
which stores them, and functions of CuPy or torch. A case with a precision permits it to dxgemm;
cuBLAS computes in the dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from comparison import (
    Attempt,
    Case,
    Timer,
    make_timer,
    sets_of_operands,
    take_turns,
    xp,
)
from fused_comparison import AUTOMATIC, CASE_S, Call, Measurement, as_tensor, own_choice, torch
from oracle import inputs

import dxgemm
from dxgemm import errors, reductions
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.tuning.sampling import calls_in_sample

PATHS = {AUTOMATIC: None, "fused": True, "unfused": False}


@dataclass(frozen=True)
class Reducer:
    """A reduction, and the same reduction of a matrix in memory by other libraries.

    Attributes:
        bind: () -> reduction that `gemm` takes.
        in_cupy: matrix of CuPy -> its results.
        in_torch: tensor of torch -> its results.
        found: (results of any of these, n) -> the values, and their indices in the flat matrix;
            None for either if it is not among the results.
    """

    bind: Callable[[], reductions.Reduction]
    in_cupy: Callable[[Any], Any]
    in_torch: Callable[[Any], Any]
    found: Callable[[Any, int], tuple[Any, Any]]


def two_smallest(matrix: Any) -> tuple[Any, Any]:
    """Values and flat places, in two passes: quicker than `cupy.partition`, which sorts.

    Overwrites the smallest element.
    """
    flat = matrix.reshape(-1)
    first = flat.argmin()
    value = flat[first]
    flat[first] = math.inf
    second = flat.argmin()
    return xp.stack([value, flat[second]]), xp.stack([first, second])


def found_in_rows(columns: Any, n: int) -> tuple[None, Any]:
    return None, xp.arange(len(columns)) * n + as_array(columns)


def found_in_matrix(result: Any, n: int) -> tuple[Any, Any]:
    values, places = map(as_array, result)
    return values, places if places.ndim == 1 else places[:, 0] * n + places[:, 1]


# By the text of the reduction.
REDUCERS = {
    "argmin(axis=1)": Reducer(
        lambda: reductions.argmin(axis=1),
        lambda matrix: matrix.argmin(axis=1),
        lambda tensor: tensor.argmin(dim=1),
        found_in_rows,
    ),
    "smallest(2, axis=None)": Reducer(
        lambda: reductions.smallest(2),
        two_smallest,
        lambda tensor: torch().topk(tensor.flatten(), 2, largest=False),
        found_in_matrix,
    ),
    "sum(axis=1)": Reducer(
        lambda: reductions.sum(axis=1),
        lambda matrix: matrix.sum(axis=1),
        lambda tensor: tensor.sum(dim=1),
        lambda sums, n: (as_array(sums), None),
    ),
}


@dataclass(frozen=True)
class ReducedCase(Case):
    """A problem whose result is reduced, by one of `REDUCERS`."""

    reduction: str = ""

    def __str__(self) -> str:
        return f"{super().__str__()}-{self.reduction}"

    @property
    def reducer(self) -> Reducer:
        return REDUCERS[self.reduction]

    @property
    def bytes_moved(self) -> int:
        """The operands read once; results are small."""
        return ITEM_SIZES[self.dtype] * (self.m * self.k + self.k * self.n)


@dataclass
class Operands:
    """a and b of a case, and the matrix for the product if it is stored."""

    a: Any
    b: Any
    matrix: Any


def as_array(array: Any) -> Any:
    """Convert an array to one of CuPy, or of NumPy in the simulator, in the same memory."""
    return array if isinstance(array, xp.ndarray) else xp.from_dlpack(array)


def own_call(implementation: Any, fused: bool | None) -> Callable[[ReducedCase, Operands], Call]:
    def make(case: ReducedCase, operands: Operands) -> dxgemm.Plan:
        reduction = replace(case.reducer.bind(), fused=fused)
        return dxgemm.plan(
            operands.a,
            operands.b,
            epilogue=reduction,
            implementation=implementation,
            precision=case.precision,
        )

    return make


def plain_call(implementation: Any) -> Callable[[ReducedCase, Operands], Call]:
    def make(case: ReducedCase, operands: Operands) -> dxgemm.Plan:
        return dxgemm.plan(
            operands.a,
            operands.b,
            out=operands.matrix,
            implementation=implementation,
            precision=case.precision,
        )

    return make


def cublas_call(case: ReducedCase, operands: Operands) -> dxgemm.Plan:
    return dxgemm.plan(operands.a, operands.b, out=operands.matrix, implementation="cublas")


def cublas_cupy_call(case: ReducedCase, operands: Operands) -> Call:
    product = cublas_call(case, operands)
    return lambda: case.reducer.in_cupy(product())


def cublas_torch_call(case: ReducedCase, operands: Operands) -> Call:
    product, matrix = cublas_call(case, operands), as_tensor(operands.matrix)

    def call() -> object:
        product()
        return case.reducer.in_torch(matrix)

    return call


REDUCING_BASELINES = {
    "cublas_cupy_reduction": cublas_cupy_call,
    "cublas_torch_reduction": cublas_torch_call,
}


def path_of(explanation: dxgemm.Explanation) -> str:
    """ "fused" or "unfused", as a plan says of itself."""
    return "fused" if ", fused" in explanation.work.reduction else "unfused"


class Gate:
    """Exact operands of one case; lets pass what gives the right results on them.

    There are many ties. Every index must lead to the value that is sought, and those of dxgemm to
    the first of it.
    """

    def __init__(self, case: ReducedCase, timer: Timer) -> None:
        self._case = case
        self._timer = timer
        rng = xp.random.default_rng(1)
        a, b = (inputs.integers(rng, shape, case.dtype) for shape in case.shapes[:2])
        self._operands = Operands(a, b, xp.empty(case.shapes[2], case.dtype))
        self._product = xp.matmul(a, b)
        result = case.reducer.in_cupy(self._product.copy())
        values, self._places = case.reducer.found(result, case.n)
        self._values = self._product.reshape(-1)[self._places] if values is None else values

    def attempt(self, name: str, make: Callable[[ReducedCase, Operands], Call]) -> Attempt:
        """Check a call and time it once; its `implementation` becomes the kernel that ran."""
        attempt = Attempt(name)
        try:
            call = make(self._case, self._operands)
        except (
            errors.UnsupportedProblemError,
            errors.BuildError,
            errors.MissingPackageError,
        ) as error:
            attempt.refusal = str(error)
            return attempt
        self._operands.matrix[...] = math.nan
        result = call()
        if isinstance(call, dxgemm.Plan):
            attempt.explanation = call.explain()
            attempt.implementation = own_choice(call)
        if attempt.explanation is not None and attempt.explanation.work.reduction is None:
            attempt.is_wrong = not bool((result == self._product).all())
        else:
            attempt.is_wrong = not self._is_right(result, attempt.explanation is not None)
        if not attempt.is_wrong:
            attempt.call_s = self._timer([call])
        return attempt

    def _is_right(self, result: Any, is_own: bool) -> bool:
        values, places = self._case.reducer.found(result, self._case.n)
        if values is not None and not bool((values == self._values).all()):
            return False
        if places is None:
            return True
        if is_own and not bool((places == self._places).all()):
            return False
        are_distinct = len(xp.unique(places)) == places.size
        return are_distinct and bool((self._product.reshape(-1)[places] == self._values).all())


class ReducedComparison:
    """Measures cases as they come and remembers the last one."""

    def __init__(self) -> None:
        self._timer = make_timer()
        self._case: ReducedCase | None = None
        self._measurement = Measurement()

    def measure(self, case: ReducedCase) -> Measurement:
        """Check and time every path and baseline, and the plain products of the paths."""
        if case != self._case:
            self._case, self._measurement = case, self._measure(case)
        return self._measurement

    def _measure(self, case: ReducedCase) -> Measurement:
        result = Measurement()
        gate = Gate(case, self._timer)
        makers: dict[Any, Callable[[ReducedCase, Operands], Call]] = {}
        call_s = {}
        for name, fused in PATHS.items():
            attempt = result.attempts[name] = gate.attempt(name, own_call(None, fused))
            if attempt.refusal or attempt.is_wrong:
                continue
            path, automatic = path_of(attempt.explanation), result.attempts[AUTOMATIC]
            if name != AUTOMATIC and (attempt.implementation, path) == (
                automatic.implementation,
                automatic.explanation and path_of(automatic.explanation),
            ):
                attempt.refusal = "the automatic choice is the same"
                continue
            without = gate.attempt(name, plain_call(attempt.implementation))
            if without.refusal or without.is_wrong:
                attempt.refusal = without.refusal or "its plain product is wrong"
                continue
            makers |= {
                name: own_call(attempt.implementation, path == "fused"),
                (name, "plain"): plain_call(attempt.implementation),
            }
            call_s |= {name: attempt.call_s, (name, "plain"): without.call_s}
        for name, make in REDUCING_BASELINES.items():
            attempt = result.attempts[name] = gate.attempt(name, make)
            if not (attempt.refusal or attempt.is_wrong):
                makers[name], call_s[name] = make, attempt.call_s
        del gate  # its operands: the next ones are as large
        rng = xp.random.default_rng(0)
        matrix = xp.empty(case.shapes[2], case.dtype)
        operands = []
        for _ in range(sets_of_operands(case, max(map(calls_in_sample, call_s.values())))):
            a, b = (rng.standard_normal(shape, dtype=case.dtype) for shape in case.shapes[:2])
            operands.append(Operands(a, b, matrix))
        calls = {name: [make(case, one) for one in operands] for name, make in makers.items()}
        result.samples_s = take_turns(calls, call_s, self._timer, CASE_S)
        return result
