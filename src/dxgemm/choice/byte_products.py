"""Choice between a kernel that multiplies integers and one that multiplies their bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dxgemm.choice.batch_invariant import BatchInvariant
from dxgemm.choice.implementation import KernelFile
from dxgemm.choice.legality import legal_kernels
from dxgemm.choice.selection import asked_kernel, best_of
from dxgemm.epilogues.function import epilogue
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.problem.byte_form import ByteForm, byte_form
from dxgemm.problem.fusion import Fusion
from dxgemm.problem.problem import Problem

STEP_US = 4.0  # time to queue a kernel that splits an operand, or adds products


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


def form_of_integers(problem: Problem, implementation: Any, device: DeviceFacts) -> ByteForm | None:
    """Form in which a product of integers is computed: by bytes, or None for the integers.

    A kernel that is asked for by name multiplies the integers if it can, and otherwise bytes.
    """
    form = byte_form(problem)
    if isinstance(implementation, BatchInvariant):
        implementation = implementation.implementation
    if form is None:
        return None
    if implementation is not None:
        asked = asked_kernel(implementation)[0]
        dtypes = asked.dtypes if isinstance(asked, KernelFile) else ()
        return form if "int8" in dtypes and problem.dtype not in dtypes else None
    return form if bytes_are_quicker(form, device) else None


def bytes_are_quicker(form: ByteForm, device: DeviceFacts) -> bool:
    """True if products of bytes are predicted to take less time than one of integers."""
    if device.is_simulated:
        return False
    us, own = predicted_us(form, device), form.problem
    whole_us = best_of(own, device, legal_kernels(own, device)).us
    return us is not None and (whole_us is None or us < whole_us)


def predicted_us(form: ByteForm, device: DeviceFacts) -> float | None:
    """Predicted time of all kernels of a form; None if no kernel multiplies its bytes."""
    own, terms = form.problem, form.terms
    moved_bytes = 2 * form.digits * sum(own.operand_bytes)
    us = 2 * form.slices * STEP_US
    if form.bits == 64:
        us += form.launches * STEP_US
        moved_bytes += form.slices * (4 * len(terms) + 16) * own.batch * own.m * own.n
    us += moved_bytes / (device.memory_gbytes_per_s * 1e3)
    for term in terms:
        product = form.product(term)
        kernels = legal_kernels(product, device)
        if not kernels:
            return None
        us += form.launches * (best_of(product, device, kernels).us or 0.0)
    return us
