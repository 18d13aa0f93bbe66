"""The GPU a problem runs on: facts for dispatch and explain, and the current context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dxgemm._errors import GpuUnavailableError, MissingPackageError
from dxgemm._gpu import probe, simulator_enabled


@dataclass(frozen=True, eq=False)
class DeviceFacts:
    """What dispatch and explain need to know of a GPU; one object each, which is compared as such.

    Attributes:
        name: as the driver gives it.
        arch: architecture kernels are built for, such as "sm_90a".
        sm_count: streaming multiprocessors.
        peak_tflops: arithmetic peak outside tensor cores in TFLOP/s, or 10**12 integer operations
            a second, by dtype of sums.
        memory_gbytes_per_s: peak bandwidth of device memory.
        tensor_tflops: the same of the tensor cores, by dtype or precision of the operands;
            without what they do not compute.
        is_simulated: whether this stands for numba's simulator.
    """

    name: str
    arch: str
    sm_count: int
    peak_tflops: dict[str, float] = field(hash=False)
    memory_gbytes_per_s: float
    tensor_tflops: dict[str, float] = field(default_factory=dict, hash=False)
    is_simulated: bool = False


SIMULATED_DEVICE = DeviceFacts(
    name="numba CUDA simulator",
    arch="simulator",
    sm_count=1,
    peak_tflops={"float32": 1e-6, "float64": 1e-6, "int32": 1e-6},
    memory_gbytes_per_s=1e-3,
    is_simulated=True,
)


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
    """cuda-bindings' driver module."""
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
    """GPUs visible to this process."""
    return probe().device_count


@cache
def device_facts(ordinal: int) -> DeviceFacts:
    """Facts of one GPU; of the simulator where it is enabled."""
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
    )


def facts_of(
    name: str,
    capability: tuple[int, int],
    *,
    sm_count: int,
    clock_hz: float,
    memory_gbytes_per_s: float,
) -> DeviceFacts:
    """What follows from a GPU's compute capability, (major, minor), its SMs and clocks."""
    major, minor = capability
    flops_per_multiply_add = 2 * clock_hz * sm_count
    return DeviceFacts(
        name=name,
        arch=f"sm_{major}{minor}" + ("a" if major == 9 else ""),
        sm_count=sm_count,
        peak_tflops={
            dtype: cores * flops_per_multiply_add / 1e12
            for dtype, cores in _cores_per_sm(major, minor).items()
        },
        tensor_tflops={
            arithmetic: rate * flops_per_multiply_add / 1e12
            for arithmetic, rate in _tensor_multiply_adds(major, minor).items()
        },
        memory_gbytes_per_s=memory_gbytes_per_s,
    )


def _cores_per_sm(major: int, minor: int) -> dict[str, int]:
    """Multiply-adds, fused ones of floats, an SM starts each clock, outside tensor cores.

    Source: CUDA C++ Programming Guide, table "Throughput of Native Arithmetic Instructions".
    """
    datacenter = (major, minor) in ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0), (10, 3))
    float32 = 64 if (major, minor) in ((6, 0), (7, 0), (7, 5), (8, 0)) else 128
    if not datacenter:
        float64 = 2
    else:
        float64 = 64 if major in (9, 10) else 32
    return {"float32": float32, "float64": float64, "int32": 64}


def _tensor_multiply_adds(major: int, minor: int) -> dict[str, int]:
    """Multiply-adds the tensor cores of an SM finish each clock, in dense products.

    Source: NVIDIA's architecture whitepapers, Volta to Blackwell.
    """
    half = {7: 512, 8: 512, 9: 2048, 10: 4096, 12: 512}.get(major)
    if half is None:
        return {}
    if (major, minor) in ((8, 0), (8, 7)):
        half = 1024
    rates = {"float16": half}
    if major >= 8:
        rates |= {"bfloat16": half, "tf32": half // 2, "int8": 2 * half}
    if major == 9:
        rates |= {"split": half // 3}  # three products of float16 parts
    float64 = {(8, 0): 64, (9, 0): 128}.get((major, minor))
    return rates | ({"float64": float64} if float64 else {})


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
