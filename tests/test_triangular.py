"""Triangular operands: products of one triangle, whatever lies in the other."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from contract import inability, misfit
from known_devices import H200
from oracle.kinds import KINDS, numpy_dtype, round_to_dtype

import dxgemm
from dxgemm import errors, inners, reductions
from dxgemm.choice.legality import is_cleared
from dxgemm.choice.problem_facts import filled_share
from dxgemm.choice.registry import find_implementation
from dxgemm.choice.selection import rank
from dxgemm.epilogues import bias
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.parts import intrinsics, k_ranges
from dxgemm.handwritten.parts.place import Work, make_place
from dxgemm.lower.product import lower_product
from dxgemm.problem.complex_form import direct_form
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.dtypes import COMPLEX_PARTS
from dxgemm.problem.layout import NO_STRIDES
from dxgemm.problem.problem import Problem
from dxgemm.runtime.arrays import find_library
from dxgemm.runtime.device import device_facts

TRIANGLES = (None, "lower", "upper", "unit lower", "unit upper")
DTYPES = ("float16", "float32", "float64", "complex64", "complex128", "int8", "int64", "bool")
SIZES = (9, 41, 13) if simulator_enabled() else (300, 530, 270)
SKIPPING = [
    pytest.param(implementation, config, kind, id=f"{implementation.name}-{config}-{kind}")
    for implementation in dxgemm.implementations()
    if implementation.is_own and implementation.kernel.takes_k_ranges
    for kind in KINDS
    if inability(implementation, kind) is None
    for config in implementation.configs(KINDS[kind].dtype)
]


def distances(shape):
    """Columns of elements minus their rows."""
    return np.arange(shape[-1]) - np.arange(shape[-2])[:, None]


def triangle_of(matrix, triangle, fill=0):
    """The operand that a triangle means; `fill` in the place of all that is not used of it."""
    if triangle is None:
        return matrix
    distance = distances(matrix.shape)
    if triangle.endswith("upper"):
        distance = -distance
    kept = np.where(distance > 0, fill, matrix).astype(matrix.dtype)
    if not triangle.startswith("unit"):
        return kept
    return np.where(distance == 0, fill or 1, kept).astype(matrix.dtype)


def operands(dtype, m, n, k, batch=(), seed=0):
    """Small integers of a dtype."""
    rng = np.random.default_rng(seed)
    parts = (rng.integers(-3, 4, (2, *batch, *shape)) for shape in ((m, k), (k, n)))
    if "complex" in dtype:
        return [(part[0] + 1j * part[1]).astype(dtype) for part in parts]
    return [part[0].astype(dtype) for part in parts]


def poison(dtype):
    return np.nan if np.dtype(dtype).kind in "fc" else 77


def assert_product(triangular, a, b, expected=None, **options):
    """Assert the product of the triangles, with poison in all that is not used."""
    dirty = (
        triangle_of(x, triangle, poison(x.dtype))
        for x, triangle in zip((a, b), triangular, strict=True)
    )
    found = dxgemm.gemm(*dirty, triangular=triangular, **options)
    if expected is None:
        factors = map(triangle_of, (a, b), triangular)
        expected = np.matmul(*(x if x.dtype.kind in "fc" else x.astype(int) for x in factors))
    np.testing.assert_array_equal(found, expected.astype(found.dtype))


@pytest.mark.parametrize("a_triangle", TRIANGLES)
def test_each_pair_of_triangles(a_triangle):
    for b_triangle in TRIANGLES:
        triangular = a_triangle, b_triangle
        assert_product(triangular, *operands("float32", *SIZES))
        if "unit" not in f"{triangular}":  # the copies differ, kernels do not
            assert_product(triangular, *operands("float32", *SIZES[::-1]), implementation="tuned")


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_dtype_and_layout(dtype):
    size = 7 + (dtype == "float16") if simulator_enabled() else 130  # of whole words in float16
    a, b = operands(dtype, size, size, size, batch=(2,))
    for triangular in (("lower", None), (None, "unit upper"), ("unit lower", "lower")):
        turns = product((False, True), repeat=2)
        for turned in turns if "complex" not in dtype else ((False, True), (True, False)):
            x, y = (
                np.ascontiguousarray(z.swapaxes(1, 2)).swapaxes(1, 2) if turn else z
                for z, turn in zip((a, b), turned, strict=True)
            )
            assert_product(triangular, x, y)
        if dtype == "int8":  # in words of four elements
            words = operands(dtype, 7, 8, 8)
            assert_product(triangular, words[0], np.ascontiguousarray(words[1].T).T)
    assert_product(("upper", None), a[:1], b)
    assert_product(("upper", "lower"), a[0, ::-2, 1:], b[0, 1:, ::2])


@pytest.mark.parametrize("order", "CF")
def test_options_and_other_operands(order):
    """Epilogues, reductions, masks, c and invariance see the same product as any other."""
    m, n, k = SIZES
    a, b = operands("float32", m, n, k)
    exact, triangular = np.tril(a) @ np.triu(b, 0), ("lower", "upper")
    vector = np.arange(n, dtype="float32")
    assert_product(triangular, a, b, exact + vector, epilogue=bias(vector))
    dirty = triangle_of(a, "lower", np.nan), triangle_of(b, "upper", np.nan)
    for implementation in (None, "tuned"):
        for axis in (0, 1):
            found = dxgemm.gemm(
                *dirty, triangular=triangular, epilogue=reductions.max(axis=axis),
                implementation=implementation,
            )  # fmt: skip
            np.testing.assert_array_equal(found, exact.max(axis=axis))
    c = np.asarray(np.ones((m, n)), "float32", order=order)
    result = dxgemm.gemm(*dirty, c, 2, -3, triangular=triangular)
    assert result is c
    np.testing.assert_array_equal(c, 2 * exact - 3)
    mask = np.zeros((-(-m // 128), -(-n // 128)), bool)
    dxgemm.gemm(*dirty, c, triangular=triangular, mask=mask)
    np.testing.assert_array_equal(c, 2 * exact - 3)
    assert_product(triangular, a, b, batch_invariant=True)
    plan = dxgemm.plan(*dirty, triangular=triangular)
    np.testing.assert_array_equal(plan(), exact)


def test_conjugates_slices_and_a_times_itself():
    a, b = operands("complex64", 9, 9, 9)
    expected = np.tril(a).conj() @ np.tril(b, -1).conj() + np.tril(a).conj()
    assert_product(("lower", "unit lower"), a, b, expected, conjugate="ab")
    a, _ = operands("float32", 40, 40, 40)
    dirty = triangle_of(a, "lower", np.nan)
    found = dxgemm.gemm(dirty, dirty.T, triangular=("lower", "upper"))
    np.testing.assert_array_equal(found, np.tril(a) @ np.tril(a).T)
    sliced = "tuned", find_implementation("tuned").configs("float32")[-1], 2
    assert_product(("lower", None), a, a[:, :3], implementation=sliced)


def test_empty_products_read_nothing():
    a = np.full((4, 4), np.nan, "float32")
    c = np.ones((4, 4), "float32")
    assert (dxgemm.gemm(a, a, c, 0, 2, triangular=("lower", "unit upper")) == 2).all()
    assert dxgemm.gemm(a[:0], a, triangular=("lower", None)).shape == (0, 4)
    assert (dxgemm.gemm(a[:, :0], a[:0], triangular=("unit lower", None)) == 0).all()


@pytest.mark.parametrize(
    "triangular", ["lower", ("lower",), ["lower", None], ("full", None), (None, 1)]
)
def test_a_wrong_value_is_refused(triangular):
    matrix = np.ones((3, 3), "float32")
    c = np.zeros((3, 3), "float32")
    with pytest.raises(errors.SettingError, match=r"^gemm: triangular is .*\('lower', None\)"):
        dxgemm.gemm(matrix, matrix, c, triangular=triangular)
    assert (c == 0).all()


def test_what_does_not_go_together_is_refused():
    matrix = np.ones((3, 3), "float32")
    with pytest.raises(errors.UnsupportedProblemError, match=r"min_plus is no sum of products"):
        dxgemm.gemm(matrix, matrix, triangular=("lower", None), inner=inners.min_plus)
    with pytest.raises(errors.ShapeError, match=r"^matmul: b is a vector, \(3,\)"):
        dxgemm.matmul(matrix, matrix[0], triangular=(None, "lower"))
    with pytest.raises(errors.ShapeError, match="inner dimensions differ"):
        dxgemm.gemm(matrix, matrix[:2], triangular=("lower", None))
    found = dxgemm.matmul(np.stack([[matrix] * 2] * 2), matrix[0], triangular=("lower", None))
    assert (found == [1, 2, 3]).all()


@pytest.mark.gpu
@pytest.mark.parametrize("implementation, config, kind", SKIPPING)
def test_every_config_reads_a_band_beside_the_diagonal(implementation, config, kind, home):
    """A tile reads no more than its own extent and a stage beyond the diagonal."""
    reason = misfit(implementation, config, kind)
    if reason is not None:
        pytest.skip(reason)
    wanted, device = KINDS[kind], device_facts(0)
    band = k_ranges.band(config)
    for ranges, sizes in (
        ("lower full", (9, 33, band + 24)),
        ("full lower", (9, band + 24, band + 40)),
        ("upper lower", (band + 9, 33, band + 14)),
    ):
        m, n, k = (2 * size + -2 * size % 16 for size in sizes)
        problem = contiguous_problem(
            wanted.dtype, m, n, k, layout="row_col", out_dtype=wanted.out_dtype,
            precision=wanted.precision,
        )  # fmt: skip
        problem = replace(problem, k_ranges=ranges)
        sent, exact = [], []
        for matrix, triangle in zip(operands("float64", m, n, k), ranges.split(), strict=True):
            sign = {"lower": 1, "upper": -1, "full": 0}[triangle]
            distance = sign * distances(matrix.shape)
            exact.append(np.where(distance > 0, 0, matrix))
            far = 77 if wanted.is_integer else np.nan
            sent.append(round_to_dtype(np.where(distance > band, far, exact[-1]), wanted.dtype))
        out = np.full((m, n), 7, numpy_dtype(wanted.out_dtype))
        buffers = [home.send(as_bytes(x)) for x in (sent[0], sent[1].T, out)]
        a, b, c = (find_library("a", buffer).inspect(buffer)[0] for buffer in buffers)
        program = lower_product(implementation, problem, config, device)
        program.bind(device.arch, 0)((a, b, c, c, 1, 0), 0)
        found = home.fetch(buffers[2]).view(out.dtype).reshape(m, n)
        expected = round_to_dtype(exact[0] @ exact[1], wanted.out_dtype)
        assert (found == expected).all(), (ranges, m, n, k)


def poisoned(value, distance, band, parts, index):
    """Value of an element, or of a part: 0 beside the diagonal, and 1000 beyond a band there."""
    far = distance[np.minimum(index // parts, len(distance) - 1)]  # boxes of TMA reach beyond
    return np.where(far > band, 1000, np.where(far > 0, 0, value(index)))[()]


SIMULATED = (
    ("tuned", "float32"), ("tensor_core", "float64"), ("wgmma", "float16"),
    ("tensor_tile", "float16"), ("complex_tile", "complex64"),
    ("complex_tensor_core", "complex128"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), SIMULATED)
def test_blocks_read_a_band_beside_the_diagonal(name, dtype):
    """The same for kernels of real instructions, which stand-ins simulate: see `wide_indices`."""
    if not simulator_enabled():
        pytest.skip("the kernels themselves run")
    import simulated_instructions
    from simulated_kernels import first_config, launch, matrices
    from sparse_operands import SparseOperand, plain_device_functions, small

    implementation = find_implementation(name)
    kernel, config = implementation.kernel, first_config(implementation, dtype)
    band = k_ranges.band(config)
    for ranges, (m, n, k) in (
        ("lower full", (config.tile_m + 8, 8, band + 72)),
        ("upper lower", (band + 8, 8, band + 16)),
    ):
        problem = Problem(
            dtype=dtype, m=m, n=n, k=k, batch=1, a=matrices(1, m, k), b=matrices(1, k, n, "col"),
            c=NO_STRIDES, out=matrices(1, m, n), out_dtype=dtype, k_ranges=ranges,
        )  # fmt: skip
        if "complex" in dtype:
            problem = direct_form(problem, "").product
        operands = {"out": SparseOperand(dtype, (1, m, n), problem.out)}
        exact = []
        for operand, rows, cols, triangle in zip("ab", (m, k), (k, n), ranges.split(), strict=True):
            strides = getattr(problem, operand)
            place = (distances((rows, cols)) * {"lower": 1, "upper": -1, "full": 0}[triangle]).T
            place = place.T if strides.col == 1 else place
            value = partial(poisoned, small, place.ravel(), band, 1 + ("complex" in dtype))
            operands[operand] = SparseOperand(dtype, (1, rows, cols), strides, value)
            row, col = np.indices((rows, cols))
            matrix = operands[operand].at(np.zeros_like(row), row, col)
            exact.append(np.where(abs(matrix) > 900, 0, matrix))
        spec = implementation.spec_for(config, problem)
        blocks = kernel.block_count(config, problem)
        scalar = np.dtype(COMPLEX_PARTS.get(dtype, problem.scalar_dtype)).type
        extra = (scalar(0), scalar(0)) if "complex" in dtype else ()
        grid = min(blocks, 2) if kernel.is_persistent else blocks
        with simulated_instructions.instructions(), plain_device_functions():
            for point in range(grid):
                maps = kernel.tensor_maps(config, problem)
                place = (grid, 1, 1), (point, 0, 0)
                launch(spec, problem, operands, extra, (scalar(1), scalar(0)), *place, maps)
        (_, row, col), found = operands["out"].written()
        assert len(found) == m * n
        np.testing.assert_array_equal(found, (exact[0] @ exact[1])[row, col])


PAIRS = [" ".join(pair) for pair in product(("full", "lower", "upper"), repeat=2)][1:]


@pytest.mark.parametrize("ranges", PAIRS)
def test_each_tile_has_one_index_and_blocks_share_the_work(monkeypatch, ranges):
    if not simulator_enabled():
        pytest.skip("device functions are called as functions of Python")
    blocks = SimpleNamespace(gridDim=SimpleNamespace(x=132), blockIdx=SimpleNamespace(x=0))
    monkeypatch.setattr(intrinsics, "cuda", blocks)
    a, b = ranges.split()
    for tile, pair, (m, n, k, batch) in (
        ((128, 256), 1, (4096, 4096, 4096, 1)),
        ((256, 128), 2, (4096, 4096, 4096, 1)),
        ((128, 176), 1, (1000, 3000, 2100, 3)),
    ):
        config = SimpleNamespace(
            tile_m=tile[0], tile_n=tile[1], swizzle_rows=16, split_k=1, cluster=pair, pair=(pair, 1)
        )
        rows = tile[0] * pair
        tiles_m, tiles_n = -(-m // rows), -(-n // tile[1])
        tiles = batch * tiles_m * tiles_n
        find = make_place(config, 64, ranges=ranges).find
        work = Work(tiles, tiles_m, tiles_n, m, 0, k, 1, 1, 0, 0, 0, None, 0)
        found, stages = {}, np.zeros(132 // pair)
        for index in range(tiles):
            tile_found = find(work, index)
            matrix, a_matrix, b_matrix, row, col, end_row, first, end = map(int, tile_found)
            assert (a_matrix, b_matrix, end_row) == (matrix, 0, m)
            found[matrix, row, col] = first, end
            stages[index % len(stages)] += -(-(end - first) // 64)
        expected = product(range(batch), range(0, m, rows), range(0, n, tile[1]))
        assert sorted(found) == sorted(expected)
        for (_, row, col), (first, end) in found.items():
            last_row, last_col = min(row + rows, m) - 1, min(col + tile[1], n) - 1
            begin = max(row * (a == "upper"), col * (b == "lower"))
            until = min([k, *[last_row + 1] * (a == "lower"), *[last_col + 1] * (b == "upper")])
            if begin < until:
                assert first <= begin < first + 64 and until <= end < until + 64 + rows + tile[1]
            else:
                assert end - first <= max(rows, tile[1])
        share, longest = (1.1, k / 128) if m == n else (1.25, k / 64)
        assert stages.max() < share * stages.mean() + longest


def as_bytes(matrix):
    return np.ascontiguousarray(matrix).reshape(-1).view(np.uint8)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_the_choice_counts_what_is_skipped(dtype):
    """Of full operands as large, no product is predicted to take less."""
    for size in (256, 4096):
        full = contiguous_problem(dtype, size, size, size)
        us = rank(full, H200).candidates[0].us
        ranked = (
            (filled_share(problem), rank(problem, H200).candidates[0])
            for ranges in ("full full", "lower full", "full upper", "lower upper", "upper upper")
            for problem in [replace(full, k_ranges=ranges)]
        )
        by_share = sorted(ranked, key=lambda pair: (pair[0], pair[1].us))
        shares = [share for share, _ in by_share]
        np.testing.assert_allclose(shares, [1 / 6, 1 / 3, 1 / 2, 1 / 2, 1], rtol=4 / size)
        if size > 4000:
            times = [candidate.us for _, candidate in by_share]
            assert times == sorted(times) and times[3] < us
            triangular = replace(full, k_ranges="lower full")
            assert all(candidate.skips_zeros(triangular) for _, candidate in by_share)


def test_an_explanation_names_the_copies():
    a = np.ones((40, 40), "float32")
    text = str(dxgemm.explain(a, a[:, :8], triangular=("unit lower", None), implementation="tuned"))
    assert "clean_triangle" in text and "copies of a with zeros beside the diagonal" in text
    assert "49% of the products are skipped" in text


def dirty_value(value, distance, keeps_diagonal, index):
    """Value of an element; NaN beside the diagonal, and on a unit one."""
    far = distance[np.minimum(index, len(distance) - 1)]
    return np.where((far > 0) | ((far == 0) & (not keeps_diagonal)), np.nan, value(index))[()]


CLEARED = [
    (("full unit_upper", "unit_lower unit_upper"), "float16", (0, 0), "row row"),
    (("upper full", "full lower"), "float16", (0, 0), "row col"),
    (("upper lower",), "float16", (128, 0), "col col"),
    (("unit_lower lower",), "float16", (0, 8), "col row"),
    (("lower upper",), "float32", (0, 0), "row col"),
    (("unit_upper full",), "float32", (0, 0), "col col"),
]


@pytest.mark.parametrize(("all_triangles", "dtype", "more", "orders"), CLEARED)
def test_wgmma_clears_what_stands_beside_a_diagonal(all_triangles, dtype, more, orders):
    """Zeros are put into the stages that a diagonal crosses, and ones on a unit diagonal."""
    if not simulator_enabled():
        pytest.skip("the kernels themselves run")
    import simulated_instructions
    from simulated_kernels import first_config, launch, matrices
    from sparse_operands import SparseOperand, plain_device_functions, small

    implementation = find_implementation("wgmma")
    config = first_config(implementation, dtype)
    m, n, k = config.tile_m + 8 + more[0], config.tile_n + more[1], 136
    for triangles in all_triangles:
        problem = Problem(
            dtype=dtype, m=m, n=n, k=k, batch=1,
            a=matrices(1, m, k, orders.split()[0]), b=matrices(1, k, n, orders.split()[1]),
            c=NO_STRIDES, out=matrices(1, m, n), out_dtype=dtype, clears=triangles,
            k_ranges=triangles.replace("unit_", ""),
            precision="tf32" if dtype == "float32" else None,
        )  # fmt: skip
        assert implementation.supports(problem) is None
        operands, exact = {"out": SparseOperand(dtype, (1, m, n), problem.out)}, []
        sides = zip("ab", ((m, k), (k, n)), triangles.split(), strict=True)
        for operand, (rows, cols), triangle in sides:
            strides = getattr(problem, operand)
            sign = 1 if triangle.endswith("lower") else -1
            distance = distances((rows, cols)) * (0 if triangle == "full" else sign)
            is_unit = triangle.startswith("unit")
            order = distance if strides.col == 1 else distance.T
            value = partial(dirty_value, small, order.ravel(), not is_unit)
            operands[operand] = SparseOperand(dtype, (1, rows, cols), strides, value)
            row, col = np.indices((rows, cols))
            matrix = operands[operand].at(np.zeros_like(row), row, col)
            matrix = np.where(distance > 0, 0, matrix)
            exact.append(np.where((distance == 0) & is_unit, 1, matrix))
        spec = implementation.spec_for(config, problem)
        maps = implementation.kernel.tensor_maps(config, problem)
        with simulated_instructions.instructions(), plain_device_functions():
            for point in range(2):
                place = (2, 1, 1), (point, 0, 0)
                launch(spec, problem, operands, (), (np.float32(1), np.float32(0)), *place, maps)
        (_, row, col), found = operands["out"].written()
        assert len(found) == m * n
        np.testing.assert_array_equal(found, (exact[0] @ exact[1])[row, col], err_msg=triangles)


WGMMA = find_implementation("wgmma")


ON_GPU = (
    (("lower", None), (520, 264, 648), (False, False)),
    (("unit lower", "upper"), (648, 520, 328), (False, True)),
    ((None, "unit upper"), (264, 584, 520), (True, True)),
    (("upper", "unit lower"), (328, 648, 520), (True, False)),
    (("unit lower", "unit upper"), (520, 648, 264), (False, False)),
)


@pytest.mark.gpu
@pytest.mark.parametrize("config", WGMMA.kernel.configs, ids=str)
def test_every_config_of_wgmma_clears_triangles(config):
    """With NaN in all that is not used; the layouts are those of the next ones for each config."""
    number = WGMMA.kernel.configs.index(config)
    kinds = [("float16", None), *[("float32", "tf32")] * config.takes("float32")]
    for (dtype, precision), turn in product(kinds, range(2)):
        triangular, sizes, turned = ON_GPU[(2 * number + turn) % len(ON_GPU)]
        if dtype == "float32" and turned == (True, False):
            continue  # of two MN-major operands one is copied
        options = {"precision": precision, "implementation": ("wgmma", config)}
        x, y = (
            np.asfortranarray(z) if is_turned else z
            for z, is_turned in zip(operands(dtype, *sizes), turned, strict=True)
        )
        exact = np.matmul(*map(triangle_of, (x, y), triangular), dtype="float32")
        assert_product(triangular, x, y, exact, **options)
        text = str(dxgemm.explain(x, y, triangular=triangular, **options))
        assert "put beside the diagonal in shared memory" in text and "clean_triangle" not in text


def test_copies_are_made_only_where_no_kernel_clears():
    for size, dtype, precision, is_direct in (
        (512, "float16", None, True), (512, "float32", "tf32", True), (512, "float32", None, False),
        (511, "bfloat16", None, False), (512, "int8", None, False),
    ):  # fmt: skip
        problem = contiguous_problem(dtype, size, size, size, precision=precision)
        problem = replace(problem, k_ranges="lower full", clears="unit_lower full")
        assert is_cleared(problem, H200, None) is is_direct
        assert is_cleared(problem, H200, "wgmma") is is_direct
        sliced = "wgmma", WGMMA.kernel.configs[0], 2
        assert not is_cleared(problem, H200, sliced) and not is_cleared(problem, H200, "tuned")
        others = (i for i in dxgemm.implementations() if not i.kernel.clears_triangles)
        assert all(implementation.supports(problem) for implementation in others)
        if is_direct:
            (first, *_) = rank(problem, H200).candidates
            assert first.implementation is WGMMA and first.slices == 1
