"""GPUs of this process: the driver, their facts, and the current context.

The driver is called directly: the import of cuda.core takes a tenth of a second of a first call.
"""

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
            f"{status.problem} Without a GPU, small problems run on numba's simulator: call "
            "dxgemm.simulate() first, or set NUMBA_ENABLE_CUDASIM=1 before Python starts."
        )


@cache
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


_call_for_a_gpu = partial(
    call_driver, failure="the GPU cannot be used", error_type=GpuUnavailableError
)


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
    keys = driver_api().CUdevice_attribute

    def attribute(name: str) -> int:
        key = getattr(keys, f"CU_DEVICE_ATTRIBUTE_{name}")
        return _call_for_a_gpu("cuDeviceGetAttribute", key, ordinal)

    # Two transfers a memory clock of this many kHz.
    memory_khz, memory_bits = attribute("MEMORY_CLOCK_RATE"), attribute("GLOBAL_MEMORY_BUS_WIDTH")
    return facts_of(
        _call_for_a_gpu("cuDeviceGetName", 256, ordinal).partition(b"\0")[0].decode(),
        (attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
        sm_count=attribute("MULTIPROCESSOR_COUNT"),
        clock_hz=attribute("CLOCK_RATE") * 1e3,
        memory_gbytes_per_s=memory_khz * memory_bits / 4e6,
        smem_bytes_per_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
    )


_primary_handles: set[int] = set()  # of the primary contexts that this process holds


@cache
def _primary_context(ordinal: int) -> Any:
    """Primary context of a GPU, which this process then holds as long as it lives."""
    context = _call_for_a_gpu("cuDevicePrimaryCtxRetain", ordinal)
    _primary_handles.add(int(context))
    return context


@contextmanager
def current_device(ordinal: int) -> Iterator[None]:
    """Make a GPU's primary context current, and restore the caller's afterwards.

    Functions, memory, events and streams belong to the context in which they are made: all of
    dxgemm's are the primary one's, even if the caller has made another one of the GPU current.

    Raises:
        GpuUnavailableError: the GPU cannot be used, or this process was forked from one that had
            used CUDA.
    """
    driver = driver_api()
    error, previous = driver.cuCtxGetCurrent()
    if error == driver.CUresult.CUDA_ERROR_NOT_INITIALIZED:
        if driver.cuInit(0)[0]:
            raise GpuUnavailableError(
                "CUDA does not work in this process, which was forked from one that had used it; "
                "start it with multiprocessing's method 'spawn' or 'forkserver'."
            )
        error, previous = driver.cuCtxGetCurrent()
    before, primary = 0 if error else int(previous), _primary_context(ordinal)
    if before == int(primary):
        yield
        return
    _call_for_a_gpu("cuCtxSetCurrent", primary)
    try:
        yield
    finally:
        if before:
            driver.cuCtxSetCurrent(previous)


def refuse_foreign_context() -> None:
    """Raise if the current context is not the primary one of its GPU.

    Its default stream is not the primary context's, so that no call could be ordered, and its
    memory may be out of reach.

    Raises:
        LaunchError: it was made by cuCtxCreate, for example by PyCUDA, or belongs to a green one.
    """
    driver = driver_api()
    error, current = driver.cuCtxGetCurrent()
    if error or not int(current) or int(current) in _primary_handles:
        return
    error, ordinal = driver.cuCtxGetDevice()
    if error:
        return
    error, _, is_active = driver.cuDevicePrimaryCtxGetState(ordinal)
    if error or (is_active and int(current) == int(_primary_context(int(ordinal)))):
        return
    raise LaunchError(
        f"gemm: the current CUDA context is not the primary one of GPU {int(ordinal)}, in which "
        "dxgemm works, as CuPy and torch do by default; make that one current for the call, for "
        "example with cuCtxPopCurrent."
    )
