"""Program of the kernel that makes float8 and scales of a matrix, behind a product or alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from dxgemm.choice.kernel_files import configs_of
from dxgemm.handwritten.kernels import quantise_rows
from dxgemm.lower.steps import file_step
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.problem.kernel_arguments import KernelArguments
from dxgemm.problem.layout import Strides
from dxgemm.runtime.binding import Launch
from dxgemm.runtime.device import device_facts
from dxgemm.runtime.program import Program, Symbol, Value


def quantising_program(
    source: Value,
    dtype: str,
    sizes: tuple[int, int, int],
    strides: Strides,
    arrays: Sequence[tuple[Value, str, Strides]],
    block: int,
) -> Program:
    """Program that quantises the rows of matrices.

    Args:
        source: address of the first matrix.
        dtype: dtype of the matrices.
        sizes: number of matrices, their rows and columns.
        strides: strides of the matrices.
        arrays: address, dtype and strides of the elements and of the scales.
        block: columns of a row that share a scale; 0 for all.
    """
    (batch, m, n), config = sizes, configs_of(quantise_rows)[block > 0]
    outputs = tuple(FusedOperand("output", kind) for _, kind, _ in arrays)
    # Without columns there are scales of rows still.
    arguments = KernelArguments(
        dtype, m, max(n, 1), n, batch, strides, epilogue=Fusion((), outputs)
    )  # fmt: skip
    blocks = batch * -(-m * (-(-n // block) if block else 1) // config.groups)
    step = file_step(
        quantise_rows, arguments, (arrays[0][1], *([str(block)] if block else [])), config,
        blocks=blocks, values=(source, source, source, source, 0, 0),
        operands=tuple(value for address, _, steps in arrays for value in (address, *steps)),
    )  # fmt: skip
    return Program((step,) if blocks else ())


@lru_cache(maxsize=256)
def bind_quantising(
    dtype: str,
    sizes: tuple[int, int, int],
    strides: Strides,
    outputs: tuple[tuple[str, Strides], tuple[str, Strides]],
    block: int,
    ordinal: int,
) -> Launch:
    """Bind the kernel alone; its launch takes the addresses of matrices, elements and scales."""
    arrays = [(Symbol(place), *output) for place, output in enumerate(outputs)]
    program = quantising_program(Symbol("a"), dtype, sizes, strides, arrays, block)
    return program.bind(device_facts(ordinal).arch, ordinal)
