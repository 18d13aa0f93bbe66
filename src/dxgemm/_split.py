"""Launches of a float32 GEMM by the products of short parts, and of the native one in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from dxgemm._fusion import FusedOperand, Fusion
from dxgemm._gpu import simulator_enabled
from dxgemm._problem import Problem, Strides
from dxgemm.compiler import KernelSpec
from dxgemm.handwritten import guarded, split, split_verdict, split_wgmma, tuned
from dxgemm.handwritten.split_parts import CHOSEN, PADDING, SCHEMES, STATUS_ITEMS, parts_layout
from dxgemm.runtime.binding import Launch, launch_kernel
from dxgemm.runtime.counter import Counter
from dxgemm.runtime.workspace import ALIGNMENT, Workspace, borrowed

NO_STRIDES = Strides(0, 0, 0)
NUMBER_BYTES = 4  # of a factor, of a number of the status
SCHEME = SCHEMES[CHOSEN]


def _buffers(*dtypes: str) -> tuple[FusedOperand, ...]:
    return tuple(FusedOperand("buffer", dtype) for dtype in dtypes)


@dataclass(frozen=True)
class OperandParts:
    """How the parts of an operand lie in memory, with what is known of them behind.

    Attributes:
        problem: what `split` takes for one: the operand as its a, b transposed.
        config, variant: of `split`.
        part_bytes: of all parts.
        factor_items, status_items: numbers, of all matrices.
    """

    problem: Problem
    config: Any
    variant: tuple[str, str]
    part_bytes: int
    factor_items: int
    status_items: int

    @property
    def innermost(self) -> str:
        """Along what the parts lie: "k" or "mn"."""
        return self.variant[0]

    @property
    def blocks(self) -> int:
        """That split the operand."""
        return split.block_count(self.config, self.problem)

    @property
    def size(self) -> int:
        """Of the memory, in bytes."""
        return self._status + _aligned(self.status_items * NUMBER_BYTES)

    @property
    def _factors(self) -> int:
        return _aligned(self.part_bytes)

    @property
    def _status(self) -> int:
        return self._factors + _aligned(self.factor_items * NUMBER_BYTES)

    def factors(self, base: int) -> tuple[int, int]:
        """The buffer of factors, with the memory at an address."""
        return base + self._factors, self.factor_items

    def status(self, base: int) -> tuple[int, int]:
        """The buffer of what is known."""
        return base + self._status, self.status_items

    def bind(self, arch: str, ordinal: int) -> Launch:
        """The launch of `split`, built if need be; its operands are `arguments`."""
        return _launch(split, self.config, self.problem, self.variant, self.blocks, arch, ordinal)

    def arguments(self, base: int) -> tuple[int, ...]:
        """The buffers of `split`."""
        parts = base, self.part_bytes // SCHEME.item_bytes
        return *parts, *self.factors(base), *self.status(base)


def operand_parts(strides: Strides, along: int, k: int, batch: int, alignment: int) -> OperandParts:
    """Of an operand of `along` rows of a, or columns of b.

    Args:
        strides: from one matrix to the next, along its rows or columns, and along k.
        along, k, batch: sizes.
        alignment: of its address, in bytes.
    """
    matrices = batch if strides.batch else 1
    problem = Problem(
        dtype="float32",
        m=along,
        n=0,
        k=k,
        batch=matrices,
        a=strides,
        b=NO_STRIDES,
        c=NO_STRIDES,
        out=NO_STRIDES,
        out_dtype="float32",
        a_alignment=alignment,
        epilogue=Fusion((), _buffers("float16", "float32", "int32")),
    )
    config = _configs(split)[0]
    variant = split.variant(config, problem)
    layout = parts_layout(SCHEME, variant[0], along, k)
    return OperandParts(
        problem,
        config,
        variant,
        part_bytes=matrices * SCHEME.parts * layout.items * SCHEME.item_bytes,
        factor_items=matrices * -(-along // PADDING) * PADDING,
        status_items=split.block_count(config, problem) * STATUS_ITEMS,
    )


def parts_of_problem(problem: Problem) -> dict[str, OperandParts]:
    """Of a and b."""
    sizes = problem.k, problem.batch
    return {
        "a": operand_parts(problem.a, problem.m, *sizes, problem.a_alignment),
        "b": operand_parts(problem.b.transposed(), problem.n, *sizes, problem.b_alignment),
    }


def product_spec(config: Any, problem: Problem) -> KernelSpec:
    """The kernel that multiplies the parts."""
    own = _with_buffers(problem, "float32", "float32", "int32")
    parts = parts_of_problem(problem)
    variant = CHOSEN, parts["a"].innermost, parts["b"].innermost
    return _spec(split_wgmma, config, own, variant)


def other_specs(problem: Problem) -> list[KernelSpec]:
    """The kernels before it, and the one in its place."""
    native = _with_buffers(problem, "int32")
    config = native_config(problem)
    return [
        *(_spec(split, p.config, p.problem, p.variant) for p in parts_of_problem(problem).values()),
        _spec(split_verdict, _configs(split_verdict)[0], _verdict_problem(problem), ()),
        _spec(guarded, config, native, tuned.variant(config, native)),
    ]


def native_config(problem: Problem) -> Any:
    """Of `tuned`: the first whose blocks fill the GPU, else the one with most blocks."""
    counts = {config: tuned.block_count(config, problem) for config in tuned.CONFIGS}
    filling = (config for config, blocks in counts.items() if blocks >= split_wgmma.SM_COUNT)
    return next(filling, max(counts, key=lambda config: counts[config]))


def bind(problem: Problem, config: Any, arch: str, ordinal: int) -> Launch:
    """The launch of a problem: a `SplitLaunch`, or `tuned` where nothing is multiplied."""
    if problem.k > 0:
        return SplitLaunch(problem, config, arch, ordinal)
    config = native_config(problem)
    variant, blocks = tuned.variant(config, problem), tuned.block_count(config, problem)
    return _launch(tuned, config, problem, variant, blocks, arch, ordinal)


class _Step(NamedTuple):
    """One kernel of the series.

    Attributes:
        operand: that it splits; None for the others.
        launch: its own.
        arguments: (places, call, operands) -> what it takes before the stream, and after it.
            places are the addresses of the parts of "a" and "b" and of the "verdict", call and
            operands what the whole launch takes.
    """

    operand: str | None
    launch: Any
    arguments: Callable[[Mapping[str, int], tuple[Any, ...], tuple[Any, ...]], tuple[Any, Any]]


class SplitLaunch:
    """Split a and b, judge, multiply the parts, or else a and b themselves.

    Which of the two products is computed is known on the device alone: both are queued, and the
    other's blocks leave at once. The workspace is borrowed for each call; `fixed` has its own.
    """

    def __init__(self, problem: Problem, config: Any, arch: str, ordinal: int) -> None:
        """Build the kernels that are not there.

        Args:
            problem: what to compute; k is not 0.
            config: of `split_wgmma`.
            arch, ordinal: of the GPU.
        """
        self._arch, self._ordinal = arch, ordinal
        self._parts = parts_of_problem(problem)
        self._steps: list[_Step] = []
        for operand in self._parts:
            self._add_split(operand)
        self._add_verdict(problem)
        self._add_product(problem, config)
        self._add_native(problem)

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
        prepared: Mapping[str, int] | None = None,
    ) -> None:
        """Queue the kernels on a stream.

        Args:
            a, b, c, out, alpha, beta, stream: as for every launch.
            operands: of the epilogue.
            prepared: address of its parts, of an operand that has been split before.
        """
        call, prepared = (a, b, c, out, alpha, beta), prepared or {}
        with borrowed(self._size(prepared), self._ordinal, stream) as base:
            for launch, arguments, extra in self._calls(base, call, operands, prepared):
                launch(*arguments, stream, extra)

    def fixed(
        self,
        a: int,
        b: int,
        c: int,
        out: int,
        alpha: float,
        beta: float,
        operands: tuple[Any, ...] = (),
        prepared: Mapping[str, int] | None = None,
    ) -> Callable[[int], None]:
        call, prepared = (a, b, c, out, alpha, beta), prepared or {}
        workspace = Workspace(self._size(prepared), self._ordinal)
        calls = self._calls(workspace.pointer, call, operands, prepared)
        return _Series(workspace, [launch.fixed(*call, extra) for launch, call, extra in calls])

    def _size(self, prepared: Mapping[str, int]) -> int:
        return ALIGNMENT + sum(p.size for name, p in self._parts.items() if name not in prepared)

    def _calls(
        self,
        base: int,
        call: tuple[Any, ...],
        operands: tuple[Any, ...],
        prepared: Mapping[str, int],
    ) -> list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]]:
        """Each launch, what it takes before the stream, and what after it."""
        places = {"verdict": base, **prepared}
        base += ALIGNMENT
        for name, parts in self._parts.items():
            if name not in prepared:
                places[name] = base
                base += parts.size
        return [
            (step.launch, *step.arguments(places, call, operands))
            for step in self._steps
            if step.operand not in prepared
        ]

    def _add_split(self, operand: str) -> None:
        parts, position = self._parts[operand], "ab".index(operand)

        def arguments(places: Any, call: Any, operands: Any) -> Any:
            return (call[position],) * 4 + (0, 0), parts.arguments(places[operand])

        self._steps.append(_Step(operand, parts.bind(self._arch, self._ordinal), arguments))

    def _add_verdict(self, problem: Problem) -> None:
        a, b = self._parts["a"], self._parts["b"]
        own = replace(_verdict_problem(problem), m=a.blocks, n=b.blocks)
        counter = _counter(self._ordinal).pointer

        def arguments(places: Any, call: Any, operands: Any) -> Any:
            status = *a.status(places["a"]), *b.status(places["b"])
            return (places["verdict"],) * 4 + (0, 0), (*status, places["verdict"], 1, counter, 1)

        self._add(split_verdict, _configs(split_verdict)[0], own, (), 1, arguments)

    def _add_product(self, problem: Problem, config: Any) -> None:
        a, b = self._parts["a"], self._parts["b"]
        own = _with_buffers(problem, "float32", "float32", "int32")
        variant = CHOSEN, a.innermost, b.innermost

        def arguments(places: Any, call: Any, operands: Any) -> Any:
            factors = *a.factors(places["a"]), *b.factors(places["b"])
            extra = *operands, *factors, places["verdict"], 1
            return (places["a"], places["b"], *call[2:]), extra

        blocks = split_wgmma.block_count(config, own)
        maps = split_wgmma.tensor_maps(config, own, *variant)
        self._add(split_wgmma, config, own, variant, blocks, arguments, maps)

    def _add_native(self, problem: Problem) -> None:
        own, config = _with_buffers(problem, "int32"), native_config(problem)

        def arguments(places: Any, call: Any, operands: Any) -> Any:
            return call, (*operands, places["verdict"], 1)

        blocks = tuned.block_count(config, own)
        self._add(guarded, config, own, tuned.variant(config, own), blocks, arguments)

    def _add(
        self,
        file: Any,
        config: Any,
        problem: Problem,
        variant: tuple[str, ...],
        blocks: int,
        arguments: Any,
        maps: tuple[Any, ...] = (),
    ) -> None:
        launch = _launch(file, config, problem, variant, blocks, self._arch, self._ordinal, maps)
        self._steps.append(_Step(None, launch, arguments))


class _Series:
    """Launches one after the other, and the workspace that they use."""

    def __init__(self, workspace: Workspace, launches: list[Callable[[int], None]]) -> None:
        self._workspace, self._launches = workspace, launches

    def __call__(self, stream: int) -> None:
        for launch in self._launches:
            launch(stream)


class PreparedLaunch:
    """A launch with an operand that has been split before."""

    def __init__(self, launch: SplitLaunch, operand: str, parts: int) -> None:
        self._launch, self._prepared = launch, {operand: parts}

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
        self._launch(a, b, c, out, alpha, beta, stream, operands, self._prepared)

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
        return self._launch.fixed(a, b, c, out, alpha, beta, operands, self._prepared)


def split_fallbacks(device: int = 0) -> int:
    """How many calls with precision="split" have multiplied the operands themselves.

    They could not be split within the bound on the error, which is known on the GPU alone; reading
    the count waits for the work queued there.

    Args:
        device: CUDA ordinal.
    """
    return 0 if simulator_enabled() else _counter(device).read()


@cache
def _counter(ordinal: int) -> Counter:
    return Counter(ordinal)


def _verdict_problem(problem: Problem) -> Problem:
    """What `split_verdict` takes for one, but for the blocks."""
    return Problem(
        dtype="float32",
        m=0,
        n=0,
        k=problem.k,
        batch=1,
        a=NO_STRIDES,
        b=NO_STRIDES,
        c=NO_STRIDES,
        out=NO_STRIDES,
        out_dtype="float32",
        epilogue=Fusion((), _buffers("int32", "int32", "int32", "int32")),
    )


def _with_buffers(problem: Problem, *dtypes: str) -> Problem:
    """The problem with buffers behind the operands of its epilogue."""
    epilogue = problem.epilogue or Fusion((), (), problem.is_transposed)
    operands = (*epilogue.operands, *_buffers(*dtypes))
    return replace(problem, epilogue=replace(epilogue, operands=operands))


def _spec(file: Any, config: Any, problem: Problem, variant: tuple[str, ...]) -> KernelSpec:
    # All under the registered name, by which `build` knows what they are for.
    return KernelSpec(
        "split_wgmma", file.__name__, config, problem.dtype, variant, problem.epilogue
    )


def _launch(
    file: Any,
    config: Any,
    problem: Problem,
    variant: tuple[str, ...],
    blocks: int,
    arch: str,
    ordinal: int,
    maps: tuple[Any, ...] = (),
) -> Launch:
    spec = _spec(file, config, problem, variant)
    return launch_kernel(spec, problem, blocks, arch, ordinal, maps)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _configs(file: Any) -> tuple[Any, ...]:
    configs: tuple[Any, ...] = file.SIMULATOR_CONFIGS if simulator_enabled() else file.CONFIGS
    return configs
