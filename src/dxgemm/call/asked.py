"""Calls as they are asked for, before anything is checked or chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dxgemm.choice.batch_invariant import BatchInvariant
from dxgemm.epilogues.chain import BoundEpilogue
from dxgemm.problem.define import PLAIN, Result
from dxgemm.problem.dtypes import COMPLEX_PARTS
from dxgemm.problem.layout import Layout


class Asked(NamedTuple):
    """A call as far as its route depends on it, whatever library the operands are of.

    Attributes:
        layouts: layouts of the operands by name, as the caller passed them; arrays of the epilogue
            are named by its labels.
        alpha_is_zero, beta_is_zero: True if a and b, or c, are never read.
        precision: as `gemm` takes it.
        implementation: as `gemm` takes it, or a `BatchInvariant`.
        epilogue: shape of the epilogue; None without one.
        triangle: triangles of a symmetric result that are written: "both", "lower" or "upper";
            "either" if a and b begin at the same address, so that the result may be symmetric.
        adds_transpose: True if the transposed product is added.
        triangular: triangles of a and of b, as `gemm` takes them; None if both are full.
    """

    layouts: Mapping[str, Layout]
    alpha_is_zero: bool
    beta_is_zero: bool
    precision: Any = None
    implementation: Any = None
    epilogue: BoundEpilogue | None = None
    triangle: str = ""
    adds_transpose: bool = False
    triangular: tuple[str | None, str | None] | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """Key that two calls with the same route share."""
        return (*self.layouts.items(), *self[1:])

    @property
    def is_symmetric(self) -> bool:
        """True if a symmetric result was asked for as such."""
        return self.triangle not in ("", "either")

    @property
    def is_invariant(self) -> bool:
        return isinstance(self.implementation, BatchInvariant)

    @property
    def is_complex(self) -> bool:
        return self.layouts["a"].dtype in COMPLEX_PARTS

    @property
    def is_reduced(self) -> bool:
        return self.epilogue is not None and self.epilogue.reduction is not None

    @property
    def result(self) -> Result:
        """The result that the epilogue makes of the product."""
        if self.epilogue is None:
            return PLAIN
        reduction = self.epilogue.reduction
        axis = reduction.axis if reduction and "out" not in self.layouts else None
        return Result(
            self.epilogue.has_functions,
            reduction is not None,
            axis,
            self.epilogue.takes_pairs,
            self.epilogue.is_real,
            reduction is not None and reduction.is_rounded,
        )
