"""Preparation of a call: find its route, check the pointers, and give the launch its arguments."""

from __future__ import annotations

from typing import Any, NamedTuple

from dxgemm.call.epilogue import (
    CallEpilogue,
    check_epilogue_keys,
    check_inner_factors,
    check_numbers,
    inspect_epilogue,
    kernel_operands,
    with_inner,
    with_mask,
)
from dxgemm.call.factors import check_fits, complex_factor, integer, number
from dxgemm.call.host_operands import HostLaunch
from dxgemm.call.prepared_operand import PreparedOperand
from dxgemm.call.route import Route, RouteKey, Symmetry, make_route, routes
from dxgemm.choice.batch_invariant import with_batch_invariance
from dxgemm.epilogues.chain import BoundEpilogue
from dxgemm.errors import (
    DxgemmError,
    LayoutError,
    OverlapError,
    marked,
)
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.problem.kernel_arguments import Call
from dxgemm.problem.layout import ALIGNMENTS, share_elements
from dxgemm.runtime.arrays import LEAST_ADDRESS, Library, host_view, libraries
from dxgemm.runtime.binding import Launch
from dxgemm.runtime.capture import first_call, launching_on
from dxgemm.runtime.exports import finished, in_order, launch_stream, taken
from dxgemm.runtime.streams import stream_handle

# A repeated call passes plain tuples where the records below have names: making one of these takes
# longer than all checks.


class Prepared(NamedTuple):
    """A call after every check.

    Attributes:
        route: the route of the call.
        launch: launch to call; None if nothing is launched.
        call: what the launch takes, in the kernels' orientation.
        stream: the caller's handle; None for the current stream of `library`.
        result: the array that is written, or the results of a reduction.
        anchor, library: an array whose library decides on the stream, and that library.
        ordered: operands whose own streams must be ordered against the launch.
    """

    route: Route
    launch: Launch | None
    call: Call
    stream: int | None
    result: Any
    anchor: Any
    library: Library
    ordered: tuple[tuple[Library, Any], ...] = ()


class Options(NamedTuple):
    """Options of a call, as `gemm` takes them."""

    epilogue: Any = None
    inner: Any = None
    implementation: Any = None
    precision: Any = None
    batch_invariant: Any = False
    mask: Any = None
    conjugate: Any = ""
    triangular: Any = None
    stream: Any = None


def prepare(
    a: Any, b: Any, c: Any, alpha: Any, beta: Any, out: Any, options: tuple[Any, ...],
    symmetry: Symmetry | None = None, is_explained: bool = False,
    found: tuple[Any, ...] | None = None, shape: tuple[int, ...] | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Check all arguments of a call; nothing is launched or written before every check has passed.

    With a `symmetry`, a or b stands for its transpose. A call that is only explained gets no array
    for its result. Takes the fields of `Options`, and returns those of a `Prepared`. `found` is
    what `_inspected` would return of views, which are not made; `shape` that of a new result.
    """
    (
        epilogue, inner, implementation, precision, is_invariant, mask, conjugate, triangular,
        stream,
    ) = options  # fmt: skip
    if mask is not None:
        epilogue = with_mask(epilogue, mask)
    if inner is not None:
        epilogue = with_inner(inner, epilogue)
    if is_invariant is not False:
        implementation = with_batch_invariance(implementation, is_invariant)
    if type(alpha) is not float or type(beta) is not float:
        alpha, beta = number("<alpha>", alpha), number("<beta>", beta)
    is_real = type(alpha) is float and type(beta) is float
    if inner is not None:
        check_inner_factors(inner, alpha, beta)
    if stream is not None:
        stream = stream_handle(stream)
    prepared_b = None
    if type(b) is PreparedOperand:
        prepared_b, b, precision = b.unpack(precision, triangular)
    if found is None:
        found = _inspected(a, b, c, out, stream)
    a, b, c, out, a_pointer, b_pointer, c_pointer, out_pointer, keys, anchor, library = found
    epilogue_key: tuple[Any, ...] | None = None
    values: Any = None
    if epilogue is not None:
        values, epilogue_key, epilogue = inspect_epilogue(epilogue, stream, out, c, a)
    key = keys + (  # noqa: RUF005  # quicker; a RouteKey with its names would take longer
        ALIGNMENTS[a_pointer & 15], ALIGNMENTS[b_pointer & 15],
        not alpha, not beta, precision, implementation, epilogue_key,
        symmetry or (a_pointer == b_pointer and prepared_b is None), conjugate, triangular,
    )  # fmt: skip
    try:
        route = routes[key]
    except Exception:  # of a new key; or of an argument without a hash, which is refused later
        route = None  # out of this handler: errors of a new route have no context
    if route is None:
        current = library.current_stream(anchor) if stream is None else stream
        route = _new_route(RouteKey(*key), found[:4], epilogue, current)

    least, most = route.least_scalar, route.largest_scalar
    if not is_real:
        alpha, beta = complex_factor("alpha", alpha, route), complex_factor("beta", beta, route)
    elif not (least <= alpha <= most and least <= beta <= most):
        check_fits(alpha, beta, route)
    call_epilogue, has_results = None, False
    if epilogue is not None and route.is_special:
        call_epilogue, has_results = CallEpilogue(epilogue, values), route.resolved.asked.is_reduced
    if out is not None or has_results:
        result, target = out, out_pointer
    elif c is not None or is_explained:
        result, target = c, c_pointer
    else:
        shape = route.resolved.shape if shape is None else shape
        anchor = result = library.empty(shape, route.resolved.problem.out_dtype, a)
        target, new_key = library.inspect(result)
        if target < LEAST_ADDRESS:  # such as a fake tensor, in a mode that makes these
            library.check("out", result, new_key)
    if call_epilogue is not None and has_results and not is_explained:
        result = call_epilogue.results(route.resolved.results, keys[0], a)

    # The pointers of c and the result are aligned, and the result overlaps no operand.
    bits, c_bits, a_low, a_high, b_low, b_high, c_low, c_high = route.near
    if not route.reads_separate_c:
        c_pointer = target
    if (
        target & bits
        or c_pointer & c_bits
        or a_low < a_pointer - target < a_high
        or b_low < b_pointer - target < b_high
        or c_low < c_pointer - target < c_high
    ):
        _check_places(route, (a_pointer, b_pointer, c_pointer), target)
    if route.takes_integers:
        alpha, beta = integer("alpha", alpha, route), integer("beta", beta, route)
    launch = route.launch if prepared_b is None else prepared_b.bind(route)
    if route.is_transposed:
        call: Call = (b_pointer, a_pointer, c_pointer, target, alpha, beta)
    else:
        call = (a_pointer, b_pointer, c_pointer, target, alpha, beta)
    if epilogue is not None and not (is_explained and has_results):
        addresses = a_pointer, b_pointer, c_pointer, out_pointer, *values
        call += _epilogue_operands(route, addresses, values)
    prepared = route, launch, call, stream, result, anchor, library, ()
    if not route.is_special:
        return prepared
    special = Prepared(*prepared), found[:4], found[4:8], call_epilogue, symmetry, is_explained
    return _special(*special)


def _inspected(a: Any, b: Any, c: Any, out: Any, stream: int | None) -> tuple[Any, ...]:
    """Read the operands of a call, of which those of types that are new are exported.

    Returns:
        a, b, c, out, and their addresses, None and 0 for absent ones; the fields of a `RouteKey`
        that describe them; and `anchor` and `library` of a `Prepared`.
    """
    library_c: Any = None
    library_out: Any = None
    try:
        library_a, library_b = libraries[type(a)], libraries[type(b)]
        if c is not None:
            library_c = libraries[type(c)]
        if out is not None:
            library_out = libraries[type(out)]
        are_known = True
    except KeyError:
        are_known = False  # out of this handler: errors of an export have no context
    if not are_known:
        a, b, c, out = _exported(a, b, c, out, stream)
        library_a, library_b = libraries[type(a)], libraries[type(b)]
        library_c, library_out = libraries.get(type(c)), libraries.get(type(out))
    anchor, library = a, library_a
    a_pointer, a_key = library_a.inspect(a)
    b_pointer, b_key = library_b.inspect(b)
    c_key = out_key = None
    c_pointer = out_pointer = 0
    if c is not None:
        anchor, library = c, library_c
        c_pointer, c_key = library_c.inspect(c)
    if out is not None:
        anchor, library = out, library_out
        out_pointer, out_key = library_out.inspect(out)
    keys = library_a, a_key, library_b, b_key, library_c, c_key, library_out, out_key
    return a, b, c, out, a_pointer, b_pointer, c_pointer, out_pointer, keys, anchor, library


def _exported(a: Any, b: Any, c: Any, out: Any, stream: int | None) -> tuple[Any, Any, Any, Any]:
    """Operands, some of a type that is new, with exports in place of those that need one."""
    current = launch_stream(stream, out, c, a)
    given = {"a": a, "b": b, "c": c, "out": out}
    made = {
        name: None
        if array is None and name in ("c", "out")
        else taken(marked(name), array, current)[0]
        for name, array in given.items()
        if not (name == "b" and b is a)  # one export serves both
    }
    return made["a"], made.get("b", made["a"]), made["c"], made["out"]


def run(prepared: tuple[Any, ...]) -> Any:
    """Launch a prepared call, and return its result."""
    route, launch, call, stream, result, anchor, library, ordered = prepared
    if stream is None:
        stream = library.current_stream(anchor)
    if not ordered:
        if launch is not None:
            launch(call, stream)
        return result
    if launch is not None:
        with in_order(ordered, route.resolved.ordinal, stream):
            launch(call, stream)
    return finished(result)


def _special(
    prepared: Prepared,
    arrays: tuple[Any, ...],
    pointers: tuple[int, ...],
    epilogue: CallEpilogue | None,
    symmetry: Symmetry | None,
    is_explained: bool,
) -> Prepared:
    """Add to a call what few need: verified and ordered operands, host copies; or no launch."""
    route = prepared.route
    named = dict(zip(("a", "b", "c", "out"), arrays))
    if epilogue is not None:
        named.update(epilogue.arrays)
    prepared = prepared._replace(ordered=_verified_and_ordered(route, named, prepared.stream))
    if route.is_degenerate:
        *before, alpha, beta = prepared.call[:6]
        inner = None if epilogue is None else epilogue.shape.inner
        if route.resolved.problem.k == 0 and (inner is None or inner.takes_factors):
            alpha = 0
        if _changes_nothing(route, beta, named["out"], epilogue):
            return prepared._replace(launch=None)
        prepared = prepared._replace(call=(*before, alpha, beta, *prepared.call[6:]))
    if route.on_device is None or is_explained:
        return prepared
    if symmetry is not None and symmetry.transposed_name in route.resolved.host_operands:
        name = symmetry.transposed_name
        named[name] = host_view(named[name]).swapaxes(-1, -2)
    if not route.resolved.asked.is_reduced:
        named["c" if named["out"] is None else "out"] = prepared.result
    addresses = dict(zip(("a", "b", "c", "out"), pointers))
    if epilogue is not None:
        addresses.update(epilogue.pointers)
    launch = HostLaunch(route, named, addresses, route.libraries["a"], epilogue)
    return prepared._replace(launch=launch)


class Bound:
    """Prepared call with its arguments packed once, to be run many times."""

    __name__ = "plan"  # that profilers show, such as CuPy's `benchmark`

    def __init__(self, prepared: Prepared, operands: tuple[Any, ...]) -> None:
        self.route, self.result = prepared.route, prepared.result
        self._operands = operands  # kept alive: the launch holds their addresses
        launch = prepared.launch
        self._launch = None if launch is None else launch.fixed(prepared.call)
        self._stream, self._ordered = prepared.stream, prepared.ordered
        self._anchor, self._current_stream = prepared.anchor, prepared.library.current_stream

    def __call__(self) -> Any:
        launch, ordered, given = self._launch, self._ordered, self._stream
        if launch is None and not ordered:
            return self.result
        stream = self._current_stream(self._anchor) if given is None else given
        try:
            if not ordered and launch is not None:
                launch(stream)
                return self.result
            if launch is not None:
                with in_order(ordered, self.route.resolved.ordinal, stream):
                    launch(stream)
            return finished(self.result)
        except DxgemmError as error:
            error.name_call("plan")
            raise


def _new_route(
    key: RouteKey, arrays: tuple[Any, ...], epilogue: BoundEpilogue | None, stream: int
) -> Route:
    """Check the arrays of a key that is new, and make its route."""
    for name, array, own, own_key in zip(("a", "b", "c", "out"), arrays, key[:8:2], key[1:8:2]):
        if own is not None:
            own.check(marked(name), array, own_key)
    if epilogue is not None and key.epilogue is not None:
        check_epilogue_keys(epilogue, key.epilogue)
    with launching_on(stream), first_call:
        return make_route(key)


def _epilogue_operands(
    route: Route, pointers: tuple[Any, ...], values: list[Any]
) -> tuple[Any, ...]:
    """Check the operands of the epilogue and return them as the kernel takes them.

    Args:
        route: the route of the call.
        pointers: addresses of a, b, c and out, then `values`.
        values: the operands by `inspect_epilogue`.
    """
    if route.epilogue_numbers:
        check_numbers(route.epilogue_numbers, values, route.resolved.problem.scalar_dtype)
    for written, other, low, high in route.epilogue_near:
        if low < pointers[other] - pointers[written] < high:
            _check_epilogue_overlap(route, written, other, pointers)
    return kernel_operands(values, route.epilogue_strides)


def _verified_and_ordered(
    route: Route, arrays: dict[str, Any], stream: int | None
) -> tuple[tuple[Library, Any], ...]:
    """Verify doubtful operands; select those whose pending work the launch must wait for.

    With an explicit stream the caller has ordered the libraries' current streams already; only
    exports that name their consumer stream still take part.
    """
    for name in route.doubtful:
        route.libraries[name].verify(marked(name), arrays[name])
    return tuple(
        (route.libraries[name], arrays[name])
        for name in route.ordered
        if stream is None or route.libraries[name].always_ordered
    )


def _changes_nothing(route: Route, beta: float, out: Any, epilogue: CallEpilogue | None) -> bool:
    """True if a call writes nothing: it has an empty result, or C = 0 * A @ B + 1 * C."""
    problem = route.resolved.problem
    if problem.is_empty:
        return not route.resolved.results
    keeps_c = beta == 1 and out is None and epilogue is None
    return problem.k == 0 and keeps_c and not problem.modulus


def _check_places(route: Route, pointers: tuple[int, ...], target: int) -> None:
    """Refuse a misaligned result or c, and a result that shares elements with an operand."""
    bits, c_bits, *ranges = route.near
    if target & bits or pointers[2] & c_bits:
        raise _misaligned(route, pointers[2], target)
    for name, pointer, low, high in zip("abc", pointers, ranges[::2], ranges[1::2]):
        if low < pointer - target < high:
            _check_overlap(route, name, pointer, target)


def _misaligned(route: Route, c: int, target: int) -> LayoutError:
    name, pointer, dtype = _target_name(route), target, route.resolved.problem.out_dtype
    if not target & route.near[0]:
        name, pointer, dtype = "c", c, route.layouts["c"].dtype
    return LayoutError(
        f"gemm: <{name}> starts at address {pointer:#x}, which is not a multiple of the "
        f"{ITEM_SIZES[dtype]}-byte {dtype}; copy it to an aligned array first."
    )


def _target_name(route: Route) -> str:
    return "out" if "out" in route.layouts else "c"


def _check_epilogue_overlap(
    route: Route, written: int, other: int, addresses: tuple[int, ...]
) -> None:
    name, other_name = route.names[written], route.names[other]
    layout, other_layout = route.layouts[name], route.layouts[other_name]
    if share_elements(addresses[written], layout, addresses[other], other_layout):
        raise OverlapError(
            f"gemm: {marked(name)} shares memory with {marked(other_name)}, and is written while "
            "that is used; pass a copy. (A residual that is updated in place is c, with beta=1.)"
        )


def _check_overlap(route: Route, name: str, pointer: int, target_pointer: int) -> None:
    target_name = _target_name(route)
    target = route.layouts[target_name]
    operand = route.layouts[name]
    is_same = operand.shape == target.shape and operand.strides == target.strides
    if name == "c" and pointer == target_pointer and is_same:
        return  # the same memory, element for element: in place after all
    if share_elements(pointer, operand, target_pointer, target):
        raise OverlapError(
            f"gemm: <{target_name}> shares memory with <{name}> (<{name}> is {operand.shape}, "
            f"<{target_name}> is {target.shape}), which is read while <{target_name}> is written; "
            f"pass a copy of <{name}>, or another out=."
        )
