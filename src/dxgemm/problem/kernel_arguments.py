"""Arguments of kernels that compute no GEMM: copies, checks, merges, and the like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dxgemm.problem.dtypes import scalar_dtype
from dxgemm.problem.fusion import Fusion
from dxgemm.problem.layout import MAX_ALIGNMENT, NO_STRIDES, Strides
from dxgemm.problem.problem import Problem

# What a launch takes: addresses of a, b, c and out; alpha and beta; the epilogue's arguments.
Call = tuple[Any, ...]
# Strides and sizes of the memory that a kernel may use of an operand, by its name.
Extents = Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]


@dataclass(frozen=True)
class KernelArguments:
    """Sizes and strides as a kernel takes them; its docstring says what it uses them for.

    Attributes:
        dtype: dtype of the kernel, which is that of a and b.
        m, n, k, batch: sizes.
        a, b, c, out: strides in elements.
        epilogue: operands behind the parameters that every kernel has; None without any.
        out_dtype: dtype of c and out; "" for that of a and b.
        reads_c: True if c is read.
        a_alignment: bytes, alignment of the address of a.
        extents: memory of the operands that are no matrices of these sizes, for the simulator.
    """

    dtype: str
    m: int
    n: int
    k: int = 1
    batch: int = 1
    a: Strides = NO_STRIDES
    b: Strides = NO_STRIDES
    c: Strides = NO_STRIDES
    out: Strides = NO_STRIDES
    epilogue: Fusion | None = None
    out_dtype: str = ""
    reads_c: bool = False
    a_alignment: int = MAX_ALIGNMENT
    extents: Extents = field(default_factory=dict, compare=False)

    slices, triangle, k_ranges, clears = 1, "", "", ""  # as `Problem` has them

    def __post_init__(self) -> None:
        object.__setattr__(self, "out_dtype", self.out_dtype or self.dtype)

    @property
    def scalar_dtype(self) -> str:
        """Dtype of the kernel's alpha and beta."""
        return scalar_dtype(self.dtype)

    @property
    def c_dtype(self) -> str:
        """Dtype of c."""
        return self.out_dtype

    @property
    def result_columns(self) -> int:
        """Columns of out."""
        return self.n


Arguments = Problem | KernelArguments  # of a launch
