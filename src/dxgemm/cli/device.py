"""Where commands compute: on the GPU, or on numba's simulator where there is none."""

from __future__ import annotations

import os

from dxgemm.cli.output import note
from dxgemm.gpu.status import probe, simulator_enabled


def enable_simulator_without_gpu() -> None:
    """Make numba's simulator stand in for a missing GPU, and say so.

    Must come before numba is imported, and leaves NUMBA_ENABLE_CUDASIM alone where it is set.
    """
    problem = probe().problem
    if problem and "NUMBA_ENABLE_CUDASIM" not in os.environ:
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    if simulator_enabled():
        reason = problem or "NUMBA_ENABLE_CUDASIM is set."
        note(f"{reason} Using numba's CUDA simulator: right results, no speed.")
