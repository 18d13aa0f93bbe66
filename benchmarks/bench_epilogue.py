"""GPU time of epilogues, against cuBLAS followed by separate kernels, and against no epilogue.

Every case is the automatic choice with the epilogue fused, and the same kernel without it. Chains
are also compared with what computes them otherwise: cuBLAS and one kernel that `cupy.fuse` makes
of the chain (`cublas_cupy`), cuBLAS and torch's operations one by one (`cublas_torch`), and
cuBLASLt's own epilogue where it has one (`cublaslt`, which torch calls). `vs_cublas` is the time of
the quickest of these over a row's. Arrays of the epilogue are rotated like the other operands.

Reductions of the result, which is not stored, are timed fused and unfused, and against cuBLAS with
what CuPy (`cublas_cupy_reduction`) and torch (`cublas_torch_reduction`) reduce its matrix with; in
float32 also with precision="emulated", against the same.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from cases import Call, Case, Operands, as_tensor, grid, same, torch, xp
from fused import BASELINES, CATALOGUE, FusedCase, baselines_of, fused, own_choice, plain
from measuring import OWN, Found, Row, bench, ratio
from oracle import inputs

import dxgemm
from dxgemm import reductions
from dxgemm.choice.registry import find_implementation
from dxgemm.problem.dtypes import ITEM_SIZES


@dataclass(frozen=True)
class Reducer:
    """A reduction, and the same reduction of a matrix in memory by other libraries.

    Attributes:
        bind: () -> reduction that `gemm` takes.
        in_cupy, in_torch: matrix of CuPy, or tensor of torch -> its results.
        found: (results of any of these, n) -> the values, and their indices in the flat matrix;
            None for either if it is not among the results.
    """

    bind: Callable[[], reductions.Reduction]
    in_cupy: Callable[[Any], Any]
    in_torch: Callable[[Any], Any]
    found: Callable[[Any, int], tuple[Any, Any]]


def two_smallest(matrix: Any) -> tuple[Any, Any]:
    """Values and flat indices, in two passes: quicker than `cupy.partition`, which sorts.

    Overwrites the smallest element.
    """
    flat = matrix.reshape(-1)
    first = flat.argmin()
    value = flat[first]
    flat[first] = math.inf
    second = flat.argmin()
    return xp.stack([value, flat[second]]), xp.stack([first, second])


def found_in_matrix(result: Any, n: int) -> tuple[Any, Any]:
    values, places = map(as_array, result)
    return values, places if places.ndim == 1 else places[:, 0] * n + places[:, 1]


def as_array(array: Any) -> Any:
    """Convert an array to one of CuPy, or of NumPy in the simulator, in the same memory."""
    return array if isinstance(array, xp.ndarray) else xp.from_dlpack(array)


# By the text of the reduction.
REDUCERS = {
    "argmin(axis=1)": Reducer(
        lambda: reductions.argmin(axis=1),
        lambda matrix: matrix.argmin(axis=1),
        lambda tensor: tensor.argmin(dim=1),
        lambda columns, n: (None, xp.arange(len(columns)) * n + as_array(columns)),
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

    @property
    def reducer(self) -> Reducer:
        return REDUCERS[self.reduction]

    @property
    def bytes_moved(self) -> int:
        """The operands read once; results are small."""
        return ITEM_SIZES[self.dtype] * (self.m + self.n) * self.k

    @property
    def exact_fills(self) -> tuple[Any, Any]:
        return inputs.integers, inputs.integers  # many ties

    def expected(self, x: Operands) -> Any:
        """The product, and the values and indices that are sought in it."""
        matrix = super().expected(x)
        values, places = self.reducer.found(self.reducer.in_cupy(matrix.copy()), self.n)
        return matrix, matrix.reshape(-1)[places] if values is None else values, places

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        """Every index must lead to the value that is sought, and dxgemm's to the first of it."""
        matrix, sought, first_places = expected
        self.spoil(x.out)
        result = call()
        reduction = call.explain().work.reduction if isinstance(call, dxgemm.Plan) else ""
        if reduction is None:
            self.require(same(result, matrix), name)
            return {}
        values, places = self.reducer.found(result, self.n)
        self.require(values is None or same(values, sought), name)
        if places is not None:
            self.require(len(xp.unique(places)) == places.size, name)
            self.require(same(matrix.reshape(-1)[places], sought), name)
            self.require(not reduction or same(places, first_places), name)
        return {"way": ("fused" if ", fused" in reduction else "unfused") if reduction else None}


def reduced(is_fused: bool | None = None) -> Callable[[ReducedCase, Operands], dxgemm.Plan]:
    """Variant: dxgemm's reduction, in the kernel of the product, in another, or as it chooses."""

    def make(case: ReducedCase, x: Operands) -> dxgemm.Plan:
        reduction = replace(case.reducer.bind(), fused=is_fused)
        return dxgemm.plan(x.a, x.b, epilogue=reduction, precision=case.precision)

    return make


def stored(case: ReducedCase, x: Operands, implementation: Any, precision: Any = None) -> Any:
    return dxgemm.plan(x.a, x.b, out=x.out, implementation=implementation, precision=precision)


def unreduced(is_fused: bool | None = None) -> Callable[[ReducedCase, Operands], dxgemm.Plan]:
    """Variant: the kernel of `reduced(is_fused)`, which stores the matrix."""
    make = reduced(is_fused)
    return lambda case, x: stored(case, x, own_choice(make(case, x)), case.precision)


def cublas_cupy(case: ReducedCase, x: Operands) -> Call:
    plan = stored(case, x, "cublas")
    return lambda: case.reducer.in_cupy(plan())


def cublas_torch(case: ReducedCase, x: Operands) -> Call:
    matrix, plan = as_tensor(x.out), stored(case, x, "cublas")
    return lambda: (plan(), case.reducer.in_torch(matrix))[1]


REDUCING_BASELINES = {"cublas_cupy_reduction": cublas_cupy, "cublas_torch_reduction": cublas_torch}


CASE_S = 0.3  # of timing a case, unless fewest rounds take longer
SQUARE, SHALLOW = (4096, 4096, 4096), (8192, 8192, 128)
# What may be best on SHALLOW; the config of each that is shows in the results.
SHALLOW_RUNG = {"float32": "tuned", "float64": "tensor_core"}
PATHS = {OWN: None, "fused": True, "unfused": False}
FLOATS, CHAIN, NEAREST = ["float32", "float64"], "bias | gelu | residual", "argmin(axis=1)"
INT8 = {"dtype": "int8", "result_dtype": "float32", "epilogue": "dequantise"}
CASES = [
    *grid(FusedCase, dtype=FLOATS, size=[SQUARE, SHALLOW], epilogue=CHAIN),
    *grid(FusedCase, dtype=["float16", "bfloat16"], size=[SQUARE], epilogue=CHAIN),
    *grid(FusedCase, dtype="float16", size=[4096], epilogue=["bias | relu", "bias | gelu_tanh"]),
    *grid(FusedCase, of=INT8, size=[4096], arrangement=["row_row_row", "row_col_row"]),
    *grid(FusedCase, dtype=FLOATS, size=[4096], epilogue=CATALOGUE),
]
REDUCED_CASES = []
for kinds in (FLOATS, [{"dtype": "float32", "precision": "emulated"}]):
    of = [kind if isinstance(kind, dict) else {"dtype": kind} for kind in kinds]
    shape, two = [(65536, 16384, 64)], [(8192, 8192, 256)]
    REDUCED_CASES += grid(ReducedCase, of=of[:1], size=shape, reduction=NEAREST)
    REDUCED_CASES += grid(ReducedCase, size=two, reduction="smallest(2, axis=None)", of=of)
    REDUCED_CASES += grid(ReducedCase, size=[4096], reduction="sum(axis=1)", of=of)


def choices(case: FusedCase) -> dict[str, Any]:
    """The automatic choice, and on SHALLOW every config of a rung."""
    found: dict[str, Any] = {OWN: None}
    if (case.m, case.n, case.k) == SHALLOW:
        name = SHALLOW_RUNG[case.dtype]
        configs = find_implementation(name).configs(case.dtype)
        found |= {f"{name} {config}": (name, config) for config in configs}
    return found


def variants(case: FusedCase) -> dict[str, Any]:
    own = {name: fused(choice) for name, choice in choices(case).items()}
    return own | baselines_of(case)


def others(case: FusedCase) -> dict[str, Any]:
    return {f"{name} plain": plain(choice) for name, choice in choices(case).items()}


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    without = f"{name} plain"
    assert without not in found or not found[without].wrong, found[without].wrong
    named = {"epilogue": getattr(row.case, "reduction", "") or row.case.epilogue}
    return named | {"is_automatic": name == OWN, "vs_plain": ratio(found, without, name)}


bench_epilogue = bench(CASES, variants, others, describe, cublas=tuple(BASELINES), budget_s=CASE_S)
bench_reduction = bench(
    REDUCED_CASES,
    {name: reduced(is_fused) for name, is_fused in PATHS.items()} | REDUCING_BASELINES,
    {f"{name} plain": unreduced(is_fused) for name, is_fused in PATHS.items()},
    describe,
    cublas=tuple(REDUCING_BASELINES),
    budget_s=CASE_S,
)
