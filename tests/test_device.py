"""Tiles in kernels of the caller's: products, epilogues by hand, chains and reductions."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import simulated_instructions
from numba import cuda, float32
from oracle.kinds import numpy_dtype
from sparse_operands import (
    Block,
    SparseOperand,
    bits_of,
    plain_device_functions,
    run_block,
    this_thread,
    values_of,
)

import dxgemm
from dxgemm import errors
from dxgemm.device.kernel import kernel_of
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.parts.tensor_map import Operand
from dxgemm.runtime.device import device_facts

ON_GPU = not simulator_enabled()
if ON_GPU:
    import cupy as xp
else:
    xp = np
EXTENTS = {"float32": (64, 64) if ON_GPU else (8, 32), "float64": (32, 32)}
KEPT = {"float32": 60, "float64": 32}
SIZES = [(133, 150, 37), (64, 128, 64), (5, 1, 70)] if ON_GPU else [(13, 45, 9), (8, 64, 16)]
LAYOUTS = [
    ("float32", ("row", "row")), ("float32", ("col", "col")), ("float64", ("row", "col")),
    ("float64", ("col", "col")),
]  # fmt: skip
TILES = {
    (dtype, (a, b)): dxgemm.device.tile(dtype, *EXTENTS[dtype], a=a, b=b, kept=KEPT[dtype])
    for dtype, (a, b) in LAYOUTS
}
tile = TILES["float32", ("row", "row")]


def ints(shape, dtype="float32", seed=0, least=-3):
    values = np.random.default_rng(seed).integers(least, 4, shape)
    return xp.asarray(values.astype(numpy_dtype(dtype)))


def on_host(array):
    return array if isinstance(array, np.ndarray) else array.get()


def made(array, layout):
    """The same matrix in a layout: "row", "col", every second of both, or backwards."""
    rows, cols = array.shape
    if layout == "col":
        return xp.asarray(array.T.copy()).T
    if layout == "steps":
        wide = xp.full((2 * rows, 3 * cols), np.nan, array.dtype)
        wide[::2, ::3] = array
        return wide[::2, ::3]
    if layout == "backwards":
        return xp.ascontiguousarray(array[::-1, ::-1])[::-1, ::-1]
    return array


def make_scaled(tile):
    def scaled(a, b, scale, shift, out):
        row, col = tile.origin(a.shape[0], b.shape[1])
        acc = tile.accumulator()
        tile.product(acc, a, b, row, col)
        for i in range(tile.per_thread):
            r, c = tile.position(i)
            if col + c < b.shape[1]:
                acc[i] = acc[i] * scale[col + c] + shift * (row + r) + 1
        tile.store(acc, out, row, col)

    return scaled


def scaled_by_numpy(a, b, scale, shift):
    rows = np.arange(a.shape[0])[:, None]
    return on_host(a).astype(float) @ on_host(b).astype(float) * on_host(scale) + shift * rows + 1


def operands(size, dtype="float32"):
    """a, b, a scale of each column, and a result."""
    m, n, k = size
    shapes = (m, k), (k, n), (n,)
    return *(ints(shape, dtype, i) for i, shape in enumerate(shapes)), xp.full((m, n), 7, dtype)


@pytest.mark.parametrize("dtype, layouts", TILES, ids=str)
def test_products_with_an_epilogue_by_hand(dtype, layouts):
    """Edges, all layouts in memory whatever the tile's own, and nothing written outside of out."""
    own = TILES[dtype, layouts]
    kernel = cuda.jit(make_scaled(own))
    others = [layouts, ("steps", "backwards"), (layouts[1], layouts[0])]
    for (m, n, k), (a_layout, b_layout) in zip([*SIZES * 2, (3, 5, 0)], [*others * 2, layouts]):
        a, b, scale, _ = operands((m, n, k), dtype)
        a, b, around = made(a, a_layout), made(b, b_layout), xp.full((m + 2, n + 3), 99, dtype)
        own.launch(kernel, own.blocks(m, n), a, b, scale, 2, around[1:-1, 1:-2])
        expected = np.full(around.shape, 99.0)
        expected[1:-1, 1:-2] = scaled_by_numpy(a, b, scale, 2)
        np.testing.assert_array_equal(on_host(around), expected)
    own.launch(
        kernel, own.blocks(0, n), a[:0], b, scale, 3, around
    )  # no blocks: nothing is written
    np.testing.assert_array_equal(on_host(around), expected)


@pytest.mark.parametrize("dtype, layouts", TILES, ids=str)
def test_rows_that_b_lacks_count_as_zero(dtype, layouts):
    own, a, b = TILES[dtype, layouts], ints((5, 19), dtype), ints((17, 6), dtype, 1)
    out, ones = xp.zeros((5, 6), dtype), xp.ones(6, dtype)
    own.launch(make_scaled(own), own.blocks(5, 6), a, b, ones, 0, out)
    np.testing.assert_array_equal(on_host(out), scaled_by_numpy(a[:, :17], b, ones, 0))


def make_chain(tile, function):
    def chain(x, w1, w2, out):
        row = cuda.blockIdx.x * tile.m
        acc = tile.accumulator()
        for i in range(tile.per_thread):
            acc[i] = math.nan
        for col in range(0, tile.kept + tile.n, tile.n):
            tile.keep(acc, col, tile.kept + 2 * tile.n)
        for col in range(0, w1.shape[1], tile.n):
            tile.product(acc, x, w1, row, col)
            for i in range(tile.per_thread):
                acc[i] = function(acc[i])
            tile.keep(acc, col, w1.shape[1])
        for col in range(0, w2.shape[1], tile.n):
            tile.product_of_kept(acc, w2, col)
            tile.store(acc, out, row, col)

    return chain


@cuda.jit(device=True)
def spoiled(value):
    """1 / value, which is infinite behind the edges; else the magnitude."""
    return abs(value) if value != 0 else float32(math.inf)


@pytest.mark.parametrize(
    "dtype, layouts, layout",
    [(*LAYOUTS[0], "row"), (*LAYOUTS[0], "steps"), (*LAYOUTS[2], "col")],
    ids=str,
)
def test_a_chain_of_two_products(dtype, layouts, layout):
    """What lies in shared memory before, and what a function makes of edges, is not added."""
    own = TILES[dtype, layouts]
    kernel = make_chain(own, spoiled)
    for m, k0, k1, n in [(13, 5, own.kept - 5, 35), (8, 16, own.kept, 32)]:
        x, w1 = ints((m, k0), dtype, least=1), ints((k0, k1), dtype, 1, least=1)
        w2, out = made(ints((k1, n), dtype, 2), layout), xp.zeros((m, n), dtype)
        own.launch(kernel, -(-m // own.m), x, w1, w2, out)
        hidden = np.abs(on_host(x) @ on_host(w1))
        np.testing.assert_array_equal(on_host(out), hidden @ on_host(w2))


def test_more_rows_than_a_tile_keeps():
    """They are refused as an argument of the kernel, and else give NaN."""
    x, w1, out = ints((8, 5)), ints((5, tile.kept)), xp.zeros((8, 3), "float32")
    w2 = ints((tile.kept + 1, 3), seed=2)

    def by_parts(x, w1, w2, out):
        acc = tile.accumulator()
        tile.keep(acc, 0, w1.shape[1])
        tile.product_of_kept(acc, w2[:], 0)
        tile.store(acc, out, 0, 0)

    tile.launch(by_parts, 1, x, w1, w2, out)
    assert np.isnan(on_host(out)).all()
    with pytest.raises(errors.ShapeError, match=rf"has {tile.kept + 1} rows.*kept={tile.kept + 1}"):
        tile.launch(make_chain(tile, spoiled), 1, x, w1, w2, out)


def close_pairs(a, b, limit, count, pairs):
    row, col = tile.origin(a.shape[0], b.shape[1])
    acc = tile.accumulator()
    tile.product(acc, a, b, row, col)
    for i in range(tile.per_thread):
        r, c = tile.position(i)
        if row + r < a.shape[0] and col + c < b.shape[1] and acc[i] > limit:
            slot = cuda.atomic.add(count, 0, 1)
            if slot < pairs.shape[0]:
                pairs[slot, 0] = row + r
                pairs[slot, 1] = col + c


def test_a_reduction_that_no_epilogue_expresses():
    """A result of as many rows as there are pairs above a limit."""
    m, n, k = SIZES[0]
    a, b = ints((m, k)), ints((k, n), seed=1)
    count, pairs = xp.zeros(1, "int64"), xp.full((m * n, 2), -1, "int32")
    tile.launch(close_pairs, tile.blocks(m, n), a, b, 5.0, count, pairs)
    expected = np.argwhere(on_host(a) @ on_host(b) > 5)
    assert 0 < len(expected) == int(count[0]) < m * n
    found = on_host(pairs)[: len(expected)]
    np.testing.assert_array_equal(found[np.lexsort(found.T[::-1])], expected)


def test_slices_of_a_batch_in_the_kernel():
    def batched(a, b, out):
        matrix = cuda.blockIdx.y
        row, col = tile.origin(a.shape[1], b.shape[2])
        acc = tile.accumulator()
        tile.product(acc, a[matrix], b[matrix], row, col)
        tile.store(acc, out[matrix], row, col)

    m, n, k = SIZES[0]
    a, b, out = ints((3, m, k)), ints((3, k, n), seed=1), xp.zeros((3, m, n), "float32")
    tile.launch(cuda.jit(batched), (tile.blocks(m, n), 3), a, b, out)
    np.testing.assert_array_equal(on_host(out), on_host(a) @ on_host(b))


def test_an_ordinary_launch_of_numba():
    a, b, scale, out = operands(SIZES[0])
    grid, kernel = tile.blocks(*out.shape), cuda.jit(make_scaled(tile))
    kernel[grid, tile.threads, 0, tile.smem_bytes](a, b, scale, 2, out)
    np.testing.assert_array_equal(on_host(out), scaled_by_numpy(a, b, scale, 2))


# --- Half precision, whose instructions have stand-ins on the simulator ---


def run_half(make_kernel, grid, tile, values, orders=()):
    """Run a kernel that is made for a tile; return NumPy's float64 of the values."""
    dtype, m, n, options = tile
    if ON_GPU:
        if options["instruction"] and device_facts(0).arch != "sm_90a":
            pytest.skip("wgmma is Hopper's")
        own = dxgemm.device.tile(dtype, m, n, out="float32", **options)
        own.launch(cuda.jit(make_kernel(own)), grid, *values)
    else:
        with simulated_instructions.instructions(), plain_device_functions():
            if orders:
                sys.modules["dxgemm.handwritten.parts.hopper"].begin_wgmma = meet_warpgroup
            own = dxgemm.device.tile(dtype, m, n, out="float32", **options)
            given = [*map(mapped, values, orders, [dtype] * len(orders)), *values[len(orders) :]]
            size = own.threads, own.smem_bytes
            run_block(make_kernel(own), tuple(given), (1, 1, 1), (0, 0, 0), *size)
    return [on_host(x).astype(float) for x in values]


@pytest.mark.parametrize(
    "dtype, layouts, is_aligned",
    [("bfloat16", ("row", "row"), True), ("float16", ("col", "col"), True),
     ("float16", ("row", "col"), False)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("instruction", [None, "wgmma"])
def test_half_precision(dtype, layouts, is_aligned, instruction):
    """Tensor cores: a product, and one of the tile that is kept, with an epilogue by hand."""
    dtype = "float16" if ON_GPU else dtype  # CuPy has no other; benchmarks check torch's bfloat16

    def make_kernel(own):
        def chain(a, b, w, scale, out, last):
            row, col = own.origin(a.shape[0], b.shape[1])
            acc = own.accumulator()
            own.product(acc, a, b, row, col)
            own.store(acc, out, row, col)
            own.keep(acc, 0, b.shape[1])
            own.product_of_kept(acc, w, 0)
            for i in range(own.per_thread):
                r, c = own.position(i)
                if c < w.shape[1]:
                    acc[i] = acc[i] * scale[c] + (row + r)
            own.store(acc, last, row, 0)

        return chain

    m, n, k, columns = (43, 40, 72, 24) if is_aligned else (43, 37, 9, 21)
    forms = (*layouts, layouts[1]) if is_aligned else ("backwards", "steps", "steps")
    shapes = (m, k), (k, n), (n, columns)
    given = (made(ints(shape, dtype, i, -1), form) for i, (shape, form) in
             enumerate(zip(shapes, forms)))  # fmt: skip
    results = xp.zeros((m, n), "float32"), xp.zeros((m, columns), "float32")
    options = {"a": layouts[0], "b": layouts[1], "kept": 64, "instruction": instruction}
    values = *given, ints(columns, "float32", 3), *results
    a, b, w, scale, out, last = run_half(make_kernel, 1, (dtype, 64, 64, options), values)
    assert np.abs(a @ b).max() < 2**8  # so that keeping it rounds nothing
    np.testing.assert_array_equal(out, a @ b)
    np.testing.assert_array_equal(last, a @ b @ w * scale + np.arange(m)[:, None])


class Mapped(np.ndarray):
    """An argument with a tensor map, as it is on the simulator."""


def mapped(array, order, dtype):
    """An argument of which the simulator's TMA has a map."""
    view, flat = array.view(Mapped), array.ravel("K")
    view.order, view.tensor_map = order, simulated_instructions.FIRST_MAP + id(array)
    steps = tuple(stride // array.itemsize for stride in array.strides)
    values = values_of(bits_of(flat, dtype), dtype)
    operand = SparseOperand(
        dtype, array.shape, steps, lambda index: values.take(index, mode="clip")
    )  # fmt: skip
    matrix = Operand("a", array.itemsize, 16, 1, *array.shape, 0, *steps)
    simulated_instructions.maps[view.tensor_map] = operand, matrix.tensor_map(dtype, 64, 64)
    return view


@pytest.mark.parametrize(
    "dtype, extents, layouts",
    [("bfloat16", (64, 64), ("row", "row")), ("float16", (64, 128), ("col", "col"))],
    ids=str,
)
def test_operands_that_tma_copies(dtype, extents, layouts):
    """A chain whose rings go round, with the next product's copies under way at each store."""
    dtype = "float16" if ON_GPU else dtype

    def make_kernel(own):
        def chain(a, b, w, out, last):
            row = cuda.blockIdx.x * own.m
            acc = own.accumulator()
            for col in range(0, b.shape[1], own.n):
                own.product(acc, a, b, row, col)
                if col + own.n >= b.shape[1]:
                    own.fetch_for_kept(w, 0)
                own.store(acc, out, row, col)
                own.apply(acc, halved)
                own.keep(acc, col, b.shape[1])
            for col in range(0, w.shape[1], own.n):
                own.multiply_kept(acc, w, col)
                if col + own.n < w.shape[1]:
                    own.fetch_for_kept(w, col + own.n)
                own.store(acc, last, row, col)

        return chain

    wide = extents[1] + 8
    m, k, n, columns = (304, 1000, 512, 328) if ON_GPU else (16, 264, wide, wide)
    orders, shapes = (*layouts, layouts[1]), ((m, k), (k, n), (n, columns))
    a, b, w = (made(ints(shape, dtype, i), order)
               for i, (shape, order) in enumerate(zip(shapes, orders)))  # fmt: skip
    a %= 2
    options = {"a": layouts[0], "b": layouts[1], "kept": 512 if ON_GPU else 256}
    values = a, b, w, xp.zeros((m, n), "float32"), xp.zeros((m, columns), "float32")
    of_tile = dtype, *extents, options | {"instruction": "wgmma"}
    a, b, w, out, last = run_half(make_kernel, -(-m // extents[0]), of_tile, values, orders)
    assert np.abs(a @ b).max() < 2**8  # so that keeping it rounds nothing
    np.testing.assert_array_equal(out, a @ b)
    np.testing.assert_array_equal(last, a @ b / 2 @ w)


def meet_warpgroup():
    """A wgmma begins when all threads of a warpgroup do: none frees what others have not read."""
    Block.now.meet(16 + this_thread().threadIdx.x // 128, 128)


@cuda.jit(device=True)
def halved(value):
    return float32(0.5) * value


# --- Errors ---


def test_tiles_that_there_are_not():
    cases = [
        (("int8",), {}, errors.DtypeError, r"device.tile: tiles are of float32.*not 'int8'"),
        (("float32", 100, 100), {}, errors.ShapeError, r"is 100x100; these are: .*64x64"),
        (
            ("float32",),
            {"out": "float16"},
            errors.DtypeError,
            "out is 'float16'; a tile of float32",
        ),
        (("float32",), {"instruction": "wgmma"}, errors.DtypeError, "pass 'wgmma' for"),
        (("float32",), {"b": "k"}, errors.SettingError, "b is 'k'; pass 'row' or 'col'"),
        (("float32",), {"kept": -1}, errors.ShapeError, "kept is -1"),
    ]
    if not ON_GPU:
        lacking = "simulator lacks the instruction"
        cases.append((("bfloat16", 64, 64), {}, errors.DtypeError, lacking))
    for arguments, options, kind, match in cases:
        with pytest.raises(kind, match=match):
            dxgemm.device.tile(*arguments, **options)
    with pytest.raises(AttributeError, match="keeps nothing; make it with kept="):
        _ = dxgemm.device.tile("float32", *EXTENTS["float32"]).keep


def test_arguments_that_a_kernel_cannot_take():
    """Each is a typed error before anything is launched, and out stays as it was."""
    scaled, size = make_scaled(tile), SIZES[0]
    a, b, scale, out = operands(size)
    good, grid = {"a": a, "b": b, "scale": scale, "shift": 2, "out": out}, tile.blocks(*out.shape)
    wrong = [
        ({"b": b.astype("float64")}, errors.DtypeError, "b is float64, but the tile takes"),
        ({"out": out.astype("float64")}, errors.DtypeError, "out is float64"),
        ({"a": a[None]}, errors.ShapeError, "a has 3 dimensions, but is a matrix"),
        ({"scale": "scale"}, errors.ArrayTypeError, "argument 2 is 'scale'"),
        ({"shift": 2**70}, errors.DtypeError, "beyond 64 bits"),
        ({"shift": 2j}, errors.ArrayTypeError, "argument 3 is 2j"),
        (
            {"a": xp.zeros(a.nbytes + 1, "int8")[1:].view("float32").reshape(a.shape)},
            errors.LayoutError,
            "argument 0 starts at an address",
        ),
        ({"more": out}, errors.SettingError, "scaled takes 5 arguments, but 6 are passed"),
    ]
    for change, kind, message in wrong:
        with pytest.raises(kind, match=message):
            tile.launch(scaled, grid, *(good | change).values())
    for grid in (-1, 1.5, (), (1, 1, 1, 1), True):
        with pytest.raises(errors.SettingError, match="grid is"):
            tile.launch(scaled, grid, *good.values())
    large = dxgemm.device.tile("float32", 64, 64, kept=1024)
    with pytest.raises(errors.UnsupportedProblemError, match="bytes of shared memory per block"):
        large.launch(make_scaled(large), 1, *good.values())
    assert (on_host(out) == 7).all()


def test_kernels_that_could_change():
    values = [1.0]

    def listed(out):
        out[0] = values[0]

    with pytest.raises(errors.EpilogueError, match=r"kernel listed: .*values.*an argument"):
        tile.launch(listed, 1, xp.zeros(1))
    other = dxgemm.device.tile("float32", 16, 128)

    def mixed(out):
        acc, more = tile.accumulator(), other.accumulator()
        out[0] = acc[0] + more[0]

    if other.threads != tile.threads:
        with pytest.raises(errors.SettingError, match=r"tiles with .* threads"):
            tile.launch(mixed, 1, xp.zeros(1))


def test_the_key_is_of_what_the_kernel_does():
    """It changes with the code, with variables and with the tile, and with nothing else."""

    def kernel_with(tile, factor, function):
        def kernel(out):
            out[0] = factor * function(tile.m)

        return kernel

    def doubled(x):
        return x + x

    def key(tile=tile, factor=2, function=doubled):
        return kernel_of(kernel_with(tile, factor, function)).digest

    again, other = (dxgemm.device.tile("float32", *EXTENTS["float32"], kept=k) for k in (60, 32))
    assert key() == key(again) != key(factor=3)
    assert key() != key(function=lambda x: x) and key() != key(factor=2.0)
    assert key() != key(other)
    assert key() != key(TILES["float64", ("row", "col")])
    factor = 2

    def changing(out):
        out[0] = factor

    first = kernel_of(changing)
    assert kernel_of(cuda.jit(changing)) is first
    factor = 3
    assert kernel_of(changing).digest != first.digest


PROGRAM = """
import sys
import cupy, dxgemm
import dxgemm.compiler.kernels as kernels

if sys.argv[1] == "found":
    kernels.compile_function = None  # so that a build fails
from numba import cuda

tile = dxgemm.device.tile("float32", 64, 64)

@cuda.jit
def kernel(a, b, out):
    row, col = tile.origin(a.shape[0], b.shape[1])
    acc = tile.accumulator()
    tile.product(acc, a, b, row, col)
    tile.store(acc, out, row, col)

a, b, out = (cupy.full(shape, 2, "float32") for shape in ((70, 90), (90, 65), (70, 65)))
tile.launch(kernel, tile.blocks(70, 65), a, b, out)
assert (out == 360).all()
[record] = dxgemm.cache_info().kernels
print(record.implementation, record.entry)
"""


BUILD = """
from numba import cuda
import dxgemm
from dxgemm.epilogues import fast_tanh
from dxgemm.compiler import FunctionSpec
from dxgemm.compiler.build import compile_function
from dxgemm.device.kernel import kernel_of

tile = dxgemm.device.tile("bfloat16", 64, 64, instruction="wgmma")

@cuda.jit(device=True)
def bounded(x):
    return fast_tanh(x)

@cuda.jit
def kernel(a, b, across, out):
    acc = tile.accumulator()
    tile.product(acc, a, b, 0, 0)
    tile.apply(acc, bounded)
    out[0, 0] = acc[0]
    tile.product(acc, a, across, 0, 0)
    out[1, 0] = acc[0]

types = [("bfloat16", 2, "row"), ("bfloat16", 2, "row"), ("bfloat16", 2, "col"), ("float32", 2, "")]
found = kernel_of(kernel)
spec = FunctionSpec(
    found.name, found.digest, found.make, tuple(types), "dxgemm.handwritten.frames.block_tile",
    tile.key, tile.threads, tile.min_blocks, tile.smem_bytes,
)
built = compile_function(spec, "sm_90a")
print([f"address, tensor_map_{i};" in built.ptx for i in range(4)])
print(*(text in built.ptx for text in ("cp.async.bulk.tensor", "cp.async.cg", "tanh.approx")),
      built.record.stack_bytes)
"""


def test_arguments_are_copied_by_tma_if_they_are_in_the_layout_of_the_tile(run_python):
    """Others are copied by threads; functions of `dxgemm.epilogues` are those of kernels."""
    assert run_python(BUILD).splitlines() == ["[True, True, False, False]", "True True True 0"]


@pytest.mark.gpu
def test_another_process_finds_the_kernel_in_the_cache(run_python, tmp_path):
    first, second = (
        run_python(PROGRAM, state, DXGEMM_CACHE_DIR=str(tmp_path)) for state in ("new", "found")
    )
    assert first.startswith("kernel ") and first == second


@pytest.mark.gpu
def test_a_slow_kernel_is_in_the_stream_of_its_arrays():
    """The launch waits for what is queued on the arrays' stream, and later work for the launch."""
    stream, size = xp.cuda.Stream(non_blocking=True), 512
    with stream:
        a, b, out = (xp.zeros(shape, "f4") for shape in ((size, 4096), (4096, size), (size, size)))
        a += 1
        b += 1
        values = a, b, xp.ones(size, "f4"), 0, out
        tile.launch(make_scaled(tile), tile.blocks(size, size), *values)
        assert float(out.sum()) == size * size * 4097
