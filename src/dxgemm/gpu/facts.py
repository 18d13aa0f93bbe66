"""Facts of a GPU, on which choices and predictions depend."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, eq=False)
class DeviceFacts:
    """Facts of a GPU that the choice and `explain` need; objects are compared by identity.

    Attributes:
        name: name that the driver gives.
        arch: architecture that kernels are built for, such as "sm_90a".
        sm_count: number of SMs.
        peak_tflops: arithmetic peak outside tensor cores in TFLOP/s, or 10**12 integer operations
            per second, by dtype of the accumulator.
        memory_gbytes_per_s: peak bandwidth of device memory.
        tensor_tflops: arithmetic peak of the tensor cores in the same unit, by dtype or precision
            of the operands; without an entry if they do not support it.
        smem_bytes_per_block: most shared memory that a block can ask for.
        is_simulated: True for numba's simulator.
    """

    name: str
    arch: str
    sm_count: int
    peak_tflops: dict[str, float] = field(hash=False)
    memory_gbytes_per_s: float
    smem_bytes_per_block: int
    tensor_tflops: dict[str, float] = field(default_factory=dict, hash=False)
    is_simulated: bool = False


SIMULATED_DEVICE = DeviceFacts(
    name="numba CUDA simulator",
    arch="simulator",
    sm_count=1,
    peak_tflops={"float32": 1e-6, "float64": 1e-6, "int32": 1e-6, "int64": 1e-6},
    memory_gbytes_per_s=1e-3,
    smem_bytes_per_block=48 * 1024,
    is_simulated=True,
)


def facts_of(
    name: str,
    capability: tuple[int, int],
    *,
    sm_count: int,
    clock_hz: float,
    memory_gbytes_per_s: float,
    smem_bytes_per_block: int,
) -> DeviceFacts:
    """Compute the facts of a GPU from its compute capability, (major, minor), SMs and clocks."""
    major, minor = capability
    flops_per_multiply_add = 2 * clock_hz * sm_count
    tensor_rates = _tensor_multiply_adds(major, minor, name)
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
            for arithmetic, rate in tensor_rates.items()
        },
        memory_gbytes_per_s=memory_gbytes_per_s,
        smem_bytes_per_block=smem_bytes_per_block,
    )


def _cores_per_sm(major: int, minor: int) -> dict[str, int]:
    """Multiply-adds per SM and clock outside tensor cores, by dtype; fused for floats.

    Source: CUDA C++ Programming Guide, table "Throughput of Native Arithmetic Instructions"; of the
    B300 (10.3), its datasheet. A product of int64 takes four instructions of 32 bits.
    """
    datacenter = (major, minor) in ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))
    float32 = 64 if (major, minor) in ((6, 0), (7, 0), (7, 5), (8, 0)) else 128
    if not datacenter:
        float64 = 2
    else:
        float64 = 64 if major in (9, 10) else 32
    return {"float32": float32, "float64": float64, "int32": 64, "int64": 16}


def _tensor_multiply_adds(major: int, minor: int, name: str = "") -> dict[str, int]:
    """Multiply-adds per SM and clock of the tensor cores in dense products, by arithmetic.

    Narrow floats are summed in float32, which GeForce cards do at half the rate of their chip.
    The L20 does all at half of it.
    float64 is faster than outside tensor cores on the A100 and on Hopper alone.
    The B300 (10.3) has few int8 units.
    Source: NVIDIA's architecture whitepapers, Volta to Blackwell, and datasheets.
    """
    half = {7: 512, 8: 512, 9: 2048, 10: 4096, 12: 512}.get(major)
    if half is None:
        return {}
    if (major, minor) in ((8, 0), (8, 7)):
        half = 1024
    if name.endswith("L20"):
        half //= 2
    summed = half // 2 if "GeForce" in name else half
    rates = {"float16": summed}
    if major >= 8:
        rates |= {"bfloat16": summed, "tf32": summed // 2, "int8": 2 * half}
        if (major, minor) >= (8, 9):
            rates["float8"] = 2 * summed
        if (major, minor) == (10, 3):
            rates["int8"] = 256
        plain = _cores_per_sm(major, minor)
        rates["emulated"] = max(summed // 3, plain["float32"])  # three products of float16 parts
        rates["float64"] = {(8, 0): 64, (9, 0): 128}.get((major, minor), plain["float64"])
    return rates
