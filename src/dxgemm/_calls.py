"""From operands to a launch: find the route, check what depends on pointers, run."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from dxgemm._errors import LayoutError, OverlapError, ScalarError
from dxgemm._host_launch import HostLaunch
from dxgemm._problem import share_elements
from dxgemm._route import Route, make_route, routes
from dxgemm.runtime.arrays import HOST, Library, libraries, library_of
from dxgemm.runtime.streams import stream_handle


def prepare(
    a: Any, b: Any, c: Any, alpha: Any, beta: Any, out: Any, implementation: Any, stream: Any
) -> tuple[Any, ...]:
    """Check everything a call says. Nothing is launched or written before every check has passed.

    Returns:
        launch: what to call; None if there is nothing to do.
        pointers: of a, b, c and the result, in the kernels' orientation.
        alpha, beta: as the kernel takes them.
        stream: the caller's handle; None for the current stream of `library`.
        result, library: the array that is written, and its library.
        ordered: operands whose own streams must be ordered against the launch; None if there are
            none.
        route: the decision behind it all.

    A tuple and no object: this runs on every call, where each microsecond shows.
    """
    if type(alpha) is not float:
        alpha = _real("alpha", alpha)
    if type(beta) is not float:
        beta = _real("beta", beta)
    if stream is not None:
        stream = stream_handle(stream)
    library = library_a = libraries.get(type(a)) or library_of("a", a)
    library_b = libraries.get(type(b)) or library_of("b", b)
    a_pointer, a_key = library_a.inspect(a)
    b_pointer, b_key = library_b.inspect(b)
    library_c = library_out = c_key = out_key = None
    c_pointer = out_pointer = 0
    if c is not None:
        library = library_c = libraries.get(type(c)) or library_of("c", c)
        c_pointer, c_key = library_c.inspect(c)
    if out is not None:
        library = library_out = libraries.get(type(out)) or library_of("out", out)
        out_pointer, out_key = library_out.inspect(out)

    key = (
        library_a, a_key, library_b, b_key, library_c, c_key, library_out, out_key,
        alpha == 0, beta == 0, implementation,
    )  # fmt: skip
    try:
        route = routes[key]
    except (KeyError, TypeError):  # TypeError: an unhashable implementation, refused by dispatch
        route = make_route(key)

    if not route.least_scalar <= alpha <= route.largest_scalar:
        _check_fits("alpha", alpha, route)
    if not route.least_scalar <= beta <= route.largest_scalar:
        _check_fits("beta", beta, route)
    if (a_pointer | b_pointer | c_pointer | out_pointer) & route.misalignment:
        _raise_misaligned(route, a=a_pointer, b=b_pointer, c=c_pointer, out=out_pointer)

    if out is None and c is None:
        result = library.empty(route.shape, route.problem.dtype, a)
        target_pointer, result_key = library.inspect(result)
    else:
        result, target_pointer = (c, c_pointer) if out is None else (out, out_pointer)
        low, high = route.a_near
        if low < a_pointer - target_pointer < high:
            _check_overlap(route, "a", a_pointer, target_pointer)
        low, high = route.b_near
        if low < b_pointer - target_pointer < high:
            _check_overlap(route, "b", b_pointer, target_pointer)
        if route.reads_separate_c:
            _check_overlap(route, "c", c_pointer, target_pointer)
    if not route.reads_separate_c:
        c_pointer = target_pointer

    if route.k == 0:
        alpha = 0.0  # the product is zero whatever alpha is, NaN included
    launch = route.launch
    if route.is_empty or (route.k == 0 and beta == 1 and out is None):
        launch = None  # C = 0 * A @ B + 1 * C keeps every bit of C
    elif route.host_operands:
        layouts = dict(route.layouts)
        if out is None and c is None:
            layouts["c"] = library.layout(result_key)
        arrays = {"a": a, "b": b, "c": result if out is None else c, "out": out}
        addresses = {"a": a_pointer, "b": b_pointer, "c": c_pointer, "out": target_pointer}
        launch = HostLaunch(route, layouts, arrays, addresses, implementation)
    if route.is_transposed:
        a_pointer, b_pointer = b_pointer, a_pointer
    ordered = None
    if (
        library_a is not library_b
        or library is not library_a
        or (library_c is not None and library_c is not library_a)
        or library_a.always_ordered
        or route.host_operands
    ):
        ordered = _to_order(
            route,
            stream,
            a=(library_a, a),
            b=(library_b, b),
            c=(library_c, c),
            out=(library_out, out),
        )
    pointers = (a_pointer, b_pointer, c_pointer, target_pointer)
    return launch, pointers, alpha, beta, stream, result, library, ordered, route


class Bound:
    """A prepared call with its launch packed for good, to be run many times."""

    def __init__(self, prepared: tuple[Any, ...], operands: tuple[Any, ...]) -> None:
        launch, pointers, alpha, beta, stream, result, library, ordered, route = prepared
        self.route: Route = route
        self.result = result
        self._operands = operands  # kept alive: the launch holds their addresses
        self._launch = None if launch is None else launch.fixed(*pointers, alpha, beta)
        self._stream = stream
        self._current_stream = library.current_stream
        self._ordered = ordered or ()

    def __call__(self) -> Any:
        launch = self._launch
        if launch is None:
            return self.result
        stream = self._stream
        if stream is None:
            stream = self._current_stream(self.result)
        for library, array in self._ordered:
            library.acquire(array, stream)
        launch(stream)
        for library, array in self._ordered:
            library.release(array, stream)
        return self.result


def _to_order(
    route: Route, stream: int | None, **operands: tuple[Library | None, Any]
) -> list[tuple[Library, Any]] | None:
    """The device operands whose pending work must be ordered against the launch.

    With an explicit stream the caller has ordered the libraries' current streams already; only
    exports that name their consumer stream still take part.
    """
    chosen = [
        (library, array)
        for name, (library, array) in operands.items()
        if library is not None
        and route.layouts[name].device != HOST
        and (stream is None or library.always_ordered)
    ]
    return chosen or None


def _real(name: str, value: Any) -> float:
    if not isinstance(value, numbers.Real) or isinstance(value, bool | np.bool_):
        raise ScalarError(
            f"gemm: {name} is {value!r} ({type(value).__name__}); it must be a real number, "
            "held by Python or NumPy on the host."
        )
    try:
        return float(value)
    except OverflowError:
        raise ScalarError(f"gemm: {name} is {value}, which overflows float64.") from None


def _check_fits(name: str, value: float, route: Route) -> None:
    if math.isfinite(value):
        raise ScalarError(f"gemm: {name} is {value}, which overflows {route.problem.dtype}.")


def _raise_misaligned(route: Route, **pointers: int) -> None:
    name = next(name for name, pointer in pointers.items() if pointer & route.misalignment)
    item_size = route.misalignment + 1
    raise LayoutError(
        f"gemm: {name} starts at address {pointers[name]:#x}, which is not a multiple of the "
        f"{item_size}-byte {route.problem.dtype}; copy it to an aligned array first."
    )


def _check_overlap(route: Route, name: str, pointer: int, target_pointer: int) -> None:
    target_name = "out" if "out" in route.layouts else "c"
    target = route.layouts[target_name]
    operand = route.layouts[name]
    if name == "c" and pointer == target_pointer and operand.strides == target.strides:
        return  # the same memory, element for element: in place after all
    if share_elements(pointer, operand, target_pointer, target):
        raise OverlapError(
            f"gemm: {target_name} shares memory with {name} ({name} is {operand.shape}, "
            f"{target_name} is {target.shape}), which is read while {target_name} is written; "
            f"pass a copy of {name}, or another out=."
        )
