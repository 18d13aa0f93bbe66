"""Tensor cores by `mma.sync` for float32 operands, multiplied as TF32.

Idea: grown from `tensor_core`. TF32 keeps the 8 bits of exponent of float32 and 10 bits after the
point; products are summed in float32. The operands stay as they are in memory: each fragment is
rounded in registers, on its way to the tensor cores, for two instructions per element. A pair of
elements now takes 8 bytes, which changes how shared memory is permuted and nothing else.
Layout: as `tensor_core`.
Constraints: float32 with precision="tf32", compute capability 8.0; see `Config`.
Source: as `tensor_core`; PTX ISA, "cvt.rna.tf32.f32".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dxgemm.handwritten.kernels import tensor_core
from dxgemm.handwritten.kernels.tensor_core import Config


def supports(problem: Any) -> str | None:
    """None where float32 operands may be rounded to TF32."""
    if problem.precision == "tf32":
        return None
    return "it rounds float32 to TF32: pass precision='tf32' to permit it"


KERNEL = replace(
    tensor_core.KERNEL,
    configs=(
        Config(128, 256, 32, warp_left=64, warp_right=64, stages=3),
        Config(128, 128, 32, warp_left=64, warp_right=64, stages=3),
        Config(128, 128, 32, warp_left=64, warp_right=64, stages=2),
        Config(128, 64, 32, warp_left=64, warp_right=32, stages=3),
        Config(64, 64, 32, warp_left=32, warp_right=32, stages=3),
        Config(64, 64, 32, warp_left=32, warp_right=32, stages=4, split_k=2),
    ),
    dtypes=("float32",),
    supports=supports,
    slices_k=False,
)
