"""Calls of `gemm_grouped`, of either kind: their operands, streams and plans."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from dxgemm.call.factors import real_number, refuse_no_integer, refuse_overflow
from dxgemm.call.operand import Operand
from dxgemm.call.prepare import Bound, Options, Prepared, prepare
from dxgemm.epilogues.chain import BoundEpilogue
from dxgemm.errors import DtypeError, DxgemmError
from dxgemm.handwritten.parts.operands import FLOAT8_KINDS
from dxgemm.lower.grouped import DTYPES
from dxgemm.problem.define import PLAIN, Result, define_problem
from dxgemm.problem.dtypes import COMPLEX_PARTS, INTEGER_BITS
from dxgemm.problem.layout import Layout
from dxgemm.problem.problem import Problem
from dxgemm.runtime.exports import finished, in_order, refuse_new_jax_array

# Problems of a group tend to have the same layouts.
_define = lru_cache(maxsize=4096)(define_problem)


class Group(ABC):
    """Checked call of `gemm_grouped`.

    Attributes:
        result: what the call returns.
    """

    result: Any
    _stream: int | None  # the caller's handle; None for the current stream of the anchor's library
    _anchor: Operand
    _ordered: tuple[Operand, ...] = ()  # operands whose own streams are ordered against the launch

    @abstractmethod
    def run(self) -> None:
        """Compute the problems, once."""

    @abstractmethod
    def bind(self) -> Callable[[], None]:
        """Choose and build the kernels, and return a function that computes the problems."""

    def _order(self, operands: Iterable[Operand]) -> None:
        """Find the operands that must be ordered."""
        operands = tuple(operands)
        are_mixed = len({operand.library for operand in operands}) > 1
        self._ordered = tuple(
            operand
            for operand in operands
            if operand.library.always_ordered or (are_mixed and self._stream is None)
        )

    def _current_stream(self) -> int:
        """Handle of the stream to launch on."""
        if self._stream is not None:
            return self._stream
        return self._anchor.library.current_stream(self._anchor.array)

    def _queue(self, launch: Callable[[int], None]) -> None:
        """Launch on the stream, after work on the operands and before later work on them."""
        stream = self._current_stream()
        if not self._ordered:
            launch(stream)
            return
        ordered = [(operand.library, operand.array) for operand in self._ordered]
        with in_order(ordered, self._anchor.layout.device, stream):
            launch(stream)

    def finished(self) -> Any:
        """Return `result` as the caller gets it, after a run."""
        return finished(self.result)

    def _call_of(
        self,
        arrays: dict[str, Any],
        alpha: float | complex,
        beta: float | complex,
        epilogue: BoundEpilogue | None = None,
        precision: str | None = None,
    ) -> Bound:
        """Prepare a call of `gemm` for one problem."""
        a, b, c, out = (arrays.get(name) for name in ("a", "b", "c", "out"))
        options = Options(epilogue, precision=precision, stream=self._stream)
        prepared = Prepared(*prepare(a, b, c, alpha, beta, out, options))
        return Bound(prepared, (a, b, c, epilogue))


class GroupedPlan:
    """Grouped GEMM with its kernels chosen and built; call it to run it on the same arrays.

    The arrays' contents may change between calls, offsets among them; their memory may not. With
    device operands a call allocates nothing and does not synchronise, so that it can be captured in
    a CUDA graph, which keeps the table of the problems.
    """

    def __init__(self, group: Group) -> None:
        refuse_new_jax_array("plan_grouped", group.result)
        self._group = group  # keeps the arrays alive, whose addresses the launch holds
        self._run = group.bind()

    def __call__(self) -> Any:
        """Run the problems and return the result of `gemm_grouped`, the same arrays each time."""
        try:
            self._run()
        except DxgemmError as error:
            error.name_call("plan_grouped")
            raise
        return self._group.finished()


def in_turn(calls: Sequence[Callable[[], None]]) -> Callable[[], None]:
    """Return a function that runs calls one after the other."""

    def run() -> None:
        for call in calls:
            call()

    return run


def define(
    layouts: dict[str, Layout],
    alpha: float | complex,
    beta: float | complex,
    epilogue: BoundEpilogue | None = None,
    *,
    is_listed: bool = False,
    precision: str | None = None,
) -> tuple[Problem, tuple[int, ...]]:
    """Define a problem by the layouts of its operands, and check its dtype and factors.

    The epilogue, if there is one, is not part of the problem yet. Problems of lists may be of
    complex numbers and integers, too.

    Returns:
        The problem, and the shape of its result.
    """
    dtype = layouts["a"].dtype
    is_complex = dtype in COMPLEX_PARTS
    taken = (*DTYPES, *FLOAT8_KINDS)
    taken += (*COMPLEX_PARTS, "bool", *INTEGER_BITS) if is_listed else ()
    if dtype not in taken:
        what = "groups" if is_listed else "groups with offsets"
        raise DtypeError(f"gemm: <a> is {dtype}; {what} are computed in {', '.join(taken)}.")
    problem, shape = _define(
        layouts["a"], layouts["b"], layouts.get("c"), layouts.get("out"),
        alpha_is_zero=alpha == 0, beta_is_zero=beta == 0,
        result=PLAIN if epilogue is None else Result(True, takes_pairs=epilogue.takes_pairs),
        takes_complex=is_listed, precision=precision,
    )  # fmt: skip
    for name, value in (("alpha", alpha), ("beta", beta)):
        if isinstance(value, complex) and not is_complex:
            real_number(f"<{name}>", value)  # refuses it
        if problem.is_integer:
            refuse_no_integer(name, value.real, problem)
        else:
            refuse_overflow(name, value, problem.scalar_dtype)
    return problem, shape
