"""G11: matrices of more than 2**31 elements and 2**32 bytes, all of whose result is checked.

Their rows (or columns) repeat with a prime period, so that what is read or written 2**31 elements
or 2**32 bytes beside its place is found, and the exact result fits in the host's memory.
"""

import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from contract import inability
from filelock import FileLock
from oracle.abilities import fitting_layouts
from oracle.kinds import KINDS, numpy_dtype
from oracle.layouts import LAYOUTS

import dxgemm
from dxgemm import errors
from dxgemm.problem.dtypes import ITEM_SIZES

pytestmark = pytest.mark.gpu

PERIOD = 9973
SHORT = 64  # the other two sizes
HUGE_KINDS = (
    "float32", "float64", "tf32", "emulated", "emulated_float64", "float16", "float16_to_float32",
    "bfloat16", "int8",
)  # fmt: skip
# Bytes of workspace for an element of the operand and of the result together: their remainders.
WORK_BYTES = {"emulated_float64": 2 * 16}
# One test at a time has the memory of the GPU, whichever process runs it.
LOCK = Path(tempfile.gettempdir(), "dxgemm_test_huge.lock")


@contextmanager
def memory(cupy, size):
    """Skips unless there is so much memory; gives it back."""
    with FileLock(LOCK):
        free, _ = cupy.cuda.runtime.memGetInfo()
        if free < size:
            pytest.skip(f"needs {size / 2**30:.0f} GiB of device memory, {free / 2**30:.0f} free")
        try:
            yield
        finally:
            cupy.get_default_memory_pool().free_all_blocks()


def huge_extent(dtype):
    """Rows of SHORT elements that have more than 2**31 elements and 2**32 bytes."""
    elements = max(2**31, 2**32 // ITEM_SIZES[dtype])
    return elements // SHORT + 30_000  # a multiple of 16, as tensor cores want it


def fill(matrix, rows):
    """Fill a matrix with copies of these rows, one after the other."""
    whole = len(matrix) // len(rows) * len(rows)
    matrix[:whole].reshape(-1, *rows.shape)[...] = rows
    matrix[whole:] = rows[: len(matrix) - whole]


def repeats(matrix, rows):
    """True if a matrix consists of copies of these rows, one after the other."""
    whole = len(matrix) // len(rows) * len(rows)
    is_right = (matrix[:whole].reshape(-1, *rows.shape) == rows).all()
    return bool(is_right and (matrix[whole:] == rows[: len(matrix) - whole]).all())


def stored(cupy, shape, dtype, order):
    """An uninitialised matrix of rows, or of columns."""
    if order == "row":
        return cupy.empty(shape, dtype)
    return cupy.empty(shape[::-1], dtype).T


@pytest.mark.parametrize("is_tall", [True, False], ids=["rows", "columns"])
@pytest.mark.parametrize("kind", HUGE_KINDS)
def test_more_elements_than_32_bits_count(implementation, kind, is_tall, cupy):
    if implementation.is_own and (reason := inability(implementation, kind)):
        pytest.skip(reason)
    wanted = KINDS[kind]
    dtype, out_dtype = numpy_dtype(wanted.dtype), numpy_dtype(wanted.out_dtype)
    extent = huge_extent(wanted.dtype)
    m, n = (extent, SHORT) if is_tall else (SHORT, extent)
    out_bytes = m * n * out_dtype.itemsize
    # Comparing takes a byte an element.
    element_bytes = dtype.itemsize + 1 + WORK_BYTES.get(kind, 0)
    with memory(cupy, extent * SHORT * element_bytes + out_bytes + 2**30):
        orders = [LAYOUTS[name].order for name in fitting_layouts(implementation, kind)]
        a = stored(cupy, (m, SHORT), dtype, orders[0])
        b = stored(cupy, (SHORT, n), dtype, orders[1])
        out = cupy.full((m, n), -1, out_dtype)
        rng = np.random.default_rng(0)
        # Sums of 64 products of these are integers that every dtype holds.
        lines, short = (rng.integers(-2, 3, (rows, SHORT)) for rows in (PERIOD, SHORT))
        long, other, target = (a, b, out) if is_tall else (b.T, a.T, out.T)
        fill(long, cupy.asarray(lines.astype(dtype)))
        other[...] = cupy.asarray(short.astype(dtype))
        try:
            dxgemm.gemm(
                a, b, out=out, implementation=implementation.name, precision=wanted.precision
            )
        except errors.UnsupportedProblemError as refusal:
            pytest.skip(str(refusal))
        assert repeats(target, cupy.asarray((lines @ short).astype(out_dtype)))
        del a, b, out, long, other, target


@pytest.mark.parametrize(
    "name, dtype",
    [
        ("small_batch", "float32"),
        ("small_batch", "float64"),
        ("tensor_batch", "float64"),
        ("half_batch", "float16"),
    ],
)
def test_a_batch_of_more_elements_than_32_bits_count(name, dtype, cupy):
    size, period = 96, 97
    batch = 2**31 // size**2 + 1000
    with memory(cupy, batch * size**2 * (2 * ITEM_SIZES[dtype] + 1) + 2**30):
        rng = np.random.default_rng(0)
        matrices, other = (rng.integers(-2, 3, (count, size, size)) for count in (period, 1))
        a, b = cupy.empty((batch, size, size), dtype), cupy.asarray(other.astype(dtype))
        out = cupy.full_like(a, -1)
        fill(a, cupy.asarray(matrices.astype(dtype)))
        dxgemm.gemm(a, b, out=out, implementation=name)
        assert repeats(out, cupy.asarray((matrices @ other).astype(dtype)))
        del a, out


@pytest.mark.parametrize("cut", ["m", "n", "k", "batch"])
@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "int8"]
)
def test_more_rows_columns_k_and_matrices_than_32_bits_count(dtype, cut, cupy):
    """Kernels index none of them: these products are computed in pieces."""
    size = 2**31 + 128
    item_size, out_dtype = ITEM_SIZES[dtype], "int32" if dtype == "int8" else dtype
    out_size = 1 if cut == "k" else size * ITEM_SIZES[out_dtype]
    with memory(cupy, size * (item_size + 1) + 2 * out_size + 2**30):
        lines = (np.arange(PERIOD) % 5 - 2).astype(numpy_dtype(dtype))
        long = cupy.empty(size, numpy_dtype(dtype))
        if cut == "k":
            long[...] = 0
            places = [0, 5, 2**30 - 1, 2**30, 2**31 - 1, 2**31, size - 1]
            long[places] = 3
            found = dxgemm.gemm(long[None], cupy.full((size, 1), 1, long.dtype))
            assert complex(found[0, 0]) == 3 * len(places)
            return
        fill(long, cupy.asarray(lines))
        a = {"m": long[:, None], "n": long[None], "batch": long[:, None, None]}[cut]
        factor = cupy.full((1, 1), 3, long.dtype)
        found = dxgemm.gemm(*((factor, a) if cut == "n" else (a, factor)))
        assert repeats(found.ravel(), cupy.asarray((3 * lines).astype(numpy_dtype(out_dtype))))
        del a, long, found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_group_with_a_huge_problem(dtype, cupy):
    extent, item_size = huge_extent(dtype), ITEM_SIZES[dtype]
    with memory(cupy, extent * SHORT * (2 * item_size + 1) + 2**30):
        a, out = cupy.empty((extent, SHORT), dtype), cupy.full((extent, SHORT), -1, dtype)
        rng = np.random.default_rng(0)
        lines, short = (rng.integers(-2, 3, (rows, SHORT)) for rows in (PERIOD, SHORT))
        rows, b = cupy.asarray(lines.astype(dtype)), cupy.asarray(short.astype(dtype))
        fill(a, rows)
        results = [out, cupy.full(rows.shape, -1, dtype)]
        dxgemm.gemm_grouped([a, rows], [b, b], out=results)
        expected = cupy.asarray((lines @ short).astype(dtype))
        assert repeats(out, expected) and (results[1] == expected).all()
        del a, out, results
