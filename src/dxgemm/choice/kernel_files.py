"""Kernel files beside the implementations: the kernels before and after a product."""

from __future__ import annotations

from typing import Any

from dxgemm.compiler import KernelSpec
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.kernel_arguments import Arguments


def configs_of(file: Any) -> tuple[Any, ...]:
    """Configs of a kernel file; those for the simulator, if it is enabled and there are any."""
    kernel = file.KERNEL
    configs: tuple[Any, ...] = kernel.simulator_configs if simulator_enabled() else ()
    return configs or kernel.configs


def file_spec(
    file: Any,
    arguments: Arguments,
    variant: tuple[str, ...] = (),
    config: Any = None,
    name: str = "",
) -> KernelSpec:
    """Spec of the kernel of a file.

    Args:
        file: the kernel file.
        arguments: what it is launched with.
        variant: variant of the kernel.
        config: config of the kernel; None for the first one.
        name: name of the implementation that it belongs to; "" for that of the file.
    """
    name = name or file.__name__.rpartition(".")[2]
    config = config or configs_of(file)[0]
    return KernelSpec(name, file.__name__, config, arguments.dtype, variant, arguments.epilogue)
