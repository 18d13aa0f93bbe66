"""Kernels whose builds are written to a file, one line each, instead of made.

Where `COUNTED_BUILDS` names the file, importing this module replaces the compiler. Worker processes
import it as they unpickle a `Config`, so that they build the same way.
"""

import os
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

from dxgemm import errors
from dxgemm.compiler import CompiledKernel, KernelRecord, KernelSpec, compile_kernel, kernels
from dxgemm.handwritten.parts.kernel import BaseConfig, Kernel

NAME = "counted"
ARCH = "sm_90a"
DEATH = 17  # status of a process whose build ends it
PATIENCE_S = 120  # for what happens in a moment, on a busy machine too


@dataclass(frozen=True)
class Config(BaseConfig):
    """Config that decides the course of a build."""

    name: str  # text that the build writes to the file of builds
    seconds: float = 0.0  # duration of the build in seconds
    opens: str = ""  # file that the build makes as it begins; "" for none
    gate: str = ""  # file that the build then waits for; "" for none
    warning: str = ""  # warning of the build; "" for none
    failure: str = ""  # error of the build; "dies" ends the process, "" is a success
    functions: str = ""  # name of the device functions; kernels with the same name share them

    threads = 1

    def __str__(self) -> str:
        return self.name


def spec(name: str, **options: object) -> KernelSpec:
    return KernelSpec(NAME, __name__, Config(name, **options), "float32")


def made_up_kernel(cubin: bytes, implementation: str, config: str, arch: str) -> CompiledKernel:
    """A kernel of any bytes."""
    record = KernelRecord(
        implementation=implementation, config=config, dtype="float32", variant="", arch=arch,
        entry="entry", threads=32, registers=32, stack_bytes=0, smem_bytes=0, dynamic_smem_bytes=0,
        cluster=1, cubin_bytes=len(cubin), toolkit="made up",
    )  # fmt: skip
    return CompiledKernel(cubin, record)


def descriptor(config: Config, dtype: str, *, arch: str) -> str:
    return config.functions or config.name


def device_functions(config: Config, dtype: str, *, arch: str) -> None:
    """Says that these kernels are slow to build; `compile_counted` does not call it."""


def make_kernel(config: Config, dtype: str, epilogue: object = None) -> None:
    """Makes none: `compile_counted` does not call it."""


KERNEL = Kernel(make_kernel, configs=(), device_functions=device_functions, descriptor=descriptor)


def compile_counted(spec: KernelSpec, arch: str) -> CompiledKernel:
    if spec.implementation != NAME:
        return compile_kernel(spec, arch)
    config = spec.config
    with open(os.environ["COUNTED_BUILDS"], "a") as file:
        file.write(f"{config.name}\n")
    time.sleep(config.seconds)
    if config.opens:
        Path(config.opens).touch()
    end = time.monotonic() + PATIENCE_S
    while config.gate and not Path(config.gate).exists() and time.monotonic() < end:
        time.sleep(0.01)
    if config.warning:
        warnings.warn(config.warning, RuntimeWarning, stacklevel=2)
    if config.failure == "dies":
        os._exit(DEATH)
    if config.failure:
        raise errors.BuildError(config.failure)
    return made_up_kernel(
        f"cubin of {config.name}".encode(), spec.implementation, config.name, arch
    )


if "COUNTED_BUILDS" in os.environ:
    kernels.compile_kernel = compile_counted
