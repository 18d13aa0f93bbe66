"""Programs: a call as a list of kernels with symbolic arguments, and its launch.

A program is plain data, made without a GPU. Its symbols stand for what a call passes, and for
buffers of one workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, NamedTuple

from dxgemm.compiler import KernelSpec
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.fusion import Fusion
from dxgemm.problem.kernel_arguments import Arguments, Call
from dxgemm.runtime.binding import Launch, launch_kernel
from dxgemm.runtime.counter import fallback_counter
from dxgemm.runtime.graphs import keep_in_graph
from dxgemm.runtime.workspace import ALIGNMENT, Workspace, borrowed


class Parts(dict[str, Callable[[Any], float]]):
    """Parts of alpha and beta by name; "% 97" is the residue of an integer modulo 97."""

    def __missing__(self, name: str) -> Callable[[Any], float]:
        modulus = int(name.removeprefix("% "))
        return lambda x: x % modulus


PARTS = Parts()  # of numbers that may be complex, or integers of Python
PARTS |= {
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "if real": lambda x: 1.0 if type(x) is complex else x,
    "if complex, real": lambda x: x.real if type(x) is complex else 1.0,
    "if complex, imag": lambda x: x.imag if type(x) is complex else 0.0,
    "if complex, -imag": lambda x: -x.imag if type(x) is complex else 0.0,
}


def shifted(shift: int) -> Callable[[int], int]:
    """Function that shifts an integer to the left, and keeps 32 bits, as an int32."""
    return lambda x: ((x << shift) + 2**31) % 2**32 - 2**31


PARTS |= {f"<< {shift}": shifted(shift) for shift in (0, 8, 16, 24)}


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
        tiles: tiles of the result, if there may be more than blocks; else 0.
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
        if self.is_by_parts:
            return LaunchByParts(self.steps[0].bind(arch, ordinal))
        return ProgramLaunch(self, arch, ordinal)


class LaunchByParts:
    """Launch of a kernel that takes complex factors by their parts."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def __call__(self, call: Call, stream: int) -> None:
        self._launch(_by_parts(*call), stream)

    def fixed(self, call: Call) -> Callable[[int], None]:
        return self._launch.fixed(_by_parts(*call))


def _by_parts(a: int, b: int, c: int, out: int, alpha: Any, beta: Any, *operands: Any) -> Call:
    return (a, b, c, out, alpha.real, alpha.imag, *operands, beta.real, beta.imag)


class ProgramLaunch:
    """Launch of a program.

    The values of a call are a frame: the call itself, the address of the workspace, and what is
    made of these. Each step knows the places of its own. The workspace is borrowed for each call;
    `fixed` has one of its own.

    Attributes:
        offsets: of the buffers in the workspace.
    """

    def __init__(self, program: Program, arch: str, ordinal: int) -> None:
        """Bind the kernels, building missing ones."""
        self._ordinal, self._buffers = ordinal, program.buffers
        counts = any(FALLBACKS in step.operands for step in program.steps)
        self._counters = {FALLBACKS.name: fallback_counter(ordinal).pointer} if counts else {}
        bound: dict[Any, Launch] = {}  # a kernel may be launched for several parts of the operands
        self._bound: list[tuple[Step, Launch]] = []
        for step in program.steps:
            key = id(step.spec), id(step.arguments)
            bound[key] = bound.get(key) or step.bind(arch, ordinal)
            self._bound.append((step, bound[key]))
        self._lay_out({})

    def _lay_out(self, prepared: Mapping[Name, Workspace]) -> None:
        """Lay out the workspace, without the buffers that are prepared, and the frame."""
        self._prepared, self._size = prepared, 0
        self.offsets: dict[Name, int] = {}
        for name, size in self._buffers.items():
            if name not in prepared:
                self.offsets[name] = self._size
                self._size += -(-size // ALIGNMENT) * ALIGNMENT
        addresses = {**self._counters, **{n: memory.pointer for n, memory in prepared.items()}}
        steps = [(step, launch) for step, launch in self._bound if step.makes not in prepared]
        frame = _Frame((step for step, _ in steps), self.offsets, addresses)
        self._made, self._count = frame.made, frame.count
        self._steps = [_BoundStep.of(step, launch, frame, not prepared) for step, launch in steps]

    def prepared(self, name: Name, memory: Workspace) -> ProgramLaunch:
        """Return a copy of this launch for which a buffer, if it has that, is made already."""
        if name not in self._buffers:
            return self
        launch = copy(self)
        launch._lay_out({name: memory})
        return launch

    def __call__(self, call: Call, stream: int) -> None:
        if self._prepared:
            keep_in_graph(stream, *self._prepared.values())
        with borrowed(self._size, self._ordinal, stream) if self._size else _NO_WORKSPACE as base:
            for launch, values in self._calls(call, base):
                launch(values, stream)

    def fixed(self, call: Call) -> Callable[[int], None]:
        memory = [*self._prepared.values()]
        if self._size:
            memory.append(Workspace(self._size, self._ordinal))
        base = memory[-1].pointer if self._size else 0
        launches = [launch.fixed(values) for launch, values in self._calls(call, base)]
        return FixedLaunch(memory, launches)

    def _calls(self, call: Call, base: int) -> Iterator[tuple[Launch, Call]]:
        """Yield launches in order, with their calls; `base` is the address of the workspace."""
        frame = [*call[: self._count], base]
        frame += [x if place is None else x(frame[place]) for place, x in self._made]
        for step in self._steps:
            if step.is_complex not in (None, type(frame[step.number]) is complex):
                continue
            values = step.values(frame)
            if step.shared and values[0] == frame[step.twin]:
                for place, other in step.shared:
                    frame[place] = frame[other]
                continue
            yield step.launch, values


_NO_WORKSPACE = nullcontext(0)


class _Frame:
    """Places of the values of a program in the frame of a call.

    Attributes:
        count: values of the call in it, which are the first; the workspace's address follows.
        made: how the others are made: of which place and by which function; or None and a constant.
    """

    def __init__(
        self, steps: Iterable[Step], offsets: Mapping[Name, int], addresses: Mapping[Name, int]
    ) -> None:
        """Take the offsets of buffers in the workspace, and the addresses of other ones."""
        self._offsets, self._addresses = offsets, addresses
        self._places: dict[Symbol, int] = {symbol: place for place, symbol in enumerate(CALL)}
        values = (v for step in steps for v in (*step.values, *step.operands, *(step.when or ())))
        used = [value for value in values if isinstance(value, Symbol)]
        numbers = (value.name for value in used if isinstance(value.name, int))
        for number in range(max(numbers, default=-1) + 1):
            self._places[Symbol(number)] = len(CALL) + number
        self.count = len(self._places)
        self.made: list[tuple[int | None, Any]] = []
        for symbol in used:
            self.place(symbol)

    def place(self, value: Value) -> int:
        """Place of a symbol or a constant."""
        if not isinstance(value, Symbol):
            return self._make(None, value)
        if value not in self._places:
            if value.name in self._offsets:
                offset = self._offsets[value.name] + value.offset
                self._places[value] = self._make(self.count, offset.__add__)
            elif value.name in self._addresses:
                address = self._addresses[value.name] + value.offset
                self._places[value] = self._make(None, address)
            else:
                change = PARTS[value.part] if value.part else value.offset.__add__
                self._places[value] = self._make(self._places[Symbol(value.name)], change)
        return self._places[value]

    def places_of(self, name: Name) -> list[tuple[int, int]]:
        """Offsets from a buffer's address that steps use, and their places."""
        return [(symbol.offset, p) for symbol, p in self._places.items() if symbol.name == name]

    def _make(self, place: int | None, change: Any) -> int:
        self.made.append((place, change))
        return self.count + len(self.made)


class _BoundStep(NamedTuple):
    """Step with its launch, and where its arguments are in a frame.

    Fields: function that takes its call out of the frame; what the number of `Step.when` must be,
    None without one, and its place; the place of the source of `Step.twin`, and pairs of places, of
    addresses in this step's buffer and in the twin's.
    """

    launch: Launch
    values: Callable[[list[Any]], Call]
    is_complex: bool | None
    number: int
    twin: int
    shared: list[tuple[int, int]]

    @classmethod
    def of(cls, step: Step, launch: Launch, frame: _Frame, may_share: bool) -> _BoundStep:
        """Find the places of a step's arguments."""
        number, is_complex = step.when or (0, None)
        values = itemgetter(*map(frame.place, (*step.values, *step.operands)))
        source, shared = 0, []
        if step.twin is not None and may_share:
            source = frame.place(step.twin[0])
            shared = [
                (place, frame.place(Symbol(step.twin[1], offset)))
                for offset, place in frame.places_of(step.makes)
            ]
        return cls(launch, values, is_complex, frame.place(number), source, shared)


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
