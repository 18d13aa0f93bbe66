"""Launches of a GEMM with operands in host memory.

A copy that is written goes back whole. So it is uploaded first wherever a launch may leave elements
as they are: one rule for the result and for what an epilogue writes (`HostLaunch._is_uploaded`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from dxgemm.call.epilogue import CallEpilogue, kernel_operands
from dxgemm.call.route import Route
from dxgemm.errors import LaunchError
from dxgemm.problem.kernel_arguments import Call
from dxgemm.runtime.arrays import HOST, Library, host_view
from dxgemm.runtime.capture import is_captured
from dxgemm.runtime.host import DeviceCopy


class HostLaunch:
    """Launch of a call with operands in host memory: upload, run, download.

    The copies are made at each run, so that a plan sees the current contents of the arrays. A run
    returns when the result has arrived. Operands on the device are used where they are.
    """

    def __init__(
        self,
        route: Route,
        arrays: dict[str, Any],
        pointers: dict[str, int],
        library: Library,
        epilogue: CallEpilogue | None,
    ) -> None:
        """Find the arrays in host memory, newly allocated ones included.

        Args:
            arrays: arrays by name; None for absent ones.
            pointers: addresses by name, of the arrays on the device.
            library: library of the newly allocated arrays.
            epilogue: epilogue of the call; None without one.
        """
        assert route.on_device is not None
        on_host = list(route.resolved.host_operands)
        result = "c" if arrays["out"] is None else "out"
        # A reduction stores its matrix in `out` alone.
        self._target = None if route.resolved.asked.is_reduced and result == "c" else result
        for name, array in arrays.items():
            if array is None or name in route.layouts:
                continue
            pointers[name], key = library.inspect(array)
            if library.layout(key).device == HOST:
                on_host.append(name)
        self._pointers = pointers
        self._host_views = {name: host_view(arrays[name]) for name in on_host}
        self._route = route.on_device
        self._epilogue = epilogue

    def __call__(self, call: Call, stream: int) -> None:
        """Upload, run and download; the addresses of the copies replace those that are passed."""
        if is_captured(stream):
            names = ", ".join(sorted(self._host_views))
            raise LaunchError(
                f"gemm: the stream is under capture, but {names} in host memory cannot be copied; "
                "pass an array on the GPU."
            )
        route, target = self._route, self._target
        _, _, _, _, alpha, beta, *_ = call
        operands: tuple[Any, ...] = ()
        with ExitStack() as stack:
            pointers = dict(self._pointers)
            written_copies: list[DeviceCopy] = []
            for name, view in self._host_views.items():
                copy = stack.enter_context(DeviceCopy(view, route.resolved.ordinal, stream))
                pointers[name] = copy.pointer
                if self._is_uploaded(name):
                    copy.upload()
                if self._is_written(name):
                    written_copies.append(copy)
            first, second = ("b", "a") if route.is_transposed else ("a", "b")
            written = 0 if target is None else pointers[target]
            addend = pointers["c"] if route.reads_separate_c else written
            assert route.launch is not None  # its operands are on the device, and not empty
            if self._epilogue is not None:
                values = self._epilogue.moved(pointers)
                operands = kernel_operands(values, route.epilogue_strides)
            addresses = pointers[first], pointers[second], addend, written
            route.launch((*addresses, alpha, beta, *operands), stream)
            for copy in written_copies:
                copy.download()

    def _is_written(self, name: str) -> bool:
        """True if the launch writes an operand: the result, or what the epilogue returns."""
        epilogue = self._epilogue
        if epilogue is not None and name in epilogue.shape.labels:
            return epilogue.shape.is_output(name)
        return name == self._target

    def _is_uploaded(self, name: str) -> bool:
        """True if the launch reads an operand, or may leave elements of it as they are."""
        asked = self._route.asked
        if self._is_written(name) and asked.keeps_elements:
            return True
        if name in ("a", "b"):
            return asked.k > 0
        if name == "c":
            return asked.reads_c
        return not self._is_written(name)

    def fixed(self, call: Call) -> Callable[[int], None]:
        return lambda stream: self(call, stream)
