"""Rates of public CUDA C++ kernels, one for each rung of the ladder.

SGEMM kernels of public tutorials, one technique each, compiled with nvcc for sm_90a and run on an
NVIDIA H200 at m = n = k = 4096 in float32. Where two tutorials have a kernel of the same technique,
this is the faster one.
Source: S. Boehm, "How to optimize a CUDA matmul kernel for cuBLAS-like performance" (2022), and the
repositories that follow it.
"""

from __future__ import annotations

from dataclasses import dataclass

GPU = "NVIDIA H200"
SIZE = 4096


@dataclass(frozen=True)
class Twin:
    """A CUDA C++ kernel.

    Attributes:
        tile: tile of a block, and the part of it that a thread or warp computes.
        tflops: measured rate in TFLOP/s.
    """

    tile: str
    tflops: float


# By implementation, dtype and precision.
TWINS: dict[tuple[str, str, str | None], Twin] = {
    ("naive", "float32", None): Twin("32x32", 0.5),
    ("coalesced", "float32", None): Twin("32x32", 6.2),
    ("shared_tile", "float32", None): Twin("32x32x32", 9.1),
    ("thread_tile_1d", "float32", None): Twin("64x64x8, 8 a thread", 19.7),
    ("thread_tile_2d", "float32", None): Twin("128x128x8, 8x8 a thread", 26.0),
    ("vectorized", "float32", None): Twin("128x128x8, 8x8 a thread", 36.0),
    ("conflict_free", "float32", None): Twin("128x128x8, 8x8 a thread", 38.9),
    ("warp_tile", "float32", None): Twin("128x128x16, 64x64 a warp", 36.4),
    ("double_buffer", "float32", None): Twin("128x128x8, 8x8 a thread", 47.8),
    ("async_copy", "float32", None): Twin("128x128x16, 8x8 a thread", 46.6),
    ("ping_pong", "float32", None): Twin("128x128x8, 8x8 a thread", 45.8),
    ("tuned", "float32", None): Twin("128x256x8, 16x8 a thread", 51.4),
    ("tensor_core_tf32", "float32", "tf32"): Twin("128x128x8, WMMA", 80.0),
}


def find_twin(
    implementation: str, dtype: str, precision: str | None, shape: tuple[int, int, int], gpu: str
) -> Twin | None:
    """The twin of one measurement; None where it was not measured for that."""
    if shape != (SIZE, SIZE, SIZE) or gpu != GPU:
        return None
    return TWINS.get((implementation, dtype, precision))
