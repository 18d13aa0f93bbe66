"""Products by other libraries: torch, and cuBLASLt through nvmath.

Neither has dxgemm's other arrangements and results without copies or conversions, so that they are
compared on rows of one dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dxgemm import errors

Call = Callable[[], Any]


def torch_call(operands: Sequence[Any]) -> Call:
    """torch.mm, into out."""
    try:
        import torch
    except ImportError as error:
        raise errors.MissingPackageError(f"torch is not installed ({error})") from None
    first, second, target = map(torch.from_dlpack, operands)

    def call() -> Any:
        torch.mm(first, second, out=target)
        return operands[2]

    return call


def nvmath_call(operands: Sequence[Any]) -> Call:
    """`nvmath.linalg.advanced.Matmul`, planned; it allocates its result."""
    try:
        from nvmath.linalg.advanced import Matmul
    except ImportError as error:
        raise errors.MissingPackageError(f"nvmath-python is not installed ({error})") from None
    a, b, _ = operands
    try:
        product = Matmul(a, b)
        product.plan()
        product.execute()
    except Exception as error:  # of whatever type: what it lacks shows when it is used
        raise errors.MissingPackageError(f"nvmath-python does not work here: {error}") from error
    execute: Call = product.execute
    return execute


RIVALS = {"torch": torch_call, "nvmath": nvmath_call}
