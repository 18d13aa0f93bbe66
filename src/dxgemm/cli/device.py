"""Device of the commands: the GPU, or numba's simulator without one."""

from __future__ import annotations

from dxgemm.cli.output import note
from dxgemm.errors import GpuUnavailableError
from dxgemm.gpu.simulation import simulate
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
    """Enable numba's simulator if there is no GPU, and print a note: see `dxgemm.simulate`."""
    if simulate(unless_gpu=True):
        reason = probe().problem or "NUMBA_ENABLE_CUDASIM is set."
        note(f"{reason} Using numba's CUDA simulator: right results, no speed.")
