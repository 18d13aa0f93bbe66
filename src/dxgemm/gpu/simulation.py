"""`dxgemm.simulate`: kernels of this process on numba's CUDA simulator."""

from __future__ import annotations

import os
import sys

from dxgemm.errors import LaunchError, SettingError, shown
from dxgemm.gpu.status import probe, simulator_enabled

VARIABLE = "NUMBA_ENABLE_CUDASIM"


def simulate(*, unless_gpu: bool = False) -> bool:
    """Run kernels on numba's CUDA simulator in this process, and in those that it starts.

    It sets the environment variable NUMBA_ENABLE_CUDASIM to 1, which numba reads when it is
    imported. So it comes before numba is imported, and before the first product. Another call
    changes nothing.

    Args:
        unless_gpu: True to change nothing where there is a usable GPU, or where the variable is
            set, to whatever value.

    Returns:
        True if kernels run on the simulator.

    Raises:
        LaunchError: numba was imported without the simulator.
        SettingError: unless_gpu is neither True nor False.
    """
    if not isinstance(unless_gpu, bool):
        raise SettingError(f"simulate: unless_gpu is {shown(unless_gpu)}; pass True or False.")
    is_wanted = not unless_gpu or (VARIABLE not in os.environ and probe().problem is not None)
    if not (is_wanted or simulator_enabled()):
        return False
    numba = sys.modules.get("numba")
    if numba is not None and not numba.config.ENABLE_CUDASIM:
        raise LaunchError(
            "simulate: numba was imported without its simulator; call dxgemm.simulate() before it "
            f"is imported, or set {VARIABLE}=1 before Python starts."
        )
    if not simulator_enabled():
        os.environ[VARIABLE] = "1"
        simulator_enabled.cache_clear()
    return True
