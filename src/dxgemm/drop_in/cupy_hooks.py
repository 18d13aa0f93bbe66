"""Hooks in CuPy: functions and methods that are replaced, and put back."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import cupy
import numpy as np

from dxgemm import api, contractions
from dxgemm.drop_in.routing import Hook, Replaced, current
from dxgemm.errors import UnsupportedProblemError

_ODD = "object"  # stands for the dtype of what is left to CuPy
_PLAIN = (str, int, list, tuple, type(None))  # arguments that are no operands


def _matmul(a: Any, b: Any, out: Any = None, **options: Any) -> Any:
    if out is not None and a.ndim > 1 < b.ndim:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        if out.shape[:-2] != batch:
            raise UnsupportedProblemError("matmul: CuPy refuses an out of more matrices.")
    if a.ndim == b.ndim == 2:
        return api.gemm(a, b, out=out, **options)
    return api.matmul(a, b, out=out, **options)


def _contiguous(array: Any) -> Any:
    """C-contiguous copy, if need be; of a number too, which `cupy.ascontiguousarray` makes 1-D."""
    return array if array.flags.c_contiguous else cupy.ascontiguousarray(array)


def _dot(a: Any, b: Any, out: Any = None, **options: Any) -> Any:
    if out is not None and not (
        out.flags.c_contiguous and out.dtype == cupy.result_type(a.dtype, b.dtype)
    ):
        raise UnsupportedProblemError("dot: CuPy refuses an out of another dtype or order.")
    if 1 <= a.ndim <= 2 and 1 <= b.ndim <= 2:
        return _matmul(a, b, out, **options)
    if not (a.ndim and b.ndim):
        raise UnsupportedProblemError("dot: it multiplies by a number.")
    axes = [a.ndim - 1], [max(b.ndim - 2, 0)]
    return _contiguous(contractions.tensordot(a, b, axes, out=out, **options))


def _tensordot(a: Any, b: Any, axes: Any = 2, **options: Any) -> Any:
    return _contiguous(contractions.tensordot(a, b, axes, **options))


def _inner(a: Any, b: Any, **options: Any) -> Any:
    if not (a.ndim and b.ndim):
        raise UnsupportedProblemError("inner: it multiplies by a number.")
    return _contiguous(contractions.tensordot(a, b, ([-1], [-1]), **options))


def _einsum(subscripts: str, *operands: Any, optimize: Any = None, **options: Any) -> Any:
    if not isinstance(subscripts, str):
        raise UnsupportedProblemError("einsum: its subscripts are lists.")
    if len(operands) < 2:
        raise UnsupportedProblemError("einsum: of one operand it is no product.")
    return contractions.einsum(subscripts, *operands, **options)


# Owner, attribute, what computes it by dxgemm, and the named arguments that this takes.
HOOKED: tuple[tuple[Any, str, Callable[..., Any], tuple[str, ...]], ...] = (
    (cupy, "matmul", _matmul, ("out",)),
    (cupy, "tensordot", _tensordot, ("axes",)),
    (cupy, "inner", _inner, ()),
    (cupy, "einsum", _einsum, ("optimize",)),
    (cupy.ndarray, "__matmul__", _matmul, ()),
    (cupy.ndarray, "dot", _dot, ("out",)),  # which cupy.dot calls
)
_replaced = Replaced()
uninstall = _replaced.put_back


def install() -> None:
    """Replace the functions."""
    for owner, name, own, options in HOOKED:
        shown = f"cupy.{name}" if owner is cupy else f"cupy.ndarray.{name}"
        hook = Hook(shown, own, getattr(owner, name), _stream, _dtype_finder({*options}))
        _replaced.put(owner, name, _hooked(hook))


def _stream(*_: Any) -> int:
    return cupy.cuda.get_current_stream().ptr


def _dtype_finder(options: set[str]) -> Callable[[Any, Any], str]:
    def dtype_of(arguments: Any, named: Any) -> str:
        dtype = "" if named.keys() <= options else _ODD
        for argument in (*arguments, *named.values()):
            if isinstance(argument, cupy.ndarray):
                dtype = dtype or argument.dtype.name
            elif not isinstance(argument, _PLAIN):
                dtype = _ODD
        return dtype

    return dtype_of


def _hooked(hook: Hook) -> Callable[..., Any]:
    name = hook.name

    @wraps(hook.theirs)
    def function(*arguments: Any, **named: Any) -> Any:
        patch = current()
        if patch is None:
            return hook.theirs(*arguments, **named)
        if not named and len(arguments) == 2:  # in one piece: loops take as long as the fields
            a, b = arguments
            if type(a) is type(b) is cupy.ndarray:
                key = name, a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype
                return patch.compute(hook, key, arguments, named)
        layout: list[Any] = [name, *named]
        for argument in (*arguments, *named.values()) if named else arguments:
            if isinstance(argument, cupy.ndarray):
                layout += (argument.shape, argument.strides, argument.dtype)
            else:
                layout.append(repr(argument) if isinstance(argument, _PLAIN) else type(argument))
        return patch.compute(hook, tuple(layout), arguments, named)

    return function
