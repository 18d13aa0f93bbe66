"""GEMM on NVIDIA GPUs, in Python: C = alpha * A @ B + beta * C, with kernels you can read.

    import cupy, dxgemm
    c = dxgemm.gemm(a, b)                        # allocates C in a's library
    dxgemm.gemm(a, b, c, alpha=2.0, beta=1.0)    # updates c in place

Importing touches no GPU and imports neither numba nor any array library but NumPy.
"""

from dxgemm import epilogues, errors, reductions
from dxgemm.api import (
    GroupedPlan,
    Plan,
    build,
    cache_info,
    clear_cache,
    explain,
    explain_shape,
    explain_symmetric,
    gemm,
    gemm_grouped,
    gemm_symmetric,
    implementations,
    matmul,
    plan,
    plan_grouped,
)
from dxgemm.call.explanation import Explanation
from dxgemm.call.prepared_operand import PreparedOperand, prepare
from dxgemm.epilogues import epilogue
from dxgemm.errors import DxgemmError
from dxgemm.launches.emulated_float32 import emulation_fallbacks
from dxgemm.version import __version__ as __version__

__all__ = [
    "DxgemmError",
    "Explanation",
    "GroupedPlan",
    "Plan",
    "PreparedOperand",
    "build",
    "cache_info",
    "clear_cache",
    "emulation_fallbacks",
    "epilogue",
    "epilogues",
    "errors",
    "explain",
    "explain_shape",
    "explain_symmetric",
    "gemm",
    "gemm_grouped",
    "gemm_symmetric",
    "implementations",
    "matmul",
    "plan",
    "plan_grouped",
    "prepare",
    "reductions",
]
