"""Programs of emulated products: float32 by float16 parts, float64 by residues (Ozaki scheme II).

The operands are split and checked. Only the device knows the result of the validity check: so the
emulated and the native product are queued, and the blocks of the one that is not needed return at
once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dxgemm.choice.emulation import NATIVE, native_config, product_problem, with_buffers
from dxgemm.choice.emulation_parts import NUMBER_BYTES, SERIES, buffers, parts_of_problem
from dxgemm.choice.implementation import EmulatedProduct
from dxgemm.choice.kernel_files import configs_of
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.handwritten.kernels import native_fallback, reconstruct, validity_check
from dxgemm.handwritten.parts.moduli import moduli_count
from dxgemm.handwritten.parts.residue_store import row_bytes
from dxgemm.lower.steps import file_step
from dxgemm.problem.fusion import Fusion
from dxgemm.problem.kernel_arguments import KernelArguments
from dxgemm.problem.problem import Problem
from dxgemm.runtime.program import (
    ALPHA,
    BETA,
    FALLBACKS,
    OUT,
    A,
    C,
    Name,
    Program,
    Step,
    Symbol,
    Value,
    parameters,
)

RESIDUES = "int8", "float64", "float64", "int32"  # and factors of a and b, and a flag
PARTS_OF = {name: Symbol(f"parts of {name}") for name in "ab"}  # buffers


def native_program(problem: Problem, config: Any) -> Program:
    """Program of the native kernel alone, without a validity check, for problems with k == 0."""
    file = NATIVE[problem.dtype]
    config = native_config(problem, config)
    variant, name = file.KERNEL.variant(config, problem), SERIES[problem.dtype]
    operands = parameters(problem.epilogue)
    return Program((file_step(file, problem, variant, config, name=name, operands=operands),))


def lower_emulated(
    implementation: EmulatedProduct, problem: Problem, config: Any, device: DeviceFacts
) -> Program:
    """Program of an emulated product; k is not 0.

    Args:
        implementation: the product of the parts.
        problem: the problem to compute.
        config: config of the implementation.
        device: the GPU.
    """
    parts = parts_of_problem(problem)
    splitting = [
        replace(parts[name].step(Symbol(name), memory), makes=memory.name)
        for name, memory in PARTS_OF.items()
    ]
    if parts["a"] == parts["b"]:  # where b is a.T, its parts are those of a
        splitting[1] = replace(splitting[1], twin=(A, PARTS_OF["a"].name))
    invalid = Symbol("invalid")
    factors = [value for name, part in parts.items() for value in part.factors(PARTS_OF[name])]
    sizes: dict[Name, int] = {"invalid": NUMBER_BYTES}
    sizes |= {PARTS_OF[name].name: part.size for name, part in parts.items()}
    passed = parameters(problem.epilogue)
    own = product_problem(problem)
    product = implementation.spec_for(config, problem)
    blocks = implementation.block_count(config, problem, device.sm_count)
    maps = implementation.kernel.tensor_maps(config, problem, *product.variant)
    values: tuple[Value, ...] = *PARTS_OF.values(), C, OUT, ALPHA, BETA
    operands: tuple[Value, ...] = *passed, *factors, invalid, 1
    if problem.dtype == "float32":
        multiplying = [Step(product, own, blocks, values, operands, maps)]
    else:
        count = moduli_count(problem)
        results = Symbol("residues of the result")
        sizes[results.name] = problem.batch * count * problem.m * row_bytes(problem.n)
        values = *PARTS_OF.values(), results, results, 0, 0
        operands = *passed, results, sizes[results.name], *factors, invalid, 1
        multiplying = [
            Step(product, own, blocks, values, (invalid, 1, count), maps),
            reconstruction_step(problem, operands),
        ]
    checked = check_arguments(problem.k, parts["a"].blocks, parts["b"].blocks)
    status = [value for name, part in parts.items() for value in part.status(PARTS_OF[name])]
    checking = file_step(
        validity_check, checked, name=SERIES["float32"], blocks=1,
        values=(invalid, invalid, invalid, invalid, 0, 0),
        operands=(*status, invalid, 1, FALLBACKS, 1),
    )  # fmt: skip
    native = native_step(problem, config, (*passed, invalid, 1))
    return Program((*splitting, checking, *multiplying, native), sizes)


def check_arguments(k: int, a_blocks: int, b_blocks: int) -> KernelArguments:
    """Arguments of the validity check, for operands that so many blocks split."""
    fused = Fusion((), buffers("int32", "int32", "int32", "int32"))
    return KernelArguments("float32", a_blocks, b_blocks, k, epilogue=fused)


def reconstruction_step(problem: Problem, operands: tuple[Value, ...]) -> Step:
    """Step that reconstructs the result from its residues."""
    own, config = with_buffers(problem, *RESIDUES), configs_of(reconstruct)[0]
    variant = reconstruct.KERNEL.variant(config, problem)
    return file_step(reconstruct, own, variant, config, name=SERIES["float64"], operands=operands)


def native_step(problem: Problem, config: Any, operands: tuple[Value, ...]) -> Step:
    """Step that multiplies a and b themselves if the validity check fails."""
    file, own = NATIVE[problem.dtype], with_buffers(problem, "int32")
    config = native_config(problem, config)
    variant, name = file.KERNEL.variant(config, own), SERIES[problem.dtype]
    blocks = file.KERNEL.block_count(config, problem)
    return file_step(
        native_fallback, own, variant, config, name=name, blocks=blocks, operands=operands
    )
