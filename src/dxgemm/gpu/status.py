"""Status of the driver: whether there is a GPU, and which CUDA it runs. Standard library only.

Run as a script it prints the pip extra that fits this machine: `cu13`, `cu12` or `none`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from functools import cache

MINIMUM_DRIVER_VERSION = 12000


@dataclass(frozen=True)
class GpuStatus:
    """Status that the CUDA driver reports.

    Attributes:
        driver_version: highest CUDA version the driver runs, as 1000 * major + 10 * minor
            (13000 is CUDA 13.0); None without a driver.
        device_count: number of GPUs visible to this process.
        problem: reason why no GPU can be used, with the way out; None if one can.
    """

    driver_version: int | None
    device_count: int
    problem: str | None

    @property
    def extra(self) -> str | None:
        """The pip extra whose packages this driver can run; None if there is no usable GPU."""
        if self.problem or self.driver_version is None:
            return None
        return "cu13" if self.driver_version >= 13000 else "cu12"


def probe() -> GpuStatus:
    """Ask the CUDA driver. Creates no context, so that it is safe before a fork."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError:
        return GpuStatus(
            None, 0, f"no NVIDIA driver: {name} cannot be loaded; install the NVIDIA driver."
        )
    version = ctypes.c_int(0)
    driver.cuDriverGetVersion(ctypes.byref(version))
    if version.value < MINIMUM_DRIVER_VERSION:
        return GpuStatus(
            version.value,
            0,
            f"the NVIDIA driver is too old: it runs CUDA {version_text(version.value)}, "
            f"dxgemm needs {version_text(MINIMUM_DRIVER_VERSION)} or newer; update the driver.",
        )
    count = ctypes.c_int(0)
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0 or count.value == 0:
        return GpuStatus(
            version.value,
            0,
            f"the NVIDIA driver shows no GPU (CUDA error {status}); "
            "check nvidia-smi and CUDA_VISIBLE_DEVICES.",
        )
    return GpuStatus(version.value, count.value, None)


@cache
def simulator_enabled() -> bool:
    """True if kernels run on numba's CUDA simulator: NUMBA_ENABLE_CUDASIM=1 in the environment.

    Read once, as numba does when it is imported.
    """
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


def version_text(version: int) -> str:
    """`12090` -> `"12.9"`."""
    return f"{version // 1000}.{version % 1000 // 10}"


if __name__ == "__main__":
    print(probe().extra or "none")
