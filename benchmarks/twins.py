"""Rates of public CUDA C++ kernels, one for each rung of the ladder.

SGEMM kernels of public tutorials, one technique each, compiled with nvcc for sm_90a and run on an
NVIDIA H200 at m = n = k = 4096 in float32. Where two tutorials have a kernel of the same technique,
this is the faster one.
Source: S. Boehm, "How to optimize a CUDA matmul kernel for cuBLAS-like performance" (2022), and the
repositories that follow it.
"""

from __future__ import annotations

GPU = "NVIDIA H200"
SHAPE = (4096, 4096, 4096)
# TFLOP/s by implementation, dtype and precision; the tile of a block, and that of a thread or warp.
TWINS = {
    ("naive", "float32", None): 0.5,  # 32x32
    ("coalesced", "float32", None): 6.2,  # 32x32
    ("shared_tile", "float32", None): 9.1,  # 32x32x32
    ("thread_tile_1d", "float32", None): 19.7,  # 64x64x8, 8 a thread
    ("thread_tile_2d", "float32", None): 26.0,  # 128x128x8, 8x8 a thread
    ("vectorized", "float32", None): 36.0,  # 128x128x8, 8x8 a thread
    ("conflict_free", "float32", None): 38.9,  # 128x128x8, 8x8 a thread
    ("warp_tile", "float32", None): 36.4,  # 128x128x16, 64x64 a warp
    ("double_buffer", "float32", None): 47.8,  # 128x128x8, 8x8 a thread
    ("async_copy", "float32", None): 46.6,  # 128x128x16, 8x8 a thread
    ("ping_pong", "float32", None): 45.8,  # 128x128x8, 8x8 a thread
    ("tuned", "float32", None): 51.4,  # 128x256x8, 16x8 a thread
    ("tensor_core_tf32", "float32", "tf32"): 80.0,  # 128x128x8, WMMA
}


def twin_tflops(
    implementation: str, dtype: str, precision: str | None, shape: tuple[int, ...], gpu: str
) -> float | None:
    """The rate of the twin of one measurement; None where it was not measured for that."""
    if shape != SHAPE or gpu != GPU:
        return None
    return TWINS.get((implementation, dtype, precision))
