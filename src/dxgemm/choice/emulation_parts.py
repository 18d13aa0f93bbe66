"""Parts of operands for precision="emulated": their layout in memory, and their kernels.

float32 is split into parts, float64 into residues. The kernels also write a status, from which the
validity check tells whether the bound on the error holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dxgemm.compiler import KernelSpec
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.kernels import decompose, residues
from dxgemm.handwritten.parts.emulation import (
    CHOSEN,
    PADDING,
    SCHEMES,
    STATUS_ITEMS,
    parts_layout,
)
from dxgemm.handwritten.parts.moduli import moduli_count, operand_bits
from dxgemm.handwritten.parts.residue_store import row_bytes
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.problem.layout import NO_STRIDES, Strides
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import Launch, launch_kernel
from dxgemm.runtime.workspace import ALIGNMENT

NUMBER_BYTES = 4  # bytes of a float32, and of a number of the status
FLOAT64_BYTES = 8
SCHEME = SCHEMES[CHOSEN]
# Names of the series of kernels, by dtype.
SERIES = {"float32": "emulated_float32", "float64": "emulated_float64"}


@dataclass(frozen=True)
class OperandParts:
    """Layout of the parts of an operand in memory, followed by the scale factors and the status.

    Attributes:
        spec: spec of the kernel that splits the operand.
        problem: problem of that kernel: the operand as its a, b transposed.
        blocks: number of blocks of its launch.
        part_items, part_item_bytes: number of items of all parts, and bytes of one.
        factor_items, factor_bytes: number of scale factors of the lines of all matrices, and bytes
            of one.
        status_items: numbers of the status, from which the validity check tells how well the
            operand was split.
        numbers: arguments of the kernel after the buffers of parts, factors and status.
    """

    spec: KernelSpec
    problem: Problem
    blocks: int
    part_items: int
    part_item_bytes: int
    factor_items: int
    factor_bytes: int
    status_items: int
    numbers: tuple[int, ...] = ()

    @property
    def innermost(self) -> str:
        """ "k" if the operand is K-major, "mn" if it is MN-major."""
        return self.spec.variant[0]

    @property
    def size(self) -> int:
        """Bytes of parts, factors and status together."""
        return self._status + _aligned(self.status_items * NUMBER_BYTES)

    @property
    def _factors(self) -> int:
        return _aligned(self.part_items * self.part_item_bytes)

    @property
    def _status(self) -> int:
        return self._factors + _aligned(self.factor_items * self.factor_bytes)

    def factors(self, base: int) -> tuple[int, int]:
        """Address and size of the buffer of factors, with the memory at an address."""
        return base + self._factors, self.factor_items

    def status(self, base: int) -> tuple[int, int]:
        """Address and size of the buffer of the status, with the memory at an address."""
        return base + self._status, self.status_items

    def bind(self, arch: str, ordinal: int) -> Launch:
        """Bind the kernel, built if need be; its epilogue arguments are `arguments`."""
        return launch_kernel(self.spec, self.problem, self.blocks, arch, ordinal)

    def arguments(self, base: int) -> tuple[int, ...]:
        """Epilogue arguments of the kernel: its buffers, then its numbers."""
        return base, self.part_items, *self.factors(base), *self.status(base), *self.numbers


def operand_parts(strides: Strides, along: int, k: int, batch: int, alignment: int) -> OperandParts:
    """Parts of a float32 operand with `along` rows of a, or columns of b.

    Args:
        strides: strides of the batch, along m or n, and along k.
        along, k, batch: sizes.
        alignment: alignment of the address, in bytes.
    """
    problem = _operand_problem("float32", strides, along, k, batch, alignment)
    problem = replace(problem, epilogue=Fusion((), buffers("float16", "float32", "int32")))
    config = first_config(decompose)
    variant = decompose.KERNEL.variant(config, problem)
    layout = parts_layout(SCHEME, variant[0], along, k)
    blocks = decompose.KERNEL.block_count(config, problem)
    return OperandParts(
        series_spec(decompose, config, problem, variant),
        problem,
        blocks,
        part_items=problem.batch * SCHEME.parts * layout.items,
        part_item_bytes=SCHEME.item_bytes,
        factor_items=problem.batch * -(-along // PADDING) * PADDING,
        factor_bytes=NUMBER_BYTES,
        status_items=blocks * STATUS_ITEMS,
    )


def operand_residues(
    strides: Strides, along: int, k: int, batch: int, alignment: int, count: int
) -> OperandParts:
    """Parts of a float64 operand: its residues by `count` moduli, K-major."""
    problem = _operand_problem("float64", strides, along, k, batch, alignment)
    operands = (*buffers("int8", "float64", "int32"), FusedOperand("number", "int64"))
    problem = replace(problem, epilogue=Fusion((), operands))
    config = first_config(residues)
    variant = (*residues.KERNEL.variant(config, problem), str(count))
    blocks = residues.KERNEL.block_count(config, problem)
    return OperandParts(
        series_spec(residues, config, problem, variant),
        problem,
        blocks,
        part_items=problem.batch * count * along * row_bytes(k),
        part_item_bytes=1,
        factor_items=problem.batch * -(-along // PADDING) * PADDING,
        factor_bytes=FLOAT64_BYTES,
        status_items=blocks * STATUS_ITEMS,
        numbers=(operand_bits(count, k),),
    )


def _operand_problem(
    dtype: str, strides: Strides, along: int, k: int, batch: int, alignment: int
) -> Problem:
    """Problem with an operand as its a."""
    return Problem(
        dtype=dtype,
        m=along,
        n=0,
        k=k,
        batch=batch if strides.batch else 1,
        a=strides,
        b=NO_STRIDES,
        c=NO_STRIDES,
        out=NO_STRIDES,
        out_dtype=dtype,
        a_alignment=alignment,
    )


def parts_of_problem(problem: Problem) -> dict[str, OperandParts]:
    """Parts of a and b, by name."""
    a = problem.a, problem.m, problem.k, problem.batch, problem.a_alignment
    b = problem.b.transposed(), problem.n, problem.k, problem.batch, problem.b_alignment
    if problem.dtype == "float32":
        return {"a": operand_parts(*a), "b": operand_parts(*b)}
    count = moduli_count(problem)
    return {"a": operand_residues(*a, count), "b": operand_residues(*b, count)}


def series_spec(
    file: Any, config: Any, problem: Problem, variant: tuple[str, ...], dtype: str | None = None
) -> KernelSpec:
    """Spec of a kernel of a series, under the name of the series.

    Args:
        file: the kernel file.
        config: config of the kernel.
        problem: problem of the kernel.
        variant: variant of the kernel.
        dtype: dtype of the operands, if it is not the dtype of the kernel's problem.
    """
    name = SERIES[dtype or problem.dtype]
    return KernelSpec(name, file.__name__, config, problem.dtype, variant, problem.epilogue)


def buffers(*dtypes: str) -> tuple[FusedOperand, ...]:
    """Buffers of these dtypes, as epilogue operands."""
    return tuple(FusedOperand("buffer", dtype) for dtype in dtypes)


def first_config(file: Any) -> Any:
    """Config of a kernel file with a single config."""
    return (file.KERNEL.simulator_configs if simulator_enabled() else file.KERNEL.configs)[0]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
