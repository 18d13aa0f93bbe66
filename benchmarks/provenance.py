"""Provenance of a result, kept by allow-list, so that no file names a host or a user."""

import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from dxgemm.gpu.status import simulator_enabled

REPOSITORY = Path(__file__).resolve().parent.parent
MACHINE_KEYS = ("machine", "python_implementation", "python_version", "system")
CPU_KEYS = ("arch", "brand_raw", "count")
PACKAGES = (
    "numpy", "numba", "numba-cuda", "cuda-core", "cuda-bindings", "cuda-toolkit", "nvidia-cublas",
    "nvidia-cuda-nvrtc", "nvidia-nvjitlink", "nvidia-nvvm", "cupy-cuda12x", "cupy-cuda13x", "torch",
    "pytest-benchmark",
)  # fmt: skip


def gpu_slug(name: str) -> str:
    """`NVIDIA H100 80GB HBM3` -> `nvidia-h100`, the folder its results live in."""
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r" \d+GB.*", "", name).lower()).strip("-")


def clean_machine_info(raw: Mapping[str, Any]) -> dict[str, Any]:
    """pytest-benchmark's machine_info without host name, kernel release, build paths and flags."""
    cpu = raw.get("cpu", {})
    cleaned = {key: raw[key] for key in MACHINE_KEYS if key in raw}
    return {**cleaned, "cpu": {key: cpu[key] for key in CPU_KEYS if key in cpu}}


def machine_info(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What a result says of the machine, from pytest-benchmark's machine_info."""
    gpu = {} if simulator_enabled() else {"gpu": gpu_info()}
    return {**clean_machine_info(raw), "packages": package_versions(), **gpu}


def package_versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def output_of(*command: str) -> str:
    options: Any = {"capture_output": True, "text": True, "check": True}
    return str(subprocess.run(command, cwd=REPOSITORY, **options).stdout).strip()


def gpu_info() -> dict[str, Any]:
    """Name, driver and size of the first GPU, on which everything is measured."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    asked = output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {
        "name": properties["name"].decode(),
        "driver": asked.split()[0],
        "multiprocessors": properties["multiProcessorCount"],
        "l2_bytes": properties["l2CacheSize"],
        "memory_gib": round(properties["totalGlobalMem"] / 2**30),
    }


def commit_info() -> dict[str, Any]:
    """The measured commit: DXGEMM_COMMIT where there is no git checkout to ask."""
    named = os.environ.get("DXGEMM_COMMIT")
    if named:
        return {"id": named}
    try:
        changes = output_of("git", "status", "--porcelain", "--untracked-files=no")
        return {"id": output_of("git", "rev-parse", "HEAD"), "dirty": bool(changes)}
    except (OSError, subprocess.CalledProcessError):
        return {"id": "unknown"}
