"""Device of the commands: the GPU, or numba's simulator without one."""

from __future__ import annotations

import os

from dxgemm.cli.output import note
from dxgemm.errors import GpuUnavailableError
from dxgemm.gpu.status import probe, simulator_enabled


def require_gpu(work: str) -> None:
    """Refuse work that needs a GPU on the simulator, and where there is none.

    Raises:
        GpuUnavailableError: there is no usable GPU; the message says why.
    """
    problem = "this is numba's simulator." if simulator_enabled() else probe().problem
    if problem:
        raise GpuUnavailableError(f"{work} needs a GPU: {problem}")


def enable_simulator_without_gpu() -> None:
    """Enable numba's simulator if there is no GPU, and print a note.

    Must come before numba is imported. NUMBA_ENABLE_CUDASIM is left alone if it is set.
    """
    problem = probe().problem
    if problem and "NUMBA_ENABLE_CUDASIM" not in os.environ:
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    if simulator_enabled():
        reason = problem or "NUMBA_ENABLE_CUDASIM is set."
        note(f"{reason} Using numba's CUDA simulator: right results, no speed.")
