"""Parts of float32 operands for precision="split": how they lie in memory, and their kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dxgemm._fusion import FusedOperand, Fusion
from dxgemm._gpu import simulator_enabled
from dxgemm._problem import Problem, Strides
from dxgemm.compiler import KernelSpec
from dxgemm.handwritten import split
from dxgemm.handwritten.split_parts import CHOSEN, PADDING, SCHEMES, STATUS_ITEMS, parts_layout
from dxgemm.runtime.binding import Launch, launch_kernel
from dxgemm.runtime.workspace import ALIGNMENT

NO_STRIDES = Strides(0, 0, 0)
NUMBER_BYTES = 4  # of a factor, of a number of the status
SCHEME = SCHEMES[CHOSEN]


@dataclass(frozen=True)
class OperandParts:
    """How the parts of an operand lie in memory, with what is known of them behind.

    Attributes:
        problem: what `split` takes for one: the operand as its a, b transposed.
        config, variant: of `split`.
        part_bytes: of all parts.
        factor_items, status_items: numbers, of all matrices.
    """

    problem: Problem
    config: Any
    variant: tuple[str, str]
    part_bytes: int
    factor_items: int
    status_items: int

    @property
    def innermost(self) -> str:
        """Along what the parts lie: "k" or "mn"."""
        return self.variant[0]

    @property
    def blocks(self) -> int:
        """That split the operand."""
        return split.block_count(self.config, self.problem)

    @property
    def size(self) -> int:
        """Of the memory, in bytes."""
        return self._status + _aligned(self.status_items * NUMBER_BYTES)

    @property
    def _factors(self) -> int:
        return _aligned(self.part_bytes)

    @property
    def _status(self) -> int:
        return self._factors + _aligned(self.factor_items * NUMBER_BYTES)

    @property
    def spec(self) -> KernelSpec:
        """The kernel that splits the operand."""
        return series_spec(split, self.config, self.problem, self.variant)

    def factors(self, base: int) -> tuple[int, int]:
        """The buffer of factors, with the memory at an address."""
        return base + self._factors, self.factor_items

    def status(self, base: int) -> tuple[int, int]:
        """The buffer of what is known."""
        return base + self._status, self.status_items

    def bind(self, arch: str, ordinal: int) -> Launch:
        """The launch of `split`, built if need be; its operands are `arguments`."""
        return launch_kernel(self.spec, self.problem, self.blocks, arch, ordinal)

    def arguments(self, base: int) -> tuple[int, ...]:
        """The buffers of `split`."""
        parts = base, self.part_bytes // SCHEME.item_bytes
        return *parts, *self.factors(base), *self.status(base)


def operand_parts(strides: Strides, along: int, k: int, batch: int, alignment: int) -> OperandParts:
    """Of an operand of `along` rows of a, or columns of b.

    Args:
        strides: from one matrix to the next, along its rows or columns, and along k.
        along, k, batch: sizes.
        alignment: of its address, in bytes.
    """
    matrices = batch if strides.batch else 1
    problem = Problem(
        dtype="float32",
        m=along,
        n=0,
        k=k,
        batch=matrices,
        a=strides,
        b=NO_STRIDES,
        c=NO_STRIDES,
        out=NO_STRIDES,
        out_dtype="float32",
        a_alignment=alignment,
        epilogue=Fusion((), buffers("float16", "float32", "int32")),
    )
    config = first_config(split)
    variant = split.variant(config, problem)
    layout = parts_layout(SCHEME, variant[0], along, k)
    return OperandParts(
        problem,
        config,
        variant,
        part_bytes=matrices * SCHEME.parts * layout.items * SCHEME.item_bytes,
        factor_items=matrices * -(-along // PADDING) * PADDING,
        status_items=split.block_count(config, problem) * STATUS_ITEMS,
    )


def parts_of_problem(problem: Problem) -> dict[str, OperandParts]:
    """Of a and b."""
    sizes = problem.k, problem.batch
    return {
        "a": operand_parts(problem.a, problem.m, *sizes, problem.a_alignment),
        "b": operand_parts(problem.b.transposed(), problem.n, *sizes, problem.b_alignment),
    }


def series_spec(file: Any, config: Any, problem: Problem, variant: tuple[str, ...]) -> KernelSpec:
    """A kernel of the series, under the registered name, by which `build` knows what it is for."""
    return KernelSpec(
        "split_wgmma", file.__name__, config, problem.dtype, variant, problem.epilogue
    )


def buffers(*dtypes: str) -> tuple[FusedOperand, ...]:
    """Operands behind an epilogue's."""
    return tuple(FusedOperand("buffer", dtype) for dtype in dtypes)


def first_config(file: Any) -> Any:
    """Of a kernel file that has but one."""
    return (file.SIMULATOR_CONFIGS if simulator_enabled() else file.CONFIGS)[0]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
