"""Products by other libraries: torch, and nvmath by cuBLASLt or by cuBLASDx.

None has dxgemm's other arrangements and results without copies or conversions, so that torch and
cuBLASLt are compared on rows of one dtype. nvmath.device takes some two minutes to build a kernel
for each shape, so that it is compared on a few.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dxgemm import errors

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))

Call = Callable[[], Any]


def torch_call(operands: Sequence[Any]) -> Call:
    """torch.mm, or torch.bmm of a batch, into out."""
    try:
        import torch
    except ImportError as error:
        raise errors.MissingPackageError(f"torch is not installed ({error})") from None
    first, second, target = map(torch.from_dlpack, operands)
    multiply = torch.bmm if first.ndim == 3 else torch.mm

    def call() -> Any:
        multiply(first, second, out=target)
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


def nvmath_device_call(operands: Sequence[Any]) -> Call:
    """The pipeline of `nvmath.device.Matmul` as its tutorial writes it, into out."""
    try:
        from nvmath_pipeline import nvmath_pipeline

        launch = nvmath_pipeline(*operands)
    except Exception as error:  # of whatever type: what it lacks shows when it is used
        raise errors.MissingPackageError(f"nvmath.device does not work here: {error}") from error

    def call() -> Any:
        launch()
        return operands[2]

    return call


RIVALS = {"torch": torch_call, "nvmath": nvmath_call, "nvmath.device": nvmath_device_call}
