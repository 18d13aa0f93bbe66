"""What a kernel has to know of an epilogue: its functions, and how their operands lie."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

# Parameters of a kernel by the kind of an operand, as `struct` formats: an address and the strides
# in elements of an array, or a number.
ARRAY_FORMAT = "Pqqq"


class Stage(Protocol):
    """One function of a chain.

    Attributes:
        operand_count: values it takes after value, row and col.
        output_count: values it returns after the result.
        digest: the same in every process, different for every function.
    """

    @property
    def operand_count(self) -> int: ...

    @property
    def output_count(self) -> int: ...

    @property
    def digest(self) -> str: ...

    def make_function(
        self, literal: Any, device: Callable[..., Any], elementary: Mapping[str, Any]
    ) -> Any:
        """The function, its float constants as `literal`, and it and its helpers as `device`.

        `elementary` holds functions to take in place of the host's, by their names.
        """


@dataclass(frozen=True)
class FusedOperand:
    """How a kernel reads or writes an operand.

    Attributes:
        kind: "number", "array" or "output".
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
        return numbers[self.dtype] if self.kind == "number" else ARRAY_FORMAT


@dataclass(frozen=True)
class Fusion:
    """An epilogue as part of a kernel's identity.

    Attributes:
        stages: applied from left to right.
        operands: of all stages: of each first what its function takes, then its outputs.
        is_transposed: whether the kernel's rows are the caller's columns.
    """

    stages: tuple[Stage, ...]
    operands: tuple[FusedOperand, ...]
    is_transposed: bool = False

    @property
    def key(self) -> str:
        """Part of the kernel's key: the same in every process."""
        digests = [stage.digest for stage in self.stages]
        return repr((digests, self.operands, self.is_transposed))

    @property
    def label(self) -> str:
        """A short name that tells this epilogue from others."""
        return "epilogue " + hashlib.sha256(self.key.encode()).hexdigest()[:8]

    @property
    def format(self) -> str:
        """Of the kernel's parameters, for `struct`."""
        return "".join(operand.format for operand in self.operands)
