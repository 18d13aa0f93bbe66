"""Choice and binding of a resolved call: its kernel, and the launch of all kernels around it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from dxgemm.call.complex_call import form_of_call
from dxgemm.call.resolve import Resolved, with_triangle
from dxgemm.choice.batch_invariant import choose_asked, rank_asked
from dxgemm.choice.byte_products import form_of_integers, truth_as_bytes
from dxgemm.choice.implementation import Cublas
from dxgemm.choice.legality import Candidate, triangular
from dxgemm.errors import BuildError, MissingPackageError
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.log import logger
from dxgemm.lower.byte_products import lower_digits, lower_joined
from dxgemm.lower.complex_product import complex_cublas, lower_complex
from dxgemm.lower.pieces import lower_pieces
from dxgemm.lower.product import lower_candidate, lower_sums
from dxgemm.lower.reduced import ResultArray, lower_reduced
from dxgemm.lower.residue_products import lower_modular, lower_remainders, lower_residues
from dxgemm.lower.triangular import lower_clean_copies
from dxgemm.problem.complex_form import ComplexForm
from dxgemm.problem.dtypes import PRODUCT_BITS
from dxgemm.problem.integer_forms import (
    DigitForm,
    IntegerForm,
    JoinedForm,
    RemainderForm,
    ResidueForm,
)
from dxgemm.problem.problem import Problem, exchanged, sliced_problem, stored_problem
from dxgemm.problem.triangular import CleanCopy
from dxgemm.runtime.binding import Launch
from dxgemm.runtime.program import Program

NONE: Mapping[str, Any] = MappingProxyType({})
FORMS: dict[type, Callable[..., Program]] = {
    DigitForm: lower_digits, JoinedForm: lower_joined, RemainderForm: lower_remainders,
    ResidueForm: lower_residues,
}  # fmt: skip
Failure = tuple[Candidate, BuildError | MissingPackageError]


class Computation(NamedTuple):
    """Work of the kernels of a call: one product, and what is made of it.

    Attributes:
        product: the product, which a candidate computes; of complex matrices, that of their form.
        results: arrays that a reduction writes, by the names of the results.
        form: form in which complex matrices are multiplied; None of real ones.
        reduced: problem whose result is stored and then reduced, of complex matrices, long
            integers or a modulus; None of other reductions.
        integers: problem whose product is one of bytes; None if it is the product.
        bytes: form in which integers are multiplied by bytes; None if they are not.
        kernel: implementation that is asked for, for that form or by the caller.
        copies: copies of triangular operands, of which the product is.
    """

    product: Problem
    results: Mapping[str, ResultArray] = NONE
    form: ComplexForm | None = None
    reduced: Problem | None = None
    integers: Problem | None = None
    bytes: IntegerForm | None = None
    kernel: Any = None
    copies: tuple[CleanCopy, ...] = ()

    @property
    def asked(self) -> Problem:
        """Problem that was asked for: the complex one, or that of integers, if there is one."""
        return self.form.problem if self.form else self.integers or self.product


class Decision(NamedTuple):
    """A call with its kernel chosen, and bound.

    Attributes:
        computation: what is computed; of a problem in pieces, the first of them.
        candidate: the kernel of the product, with its config and slices.
        program: all kernels of the call; None if it launches nothing.
        launch: launch of the program; None if there is none.
        failed: by name of each kernel that would be better, the reason why it could not be built.
    """

    computation: Computation
    candidate: Candidate
    program: Program | None = None
    launch: Launch | None = None
    failed: Mapping[str, str] = NONE


def computation_of(resolved: Resolved, problem: Problem) -> Computation:
    """Computation of a resolved call, or of a piece of it."""
    computation, copies = _computation_of(resolved, problem), resolved.copies
    if not copies:
        return computation
    if computation.asked.is_transposed != problem.is_transposed:
        copies = tuple(copy.exchanged() for copy in copies)
    return computation._replace(copies=copies)


def _computation_of(resolved: Resolved, problem: Problem) -> Computation:
    asked, results = resolved.asked, resolved.result_arrays()
    if not asked.is_complex:
        problem = problem if resolved.pieces else with_triangle(problem, asked)
        return computation_of_reals(problem, asked.implementation, resolved.device, results)
    is_reduced = problem.reduction is not None
    stored = stored_problem(problem) if is_reduced else problem
    form = form_of_call(stored, asked, resolved.device)
    reduced = problem if is_reduced else None
    return Computation(form.product, results, form, reduced, kernel=asked.implementation)


def computation_of_reals(
    problem: Problem,
    implementation: Any,
    device: DeviceFacts,
    results: Mapping[str, ResultArray] = NONE,
) -> Computation:
    """Computation of floats, of integers, or of the bytes of integers."""
    if not problem.is_integer:
        return Computation(problem, results, kernel=implementation)
    reduced = None
    if problem.reduction is not None and (PRODUCT_BITS[problem.dtype] > 16 or problem.modulus):
        reduced, problem = problem, stored_problem(problem)
    of_digits = replace(problem, k_ranges="")  # which have another k
    form, kernel = form_of_integers(of_digits, implementation, device)
    product = truth_as_bytes(problem) if form is None else form.product
    return Computation(
        product,
        results,
        reduced=reduced,
        integers=problem if product is not problem else None,
        bytes=form,
        kernel=kernel,
    )


def lower(computation: Computation, candidate: Candidate, device: DeviceFacts) -> Program:
    """List the kernels of a computation in order, with what they read and write."""
    program = _lower(computation, candidate, device)
    if not computation.copies:
        return program
    is_whole = not candidate.skips_zeros(computation.product)
    return lower_clean_copies(computation.copies, program, candidate, is_whole)


def _lower(computation: Computation, candidate: Candidate, device: DeviceFacts) -> Program:
    product, results, form, reduced = computation[:4]
    if product.is_integer or computation.bytes is not None:
        program = _lower_integers(computation, candidate, device)
        if program is not None and reduced is not None:
            stored = computation.integers or product
            return lower_reduced(reduced, candidate, results, device, (stored, program))
        if program is not None:
            return program
    if product.reduction is not None:
        return lower_reduced(product, candidate, results, device)
    if form is not None and isinstance(candidate.implementation, Cublas):
        return complex_cublas(form, is_reduced=reduced is not None)
    program = lower_candidate(product, candidate, device)
    if form is None:
        return program
    program = lower_complex(form, program)
    if reduced is None:
        return program
    stored = form.problem
    if stored.is_transposed != reduced.is_transposed:
        stored = exchanged(stored)  # the form is that of the transposed product
    return lower_reduced(reduced, candidate, results, device, (stored, program))


def _lower_integers(
    computation: Computation, candidate: Candidate, device: DeviceFacts
) -> Program | None:
    """Program of a product of integers that is in a form, has a modulus, or is stored; or None."""
    product, form = computation.product, computation.bytes
    if form is not None:
        own, lower_form = form.problem, FORMS[type(form)]
        writes_part = own.triangle in ("lower", "upper") and not isinstance(form, JoinedForm)
        if not (writes_part or own.adds_transpose):
            return lower_form(form, candidate, device)
        whole = sliced_problem(triangular(own, "whole"), 1)
        program = lower_form(replace(form, problem=whole), candidate, device)
        return lower_sums(own, whole, program, own.triangle)
    if product.modulus:
        return lower_modular(product, candidate, device)
    return lower_candidate(product, candidate, device) if computation.reduced else None


def bind(resolved: Resolved) -> Decision:
    """Choose, lower and bind a resolved call, whose kernels are built if need be."""
    if resolved.pieces:
        return _bind_pieces(resolved)
    computation = computation_of(resolved, resolved.problem)
    if resolved.problem.is_empty and not resolved.results:
        return Decision(computation, _choose(resolved, computation))
    return _bind_first(resolved, computation)


def _choose(resolved: Resolved, computation: Computation) -> Candidate:
    return choose_asked(computation.product, resolved.device, computation.kernel)


def _bind_first(resolved: Resolved, computation: Computation) -> Decision:
    """Bind the first candidate, from the best on, whose kernel is built or can be built now.

    A build that fails also raises a warning.
    """
    device = resolved.device

    waiting, failures = [_choose(resolved, computation)], list[Failure]()
    while waiting:
        candidate = waiting.pop(0)
        try:
            program = lower(computation, candidate, device)
            launch = program.bind(device.arch, resolved.ordinal)
        except (BuildError, MissingPackageError) as error:
            if not failures:
                ranking = rank_asked(computation.product, device, computation.kernel)
                waiting = [*ranking.candidates[1:]]
            failures.append((candidate, error))
            logger.info("gemm: not by %s: %s", candidate, error)
            continue
        for failed, reason in failures:
            text = f"gemm: {candidate} takes the place of {failed}: {reason}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        if not failures:
            return Decision(computation, candidate, program, launch)
        reasons = {failed.implementation.name: f"not built: {why}" for failed, why in failures}
        return Decision(computation, candidate, program, launch, reasons)
    last_error = failures[-1][1]
    if len(failures) == 1 or isinstance(last_error, MissingPackageError):
        raise last_error
    listed = "; ".join(f"{candidate}: {error}" for candidate, error in failures)
    raise BuildError(f"gemm: no implementation could be built. {listed}")


def _bind_pieces(resolved: Resolved) -> Decision:
    """Bind the pieces of a large problem, which are launched one after the other."""
    whole, bound = resolved.problem, {}
    for problem in dict.fromkeys(piece.problem for piece in resolved.pieces):
        bound[problem] = _bind_first(resolved, computation_of(resolved, problem))
    pieces = []
    for piece in resolved.pieces:
        computation, program = bound[piece.problem].computation, bound[piece.problem].program
        assert program is not None
        pieces.append((piece, program, computation.asked.is_transposed != whole.is_transposed))
    program = lower_pieces(whole, pieces, [steps for _, steps in resolved.strides])
    launch = program.bind(resolved.device.arch, resolved.ordinal)
    return bound[resolved.pieces[0].problem]._replace(program=program, launch=launch)
