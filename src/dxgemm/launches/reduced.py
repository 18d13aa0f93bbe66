"""Launches of a GEMM whose result is reduced: the product, then the kernels that reduce it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dxgemm.choice.legality import Candidate
from dxgemm.compiler import KernelSpec
from dxgemm.epilogues.reduction import INDICES, VALUES, Reduction, reduced_dtype
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.kernels import merge_partials, reduce_tiles
from dxgemm.launches.emulated_float32 import PartsLaunch
from dxgemm.launches.product import bind_product
from dxgemm.launches.series import Call, LaunchSeries
from dxgemm.problem.complex_form import in_parts
from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.problem.layout import NO_STRIDES, Layout, Strides
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import Launch, launch_kernel
from dxgemm.runtime.workspace import Workspace

MANY_LINES = 64  # from this number of lines on, a few threads merge each of them


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
    item_size = ITEM_SIZES[layout.dtype]
    steps = [stride // item_size for stride in layout.strides]
    batch = steps.pop(0) if is_batched else 0
    pair = steps.pop() if name == INDICES and reduction.axis is None else 0
    if reduction.axis == 0:
        steps.reverse()  # ranks come first
    line = steps.pop(0) if reduction.axis is not None else 0
    rank = steps.pop(0) if reduction.is_ranked else 0
    return ResultArray(layout.dtype, Strides(batch, line, rank), pair)


@dataclass(frozen=True)
class Buffers:
    """Partial results in a workspace.

    Attributes:
        slots: number of partial results per line.
        lines: number of rows, or columns.
        starts: offsets of the values, and of the indices if there are any, in the workspace, in
            bytes.
        items: number of elements of each.
    """

    slots: int
    lines: int
    starts: tuple[int, ...]
    items: int

    def arguments(self, base: int) -> tuple[int, ...]:
        """Epilogue arguments for these buffers, with the workspace at an address."""
        return tuple(x for start in self.starts for x in (base + start, self.items))


class _Step(NamedTuple):
    """Kernel after the product.

    Attributes:
        launch: launch of the kernel.
        matrix_part: None, or bytes from the matrix to its a: to the real or the imaginary parts.
        arguments: (base, pointers) -> its epilogue arguments, with the workspace at base and the
            results at pointers.
    """

    launch: Launch
    matrix_part: int | None
    arguments: Callable[[int, Mapping[str, int]], tuple[int, ...]]


class ReducedLaunch(LaunchSeries):
    """Launch of the product, then of the kernels that reduce it.

    A fused reduction leaves partial results of the product's kernel in a workspace. An unfused one
    stores the matrix, which another kernel reduces to partial results. `merge_partials` reduces
    these to the results.
    """

    def __init__(
        self,
        problem: Problem,
        candidate: Candidate,
        results: Mapping[str, ResultArray],
        arch: str,
        ordinal: int,
        stored: tuple[Problem, Launch] | None = None,
    ) -> None:
        """Build the missing kernels and bind them.

        Args:
            problem: the problem, with its reduction.
            candidate: the candidate that computes the product.
            results: the arrays to write, by name. Their addresses follow the epilogue's operands.
            arch, ordinal: architecture and ordinal of the GPU.
            stored: problem and launch of the product, if that is complex, which stores the matrix.
        """
        super().__init__(ordinal)
        assert problem.epilogue is not None and problem.reduction is not None
        self._problem, self._epilogue = problem, problem.epilogue
        self._reduction = problem.reduction
        self._results, self._arch = results, arch
        self._matrix: int | None = None  # offset of the matrix in the workspace
        self._product: Launch | None = None
        self._partials: Buffers | None = None  # partial results of the product's kernel
        self._steps: list[_Step] = []
        lines = {None: 1, 0: problem.n, 1: problem.m}[self._reduction.axis]
        if problem.batch * lines == 0:
            return
        if problem.is_empty:
            for part in self._parts:
                self._bind_merging(self._buffers(0, lines), part)
        elif stored is None and not candidate.stores_matrix:
            self._bind_merging(self._bind_fused(candidate))
        else:
            matrix = self._bind_storing(candidate, stored)
            for part in self._parts:
                self._bind_merging(self._bind_reducing(matrix, part), part)

    def prepared(self, operand: str, parts: Workspace) -> ReducedLaunch:
        """Return a copy of this launch with prepared parts, if its product is emulated."""
        if not isinstance(self._product, PartsLaunch):
            return self
        launch = copy(self)
        launch._product = self._product.prepared(operand, parts)
        return launch

    def calls(self, base: int, call: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Call]:
        stages = len(operands) - len(self._results)
        operands, addresses = operands[:stages], operands[stages:]
        pointers = dict(zip(self._results, addresses, strict=True))
        a, b, c, out, *scalars = call
        if self._matrix is not None:
            out = base + self._matrix
        calls: list[Call] = []
        if self._product is not None:
            if self._partials is not None:
                operands += self._partials.arguments(base)
            calls.append(Call(self._product, (a, b, c, out, *scalars), operands))
        for step in self._steps:
            source = base if step.matrix_part is None else out + step.matrix_part
            arguments = step.arguments(base, pointers)
            calls.append(Call(step.launch, (source,) * 4 + (0, 0), arguments))
        return calls

    def _bind_fused(self, candidate: Candidate) -> Buffers:
        """Bind the product's kernel, which leaves the partial results."""
        implementation, config = candidate.implementation, candidate.config
        self._partials = self._buffers_of(implementation.partial_results(config, self._problem))
        self._product = bind_product(
            implementation, self._problem, config, self._arch, self._ordinal
        )
        return self._partials

    def _bind_storing(self, candidate: Candidate, stored: tuple[Problem, Launch] | None) -> Strides:
        """Bind the product's kernel, which stores the matrix; return its strides."""
        if stored is None:
            problem = candidate.part_of(self._problem)
            self._product = bind_product(
                candidate.implementation, problem, candidate.config, self._arch, self._ordinal
            )
        else:
            problem, self._product = stored
        if not self._reduction.is_stored:
            item_size = ITEM_SIZES[problem.out_dtype]
            self._matrix = self._take(problem.batch * problem.out.batch * item_size)
        return problem.out

    def _bind_reducing(self, stored: Strides, part: int) -> Buffers:
        """Bind the kernel that reduces the matrix, or a part of it, to partial results."""
        from dxgemm.handwritten.parts.reduction import slot_count

        problem = self._problem
        config = _configs(reduce_tiles)[0]
        slots = slot_count(
            config,
            (config.tile_m, config.tile_n),
            self._reduction,
            (problem.m, problem.n),
            reduce_tiles.READ_WIDTH,
        )
        partials = self._buffers_of(slots)
        matrix = self._kernel_problem(problem.m, problem.n, problem.n, ())
        is_complex = problem.out_dtype in COMPLEX_PARTS
        self._add_step(
            reduce_tiles,
            config,
            replace(
                matrix,
                dtype=COMPLEX_PARTS.get(problem.out_dtype, problem.out_dtype),
                a=in_parts(stored) if is_complex else stored,
            ),
            (),
            lambda base, _: partials.arguments(base),
            matrix_part=part,
        )
        return partials

    def _bind_merging(self, partials: Buffers, part: int = 0) -> None:
        """Bind the kernel that merges partial results to results, or to a part of complex ones."""
        if self._reduction.axis is None and partials.lines > 1:
            partials = self._bind_merging_again(merge_partials, partials)
        is_whole = self._reduction.axis is None
        arrays: list[FusedOperand] = []
        results = {name: _real_array(array) for name, array in self._results.items()}
        for name, array in results.items():
            times = 2 if is_whole and name == INDICES else 1
            arrays += [FusedOperand("output", array.dtype)] * times
        if is_whole and INDICES in self._results:
            arrays.append(FusedOperand("number", "int64"))
        source = partials

        def arguments(base: int, pointers: Mapping[str, int]) -> tuple[int, ...]:
            values: list[int] = [*source.arguments(base)]
            for name, array in results.items():
                values += [pointers[name] + part, *array.strides]
                if is_whole and name == INDICES:
                    item_size = ITEM_SIZES[array.dtype]
                    values += [pointers[name] + array.pair_stride * item_size, *array.strides]
                    values.append(self._columns)
            return tuple(values)

        end = merge_partials.WHOLE if is_whole else merge_partials.LINES
        self._add_merging(
            merge_partials, partials, tuple(arrays), (end, " ".join(self._results)), arguments
        )

    def _bind_merging_again(self, file: Any, partials: Buffers) -> Buffers:
        """Bind a kernel that merges the partial results of a whole matrix to one per line."""
        merged = self._buffers(1, partials.lines)
        strides = Strides(merged.lines, 1, self._problem.batch * merged.lines)
        arrays = tuple(FusedOperand("output", dtype) for dtype in self._reduction.partials)

        def arguments(base: int, pointers: Mapping[str, int]) -> tuple[int, ...]:
            written = (x for start in merged.starts for x in (base + start, *strides))
            return (*partials.arguments(base), *written)

        names = " ".join((VALUES, INDICES)[: len(arrays)])
        self._add_merging(file, partials, arrays, (file.AGAIN, names), arguments)
        return replace(merged, slots=merged.lines, lines=1)

    def _add_merging(
        self,
        file: Any,
        partials: Buffers,
        arrays: tuple[FusedOperand, ...],
        variant: tuple[str, ...],
        arguments: Any,
    ) -> None:
        config = _configs(file)[0 if partials.lines >= MANY_LINES else 1]
        problem = self._kernel_problem(
            partials.lines, self._reduction.count, partials.slots, arrays
        )
        self._add_step(file, config, problem, variant, arguments)

    def _kernel_problem(
        self, m: int, n: int, k: int, operands: tuple[FusedOperand, ...]
    ) -> Problem:
        """Problem of a kernel after the product, with epilogue operands behind the buffers."""
        operands = (*self._reduction.buffers, *operands)
        return Problem(
            dtype=self._dtype,
            m=m,
            n=n,
            k=k,
            batch=self._problem.batch,
            a=NO_STRIDES,
            b=NO_STRIDES,
            c=NO_STRIDES,
            out=NO_STRIDES,
            out_dtype=self._dtype,
            epilogue=Fusion((), operands, self._epilogue.is_transposed, self._reduction),
        )

    def _add_step(
        self,
        file: Any,
        config: Any,
        problem: Problem,
        variant: tuple[str, ...],
        arguments: Any,
        matrix_part: int | None = None,
    ) -> None:
        name = file.__name__.rpartition(".")[2]
        spec = KernelSpec(name, file.__name__, config, problem.dtype, variant, problem.epilogue)
        blocks = file.KERNEL.block_count(config, problem)
        launch = launch_kernel(spec, problem, blocks, self._arch, self._ordinal)
        self._steps.append(_Step(launch, matrix_part, arguments))

    def _buffers_of(self, slots: int) -> Buffers:
        """Take workspace for the partial results of a kernel that reduces tiles."""
        reduces_columns = self._reduction.axis == 0
        return self._buffers(slots, self._problem.n if reduces_columns else self._problem.m)

    def _buffers(self, slots: int, lines: int) -> Buffers:
        """Take workspace for partial results."""
        items = self._problem.batch * slots * lines * self._reduction.count
        starts = tuple(self._take(items * ITEM_SIZES[dtype]) for dtype in self._reduction.partials)
        return Buffers(slots, lines, starts, items)

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
    def _columns(self) -> int:
        """Number of columns of the matrix as the caller sees it."""
        return self._problem.m if self._problem.is_transposed else self._problem.n


def _real_array(array: ResultArray) -> ResultArray:
    """Array of the real parts of results, if they are complex."""
    if array.dtype not in COMPLEX_PARTS:
        return array
    return array._replace(dtype=COMPLEX_PARTS[array.dtype], strides=in_parts(array.strides))


def _configs(file: Any) -> tuple[Any, ...]:
    kernel = file.KERNEL
    configs: tuple[Any, ...] = kernel.simulator_configs if simulator_enabled() else kernel.configs
    return configs
