"""NVTX ranges around the launches of kernels, which Nsight Systems shows on its time line.

`DXGEMM_NVTX=1` turns them on. It is read when a kernel is bound to a problem, which name the range.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

from dxgemm.compiler import KernelSpec
from dxgemm.errors import MissingPackageError
from dxgemm.problem.kernel_arguments import Arguments, Call


def ranges_enabled() -> bool:
    """True if `DXGEMM_NVTX` asks for ranges."""
    return os.environ.get("DXGEMM_NVTX", "0") not in ("", "0")


class RangedLaunch:
    """Launch inside of an NVTX range."""

    def __init__(self, launch: Any, spec: KernelSpec, problem: Arguments) -> None:
        sizes = f"{problem.m} x {problem.n} x {problem.k}"
        batch = f", batch {problem.batch}" if problem.batch > 1 else ""
        self._launch = launch
        self._range = partial(_range_maker(), f"{spec}: {sizes}{batch}")

    def __call__(self, call: Call, stream: int) -> None:
        with self._range():
            self._launch(call, stream)

    def fixed(self, call: Call) -> Callable[[int], None]:
        """Pack a call, as `Launch.fixed` does."""
        queue: Callable[[int], None] = self._launch.fixed(call)

        def queue_in_range(stream: int) -> None:
            with self._range():
                queue(stream)

        return queue_in_range


@cache
def _range_maker() -> Callable[[str], AbstractContextManager[Any]]:
    """Function that makes a range of a name: the `nvtx` package's, or CuPy's.

    Raises:
        MissingPackageError: neither is installed.
    """
    if find_spec("nvtx") is not None:
        import nvtx

        return partial(nvtx.annotate, domain="dxgemm")
    if find_spec("cupyx") is not None:
        from cupyx.profiler import time_range

        return time_range
    raise MissingPackageError(
        "DXGEMM_NVTX is set, and NVTX ranges need nvtx or CuPy; pip install nvtx."
    )
