"""Kernels of emulated products, with the config of each for a problem."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dxgemm.choice.emulation_parts import NUMBER_BYTES, SERIES, buffers, parts_of_problem
from dxgemm.choice.kernel_files import file_spec
from dxgemm.compiler import KernelSpec
from dxgemm.gpu.roofline import tile_efficiency
from dxgemm.handwritten.kernels import tensor_core, tuned
from dxgemm.handwritten.parts.emulation import CHOSEN
from dxgemm.handwritten.parts.operands import VECTOR_BYTES
from dxgemm.handwritten.parts.reduction import slot_count
from dxgemm.handwritten.parts.residue_store import row_bytes
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.problem.layout import MAX_ALIGNMENT, Strides
from dxgemm.problem.problem import Problem

# Kernel files that multiply a and b themselves.
NATIVE: dict[str, Any] = {"float32": tuned, "float64": tensor_core}
LEAST_SMEM_BYTES = 99 * 1024  # that a block can have on every GPU from Ampere on
LARGE_GPU_SMS = 128  # roughly: every config of the fallback is right, only its speed differs


def product_spec(file: Any, config: Any, problem: Problem) -> KernelSpec:
    """Spec of the kernel that multiplies the parts of float32, or the residues of float64.

    Args:
        file: the kernel file.
        config: config of the kernel.
        problem: problem of the whole product.
    """
    own, name = product_problem(problem), SERIES[problem.dtype]
    if problem.dtype == "float64":
        return file_spec(file, own, file.KERNEL.variant(config, own), config, name)
    parts = parts_of_problem(problem)
    variant: tuple[str, ...] = CHOSEN, parts["a"].innermost, parts["b"].innermost
    variant += (problem.triangle,) if problem.triangle else ()
    return file_spec(file, own, variant, config, name)


def product_problem(problem: Problem) -> Problem:
    """Problem of the kernel that multiplies the parts of float32, or the residues of float64."""
    if problem.dtype == "float64":
        return residues_problem(problem)
    return with_buffers(problem, "float32", "float32", "int32")


def native_config(problem: Problem, config: Any = None) -> Any:
    """Config of the kernel that multiplies a and b themselves: the one with the least work.

    It is one that every GPU from Ampere on can launch. With a fused reduction, it leaves at least
    as many partial results as the emulated product, which fills those that it has no tile for.

    Args:
        problem: the problem to compute.
        config: config of the emulated product; None to disregard a reduction.
    """
    file, reduction = NATIVE[problem.dtype], problem.reduction

    def cost(config: Any) -> float:
        tiles_per_sm = -(-file.KERNEL.block_count(config, problem) // LARGE_GPU_SMS)
        work = config.tile_m * config.tile_n
        return tiles_per_sm * work / tile_efficiency(config.tile_m, config.tile_n)

    configs = [
        c
        for c in file.KERNEL.configs
        if c.cluster == 1 and c.smem_bytes(problem.dtype) <= LEAST_SMEM_BYTES
    ]
    if reduction is not None and config is not None:
        tiles = -(-problem.n // config.tile_n)
        configs = [c for c in configs if _native_partial_results(c, problem) >= tiles]
    return min(configs, key=cost)


def partial_results(config: Any, problem: Problem) -> int:
    """Partial results per row, as many from either product: only the GPU knows which one runs."""
    return _native_partial_results(native_config(problem, config), problem)


def _native_partial_results(config: Any, problem: Problem) -> int:
    tile, sizes = (config.tile_m, config.tile_n), (problem.m, problem.n)
    return slot_count(config, tile, problem.reduction, sizes, VECTOR_BYTES // NUMBER_BYTES)


def with_buffers(problem: Problem, *dtypes: str) -> Problem:
    """Append buffers to the epilogue operands of a problem."""
    epilogue = problem.epilogue or Fusion((), (), problem.is_transposed)
    operands = (*epilogue.operands, *buffers(*dtypes))
    return replace(problem, epilogue=replace(epilogue, operands=operands))


def residues_problem(problem: Problem) -> Problem:
    """Problem of the product of residues: K-major matrices, `moduli_count` for each of the batch.

    A batch stride of 0 says that all products of the batch share those of an operand.
    """
    operands = *buffers("int32"), FusedOperand("number", "int64")
    pitch = row_bytes(problem.k)
    return replace(
        problem,
        dtype="int8",
        out_dtype="int8",
        a=Strides(pitch if problem.a.batch else 0, pitch, 1),
        b=Strides(pitch if problem.b.batch else 0, 1, pitch),
        a_alignment=MAX_ALIGNMENT,
        b_alignment=MAX_ALIGNMENT,
        padded="ab",
        epilogue=Fusion((), operands),
    )
