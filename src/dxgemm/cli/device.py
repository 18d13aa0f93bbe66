"""Device of the commands: the GPU, or numba's simulator without one."""

from __future__ import annotations

import os

from dxgemm.cli.output import note
from dxgemm.gpu.status import probe, simulator_enabled


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
