"""nvmath.device's product beside dxgemm's: in a kernel of your own, and the same cuBLASDx in gemm.

    python examples/nvmath_pipeline.py --sizes 1024 2048

multiplies square matrices by a kernel as nvmath-python's tutorial writes it, by a kernel with a
tile of `dxgemm.device`, and by dxgemm's `pipeline`. It checks all against NumPy, and says how many
lines the kernels have, how long each took to build, and how long it takes to run. nvmath.device
compiles shape and strides into each kernel and keeps nothing on disk: every size is another build,
of minutes. dxgemm builds once, here into an empty cache, for all sizes.

The tutorial's kernel assumes that tiles divide the matrices. It scales and adds c, even with
beta = 0; the one below stores its sums alone, which is quicker.

Needs the extra `cu13` and a GPU of compute capability 9.0; without a GPU it says so. nvmath.device
wants no package beyond those.

nvmath-python's documentation, "cuBLASDx", and its sample of the pipeline API.
"""

from __future__ import annotations

import argparse
import inspect
import os
import tempfile
import time
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from timing import CLOCK, IS_TIMED, call_us, print_table

import dxgemm

SIZES = (2048,)
LARGEST_FACTOR = 3  # of integers whose sums float32 holds exactly up to k = 2**20
# By dtype of a and b: that of the result, dxgemm's implementation, and nvmath's block as
# tile_m, tile_n, tile_k, threads and stages.
KINDS = {
    "float64": ("float64", "pipeline", (128, 64, 16, 128, 4)),
    "float16": ("float32", "pipeline_tma", (128, 256, 64, 256, 4)),
}
# Tiles of dxgemm.device, by dtype.
TILES = {"float64": (64, 128, None), "float16": (128, 256, "wgmma")}


def nvmath_pipeline(a: Any, b: Any, out: Any) -> Callable[[], None]:
    """A call that computes out = a @ b with nvmath.device, on the default stream.

    Args:
        a: (m, k), float64 or float16, row-major, on the GPU; the call reads this array.
        b: (k, n), in the dtype of a, likewise.
        out: (m, n), float64, or float32 for float16; the call writes to this array.

    Raises:
        ValueError: tiles do not divide the matrices.
        ImportError: nvmath-python is not installed.
        RuntimeError: NVRTC is older than CUDA 13.
    """
    from numba import cuda

    (m, k), n, dtype = a.shape, b.shape[1], str(a.dtype)
    tile_m, tile_n, tile_k, threads, stages = KINDS[dtype][2]
    if m % tile_m or n % tile_n or k % tile_k or k < stages * tile_k:
        raise ValueError(f"{m=}, {n=}, {k=} must be multiples of the tile's {KINDS[dtype][2][:3]}")
    product, kernel = make_kernel(dtype, n)
    # Holds the addresses of a and b, made by a kernel that is built, launched and waited for here.
    device_pipeline = product.suggest_device_pipeline(stages, a, b)
    arguments = cuda.as_cuda_array(out, sync=False), device_pipeline
    allow_shared_memory(kernel, arguments, device_pipeline.buffer_size)
    grid = m // tile_m, n // tile_n
    launch = kernel[grid, threads, 0, device_pipeline.buffer_size]
    return lambda: launch(*arguments)


@cache
def make_kernel(dtype: str, n: int) -> tuple[Any, Any]:
    """Make nvmath's description of the product of a block, and a numba kernel around it."""
    from numba import cuda
    from nvmath.device import Matmul, make_tensor
    from nvmath.device.cublasdx import MAX_ALIGNMENT
    from nvmath.device.cublasdx_numba import pipeline_extensions

    result_dtype, _, (tile_m, tile_n, tile_k, threads, _) = KINDS[dtype]
    scalar, accumulator = np.dtype(dtype).type, np.dtype(result_dtype).type
    product = Matmul(
        size=(tile_m, tile_n, tile_k),
        precision=(scalar, scalar, accumulator),
        data_type="real",
        arrangement=("row_major", "row_major", "row_major"),
        alignment=MAX_ALIGNMENT,
        block_size=threads,
        static_block_dim=True,
        with_pipeline=True,
        enable_input_streaming=True,
    )

    @cuda.jit(extensions=pipeline_extensions, launch_bounds=(threads, 1))
    def kernel(out, device_pipeline):
        smem = cuda.shared.array(0, np.byte, alignment=device_pipeline.buffer_alignment)

        # This block's tile of the result.
        row, col = cuda.blockIdx.x, cuda.blockIdx.y
        first_row, first_col = row * tile_m, col * tile_n
        tile = out[first_row : first_row + tile_m, first_col : first_col + tile_n]
        out_gmem = make_tensor(tile, product.get_layout_gmem_c(n))

        # Prologue and main loop: cuBLASDx's.
        pipeline = device_pipeline.get_tile(smem, row, col)
        acc = product.suggest_accumulator()
        pipeline.execute(acc)

        # Epilogue.
        if acc.is_thread_active():
            acc.partition_and_copy(acc.get_results(), out_gmem)
        pipeline._del()  # by hand: without it the barriers in shared memory stay

    return product, kernel


def tile_product(a: Any, b: Any, out: Any) -> Callable[[], None]:
    """A call that computes out = a @ b with a tile of `dxgemm.device`, of any shapes and strides.

    Args:
        a, b, out: as `nvmath_pipeline` takes them.
    """
    tile, kernel = make_tile_kernel(str(a.dtype), str(out.dtype))
    return tile.plan(kernel, tile.blocks(*out.shape), a, b, out)


@cache
def make_tile_kernel(dtype: str, result_dtype: str) -> tuple[Any, Any]:
    """Make a tile, and a numba kernel around it."""
    from numba import cuda

    m, n, instruction = TILES[dtype]
    tile = dxgemm.device.tile(dtype, m, n, out=result_dtype, instruction=instruction)

    @cuda.jit
    def kernel(a, b, out):
        row, col = tile.origin(a.shape[0], b.shape[1])
        acc = tile.accumulator()
        tile.product(acc, a, b, row, col)
        tile.store(acc, out, row, col)

    return tile, kernel


def lines_of(*functions: Any) -> str:
    """Lines of code of functions, without blank lines, comments and docstrings."""
    count = 0
    for function in functions:
        text = inspect.getsource(getattr(function, "__wrapped__", function))
        _, quote, rest = text.partition('"""')
        text = text.partition(quote)[0] + rest.partition(quote)[2] if quote else text
        lines = (line.strip() for line in text.splitlines())
        count += sum(bool(line) and not line.startswith("#") for line in lines)
    return str(count)


def allow_shared_memory(kernel: Any, arguments: tuple[Any, ...], smem_bytes: int) -> None:
    """Compile a kernel and let it have more than 48 KiB, which numba does not ask the driver for.

    Raises:
        RuntimeError: a block of this GPU does not have so much.
    """
    from cuda.bindings import driver
    from numba import cuda

    compiled = kernel.compile(tuple(map(kernel.typeof_pyval, arguments)))
    limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    handle, device = compiled.library.get_cufunc().handle, cuda.get_current_device().id
    (error,) = driver.cuKernelSetAttribute(limit, smem_bytes, handle, device)
    if error:
        raise RuntimeError(f"a block cannot have {smem_bytes} bytes of shared memory: {error.name}")


def measure(size: int, dtype: str) -> list[tuple[str, ...]]:
    """Rows of the table: all products of square matrices of one size.

    Raises:
        ArithmeticError: a result differs from NumPy's.
    """
    import cupy

    result_dtype, implementation, _ = KINDS[dtype]
    rng = np.random.default_rng(0)
    factors = rng.integers(-LARGEST_FACTOR, LARGEST_FACTOR + 1, (2, size, size))
    a, b = (cupy.asarray(factor.astype(dtype)) for factor in factors)
    out = cupy.empty((size, size), result_dtype)
    expected = np.matmul(*factors.astype(result_dtype))

    builds: dict[str, Callable[[], Callable[[], Any]]] = {
        "nvmath.device": lambda: nvmath_pipeline(a, b, out),
        "dxgemm.device": lambda: tile_product(a, b, out),
        f"dxgemm {implementation}": lambda: dxgemm.plan(
            a, b, out=out, implementation=implementation
        ),
    }
    lines = {
        "nvmath.device": lines_of(nvmath_pipeline, make_kernel, allow_shared_memory),
        "dxgemm.device": lines_of(tile_product, make_tile_kernel),
    }
    calls = {}
    for name, build in builds.items():
        out.fill(np.nan)
        start = time.perf_counter()
        call = build()
        call()
        first_result = out.get()  # waits for it
        calls[name] = call, time.perf_counter() - start
        if not np.array_equal(first_result, expected):
            raise ArithmeticError(f"{name}: the product of {size} x {size} differs from NumPy's.")

    # The clock rate depends on what is multiplied: small integers would flatter all.
    a[...], b[...] = (cupy.random.standard_normal(a.shape).astype(dtype) for _ in range(2))
    rows = []
    for name, (call, build_s) in calls.items():
        time_us = call_us(call)
        rate = f"{2 * size**3 / time_us / 1e6:.1f}"
        written = lines.get(name, "1")
        rows.append((str(size), name, written, f"{build_s:.2f} s", f"{time_us:.1f} us", rate))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="of m = n = k")
    parser.add_argument("--dtype", choices=tuple(KINDS), default="float64")
    options = parser.parse_args()
    if not IS_TIMED:
        print(f"Nothing was multiplied: it needs a GPU and CuPy. {CLOCK}")
        return
    if find_spec("nvmath") is None:
        parser.error("nvmath-python is not installed; pip install 'dxgemm[cu13]'")

    with tempfile.TemporaryDirectory() as cache_directory:
        os.environ["DXGEMM_CACHE_DIR"] = cache_directory
        rows = [row for size in options.sizes for row in measure(size, options.dtype)]
    headers = "m = n = k", options.dtype, ">lines", ">to first result", ">a call", ">TFLOP/s"
    print_table(headers, rows)
    print(CLOCK)
    print("Every product equals NumPy's.")


if __name__ == "__main__":
    main()
