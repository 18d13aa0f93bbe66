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
from dxgemm.problem.fusion import Fusion
from dxgemm.problem.integer_forms import IntegerForm, JoinedForm, ResidueForm, forms_of
from dxgemm.problem.problem import Problem

OF_A_KERNEL = JoinedForm, ResidueForm  # which has its own products, or stands for one that does

# Residues that are made and multiplied where each is multiplied a few times only, on an H200.
RESIDUES_PER_US = 1.2e6
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
) -> tuple[IntegerForm | None, Any]:
    """Form in which a product of integers is computed, and the kernel that is asked for then.

    The form is None for a product of the integers themselves. A kernel that is asked for by name
    multiplies these if it can, and otherwise bytes or residues.
    """
    forms, asked = forms_of(problem), implementation
    if isinstance(asked, BatchInvariant):  # exact in any order
        asked = asked.implementation
    if not forms or asked is None:
        form = quickest(problem, forms, device) if forms else None
        if isinstance(form, OF_A_KERNEL):
            kernels = _kernels(form, form.product, device)
            asked = best_of(form.product, device, kernels).implementation.name
        return form, asked
    kernel = asked_kernel(asked)[0]
    dtypes = kernel.dtypes if isinstance(kernel, KernelFile) else ()
    if problem.dtype in dtypes and (kernel.kernel.takes_modulus or not problem.modulus):
        return None, asked
    for form in forms:
        if _multiplies(kernel, form) and ("int8" in dtypes or isinstance(form, OF_A_KERNEL)):
            return form, asked
    return None, asked


def quickest(
    problem: Problem, forms: Sequence[IntegerForm], device: DeviceFacts
) -> IntegerForm | None:
    """Form with the shortest predicted time; None for the integers themselves."""
    if device.is_simulated:
        return None
    best, best_us = None, best_of(problem, device, legal_kernels(problem, device)).us
    for form in forms:
        us = predicted_us(form, device)
        if us is not None and (best_us is None or us < best_us):
            best, best_us = form, us
    return best


def _multiplies(kernel: Implementation, form: IntegerForm) -> bool:
    """True if a kernel, or one that takes as long, computes the products of a form."""
    if isinstance(form, ResidueForm):
        return isinstance(kernel, EmulatedProduct) and "float64" in kernel.dtypes
    return kernel.name == "wgmma" or not isinstance(form, JoinedForm)


def _kernels(form: IntegerForm, product: Problem, device: DeviceFacts) -> list[Implementation]:
    """Kernels that compute a product of a form."""
    return [kernel for kernel in legal_kernels(product, device) if _multiplies(kernel, form)]


def predicted_us(form: IntegerForm, device: DeviceFacts) -> float | None:
    """Predicted time of all kernels of a form; None if no kernel multiplies its bytes."""
    own, (steps, moved_bytes) = form.problem, form.overhead
    us = steps * STEP_US + moved_bytes / (device.memory_gbytes_per_s * 1e3)
    for product in form.passes:
        kernels = _kernels(form, product, device)
        if not kernels:
            return None
        us += best_of(product, device, kernels).us or 0.0
    if isinstance(form, ResidueForm):
        us = max(us, form.products * own.k * own.batch * (own.m + own.n) / RESIDUES_PER_US)
    return us
