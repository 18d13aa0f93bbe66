"""Launch of the kernel that makes float8 and scales of a matrix alone, for operators of torch."""

from __future__ import annotations

from typing import Any

from dxgemm.call.operand import inspected
from dxgemm.lower.quantised import bind_quantising
from dxgemm.problem.layout import used_strides
from dxgemm.runtime.arrays import HOST
from dxgemm.runtime.capture import launching_on


def quantise_rows_into(x: Any, values: Any, scales: Any) -> None:
    """Quantise the rows of a matrix on the current stream.

    Args:
        x: (m, n), float32, float16 or bfloat16, on the GPU, any strides.
        values, scales: (m, n) of float8, and (m, 1) of float32, where the results go.
    """
    operands = [inspected(*x, None) for x in (("x", x), ("values", values), ("scales", scales))]
    matrix, *outputs = operands
    layout, (m, n) = matrix.layout, matrix.layout.shape
    strides, *steps = (used_strides(x.layout.shape, x.layout.steps) for x in operands)
    kinds = tuple((x.layout.dtype, steps[i]) for i, x in enumerate(outputs))
    stream = matrix.library.current_stream(matrix.array)
    ordinal = 0 if layout.device == HOST else layout.device
    with launching_on(stream):
        launch = bind_quantising(layout.dtype, (1, m, n), strides, kinds, 0, ordinal)
    addresses = (x.pointer for x in outputs)
    launch((matrix.pointer, 0, 0, 0, 0, 0, *addresses), stream)
