"""GPUs of this process: the driver, their facts, and the current context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from dxgemm.errors import GpuUnavailableError, MissingPackageError
from dxgemm.gpu.facts import SIMULATED_DEVICE, DeviceFacts, facts_of
from dxgemm.gpu.status import probe, simulator_enabled


def require_gpu() -> None:
    """Raise unless kernels can run here, on a GPU or on the simulator."""
    if simulator_enabled():
        return
    status = probe()
    if status.problem:
        raise GpuUnavailableError(
            f"{status.problem} Without a GPU, small problems run on numba's simulator: set "
            "NUMBA_ENABLE_CUDASIM=1 before Python starts."
        )


def driver_api() -> Any:
    """Driver module of cuda-bindings."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise MissingPackageError(
            f"launching on a GPU needs cuda-bindings ({error}); pip install 'dxgemm[cu13]' "
            "or 'dxgemm[cu12]'."
        ) from error
    return driver


@cache
def device_count() -> int:
    """Number of GPUs visible to this process."""
    return probe().device_count


@cache
def device_facts(ordinal: int) -> DeviceFacts:
    """Facts of one GPU, or of the simulator if it is enabled."""
    if simulator_enabled():
        return SIMULATED_DEVICE
    require_gpu()
    driver_api()
    from cuda.core import Device

    device = Device(ordinal)
    properties = device.properties
    # Two transfers a memory clock.
    bytes_per_clock = 2 * properties.global_memory_bus_width / 8
    return facts_of(
        device.name,
        device.compute_capability,
        sm_count=properties.multiprocessor_count,
        clock_hz=properties.clock_rate * 1e3,
        memory_gbytes_per_s=properties.memory_clock_rate * 1e3 * bytes_per_clock / 1e9,
        smem_bytes_per_block=properties.max_shared_memory_per_block_optin,
        l2_bytes=properties.l2_cache_size,
    )


@contextmanager
def current_device(ordinal: int) -> Iterator[None]:
    """Make a GPU's primary context current, and restore the caller's afterwards.

    Raises:
        GpuUnavailableError: this process was forked from one that had used CUDA.
    """
    driver = driver_api()
    error, current = driver.cuCtxGetDevice()
    if not error and int(current) == ordinal:
        yield
        return
    if error == driver.CUresult.CUDA_ERROR_NOT_INITIALIZED and driver.cuInit(0)[0]:
        raise GpuUnavailableError(
            "CUDA does not work in this process, which was forked from one that had used it; start "
            "it with multiprocessing's method 'spawn' or 'forkserver'."
        )
    from cuda.core import Device

    _, previous = driver.cuCtxGetCurrent()
    Device(ordinal).set_current()
    try:
        yield
    finally:
        if int(previous):
            driver.cuCtxSetCurrent(previous)
