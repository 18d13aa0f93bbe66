"""Products by other libraries: torch, and nvmath by cuBLASLt or by cuBLASDx.

None has dxgemm's other arrangements and results without copies or conversions, so that torch and
cuBLASLt are compared on rows of one dtype. nvmath.device takes some two minutes to build a kernel
for each shape, so that it is compared on a few.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from cases import Call, Case, Operands

from dxgemm import errors

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))


def torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise errors.MissingPackageError(f"torch is not installed ({error})") from None
    return torch


def as_tensor(array: Any) -> Any:
    """View an array as a torch tensor of the same memory."""
    return array if isinstance(array, torch().Tensor) else torch().from_dlpack(array)


def torch_call(case: Case, x: Operands) -> Call:
    """torch.mm, or torch.bmm of a batch, into out."""
    first, second, target = map(as_tensor, (x.a, x.b, x.out))
    multiply = torch().bmm if first.ndim == 3 else torch().mm

    def call() -> Any:
        multiply(first, second, out=target)
        return x.out

    return call


def nvmath_call(case: Case, x: Operands) -> Call:
    """`nvmath.linalg.advanced.Matmul`, planned; it allocates its result."""
    try:
        from nvmath.linalg.advanced import Matmul

        product = Matmul(x.a, x.b)
        product.plan()
        product.execute()
    except Exception as error:  # of whatever type: what it lacks shows when it is used
        raise errors.MissingPackageError(f"nvmath-python does not work here: {error}") from error
    execute: Call = product.execute
    return execute


def nvmath_device_call(case: Case | None, x: Operands) -> Call:
    """The pipeline of `nvmath.device.Matmul` as its tutorial writes it, into out."""
    try:
        from nvmath_pipeline import nvmath_pipeline

        launch = nvmath_pipeline(x.a, x.b, x.out)
    except Exception as error:  # of whatever type: what it lacks shows when it is used
        raise errors.MissingPackageError(f"nvmath.device does not work here: {error}") from error

    def call() -> Any:
        launch()
        return x.out

    return call


RIVALS = {"torch": torch_call, "nvmath": nvmath_call, "nvmath.device": nvmath_device_call}
