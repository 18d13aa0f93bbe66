"""What operands are split into for precision="emulated": how that lies in memory, and its kernels.

float32 is split into parts, float64 into residues; for both, the kernel says how well that went.
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
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.problem.layout import Strides
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import Launch, launch_kernel
from dxgemm.runtime.workspace import ALIGNMENT

NO_STRIDES = Strides(0, 0, 0)
NUMBER_BYTES = 4  # of a float32, of a number of the status
FLOAT64_BYTES = 8
SCHEME = SCHEMES[CHOSEN]
IMPLEMENTATIONS = {
    "float32": "emulated_float32",
    "float64": "emulated_float64",
}  # what multiplies parts


@dataclass(frozen=True)
class OperandParts:
    """How the parts of an operand lie in memory, with what is known of them behind.

    Attributes:
        spec: the kernel that splits the operand.
        problem: what it takes for one: the operand as its a, b transposed.
        blocks: of its launch.
        part_items, part_item_bytes: of all parts.
        factor_items, factor_bytes: numbers by which lines are scaled back, of all matrices.
        status_items: numbers that say how well the operand was split.
        numbers: what the kernel takes behind the buffers of these three.
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
        """Along what the operand lies: "k" or "mn"."""
        return self.spec.variant[0]

    @property
    def size(self) -> int:
        """Of the memory, in bytes."""
        return self._status + _aligned(self.status_items * NUMBER_BYTES)

    @property
    def _factors(self) -> int:
        return _aligned(self.part_items * self.part_item_bytes)

    @property
    def _status(self) -> int:
        return self._factors + _aligned(self.factor_items * self.factor_bytes)

    def factors(self, base: int) -> tuple[int, int]:
        """The buffer of factors, with the memory at an address."""
        return base + self._factors, self.factor_items

    def status(self, base: int) -> tuple[int, int]:
        """The buffer of what is known."""
        return base + self._status, self.status_items

    def bind(self, arch: str, ordinal: int) -> Launch:
        """The launch of the kernel, built if need be; its operands are `arguments`."""
        return launch_kernel(self.spec, self.problem, self.blocks, arch, ordinal)

    def arguments(self, base: int) -> tuple[int, ...]:
        """The buffers of the kernel, and its numbers."""
        return base, self.part_items, *self.factors(base), *self.status(base), *self.numbers


def operand_parts(strides: Strides, along: int, k: int, batch: int, alignment: int) -> OperandParts:
    """Of an operand of `along` rows of a, or columns of b.

    Args:
        strides: from one matrix to the next, along its rows or columns, and along k.
        along, k, batch: sizes.
        alignment: of its address, in bytes.
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
    """`operand_parts` in float64: residues by `count` moduli, which lie along k."""
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
        part_items=problem.batch * count * along * residues.row_bytes(k),
        part_item_bytes=1,
        factor_items=problem.batch * -(-along // PADDING) * PADDING,
        factor_bytes=FLOAT64_BYTES,
        status_items=blocks * STATUS_ITEMS,
        numbers=(operand_bits(count, k),),
    )


def _operand_problem(
    dtype: str, strides: Strides, along: int, k: int, batch: int, alignment: int
) -> Problem:
    """An operand as the a of a problem."""
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
    """Of a and b."""
    a = problem.a, problem.m, problem.k, problem.batch, problem.a_alignment
    b = problem.b.transposed(), problem.n, problem.k, problem.batch, problem.b_alignment
    if problem.dtype == "float32":
        return {"a": operand_parts(*a), "b": operand_parts(*b)}
    count = moduli_count(problem)
    return {"a": operand_residues(*a, count), "b": operand_residues(*b, count)}


def series_spec(
    file: Any, config: Any, problem: Problem, variant: tuple[str, ...], dtype: str | None = None
) -> KernelSpec:
    """A kernel of the series, under the registered name, by which `build` knows what it is for.

    Args:
        dtype: of the operands, if that of the kernel's problem is another.
    """
    name = IMPLEMENTATIONS[dtype or problem.dtype]
    return KernelSpec(name, file.__name__, config, problem.dtype, variant, problem.epilogue)


def buffers(*dtypes: str) -> tuple[FusedOperand, ...]:
    """Operands behind an epilogue's."""
    return tuple(FusedOperand("buffer", dtype) for dtype in dtypes)


def first_config(file: Any) -> Any:
    """Of a kernel file that has but one."""
    return (file.KERNEL.simulator_configs if simulator_enabled() else file.KERNEL.configs)[0]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
