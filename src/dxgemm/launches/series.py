"""Series of kernels for one GEMM, launched one after the other, with a common workspace."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

from dxgemm.gpu.status import simulator_enabled
from dxgemm.runtime.graphs import keep_in_graph
from dxgemm.runtime.workspace import ALIGNMENT, Workspace, borrowed


class Call(NamedTuple):
    """Launch of one kernel, with the arguments before the stream and those of the epilogue."""

    launch: Any  # a Launch
    arguments: tuple[Any, ...]
    operands: tuple[Any, ...] = ()

    @property
    def epilogue_arguments(self) -> tuple[Any, ...]:
        """Last argument of the launch, if there are operands."""
        return (self.operands,) if self.operands else ()


class LaunchSeries(ABC):
    """Launch of several kernels.

    The workspace is borrowed for each call; `fixed` has one of its own.

    Attributes:
        size: bytes of the workspace.
        kept: memory besides the operands that every launch reads, and a graph of it keeps.
    """

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        self.size = 0
        self.kept: tuple[Workspace, ...] = ()

    @abstractmethod
    def calls(self, base: int, call: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Call]:
        """Calls of the kernels in order, with the workspace at an address.

        Args:
            base: address of the workspace.
            call: a, b, c, out, alpha and beta.
            operands: epilogue arguments.
        """

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
        if self.kept:
            keep_in_graph(stream, *self.kept)
        with borrowed(max(self.size, 1), self._ordinal, stream) as base:
            for call in self.calls(base, (a, b, c, out, alpha, beta), operands):
                call.launch(*call.arguments, stream, *call.epilogue_arguments)

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
        workspace = Workspace(max(self.size, 1), self._ordinal)
        calls = self.calls(workspace.pointer, (a, b, c, out, alpha, beta), operands)
        launches = [call.launch.fixed(*call.arguments, *call.epilogue_arguments) for call in calls]
        return FixedLaunch((workspace, *self.kept), launches)

    def _take(self, size: int) -> int:
        """Reserve bytes of the workspace and return their offset."""
        start = self.size
        self.size += -(-size // ALIGNMENT) * ALIGNMENT
        return start


class FixedLaunch:
    """Packed launches, with the memory that they use, which a graph of them keeps."""

    def __init__(
        self, memory: tuple[Workspace, ...], launches: list[Callable[[int], None]]
    ) -> None:
        self._memory, self._launches = memory, launches
        self._may_be_captured = not simulator_enabled()

    def __call__(self, stream: int) -> None:
        if self._may_be_captured:
            keep_in_graph(stream, *self._memory)
        for launch in self._launches:
            launch(stream)
