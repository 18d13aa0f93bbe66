"""Calls with complex operands: what they cannot have, and the form in which they are computed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from dxgemm.call.asked import Asked
from dxgemm.choice.batch_invariant import BatchInvariant
from dxgemm.choice.implementation import CLUSTER_CAPABILITY, ComplexProduct, is_before
from dxgemm.choice.legality import legal_kernels
from dxgemm.choice.registry import IMPLEMENTATIONS, find_implementation
from dxgemm.choice.selection import asked_kernel, best_of
from dxgemm.epilogues.catalogue import magnitude
from dxgemm.epilogues.chain import BoundEpilogue
from dxgemm.errors import LayoutError, UnsupportedProblemError
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.handwritten.parts.triangle import OTHER
from dxgemm.problem.complex_form import (
    ComplexForm,
    direct_form,
    is_small_batch,
    real_form,
    suits_tiles,
)
from dxgemm.problem.problem import EXCHANGE, Problem

# Kernels that read complex elements in place: that for batches of small matrices and, by dtype,
# those for larger ones.
DIRECT = tuple(i.name for i in IMPLEMENTATIONS if isinstance(i, ComplexProduct))
SMALL = "complex_batch"
LARGE = {"complex64": "complex_tile", "complex128": "complex_tensor_core"}


def complex_epilogue(epilogue: BoundEpilogue) -> BoundEpilogue:
    """Epilogue of a complex product: a norm, or the largest magnitude, is that of real numbers.

    Raises:
        UnsupportedProblemError: the call has a mask, takes pairs of columns, or has a reduction
            that complex numbers do not have.
    """
    reduction = epilogue.reduction
    if epilogue.takes_pairs or epilogue.is_masked:
        what = "a mask" if epilogue.is_masked else "pairs of columns"
        raise UnsupportedProblemError(f"gemm: a complex result does not go with {what}.")
    if reduction is None or reduction.kind == "sum" or epilogue.is_real:
        return epilogue
    if reduction.takes_magnitudes:
        return BoundEpilogue((*epilogue.stages, magnitude), (), reduction).shape
    raise UnsupportedProblemError(
        f"gemm: complex numbers have no {reduction.name}; put epilogues.magnitude, or another one "
        f"that makes them real, before: magnitude | {reduction}."
    )


def check_complex(problem: Problem, asked: Asked) -> None:
    """Refuse what complex operands cannot have.

    Args:
        problem: the complex problem.
        asked: the call.
    """
    if asked.is_symmetric and asked.is_reduced:
        raise UnsupportedProblemError(
            "gemm_symmetric: a Hermitian result is not reduced; call gemm(a, a.conj().T, ...) "
            "instead."
        )
    if asked.is_symmetric and (asked.adds_transpose or problem.batch > 1):
        raise UnsupportedProblemError(
            f"gemm_symmetric: <a> is {problem.dtype}, of which one matrix is multiplied by "
            "its own conjugate transpose; call it for each matrix, without b."
        )
    for name, layout in asked.layouts.items():
        if name not in ("a", "b") and layout.is_conjugate:
            raise LayoutError(
                f"gemm: <{name}> is a lazy conjugate (is_conj()), whose memory holds the "
                f"opposite imaginary parts; pass <{name}>.resolve_conj()."
            )


def form_of_call(problem: Problem, asked: Asked, device: DeviceFacts) -> ComplexForm:
    """Form in which the complex problem of a call is computed, with its triangle."""
    conjugates = "".join(name for name in "ab" if asked.layouts[name].is_conjugate)
    if problem.is_transposed:
        conjugates = conjugates.translate(EXCHANGE)
    if asked.is_symmetric:
        triangle = asked.triangle
        triangle = OTHER.get(triangle, triangle) if problem.is_transposed else triangle
        problem = replace(problem, triangle=triangle)
    return form_of_problem(problem, conjugates, asked.implementation, device)


def form_of_problem(
    problem: Problem, conjugates: str, implementation: Any, device: DeviceFacts
) -> ComplexForm:
    """Form in which a complex problem is computed: `direct_form` or `real_form`.

    Rows keep their bits, and cuBLAS writes the result in place, in one form alone. What a
    precision permits is computed where it is predicted to be quicker than the dtype's own
    arithmetic.

    Raises:
        UnsupportedProblemError: the named kernel cannot compute a triangle.
    """
    is_invariant = isinstance(implementation, BatchInvariant)
    asked = implementation.implementation if is_invariant else implementation
    name = None if asked is None else asked_kernel(asked)[0].name
    if name in DIRECT or problem.inner is not None:
        if problem.triangle:
            raise UnsupportedProblemError(
                f"gemm_symmetric: implementation {name!r} cannot compute this: a Hermitian "
                "result is made of real products."
            )
        return direct_form(problem, conjugates)
    if implementation is None and _is_direct(problem, device.arch):
        return direct_form(problem, conjugates)
    is_any = not is_invariant and name != "cublas"
    # Real products have another k.
    form = real_form(replace(problem, k_ranges=""), conjugates, is_any=is_any)
    if implementation is not None or problem.precision is None or problem.triangle:
        return form
    if device.is_simulated or problem.is_empty:
        return form
    own = form_of_problem(replace(problem, precision=None), conjugates, None, device)
    return min((form, own), key=partial(_predicted_us, device))


def _predicted_us(device: DeviceFacts, form: ComplexForm) -> float:
    """Predicted time of a form: its product by the model, other kernels by the bytes they move."""
    product = form.product
    us = best_of(product, device, legal_kernels(product, device)).us or 0.0
    return us + (form.cost_bytes - product.bytes_moved) / (device.memory_gbytes_per_s * 1e3)


def _is_direct(problem: Problem, arch: str) -> bool:
    """True if the automatic choice is among the kernels that read complex elements in place."""
    if problem.precision is not None or problem.triangle:
        return False
    # With few rows of complex128, the blocks of a cluster share k: no kernel is quicker. Nor is one
    # that needs another for an epilogue.
    shares_k = problem.dtype == "complex128" and not is_before(arch, CLUSTER_CAPABILITY)
    is_small = is_small_batch(problem)
    if not (is_small or shares_k or suits_tiles(problem) or problem.epilogue):
        return False
    name = SMALL if is_small else LARGE[problem.dtype]
    return find_implementation(name).runs_on(arch) is None
