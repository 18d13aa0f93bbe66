"""Reductions fused behind every epilogue, and as kernels of their own, against NumPy's sorting.

Operands are small integers or the reduced values themselves, which an epilogue puts in place of the
product: whatever the arithmetic, values and indices have one right answer. Only logarithms are
rounded.
"""

import itertools
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from contract import inability
from oracle import reference
from oracle.abilities import fitting_layouts
from oracle.cases import plain_layouts
from oracle.kinds import KINDS, numpy_dtype
from oracle.libraries import LIBRARIES, InterfaceOnly, NumpyLibrary, is_installed
from oracle.padded import Padded

import dxgemm
from dxgemm import epilogues, errors, reductions
from dxgemm.choice.registry import find_implementation
from dxgemm.epilogues import Matrix
from dxgemm.gpu.status import probe, simulator_enabled
from dxgemm.handwritten.parts.reduction import make_reducer
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.fusion import FusedReduction, Fusion

KIND_NAMES = ("float32", "float64", "tf32", "float16", "bfloat16", "int8", "emulated")
AXES = (None, 0, 1)
SORTED = ("smallest", "largest")
NAMES = ("sum", "mean", "min", "max", "argmin", "argmax", "abs_max", "norm", "logsumexp", *SORTED)
MOST_EXTREMES = 3
# One row and one column beyond whole tiles; a single column; a single row; whole tiles.
RAGGED = (5, 9, 3) if simulator_enabled() else (129, 257, 43)
SIZES = [RAGGED, (5, 1, 2), (1, 6, 3)]
if not simulator_enabled():
    SIZES = [RAGGED, (257, 1, 33), (1, 270, 40), (256, 512, 64)]

FUSING = ("tuned", "tensor_core", "tensor_core_tf32", "async_copy", "ping_pong", "emulated_float32")
FUSING_UNSTORED = ("emulated_float32",)  # only if the matrix is not stored
# A fused kernel takes seconds to build, and each reduction and axis needs one. On a GPU all of them
# are built for these, and for the others one of each sort; the simulator runs all for float32.
FULLY = (("tuned", "float32"), ("tensor_core", "float64"), ("emulated_float32", "emulated"))
SORTS = ("sum", "argmin", "smallest", "logsumexp")


@dataclass(frozen=True)
class ReductionPath:
    """Path of a reduced product: the kernel that multiplies, fused or unfused."""

    implementation: str | None = None  # name of the kernel that multiplies; None to choose
    # True if that kernel reduces too, False if another one does; None to choose
    fused: bool | None = None

    def __str__(self) -> str:
        return f"{self.implementation or 'automatic'}-{FORMS[self.fused]}"

    def skip_unless_it_computes(self, kind: str) -> None:
        if self.implementation is not None:
            reason = inability(find_implementation(self.implementation), self.kind(kind))
            if reason is not None:
                pytest.skip(reason)

    def kind(self, dtype: str) -> str:
        """Kind of arithmetic for operands of a dtype."""
        return (
            "emulated"
            if self.implementation == "emulated_float32" and dtype == "float32"
            else dtype
        )

    def precision(self, kind: str) -> str | None:
        """Precision that permits the kind."""
        return KINDS[self.kind(kind)].precision

    def reduces_what_it_stores(self) -> bool:
        """True unless it is fused and its kernels cannot store the matrix that they reduce."""
        return not (self.fused and self.implementation in FUSING_UNSTORED)

    def is_full(self, kind: str) -> bool:
        """True if all reductions are tested, not only one of each sort."""
        if simulator_enabled():
            return kind == "float32"
        return (self.implementation, self.kind(kind)) in FULLY

    def pinned(self, dtype: str) -> Any:
        """The implementation and its smallest tile, so that tests share kernels."""
        if self.implementation is None:
            return None
        configs = find_implementation(self.implementation).configs(dtype)
        return self.implementation, [c for c in configs if getattr(c, "split_k", 1) == 1][-1]

    def layouts(self, kind: str) -> tuple[str, str, str]:
        if self.implementation is None:
            return plain_layouts(kind)
        return fitting_layouts(find_implementation(self.implementation), self.kind(kind))

    def gemm(self, kind: str, epilogue: Any, *operands: Any, **options: Any) -> Any:
        """`dxgemm.gemm` of padded operands, whose epilogue may be a `Case`."""
        return dxgemm.gemm(
            *(operand.array if isinstance(operand, Padded) else operand for operand in operands),
            epilogue=epilogue.bind(self) if isinstance(epilogue, Case) else epilogue,
            precision=self.precision(kind),
            **{"implementation": self.implementation, **options},
        )


FORMS = {None: "fastest", True: ", fused", False: "unfused"}
AUTOMATIC = ReductionPath()
gemm = partial(AUTOMATIC.gemm, "float32")


def paths(*implementations: str) -> list[Any]:
    """The automatic choice; on a GPU also each implementation, fused and unfused."""
    forced = [ReductionPath(name, fused) for name in implementations for fused in (True, False)]
    return [
        pytest.param(AUTOMATIC, id=str(AUTOMATIC)),
        *(pytest.param(path, id=str(path), marks=pytest.mark.gpu) for path in forced),
    ]


@dataclass(frozen=True)
class Case:
    """A reduction, by its name and arguments."""

    name: str
    axis: int | None
    k: int | None = None

    def bind(self, path: ReductionPath = AUTOMATIC, out: Any = None) -> Any:
        counts = () if self.k is None else (self.k,)
        reduction = getattr(reductions, self.name)(*counts, axis=self.axis, out=out)
        return reduction if path.fused is None else replace(reduction, fused=path.fused)

    @property
    def is_exact(self) -> bool:
        """True if the results of integers are not rounded."""
        return self.name != "logsumexp"

    def value_dtype(self, dtype: str) -> str:
        """Dtype of the values of a result, by the dtype of the reduced matrix."""
        if dtype == "int32":
            wide = {"sum": "int64"} | dict.fromkeys(("mean", "norm", "logsumexp"), "float64")
            return wide.get(self.name, "int32")
        return "float64" if dtype == "float64" else "float32"

    def expected(self, values: np.ndarray, dtype: str | None = None) -> tuple[np.ndarray, ...]:
        """The result: values, indices, or both."""
        m, n = values.shape[-2:]
        wide = values.astype(float)
        if self.axis is None:
            lines = wide.reshape(*wide.shape[:-2], m * n)
        else:
            lines = np.moveaxis(wide, self.axis - 2, -1)
        value_dtype = self.value_dtype(dtype or values.dtype.name)
        with np.errstate(all="ignore"):
            if self.name in SORTED:
                return self._sorted(lines, n, value_dtype)
            if self.name in ("argmin", "argmax"):
                return (self._places(getattr(np, self.name)(lines, axis=-1), n),)
            reduced = REDUCE[self.name](lines)
            return (np.asarray(reduced).astype(value_dtype),)

    def _sorted(self, lines: np.ndarray, n: int, value_dtype: str) -> tuple[np.ndarray, np.ndarray]:
        is_nan = np.isnan(lines)
        # Sorted by the last key first; where all are equal, by the index.
        keys = (lines, is_nan) if self.name == "smallest" else (-lines, ~is_nan)
        order = np.lexsort(keys, axis=-1)[..., : self.k]
        values = np.take_along_axis(lines, order, axis=-1).astype(value_dtype)
        if self.axis == 0:
            return values.swapaxes(-1, -2), order.swapaxes(-1, -2)
        return values, self._places(order, n)

    def _places(self, indices: np.ndarray, n: int) -> np.ndarray:
        """Indices along an axis; pairs of row and column for a whole matrix."""
        return np.stack(np.divmod(indices, n), axis=-1) if self.axis is None else indices


REDUCE = {
    "sum": lambda lines: np.sum(lines, axis=-1),
    "mean": lambda lines: np.sum(lines, axis=-1) / np.float64(lines.shape[-1]),
    "min": lambda lines: np.min(lines, axis=-1),
    "max": lambda lines: np.max(lines, axis=-1),
    "abs_max": lambda lines: np.max(np.abs(lines), axis=-1),
    "norm": lambda lines: np.sqrt(np.sum(lines**2, axis=-1)),
    "logsumexp": reference.logsumexp,
}


def case_of(name: str, axis: int | None, m: int, n: int) -> Case:
    """`smallest` and `largest` of three, where there are as many."""
    if name not in SORTED:
        return Case(name, axis)
    return Case(name, axis, min(MOST_EXTREMES, {None: m * n, 0: m, 1: n}[axis]))


def all_cases(m: int, n: int) -> list[Case]:
    return [case_of(name, axis, m, n) for name in NAMES for axis in AXES]


def parts_of(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def fetched(home: NumpyLibrary, result: Any) -> tuple[np.ndarray, ...]:
    return tuple(map(home.fetch, parts_of(result)))


def assert_equal(
    actual: tuple[np.ndarray, ...],
    expected: tuple[np.ndarray, ...],
    what: object,
    is_exact: bool = True,
) -> None:
    """Compare values, shapes and dtypes; NaN equals NaN, and 0.0 equals -0.0.

    If values are not exact, they may differ by what the docstring of `logsumexp` states for float32
    and, in float64, for sums of a million elements.
    """
    assert len(actual) == len(expected), what
    for found, wanted in zip(actual, expected):
        assert found.dtype == wanted.dtype, f"{what}: {found.dtype}"
        assert found.shape == wanted.shape, f"{what}: {found.shape}"
        if is_exact:
            np.testing.assert_array_equal(found, wanted, str(what))
        else:
            error = 2.0**-13 if found.dtype == np.float32 else 2.0**-30
            ulp = np.finfo(found.dtype).eps
            np.testing.assert_allclose(found, wanted, rtol=ulp, atol=error, err_msg=str(what))


@dxgemm.epilogue
def replaced(value, row, col, by: Matrix):
    """Element of a matrix, bit for bit, in place of value."""
    return by


@pytest.fixture
def reduced(home):
    """Reduces values of (m, n) or (batch, m, n), as they are, to a tuple of NumPy arrays."""

    def reduced(
        values: np.ndarray, case: Case, path: ReductionPath = AUTOMATIC
    ) -> tuple[np.ndarray, ...]:
        *batch, m, n = values.shape
        a, b = np.zeros((*batch, m, 1), values.dtype), np.zeros((1, n), values.dtype)
        dtype, chain = values.dtype.name, replaced(home.send(values)) | case.bind(path)
        pinned = path.pinned(dtype)
        result = path.gemm(dtype, chain, home.send(a), home.send(b), implementation=pinned)
        return fetched(home, result)

    return reduced


@pytest.mark.parametrize("kind", KIND_NAMES)
@pytest.mark.parametrize("path", paths(*FUSING))
@pytest.mark.parametrize("name", NAMES)
def test_every_reduction_of_every_kind(make, home, name, path, kind):
    path.skip_unless_it_computes(kind)
    if path.kind(kind) != kind:
        pytest.skip(f"the same is tested as {path.kind(kind)}")
    if name not in SORTS and not path.is_full(kind):
        pytest.skip("one reduction of each sort is enough")
    wanted = KINDS[kind]
    a_layout, b_layout, _ = path.layouts(kind)
    has_all_sizes = path.is_full(kind) and (simulator_enabled() or name in SORTS)
    for m, n, k in SIZES if has_all_sizes else SIZES[:1]:
        a, a_sent = make((m, k), wanted.dtype, a_layout)
        b, b_sent = make((k, n), wanted.dtype, b_layout)
        c, c_sent = make((m, n), wanted.out_dtype, "row@1")
        for axis, addend, beta in ((None, None, 0.0), (0, c_sent, 2.0), (1, c_sent, -1.0)):
            case = case_of(name, axis, m, n)
            result = path.gemm(kind, case, a_sent, b_sent, addend, -2.0, beta)
            values = -2.0 * (a.astype(float) @ b.astype(float)) + beta * c.astype(float)
            assert_equal(
                fetched(home, result),
                case.expected(values, wanted.scalar_dtype),
                f"{case} of {m} x {n}",
                case.is_exact,
            )
        for sent in (a_sent, b_sent, c_sent):
            sent.assert_unchanged()


@pytest.mark.parametrize("kind", KINDS)
def test_every_implementation_leaves_its_product_to_be_reduced(
    make_operands, home, implementation, kind
):
    wanted = KINDS[kind]
    (a, a_sent), (b, b_sent) = make_operands(kind, RAGGED)
    for case in (Case("argmin", 1), Case("sum", 0), Case("smallest", None, 2)):
        try:
            options = {"implementation": implementation.name, "precision": wanted.precision}
            epilogue = case.bind(ReductionPath(fused=False))
            result = dxgemm.gemm(a_sent.array, b_sent.array, epilogue=epilogue, **options)
        except errors.UnsupportedProblemError as refusal:
            assert not implementation.is_own, refusal
            pytest.skip(str(refusal))
        values = a.astype(float) @ b.astype(float)
        assert_equal(fetched(home, result), case.expected(values, wanted.scalar_dtype), case)


def test_only_some_implementations_fuse(make, implementation):
    if inability(implementation, "float32") is not None or implementation.name in FUSING:
        pytest.skip("not float32, or one that fuses")
    a_layout, b_layout, _ = fitting_layouts(implementation, "float32")
    a, b = make((4, 8), "float32", a_layout)[1], make((8, 4), "float32", b_layout)[1]
    with pytest.raises(errors.UnsupportedProblemError, match=implementation.name):
        ReductionPath(implementation.name, True).gemm("float32", Case("argmin", 1), a, b)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("path", paths("tuned", "tensor_core", "emulated_float32"))
def test_a_chain_comes_first(make, home, path, dtype):
    path.skip_unless_it_computes(dtype)
    m, n, k = RAGGED
    sums = KINDS[dtype].scalar_dtype
    a_layout, b_layout, _ = path.layouts(dtype)
    a, a_sent = make((m, k), dtype, a_layout)
    b, b_sent = make((k, n), dtype, b_layout)
    row, row_sent = make((1, n), sums)
    matrix, matrix_sent = make((m, n), sums, "row@1")
    for case in (Case("largest", 1, 3), Case("sum", 0), Case("argmin", None), Case("logsumexp", 1)):
        kept_sent = make((m, n), sums, "row+1")[1]
        chain = (
            epilogues.bias(row_sent.array[0])
            | epilogues.keep(kept=kept_sent.array)
            | epilogues.relu
            | epilogues.residual(matrix_sent.array)
            | case.bind(path)
        )
        result = path.gemm(dtype, chain, a_sent, b_sent)
        kept = a.astype(float) @ b.astype(float) + row.astype(float)
        values = np.maximum(kept, 0.0) + matrix
        assert_equal(fetched(home, result), case.expected(values, sums), case, case.is_exact)
        np.testing.assert_array_equal(kept_sent.fetch(), kept)


# What each function finds in four values; (2,) places of argmin and argmax, and of the three
# smallest and largest in order.
NAN, INF = np.nan, np.inf
SPECIAL = [
    ([NAN, 1.0, -INF, 2.0], 0, 0, [2, 1, 3], [0, 3, 1]),
    ([1.0, 2.0, -INF, NAN], 3, 3, [2, 0, 1], [3, 1, 0]),
    ([NAN, NAN, NAN, NAN], 0, 0, [0, 1, 2], [0, 1, 2]),
    ([1.0, NAN, 2.0, NAN], 1, 1, [0, 2, 1], [1, 3, 2]),
    ([INF, INF, INF, INF], 0, 0, [0, 1, 2], [0, 1, 2]),
    ([-INF, -INF, -INF, -INF], 0, 0, [0, 1, 2], [0, 1, 2]),
    ([INF, 3.0, INF, INF], 1, 0, [1, 0, 2], [0, 2, 3]),
    ([-INF, -INF, 3.0, -INF], 0, 2, [0, 1, 3], [2, 0, 1]),
    ([0.0, -0.0, 0.0, -0.0], 0, 0, [0, 1, 2], [0, 1, 2]),
    ([-0.0, 0.0, -0.0, 0.0], 0, 0, [0, 1, 2], [0, 1, 2]),
    ([2.0, 1.0, 1.0, 2.0], 1, 0, [1, 2, 0], [0, 3, 1]),
    ([INF, NAN, -INF, INF], 1, 1, [2, 0, 3], [1, 0, 3]),
]
SPECIAL_VALUES = np.array([values for values, *_ in SPECIAL])
SPECIAL_INDICES = {
    Case("argmin", 1): np.array([row[1] for row in SPECIAL]),
    Case("argmax", 1): np.array([row[2] for row in SPECIAL]),
    Case("smallest", 1, 3): np.array([row[3] for row in SPECIAL]),
    Case("largest", 1, 3): np.array([row[4] for row in SPECIAL]),
}


@pytest.mark.parametrize("case", SPECIAL_INDICES, ids=str)
@pytest.mark.parametrize("axis", AXES)
def test_the_oracle_knows_special_values(case, axis):
    """Special values lie along rows, along columns, and in matrices of 2 x 2."""
    values, indices = special_along(case, axis)
    assert replace(case, axis=axis).expected(values)[-1].tolist() == indices.tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", SPECIAL_INDICES, ids=str)
@pytest.mark.parametrize("axis", AXES)
def test_on_host_knows_special_values(case, axis, dtype):
    values, indices = special_along(case, axis)
    found = parts_of(replace(case, axis=axis).bind().on_host(values.astype(dtype)))
    assert_equal(found, replace(case, axis=axis).expected(values.astype(dtype)), case)
    np.testing.assert_array_equal(found[-1], indices)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("path", paths("tuned", "tensor_core", "emulated_float32"))
@pytest.mark.parametrize("axis", AXES)
def test_special_values(reduced, axis, path, dtype):
    path.skip_unless_it_computes(dtype)
    if not path.is_full(dtype):
        pytest.skip("the simulator, or another dtype, is enough")
    for case in SPECIAL_INDICES:
        values, indices = special_along(case, axis)
        found = reduced(values.astype(dtype), replace(case, axis=axis), path)
        np.testing.assert_array_equal(found[-1], indices, str(case))
    for name in ("sum", "min", "max", "abs_max", "norm", "logsumexp"):
        case = Case(name, axis)
        found = reduced(values.astype(dtype), case, path)
        assert_equal(found, case.expected(values.astype(dtype)), case, case.is_exact)


def special_along(case: Case, axis: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Special values so that they lie along an axis, and the indices of a case."""
    indices = SPECIAL_INDICES[case]
    if axis == 0:
        return SPECIAL_VALUES.T, indices.T
    if axis == 1:
        return SPECIAL_VALUES, indices
    return SPECIAL_VALUES.reshape(-1, 2, 2), np.stack(np.divmod(indices, 2), axis=-1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("path", paths("tuned", "tensor_core", "emulated_float32"))
def test_special_values_in_every_tile(reduced, path, dtype):
    """Few different values make most of them ties; some lines hold only NaN or infinity."""
    path.skip_unless_it_computes(dtype)
    if not path.is_full(dtype):
        pytest.skip("the simulator, or another dtype, is enough")
    rng = np.random.default_rng(2)
    m, n = (5, 9) if simulator_enabled() else (300, 513)
    values = rng.choice([1.0, -1.0, 0.0, -0.0, INF, -INF], (m, n)).astype(dtype)
    values[0, n - 1] = values[1, 0] = values[m - 1, n // 2] = NAN
    values[2], values[3], values[4] = NAN, INF, -INF
    for case in all_cases(m, n):
        assert_equal(reduced(values, case, path), case.expected(values), case, case.is_exact)
    with_nan = values.copy()
    with_nan[:, ::3] = NAN
    for name in ("argmax", "smallest"):
        for axis in AXES:
            case = case_of(name, axis, m, n)
            assert_equal(reduced(with_nan, case, path), case.expected(with_nan), case)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_on_host_is_numpy(dtype):
    rng = np.random.default_rng(3)
    for shape in ((4, 6), (3, 5, 7), (2, 9, 1), (1, 8)):
        values = rng.integers(-3, 4, shape).astype(dtype)
        for case in all_cases(*shape[-2:]):
            found = case.bind().on_host(values)
            assert_equal(parts_of(found), case.expected(values), case, case.is_exact)
            assert isinstance(found, reductions.Extremes if case.name in SORTED else np.ndarray)


def test_on_host_of_nothing():
    for shape, axis in (((0, 0), 0), ((0, 0), 1), ((3, 0), 0), ((0, 3), 1), ((2, 0, 3), 1)):
        for case in (Case("argmin", axis), Case("max", axis), Case("sum", axis)):
            (found,) = parts_of(case.bind().on_host(np.zeros(shape, np.float32)))
            assert found.size == 0 and found.ndim == len(shape) - 1, case


@pytest.mark.parametrize("k", range(1, 9))
def test_as_many_extremes_as_asked_for(reduced, k):
    values = np.random.default_rng(k).integers(-5, 5, (3, 11)).astype(np.float32)
    for name in SORTED:
        for case in (Case(name, None, k), Case(name, 1, k)):
            assert_equal(reduced(values, case), case.expected(values), case)


@pytest.mark.parametrize("k, dtype", [(9, "float32"), (32, "float64"), (17, "float16")])
@pytest.mark.parametrize("path", paths("tuned", "tensor_core"))
def test_many_extremes(reduced, path, k, dtype):
    path.skip_unless_it_computes(dtype)
    values = np.random.default_rng(k).integers(-9, 9, (2, *RAGGED[:2])).astype(dtype)
    values = np.pad(values, ((0, 0), (0, 32), (0, 32)), mode="wrap")
    values[0, 3, ::5], values[1, ::7, 2], values[:, 1] = np.nan, np.inf, -np.inf
    for name, axis in (("smallest", 1), ("largest", 0), ("largest", 1), ("smallest", None)):
        assert_equal(
            reduced(values, Case(name, axis, k), path), Case(name, axis, k).expected(values), name
        )


def test_many_extremes_are_fused_from_shared_memory_alone():
    for count, names in ((8, {"tuned", "emulated_float32"}), (9, {"tuned"})):
        reduction = FusedReduction("smallest", 1, ("float32", "int64"), count)
        problem = replace(
            contiguous_problem("float32", 64, 64, 64),
            epilogue=Fusion((), reduction.buffers, reduction=reduction),
        )
        for name in ("tuned", "emulated_float32", "naive"):
            assert find_implementation(name).fuses_reduction(problem) == (name in names)


def test_axes_count_from_the_end_too(reduced):
    values = np.random.default_rng(4).integers(-3, 4, (3, 4, 5)).astype(np.float32)
    for case in (Case("argmin", 1), Case("largest", 0, 2), Case("sum", 1), Case("norm", 0)):
        found = reduced(values, replace(case, axis=case.axis - 2))
        assert_equal(found, case.expected(values), case)


@pytest.mark.parametrize("path", paths("tuned", "emulated_float32"))
def test_batches(make, home, path):
    path.skip_unless_it_computes("float32")
    m, n, k = RAGGED
    for batch in (1, 3):
        a, a_sent = make((batch, m, k), "float32")
        b, b_sent = make((k, n), "float32")
        c, c_sent = make((m, n), "float32")
        rows, rows_sent = make((batch, n), "float32")
        values = a @ b + 2 * c + rows[:, None, :]
        for case in (
            Case("argmax", 1), Case("sum", 0), Case("smallest", None, 2), Case("logsumexp", None)
        ):  # fmt: skip
            chain = epilogues.bias(rows_sent.array) | case.bind(path)
            result = path.gemm("float32", chain, a_sent, b_sent, c_sent, beta=2.0)
            assert_equal(fetched(home, result), case.expected(values), case, case.is_exact)
        c_sent.assert_unchanged()


@pytest.mark.parametrize("layout", ["row_aligned", "row@1", "col"])
@pytest.mark.parametrize("path", paths("tuned", "tensor_core"))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_matrix_is_stored_if_out_is_passed(make, home, dtype, path, layout):
    """A column-major out is stored too, for which a kernel computes the transposed product."""
    path.skip_unless_it_computes(dtype)
    m, n, k = RAGGED
    a_layout, b_layout, _ = path.layouts(dtype)
    a, a_sent = make((m, k), dtype, a_layout)
    b, b_sent = make((k, n), dtype, b_layout)
    c, c_sent = make((m, n), dtype)
    row, row_sent = make((1, n), dtype)
    values = 2.0 * (a @ b) - c + row
    for name in SORTS:
        for axis in AXES:
            case = case_of(name, axis, m, n)
            out_sent = make((m, n), dtype, layout)[1]
            chain = epilogues.bias(row_sent.array[0]) | case.bind(path)
            operands = a_sent, b_sent, c_sent, 2.0, -1.0
            result = path.gemm(dtype, chain, *operands, out=out_sent.array)
            assert_equal(fetched(home, result), case.expected(values), case, case.is_exact)
            np.testing.assert_array_equal(out_sent.fetch(), values)
    c_sent.assert_unchanged()


@pytest.mark.parametrize("path", paths(*FUSING))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_random_data_is_reduced_as_it_is_stored(home, path, dtype):
    path.skip_unless_it_computes(dtype)
    if not path.reduces_what_it_stores():
        pytest.skip("it reduces only what it does not store")
    m, n, k = (6, 7, 3) if simulator_enabled() else (385, 641, 130)
    rng = np.random.default_rng(5)
    a, b = (home.send(rng.normal(size=shape).astype(dtype)) for shape in ((m, k), (k, n)))
    for case in (Case("argmin", 1), Case("largest", 0, 3), Case("smallest", None, 8)):
        out = home.send(np.full((m, n), NAN, dtype))
        found = fetched(home, path.gemm(dtype, case, a, b, out=out))
        assert_equal(found, case.expected(home.fetch(out)), case)


@pytest.mark.parametrize("dtype, large", [("float16", 2048), ("bfloat16", 256)])
def test_half_precision_is_reduced_unrounded_unless_it_is_stored(home, dtype, large):
    half = numpy_dtype(dtype)
    a = home.send(np.array([[large, 1]], half))
    b = home.send(np.array([[1, 1], [0, 1]], half))  # large and large + 1, which rounds to large
    out = home.send(np.zeros((1, 2), half))
    for target, largest, index in ((None, large + 1, 1), (out, large, 0)):
        found = dxgemm.gemm(a, b, out=target, epilogue=reductions.max(axis=1))
        assert_equal(fetched(home, found), (np.float32([largest]),), target)
        found = dxgemm.gemm(a, b, out=target, epilogue=reductions.argmax(axis=1))
        assert_equal(fetched(home, found), (np.int64([index]),), target)
    np.testing.assert_array_equal(home.fetch(out).astype(float), [[large, large]])


def test_int8_behind_functions_needs_the_dtype_of_out(make, home):
    m, n, k = RAGGED
    a, a_sent = make((m, k), "int8", "row_aligned")
    b, b_sent = make((k, n), "int8", "row_aligned")
    rows, rows_sent = make((1, m), "float32", low=1)
    columns, columns_sent = make((1, n), "float32", low=1)
    out_sent = make((m, n), "float32")[1]
    with pytest.raises(errors.DtypeError, match="int32"):  # nothing makes floats of the sums
        gemm(reductions.max(), a_sent, b_sent, out=out_sent.array)
    dequantised = epilogues.dequantise(rows_sent.array[0], columns_sent.array[0])
    values = (a.astype(float) @ b.astype(float)) * rows.T * columns
    for case in (Case("max", 1), Case("argmin", 0), Case("sum", None)):
        with pytest.raises(errors.MissingOperandError, match="out"):
            gemm(dequantised | case.bind(), a_sent, b_sent)
        out_sent.assert_unchanged()
    for case in (Case("max", 1), Case("argmin", 0), Case("sum", None)):
        result = gemm(dequantised | case.bind(), a_sent, b_sent, out=out_sent.array)
        expected = case.expected(values, "float32")
        assert_equal(fetched(home, result), expected, case)
        np.testing.assert_array_equal(out_sent.fetch(), values)


@pytest.mark.parametrize("path", paths("tuned"))
def test_results_are_written_where_asked(make, path):
    m, n, k = RAGGED
    a, a_sent = make((m, k), "float32")
    b, b_sent = make((k, n), "float32")

    def check(case: Case, *results: tuple[Padded, Any]) -> None:
        arrays = tuple(array for _, array in results)
        reduction = case.bind(path, out=arrays if case.name in SORTED else arrays[0])
        result = path.gemm("float32", reduction, a_sent, b_sent)
        for returned, array in zip(parts_of(result), arrays, strict=True):
            assert returned is array
        for (sent, array), wanted in zip(results, case.expected(a @ b), strict=True):
            assert array.shape == wanted.shape, case
            np.testing.assert_array_equal(sent.fetch().reshape(wanted.shape), wanted, str(case))

    for layout in ("row", "row@1", "row/2", "row_reversed"):
        values, indices = (make((1, m), dtype, layout)[1] for dtype in ("float32", "int64"))
        check(Case("sum", 1), (values, values.array[0]))
        check(Case("argmin", 1), (indices, indices.array[0]))
    for layout in ("row+1", "col+1", "col@1"):
        values, indices = (make((m, 3), dtype, layout)[1] for dtype in ("float32", "int64"))
        check(Case("smallest", 1, 3), (values, values.array), (indices, indices.array))
        values, indices = (make((3, n), dtype, layout)[1] for dtype in ("float32", "int64"))
        check(Case("largest", 0, 3), (values, values.array), (indices, indices.array))
    value, place = make((1, 1), "float32", "row@1")[1], make((1, 2), "int64", "row/2")[1]
    check(Case("norm", None), (value, value.array.reshape(())))
    check(Case("argmax", None), (place, place.array[0]))


def test_k_of_zero_and_alpha_of_zero_are_reduced_too(make, home):
    m, n, _ = RAGGED
    for alpha, k in ((1.0, 0), (0.0, 3)):
        a, b = make((m, k), "float32")[1].array, make((k, n), "float32")[1].array
        c, c_sent = make((m, n), "float32")
        for case in (Case("argmax", 1), Case("sum", 0), Case("norm", None)):
            found = gemm(case, a, b, c_sent, alpha, 2.0)
            assert_equal(fetched(home, found), case.expected(2 * c), case)
            found = gemm(case, a, b, alpha=alpha)
            assert_equal(fetched(home, found), case.expected(0 * c), case)
        c_sent.assert_unchanged()


def test_of_nothing(reduced):
    for shape in ((0, 4), (4, 0), (0, 3, 4), (3, 0, 4)):
        values = np.zeros(shape, np.float32)
        m, n = shape[-2:]
        for case in (*(Case(name, axis) for name in NAMES[:-2] for axis in AXES),
                     *(Case(name, axis, 1) for name in SORTED for axis in AXES)):  # fmt: skip
            is_empty = {None: m * n, 0: m, 1: n}[case.axis] == 0
            if case.name in ("sum", "mean", "norm", "logsumexp") or not is_empty:
                assert_equal(reduced(values, case), case.expected(values), f"{case} of {shape}")
            else:
                with pytest.raises(errors.ShapeError, match=case.name):
                    reduced(values, case)


@pytest.mark.parametrize("path", paths("tuned", "emulated_float32"))
def test_sums_of_float32_round_in_runs_of_256_at_most(reduced, path):
    path.skip_unless_it_computes("float32")
    rng = np.random.default_rng(6)
    values = rng.normal(size=(5, 9) if simulator_enabled() else (1003, 3001)).astype(np.float32)
    for axis in AXES:
        case = Case("sum", axis)
        (found,) = reduced(values, case, path)
        (exact,) = case.expected(values, "float64")
        (magnitude,) = case.expected(abs(values), "float64")
        limit = 256 * 2.0**-24 * magnitude + 2.0**-24 * abs(exact)
        assert np.all(abs(found - exact) <= limit), case


@pytest.mark.parametrize("path", paths("tuned", "emulated_float32"))
def test_sums_of_float32_are_exact_where_those_of_runs_are(reduced, path):
    """Integers of which 256, simulated 16, fit float32 together; longer sums do not, but cancel."""
    path.skip_unless_it_computes("float32")
    rng = np.random.default_rng(9)
    rows, columns, bits = (3, 75, 20) if simulator_enabled() else (501, 3001, 16)
    upper = rng.integers(2 ** (bits - 1), 2**bits, (rows, columns))
    values = np.concatenate([upper, 1 - rng.permuted(upper, axis=1)]).astype(np.float32)
    for axis in AXES:
        case = Case("sum", axis)
        assert_equal(reduced(values, case, path), case.expected(values), case)


@pytest.mark.parametrize("path", paths("tuned", "tensor_core"))
def test_sums_of_float64(reduced, path):
    path.skip_unless_it_computes("float64")
    shape = (3, 40) if simulator_enabled() else (1003, 3001)
    values = np.random.default_rng(7).normal(size=shape)
    for axis in AXES:
        (found,) = reduced(values, Case("sum", axis), path)
        exact = np.sum(values.astype(np.longdouble), axis=axis)
        length = values.size if axis is None else values.shape[axis]
        limit = length * 2.0**-53 * np.sum(abs(values), axis=axis)
        assert np.all(abs(found - exact) <= limit), axis


@pytest.mark.parametrize("path", paths("tuned"))
def test_norms_neither_overflow_nor_vanish(reduced, path):
    values = np.float32([[3e30, 4e30], [3e-30, -4e-30], [0.0, 0.0]])
    for axis in (1, 0):
        values_along = values if axis == 1 else values.T
        (found,) = reduced(values_along, Case("norm", axis), path)
        np.testing.assert_allclose(found, np.float32([5e30, 5e-30, 0.0]), rtol=1e-6)


def lines_of_all_sizes(count: int, length: int, dtype: str) -> np.ndarray:
    """Lines whose exponentials overflow or vanish, or whose maximum rises with every element."""
    rng = np.random.default_rng(10)
    highest = 80 if dtype == "float32" else 700
    sizes = np.exp(rng.uniform(-highest, highest, (count, length)))
    lines = rng.choice([-1, 1], (count, length)) * sizes
    lines[0::5] = rng.normal(-1e4, 3, lines[0::5].shape)
    lines[1::5] = rng.normal(1e4, 30, lines[1::5].shape)
    lines[2::5] = np.linspace(-2, 2, length)
    lines[3::5] = np.linspace(300, -300, length)
    return lines.astype(dtype)


@pytest.mark.parametrize("path", paths("tuned", "tensor_core", "emulated_float32"))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logsumexp_keeps_to_its_bound(reduced, path, dtype):
    path.skip_unless_it_computes(dtype)
    length = 75 if simulator_enabled() else 3001
    values = lines_of_all_sizes(5 if simulator_enabled() else 1003, length, dtype)
    for axis in AXES:
        matrix = values.T if axis == 0 else values
        case = Case("logsumexp", axis)
        (found,) = reduced(np.ascontiguousarray(matrix), case, path)
        exact = reference.logsumexp(values.ravel() if axis is None else values)
        terms = values.size if axis is None else length
        least, unit = (2.0**-13, 2.0**-24) if dtype == "float32" else (terms * 2.0**-50, 2.0**-53)
        limit = least + unit * abs(exact)
        assert np.all(np.isfinite(found)) and np.all(abs(found - exact) <= limit), case


def test_the_reference_of_logsumexp_is_scipy_s():
    special = pytest.importorskip("scipy.special")
    lines = np.concatenate([lines_of_all_sizes(10, 4, "float64"), SPECIAL_VALUES])
    found = reference.logsumexp(lines).astype(float)
    np.testing.assert_allclose(found, special.logsumexp(lines, axis=-1), rtol=1e-15, atol=1e-15)
    np.testing.assert_array_equal(reference.logsumexp(np.zeros((2, 0))), -INF)


@pytest.mark.skipif(not simulator_enabled(), reason="device functions are Python's")
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_exponentials_join_in_any_order(dtype):
    """A thread's states are joined, those of threads merged; some threads have no element."""
    reducer = make_reducer(FusedReduction("exponentials", 1, ("float64",), 2), dtype)
    members = [-1000, 0, 1, 1000] if dtype == "int32" else [NAN, INF, -INF, -1000, 1000, 1000.5]
    scalar = np.dtype(dtype).type
    for values in itertools.product(members, repeat=4):
        states = [reducer.step(reducer.empty(), scalar(value), 0) for value in values]
        pairs = (
            reducer.join(*states[:2]),
            reducer.join(states[2], reducer.step(states[3], scalar(0), 0)),
        )
        partials = [reducer.no_partial(), *(reducer.partial(pair, 0, 1) for pair in pairs)]
        partial = reducer.merge(reducer.merge(partials[0], partials[1]), partials[2])
        partial = reducer.merge(partial, reducer.partial(reducer.empty(), 0, 1))
        (found,) = reducer.finish(partial)
        exact = reference.logsumexp(np.array([*values, 0.0]))
        np.testing.assert_allclose(found, float(exact), rtol=1e-7, err_msg=str(values))


@pytest.mark.parametrize("path", paths(*FUSING))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_run_gives_the_same_bits(home, path, dtype):
    path.skip_unless_it_computes(dtype)
    m, n, k, runs = (5, 9, 3, 2) if simulator_enabled() else (1025, 2049, 65, 20)
    rng = np.random.default_rng(8)
    a, b = (home.send(rng.normal(size=shape).astype(dtype)) for shape in ((m, k), (k, n)))
    options = {"implementation": path.implementation, "precision": path.precision(dtype)}
    for case in (Case("sum", 1), Case("sum", 0), Case("norm", None), Case("logsumexp", 1)):
        plan = dxgemm.plan(a, b, epilogue=case.bind(path), **options)
        found = {home.fetch(plan()).tobytes() for _ in range(runs)}
        result = dxgemm.gemm(a, b, epilogue=case.bind(path), **options)
        assert found == {home.fetch(result).tobytes()}, case


def test_a_plan_keeps_its_results(make, home):
    m, n, k = RAGGED
    a, a_sent = make((m, k), "float32")
    b, b_sent = make((k, n), "float32")
    for case in (Case("argmin", 1), Case("smallest", 0, 2), Case("sum", None)):
        plan = dxgemm.plan(a_sent.array, b_sent.array, epilogue=case.bind())
        first = parts_of(plan())
        for factor in (1, -2):
            a_sent.array[...] = home.send(factor * a)
            for again, array in zip(parts_of(plan()), first, strict=True):
                assert again is array
            found = fetched(home, first)
            assert_equal(found, case.expected(factor * (a @ b)), case)
        a_sent.array[...] = home.send(a)


def test_plans_of_one_layout_do_not_share_their_results(make, home):
    m, n, k = RAGGED
    a, a_sent = make((m, k), "float32")
    b, b_sent = make((k, n), "float32")
    case = Case("argmin", 1)
    plans = [
        dxgemm.plan(a_sent.array, b_sent.array, alpha=alpha, epilogue=case.bind())
        for alpha in (1.0, -1.0)
    ]
    results = [plan() for plan in plans]
    for result, alpha in zip(results, (1.0, -1.0), strict=True):
        assert_equal(fetched(home, result), case.expected(alpha * (a @ b)), alpha)


@pytest.mark.parametrize("path", paths("tuned"))
def test_explain_names_the_reduction_and_its_path(make, path):
    m, n, k = RAGGED
    a, b = make((m, k), "float32")[1].array, make((k, n), "float32")[1].array
    options = {"implementation": path.implementation}
    for case in (Case("argmin", 1), Case("smallest", None, 2)):
        chain = epilogues.relu | case.bind(path)
        for explanation in (
            dxgemm.explain(a, b, epilogue=chain, **options),
            dxgemm.plan(a, b, epilogue=chain, **options).explain(),
        ):
            assert case.name in explanation.work.reduction
            form = "unfused" if simulator_enabled() else FORMS[path.fused]
            assert form == "fastest" or form in explanation.work.reduction
            assert explanation.work.reduction in str(explanation)
    assert dxgemm.explain(a, b).work.reduction is None


def test_numpy_arrays_give_numpy_arrays():
    a, b = np.float32([[1, 2], [3, -4]]), np.float32([[1, 0, -1], [0, 1, 2]])
    row = np.float32([0, 10, 0])
    out = np.full(2, -1)
    found = dxgemm.gemm(a, b, epilogue=epilogues.bias(row) | reductions.argmax(axis=1, out=out))
    assert found is out
    np.testing.assert_array_equal(out, [1, 1])
    values, indices = dxgemm.gemm(a, b, epilogue=reductions.smallest(2))
    assert isinstance(values, np.ndarray) and isinstance(indices, np.ndarray)
    np.testing.assert_array_equal(values, [-11, -4])
    np.testing.assert_array_equal(indices, [[1, 2], [1, 1]])


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["torch", "numba"])
def test_results_are_arrays_of_the_library_of_a(name):
    library = LIBRARIES[name]
    if not is_installed(library):
        pytest.skip(f"{name} is not installed")
    a, b = (Padded(library, np.ones(shape, np.float32)).array for shape in ((5, 3), (3, 7)))
    c = Padded(LIBRARIES["cupy"], np.ones((5, 7), np.float32)).array
    for case in (Case("sum", 1), Case("argmin", None), Case("largest", 0, 2)):
        for addend, beta in ((None, 0.0), (c, 1.0)):
            for part in parts_of(dxgemm.gemm(a, b, addend, beta=beta, epilogue=case.bind())):
                assert type(part) is type(a)


@pytest.mark.parametrize("axis", AXES)
def test_a_reduced_dimension_is_kept(make, home, axis):
    """Results have NumPy's shape, on the host too; they are those without the dimension."""
    (a, a_sent), (b, b_sent) = make((2, 5, 3), "float32"), make((2, 3, 9), "float32")
    shape = {None: (2, 1, 1), 0: (2, 1, 9), 1: (2, 5, 1)}[axis]
    ranked = {None: (2, 1, 4), 0: (2, 4, 9), 1: (2, 5, 4)}[axis]
    pair = (2,) if axis is None else ()
    for make_reduction, shapes in (
        (reductions.mean, (shape,)),
        (reductions.argmin, ((*shape, *pair),)),
        (partial(reductions.largest, 4), (ranked, (*ranked, *pair))),
    ):
        kept, bare = make_reduction(axis, keepdims=True), make_reduction(axis)
        found = fetched(home, gemm(kept, a_sent, b_sent))
        on_host = (parts_of(reduction.on_host(a @ b)) for reduction in (kept, bare))
        for result, wanted, same, flat in zip(found, shapes, *on_host, strict=True):
            assert result.shape == same.shape == wanted
            assert_equal((result, same), (flat.reshape(wanted),) * 2, kept)


def test_a_reduction_is_fused_or_unfused_as_asked(make):
    a, b = (make(shape, "float32")[1].array for shape in ((4, 3), (3, 5)))
    for fused, words in ((True, ", fused: "), (False, ", unfused: ")):
        for name in reductions.__all__:
            if name[0].islower() and name != "quantise_rows":
                counts = (2,) if name in SORTED else ()
                epilogue = getattr(reductions, name)(*counts, 1, fused=fused)
                assert words in dxgemm.explain(a, b, epilogue=epilogue).work.reduction


def test_bad_reductions_are_refused(make):
    a_sent, b_sent = make((3, 4), "float32")[1], make((4, 5), "float32")[1]
    c_sent, out_sent = make((3, 5), "float32")[1], make((3, 5), "float32")[1]
    row = make((1, 5), "float32")[1].array[0]
    for bad, words in (
        (lambda: reductions.argmin(axis=1) | epilogues.relu, "argmin"),
        (lambda: epilogues.bias(row) | reductions.sum() | epilogues.bias(row), "sum"),
        (lambda: reductions.sum(axis=1) | reductions.max(axis=0), "sum"),
        (lambda: epilogues.relu | reductions.norm() | reductions.norm(), "norm"),
        (lambda: reductions.max(axis=2), "axis"),
        (lambda: reductions.max(axis=-3), "axis"),
        (lambda: reductions.max(axis="rows"), "axis"),
        (lambda: reductions.smallest(0), "smallest"),
        (lambda: reductions.largest(33, axis=1), "largest"),
        (lambda: reductions.smallest(2.5), "smallest"),
        (lambda: reductions.smallest(2, out=row), "smallest"),
        (lambda: reductions.largest(2, out=(row, row, row)), "largest"),
        (lambda: reductions.argmin, "argmin"),
        (lambda: reductions.argmin(fused="yes"), "argmin: fused"),
        (lambda: reductions.largest(2, keepdims=2), "largest: keepdims"),
    ):
        with pytest.raises((errors.EpilogueError, errors.SettingError), match=words):
            gemm(bad(), a_sent, b_sent, c_sent, beta=1.0, out=out_sent.array)
    for case in (Case("smallest", 1, 6), Case("largest", 0, 4)):
        with pytest.raises(errors.ShapeError, match=case.name):
            gemm(case, a_sent, b_sent, c_sent, out=out_sent.array)
    for sent in (a_sent, b_sent, c_sent, out_sent):
        sent.assert_unchanged()


def test_bad_results_are_refused(make, home):
    """Bad results include those that share memory with c, with out, or with another output."""
    m, n = 3, 5
    a_sent, b_sent = make((m, 4), "float32")[1], make((4, n), "float32")[1]
    c_sent, out_sent, kept_sent = (make((m, n), "float32")[1] for _ in range(3))
    sums, places = make((1, m), "float32")[1], make((1, m), "int64")[1]
    pair = [make((m, 2), dtype)[1] for dtype in ("float32", "int64")]
    wide = make((1, m), "float64")[1].array[0]
    narrow = make((1, m), "int32")[1].array[0]
    equal = make((1, m), "float32", "cols_equal")[1].array[0]
    cases = [
        (reductions.sum(axis=1, out=sums.array), errors.ShapeError),
        (reductions.sum(axis=0, out=sums.array[0]), errors.ShapeError),
        (reductions.sum(out=sums.array[0]), errors.ShapeError),
        (reductions.argmin(out=places.array[0]), errors.ShapeError),
        (reductions.smallest(2, axis=0, out=tuple(p.array for p in pair)), errors.ShapeError),
        (reductions.smallest(1, axis=1, out=tuple(p.array for p in pair)), errors.ShapeError),
        (reductions.sum(axis=1, out=wide), errors.DtypeError),
        (reductions.argmin(axis=1, out=sums.array[0]), errors.DtypeError),
        (reductions.argmin(axis=1, out=narrow), errors.DtypeError),
        (reductions.sum(axis=1, out=[0.0] * m), errors.ArrayTypeError),
        (reductions.sum(axis=1, out=read_only(home, m)), errors.ReadOnlyError),
        (reductions.sum(axis=1, out=equal), errors.OverlapError),
        (reductions.sum(axis=1, out=a_sent.array[:, 0]), errors.OverlapError),
        (reductions.sum(axis=0, out=b_sent.array[1]), errors.OverlapError),
        (reductions.sum(axis=1, out=c_sent.array[:, 1]), errors.OverlapError),
        (reductions.sum(axis=1, out=out_sent.array[:, 1]), errors.OverlapError),
        (reductions.sum(axis=1, out=kept_sent.array[:, 1]), errors.OverlapError),
        (
            reductions.largest(2, axis=1, out=(kept_sent.array[:, 1:3], pair[1].array)),
            errors.OverlapError,
        ),
    ]
    for reduction, error in cases:
        with pytest.raises(error, match=reduction.name):
            chain = epilogues.keep(kept=kept_sent.array) | reduction
            gemm(chain, a_sent, b_sent, c_sent, beta=1.0, out=out_sent.array)
    for sent in (a_sent, b_sent, c_sent, out_sent, kept_sent, sums, places, *pair):
        sent.assert_unchanged()


def read_only(home, size):
    if simulator_enabled():
        array = np.zeros(size, np.float32)
        array.flags.writeable = False
        return array
    return InterfaceOnly(home.send(np.zeros(size, np.float32)), read_only=True)


@pytest.mark.gpu
@pytest.mark.skipif(probe().device_count < 2, reason="needs two GPUs")
def test_results_on_another_gpu_are_refused(home, cupy):
    a, b = (home.send(np.ones(shape, np.float32)) for shape in ((3, 4), (4, 5)))
    with cupy.cuda.Device(1):
        elsewhere = cupy.zeros(3, cupy.float32)
    with pytest.raises(errors.DeviceMismatchError, match="sum"):
        dxgemm.gemm(a, b, epilogue=reductions.sum(axis=1, out=elsewhere))


@pytest.mark.gpu
@pytest.mark.parametrize("path", paths("tuned", "emulated_float32"))
def test_very_many_rows(make, home, path):
    path.skip_unless_it_computes("float32")
    m, n, k = 100_352, 129, 8
    a, a_sent = make((m, k), "float32")
    b, b_sent = make((k, n), "float32")
    for name in ("argmin", "sum", "largest"):
        for axis in AXES:
            case = case_of(name, axis, m, n)
            found = fetched(home, path.gemm("float32", case, a_sent, b_sent))
            assert_equal(found, case.expected(a @ b), case)


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", ["tuned", "emulated_float32"])
def test_more_elements_than_32_bits_count(implementation, cupy):
    """Reductions are fused, so that they need no memory; every value is 0 but the last one."""
    m, n = 65_600, 32_800
    a, b = cupy.zeros((m, 1), "float32"), cupy.zeros((1, n), "float32")
    a[-1] = b[0, -1] = 1.0
    path = ReductionPath(implementation, True)
    path.skip_unless_it_computes("float32")
    for case, expected in (
        (Case("argmax", None), [m - 1, n - 1]),
        (Case("argmin", None), [0, 0]),
        (Case("sum", None), 1.0),
    ):
        found = path.gemm("float32", case, a, b)
        np.testing.assert_array_equal(found.get(), expected, str(case))


@pytest.mark.gpu
@pytest.mark.parametrize("path", paths("tuned"))
def test_sums_beyond_what_float32_counts(path, cupy):
    a, b = cupy.ones((8192, 1), "float32"), cupy.ones((1, 8192), "float32")
    assert float(path.gemm("float32", Case("sum", None), a, b)) == 2.0**26
    assert float(path.gemm("float32", Case("norm", None), a, b)) == 2.0**13
