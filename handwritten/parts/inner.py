"""The user's function in the place of the multiply-add: a product that combines otherwise.

A kernel begins its totals with `begin`, and adds to them by `outer` or, element by element, by
`step`. Without an inner function these are zeros and multiply-adds. Zeros that a kernel has in
place of elements beyond k must not be added if `is_given`: nothing is known of what a function
makes of them. A c is added by `plus`, as the function adds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.core import config as _config

from dxgemm.handwritten.parts.elementary import FUNCTIONS
from dxgemm.handwritten.parts.epilogue import LITERALS
from dxgemm.handwritten.parts.intrinsics import (
    ReturnError,
    device_function,
    outer_product,
    plus_scaled,
    zeros,
)

INNER = -1  # stands for the function where errors name the stage of an epilogue


class Combine(NamedTuple):
    """Device functions that make totals; `plus` is that of `make_plus`.

    Attributes:
        is_given: True if the user gave the function.
        begin: (scalar, count) -> totals of no elements.
        outer: (totals, elements of a, elements of b) -> totals, one for each pair of elements.
        step: (total, element of a, element of b) -> total; None for the multiply-add.
        start: total of no elements.
    """

    is_given: bool
    begin: Callable[..., Any]
    outer: Callable[..., Any]
    step: Any
    start: Any


def make_combine(epilogue: Any, dtype: str) -> Combine:
    """Make the functions for totals of a dtype.

    Args:
        epilogue: None, or a `Fusion`.
    """
    inner = None if epilogue is None else epilogue.inner
    if inner is None:
        return Combine(False, zeros, outer_product, None, np.dtype(dtype).type(0))
    start, function = inner.start_of(dtype), _compiled(inner, dtype)
    if epilogue.is_transposed:
        exchanged = function
        function = device_function(lambda total, x, y: exchanged(total, y, x))
    outer, step = _combiners(function)
    return Combine(True, _make_begin(start), outer, step, start)


def make_plus(epilogue: Any, dtype: str) -> Callable[..., Any]:
    """Device function (values, beta, elements of c) -> values: `plus_scaled`, or the function's."""
    inner = None if epilogue is None else epilogue.inner
    if inner is None or inner.takes_factors:
        return plus_scaled
    add = _compiled(inner.adding, dtype)

    return _make_plus(add)


def _compiled(function: Any, dtype: str) -> Any:
    return function.make_function(LITERALS[dtype], device_function, FUNCTIONS, 1)


if _config.ENABLE_CUDASIM:
    from dxgemm.handwritten.parts.intrinsics import rounded

    def _combiners(function: Any) -> tuple[Any, Any]:
        def step(total: Any, x: Any, y: Any) -> Any:
            return rounded(total)(function(total, x, y))

        def outer(totals: Any, a_frag: Any, b_frag: Any) -> Any:
            count = len(b_frag)
            pairs = ((x, a_frag[i // count], b_frag[i % count]) for i, x in enumerate(totals))
            return tuple(step(*pair) for pair in pairs)

        return outer, step

    def _make_begin(start: Any) -> Any:
        return lambda scalar, count: (scalar(start),) * count

    def _make_plus(add: Any) -> Any:
        return lambda values, beta, c: tuple(rounded(x)(add(x, y)) for x, y in zip(values, c))

else:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.cgutils import pack_array
    from numba.cuda.extending import intrinsic
    from numba.cuda.typing import signature

    from dxgemm.handwritten.parts.intrinsics import literal, unpack

    def _call(typing_context: Any, function: Any, kinds: tuple[Any, ...]) -> Any:
        """Generator of a call, whose result is converted to the first of the arguments' types."""
        kind = typing_context.resolve_value_type(function)
        called = typing_context.resolve_function_type(kind, kinds, {})
        result = called.return_type
        if isinstance(result, types.NoneType | types.Optional):
            raise ReturnError(INNER, "may return None; return a value on every path")
        if not isinstance(result, types.Integer | types.Float | types.Boolean):
            raise ReturnError(INNER, f"returns {result}; return one real number")

        def call(context: Any, builder: Any, arguments: tuple[Any, ...]) -> Any:
            code = context.get_function(kind, called)
            for library in getattr(code, "libs", ()):
                context.active_code_library.add_linking_library(library)
            return context.cast(builder, code(builder, arguments), result, kinds[0])

        return call

    def _combiners(function: Any) -> tuple[Any, Any]:
        @intrinsic
        def step(typing_context, total, x, y):
            call = _call(typing_context, function, (total, x, y))
            return signature(total, total, x, y), lambda context, builder, sig, args: call(
                context, builder, args
            )

        @intrinsic
        def outer(typing_context, totals, a_frag, b_frag):
            """In the order of `outer_product`: consecutive instructions share an operand."""
            rows, cols = a_frag.count, b_frag.count
            call = _call(typing_context, function, (totals.dtype, a_frag.dtype, b_frag.dtype))

            def generate(context, builder, sig, args):
                total = unpack(builder, args[0], rows * cols)
                a, b = unpack(builder, args[1], rows), unpack(builder, args[2], cols)
                for i in range(rows):
                    for j in range(cols) if i % 2 == 0 else reversed(range(cols)):
                        place = i * cols + j
                        total[place] = call(context, builder, (total[place], a[i], b[j]))
                return pack_array(builder, total)

            return signature(totals, totals, a_frag, b_frag), generate

        return outer, step

    def _make_begin(start: Any) -> Any:
        @intrinsic
        def begin(typing_context, scalar, count):
            element, number = scalar.instance_type, literal(count)

            def generate(context, builder, sig, args):
                value = ir.Constant(context.get_value_type(element), start.item())
                return pack_array(builder, [value] * number)

            return signature(types.UniTuple(element, number), scalar, count), generate

        return begin

    def _make_plus(add: Any) -> Any:
        @intrinsic
        def plus(typing_context, values, beta, c):
            call = _call(typing_context, add, (values.dtype, c.dtype))

            def generate(context, builder, sig, args):
                totals, others = (unpack(builder, x, values.count) for x in (args[0], args[2]))
                return pack_array(
                    builder, [call(context, builder, pair) for pair in zip(totals, others)]
                )

            return signature(values, values, beta, c), generate

        return plus
