"""GEMM on NVIDIA GPUs, in Python: C = alpha * A @ B + beta * C, with kernels you can read.

    import cupy, dxgemm
    c = dxgemm.gemm(a, b)                        # allocates C in a's library
    dxgemm.gemm(a, b, c, alpha=2.0, beta=1.0)    # updates c in place

Importing touches no GPU and imports neither numba nor any array library. The modules behind a name
are imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dxgemm import errors
from dxgemm.version import __version__ as __version__

if TYPE_CHECKING:
    from dxgemm import device, epilogues, inners, reductions
    from dxgemm.api import (
        Plan,
        explain,
        explain_shape,
        explain_symmetric,
        gemm,
        gemm_symmetric,
        matmul,
        plan,
    )
    from dxgemm.builds import build, cache_info, clear_cache, implementations
    from dxgemm.call.contraction_plan import Contraction
    from dxgemm.call.explanation import Explanation
    from dxgemm.call.group import GroupedPlan
    from dxgemm.call.prepared_operand import PreparedOperand, prepare
    from dxgemm.contractions import einsum, explain_einsum, tensordot
    from dxgemm.drop_in import patch
    from dxgemm.epilogues import epilogue, inner
    from dxgemm.errors import DxgemmError
    from dxgemm.gpu.simulation import simulate
    from dxgemm.groups import gemm_grouped, plan_grouped
    from dxgemm.runtime.counter import emulation_fallbacks

__all__ = [
    "Contraction",
    "DxgemmError",
    "Explanation",
    "GroupedPlan",
    "Plan",
    "PreparedOperand",
    "build",
    "cache_info",
    "clear_cache",
    "device",
    "einsum",
    "emulation_fallbacks",
    "epilogue",
    "epilogues",
    "errors",
    "explain",
    "explain_einsum",
    "explain_shape",
    "explain_symmetric",
    "gemm",
    "gemm_grouped",
    "gemm_symmetric",
    "implementations",
    "inner",
    "inners",
    "matmul",
    "patch",
    "plan",
    "plan_grouped",
    "prepare",
    "reductions",
    "simulate",
    "tensordot",
]

_SUBMODULES = ("device", "epilogues", "inners", "reductions")
_HOMES = {  # of the names that are not in `dxgemm.api`
    "Contraction": "call.contraction_plan",
    "DxgemmError": "errors",
    "Explanation": "call.explanation",
    "GroupedPlan": "call.group",
    "PreparedOperand": "call.prepared_operand",
    "build": "builds",
    "cache_info": "builds",
    "clear_cache": "builds",
    "einsum": "contractions",
    "emulation_fallbacks": "runtime.counter",
    "epilogue": "epilogues",
    "explain_einsum": "contractions",
    "gemm_grouped": "groups",
    "implementations": "builds",
    "inner": "epilogues",
    "patch": "drop_in",
    "plan_grouped": "groups",
    "prepare": "call.prepared_operand",
    "simulate": "gpu.simulation",
    "tensordot": "contractions",
    "transpose": "call.einsum",  # for opt_einsum, whose backends are modules with this name
}


def __getattr__(name: str) -> Any:
    """Import the home of a public name, and keep the name for the next use."""
    if name not in __all__ and name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    try:
        module = import_module(f"{__name__}.{_HOMES.get(name, 'api')}")
        value = getattr(module, name)
        is_whole = not getattr(module.__spec__, "_initializing", False)
    except (ImportError, AttributeError) as error:
        if "partially initialized" not in str(error):
            raise
        is_whole = False
    if not is_whole:
        raise errors.LaunchError(
            f"{name}: a signal handler or finalizer uses it first, and interrupts an import of its "
            "own thread; use it once before."
        )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
