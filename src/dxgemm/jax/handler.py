"""Handler of XLA's calls: finds the route of the operands, and launches it on XLA's stream.

`ctypes` makes a C function of a Python function, so that nothing is compiled for it. Each call
takes Python's lock for some microseconds; the GPU does not wait for that unless it is idle.

Source: for handlers in Python, NVIDIA Warp's `warp.jax_experimental.ffi`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, lru_cache, partial
from itertools import product
from math import prod
from typing import Any, NamedTuple

import jax

from dxgemm.call.asked import Asked
from dxgemm.call.factors import kernel_factors
from dxgemm.call.route import Route, route_of_layouts
from dxgemm.choice.batch_invariant import BatchInvariant
from dxgemm.errors import DeviceMismatchError
from dxgemm.jax.call_frame import HANDLER, Array, CallFrame
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.problem.layout import ALIGNMENTS, Layout, transposed
from dxgemm.runtime.arrays import HOST

TARGET = "dxgemm_gemm"


class Options(NamedTuple):
    """Arguments of `gemm` that are known when a function is traced."""

    alpha: float = 1.0
    beta: float = 0.0
    transpose_a: bool = False
    transpose_b: bool = False
    precision: str | None = None
    batch_invariant: bool = False

    @property
    def text(self) -> str:
        """The options as the attribute of a call."""
        return json.dumps(self)

    @classmethod
    @lru_cache(maxsize=1024)
    def of(cls, text: bytes) -> Options:
        """Options of a call."""
        return cls(*json.loads(text))


def route_of(arrays: dict[str, Array], options: Options, ordinal: int) -> Route:
    """Find or make the route of a, b, c if there is one, and out.

    Args:
        arrays: each (rows, columns) or (batch, rows, columns); a batch of 1 is one of all.
        options: the options.
        ordinal: ordinal of the GPU; HOST for the simulator.
    """
    *batch, _, _ = arrays["out"].shape
    layouts = {}
    for name, array in arrays.items():
        *own, rows, cols = array.shape
        size = ITEM_SIZES.get(array.dtype, 1)
        strides: tuple[int, ...] = (cols * size, size)
        if batch:  # a stride of 0 leads from a matrix that all share to itself
            strides = ((own[0] > 1) * rows * cols * size, *strides)
        alignment = ALIGNMENTS[array.pointer & 15]
        shape = (*batch, rows, cols)
        layouts[name] = Layout(shape, strides, array.dtype, ordinal, False, alignment)
    if options.transpose_a:
        layouts["a"] = transposed(layouts["a"])
    if options.transpose_b:
        layouts["b"] = transposed(layouts["b"])
    named = BatchInvariant(None) if options.batch_invariant else None
    zeros = options.alpha == 0, options.beta == 0
    return route_of_layouts(Asked(layouts, *zeros, options.precision, named))


def multiply(arrays: dict[str, Array], options: Options, ordinal: int, stream: int) -> None:
    """Launch the products of all matrices."""
    for part in parts(arrays):
        route = route_of(part, options, ordinal)
        if route.resolved.problem.is_empty:
            continue
        if route.launch is None:
            raise DeviceMismatchError(
                "dxgemm.jax: the operands are in host memory; move them to a GPU with "
                "jax.device_put."
            )
        a, b, out = part["a"].pointer, part["b"].pointer, part["out"].pointer
        c = part["c"].pointer if route.reads_separate_c else out
        if route.is_transposed:
            a, b = b, a
        alpha, beta = kernel_factors(route, options.alpha, options.beta)
        route.launch((a, b, c, out, alpha, beta), stream)


def parts(arrays: dict[str, Array]) -> list[dict[str, Array]]:
    """Cut up arrays of any number of dimensions for launches of one batch each.

    All have as many dimensions. Those before the last two are the result's, or 1 where all
    matrices share one.
    """
    lead = arrays["out"].shape[:-2]
    if len(lead) < 2:
        return [arrays]
    if all(array.shape[:-2] in (lead, (1,) * len(lead)) for array in arrays.values()):
        merged = {
            name: array._replace(shape=(prod(array.shape[:-2]), *array.shape[-2:]))
            for name, array in arrays.items()
        }
        return [merged]
    *outer, _ = lead
    return [
        {name: _part(array, index) for name, array in arrays.items()}
        for index in product(*map(range, outer))
    ]


def _part(array: Array, index: Sequence[int]) -> Array:
    """The matrices that an array has at an index of its outer dimensions."""
    *outer, batch, rows, cols = array.shape
    place = 0
    for size, at in zip(outer, index, strict=True):
        place = place * size + (at if size > 1 else 0)
    step = batch * rows * cols * ITEM_SIZES.get(array.dtype, 1)
    return Array(array.pointer + place * step, (batch, rows, cols), array.dtype)


def _handle(address: int, on_host: bool) -> int | None:
    frame = CallFrame(address)
    try:
        if frame.answer_query():
            return None
        a, b, *addend = frame.operands
        arrays = {"a": a, "b": b, **({"c": addend[0]} if addend else {}), "out": frame.results[0]}
        ordinal, stream = (HOST, 0) if on_host else (frame.ordinal, frame.stream)
        multiply(arrays, Options.of(frame.text), ordinal, stream)
    except BaseException as error:  # which would end the process on XLA's side
        return frame.error(f"{type(error).__name__}: {error}")
    return None


# Kept, since XLA has their addresses. On a machine with a GPU, that of the CPU refuses.
_HANDLERS: dict[str, Any] = {
    platform: HANDLER(partial(_handle, on_host=platform == "cpu")) for platform in ("cpu", "CUDA")
}


@cache
def register() -> None:
    """Make the handlers known to XLA."""
    for platform, function in _HANDLERS.items():
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(function), platform=platform)
