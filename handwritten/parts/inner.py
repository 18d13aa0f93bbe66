"""The user's function instead of the multiply-add: a product that combines otherwise.

A kernel begins its totals with `begin`, and adds to them by `outer` or, element by element, by
`step`. Without an inner function these are zeros and multiply-adds. Zeros that a kernel has in
place of elements beyond k must not be added if `is_given`: nothing is known of what a function
makes of them. A c is added by `plus`, as the function adds. Totals may have several numbers each,
of which `close` makes one: kernels keep the first numbers of all totals, then the second ones. A c
then takes the place of the last numbers before the first pair is added.
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
from dxgemm.handwritten.parts.unroll import device, static_range

INNER = -1  # stands for the function where errors name the stage of an epilogue


class Combine(NamedTuple):
    """Device functions that make totals; `plus` is that of `make_plus`.

    Attributes:
        is_given: True if the user gave the function.
        begin: (scalar, count) -> totals of no elements.
        outer: (totals, elements of a, elements of b) -> totals, one for each pair of elements.
        step: (total, element of a, element of b) -> total, a tuple of `parts` numbers; None for the
            multiply-add.
        start: total of no elements, a tuple of `parts` numbers.
        close: (totals) -> one number for each; None if a total is one.
    """

    is_given: bool
    begin: Callable[..., Any]
    outer: Callable[..., Any]
    step: Any
    start: tuple[Any, ...]
    close: Any = None

    @property
    def parts(self) -> int:
        """Numbers per total."""
        return len(self.start)


def make_combine(epilogue: Any, dtype: str) -> Combine:
    """Make the functions for totals of a dtype.

    Args:
        epilogue: None, or a `Fusion`.
    """
    inner = None if epilogue is None else epilogue.inner
    if inner is None:
        return Combine(False, zeros, outer_product, None, (np.dtype(dtype).type(0),))
    start = inner.start_of(dtype)
    outer, step = _combiners(_step_of(epilogue, dtype, 1), len(start))
    close = None
    if inner.closing is not None:
        close = _make_close(_compiled(inner.closing, dtype), len(start))
    return Combine(True, _make_begin(start), outer, step, start, close)


def make_complex_combine(
    epilogue: Any, dtype: str, conjugates: str, add_products: Callable[..., Any]
) -> Combine:
    """Make the functions for complex sums, of which registers hold both parts in turn.

    Args:
        epilogue: None, or a `Fusion` whose inner function, if it has one, sums.
        dtype: dtype of the parts.
        conjugates: names of the operands that are conjugated: "", "a", "b" or "ab".
        add_products: `Combine.outer` of the multiply-add.
    """
    is_given, outer = epilogue is not None and epilogue.inner is not None, add_products
    if is_given:
        step = _step_of(epilogue, dtype, 0)
        outer = _complex_outer(step, "a" in conjugates, "b" in conjugates)
    return Combine(is_given, zeros, outer, None, (np.dtype(dtype).type(0),))


def _step_of(epilogue: Any, dtype: str, reals: int) -> Any:
    """Device function: (total, element of a, element of b) -> total, as the kernel names them."""
    function = _compiled(epilogue.inner, dtype, reals)
    if epilogue.is_transposed:
        return device_function(lambda total, x, y: function(total, y, x))
    return function


def make_plus(epilogue: Any, dtype: str) -> Callable[..., Any]:
    """Device function (values, beta, elements of c) -> values: `plus_scaled`, or the function's.

    Of last numbers of totals it makes the elements of c.
    """
    inner = None if epilogue is None else epilogue.inner
    if inner is None or inner.takes_factors:
        return plus_scaled
    if inner.parts > 1:
        return device_function(lambda values, beta, c: c)
    add = _compiled(inner.adding, dtype)

    return _make_plus(add)


def make_take_c(epilogue: Any, dtype: str, out_dtype: str | None = None) -> Callable[..., Any]:
    """A device function: (last numbers of totals, beta, c, index, step) -> elements of c.

    If beta is 0 it returns the numbers.
    """
    from dxgemm.handwritten.parts.addend import make_plus_c

    return make_plus_c(dtype, out_dtype, plus=make_plus(epilogue, dtype))


def make_begin_with_c(fragment: Any, epilogue: Any, dtype: str) -> Callable[..., Any]:
    """A device function: totals of several numbers, the last of which are elements of c.

    (totals, row, col, index of the matrix in c.data, c, beta, m, n) -> totals. If beta is 0 they
    are unchanged, as are those beyond m and n.
    """
    take_c = make_take_c(epilogue, dtype)
    rows, cols = fragment.rows, fragment.cols
    pairs = len(rows)
    first = (epilogue.inner.parts - 1) * pairs

    @device
    def begin_with_c(totals, row, col, start, c, beta, m, n):
        last = ()
        for i in static_range(pairs):
            value = totals[first + i : first + i + 1]
            if row + rows[i] < m and col + cols[i] < n:
                index = start + (row + rows[i]) * c.row + (col + cols[i]) * c.col
                value = take_c(value, beta, c, index, 0)
            last = last + value
        return totals[:first] + last

    return begin_with_c


def _compiled(function: Any, dtype: str, reals: int = 1) -> Any:
    functions = FUNCTIONS | {"like": like} | ({"abs": magnitude} if dtype == "int32" else {})
    return function.make_function(LITERALS[dtype], device_function, functions, reals)


if _config.ENABLE_CUDASIM:
    from dxgemm.handwritten.parts.intrinsics import complex_of, rounded

    magnitude = abs

    def like(value: Any, number: Any) -> Any:
        return value if np.iscomplexobj(value) else rounded(number)(value)

    def _combiners(function: Any, parts: int) -> tuple[Any, Any]:
        def step(total: Any, x: Any, y: Any) -> Any:
            if parts == 1:
                return (rounded(total[0])(function(total[0], x, y)),)
            return tuple(rounded(old)(new) for old, new in zip(total, function(total, x, y)))

        def outer(totals: Any, a_frag: Any, b_frag: Any) -> Any:
            count = len(b_frag)
            found = (
                step(total, a_frag[i // count], b_frag[i % count])
                for i, total in enumerate(_apart(totals, parts))
            )
            return tuple(part for same in zip(*found) for part in same)

        return outer, step

    def _complex_outer(function: Any, a_turns: bool, b_turns: bool) -> Any:
        def outer(totals: Any, a_frag: Any, b_frag: Any) -> Any:
            x, y = _numbers(a_frag, a_turns), _numbers(b_frag, b_turns)
            kind, found = type(totals[0]), []
            for i, total in enumerate(_numbers(totals, False)):
                value = function(total, x[i // len(y)], y[i % len(y)])
                found += [kind(value.real), kind(value.imag)]
            return tuple(found)

        return outer

    def _numbers(parts: Any, turns: bool) -> list[Any]:
        """Complex numbers of their parts, or their conjugates."""
        pairs = zip(parts[::2], parts[1::2])
        return [complex_of(re, -im if turns else im) for re, im in pairs]

    def _make_close(function: Any, parts: int) -> Any:
        def close(totals: Any) -> Any:
            return tuple(rounded(total[0])(function(total)) for total in _apart(totals, parts))

        return close

    def _apart(totals: Any, parts: int) -> Any:
        """The numbers of each total."""
        count = len(totals) // parts
        return zip(*(totals[part * count : (part + 1) * count] for part in range(parts)))

    def _make_begin(start: Any) -> Any:
        return lambda scalar, count: tuple(scalar(part) for part in start for _ in range(count))

    def _make_plus(add: Any) -> Any:
        return lambda values, beta, c: tuple(rounded(x)(add(x, y)) for x, y in zip(values, c))

else:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.cgutils import pack_array
    from numba.cuda.extending import intrinsic, overload
    from numba.cuda.typing import signature

    from dxgemm.handwritten.parts.intrinsics import literal, unpack

    def magnitude(x):
        raise NotImplementedError("for kernels")

    @intrinsic
    def _magnitude_int32(typing_context, x):
        """|x| by its instruction: of max(max(x, -x), y) ptxas 12.8 to 13.5 leaves out the negation.

        Source: PyTorch's issue 190973.
        """

        def generate(context, builder, sig, args):
            function = ir.FunctionType(args[0].type, [args[0].type])
            return builder.call(ir.InlineAsm(function, "abs.s32 $0, $1;", "=r,r", False), args)

        return signature(x, x), generate

    @overload(magnitude)
    def _choose_magnitude(x):
        """In 32 bits: a difference of two int32 has 64 in numba."""
        if not isinstance(x, types.Integer):
            return lambda x: abs(x)
        return lambda x: _magnitude_int32(np.int32(x))

    @intrinsic
    def like(typing_context, value, number):
        """The value that a function returned, in the type of a number."""
        _check_returned(value, (value,), number)
        return signature(number, value, number), lambda context, builder, sig, args: context.cast(
            builder, args[0], value, number
        )

    def _check_returned(result: Any, found: tuple[Any, ...], total: Any, parts: int = 1) -> None:
        if isinstance(result, types.NoneType | types.Optional):
            raise ReturnError(INNER, "may return None; return a value on every path")
        numbers = types.Integer | types.Float | types.Boolean
        if isinstance(total, types.Complex):
            numbers |= types.Complex
        if len(found) != parts or not all(isinstance(part, numbers) for part in found):
            wanted = "one real number" if parts == 1 else f"a tuple of {parts} real numbers"
            raise ReturnError(INNER, f"returns {result}; return {wanted}")

    def _call(typing_context: Any, function: Any, kinds: tuple[Any, ...], parts: int = 1) -> Any:
        """Generator of a call, whose results are converted to the type of the first argument.

        (context, builder, numbers of the first argument, other arguments) -> as many numbers as
        `parts` says, a list.
        """
        kind = typing_context.resolve_value_type(function)
        called = typing_context.resolve_function_type(kind, kinds, {})
        result, target = called.return_type, getattr(kinds[0], "dtype", kinds[0])
        found = tuple(result) if parts > 1 and isinstance(result, types.BaseTuple) else (result,)
        _check_returned(result, found, kinds[0], parts)

        def call(context: Any, builder: Any, first: Any, *others: Any) -> Any:
            code = context.get_function(kind, called)
            for library in getattr(code, "libs", ()):
                context.active_code_library.add_linking_library(library)
            is_tuple = isinstance(kinds[0], types.BaseTuple)
            first = pack_array(builder, first) if is_tuple else first[0]
            value = code(builder, (first, *others))
            values = [value] if parts == 1 else unpack(builder, value, parts)
            return [context.cast(builder, *pair, target) for pair in zip(values, found)]

        return call

    def _total_kind(element: Any, parts: int) -> Any:
        return element if parts == 1 else types.UniTuple(element, parts)

    def _combiners(function: Any, parts: int) -> tuple[Any, Any]:
        @intrinsic
        def step(typing_context, total, x, y):
            call = _call(typing_context, function, (_total_kind(total.dtype, parts), x, y), parts)

            def generate(context, builder, sig, args):
                numbers = call(context, builder, unpack(builder, args[0], parts), *args[1:])
                return pack_array(builder, numbers)

            return signature(total, total, x, y), generate

        @intrinsic
        def outer(typing_context, totals, a_frag, b_frag):
            """In the order of `outer_product`: consecutive instructions share an operand."""
            rows, cols = a_frag.count, b_frag.count
            kinds = _total_kind(totals.dtype, parts), a_frag.dtype, b_frag.dtype
            call = _call(typing_context, function, kinds, parts)

            def generate(context, builder, sig, args):
                total = unpack(builder, args[0], rows * cols * parts)
                a, b = unpack(builder, args[1], rows), unpack(builder, args[2], cols)
                for i in range(rows):
                    for j in range(cols) if i % 2 == 0 else reversed(range(cols)):
                        own = slice(i * cols + j, None, rows * cols)
                        total[own] = call(context, builder, total[own], a[i], b[j])
                return pack_array(builder, total)

            return signature(totals, totals, a_frag, b_frag), generate

        return outer, step

    def _complex_outer(function: Any, a_turns: bool, b_turns: bool) -> Any:
        @intrinsic
        def outer(typing_context, totals, a_frag, b_frag):
            rows, cols = a_frag.count // 2, b_frag.count // 2
            kind = types.complex64 if totals.dtype == types.float32 else types.complex128
            call = _call(typing_context, function, (kind, kind, kind))

            def generate(context, builder, sig, args):
                def numbers(frag, count, turns):
                    parts = unpack(builder, frag, 2 * count)
                    return [number(*parts[2 * i : 2 * i + 2], turns) for i in range(count)]

                def number(re, im, turns):
                    value = context.make_complex(builder, kind)
                    value.real, value.imag = re, builder.fsub(im.type(-0.0), im) if turns else im
                    return value._getvalue()

                found, a, b = (
                    numbers(args[0], rows * cols, False),
                    numbers(args[1], rows, a_turns),
                    numbers(args[2], cols, b_turns),
                )
                parts = []
                for i, total in enumerate(found):
                    (value,) = call(context, builder, [total], a[i // cols], b[i % cols])
                    value = context.make_complex(builder, kind, value=value)
                    parts += [value.real, value.imag]
                return pack_array(builder, parts)

            return signature(totals, totals, a_frag, b_frag), generate

        return outer

    def _make_close(function: Any, parts: int) -> Any:
        @intrinsic
        def close(typing_context, totals):
            count = totals.count // parts
            call = _call(typing_context, function, (types.UniTuple(totals.dtype, parts),))

            def generate(context, builder, sig, args):
                total = unpack(builder, args[0], totals.count)
                closed = [call(context, builder, total[i::count])[0] for i in range(count)]
                return pack_array(builder, closed)

            return signature(types.UniTuple(totals.dtype, count), totals), generate

        return close

    def _make_begin(start: Any) -> Any:
        @intrinsic
        def begin(typing_context, scalar, count):
            element, number = scalar.instance_type, literal(count)

            def generate(context, builder, sig, args):
                kind = context.get_value_type(element)
                parts = [ir.Constant(kind, part.item()) for part in start for _ in range(number)]
                return pack_array(builder, parts)

            return signature(types.UniTuple(element, number * len(start)), scalar, count), generate

        return begin

    def _make_plus(add: Any) -> Any:
        @intrinsic
        def plus(typing_context, values, beta, c):
            call = _call(typing_context, add, (values.dtype, c.dtype))

            def generate(context, builder, sig, args):
                totals, others = (unpack(builder, x, values.count) for x in (args[0], args[2]))
                pairs = zip(totals, others)
                return pack_array(
                    builder, [call(context, builder, [total], c)[0] for total, c in pairs]
                )

            return signature(values, values, beta, c), generate

        return plus
