"""Launches of a float32 GEMM by the products of short parts, and of the native one in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, NamedTuple

from dxgemm._dispatch import Candidate
from dxgemm._fusion import FusedOperand, Fusion
from dxgemm._gpu import simulator_enabled
from dxgemm._problem import Problem, Strides
from dxgemm._registry import Launch, launch_kernel
from dxgemm.compiler import KernelSpec
from dxgemm.runtime.workspace import Workspace, borrowed

ALIGNMENT = 256  # bytes, of each part of the workspace
NO_STRIDES = Strides(0, 0, 0)
NUMBER_BYTES = 4  # of a factor, of a number of the status, of the verdict
SCHEME = "f16x3"


def _buffers(*dtypes: str) -> tuple[FusedOperand, ...]:
    return tuple(FusedOperand("buffer", dtype) for dtype in dtypes)


@dataclass(frozen=True)
class OperandParts:
    """How the parts of an operand lie in memory, with what is known of them.

    Attributes:
        problem: for `split`: the operand as a (along, k); b is transposed.
        innermost: "k" or "mn": along what the parts lie.
        blocks: that split it.
        factor_items, status_items: numbers, of all matrices.
        part_bytes: of all parts.
    """

    problem: Problem
    innermost: str
    blocks: int
    factor_items: int
    status_items: int
    part_bytes: int

    @property
    def factors(self) -> int:
        """Where the factors begin, in bytes."""
        return _aligned(self.part_bytes)

    @property
    def status(self) -> int:
        return self.factors + _aligned(self.factor_items * NUMBER_BYTES)

    @property
    def size(self) -> int:
        return self.status + _aligned(self.status_items * NUMBER_BYTES)

    def arguments(self, base: int) -> tuple[int, ...]:
        """The buffers of `split`, with the memory at an address."""
        return (
            *(base, self.part_bytes // 2),
            *(base + self.factors, self.factor_items),
            *(base + self.status, self.status_items),
        )


def operand_parts(problem: Problem, name: str) -> OperandParts:
    """Of operand "a" or "b"."""
    file = import_module("dxgemm.handwritten.split")
    parts = import_module("dxgemm.handwritten.split_parts")
    strides = getattr(problem, name)
    along, strides = (
        (problem.m, strides) if name == "a" else (problem.n, strides.transposed())
    )
    matrices = problem.batch if strides.batch else 1
    own = Problem(
        dtype=problem.dtype,
        m=along,
        n=0,
        k=problem.k,
        batch=matrices,
        a=strides,
        b=NO_STRIDES,
        c=NO_STRIDES,
        out=NO_STRIDES,
        out_dtype=problem.dtype,
        a_alignment=getattr(problem, f"{name}_alignment"),
        epilogue=Fusion((), _buffers("float16", "float32", "int32")),
    )
    config = _configs(file)[0]
    innermost, _ = file.variant(config, own)
    scheme = parts.SCHEMES[SCHEME]
    layout = parts.parts_layout(scheme, innermost, along, problem.k)
    blocks = file.block_count(config, own)
    return OperandParts(
        problem=own,
        innermost=innermost,
        blocks=blocks,
        factor_items=matrices * -(-along // parts.PADDING) * parts.PADDING,
        status_items=blocks * parts.STATUS_ITEMS,
        part_bytes=matrices * scheme.parts * layout.items * scheme.item_bytes,
    )


class _Step(NamedTuple):
    """One kernel of the series: its launch, and the arguments of a call with the workspace."""

    name: str
    launch: Launch
    arguments: Callable[[int, tuple[Any, ...], tuple[Any, ...]], tuple[tuple[Any, ...], tuple[Any, ...]]]


class SplitLaunch:
    """Split a and b, judge, multiply the parts, or else a and b themselves.

    Which of the two products is computed is known on the device alone: both are queued, and the
    other's blocks leave at once. The workspace is borrowed for each call; `fixed` has its own.
    """

    def __init__(
        self,
        problem: Problem,
        candidate: Candidate,
        native: Candidate,
        counter: int,
        arch: str,
        ordinal: int,
    ) -> None:
        """Build the kernels that are not there.

        Args:
            problem: what to compute; k is not 0.
            candidate: how the parts are multiplied.
            native: how a and b are; of `tuned`.
            counter: address of the count of native products.
            arch, ordinal: of the GPU.
        """
        self._arch, self._ordinal = arch, ordinal
        self._a, self._b = operand_parts(problem, "a"), operand_parts(problem, "b")
        self._b_start = self._a.size
        self._verdict = self._b_start + self._b.size
        self._size = self._verdict + ALIGNMENT
        self.steps: list[_Step] = []
        self._add_split("split a", self._a, 0, 0)
        self._add_split("split b", self._b, 1, self._b_start)
        self._add_verdict(problem, counter)
        self._add_product(problem, candidate)
        self._add_native(problem, native)

    def __call__(
        self,
        a: int,
        b: int,
        c: int,
        out: int,
        alpha: float,
        beta: float,
        stream: int,
        operands: tuple[Any, ...] = (),
    ) -> None:
        with borrowed(self._size, self._ordinal, stream) as base:
            for step in self.steps:
                call, extra = step.arguments(base, (a, b, c, out, alpha, beta), operands)
                step.launch(*call, stream, extra)

    def fixed(
        self,
        a: int,
        b: int,
        c: int,
        out: int,
        alpha: float,
        beta: float,
        operands: tuple[Any, ...] = (),
    ) -> Callable[[int], None]:
        workspace = Workspace(self._size, self._ordinal)
        launches = []
        for step in self.steps:
            call, extra = step.arguments(workspace.pointer, (a, b, c, out, alpha, beta), operands)
            launches.append(step.launch.fixed(*call, extra))
        return _Series(workspace, launches)

    def _add_split(self, name: str, parts: OperandParts, operand: int, start: int) -> None:
        file = import_module("dxgemm.handwritten.split")
        config = _configs(file)[0]
        variant = file.variant(config, parts.problem)
        launch = self._kernel(file, config, parts.problem, variant, parts.blocks)
        self.steps.append(
            _Step(
                name,
                launch,
                lambda base, call, _: (
                    (call[operand],) * 4 + (0, 0), parts.arguments(base + start)
                ),
            )
        )

    def _add_verdict(self, problem: Problem, counter: int) -> None:
        file = import_module("dxgemm.handwritten.split_verdict")
        own = replace(
            self._a.problem,
            m=self._a.blocks,
            n=self._b.blocks,
            epilogue=Fusion((), _buffers("int32", "int32", "int32", "int32")),
        )
        launch = self._kernel(file, _configs(file)[0], own, (), 1)

        def arguments(base: int, call: Any, _: Any) -> Any:
            a_status = base + self._a.status
            b_status = base + self._b_start + self._b.status
            return (base,) * 4 + (0, 0), (
                *(a_status, self._a.status_items),
                *(b_status, self._b.status_items),
                *(base + self._verdict, 1),
                *(counter, 1),
            )

        self.steps.append(_Step("verdict", launch, arguments))

    def _add_product(self, problem: Problem, candidate: Candidate) -> None:
        file = import_module("dxgemm.handwritten.split_wgmma")
        own = _with_buffers(problem, "float32", "float32", "int32")
        variant = (SCHEME, self._a.innermost, self._b.innermost)
        config = candidate.config
        launch = self._kernel(
            file, config, own, variant, file.block_count(config, own),
            file.tensor_maps(config, own, *variant),
        )  # fmt: skip

        def arguments(base: int, call: Any, operands: tuple[Any, ...]) -> Any:
            b_base = base + self._b_start
            extra = (
                *(base + self._a.factors, self._a.factor_items),
                *(b_base + self._b.factors, self._b.factor_items),
                *(base + self._verdict, 1),
            )
            return (base, b_base, *call[2:]), (*operands, *extra)

        self.steps.append(_Step("product", launch, arguments))

    def _add_native(self, problem: Problem, native: Candidate) -> None:
        file = import_module("dxgemm.handwritten.guarded")
        tuned = import_module("dxgemm.handwritten.tuned")
        own = _with_buffers(problem, "int32")
        config = native.config
        variant = tuned.variant(config, own)
        launch = self._kernel(file, config, own, variant, tuned.block_count(config, own))
        self.steps.append(
            _Step(
                "native",
                launch,
                lambda base, call, operands: (call, (*operands, base + self._verdict, 1)),
            )
        )

    def _kernel(
        self,
        file: Any,
        config: Any,
        problem: Problem,
        variant: tuple[str, ...],
        blocks: int,
        maps: tuple[Any, ...] = (),
    ) -> Launch:
        name = file.__name__.rpartition(".")[2]
        spec = KernelSpec(name, file.__name__, config, problem.dtype, variant, problem.epilogue)
        return launch_kernel(spec, problem, blocks, self._arch, self._ordinal, maps)


class _Series:
    """Launches one after the other, and the workspace that they use."""

    def __init__(self, workspace: Workspace, launches: list[Callable[[int], None]]) -> None:
        self._workspace, self._launches = workspace, launches

    def __call__(self, stream: int) -> None:
        for launch in self._launches:
            launch(stream)


def _with_buffers(problem: Problem, *dtypes: str) -> Problem:
    """The problem with buffers behind the operands of its epilogue."""
    epilogue = problem.epilogue or Fusion((), (), problem.is_transposed)
    return replace(
        problem, epilogue=replace(epilogue, operands=(*epilogue.operands, *_buffers(*dtypes)))
    )


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _configs(file: Any) -> tuple[Any, ...]:
    configs: tuple[Any, ...] = file.SIMULATOR_CONFIGS if simulator_enabled() else file.CONFIGS
    return configs
