"""dxgemm inside `jax.jit`: `gemm`, with gradients and batching.

    import dxgemm.jax
    y = jax.jit(dxgemm.jax.gemm)(x, weight)

XLA calls dxgemm through its foreign function interface, on its own stream. Operands are read and
the result is written where XLA has placed them.
"""

from __future__ import annotations

from dxgemm import errors

try:
    import jax  # noqa: F401
except ImportError as error:
    raise errors.MissingPackageError(
        f"dxgemm.jax needs jax ({error}); pip install 'dxgemm[jax]'."
    ) from error

from dxgemm.jax.functions import gemm

__all__ = ["gemm"]


def __dir__() -> list[str]:
    return __all__
