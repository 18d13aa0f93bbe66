"""Parts of operands for precision="emulated": their layout in memory, and their kernels.

float32 is split into parts, float64 into residues. The kernels also write a status, from which the
validity check tells whether the bound on the error holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dxgemm.choice.kernel_files import configs_of, file_spec
from dxgemm.compiler import KernelSpec
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
from dxgemm.problem.kernel_arguments import KernelArguments
from dxgemm.problem.layout import Strides
from dxgemm.problem.problem import Problem
from dxgemm.runtime.program import Step, Symbol
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
        sizes: its arguments: the operand as its a, b transposed.
        blocks: number of blocks of its launch.
        part_items, part_item_bytes: number of items of all parts, and bytes of one.
        factor_items, factor_bytes: number of scale factors of the lines of all matrices, and bytes
            of one.
        status_items: numbers of the status, from which the validity check tells how well the
            operand was split.
        numbers: arguments of the kernel after the buffers of parts, factors and status.
    """

    spec: KernelSpec
    sizes: KernelArguments
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

    def factors(self, base: Any) -> tuple[Any, int]:
        """Address and size of the buffer of factors, with the memory at an address or a symbol."""
        return base + self._factors, self.factor_items

    def status(self, base: Any) -> tuple[Any, int]:
        """Address and size of the buffer of the status, with the memory at an address."""
        return base + self._status, self.status_items

    def step(self, source: Symbol, memory: Symbol) -> Step:
        """Step that splits the operand at `source`."""
        values = source, source, source, source, 0, 0
        buffers = memory, self.part_items, *self.factors(memory), *self.status(memory)
        return Step(self.spec, self.sizes, self.blocks, values, (*buffers, *self.numbers))


def operand_parts(strides: Strides, along: int, k: int, batch: int, alignment: int) -> OperandParts:
    """Parts of a float32 operand with `along` rows of a, or columns of b.

    Args:
        strides: strides of the batch, along m or n, and along k.
        along, k, batch: sizes.
        alignment: alignment of the address, in bytes.
    """
    fused = buffers("float16", "float32", "int32")
    sizes = _operand_arguments("float32", strides, along, k, batch, alignment, fused)
    config = configs_of(decompose)[0]
    variant = decompose.KERNEL.variant(config, sizes)
    layout = parts_layout(SCHEME, variant[0], along, k)
    blocks = decompose.KERNEL.block_count(config, sizes)
    return OperandParts(
        file_spec(decompose, sizes, variant, name=SERIES["float32"]),
        sizes,
        blocks,
        part_items=sizes.batch * SCHEME.parts * layout.items,
        part_item_bytes=SCHEME.item_bytes,
        factor_items=sizes.batch * -(-along // PADDING) * PADDING,
        factor_bytes=NUMBER_BYTES,
        status_items=blocks * STATUS_ITEMS,
    )


def operand_residues(
    strides: Strides, along: int, k: int, batch: int, alignment: int, count: int
) -> OperandParts:
    """Parts of a float64 operand: its residues by `count` moduli, K-major."""
    fused = (*buffers("int8", "float64", "int32"), FusedOperand("number", "int64"))
    sizes = _operand_arguments("float64", strides, along, k, batch, alignment, fused)
    config = configs_of(residues)[0]
    variant = (*residues.KERNEL.variant(config, sizes), str(count))
    blocks = residues.KERNEL.block_count(config, sizes)
    return OperandParts(
        file_spec(residues, sizes, variant, name=SERIES["float64"]),
        sizes,
        blocks,
        part_items=sizes.batch * count * along * row_bytes(k),
        part_item_bytes=1,
        factor_items=sizes.batch * -(-along // PADDING) * PADDING,
        factor_bytes=FLOAT64_BYTES,
        status_items=blocks * STATUS_ITEMS,
        numbers=(operand_bits(count, k),),
    )


def _operand_arguments(
    dtype: str,
    strides: Strides,
    along: int,
    k: int,
    batch: int,
    alignment: int,
    fused: tuple[FusedOperand, ...],
) -> KernelArguments:
    """Arguments of a kernel with an operand as its a."""
    batch = batch if strides.batch else 1
    epilogue = Fusion((), fused)
    return KernelArguments(
        dtype, along, 0, k, batch, strides, a_alignment=alignment, epilogue=epilogue
    )


def parts_of_problem(problem: Problem) -> dict[str, OperandParts]:
    """Parts of a and b, by name."""
    a = problem.a, problem.m, problem.k, problem.batch, problem.a_alignment
    b = problem.b.transposed(), problem.n, problem.k, problem.batch, problem.b_alignment
    if problem.dtype == "float32":
        return {"a": operand_parts(*a), "b": operand_parts(*b)}
    count = moduli_count(problem)
    return {"a": operand_residues(*a, count), "b": operand_residues(*b, count)}


def buffers(*dtypes: str) -> tuple[FusedOperand, ...]:
    """Buffers of these dtypes, as epilogue operands."""
    return tuple(FusedOperand("buffer", dtype) for dtype in dtypes)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
