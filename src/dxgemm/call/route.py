"""Routes: everything that follows from the operands' layouts, decided once.

The key of a route holds the libraries' own shape, stride and dtype objects, so that a repeated call
finds its problem, decision and launch with one dictionary look-up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property, partial
from logging import DEBUG
from typing import Any, NamedTuple

import numpy as np

from dxgemm.call.bind import Decided, bind_first
from dxgemm.call.complex_call import (
    check_complex,
    complex_epilogue,
    form_of_call,
)
from dxgemm.call.epilogue import (
    OperandStrides,
    fuse,
    refuse_missing_out,
    refuse_with_mask,
    takes_flattened_rows,
)
from dxgemm.choice.batch_invariant import BatchInvariant, for_any_rows, rank_for_any_rows
from dxgemm.choice.legality import Candidate
from dxgemm.choice.selection import Ranking, choose, rank
from dxgemm.epilogues.chain import BoundEpilogue
from dxgemm.epilogues.check import check_operands, check_results
from dxgemm.epilogues.reduction import Reduction
from dxgemm.errors import (
    DeviceMismatchError,
    DxgemmError,
    SettingError,
    ShapeError,
    UnsupportedProblemError,
)
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.parts.triangle import OTHER
from dxgemm.log import logger
from dxgemm.lower.pieces import lower_pieces
from dxgemm.lower.reduced import ResultArray, result_array
from dxgemm.problem.arguments import check_name
from dxgemm.problem.complex_form import ComplexForm
from dxgemm.problem.define import define_problem
from dxgemm.problem.dtypes import COMPLEX_PARTS, EMULATED, ITEM_SIZES
from dxgemm.problem.layout import MAX_ALIGNMENT, Layout, aligned, byte_extent, transposed
from dxgemm.problem.pieces import pieces_of
from dxgemm.problem.problem import Problem, flattened, oriented, stored_problem
from dxgemm.runtime.arrays import HOST, Library
from dxgemm.runtime.binding import Launch
from dxgemm.runtime.device import device_facts
from dxgemm.runtime.host import contiguous_layout, device_copy_layout
from dxgemm.runtime.program import Program

# A service that never repeats a shape must not grow without bound.
_MAX_ROUTES = 4096
CONJUGATES = ("", "a", "b", "ab")
routes: dict[Any, Route] = {}  # by the keys of make_route; read directly where time matters


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


class Route:
    """Problem, decision and launch of all calls with the same layouts.

    Attributes:
        problem: the problem in the kernels' orientation; of a complex one, that of its form.
        complex_form: the form in which a complex problem is computed; None for a real one.
        out_dtype, k, is_empty, is_transposed: copies of the problem's attributes.
        sums: dtype of the sums, in which alpha and beta apply.
        takes_integers: True if alpha and beta must be integers.
        least_scalar, largest_scalar: bounds of alpha and beta.
        misalignment, c_misalignment: masks of the bits that are 0 in valid addresses of out and c.
        shape: shape of the result as the caller sees it.
        layouts: layouts of the operands by name, as the caller passed them; arrays of the epilogue
            are named by its labels.
        epilogue: shape of the epilogue; None without one.
        reduction: the reduction that ends the epilogue; None without one.
        results: shape and dtype of each array that the reduction writes, by label.
        epilogue_strides: strides of the epilogue's operands as the kernel walks over them; see
            `fuse`.
        epilogue_numbers: `BoundEpilogue.numbers` of the epilogue.
        names: names of all operands, those of the epilogue last; None for numbers.
        epilogue_near: pairs of a written operand and another one, at least one of them an array of
            the epilogue: their places among `names`, and a range of distances like a_near.
        host_operands: names of the operands that are copied to the GPU and back.
        ordinal, device: ordinal and facts of the GPU.
        implementation: implementation that the caller asked for.
        candidate: candidate that the launch runs.
        on_device: the route on the GPU: this one, or the route of the copies of host operands.
        pieces: pieces in which a very large problem is computed, each by a launch of its own; the
            problem and the candidate are those of the first.
        program: kernels of the launch; None if nothing is launched, or a `HostLaunch` is.
        launch: launch of the program; None if there is none.
        a_near, b_near, c_near: range in bytes. An operand's extent meets the result's if the
            distance of its pointer from the result's lies strictly within.
        libraries: libraries of the operands by name. This and the attributes below depend on the
            libraries.
        doubtful: names of the operands whose library must verify each array.
        ordered: names of the device operands whose streams may differ from the launch's, and of
            all exports.
        is_special: True if a call needs more than the checks of pointers: ordered, doubtful or host
            operands, integer scalars, a reduction, k == 0 or an empty result.
    """

    def __init__(
        self,
        layouts: dict[str, Layout],
        alpha_is_zero: bool,
        beta_is_zero: bool,
        precision: Any,
        implementation: Any,
        epilogue: BoundEpilogue | None = None,
        triangle: str = "",
        adds_transpose: bool = False,
    ) -> None:
        is_complex = layouts["a"].dtype in COMPLEX_PARTS
        if is_complex and epilogue is not None:
            epilogue = complex_epilogue(epilogue)
        self.layouts = layouts
        self.epilogue = epilogue
        self.reduction = epilogue.reduction if epilogue else None
        self.epilogue_numbers = epilogue.numbers if epilogue else ()
        self.results: dict[str, tuple[tuple[int, ...], str]] = {}
        self.epilogue_strides: OperandStrides = ()
        self.names: tuple[Any, ...] = ("a", "b", "c", "out")
        self.epilogue_near: tuple[tuple[int, int, int, int], ...] = ()
        self.problem, self.shape = define_problem(
            layouts["a"],
            layouts["b"],
            layouts.get("c"),
            layouts.get("out"),
            alpha_is_zero=alpha_is_zero,
            beta_is_zero=beta_is_zero,
            precision=precision,
            has_epilogue=epilogue is not None and epilogue.has_functions,
            is_reduced=self.reduction is not None,
            reduced_axis=None if "out" in layouts or not self.reduction else self.reduction.axis,
            takes_pairs=epilogue is not None and epilogue.takes_pairs,
            takes_complex=True,
            is_real=epilogue is not None and epilogue.is_real,
        )
        if isinstance(implementation, BatchInvariant):
            self.problem = for_any_rows(self.problem)
        if is_complex:
            is_reduced = self.reduction is not None
            check_complex(self.problem, layouts, is_reduced, triangle, adds_transpose)
        self.libraries: dict[str, Library] = {}
        self.doubtful: tuple[str, ...] = ()
        self.ordered: tuple[str, ...] = ()
        self.is_special = True
        self.implementation = implementation
        if epilogue is not None:
            self._check_epilogue(epilogue)
        self.ordinal = self._find_ordinal()
        self.device = device_facts(self.ordinal)
        flat = self._flattened() if triangle in ("", "either") else None
        if flat is not None:
            self.problem = flat
        self.out_dtype = self.problem.out_dtype
        self.k = self.problem.k
        self.is_empty = self.problem.is_empty
        self.reads_separate_c = self.problem.reads_c and not self.problem.in_place
        # The address of an empty array is free, like its strides.
        self.misalignment = 0 if self.is_empty else ITEM_SIZES[self.out_dtype] - 1
        is_c_aligned = self.is_empty or not self.reads_separate_c  # then it is the result or unread
        self.c_misalignment = 0 if is_c_aligned else ITEM_SIZES[self.problem.c_dtype] - 1
        self.sums = self.problem.scalar_dtype
        self.takes_integers = self.sums == "int32"
        if epilogue is not None:
            self._add_epilogue(epilogue, None if flat is None else self.shape[-2])
        self._whole = whole = self.problem
        self.is_transposed = whole.is_transposed
        self.pieces = pieces_of(whole, is_symmetric=triangle not in ("", "either"))
        if self.pieces:
            self.problem, triangle = self.pieces[0].problem, ""
        self.complex_form: ComplexForm | None = None
        reduced: Problem | None = None
        if is_complex:
            stored = self.problem
            if self.reduction is not None:
                reduced, stored = self.problem, stored_problem(self.problem)
            self.complex_form = form_of_call(stored, layouts, triangle, implementation, self.device)
            self.problem = self.complex_form.product
            if not self.pieces:
                self.is_transposed = self.complex_form.problem.is_transposed
        elif triangle:
            self.problem = self._with_triangle(triangle, adds_transpose)
        self.least_scalar, self.largest_scalar = _scalar_range(self.sums)
        target = layouts.get("out") or (None if self.reduction else layouts.get("c"))
        self.a_near = self._overlap_range(layouts["a"] if self.k else None, target)
        self.b_near = self._overlap_range(layouts["b"] if self.k else None, target)
        self.c_near = self._overlap_range(layouts.get("c"), target)

        self.host_operands: tuple[str, ...] = ()
        if not simulator_enabled():
            self.host_operands = tuple(n for n, layout in layouts.items() if layout.device == HOST)
        self.on_device: Route = self
        self.candidate: Candidate
        self.program: Program | None = None
        self.launch: Launch | None = None
        if self.host_operands:
            copies = {
                name: device_copy_layout(layout, self.ordinal) if layout.device == HOST else layout
                for name, layout in layouts.items()
            }
            self.on_device = route_of_layouts(
                copies,
                alpha_is_zero,
                beta_is_zero,
                precision,
                implementation,
                epilogue,
                "" if triangle == "either" else triangle,
                adds_transpose,
            )
            self.candidate = self.on_device.candidate
            return
        self.candidate = self._choose(self.problem)
        if self.pieces:
            self.program = self._lower_pieces(whole)
            self.launch = self.program.bind(self.device.arch, self.ordinal)
        elif not self.is_empty or self.results:
            self.candidate, self.program, self.launch = self._bind(
                self.problem, self.complex_form, self.candidate, lambda: self.ranking, reduced
            )
        if logger.isEnabledFor(DEBUG):  # the texts take microseconds of a first call
            size = " x ".join(map(str, (*self.shape, self.k)))
            dtype, chosen = layouts["a"].dtype, f"{self.candidate}, {self.candidate.reason}"
            logger.debug("gemm %s %s on %s: %s", size, dtype, self.device.name, chosen)

    @property
    def asked(self) -> Problem:
        """Problem that was asked for: the whole, and the complex one if there is one."""
        if self.pieces:
            return self._whole
        return self.complex_form.problem if self.complex_form else self.problem

    @cached_property
    def ranking(self) -> Ranking:
        """All candidates, and the refusals of the other implementations."""
        return self._rank(self.problem) if self.on_device is self else self.on_device.ranking

    def _rank(self, problem: Problem) -> Ranking:
        asked = self.implementation
        if isinstance(asked, BatchInvariant):
            return rank_for_any_rows(problem, self.device, asked.implementation)
        return rank(problem, self.device, asked)

    def _choose(self, problem: Problem) -> Candidate:
        if isinstance(self.implementation, BatchInvariant):
            return self._rank(problem).candidates[0]
        return choose(problem, self.device, self.implementation)

    def _bind(
        self,
        problem: Problem,
        form: ComplexForm | None,
        candidate: Candidate,
        ranking: Callable[[], Ranking],
        reduced: Problem | None = None,
    ) -> tuple[Candidate, Program, Launch]:
        """Bind a candidate, or one that takes its place; see `Decided`."""
        decided = Decided(
            problem,
            form,
            reduced,
            self._result_arrays(),
            self.device,
            self.ordinal,
            ranking,
        )
        return bind_first(decided, candidate)

    def _lower_pieces(self, whole: Problem) -> Program:
        """Program of the pieces of a problem, whose kernels are built."""
        lowered: dict[Problem, tuple[Program, bool]] = {}
        for problem in dict.fromkeys(piece.problem for piece in self.pieces):
            form, computed = None, problem
            is_transposed = problem.is_transposed
            if problem.dtype in COMPLEX_PARTS:
                form = form_of_call(problem, self.layouts, "", self.implementation, self.device)
                computed, is_transposed = form.product, form.problem.is_transposed
            candidate = self._choose(computed)
            _, program, _ = self._bind(computed, form, candidate, partial(self._rank, computed))
            lowered[problem] = program, is_transposed != whole.is_transposed
        pieces = [(piece, *lowered[piece.problem]) for piece in self.pieces]
        return lower_pieces(whole, pieces, [steps for _, steps in self.epilogue_strides])

    def _with_triangle(self, triangle: str, adds_transpose: bool) -> Problem:
        """Problem of a symmetric result, in which `Problem.triangle` is set.

        For "either", a and b are known to begin at the same address. If their layouts or the call
        do not make the result symmetric, it is computed as any other.

        Raises:
            UnsupportedProblemError: what the epilogue makes of the result is no square matrix, or
                sums of int32 would have to be added up or written in part.
        """
        problem = self.problem
        is_square = self.reduction is None and not problem.takes_pairs
        if triangle == "either":
            is_plain = self.implementation is None and not problem.reads_c
            is_plain = is_plain and problem.k > 0 and not problem.is_empty
            is_plain = is_plain and problem.batch == 1 and problem.epilogue is None
            is_same = problem.m == problem.n and problem.a == problem.b.transposed()
            if not (is_square and is_plain and is_same):
                return problem
        elif not is_square:
            raise UnsupportedProblemError(
                "gemm_symmetric: the epilogue reduces the result or takes pairs of its columns, "
                "and what it makes is no square matrix; call gemm(a, a.T, ...) instead."
            )
        elif problem.scalar_dtype == "int32" and (triangle != "both" or adds_transpose):
            raise UnsupportedProblemError(
                "gemm_symmetric: a product of int8 is written whole, and its transpose is not "
                'added; pass triangle="both" and no b.'
            )
        if problem.is_transposed:
            triangle = OTHER.get(triangle, triangle)
        return replace(problem, triangle=triangle, adds_transpose=adds_transpose)

    def _flattened(self) -> Problem | None:
        """Problem of one matrix in place of a batch, see `flattened`; None to leave the batch.

        Columns are left with an epilogue; in emulated products, because b may be prepared as a
        batch; and in batch-invariant ones, because n decides on the order of their sums.
        """
        problem, epilogue = self.problem, self.epilogue
        *_, m, _ = self.shape
        is_invariant = isinstance(self.implementation, BatchInvariant)
        is_emulated = (problem.precision or "").startswith(EMULATED)
        takes_columns = epilogue is None and not (is_invariant or is_emulated)
        flat = flattened(problem, takes_columns=takes_columns)
        if flat is None:
            return None
        if epilogue is not None and not takes_flattened_rows(epilogue, self.layouts, m):
            return None
        if is_invariant and m == 1 and flat.a.row != flat.k:
            return None  # a single row counts as the first of several without gaps
        takes_pairs = epilogue is not None and epilogue.takes_pairs
        return flat if takes_pairs else oriented(flat)  # exchanged, pairs would be of rows

    def _find_ordinal(self) -> int:
        """Ordinal of the operands' GPU, 0 if all are in host memory."""
        on_device = {layout.device for layout in self.layouts.values()} - {HOST}
        if simulator_enabled() and on_device:
            raise DeviceMismatchError(
                f"gemm: an operand is on GPU {on_device.pop()}, but NUMBA_ENABLE_CUDASIM is set: "
                "the simulator runs on host memory; pass NumPy arrays, or unset the variable."
            )
        return on_device.pop() if on_device else 0

    def _check_epilogue(self, epilogue: BoundEpilogue) -> None:
        """Check the epilogue's operands against the result."""
        if not {"c", "out"} & self.layouts.keys():
            refuse_missing_out(epilogue, self.problem.dtype)
        if epilogue.is_masked:
            is_invariant = isinstance(self.implementation, BatchInvariant)
            refuse_with_mask(self.problem, epilogue, is_invariant)
        *batch, m, n = self.shape
        devices = {layout.device for name, layout in self.layouts.items() if name in ("a", "b")}
        check_operands(
            epilogue.operands,
            [
                self.layouts[label] if label else None
                for label in epilogue.labels[: len(epilogue.operands)]
            ],
            m,
            epilogue.columns(self.problem.n if epilogue.takes_pairs else n),
            batch[0] if batch else 1,
            max(devices),
            self.problem.dtype,
        )
        if epilogue.reduction is not None:
            self._add_results(epilogue, epilogue.reduction, m, n, tuple(batch), max(devices))

    def _add_epilogue(self, epilogue: BoundEpilogue, flattened_rows: int | None) -> None:
        """Add the epilogue to the problem: see `fuse`."""
        self.problem, self.epilogue_strides = fuse(
            self.problem, epilogue, self.layouts, flattened_rows
        )
        labels = epilogue.array_labels
        targets = ("out",) if epilogue.reduction else ("out", "c")
        target = [name for name in targets if name in self.layouts][:1]
        written = [*target, *filter(epilogue.is_output, labels)]
        self.names += epilogue.labels
        place = self.names.index
        used = dict(self.layouts)
        if "c" not in target and not self.reads_separate_c:
            used.pop("c", None)
        self.epilogue_near = tuple(
            (place(name), place(other), *self._overlap_range(layout, self.layouts[name]))
            for name in written
            for other, layout in used.items()
            if other != name
            and (name in labels or other in labels)
            and layout.device == self.layouts[name].device
        )

    def _add_results(
        self,
        epilogue: BoundEpilogue,
        reduction: Reduction,
        m: int,
        n: int,
        batch: tuple[int, ...],
        device: int,
    ) -> None:
        """Set the shapes and dtypes of a reduction's results; check the arrays passed for them."""
        reduction.check_sizes(m, n, math.prod(batch))
        shapes, dtypes = reduction.shapes(m, n, batch), reduction.dtypes(self.problem.out_dtype)
        self.results = {
            label: (shapes[name], dtypes[name]) for name, label in epilogue.result_labels.items()
        }
        if reduction.out:
            check_results(self.results, self.layouts, device)

    def _result_arrays(self) -> dict[str, ResultArray]:
        """Arrays that the reduction writes, by the names of the results."""
        arrays: dict[str, ResultArray] = {}
        if self.epilogue is None or self.reduction is None:
            return arrays
        for name, label in self.epilogue.result_labels.items():
            shape, dtype = self.results[label]
            layout = self.layouts.get(label) or contiguous_layout(shape, dtype, self.ordinal)
            arrays[name] = result_array(self.reduction, name, layout, len(self.shape) == 3)
        return arrays

    def for_libraries(self, libraries: dict[str, Library], doubtful: tuple[str, ...]) -> Route:
        """Return a copy of this route for operands of these libraries."""
        route = Route.__new__(Route)
        vars(route).update(vars(self))
        route.libraries = libraries
        route.doubtful = doubtful
        are_mixed = len(set(libraries.values())) > 1 or bool(self.host_operands)
        if are_mixed or libraries["a"].always_ordered:
            route.ordered = tuple(
                name
                for name, layout in self.layouts.items()
                if layout.device != HOST or libraries[name].always_ordered
            )
        is_degenerate = self.k == 0 or self.is_empty
        route.is_special = bool(
            route.ordered or doubtful or self.host_operands or self.takes_integers or is_degenerate
        )
        route.is_special |= self.reduction is not None
        return route

    def _overlap_range(self, operand: Layout | None, target: Layout | None) -> tuple[int, int]:
        if operand is None or target is None:
            return 0, 0  # never read, or newly allocated
        first, end = byte_extent(operand)
        target_first, target_end = byte_extent(target)
        return target_first - end, target_end - first


@cache
def _scalar_range(dtype: str) -> tuple[float, float]:
    """Bounds of alpha and beta for a dtype of scalars."""
    limits = np.iinfo(dtype) if dtype == "int32" else np.finfo(dtype)
    return float(limits.min), float(limits.max)


def clear_routes() -> None:
    """Forget every decision and launch, so that kernels are looked up and built again."""
    routes.clear()


def route_of_layouts(
    layouts: dict[str, Layout],
    alpha_is_zero: bool,
    beta_is_zero: bool,
    precision: Any,
    implementation: Any,
    epilogue: BoundEpilogue | None = None,
    triangle: str = "",
    adds_transpose: bool = False,
) -> Route:
    """Find or make the route of operands given by their layouts, of any library."""
    rest = (
        alpha_is_zero, beta_is_zero, precision, implementation, epilogue, triangle, adds_transpose
    )  # fmt: skip
    key = (*layouts.items(), *rest)
    with suppress(Exception):  # of a new key; or of an argument without a hash, which is refused
        return routes[key]
    return _remember(key, Route(layouts, *rest))


def make_route(key: tuple[Any, ...]) -> Route:
    """Make the route of a call that is not among `routes` yet.

    Args:
        key: for each of a, b, c and out its library and its key there, or None twice; then the
            alignments of a and b, whether alpha is 0, whether beta is 0, `precision`,
            `implementation`, and the key by `inspect_epilogue` or None; True if a and b begin at
            the same address, or else False, or a `Symmetry`. Last the names of the operands that
            are conjugated.
    """
    operands, (a_alignment, b_alignment) = key[:8], key[8:10]
    epilogue: BoundEpilogue | None = None
    arrays: tuple[Any, ...] = ()
    if key[14] is not None:
        epilogue, *arrays = key[14]
    keys = {
        name: (library, layout_key)
        for name, library, layout_key in zip(("a", "b", "c", "out"), operands[::2], operands[1::2])
        if library is not None
    }
    alignments = {}
    labels = epilogue.array_labels if epilogue else ()
    for label, library, layout_key, alignment in zip(labels, *(arrays[i::3] for i in range(3))):
        keys[label], alignments[label] = (library, layout_key), alignment
    libraries = {name: library for name, (library, _) in keys.items()}
    alignments["a"], alignments["b"] = a_alignment, b_alignment
    layouts = {}
    for name, (library, layout_key) in keys.items():
        alignment = alignments.get(name, MAX_ALIGNMENT)
        layouts[name] = aligned(library.layout(layout_key), alignment)
    doubtful = tuple(n for n, (library, layout_key) in keys.items() if library.doubts(layout_key))
    alpha_is_zero, beta_is_zero, precision, implementation = key[10:14]
    symmetry = key[15]
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
            is_conjugate = not layouts[name].is_conjugate
            layouts[name] = layouts[name]._replace(is_conjugate=is_conjugate)
    for name in check_name("conjugate", key[16], CONJUGATES, SettingError):
        layouts[name] = layouts[name]._replace(is_conjugate=not layouts[name].is_conjugate)
    try:
        shared = route_of_layouts(
            layouts, alpha_is_zero, beta_is_zero, precision, implementation, epilogue, triangle,
            adds_transpose,
        )  # fmt: skip
    except DxgemmError as error:
        if isinstance(symmetry, Symmetry):
            error.name_call(**symmetry.names)
        raise
    return _remember(key, shared.for_libraries(libraries, doubtful))


def _remember(key: Any, route: Route) -> Route:
    if len(routes) >= _MAX_ROUTES:
        routes.clear()
    routes[key] = route
    return route
