"""Every implementation by name."""

from __future__ import annotations

from typing import Any

from dxgemm.choice.implementation import (
    MMA_SYNC,
    WGMMA,
    ComplexProduct,
    Cublas,
    EmulatedProduct,
    Handwritten,
    Implementation,
    Pipelined,
    Role,
    Rung,
    TmaPipelined,
)
from dxgemm.errors import UnknownImplementationError, shown
from dxgemm.handwritten.parts.operands import FLOAT8
from dxgemm.problem.dtypes import EMULATED, FAST

IMPLEMENTATIONS: tuple[Implementation, ...] = (
    Rung("naive", "one thread an element, down the columns", rung=1),
    Rung("coalesced", "one thread an element, along the rows", rung=2),
    Rung("shared_tile", "shared-memory tile a block", role=Role.RUNG, rung=3),
    Rung("thread_tile_1d", "column of elements per thread", role=Role.RUNG, rung=4),
    Rung("thread_tile_2d", "tile of elements per thread, in registers", role=Role.RUNG, rung=5),
    Rung("vectorized", "128-bit accesses", role=Role.RUNG, rung=6),
    Rung("conflict_free", "padded or swizzled shared memory", role=Role.RUNG, rung=7),
    Rung("warp_tile", "tile of elements per warp", role=Role.RUNG, rung=8),
    Rung(
        "double_buffer",
        "next tile fetched meanwhile",
        role=Role.RUNG,
        candidate_before=80,
        rung=9,
    ),
    Rung("async_copy", "cp.async in several stages", role=Role.RUNG, rung=10),
    Rung("ping_pong", "fragments read one k ahead", role=Role.RUNG, rung=11),
    Handwritten("tuned", "16 x 8 elements per thread, clusters that split k", rung=12),
    Handwritten("tensor_core", "float64 on tensor cores, mma.sync", tensor=MMA_SYNC, rung=13),
    Handwritten(
        "tensor_core_tf32",
        "float32 as TF32 on tensor cores, mma.sync",
        tensor=MMA_SYNC,
        rung=13,
        needs={"float32": "tf32"},
    ),
    Handwritten(
        "wgmma",
        "TMA and warpgroup multiplication of Hopper",
        tensor=WGMMA,
        rung=14,
        needs={"float32": "tf32"} | dict.fromkeys(FLOAT8, FAST),
    ),
    Handwritten(
        "wgmma_float8",
        "float8 by wgmma, with sums promoted to float32 and scales of blocks",
        tensor=WGMMA,
        stand_in="wgmma",
    ),
    Handwritten(
        "skinny_wgmma",
        "few rows or columns on tensor cores, the large operand read once, by TMA",
        tensor=WGMMA,
    ),
    Handwritten("skinny_shifted", "the same for rows at any address", tensor=WGMMA),
    Handwritten("skinny_fma", "few rows or columns in float32, by TMA"),
    Handwritten("gemv", "one row or column, or a few, element by element, in place"),
    Handwritten("small_batch", "several small matrices a block, each read at once"),
    Handwritten(
        "tensor_batch",
        "small float64 matrices on tensor cores, each read at once",
        tensor=MMA_SYNC,
    ),
    ComplexProduct("complex_batch", "small complex matrices, each read whole, in place"),
    ComplexProduct("complex_tile", "complex elements in place, cp.async in several stages"),
    ComplexProduct(
        "complex_tensor_core",
        "complex128 on tensor cores, in place, mma.sync",
        tensor=MMA_SYNC,
    ),
    EmulatedProduct(
        "emulated_float32",
        "float32 as sums of float16 parts on Hopper's tensor cores",
        tensor=WGMMA,
        needs={"float32": EMULATED},
    ),
    EmulatedProduct(
        "emulated_float32_tile",
        "float32 as sums of float16 parts on tensor cores, mma.sync",
        tensor=MMA_SYNC,
        needs={"float32": EMULATED},
    ),
    EmulatedProduct(
        "emulated_float64",
        "float64 as integers by their residues on Hopper's tensor cores",
        tensor=WGMMA,
        needs={"float64": EMULATED},
    ),
    EmulatedProduct(
        "emulated_float64_tile",
        "float64 as integers by their residues on tensor cores, mma.sync",
        tensor=MMA_SYNC,
        needs={"float64": EMULATED},
    ),
    Handwritten(
        "tensor_tile",
        "half precision and int8 on tensor cores, mma.sync",
        tensor=MMA_SYNC,
    ),
    Handwritten(
        "tensor_tile_float8",
        "float8 on tensor cores, mma.sync, with sums promoted to float32",
        tensor=MMA_SYNC,
    ),
    Handwritten(
        "shifted_tile",
        "half precision and int8 of any layout on tensor cores, mma.sync",
        tensor=MMA_SYNC,
    ),
    Handwritten(
        "half_batch",
        "small matrices in half precision on tensor cores, each read at once",
        tensor=MMA_SYNC,
    ),
    Handwritten("widening_tile", "half precision and int8 of any layout, widened for their sums"),
    Pipelined("pipeline", "cuBLASDx: cp.async", role=Role.LIBRARY, tensor=MMA_SYNC),
    TmaPipelined(
        "pipeline_tma",
        "cuBLASDx: TMA and wgmma of Hopper",
        role=Role.LIBRARY,
        tensor=WGMMA,
    ),
    Cublas("cublas", "NVIDIA cuBLAS through CuPy, the baseline", role=Role.BASELINE),
)

_by_name = {implementation.name: implementation for implementation in IMPLEMENTATIONS}


def find_implementation(name: Any) -> Implementation:
    """Find the implementation with a name.

    Raises:
        UnknownImplementationError: there is none.
    """
    found = _by_name.get(name) if isinstance(name, str) else None
    if found is None:
        raise UnknownImplementationError(
            f"gemm: implementation {shown(name)} is unknown; there are {', '.join(_by_name)}."
        )
    return found
