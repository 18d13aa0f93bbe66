"""Launches of a GEMM with operands in host memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from dxgemm.call.epilogue import CallEpilogue, kernel_operands
from dxgemm.call.route import Route
from dxgemm.errors import LaunchError
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
        on_host = list(route.host_operands)
        self._target = "c" if arrays["out"] is None else "out"
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
        """Upload, run and download; the addresses of the copies replace those that are passed."""
        if is_captured(stream):
            names = ", ".join(sorted(self._host_views))
            raise LaunchError(
                f"gemm: the stream is under capture, but {names} in host memory cannot be copied; "
                "pass an array on the GPU."
            )
        route = self._route
        target = None if route.reduction and self._target == "c" else self._target
        reads = {"a": route.k > 0, "b": route.k > 0, "c": route.asked.reads_c}
        if route.asked.keeps_elements:
            reads[self._target] = True
        with ExitStack() as stack:
            pointers = dict(self._pointers)
            copies: dict[str, DeviceCopy] = {}
            outputs: list[DeviceCopy] = []
            for name, view in self._host_views.items():
                copies[name] = stack.enter_context(DeviceCopy(view, route.ordinal, stream))
                pointers[name] = copies[name].pointer
                if self._is_output(name):
                    outputs.append(copies[name])
                elif reads.get(name, name not in ("c", "out")):
                    copies[name].upload()
            first, second = ("b", "a") if route.is_transposed else ("a", "b")
            written = 0 if target is None else pointers[target]
            addend = pointers["c"] if route.reads_separate_c else written
            assert route.launch is not None  # its operands are on the device, and not empty
            if self._epilogue is not None:
                values = self._epilogue.moved(pointers)
                operands = kernel_operands(values, route.epilogue_strides)
            route.launch(
                pointers[first], pointers[second], addend, written, alpha, beta, stream, operands
            )
            if target in copies:
                copies[target].download()
            for copy in outputs:
                copy.download()

    def _is_output(self, name: str) -> bool:
        if self._epilogue is None or name not in self._epilogue.shape.labels:
            return False
        return self._epilogue.shape.is_output(name)

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
        return lambda stream: self(a, b, c, out, alpha, beta, stream)
