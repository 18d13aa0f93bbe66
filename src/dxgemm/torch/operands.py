"""Operands of the operators: casts, checks, and shapes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch.autograd.forward_ad import unpack_dual

from dxgemm import errors
from dxgemm.call.factors import real_number
from dxgemm.problem.arguments import check_flag

_P = ParamSpec("_P")
_R = TypeVar("_R")

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
COMPLEX_DTYPES = (torch.complex64, torch.complex128)


def named_in_errors(name: str, **operands: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate a function of `dxgemm.torch` so that its errors name it, and its operands.

    What torch asserts of operands, such as of fake tensors beside real ones, is an error of these.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @errors.named_in_errors(f"dxgemm.torch.{name}", **operands)
        @wraps(function)
        def named(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return function(*args, **kwargs)
            except AssertionError as error:
                raise errors.ArrayTypeError(f"torch refuses the operands: {error}") from error

        return named

    return decorate


def cast_operand(label: str, operand: Any) -> torch.Tensor:
    """Cast a tensor to the dtype of `torch.autocast`, unless it is float64.

    `torch.library.register_autocast` cannot do this: it fixes one dtype at registration.
    """
    check_tensor(label, operand)
    device = operand.device.type
    is_cast = operand.is_floating_point() and operand.dtype != torch.float64
    if is_cast and device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
        return operand.to(torch.get_autocast_dtype(device))
    return operand


def check_tensor(label: str, operand: Any) -> None:
    """Raise unless the operand is a tensor, and one without a tangent."""
    kind = type(operand).__name__
    if not isinstance(operand, torch.Tensor):
        raise errors.ArrayTypeError(f"{label} is a {kind}; pass a tensor.")
    if kind == "DTensor":
        raise errors.ArrayTypeError(
            f"{label} is a DTensor; call dxgemm.distributed.gemm, or pass its to_local()."
        )
    if kind == "MaskedTensor" or operand.is_nested or operand.layout is not torch.strided:
        raise errors.ArrayTypeError(
            f"{label} is a {kind} of layout {operand.layout}, which is masked, nested or not "
            "strided; pass a dense tensor."
        )
    if unpack_dual(operand).tangent is not None:  # an operator would drop it without a word
        raise errors.UnsupportedProblemError(
            f"{label} has a tangent; there are no derivatives in forward mode, use backward mode."
        )


def as_number(name: str, number: Any) -> float:
    """Return a real number as Python's own."""
    if type(number) is float or (type(number) is int and abs(number) < 2**53):
        return float(number)  # all that `torch.compile` traces
    if isinstance(number, torch.Tensor):
        raise errors.ScalarError(f"{name} is a tensor; pass a number: {name}.item().")
    return real_number(name, number)


def as_flag(name: str, flag: Any) -> bool:
    """Return an option that is True or False as Python's own."""
    return flag if type(flag) is bool else check_flag(name, flag)


def check_dtype(
    name: str, dtype: Any, known: tuple[torch.dtype, ...],
    error: type[errors.DxgemmError] = errors.DtypeError,
) -> None:  # fmt: skip
    """Raise unless an option is one of the dtypes that are known."""
    if not isinstance(dtype, torch.dtype) or dtype not in known:
        listed = ", ".join(map(str, known[:-1]))
        raise error(f"{name} is {errors.shown(dtype)}; pass {listed} or {known[-1]}.")


def check_operands(
    call: str, *, takes_complex: bool = False, **operands: torch.Tensor | None
) -> None:
    """Raise unless the operands have one dtype, of those that are taken, and are on one device."""
    given = {name: operand for name, operand in operands.items() if operand is not None}
    dtypes = {operand.dtype for operand in given.values()}
    taken = (*DTYPES, *COMPLEX_DTYPES) if takes_complex else DTYPES
    if len(dtypes) > 1 or not dtypes <= set(taken):
        listed = ", ".join(f"{name} is {operand.dtype}" for name, operand in given.items())
        known = ", ".join(map(str, taken))
        raise errors.DtypeError(f"{call}: {listed}; convert them to one of {known}.")
    check_devices(call, given)


def check_devices(call: str, operands: dict[str, torch.Tensor]) -> None:
    """Raise unless the operands are on one device."""
    if len({operand.device for operand in operands.values()}) > 1:
        listed = ", ".join(f"{name} is on {operand.device}" for name, operand in operands.items())
        raise errors.DeviceMismatchError(f"{call}: {listed}; move them to one device.")


def list_shapes(**operands: torch.Tensor) -> str:
    """List shapes for a message."""
    return ", ".join(f"{name} is {tuple(operand.shape)}" for name, operand in operands.items())


def as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    """Reshape (..., k) to (rows, k)."""
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])
