"""Choice between a kernel that multiplies integers and one that multiplies bytes in their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dxgemm.choice.batch_invariant import BatchInvariant
from dxgemm.choice.implementation import EmulatedProduct, Implementation, KernelFile
from dxgemm.choice.legality import legal_kernels
from dxgemm.choice.selection import asked_kernel, best_of
from dxgemm.epilogues.function import epilogue
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.problem.byte_form import ByteForm, JoinedForm, digit_forms
from dxgemm.problem.fusion import Fusion
from dxgemm.problem.problem import Problem
from dxgemm.problem.residue_form import RemainderForm, ResidueForm, remainder_form, residue_form

Form = ByteForm | JoinedForm | RemainderForm | ResidueForm
BY_BYTES = ByteForm, RemainderForm  # that any kernel of bytes multiplies

# Residues that are made and multiplied where each is multiplied a few times only, on an H200.
RESIDUES_PER_US = 420e3
STEP_US = 4.0  # time to queue a kernel that splits an operand


@epilogue
def is_nonzero(value: Any, row: Any, col: Any) -> Any:
    """1 for a sum that is not 0, else 0."""
    return 1.0 if value != 0 else 0.0


def truth_as_bytes(problem: Problem) -> Problem:
    """Problem of bytes that are 0 or 1 in the place of one of bool, to which no c is added."""
    if problem.dtype != "bool":
        return problem
    if problem.out_dtype != "bool":
        return replace(problem, dtype="int8")
    if problem.reads_c or problem.k == 0:
        return problem
    fusion = Fusion((is_nonzero,), (), problem.is_transposed)
    return replace(problem, dtype="int8", out_dtype="int8", epilogue=fusion)


def form_of_integers(
    problem: Problem, implementation: Any, device: DeviceFacts
) -> tuple[Form | None, Any]:
    """Form in which a product of integers is computed, and the kernel that is asked for then.

    The form is None for a product of the integers themselves. A kernel that is asked for by name
    multiplies these if it can, and otherwise bytes or residues.
    """
    others = remainder_form(problem), residue_form(problem)
    forms: list[Form] = [*digit_forms(problem), *(form for form in others if form is not None)]
    asked = implementation
    if isinstance(asked, BatchInvariant):  # exact in any order
        asked = asked.implementation
    if not forms or asked is None:
        form = quickest(problem, forms, device) if forms else None
        if isinstance(form, JoinedForm | ResidueForm):
            asked = best_of(form.product, device, _kernels(form, device)).implementation.name
        return form, asked
    kernel = asked_kernel(asked)[0]
    dtypes = kernel.dtypes if isinstance(kernel, KernelFile) else ()
    if problem.dtype in dtypes and (kernel.kernel.takes_modulus or not problem.modulus):
        return None, asked
    for form in forms:
        if _multiplies(kernel, form) or (isinstance(form, BY_BYTES) and "int8" in dtypes):
            return form, asked
    return None, asked


def quickest(problem: Problem, forms: Sequence[Form], device: DeviceFacts) -> Form | None:
    """Form with the shortest predicted time; None for the integers themselves."""
    if device.is_simulated:
        return None
    best, best_us = None, best_of(problem, device, legal_kernels(problem, device)).us
    for form in forms:
        us = predicted_us(form, device)
        if us is not None and (best_us is None or us < best_us):
            best, best_us = form, us
    return best


def _multiplies(kernel: Implementation, form: Form) -> bool:
    """True if a kernel, or one that takes as long, multiplies a form that is one product."""
    if isinstance(form, JoinedForm):
        return kernel.name == "wgmma"
    is_emulated = isinstance(kernel, EmulatedProduct) and "float64" in kernel.dtypes
    return is_emulated and isinstance(form, ResidueForm)


def _kernels(form: JoinedForm | ResidueForm, device: DeviceFacts) -> list[Implementation]:
    """Kernels that multiply a form that is one product."""
    return [kernel for kernel in legal_kernels(form.product, device) if _multiplies(kernel, form)]


def predicted_us(form: Form, device: DeviceFacts) -> float | None:
    """Predicted time of all kernels of a form; None if no kernel multiplies its bytes."""
    own = form.problem
    if isinstance(form, ResidueForm):
        kernels = _kernels(form, device)
        if not kernels:
            return None
        residues = form.count * own.k * own.batch * (own.m + own.n)
        us = form.slices * (best_of(form.product, device, kernels).us or 0.0)
        return max(us, residues / RESIDUES_PER_US)
    moved_bytes, steps = 2 * sum(own.operand_bytes), 2
    if isinstance(form, RemainderForm):
        moved_bytes += form.slices * (own.result_bytes + 4 * own.batch * own.m * own.n)
        steps = 3 * form.slices
    else:
        moved_bytes *= form.digits
    us = steps * STEP_US + moved_bytes / (device.memory_gbytes_per_s * 1e3)
    if isinstance(form, RemainderForm):
        kernels = legal_kernels(form.product, device)
        best_us = best_of(form.product, device, kernels).us if kernels else None
        return None if best_us is None else us + form.slices * best_us
    if isinstance(form, JoinedForm):
        kernels = _kernels(form, device)
        return us + (best_of(form.product, device, kernels).us or 0.0) if kernels else None
    for term in form.terms:
        product = form.product(term)
        kernels = legal_kernels(product, device)
        if not kernels:
            return None
        us += best_of(product, device, kernels).us or 0.0
    return us
