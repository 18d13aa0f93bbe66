"""Programs of a product: its kernel, with aligned copies of operands, in slices of k, or emulated.

Split-K with a workspace is a kernel that sums each slice, and another that adds the sums. A
symmetric result may be made in the same way by kernels that compute it whole, in one slice.
"""

from __future__ import annotations

from typing import Any

from dxgemm.choice.implementation import Cublas, EmulatedProduct, Implementation, KernelFile
from dxgemm.choice.kernel_files import configs_of
from dxgemm.choice.legality import Candidate
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.handwritten.kernels import add_slices, align_rows
from dxgemm.lower.complex_product import complex_sum_step
from dxgemm.lower.cublas import CublasStep
from dxgemm.lower.emulated import lower_emulated, native_program
from dxgemm.lower.steps import file_step
from dxgemm.problem.complex_form import in_parts
from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES, slice_dtype
from dxgemm.problem.kernel_arguments import KernelArguments
from dxgemm.problem.layout import Strides
from dxgemm.problem.problem import Problem
from dxgemm.runtime.program import (
    ALPHA,
    BETA,
    OUT,
    C,
    Name,
    Program,
    Step,
    Symbol,
    Value,
    parameters,
)


def lower_candidate(problem: Problem, candidate: Candidate, device: DeviceFacts) -> Program:
    """Program of a problem without a reduction, or with one that the kernel of the product fuses.

    Args:
        problem: the problem to compute.
        candidate: the kernel of the product, with its config and slices.
        device: the GPU.
    """
    part = candidate.part_of(problem)
    product = lower_product(candidate.implementation, part, candidate.config, device)
    if not candidate.uses_workspace:
        return product
    triangle = "" if candidate.triangle == "whole" else problem.triangle
    return lower_sums(problem, part, product, triangle)


def lower_product(
    implementation: Implementation, problem: Problem, config: Any, device: DeviceFacts
) -> Program:
    """Program of a product alone, without the kernels that add slices or reduce the result.

    Args:
        implementation: an implementation that supports the problem.
        problem: the problem to compute.
        config: one of the implementation's configs.
        device: the GPU.
    """
    if isinstance(implementation, Cublas):
        return Program((CublasStep(None, problem),))
    if isinstance(implementation, EmulatedProduct):
        if problem.k == 0:
            return native_program(problem, config)
        return lower_emulated(implementation, problem, config, device)
    assert isinstance(implementation, KernelFile)
    computed, kernel = implementation.computed(problem), implementation.kernel
    has_more_tiles = kernel.is_persistent or kernel.tile_count is not None
    product = Step(
        implementation.spec_for(config, problem),
        computed,
        implementation.block_count(config, problem, device.sm_count),
        operands=parameters(problem.epilogue),
        maps=kernel.tensor_maps(config, computed),
        tiles=implementation.tile_count(config, problem) if has_more_tiles else 0,
    )
    return with_copies(problem, computed, Program((product,)))


def with_copies(problem: Problem, computed: Problem, product: Program) -> Program:
    """Program of the aligned copies of `Problem.aligned`, and of the product that reads them."""
    if computed is problem:
        return product
    copies: list[Step] = []
    buffers: dict[Name, int] = {}
    places: dict[Name, Symbol] = {}
    for name in computed.padded:
        copied, places[name] = copy_arguments(problem, computed, name), Symbol(f"aligned {name}")
        copies.append(copy_step(copied, Symbol(name), places[name]))
        size = copied.batch * copied.m * copied.out.row * ITEM_SIZES[copied.dtype]
        buffers[f"aligned {name}"] = size
    return Program(tuple(copies), buffers) + product.given(places)


def copy_arguments(problem: Problem, computed: Problem, name: str) -> KernelArguments:
    """Arguments of the aligned copy of "a" or "b": m lines of n elements, to `out`."""
    source, target = getattr(problem, name), getattr(computed, name)
    rows, cols = (problem.m, problem.k) if name == "a" else (problem.k, problem.n)
    if target.col != 1:
        source, target, rows, cols = source.transposed(), target.transposed(), cols, rows
    batch = problem.batch if source.batch else 1
    return KernelArguments(problem.dtype, rows, cols, 0, batch, source, out=target)


def copy_step(copied: KernelArguments, source: Symbol, target: Symbol, *indices: Symbol) -> Step:
    """Step that copies lines to aligned ones; `indices` are operands that say which lines."""
    variant = align_rows.KERNEL.variant(configs_of(align_rows)[0], copied)
    values = source, source, target, target, 0, 0
    return file_step(align_rows, copied, variant, values=values, operands=indices)


def lower_sums(problem: Problem, summed: Problem, product: Program, triangle: str = "") -> Program:
    """Program of a product that leaves sums in a workspace, and of the kernel that adds them.

    Args:
        problem: the problem to compute.
        summed: the problem of the slices' sums.
        product: the program that computes them.
        triangle: triangles of the result that are written; "" for the whole result.
    """
    slices, items = summed.slices, summed.batch * summed.out.batch  # of a slice's matrices
    sums = Symbol(f"sums of {slices} slices")
    values: dict[Name, Value] = {"c": sums, "out": sums, "alpha": 1, "beta": 0}
    if problem.modulus:  # the sums are the result
        values = {"out": sums}
    strides = Strides(summed.out.batch, summed.out.row, items)
    if problem.dtype in COMPLEX_PARTS:
        strides = in_parts(strides._replace(col=1))
        adding = complex_sum_step(problem, "slices", sums, strides, 2 * items, slices)
    else:
        adding = adding_step(problem, sums, strides, slices, triangle)
    size = slices * items * ITEM_SIZES[summed.out_dtype]
    return product.given(values) + Program((adding,), {sums.name: size})


def adding_step(
    problem: Problem, sums: Symbol, strides: Strides, slices: int, triangle: str
) -> Step:
    """Step that adds the sums of slices, with strides of the batch, of rows and of slices."""
    m, n, batch, out_dtype = problem.m, problem.n, problem.batch, problem.out_dtype
    is_result = problem.modulus > 0
    arguments = KernelArguments(
        slice_dtype(problem.dtype, out_dtype), m, n, slices, batch, strides, c=problem.c,
        out=problem.out, epilogue=problem.epilogue, out_dtype=out_dtype,
        reads_c=problem.reads_c and not is_result,
        extents={"a": ((*strides, 1), (batch, m, slices, n))},
    )  # fmt: skip
    config = add_slices.choose_config(configs_of(add_slices), batch * m * n, slices)
    variant: tuple[str, ...] = (out_dtype,) if out_dtype != arguments.dtype else ()
    if triangle:
        variant = out_dtype, "both" if triangle == "either" else triangle
        variant += ("transposed",) if problem.adds_transpose else ()
    alpha, beta = (1, 0) if is_result else (ALPHA, BETA)
    return file_step(
        add_slices, arguments, variant, config, blocks=batch * -(-m * n // config.elements),
        values=(sums, sums, C, OUT, alpha, beta), operands=parameters(problem.epilogue),
    )  # fmt: skip
