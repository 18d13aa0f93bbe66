"""Kernels of an earlier architecture on the GPU at hand: DXGEMM_TEST_ARCH=sm_80.

Kernels are made and compiled as for the earlier architecture, down to their PTX; only the link is
for the GPU at hand, which therefore loads them.
"""

from typing import Any

from dxgemm.compiler import build, compute_capability, spec, worker
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.gpu.occupancy import sm_limits
from dxgemm.runtime import device


def pretend(arch: str) -> None:
    """Give the GPUs at hand the facts of another architecture, and build its kernels for them."""
    limits, facts_of = sm_limits(arch), device.facts_of
    assert limits is not None, f"the limits of an SM of {arch} are not known"
    real = device.device_facts(0).arch

    def facts_as_other(name: str, capability: tuple[int, int], **figures: Any) -> DeviceFacts:
        figures["smem_bytes_per_block"] = limits.smem_bytes - limits.reserved_smem_bytes
        return facts_of(f"{name} as {arch}", divmod(compute_capability(arch), 10), **figures)

    device.facts_of = facts_as_other
    device.device_facts.cache_clear()
    link_for(arch, real)


def link_for(arch: str, real: str) -> None:
    """Link the kernels of an architecture for another one; the keys of cubins say so too."""
    link = build._link

    def link_for_real(kernel: Any, wanted: str, *inputs: Any, **options: Any) -> bytes:
        return link(kernel, real if wanted == arch else wanted, *inputs, **options)

    build._link = link_for_real
    spec.BUILD_VERSION = f"{spec.BUILD_VERSION}, {arch} for {real}"
    # Slow kernels are built by another process.
    worker._PROGRAM = (
        f"import other_arch; other_arch.link_for({arch!r}, {real!r}); {worker._PROGRAM}"
    )
