"""Products of matrices that are sharded over the GPUs of a torch process group.

    from dxgemm.distributed import all_gather_gemm, gemm_reduce_scatter

    hidden = all_gather_gemm(x_shard, w1)         # rows of x from all ranks, columns of w1
    y_shard = gemm_reduce_scatter(hidden, w2)     # rows of the sum over all ranks

`explain` predicts times, without torch and for any number of ranks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dxgemm import errors
from dxgemm.distributed.model import NETWORK, NVLINK, Choice, Link, explain

if TYPE_CHECKING:
    from dxgemm.distributed.functions import (
        all_gather_gemm,
        gemm_all_reduce,
        gemm_reduce_scatter,
    )
    from dxgemm.distributed.tensors import gemm

__all__ = [
    "NETWORK",
    "NVLINK",
    "Choice",
    "Link",
    "all_gather_gemm",
    "explain",
    "gemm",
    "gemm_all_reduce",
    "gemm_reduce_scatter",
]


def __getattr__(name: str) -> Any:
    """Import torch only for what needs it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import_module("torch.distributed")
    except ImportError as error:
        raise errors.MissingPackageError(
            f"dxgemm.distributed.{name} needs torch ({error}); pip install 'dxgemm[torch]'."
        ) from error
    home = "tensors" if name == "gemm" else "functions"
    found = globals()[name] = getattr(import_module(f"dxgemm.distributed.{home}"), name)
    return found


def __dir__() -> list[str]:
    return __all__
