"""`dxgemm info`: GPU, driver, packages and cache of this machine."""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import Any

import typer

import dxgemm
from dxgemm.cli.kernels import cache_dict, cache_text
from dxgemm.cli.output import JsonOption, print_json
from dxgemm.compiler import installed_wheels, pipeline_faults
from dxgemm.compiler.toolkit import installed_versions
from dxgemm.gpu.status import GpuStatus, probe, simulator_enabled, version_text

# Some packages have different names with cu12 and cu13.
PACKAGES = (
    *("numpy", "numba", "numba-cuda", "cuda-core", "cuda-bindings"),
    *("nvidia-nvvm", "nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink", "nvidia-nvjitlink-cu12"),
    *("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "nvidia-cublas", "nvidia-cublas-cu12"),
    *("nvmath-python", "nvidia-libmathdx-cu13", "nvidia-libmathdx-cu12"),
    *("cupy-cuda13x", "cupy-cuda12x", "torch"),
)
UNBUILT, NO_PIPELINES = "kernels are not built", "cuBLASDx pipelines are not built"
# Packages that an extra brings, each by its alternative names, and what is missing without them.
EXTRA_PACKAGES = (
    (("numba-cuda",), f"numba-cuda: {UNBUILT}, only those of wheels and of the cache run"),
    (("nvidia-nvvm", "nvidia-cuda-nvcc-cu12"), f"NVVM: {UNBUILT}"),
    (("nvidia-nvjitlink", "nvidia-nvjitlink-cu12"), f"nvJitLink: {UNBUILT}"),
    (("nvmath-python",), f"nvmath-python: {NO_PIPELINES}"),
    (("nvidia-libmathdx-cu13", "nvidia-libmathdx-cu12"), f"libmathdx: {NO_PIPELINES}"),
    (("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"), f"NVRTC: {NO_PIPELINES}"),
    (("cupy-cuda13x", "cupy-cuda12x"), "CuPy: it has arrays on the GPU, as torch and JAX do"),
)


def info(as_json: JsonOption = False) -> None:
    """Show GPU, driver, packages that are missing or faulty, wheels of kernels, the cache."""
    status = probe()
    packages = installed_versions([(name,) for name in PACKAGES])
    missing = [text for names, text in EXTRA_PACKAGES if not packages.keys() & {*names}]
    warnings = _driver_warnings(status, packages)
    warnings += [f"cuBLASDx pipelines are not built: {fault}." for fault in pipeline_faults()]
    cached, wheels = dxgemm.cache_info(), installed_wheels()
    if as_json:
        print_json(
            {
                "dxgemm": dxgemm.__version__,
                "python": platform.python_version(),
                "driver_cuda_version": _driver_text(status),
                "gpus": _gpus(status),
                "gpu_problem": status.problem,
                "simulator": simulator_enabled(),
                "packages": packages,
                "missing": missing,
                "warnings": warnings,
                "kernel_wheels": [
                    asdict(wheel.manifest) | {"directory": str(wheel.directory)} for wheel in wheels
                ],
                "cache": cache_dict(cached),
            }
        )
        return
    lines = [("dxgemm", f"{dxgemm.__version__} on Python {platform.python_version()}")]
    lines += [
        ("GPU", f"{gpu['name']} ({gpu['arch']}, {gpu['sm_count']} SMs)") for gpu in _gpus(status)
    ]
    if status.problem:
        lines.append(("GPU", status.problem))
    if driver := _driver_text(status):
        lines.append(("driver", f"runs CUDA {driver}"))
    lines += [(name, number) for name, number in packages.items()]
    lines += [("missing", text) for text in missing]
    if missing:
        extra = status.extra or "cu13"
        lines.append(("", f"pip install 'dxgemm[{extra}]' adds what is missing"))
    lines += [("warning", warning) for warning in warnings]
    lines += [
        (f"kernels for {wheel.manifest.arch}", f"{wheel.manifest.kernels}, in {wheel.directory}")
        for wheel in wheels
    ]
    lines.append(("cache", cache_text(cached)))
    for label, value in lines:
        typer.echo(f"{label:<24}{value}")


def _driver_text(status: GpuStatus) -> str | None:
    return None if status.driver_version is None else version_text(status.driver_version)


def _gpus(status: GpuStatus) -> list[dict[str, Any]]:
    if status.problem or simulator_enabled():
        return []
    from dxgemm.runtime.device import device_facts

    facts = [device_facts(ordinal) for ordinal in range(status.device_count)]
    return [{"name": f.name, "arch": f.arch, "sm_count": f.sm_count} for f in facts]


def _driver_warnings(status: GpuStatus, packages: dict[str, str]) -> list[str]:
    if status.extra == "cu12" and "nvidia-nvjitlink" in packages:
        return [
            "the CUDA 13 packages are installed, but the driver runs only CUDA "
            f"{_driver_text(status)}; install dxgemm[cu12] in a new "
            "environment, or update the driver."
        ]
    return []
