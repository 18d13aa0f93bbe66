"""Routes: everything that follows from the operands' layouts, decided once.

A call is resolved, its kernel chosen, its program lowered and bound (`resolve`, `bind`). The key of
a route holds the libraries' own shape, stride and dtype objects, so that a repeated call finds all
of that with one dictionary look-up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import DEBUG
from typing import Any, NamedTuple, get_args

import numpy as np

from dxgemm.call.asked import Asked
from dxgemm.call.bind import Decision, bind
from dxgemm.call.epilogue import OperandStrides
from dxgemm.call.resolve import Resolved, resolve
from dxgemm.errors import DxgemmError, SettingError, ShapeError
from dxgemm.log import logger
from dxgemm.problem.arguments import Conjugate, check_name, check_triangular
from dxgemm.problem.complex_form import ComplexForm
from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES
from dxgemm.problem.layout import (
    MAX_ALIGNMENT,
    Layout,
    aligned,
    byte_extent,
    conjugated,
    transposed,
)
from dxgemm.problem.problem import Problem
from dxgemm.runtime.arrays import HOST, Library
from dxgemm.runtime.binding import Launch
from dxgemm.runtime.host import device_copy_layout

# Largest number of each dtype of alpha and beta.
LARGEST = {dtype: float(np.finfo(dtype).max) for dtype in ("float32", "float64")}
CONJUGATES = get_args(Conjugate)

# A service that never repeats a shape must not grow without bound.
_MAX_ROUTES = 4096
routes: dict[Any, Route] = {}  # by `Asked.key` and `RouteKey`; read directly where time matters


class Symmetry(NamedTuple):
    """Symmetric product, asked for as such.

    Attributes:
        triangle: triangles of the result that are written: "both", "lower" or "upper".
        transpose: True for a.T @ b, False for a @ b.T.
        adds_transpose: True if the transposed product is added; else b is a.
    """

    triangle: str
    transpose: bool
    adds_transpose: bool

    @property
    def transposed_name(self) -> str:
        """Name of the operand that is taken transposed."""
        return "a" if self.transpose else "b"

    @property
    def names(self) -> dict[str, str]:
        """Names of the two factors, in the caller's words."""
        names = {"a": "a", "b": "b" if self.adds_transpose else "a"}
        return names | {self.transposed_name: f"{names[self.transposed_name]}.T"}


class RouteKey(NamedTuple):
    """Key of a call's route. `prepare` looks a plain tuple of these up, which is quicker to make.

    Attributes:
        a_library, a, b_library, b, c_library, c, out_library, out: library of each operand, and
            its key there; None twice for one that is absent.
        a_alignment, b_alignment: bytes, see `ALIGNMENTS`.
        alpha_is_zero, beta_is_zero: True if the number is 0.
        precision, implementation, conjugate, triangular: as `gemm` takes them.
        epilogue: key by `inspect_epilogue`; None without an epilogue.
        symmetry: a `Symmetry`; or True if a and b begin at the same address, else False.
    """

    a_library: Library
    a: Any
    b_library: Library
    b: Any
    c_library: Library | None
    c: Any
    out_library: Library | None
    out: Any
    a_alignment: int
    b_alignment: int
    alpha_is_zero: bool
    beta_is_zero: bool
    precision: Any
    implementation: Any
    epilogue: tuple[Any, ...] | None
    symmetry: Symmetry | bool
    conjugate: Any
    triangular: Any

    @property
    def arrays(self) -> dict[str, tuple[Library, Any, int]]:
        """Library, key and alignment of each array of the call, by its name."""
        found = {
            "a": (self.a_library, self.a, self.a_alignment),
            "b": (self.b_library, self.b, self.b_alignment),
        }
        if self.c_library is not None:
            found["c"] = self.c_library, self.c, MAX_ALIGNMENT
        if self.out_library is not None:
            found["out"] = self.out_library, self.out, MAX_ALIGNMENT
        if self.epilogue is not None:
            shape, *arrays = self.epilogue
            found |= zip(shape.array_labels, zip(*(arrays[i::3] for i in range(3))))
        return found


@dataclass(eq=False)
class Route:
    """Problem, decision and launch of all calls with the same layouts.

    Attributes:
        resolved: the operands' problem.
        decision: the kernels that compute it.
        on_device: the route of the copies of host operands; None without any.
        launch: launch of the program; None if nothing is launched, or a `HostLaunch` is.
        is_transposed: True if the kernel takes b for a and a for b.
        reads_separate_c: True if c is read, and is not the result.
        least_scalar, largest_scalar: bounds of alpha and beta.
        complex_form: form in which complex matrices are multiplied; None of real ones.
        takes_integers: True if alpha and beta must be integers.
        is_degenerate: True if k is 0, or the result is empty.
        near: masks of the bits that are 0 in valid addresses of out and c; then a range in bytes
            for each of a, b and c. An operand's extent meets the result's if the distance of its
            pointer from the result's is strictly within.
        names: names of all operands, those of the epilogue last; None for numbers.
        epilogue_near: pairs of a written operand and another one, at least one of them an array of
            the epilogue: their places among `names`, and such a range.
        epilogue_numbers, epilogue_strides: `BoundEpilogue.numbers` and `Resolved.strides`.
        libraries: libraries of the operands by name. This and the attributes below depend on the
            libraries.
        doubtful: names of the operands whose library must verify each array.
        ordered: names of the device operands whose streams may differ from the launch's, and of
            all exports.
        is_special: True if a call needs more than the checks of pointers: ordered, doubtful or host
            operands, a reduction, k == 0 or an empty result.
    """

    resolved: Resolved
    decision: Decision
    on_device: Route | None
    launch: Launch | None
    is_transposed: bool
    reads_separate_c: bool
    least_scalar: float
    largest_scalar: float
    complex_form: ComplexForm | None
    takes_integers: bool
    is_degenerate: bool
    near: tuple[int, ...]
    names: tuple[Any, ...]
    epilogue_near: tuple[tuple[int, int, int, int], ...]
    epilogue_numbers: Sequence[Any]
    epilogue_strides: OperandStrides
    libraries: Mapping[str, Library]
    doubtful: tuple[str, ...]
    ordered: tuple[str, ...]
    is_special: bool

    @property
    def problem(self) -> Problem:
        """Problem of the kernel's product, in its orientation."""
        return self.decision.computation.product

    @property
    def asked(self) -> Problem:
        """Problem that was asked for: the whole, and the complex one if there is one."""
        return self.resolved.problem if self.resolved.pieces else self.decision.computation.asked

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """Layouts of the operands by name, as the caller passed them."""
        return self.resolved.asked.layouts

    def for_libraries(self, libraries: dict[str, Library], doubtful: tuple[str, ...]) -> Route:
        """Return a copy of this route for operands of these libraries."""
        resolved = self.resolved
        ordered: tuple[str, ...] = ()
        are_mixed = len(set(libraries.values())) > 1 or resolved.host_operands
        if are_mixed or libraries["a"].always_ordered:
            ordered = tuple(
                name
                for name, layout in self.layouts.items()
                if layout.device != HOST or libraries[name].always_ordered
            )
        is_special = ordered or doubtful or resolved.host_operands or resolved.asked.is_reduced
        is_special = is_special or self.is_degenerate
        route = Route.__new__(Route)
        vars(route).update(vars(self))  # in a fraction of the time of `replace`
        route.libraries, route.doubtful, route.ordered = libraries, doubtful, ordered
        route.is_special = bool(is_special)
        return route


def clear_routes() -> None:
    """Forget every decision and launch, so that kernels are looked up and built again."""
    routes.clear()


def route_of_layouts(asked: Asked) -> Route:
    """Find or make the route of operands given by their layouts, of any library."""
    key = asked.key
    try:
        route = routes.get(key)
    except Exception:  # of an argument without a hash, which is refused
        route = None
    return route or _remember(key, _new_route(resolve(asked)))


def _new_route(resolved: Resolved) -> Route:
    """Decide on a resolved call, or on the one with copies of its host operands."""
    asked, problem = resolved.asked, resolved.problem
    if resolved.host_operands:
        copies = {
            name: device_copy_layout(layout, resolved.ordinal) if layout.device == HOST else layout
            for name, layout in asked.layouts.items()
        }
        triangle = asked.triangle if asked.is_symmetric else ""
        on_device = route_of_layouts(asked._replace(layouts=copies, triangle=triangle))
        decision = on_device.decision
    else:
        on_device, decision = None, bind(resolved)
        if logger.isEnabledFor(DEBUG):  # the texts take microseconds of a first call
            size = " x ".join(map(str, (*resolved.shape, problem.k)))
            chosen = f"{decision.candidate}, {decision.candidate.reason}"
            logger.debug("gemm %s %s on %s: %s", size, problem.dtype, resolved.device.name, chosen)
    reads_separate_c = problem.reads_c and not problem.in_place
    names = ("a", "b", "c", "out", *(asked.epilogue.labels if asked.epilogue else ()))
    computation, (least, largest) = decision.computation, scalar_range(problem)
    return Route(
        resolved=resolved,
        decision=decision,
        on_device=on_device,
        launch=None if on_device else decision.launch,
        is_transposed=(problem if resolved.pieces else computation.asked).is_transposed,
        reads_separate_c=reads_separate_c,
        least_scalar=least,
        largest_scalar=largest,
        complex_form=computation.form,
        takes_integers=problem.is_integer,
        is_degenerate=problem.k == 0 or problem.is_empty,
        near=_near(resolved, reads_separate_c),
        names=names,
        epilogue_near=_epilogue_near(resolved, names, reads_separate_c),
        epilogue_numbers=asked.epilogue.numbers if asked.epilogue else (),
        epilogue_strides=resolved.strides,
        libraries={},
        doubtful=(),
        ordered=(),
        is_special=True,
    )


def _near(resolved: Resolved, reads_separate_c: bool) -> tuple[int, ...]:
    """`Route.near` of a resolved call."""
    layouts, problem = resolved.asked.layouts, resolved.problem
    # The address of an empty array is free, like its strides.
    bits = c_bits = 0
    if not problem.is_empty:
        bits = ITEM_SIZES[problem.out_dtype] - 1
        c_bits = ITEM_SIZES[problem.c_dtype] - 1 if reads_separate_c else 0
    target = layouts.get("out") or (None if resolved.asked.is_reduced else layouts.get("c"))
    a, b = (layouts["a"], layouts["b"]) if problem.k else (None, None)
    c = layouts["c"] if reads_separate_c else None
    target_extent = None if target is None else byte_extent(target)
    ranges = [_overlap_range(operand, target_extent) for operand in (a, b, c)]
    return bits, c_bits, *ranges[0], *ranges[1], *ranges[2]


def _epilogue_near(
    resolved: Resolved, names: tuple[Any, ...], reads_separate_c: bool
) -> tuple[tuple[int, int, int, int], ...]:
    """`Route.epilogue_near` of a resolved call."""
    layouts, epilogue = resolved.asked.layouts, resolved.asked.epilogue
    if epilogue is None:
        return ()
    labels = epilogue.array_labels
    targets = ("out",) if epilogue.reduction else ("out", "c")
    target = [name for name in targets if name in layouts][:1]
    written = [*target, *filter(epilogue.is_output, labels)]
    used = dict(layouts)
    if "c" not in target and not reads_separate_c:
        used.pop("c", None)
    return tuple(
        (names.index(name), names.index(other), *_overlap_range(layout, byte_extent(layouts[name])))
        for name in written
        for other, layout in used.items()
        if other != name
        and (name in labels or other in labels)
        and layout.device == layouts[name].device
    )


def _overlap_range(operand: Layout | None, target: tuple[int, int] | None) -> tuple[int, int]:
    if operand is None or target is None:
        return 0, 0  # never read, or newly allocated
    first, end = byte_extent(operand)
    return target[0] - end, target[1] - first


def scalar_range(problem: Problem) -> tuple[float, float]:
    """Bounds of alpha and beta: of integers, what the result's signed and unsigned dtype hold.

    Those of operands of 8 and 16 bits are int32, whatever the result.
    """
    if not problem.is_integer:
        most = LARGEST[problem.scalar_dtype]
        return -most, most
    if problem.modulus:
        return -math.inf, math.inf
    if problem.out_dtype == "bool":
        return 0, 1
    if problem.scalar_dtype == "int32":
        return -(2**31), 2**31 - 1
    bits = 8 * ITEM_SIZES[problem.out_dtype]
    return -(2 ** (bits - 1)), 2**bits - 1


def make_route(key: RouteKey) -> Route:
    """Make the route of a call that is not among `routes` yet."""
    arrays = key.arrays
    layouts = {
        name: aligned(library.layout(layout_key), alignment)
        for name, (library, layout_key, alignment) in arrays.items()
    }
    symmetry = key.symmetry
    triangle, adds_transpose = "either" if symmetry is True else "", False
    if isinstance(symmetry, Symmetry):
        triangle, adds_transpose = symmetry.triangle, symmetry.adds_transpose
        if layouts["a"].shape[-2:] != layouts["b"].shape[-2:]:
            raise ShapeError(
                f"gemm_symmetric: a is {layouts['a'].shape}, b is {layouts['b'].shape}; "
                "their matrices must have the same shape."
            )
        name = symmetry.transposed_name
        layouts[name] = transposed(layouts[name])
        if layouts[name].dtype in COMPLEX_PARTS:  # a @ a.conj().T is Hermitian
            layouts[name] = conjugated(layouts[name])
    for name in check_name("conjugate", key.conjugate, CONJUGATES, SettingError):
        layouts[name] = conjugated(layouts[name])
    epilogue = None if key.epilogue is None else key.epilogue[0]
    triangular = None if key.triangular is None else check_triangular(key.triangular)
    if triangular == (None, None):
        triangular = None
    try:
        asked = Asked(layouts, *key[10:14], epilogue, triangle, adds_transpose, triangular)
        shared = route_of_layouts(asked)
    except DxgemmError as error:
        if isinstance(symmetry, Symmetry):
            error.name_call(**symmetry.names)
        raise
    libraries = {name: library for name, (library, _, _) in arrays.items()}
    doubtful = tuple([n for n, (library, own_key, _) in arrays.items() if library.doubts(own_key)])
    return _remember(key, shared.for_libraries(libraries, doubtful))


def _remember(key: Any, route: Route) -> Route:
    if len(routes) >= _MAX_ROUTES:
        routes.clear()
    routes[key] = route
    return route
