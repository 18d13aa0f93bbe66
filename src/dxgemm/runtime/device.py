"""GPUs of this process: the driver, their facts, and the current context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from dxgemm.errors import DxgemmError, GpuUnavailableError, LaunchError, MissingPackageError
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


def call_driver(
    function: str, *arguments: Any, failure: str, error_type: type[DxgemmError] = LaunchError
) -> Any:
    """Call a function of the driver; return its result, if it has one.

    Args:
        function, arguments: name of the function, such as "cuMemFree", and what it takes.
        failure: begin of the message if the driver refuses.
        error_type: type of the error then.
    """
    error, *results = getattr(driver_api(), function)(*arguments)
    if error:
        raise error_type(f"{failure}: {function} gave {error.name}.")
    return results[0] if results else None


@cache
def device_count() -> int:
    """Number of GPUs visible to this process."""
    return probe().device_count


@cache
def device_facts(ordinal: int) -> DeviceFacts:
    """Facts of one GPU, or of the simulator if it is enabled.

    Raises:
        GpuUnavailableError: there is no such GPU, or none at all.
    """
    if simulator_enabled():
        return SIMULATED_DEVICE
    require_gpu()
    # From the driver itself: the import of cuda.core takes a tenth of a second.
    described = partial(
        call_driver,
        failure="the driver does not describe the GPU",
        error_type=GpuUnavailableError,
    )
    keys = driver_api().CUdevice_attribute

    def attribute(name: str) -> int:
        key = getattr(keys, f"CU_DEVICE_ATTRIBUTE_{name}")
        return described("cuDeviceGetAttribute", key, ordinal)

    # Two transfers a memory clock of this many kHz.
    memory_khz, memory_bits = attribute("MEMORY_CLOCK_RATE"), attribute("GLOBAL_MEMORY_BUS_WIDTH")
    return facts_of(
        described("cuDeviceGetName", 256, ordinal).partition(b"\0")[0].decode(),
        (attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
        sm_count=attribute("MULTIPROCESSOR_COUNT"),
        clock_hz=attribute("CLOCK_RATE") * 1e3,
        memory_gbytes_per_s=memory_khz * memory_bits / 4e6,
        smem_bytes_per_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
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
