"""Choice between a kernel that multiplies integers themselves and one that multiplies their bytes."""

from __future__ import annotations

from typing import Any

from dxgemm.choice.batch_invariant import BatchInvariant
from dxgemm.choice.implementation import KernelFile
from dxgemm.choice.legality import legal_kernels
from dxgemm.choice.selection import asked_kernel, best_of
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.problem.byte_form import ByteForm, byte_form
from dxgemm.problem.problem import Problem

SPLITTING_US = 8.0  # time to queue the kernels that split a and b


def form_of_integers(
    problem: Problem, implementation: Any, device: DeviceFacts
) -> ByteForm | None:
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
        takes_bytes = isinstance(asked, KernelFile) and "int8" in asked.dtypes
        return form if takes_bytes and problem.dtype not in asked.dtypes else None
    return form if bytes_are_quicker(form, device) else None


def bytes_are_quicker(form: ByteForm, device: DeviceFacts) -> bool:
    """True if products of bytes are predicted to take less time than one of integers."""
    if device.is_simulated:
        return False
    own = form.problem
    us = SPLITTING_US + 2 * sum(own.operand_bytes) / (device.memory_gbytes_per_s * 1e3)
    for term in form.terms:
        product = form.product(term)
        kernels = legal_kernels(product, device)
        if not kernels:
            return False
        us += best_of(product, device, kernels).us or 0.0
    whole_us = best_of(own, device, legal_kernels(own, device)).us
    return whole_us is None or us < whole_us
