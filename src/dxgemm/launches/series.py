"""Several kernels for one GEMM, launched one after the other, with a workspace between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

from dxgemm.runtime.workspace import ALIGNMENT, Workspace, borrowed


class Call(NamedTuple):
    """One kernel's launch, and what it is given before the stream and after it."""

    launch: Any  # a Launch
    arguments: tuple[Any, ...]
    operands: tuple[Any, ...] = ()

    @property
    def extra(self) -> tuple[Any, ...]:
        return (self.operands,) if self.operands else ()


class LaunchSeries(ABC):
    """A `Launch` of several kernels.

    The workspace is borrowed for each call; `fixed` has one of its own.
    """

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        self._size = 0  # of the workspace

    @abstractmethod
    def _calls(self, base: int, call: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Call]:
        """The launches in order, with the workspace at an address.

        Args:
            call: a, b, c, out, alpha and beta.
            operands: of the epilogue.
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
        with borrowed(max(self._size, 1), self._ordinal, stream) as base:
            for call in self._calls(base, (a, b, c, out, alpha, beta), operands):
                call.launch(*call.arguments, stream, *call.extra)

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
        workspace = Workspace(max(self._size, 1), self._ordinal)
        calls = self._calls(workspace.pointer, (a, b, c, out, alpha, beta), operands)
        return _Fixed(
            workspace, [call.launch.fixed(*call.arguments, *call.extra) for call in calls]
        )

    def _take(self, size: int) -> int:
        """Where so many bytes of the workspace begin."""
        start = self._size
        self._size += -(-size // ALIGNMENT) * ALIGNMENT
        return start


class _Fixed:
    """Launches one after the other, and the workspace that they use."""

    def __init__(self, workspace: Workspace, launches: list[Callable[[int], None]]) -> None:
        self._workspace, self._launches = workspace, launches

    def __call__(self, stream: int) -> None:
        for launch in self._launches:
            launch(stream)
