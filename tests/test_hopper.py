"""The intrinsics of handwritten/parts/hopper.py one by one, and what wgmma says it cannot do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hopper_kernels import ROW_BYTES, TILE, Config

from dxgemm.choice.registry import find_implementation
from dxgemm.compiler import KernelSpec, compile_kernel
from dxgemm.handwritten.kernels import emulated_float32, emulated_float64, wgmma
from dxgemm.handwritten.parts.configs import MOST_STAGES, NOTE_BYTES, SMEM_BYTES_PER_BLOCK
from dxgemm.handwritten.parts.tensor_map import TensorMap, operand_of
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.layout import Strides

BITS = {"float16": np.uint16, "bfloat16": np.uint16, "float32": np.float32, "int8": np.int8}


@pytest.fixture
def run(hopper):
    """Compiles a case and runs it: run(case, options, a, b, ...) gives out."""
    from dxgemm.runtime.launch import KernelLaunch

    def run(case, *options, a=None, b=None, dtype="float32", out_items=4096, maps=None, **changes):
        spec = KernelSpec("hopper", "hopper_kernels", Config(), dtype, (case, *options))
        kernel = compile_kernel(spec, "sm_90a")
        a, b = (hopper.asarray(np.zeros(4, np.float32) if x is None else x) for x in (a, b))
        problem = replace(contiguous_problem(dtype, TILE, TILE, 32), **changes)
        out = hopper.full(out_items, np.nan, np.float32)
        launch = KernelLaunch(kernel, problem, 1, 0, maps or (None, None))
        launch((a.data.ptr, b.data.ptr, 0, out.data.ptr, 1, 0), 0)
        return out.get()

    return run


@pytest.mark.parametrize("name, dtype", [
    ("wgmma", "float16"), ("emulated_float32", "float32"), ("emulated_float64", "float64")
])  # fmt: skip
def test_a_persistent_kernel_has_a_block_an_sm_at_most(configs_of_a_gpu, name, dtype):
    implementation = find_implementation(name)
    for config in implementation.configs(dtype):
        for size in (64, 8192):
            problem = contiguous_problem(dtype, size, size, size)
            tiles = implementation.tile_count(config, problem)
            assert tiles >= -(-size // config.tile_m) * -(-size // config.tile_n)
            for sm_count in (20, 132):
                assert implementation.block_count(config, problem, sm_count) == min(tiles, sm_count)


RINGS = [
    config
    for file in (wgmma, emulated_float32, emulated_float64)
    for config in (*file.KERNEL.configs, file.Config(64, 64), file.Config(128, 128))
]


@pytest.mark.parametrize("config", [*RINGS, wgmma.Config(64, 8), wgmma.Config(128, 200)], ids=str)
def test_a_ring_has_as_many_stages_as_fit(config):
    rings = {"mn": config, "k": config.k_major}
    for b, ring in rings.items():
        columns = -(-config.tile_n // 64) * 64 if b == "mn" else config.tile_n
        assert ring.stage_bytes == config.parts * (config.tile_m + columns) * ROW_BYTES
        stages = ring.stages * (ring.stage_bytes + 16 + NOTE_BYTES)
        least = stages + config.consumers * 4 * min(config.chunk_sizes)
        assert least < config.smem_bytes("float16") <= SMEM_BYTES_PER_BLOCK
        one_more = ring.stage_bytes + 16 + NOTE_BYTES
        assert ring.stages == MOST_STAGES or least + one_more > SMEM_BYTES_PER_BLOCK - 1200
        assert ring.chunk_bytes in config.chunk_sizes


@pytest.mark.parametrize("tile", [(96, 64), (128, 12), (64, 264)], ids=str)
def test_a_tile_that_wgmma_does_not_take_is_refused(tile):
    with pytest.raises(ValueError, match=r"tile_[mn] must be"):
        wgmma.Config(*tile)


def stored(values, dtype, transposed):
    """Small integers as a kernel reads them, and in which order."""
    values = values.T if transposed else values
    values = np.ascontiguousarray(values, np.float32)
    if dtype in ("float16", "int8"):
        return values.astype(dtype)
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values


def swizzled(rows):
    """Rows of 128 bytes as TMA leaves them: 16-byte pieces permuted."""
    pieces = rows.reshape(len(rows), 8, 4)
    places = np.arange(8) ^ (np.arange(len(rows)) % 8)[:, None]
    return np.take_along_axis(pieces, places[..., None], 1).reshape(len(rows), 32)


COMPILE = """
import sys
sys.path.append(sys.argv[1])
from hopper_kernels import CASES, Config
from dxgemm.choice.registry import find_implementation
from dxgemm.compiler import KernelSpec, compile_kernel
options = {"copy": ("2",), "wgmma": ("k", "mn"), "pairs": ("f16",)}
for case in CASES:
    dtype = "float16" if case == "wgmma" else "float32"
    spec = KernelSpec("hopper", "hopper_kernels", Config(), dtype, (case, *options.get(case, ())))
    print(case, compile_kernel(spec, "sm_90a").record.stack_bytes)
"""


def test_every_case_compiles_without_a_gpu(run_python):
    lines = run_python(COMPILE, str(Path(__file__).parent)).splitlines()
    assert [line.split()[1] for line in lines] == ["0"] * 5


@pytest.mark.gpu
def test_a_barrier_hands_a_value_from_one_thread_to_others_in_turn(run):
    out = run("barrier", out_items=512)
    np.testing.assert_array_equal(out.reshape(8, 64), np.repeat(np.arange(1, 9), 64).reshape(8, 64))


@pytest.mark.gpu
@pytest.mark.parametrize(("x", "y"), [(0, 0), (32, 64), (64, 96)], ids=["inside", "next", "corner"])
def test_a_box_of_two_dimensions_is_swizzled_and_filled_with_zeros(run, x, y):
    a = np.arange(100 * 80, dtype=np.float32).reshape(100, 80) % 2000
    maps = (TensorMap("a", "tfloat32", (80, 100), (320,), (32, TILE)), None)
    out = run("copy", "2", a=a, maps=maps, out_items=TILE * 32, m=x, n=y)
    expected = np.zeros((TILE, 32), np.float32)
    inside = a[y : y + TILE, x : x + 32]
    expected[: inside.shape[0], : inside.shape[1]] = inside
    np.testing.assert_array_equal(out.reshape(TILE, 32), swizzled(expected))


@pytest.mark.gpu
def test_a_box_of_three_dimensions_stays_in_its_matrix(run):
    a = np.arange(3 * 50 * 32, dtype=np.float32).reshape(3, 50, 32) % 2000
    maps = (TensorMap("a", "tfloat32", (32, 50, 3), (128, 6400), (32, TILE, 1)), None)
    out = run("copy", "3", a=a, maps=maps, out_items=TILE * 32, m=0, n=10, batch=1)
    expected = np.zeros((TILE, 32), np.float32)
    expected[:40] = a[1, 10:]
    np.testing.assert_array_equal(out.reshape(TILE, 32), swizzled(expected))


@pytest.mark.gpu
def test_tma_rounds_to_tf32(run):
    a = np.random.default_rng(0).standard_normal((TILE, 32)).astype(np.float32)
    maps = (TensorMap("a", "tfloat32", (32, TILE), (128,), (32, TILE)), None)
    out = run("copy", "2", a=a, maps=maps, out_items=TILE * 32, m=0, n=0).reshape(TILE, 32)
    exact = swizzled(a)
    assert (out.view(np.uint32) & 0x1FFF == 0).all(), "13 bits of the mantissa are dropped"
    assert (np.abs(out - exact) <= np.abs(exact) * 2.0**-11).all(), "to the nearest"


ARRANGEMENTS = [
    *((dtype, a, b) for dtype in ("float16", "bfloat16") for a in ("k", "mn") for b in ("k", "mn")),
    ("float32", "k", "k"),
    ("float32", "registers", "k"),
    ("int8", "k", "k"),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "a_innermost", "b_innermost"), ARRANGEMENTS)
def test_wgmma_multiplies_a_tile(run, dtype, a_innermost, b_innermost):
    depth = ROW_BYTES // BITS[dtype]().itemsize
    rng = np.random.default_rng(1)
    a, b = rng.integers(-8, 9, (TILE, depth)), rng.integers(-8, 9, (depth, TILE))
    a_map = TensorMap("a", _element(dtype), (depth, TILE, 1), (ROW_BYTES, 8192), (depth, TILE, 1))
    out = run(
        "wgmma",
        a_innermost,
        b_innermost,
        a=stored(a, dtype, transposed=a_innermost == "mn"),
        b=stored(b, dtype, transposed=b_innermost == "k"),
        dtype=dtype,
        maps=(a_map, replace(a_map, operand="b")),
    )
    sums = out.view(np.int32) if dtype == "int8" else out
    np.testing.assert_array_equal(sums.reshape(TILE, TILE), a @ b)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_pairs_are_rounded_to_the_nearest_and_keep_their_order(run, kind):
    a = np.random.default_rng(2).standard_normal(256).astype(np.float32)
    a[:4] = np.inf, -np.inf, 0.0, 1e-7  # the last is subnormal in float16
    out = run("pairs", kind, a=a, out_items=256)
    if kind == "f16":
        expected = a.astype(np.float16).astype(np.float32)
    else:
        bits = a.view(np.uint32)
        expected = (
            (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).astype(np.uint32).view(np.float32)
        )
    np.testing.assert_array_equal(out, expected)


@pytest.mark.gpu
@pytest.mark.parametrize(("divisor", "offset"), [(1, 0), (7, 3), (132, 2**30)])
def test_division_in_32_bits(run, divisor, offset):
    out = run("divide", out_items=128, m=divisor, n=offset)
    expected = (np.arange(128) ** 2 + offset) // divisor
    np.testing.assert_array_equal(out, expected.astype(np.float32))


def _element(dtype):
    return "tfloat32" if dtype == "float32" else dtype


def half(m=128, n=128, k=128, **changes):
    return replace(contiguous_problem("float16", m, n, k), **changes)


def tf32(m=128, n=128, k=128, **changes):
    return replace(contiguous_problem("float32", m, n, k), precision="tf32", **changes)


COL_MAJOR = Strides(0, 1, 128)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (half(), None),
        (half(k=0), None),
        (half(a=Strides(0, 136, 1), b=COL_MAJOR), None),
        (half(a=COL_MAJOR, b=COL_MAJOR), None),
        (half(a_alignment=8), "begins at no multiple of 16 bytes"),
        (half(b=Strides(0, 132, 1)), "multiples of 16 bytes"),
        (half(a=Strides(0, -128, 1)), "non-negative"),
        (half(a=Strides(0, 256, 2)), "without gaps"),
        (half(m=2**31), "32-bit"),
        (tf32(), None),
        (tf32(b=COL_MAJOR), None),
        (tf32(a=COL_MAJOR, b=COL_MAJOR), None),
        (tf32(a=COL_MAJOR), "contiguous along k"),
        (contiguous_problem("float32", 128, 128, 128), "precision='tf32'"),
        (contiguous_problem("int8", 128, 128, 128), "b contiguous along k"),
        (replace(contiguous_problem("int8", 128, 128, 128), b=COL_MAJOR), None),
    ],
)
def test_what_wgmma_refuses(problem, reason):
    refusal = wgmma.KERNEL.supports(problem)
    assert refusal is None if reason is None else reason in refusal


@pytest.mark.parametrize("k", [1, 64])
@pytest.mark.parametrize("m", [1, 100])
def test_a_stride_that_is_never_taken_does_not_matter(m, k):
    operand = operand_of(half(m=m, k=k, a=Strides(0, 64 if m > 1 else 0, int(k > 1))), "a")
    assert operand.refusal() is None
    encoded = operand.tensor_map("float16", 128, 64)
    assert encoded.sizes == (k, m, 1)
    assert all(stride % 16 == 0 and stride > 0 for stride in encoded.stride_bytes)


def test_a_broadcast_matrix_is_a_batch_of_one():
    problem = half(batch=5, a=Strides(0, 128, 1), b=Strides(16384, 128, 1))
    a_map, b_map = wgmma.KERNEL.tensor_maps(wgmma.KERNEL.configs[0], problem)
    assert a_map.sizes[-1] == 1
    assert b_map.sizes[-1] == 5
    assert b_map.stride_bytes == (256, 32768)


COMPILE_EARLY = """
import re
from dxgemm.choice.registry import find_implementation
from dxgemm.compiler import compile_kernel
from dxgemm.lower.product import lower_product
from dxgemm.gpu.facts import SIMULATED_DEVICE
from dxgemm.problem.define import contiguous_problem
for name, config, sizes in (("wgmma", -1, (64, 64, 65)), ("skinny_wgmma", 0, (8, 64, 64))):
    file, problem = find_implementation(name), contiguous_problem("float16", *sizes)
    specs = lower_product(file, problem, file.configs("float16")[config], SIMULATED_DEVICE).specs
    for spec in dict.fromkeys(specs):
        kernel = compile_kernel(spec, "sm_90a")
        (waits,) = (found.start() for found in re.finditer("griddepcontrol.wait", kernel.ptx))
        memory = re.search("(ld|st|red|atom)[.]global|cp[.]async[.]bulk", kernel.ptx).start()
        print(spec.implementation, kernel.record.begins_early, waits < memory)
"""


def test_kernels_that_begin_early_wait_before_they_read_or_write(run_python):
    lines = run_python(COMPILE_EARLY).splitlines()
    assert [line.split()[1:] for line in lines] == [["True", "True"]] * 3, lines
