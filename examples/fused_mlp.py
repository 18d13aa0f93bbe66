"""Two products in one kernel of your own: gelu(x @ w1) @ w2, whose middle stays in shared memory.

    python examples/fused_mlp.py --rows 16384 --widths 128 256 --instruction wgmma

A block takes rows of x, computes their rows of gelu(x @ w1) in tiles, keeps these in shared memory
and multiplies them by w2. Two calls of `gemm` write and read the middle instead. Both are checked
against NumPy and timed. On numba's simulator, which has no half precision, a small float32 example
runs.
"""

from __future__ import annotations

import argparse
from functools import cache
from typing import Any

import numpy as np
from timing import CLOCK, IS_SIMULATED, IS_TIMED, call_us, print_table, send, time_text

# numba comes after timing, which enables its simulator where there is no GPU
# isort: split
from numba import cuda, float32

import dxgemm
from dxgemm.epilogues import fast_gelu_tanh, fast_tanh

DTYPE = "float32" if IS_SIMULATED else "bfloat16"
TILE = (8, 32) if IS_SIMULATED else (64, 128)
ROWS, WIDTHS = (8, [33]) if IS_SIMULATED else (16384, [128, 256])
TOLERANCE = {"float32": 1e-4, "bfloat16": 1e-2}  # of the result's norm


@cuda.jit(device=True)
def gelu(x):
    """The approximation of `dxgemm.epilogues.fast_gelu_tanh`, in float32."""
    half = float32(0.5) * x
    argument = x * (float32(0.7978845608) + float32(0.0356774081) * x * x)
    return half + half * fast_tanh(argument)


@cache
def make_mlp(dtype: str, m: int, n: int, width: int, **options: Any) -> tuple[Any, Any]:
    """Make a tile, and the kernel: out = gelu(x @ w1) @ w2 for a w1 of up to `width` columns."""
    tile = dxgemm.device.tile(dtype, m, n, kept=width, **options)

    @cuda.jit
    def mlp(x, w1, w2, out):
        row = cuda.blockIdx.x * tile.m
        acc = tile.accumulator()
        for col in range(0, w1.shape[1], tile.n):
            tile.product(acc, x, w1, row, col)
            if col + tile.n >= w1.shape[1]:
                tile.fetch_for_kept(w2, 0)
            tile.apply(acc, gelu)
            tile.keep(acc, col, w1.shape[1])
        for col in range(0, w2.shape[1], tile.n):
            tile.multiply_kept(acc, w2, col)
            if col + tile.n < w2.shape[1]:
                tile.fetch_for_kept(w2, col + tile.n)
            tile.store(acc, out, row, col)

    return tile, mlp


def plan_mlp(x: Any, w1: Any, w2: Any, out: Any, instruction: str | None = None) -> Any:
    """A call of the kernel."""
    tile, mlp = make_mlp(DTYPE, *TILE, w1.shape[1], instruction=instruction)
    return tile.plan(mlp, -(-x.shape[0] // tile.m), x, w1, w2, out)


def plan_two_calls(x: Any, w1: Any, w2: Any, hidden: Any, out: Any) -> Any:
    """The same by two calls of `gemm`."""
    first = dxgemm.plan(x, w1, out=hidden, epilogue=fast_gelu_tanh)
    second = dxgemm.plan(hidden, w2, out=out)

    def call() -> None:
        first()
        second()

    return call


def on_host(array: Any) -> np.ndarray:
    """A result as NumPy's float64."""
    if type(array).__module__ == "torch":
        return np.asarray(array.double().cpu())
    return np.asarray(array.get() if hasattr(array, "get") else array, np.float64)


def measure(rows: int, width: int, instruction: str | None) -> tuple[str, ...]:
    """A row of the table.

    Raises:
        ArithmeticError: a result differs from NumPy's.
    """
    rng = np.random.default_rng(0)
    sizes = (rows, width), (width, width), (width, width)
    x, w1, w2 = (send_as_dtype(rng.standard_normal(size) / 8) for size in sizes)
    hidden, one, two = (send_as_dtype(np.zeros((rows, width))) for _ in range(3))
    calls = plan_mlp(x, w1, w2, one, instruction), plan_two_calls(x, w1, w2, hidden, two)
    middle = on_host(x) @ on_host(w1)
    expected = gelu_on_arrays(middle, np) @ on_host(w2)
    times = []
    for call, out in zip(calls, (one, two), strict=True):
        call()
        error = np.linalg.norm(on_host(out) - expected) / np.linalg.norm(expected)
        if not error <= TOLERANCE[DTYPE]:
            raise ArithmeticError(f"the result of {rows} x {width} differs from NumPy's: {error}")
        times.append(call_us(call))
    ratio = f"{times[1] / times[0]:.2f}" if IS_TIMED else ""
    return f"{rows}", f"{width}", *map(time_text, times), ratio


def send_as_dtype(array: np.ndarray) -> Any:
    """Copy an array to the GPU in `DTYPE`; bfloat16, which NumPy and CuPy lack, is torch's."""
    sent = send(array.astype("float32"))
    if DTYPE == "float32":
        return sent
    import torch

    return torch.from_dlpack(sent).to(torch.bfloat16)


def gelu_on_arrays(x: Any, module: Any) -> Any:
    """`gelu` of an array of NumPy or CuPy."""
    return 0.5 * x * (1 + module.tanh(0.7978845608 * x * (1 + 0.044715 * x * x)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=ROWS, help="of x")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS, help="of all layers")
    parser.add_argument("--instruction", help="wgmma on Hopper")
    options = parser.parse_args()
    rows = [measure(options.rows, width, options.instruction) for width in options.widths]
    print_table((">rows", ">width", ">one kernel", ">two calls", ">ratio"), rows)
    print(f"{DTYPE}. {CLOCK}")
    print("Every result agrees with NumPy's.")


if __name__ == "__main__":
    main()
