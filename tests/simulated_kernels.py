"""Single blocks of kernels in numba's simulator, over operands without memory."""

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import simulated_instructions
from sparse_operands import MOST_ROUNDS, SparseOperand, run_block

from dxgemm.compiler import KernelSpec
from dxgemm.problem.layout import Strides, used_strides
from dxgemm.problem.problem import Problem
from dxgemm.runtime.launch import kernel_arguments

NOTHING = SparseOperand("float32", (0,))


def matrices(
    batch: int, rows: int, cols: int, order: str = "row", line: int = 0, least: int = 0
) -> Strides:
    """Strides of matrices that follow one another."""
    length, lines = (cols, rows) if order == "row" else (rows, cols)
    line = line or length
    steps = (line, 1) if order == "row" else (1, line)
    return used_strides((batch, rows, cols), (max(lines * line, least), *steps))


@cache
def make(spec: KernelSpec) -> Any:
    """Kernel as the Python function to simulate."""
    kernel = import_module(spec.module).KERNEL
    return kernel.make_kernel(spec.config, spec.dtype, *spec.variant, epilogue=spec.epilogue)


def launch(
    spec: KernelSpec, problem: Problem, operands: dict[str, SparseOperand], extra: tuple[Any, ...],
    factors: tuple[Any, Any], grid: tuple[int, ...], point: tuple[int, ...],
    maps: tuple[Any, ...] = (), most_rounds: int = MOST_ROUNDS,
) -> None:  # fmt: skip
    """Run one block of a kernel."""
    kernel, config = import_module(spec.module).KERNEL, spec.config
    for name, tensor, operand in zip(kernel.tensor_map_names, maps, "ab", strict=False):
        address = simulated_instructions.FIRST_MAP + ord(operand)
        simulated_instructions.names[name] = address
        simulated_instructions.maps[address] = operands[operand], tensor
    arguments = (
        *(operands.get(name) or NOTHING for name in ("a", "b", "c", "out")), *factors,
        *kernel_arguments(problem), extra,
    )  # fmt: skip
    run_block(
        make(spec), arguments, grid, point, config.threads, config.smem_bytes(spec.dtype),
        most_rounds,
    )  # fmt: skip


def first_config(implementation: Any, dtype: str) -> Any:
    """Config of the fewest threads and the smallest tile."""
    kernel = implementation.kernel
    configs = kernel.simulator_configs or kernel.configs
    configs = [config for config in configs if config.cluster == 1 and config.takes(dtype)]
    return min(configs, key=lambda c: (c.threads, c.tile_m * c.tile_n))


def check_tile(out: SparseOperand, expected: Any, is_last: bool) -> None:
    """Compare what a block wrote, a rectangle; the last one's ends with the result."""
    positions, values = out.written()
    assert np.prod([len(np.unique(position)) for position in positions]) == len(values)
    if is_last:
        assert [position.max() + 1 for position in positions] == [*out.sizes]
    np.testing.assert_array_equal(values, expected(*positions))


def product_of(operands: dict[str, SparseOperand], depth: np.ndarray, alpha: int, beta: int) -> Any:
    """Function of positions in the result: alpha * a @ b + beta * c, over these k."""
    a, b, c = (operands[name] for name in "abc")

    def expected(matrix: Any, row: Any, col: Any) -> Any:
        left = a.at(matrix[:, None], row[:, None], depth)
        products = (left * b.at(matrix[:, None], depth, col[:, None])).sum(1)
        return alpha * products + (beta * c.at(matrix, row, col) if beta else 0)

    return expected


def problem_of_shape(dtype: str, shape: tuple[int, int, int], k: int, **options: Any) -> Problem:
    batch, m, n = shape
    return Problem(
        dtype=dtype, m=m, n=n, k=k, batch=batch, a=matrices(batch, m, k),
        b=matrices(batch, k, n, options.pop("b_order", "row")), c=matrices(batch, m, n),
        out=matrices(batch, m, n), out_dtype=dtype, reads_c=True, in_place=False, **options,
    )  # fmt: skip


def ones(index: Any) -> Any:
    return index * 0 + 1


def nought(index: Any) -> Any:
    return index * 0


FLAG = SparseOperand("int32", (1,), function=nought), 1


class Table(SparseOperand):
    """Numbers in memory."""

    def __init__(self, dtype: str, numbers: list[Any]) -> None:
        super().__init__(dtype, (len(numbers),))
        self.writes = dict(enumerate(map(self.dtype.type, numbers)))
