"""Steps by kernel files beside the implementations: copies, checks, sums, merges."""

from __future__ import annotations

from typing import Any

from dxgemm.choice.kernel_files import file_spec
from dxgemm.problem.kernel_arguments import Arguments
from dxgemm.runtime.program import CALL, Step, Value


def file_step(
    file: Any,
    arguments: Arguments,
    variant: tuple[str, ...] = (),
    config: Any = None,
    *,
    name: str = "",
    blocks: int | None = None,
    values: tuple[Value, ...] = CALL,
    operands: tuple[Value, ...] = (),
) -> Step:
    """Step of the kernel of a file.

    Args:
        file, arguments, variant, config, name: as `file_spec` takes them.
        blocks: blocks of the grid; None for those that the kernel counts.
        values, operands: as `Step` has them.
    """
    spec = file_spec(file, arguments, variant, config, name)
    if blocks is None:
        blocks = file.KERNEL.block_count(spec.config, arguments)
    return Step(spec, arguments, blocks, values, operands)
