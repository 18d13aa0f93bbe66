"""Programs of products with triangular operands: copies without what is beside the diagonal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dxgemm.choice.legality import Candidate
from dxgemm.handwritten.kernels import clean_triangle
from dxgemm.handwritten.parts.k_ranges import band
from dxgemm.handwritten.parts.kernel import MOST_INDEX
from dxgemm.lower.steps import file_step
from dxgemm.problem.triangular import CleanCopy
from dxgemm.runtime.program import Name, Program, Step, Symbol, Value


def lower_clean_copies(
    copies: Sequence[CleanCopy], product: Program, candidate: Candidate, is_whole: bool
) -> Program:
    """Program of copies and of their product.

    Args:
        copies: the copies; the product reads them in the place of the operands of their names.
        product: the program of the product.
        candidate: the kernel of the product.
        is_whole: True if the product reads zeros far from the diagonal as well.
    """
    steps: list[Step] = []
    zeros = MOST_INDEX if is_whole else band(candidate.config)
    buffers: dict[Name, int] = {}
    cleaned: dict[Name, Value] = {}
    for copy in copies:
        target = Symbol(f"clean {copy.name}")
        steps.append(_copy_step(copy, target, zeros))
        buffers[target.name], cleaned[copy.name] = copy.size, target
    return Program(tuple(steps), buffers) + product.given(cleaned)


def _copy_step(copy: CleanCopy, target: Symbol, zeros: int) -> Step:
    """Copy, with so many zeros beyond the diagonal in each line."""
    sizes, source = replace(copy.sizes, k=zeros), Symbol(copy.name)
    variant = copy.triangle, copy.unit_dtype, copy.parts
    return file_step(clean_triangle, sizes, variant, values=(source, source, target, target, 0, 0))
