"""Programs: a call as a list of kernels with symbolic arguments, and its launch.

A program is plain data, made without a GPU. Its symbols stand for what a call passes, and for
buffers of one workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from dxgemm.compiler import KernelSpec
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.fusion import Fusion
from dxgemm.problem.kernel_arguments import Arguments
from dxgemm.runtime.binding import Launch, launch_kernel
from dxgemm.runtime.counter import fallback_counter
from dxgemm.runtime.graphs import keep_in_graph
from dxgemm.runtime.workspace import ALIGNMENT, Workspace, borrowed

# Parts of alpha and beta, which may be complex numbers of Python.
PARTS: dict[str, Callable[[Any], float]] = {
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "if real": lambda x: 1.0 if type(x) is complex else x,
    "if complex, real": lambda x: x.real if type(x) is complex else 1.0,
    "if complex, imag": lambda x: x.imag if type(x) is complex else 0.0,
    "if complex, -imag": lambda x: -x.imag if type(x) is complex else 0.0,
}


Name = str | int


@dataclass(frozen=True, slots=True)
class Symbol:
    """Value that is known when a program is run.

    Attributes:
        name: parameter of the call, such as "a" or "alpha"; a number for an epilogue argument; or
            the name of a buffer, for its address.
        offset: bytes from an address on.
        part: part of a number, a key of `PARTS`; "" for the whole.
    """

    name: Name
    offset: int = 0
    part: str = ""

    def __add__(self, offset: int) -> Symbol:
        """Address so many bytes behind this one."""
        return replace(self, offset=self.offset + offset)

    def of(self, value: Any) -> Any:
        """Apply the offset or the part to the value of the name, which may be another symbol."""
        if type(value) is Symbol:
            return Symbol(value.name, value.offset + self.offset, value.part or self.part)
        if self.part:
            return PARTS[self.part](value)
        return value + self.offset if self.offset else value


Value = Symbol | int | float
CALL = A, B, C, OUT, ALPHA, BETA = tuple(map(Symbol, ("a", "b", "c", "out", "alpha", "beta")))
# Parts of complex factors: a kernel takes those of alpha as its factors, and those of beta as the
# last arguments of its epilogue.
ALPHA_PARTS = Symbol("alpha", part="real"), Symbol("alpha", part="imag")
BETA_PARTS = Symbol("beta", part="real"), Symbol("beta", part="imag")
FALLBACKS = Symbol("fallbacks")  # the GPU's counter of emulated products that are not emulated


def parameters(epilogue: Fusion | None) -> tuple[Symbol, ...]:
    """Epilogue arguments of a call, for a kernel that takes them as they are."""
    return tuple(map(Symbol, range(len(epilogue.format)))) if epilogue else ()


@dataclass(frozen=True)
class Step:
    """Launch of one kernel.

    Attributes:
        spec: the kernel; None for cuBLAS.
        arguments: sizes and strides.
        blocks: blocks of the grid, for each split-K slice.
        values: a, b, c, out, alpha and beta of the kernel.
        operands: epilogue arguments of the kernel.
        maps: tensor maps of the operands that the kernel reads by TMA.
        tiles: tiles of the result, of which a persistent kernel has more than blocks.
        makes: buffer that depends on one operand alone, so that it may be prepared; "" for others.
        twin: source and buffer of another step, which serves this one too if it has that source.
        when: a number, and True if it must be complex for the step to be run, False if it must not.
    """

    spec: KernelSpec | None
    arguments: Arguments
    blocks: int = 1
    values: tuple[Value, ...] = CALL
    operands: tuple[Value, ...] = ()
    maps: tuple[Any, ...] = ()
    tiles: int = 0
    makes: Name = ""
    twin: tuple[Value, Name] | None = None
    when: tuple[Value, bool] | None = None

    def __str__(self) -> str:
        """Name the kernel, and the operands and buffers that it uses."""
        symbols = (v for v in (*self.values[:4], *self.operands) if isinstance(v, Symbol))
        names = dict.fromkeys(s.name for s in symbols if isinstance(s.name, str) and not s.part)
        kernel = "cublas"
        if self.spec is not None:
            kernel = f"{self.spec.module.rpartition('.')[2]} {self.spec.config}"
        return f"{kernel}: {', '.join(map(str, names))}"

    def bind(self, arch: str, ordinal: int) -> Launch:
        """Bind the kernel, built if need be."""
        assert self.spec is not None
        return launch_kernel(
            self.spec, self.arguments, self.blocks, arch, ordinal, self.maps, self.tiles
        )


@dataclass(frozen=True)
class Program:
    """Steps in order, and the bytes of the buffers that they use, by name."""

    steps: tuple[Step, ...]
    buffers: Mapping[Name, int] = field(default_factory=dict)

    @property
    def specs(self) -> list[KernelSpec]:
        """Kernels to build."""
        return [step.spec for step in self.steps if step.spec is not None]

    @property
    def is_one_kernel(self) -> bool:
        """True if a call's arguments are those of a single kernel."""
        return self._passes(CALL, ())

    @property
    def is_by_parts(self) -> bool:
        """True if they are, but for complex factors, which the kernel takes by their parts."""
        return self._passes((*CALL[:4], *ALPHA_PARTS), BETA_PARTS)

    def _passes(self, values: tuple[Symbol, ...], last: tuple[Symbol, ...]) -> bool:
        if len(self.steps) != 1 or self.buffers:
            return False
        (step,) = self.steps
        count = len(step.operands) - len(last)
        passed = (*parameters(step.arguments.epilogue)[:count], *last)
        return (step.values, step.operands) == (values, passed)

    def __add__(self, other: Program) -> Program:
        """This program, then another one; buffers of one name share their memory."""
        sizes = {name: max(size, self.buffers.get(name, 0)) for name, size in other.buffers.items()}
        return Program(self.steps + other.steps, {**self.buffers, **sizes})

    def given(
        self, values: Mapping[Name, Value], when: tuple[Value, bool] | None = None
    ) -> Program:
        """Program with values in the place of its symbols of some names."""

        def new(value: Value) -> Any:
            is_given = type(value) is Symbol and value.name in values
            return value.of(values[value.name]) if is_given else value  # type: ignore

        steps = (
            replace(
                step,
                values=tuple(map(new, step.values)),
                operands=tuple(map(new, step.operands)),
                twin=step.twin and (new(step.twin[0]), step.twin[1]),
                when=when or (step.when and (new(step.when[0]), step.when[1])),
            )
            for step in self.steps
        )
        return Program(tuple(steps), self.buffers)

    def bind(self, arch: str, ordinal: int) -> Launch:
        """Bind the kernels, building missing ones."""
        if self.is_one_kernel:
            return self.steps[0].bind(arch, ordinal)
        return ProgramLaunch(self, arch, ordinal)


class ProgramLaunch:
    """Launch of a program.

    The workspace is borrowed for each call; `fixed` has one of its own.
    """

    def __init__(self, program: Program, arch: str, ordinal: int) -> None:
        """Bind the kernels, building missing ones."""
        self._ordinal, self._is_by_parts = ordinal, program.is_by_parts
        self._buffers = program.buffers
        counts = any(FALLBACKS in step.operands for step in program.steps)
        self._counters = {FALLBACKS.name: fallback_counter(ordinal).pointer} if counts else {}
        bound: dict[Any, Launch] = {}  # a kernel may be launched for several parts of the operands
        self._launches: list[_BoundStep] = []
        for step in program.steps:
            key = id(step.spec), id(step.arguments)
            bound[key] = bound.get(key) or step.bind(arch, ordinal)
            values = step.values, step.operands, (step.when or ())[:1], (step.twin or ())[:1]
            self._launches.append(_BoundStep(step, bound[key], *map(_sources_of, values)))
        self._lay_out({})

    def _lay_out(self, prepared: Mapping[Name, Workspace]) -> None:
        """Lay out the workspace, without the buffers that are prepared."""
        self._prepared, self._size = prepared, 0
        self._offsets: dict[Name, int] = {}
        self._addresses: dict[Name, int] = {n: memory.pointer for n, memory in prepared.items()}
        self._addresses |= self._counters
        for name, size in self._buffers.items():
            if name not in prepared:
                self._offsets[name] = self._size
                self._size += -(-size // ALIGNMENT) * ALIGNMENT

    def prepared(self, name: Name, memory: Workspace) -> ProgramLaunch:
        """Return a copy of this launch for which a buffer, if it has that, is made already."""
        if name not in self._buffers:
            return self
        launch = copy(self)
        launch._lay_out({name: memory})
        return launch

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
        if self._is_by_parts:  # of small complex matrices, where each microsecond shows
            operands += beta.real, beta.imag
            launch = self._launches[0].launch
            launch(a, b, c, out, alpha.real, alpha.imag, stream, operands)
            return
        if self._prepared:
            keep_in_graph(stream, *self._prepared.values())
        with borrowed(self._size, self._ordinal, stream) if self._size else _NO_WORKSPACE as base:
            for launch, values, extra in self._calls(base, (a, b, c, out, alpha, beta), operands):
                launch(*values, stream, extra)

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
        memory = [*self._prepared.values()]
        if self._size:
            memory.append(Workspace(self._size, self._ordinal))
        base = memory[-1].pointer if self._size else 0
        calls = self._calls(base, (a, b, c, out, alpha, beta), operands)
        launches = [launch.fixed(*values, extra) for launch, values, extra in calls]
        return FixedLaunch(memory, launches)

    def _calls(
        self, base: int, call: tuple[Any, ...], operands: tuple[Any, ...]
    ) -> Iterator[tuple[Any, list[Any], tuple[Any, ...]]]:
        """Yield launches in order, with their arguments and epilogue arguments.

        Args:
            base: address of the workspace.
            call: a, b, c, out, alpha and beta.
            operands: epilogue arguments.
        """
        a, b, c, out, alpha, beta = call
        known: dict[Name, Any] = {
            "a": a, "b": b, "c": c, "out": out, "alpha": alpha, "beta": beta, **self._addresses
        }  # fmt: skip
        known.update(enumerate(operands))
        for name, offset in self._offsets.items():
            known[name] = base + offset
        for step, launch, sources, operand_sources, number, twin_source in self._launches:
            if step.when is not None:
                is_complex = type(_found(number, known)[0]) is complex
                if step.when[1] != is_complex:
                    continue
            if step.makes in self._prepared:
                continue
            values = _found(sources, known)
            is_shared = not self._prepared and values[:1] == _found(twin_source, known)
            if step.twin is not None and is_shared:
                known[step.makes] = known[step.twin[1]]
                continue
            yield launch, values, tuple(_found(operand_sources, known))


_NO_WORKSPACE = nullcontext(0)

# Where arguments come from: a name and what is made of its value, None for nothing; or None and a
# constant. Symbols are taken apart once, because each call looks up all of them.
_Sources = tuple[tuple[Any, Any], ...]


class _BoundStep(NamedTuple):
    """Step with its launch, and the sources of its arguments.

    Fields: those of the values and of the operands; of the number of `Step.when`; of the source of
    `Step.twin`.
    """

    step: Step
    launch: Launch
    values: _Sources
    operands: _Sources
    number: _Sources
    twin: _Sources


def _sources_of(values: Iterable[Value]) -> _Sources:
    """Take symbols apart."""
    return tuple(
        (value.name, PARTS.get(value.part) or (value.offset.__add__ if value.offset else None))
        if type(value) is Symbol
        else (None, value)
        for value in values
    )


def _found(sources: _Sources, known: Mapping[Name, Any]) -> list[Any]:
    """Look up the values of a call."""
    return [
        change if name is None else known[name] if change is None else change(known[name])
        for name, change in sources
    ]


class FixedLaunch:
    """Packed launches, with the memory that they use, which a graph of them keeps."""

    def __init__(self, memory: list[Workspace], launches: list[Callable[[int], None]]) -> None:
        self._memory, self._launches = memory, launches
        self._may_be_captured = bool(memory) and not simulator_enabled()

    def __call__(self, stream: int) -> None:
        if self._may_be_captured:
            keep_in_graph(stream, *self._memory)
        for launch in self._launches:
            launch(stream)
