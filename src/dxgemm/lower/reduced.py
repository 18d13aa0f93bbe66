"""Programs of a GEMM whose result is reduced: the product, then the kernels that reduce it.

A fused reduction leaves partial results of the product's kernel in the workspace. An unfused one
stores the matrix, which another kernel reduces to partial results. `merge_partials` reduces these
to the results, whose addresses follow the epilogue's operands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from dxgemm.choice.kernel_files import configs_of
from dxgemm.choice.legality import Candidate
from dxgemm.epilogues.reduction import (
    INDICES,
    MEANS,
    QUANTISED,
    VALUES,
    Quantisation,
    Reduction,
    reduced_dtype,
)
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.handwritten.kernels import merge_partials, reduce_tiles, select_rows
from dxgemm.lower.product import lower_product
from dxgemm.lower.quantised import quantising_program
from dxgemm.lower.steps import file_step
from dxgemm.problem.complex_form import in_parts
from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.problem.kernel_arguments import KernelArguments
from dxgemm.problem.layout import Layout, Strides
from dxgemm.problem.problem import Problem
from dxgemm.runtime.program import OUT, Name, Program, Symbol, Value, parameters

MANY_LINES = 64  # from this number of lines on, a few threads merge each of them
MANY_ROWS = 2048  # from this number of rows on, a warp selects from thousands of elements


class ResultArray(NamedTuple):
    """Array that a reduction writes one of its results to.

    Attributes:
        dtype: dtype of the elements.
        strides: elements from one matrix, line (row or column) and rank to the next.
        pair_stride: elements from the row of an index to its column, for a whole matrix.
    """

    dtype: str
    strides: Strides
    pair_stride: int


def result_array(reduction: Reduction, name: str, layout: Layout, is_batched: bool) -> ResultArray:
    """Strides of the array for a result, in the shape that `Reduction.shapes` gives it."""
    steps = [*layout.steps]
    batch = steps.pop(0) if is_batched else 0
    if isinstance(reduction, Quantisation):
        return ResultArray(layout.dtype, Strides(batch, *steps), 0)
    pair = steps.pop() if name == INDICES and reduction.axis is None else 0
    if reduction.axis == 0:
        steps.reverse()  # ranks come first
    line = steps.pop(0) if reduction.axis is not None else 0
    rank = steps.pop() if reduction.is_ranked else 0  # a kept dimension may come first
    return ResultArray(layout.dtype, Strides(batch, line, rank), pair)


class Partials(NamedTuple):
    """Partial results in the workspace: how many per line, how many lines, and their buffers.

    Attributes:
        slots: number of partial results per line.
        lines: number of rows, or columns.
        buffers: buffers of the values, and of the indices if there are any.
        items: number of elements of each.
    """

    slots: int
    lines: int
    buffers: tuple[Symbol, ...]
    items: int

    @property
    def operands(self) -> tuple[Value, ...]:
        """Epilogue arguments for these buffers."""
        return tuple(value for buffer in self.buffers for value in (buffer, self.items))


def lower_reduced(
    problem: Problem,
    candidate: Candidate,
    results: Mapping[str, ResultArray],
    device: DeviceFacts,
    stored: tuple[Problem, Program] | None = None,
) -> Program:
    """Program of a product and of its reduction.

    Args:
        problem: the problem, with its reduction.
        candidate: the candidate that computes the product.
        results: the arrays to write, by name.
        device: the GPU.
        stored: problem and program of the product, if that is complex, which stores the matrix.
    """
    return _Lowering(problem, candidate, results, device, stored).program


class _Lowering:
    """Lowering of one problem, which collects steps and buffers in `program`."""

    def __init__(
        self,
        problem: Problem,
        candidate: Candidate,
        results: Mapping[str, ResultArray],
        device: DeviceFacts,
        stored: tuple[Problem, Program] | None,
    ) -> None:
        """See `lower_reduced`."""
        assert problem.epilogue is not None and problem.reduction is not None
        self._problem, self._epilogue = problem, problem.epilogue
        self._reduction = problem.reduction
        self._results, self._device = results, device
        self.program = Program(())
        lines = {None: 1, 0: problem.n, 1: problem.m}[self._reduction.axis]
        if problem.batch * lines == 0:
            return
        if self._reduction.kind == QUANTISED:
            matrix, strides = OUT, problem.out
            if not problem.is_empty:
                matrix, strides = self._add_storing(candidate, stored)
            self._quantise(matrix, strides)
        elif problem.is_empty:
            for part in self._parts:
                self._merge(self._partials(0, lines), part)
        elif stored is None and not candidate.stores_matrix:
            self._merge(self._add_fused(candidate))
        else:
            matrix, strides = self._add_storing(candidate, stored)
            for part in self._parts:
                self._merge(self._reduce(matrix + part, strides), part)

    def _add_fused(self, candidate: Candidate) -> Partials:
        """Add the product's kernel, which leaves the partial results."""
        implementation, config = candidate.implementation, candidate.config
        problem = candidate.part_of(self._problem)
        partials = self._of_tiles(implementation.partial_results(config, problem))
        product = lower_product(implementation, problem, config, self._device)
        first = len(parameters(self._epilogue)) - len(partials.operands)
        self.program += product.given(dict(enumerate(partials.operands, first)))
        return partials

    def _add_storing(
        self, candidate: Candidate, stored: tuple[Problem, Program] | None
    ) -> tuple[Symbol, Strides]:
        """Add the product's kernel, which stores the matrix; return its address and strides."""
        if stored is None:
            problem = candidate.part_of(self._problem)
            implementation, config = candidate.implementation, candidate.config
            stored = problem, lower_product(implementation, problem, config, self._device)
        problem, product = stored
        if self._reduction.is_stored:
            self.program += product
            return OUT, problem.out
        size = problem.batch * problem.out.batch * ITEM_SIZES[problem.out_dtype]
        matrix = Symbol("matrix")
        self.program += Program((), {matrix.name: size}) + product.given({"out": matrix})
        return matrix, problem.out

    def _quantise(self, matrix: Symbol, strides: Strides) -> None:
        """Add the kernel that makes float8 and scales of the matrix."""
        m, n, batch = self._problem.m, self._problem.n, self._problem.batch
        if self._epilogue.is_transposed:  # rows are the caller's
            m, n, strides = n, m, strides.transposed()
        first = len(parameters(self._epilogue))
        arrays = [
            (Symbol(place), array.dtype, array.strides)
            for place, array in enumerate(self._results.values(), first)
        ]
        dtype, block = self._problem.out_dtype, self._reduction.count
        self.program += quantising_program(matrix, dtype, (batch, m, n), strides, arrays, block)

    def _reduce(self, matrix: Symbol, strides: Strides) -> Partials:
        """Add the kernel that reduces the matrix, or a part of it, to partial results."""
        from dxgemm.handwritten.parts.reduction import slot_count

        problem, is_selected = self._problem, self._is_long and self._reduction.axis != 0
        file: Any = select_rows if is_selected else reduce_tiles
        if is_selected:
            config = configs_of(file)[problem.batch * problem.m < MANY_ROWS]
            slots = select_rows.slot_count(config, problem.n)
        else:
            config = configs_of(file)[self._is_long]
            tile, sizes = (config.tile_m, config.tile_n), (problem.m, problem.n)
            slots = slot_count(config, tile, self._reduction, sizes, reduce_tiles.READ_WIDTH)
        partials = self._of_tiles(slots)
        if problem.out_dtype in COMPLEX_PARTS:
            strides = in_parts(strides)
        dtype = COMPLEX_PARTS.get(problem.out_dtype, problem.out_dtype)
        read = replace(self._arguments(problem.m, problem.n, problem.n), dtype=dtype, a=strides)
        self._add(file, config, read, (), partials.operands, matrix)
        return partials

    def _merge(self, partials: Partials, part: int = 0) -> None:
        """Add the kernel that merges partial results to results, or to a part of complex ones."""
        is_whole = self._reduction.axis is None
        if is_whole and partials.lines > 1:
            partials = self._merge_lines(partials)
        arrays: list[FusedOperand] = []
        values: list[Value] = [*partials.operands]
        position = len(parameters(self._epilogue)) - len(self._reduction.buffers) * 2
        for address, (name, array) in enumerate(self._results.items(), position):
            array = _real_array(array)
            operand = FusedOperand("output", array.dtype)
            arrays.append(operand)
            values += [Symbol(address) + part, *array.strides]
            if is_whole and name == INDICES:
                arrays.append(operand)
                pair = array.pair_stride * ITEM_SIZES[array.dtype]
                values += [Symbol(address) + pair, *array.strides, self._columns]
        if is_whole and INDICES in self._results:
            arrays.append(FusedOperand("number", "int64"))
        if MEANS in self._results:
            arrays.append(FusedOperand("number", "int64"))
            values.append(self._length)
        end = merge_partials.WHOLE if is_whole else merge_partials.LINES
        self._add_merging(partials, arrays, (end, " ".join(self._results)), values)

    def _merge_lines(self, partials: Partials) -> Partials:
        """Add a kernel that merges the partial results of a whole matrix to one per line."""
        merged = self._partials(1, partials.lines)
        strides = Strides(merged.lines, 1, self._problem.batch * merged.lines)
        arrays = [FusedOperand("output", dtype) for dtype in self._reduction.partials]
        written = [value for buffer in merged.buffers for value in (buffer, *strides)]
        names = " ".join((VALUES, INDICES)[: len(arrays)])
        variant = merge_partials.AGAIN, names
        self._add_merging(partials, arrays, variant, [*partials.operands, *written])
        return merged._replace(slots=merged.lines, lines=1)

    def _add_merging(
        self,
        partials: Partials,
        arrays: list[FusedOperand],
        variant: tuple[str, ...],
        values: list[Value],
    ) -> None:
        count = self._reduction.count
        merged = self._arguments(partials.lines, count, partials.slots, tuple(arrays))
        config = configs_of(merge_partials)[2 * self._is_long + (merged.m < MANY_LINES)]
        self._add(merge_partials, config, merged, variant, tuple(values), partials.buffers[0])

    def _arguments(
        self, m: int, n: int, k: int, operands: tuple[FusedOperand, ...] = ()
    ) -> KernelArguments:
        """Arguments of a kernel after the product, with epilogue operands behind the buffers."""
        operands = (*self._reduction.buffers, *operands)
        fusion = Fusion((), operands, self._epilogue.is_transposed, self._reduction)
        return KernelArguments(self._dtype, m, n, k, self._problem.batch, epilogue=fusion)

    def _add(
        self,
        file: Any,
        config: Any,
        arguments: KernelArguments,
        variant: tuple[str, ...],
        operands: tuple[Value, ...],
        source: Symbol,
    ) -> None:
        values = source, source, source, source, 0, 0
        step = file_step(file, arguments, variant, config, values=values, operands=operands)
        self.program += Program((step,))

    def _of_tiles(self, slots: int) -> Partials:
        """Take workspace for the partial results of a kernel that reduces tiles."""
        reduces_columns = self._reduction.axis == 0
        return self._partials(slots, self._problem.n if reduces_columns else self._problem.m)

    def _partials(self, slots: int, lines: int) -> Partials:
        """Take workspace for partial results."""
        items = self._problem.batch * slots * lines * self._reduction.count
        first = len(self.program.buffers)
        sizes: dict[Name, int] = {
            f"partial results {first + place}": items * ITEM_SIZES[dtype]
            for place, dtype in enumerate(self._reduction.partials)
        }
        self.program += Program((), sizes)
        return Partials(slots, lines, tuple(map(Symbol, sizes)), items)

    @property
    def _is_long(self) -> bool:
        """True if partial results are too many values for kernels that merge them whole."""
        from dxgemm.handwritten.parts.reduction import FEW_VALUES

        return self._reduction.count > FEW_VALUES

    @property
    def _dtype(self) -> str:
        """Dtype in which the matrix is reduced."""
        dtype = self._problem.out_dtype
        return COMPLEX_PARTS.get(dtype, reduced_dtype(dtype))

    @property
    def _parts(self) -> tuple[int, ...]:
        """Bytes from the matrix to each of its parts, which are reduced alike."""
        dtype = self._problem.out_dtype
        return (0, ITEM_SIZES[dtype] // 2) if dtype in COMPLEX_PARTS else (0,)

    @property
    def _length(self) -> int:
        """Number of elements that are reduced to each result."""
        m, n = self._problem.m, self._problem.n
        return {None: m * n, 0: m, 1: n}[self._reduction.axis]

    @property
    def _columns(self) -> int:
        """Number of columns of the matrix as the caller sees it."""
        return self._problem.m if self._problem.is_transposed else self._problem.n


def _real_array(array: ResultArray) -> ResultArray:
    """Array of the real parts of results, if they are complex."""
    if array.dtype not in COMPLEX_PARTS:
        return array
    return array._replace(dtype=COMPLEX_PARTS[array.dtype], strides=in_parts(array.strides))
