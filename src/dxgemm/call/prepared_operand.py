"""Operands of emulated products, split once for many calls."""

from __future__ import annotations

from typing import Any

from dxgemm.call.operand import inspected
from dxgemm.call.route import Route
from dxgemm.choice.emulation_parts import parts_of_problem
from dxgemm.choice.implementation import EmulatedProduct
from dxgemm.choice.registry import IMPLEMENTATIONS
from dxgemm.errors import (
    ArrayTypeError,
    PrecisionError,
    UnsupportedProblemError,
    named_in_errors,
    shown,
)
from dxgemm.gpu.status import simulator_enabled
from dxgemm.lower.emulated import PARTS_OF
from dxgemm.problem.define import define_problem
from dxgemm.problem.dtypes import EMULATED
from dxgemm.problem.layout import contiguous_layout
from dxgemm.runtime.arrays import HOST
from dxgemm.runtime.binding import Launch
from dxgemm.runtime.capture import first_call, launching_on
from dxgemm.runtime.device import device_facts
from dxgemm.runtime.exports import in_order
from dxgemm.runtime.graphs import keep_in_graph
from dxgemm.runtime.program import OUT, A, Program, ProgramLaunch
from dxgemm.runtime.streams import stream_handle
from dxgemm.runtime.workspace import Workspace


class PreparedOperand:
    """Operand b with its emulation parts, from `prepare`; `gemm`, `plan` and `explain` take it.

    Attributes:
        array: b itself, which is multiplied if it fails the validity check.
        precision: precision that it was prepared for.
    """

    def __init__(self, array: Any, precision: str, parts: Workspace | None) -> None:
        self.array = array
        self.precision = precision
        self._parts = parts

    def unpack(self, precision: Any, triangular: Any) -> tuple[PreparedOperand | None, Any, Any]:
        """Return this operand if its parts serve a call, its array, and the call's precision."""
        if triangular is not None:
            raise UnsupportedProblemError(
                "gemm: triangular= does not go with a prepared operand; pass the array of b."
            )
        precision = precision or self.precision
        return (self if precision == self.precision else None), self.array, precision

    def bind(self, route: Route) -> Launch | None:
        """Return a route's launch with these parts, if it is one of an emulated product."""
        launch, operand = route.launch, "a" if route.is_transposed else "b"
        if self._parts is None or not isinstance(launch, ProgramLaunch):
            return launch
        return launch.prepared(PARTS_OF[operand].name, self._parts)


@named_in_errors("prepare")
def prepare(b: Any, *, precision: str = "emulated", stream: Any = None) -> PreparedOperand:
    """Split b into its emulation parts once, for all calls that take the result for b.

    Args:
        b: (k, n) or (batch, k, n), float32 or float64, any strides, on the device.
        precision: "emulated" or, for float64, a name such as "emulated14", as `gemm` takes it.
        stream: where to launch; None for the current stream of b's library.

    Returns:
        An operand that `gemm`, `plan` and `explain` take for b; they use its precision by default.

    Raises:
        PrecisionError: precision is none of these.
        DtypeError, ShapeError, ArrayTypeError: b is no such array.
        LaunchError: the driver refused the launch, or the memory for the parts: 4 bytes per
            element of float32, one byte per element and modulus of float64.

    Notes:
        Asynchronous, like `gemm`; another stream must wait for this one before it uses the result.
        The array must not change as long as the result is used: its parts would not follow.
        On a GPU without kernels for emulated products nothing is split. A call with another
        precision does not use the parts.
    """
    if not isinstance(precision, str) or not precision.startswith(EMULATED):
        raise PrecisionError(f"prepare: precision is {shown(precision)}; pass 'emulated'.")
    handle = None if stream is None else stream_handle(stream)
    _, b, library, pointer, layout = inspected("b", b, handle, b)
    k = layout.shape[-2] if len(layout.shape) > 1 else 0
    row = contiguous_layout((1, k), layout.dtype, layout.device)
    problem, _ = define_problem(
        row, layout, None, None, alpha_is_zero=False, beta_is_zero=True, precision=precision
    )
    if simulator_enabled():
        return PreparedOperand(b, precision, None)
    if layout.device == HOST:
        raise ArrayTypeError("prepare: b is in host memory; copy it to the GPU first.")
    arch = device_facts(layout.device).arch
    is_emulated = any(
        isinstance(i, EmulatedProduct) and i.supports(problem) is None and i.runs_on(arch) is None
        for i in IMPLEMENTATIONS
    )
    if problem.is_empty or k == 0 or not is_emulated:
        return PreparedOperand(b, precision, None)
    parts = parts_of_problem(problem)["b"]
    if handle is None:
        handle = library.current_stream(b)
    with launching_on(handle), first_call:
        launch = Program((parts.step(A, OUT),)).bind(arch, layout.device)
    memory = Workspace(parts.size, layout.device)
    keep_in_graph(handle, memory)
    ordered = [(library, b)] if library.always_ordered else []
    with in_order(ordered, layout.device, handle):
        launch((pointer, pointer, pointer, memory.pointer, 0, 0), handle)
    return PreparedOperand(b, precision, memory)
