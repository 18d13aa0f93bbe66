"""Kernels to build ahead of time: those of the programs of common problems."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from dxgemm.choice.implementation import (
    COMMON_SHAPE,
    MOST_SLICES,
    EmulatedProduct,
    KernelFile,
    launchable,
)
from dxgemm.choice.registry import IMPLEMENTATIONS, find_implementation
from dxgemm.compiler import KernelSpec
from dxgemm.gpu.facts import SIMULATED_DEVICE
from dxgemm.lower.complex_product import lower_complex
from dxgemm.lower.product import lower_product, lower_sums
from dxgemm.problem.complex_form import direct_form, real_form, real_forms
from dxgemm.problem.define import LAYOUTS, contiguous_problem
from dxgemm.problem.dtypes import COMPLEX_PARTS, THREE_PRODUCTS, result_dtypes
from dxgemm.problem.problem import sliced_problem
from dxgemm.runtime.program import Program

NOTHING = Program(())


def kernel_specs(
    dtypes: tuple[str, ...] = ("float32", "float64"),
    implementations: tuple[str, ...] | None = None,
    arch: str | None = None,
) -> list[KernelSpec]:
    """List the kernels of products, of named implementations or of the automatic ones.

    Those of complex dtypes are named themselves or by their parts. With an architecture, the
    kernels that its GPUs cannot launch, or the toolkit may not build, are left out.
    """
    asked = (
        IMPLEMENTATIONS if implementations is None else map(find_implementation, implementations)
    )
    wanted = [
        (file, dtype)
        for file in asked
        if isinstance(file, KernelFile)
        if arch is None or (file.runs_on(arch) or file.build_fault(arch)) is None
        for dtype in dtypes
        if implementations is not None or file.is_automatic(arch)
    ]
    specs = dict.fromkeys(spec for file, dtype in wanted for spec in common_specs(file, (dtype,)))
    slicing = [(file, dtype) for file, dtype in wanted if file.kernel.slices_k]
    sliced = [own for file, dtype in slicing for own in _own_dtypes(file, (dtype,))]
    for dtype in dict.fromkeys(sliced):
        for out_dtype, slices in product(result_dtypes(dtype), range(2, MOST_SLICES + 1)):
            problem = contiguous_problem(dtype, 1, 1, 1, out_dtype=out_dtype)
            if dtype in COMPLEX_PARTS:
                problem = direct_form(problem, "").product
            adding = lower_sums(problem, sliced_problem(problem, slices), NOTHING)
            specs |= dict.fromkeys(adding.specs)
    return launchable(specs, arch) if arch else list(specs)


def common_specs(file: KernelFile, dtypes: tuple[str, ...]) -> list[KernelSpec]:
    """List the kernels of an implementation: each config for the common layouts."""
    specs: dict[KernelSpec, None] = {}
    for dtype in _own_dtypes(file, dtypes):
        whole, sliced = (
            [problem for problem in problems if file.supports(problem) is None]
            for problems in file.common_problems(dtype)
        )
        for config in file.configs(dtype):
            has_slices = sliced and config.takes_slices
            for problem in whole + sliced if has_slices else whole:
                is_one_kernel = file.computed(problem) is problem
                is_one_kernel = is_one_kernel and not isinstance(file, EmulatedProduct)
                if is_one_kernel and file.spec_for(config, problem) in specs:
                    continue
                program = lower_product(file, problem, config, SIMULATED_DEVICE)
                specs |= dict.fromkeys(program.specs)
    return list(specs)


def _own_dtypes(file: KernelFile, dtypes: tuple[str, ...]) -> list[str]:
    """Dtypes of a kernel file, complex ones if they or those of their parts are asked for."""
    return [own for own in file.dtypes if {own, COMPLEX_PARTS.get(own)} & {*dtypes}]


def complex_specs(dtypes: tuple[str, ...]) -> list[KernelSpec]:
    """List the kernels around real products of complex problems, for dtypes of their parts."""
    wanted = [dtype for dtype, part in COMPLEX_PARTS.items() if part in dtypes]
    sizes = COMMON_SHAPE, (1, *COMMON_SHAPE[1:]), (1, 4096, 1), (8, 8, 8), (16, 16, 16)
    specs: dict[KernelSpec, None] = {}
    for dtype, size, layout in product(wanted, sizes, LAYOUTS):
        problem = replace(contiguous_problem(dtype, *size, layout=layout), reads_c=True)
        others = replace(problem, precision=THREE_PRODUCTS), replace(problem, triangle="both")
        for conjugates in ("", "a", "b", "ab"):
            forms = [*real_forms(problem, conjugates), *(real_form(o, conjugates) for o in others)]
            for form in forms:
                specs |= dict.fromkeys(lower_complex(form, NOTHING).specs)
    return list(specs)
