"""`tuned`, in float64 `tensor_core`, but only if a number in device memory is not 0.

Idea: the device alone knows whether the launch is needed. The host queues it anyway; if it is not
needed, its blocks leave at once.
Layout: as `tuned` or `tensor_core`; the last operand in `extra` is a buffer with the number.
Constraints: as `tuned` or `tensor_core`.
Source: as `tuned` or `tensor_core`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.kernel import Kernel


def make_kernel(config: Any, dtype: str, *variant: str, epilogue: Any) -> Callable[..., None]:
    """The kernel of one config; see `tuned` and `tensor_core` for its parameters.

    Args:
        epilogue: a `Fusion`, whose operands end with the buffer.
    """
    from numba import cuda

    from dxgemm.handwritten.kernels.tensor_core import make_kernel as make_tensor_core_kernel
    from dxgemm.handwritten.kernels.tuned import make_kernel as make_tuned_kernel
    from dxgemm.handwritten.parts.unroll import gemm_kernel

    make_other: Any = make_tensor_core_kernel if dtype == "float64" else make_tuned_kernel
    compute = cuda.jit(device=True, forceinline=True)(
        make_other(config, dtype, *variant, epilogue=epilogue)
    )
    last = len(epilogue.operands) - 1

    @gemm_kernel
    def native_fallback_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        if extra[last][0][0] != 0:
            compute(
                a.data, b.data, c.data, out.data, alpha, beta, m, n, k, batch,
                a.batch, a.row, a.col, b.batch, b.row, b.col,
                c.batch, c.row, c.col, out.batch, out.row,
                out.col, extra,
            )  # fmt: skip

    return native_fallback_kernel


# Its configs are those of the other kernel.
KERNEL = Kernel(make_kernel=make_kernel, configs=())
