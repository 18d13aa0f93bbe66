"""What a kernel has to know of an epilogue: its functions, and how their operands lie."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

# Parameters of a kernel by the kind of an operand, as `struct` formats: an address and the strides
# in elements of an array, address and elements of a buffer, or a number.
ARRAY_FORMAT = "Pqqq"
BUFFER_FORMAT = "Pq"


@dataclass(frozen=True, slots=True)
class FusedReduction:
    """What is made of the result instead of storing it, or besides.

    Attributes:
        kind: "sum", "squares" (their sum), "smallest" or "largest".
        axis: of the kernel's result: 1 for one result a row, 0 for one a column, None for one.
        partials: dtypes of partial results: of the values, and of the indices if there are any.
        count: values that are found, the smallest or largest first.
        nan_first: whether NaN comes before all other values, else after them.
        of_magnitudes: whether absolute values are compared.
        is_stored: whether the matrix is written too.
    """

    kind: str
    axis: int | None
    partials: tuple[str, ...]
    count: int = 1
    nan_first: bool = True
    of_magnitudes: bool = False
    is_stored: bool = False

    @property
    def has_indices(self) -> bool:
        """Whether it is known where the values are."""
        return len(self.partials) > 1

    @property
    def buffers(self) -> tuple[FusedOperand, ...]:
        """What kernels take for partial results."""
        return tuple(FusedOperand("buffer", dtype) for dtype in self.partials)


@dataclass(frozen=True, slots=True)
class FusedOperand:
    """How a kernel reads or writes an operand.

    Attributes:
        kind: "number", "array", "output", or "buffer", of which the kernel knows address and size.
        dtype: of a number "float32", "float64" or "int64".
        access: of an array: "vector" where neighbours in a row of the result can be accessed 16
            bytes at a time, "same" where they are one element, else "element".
        has_rows: whether rows of the result have different elements.
    """

    kind: str
    dtype: str
    access: str = "element"
    has_rows: bool = True

    @property
    def format(self) -> str:
        """Of its parameters, for `struct`."""
        numbers = {"float32": "f", "float64": "d", "int64": "q"}
        if self.kind == "number":
            return numbers[self.dtype]
        return BUFFER_FORMAT if self.kind == "buffer" else ARRAY_FORMAT


@dataclass(frozen=True, slots=True)
class Fusion:
    """An epilogue as part of a kernel's identity.

    Attributes:
        stages: of type `dxgemm.epilogues.Epilogue`, applied from left to right.
        operands: of all stages: of each first what its function takes, then its outputs. Those of
            the reduction follow.
        is_transposed: whether the kernel's rows are the caller's columns.
        reduction: what the end of the chain is.
    """

    stages: tuple[Any, ...]
    operands: tuple[FusedOperand, ...]
    is_transposed: bool = False
    reduction: FusedReduction | None = None

    @property
    def stage_operands(self) -> tuple[FusedOperand, ...]:
        """The operands of the stages alone."""
        count = sum(len(stage.operands) for stage in self.stages)
        return self.operands[:count]

    @property
    def key(self) -> str:
        """Part of the kernel's key: the same in every process."""
        digests = [stage.digest for stage in self.stages]
        return repr((digests, self.operands, self.is_transposed, self.reduction))

    @property
    def label(self) -> str:
        """A short name that tells this epilogue from others."""
        return "epilogue " + hashlib.sha256(self.key.encode()).hexdigest()[:8]

    @property
    def format(self) -> str:
        """Of the kernel's parameters, for `struct`."""
        return "".join(operand.format for operand in self.operands)
