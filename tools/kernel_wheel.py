"""Wheels of built kernels: `dxgemm-kernels-sm90a` holds what `dxgemm build --arch sm_90a` builds.

    python tools/kernel_wheel.py --arch sm_90a --wheel-dir dist      # needs a compiler, no GPU

Kernels that are in the cache already are taken from there. `pip wheel` makes the wheels, so that
pip's environment variables apply.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from dxgemm import __version__
from dxgemm.builds import build_tasks
from dxgemm.cli.output import byte_text
from dxgemm.compiler import CompiledKernel, build_kernels
from dxgemm.compiler.wheels import package_name, write_kernels
from dxgemm.log import progress_bar
from dxgemm.problem.dtypes import RESULT_DTYPES

PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "{version}"
description = "Kernels of dxgemm, built for {arch}"
license = "BSD-3-Clause"
requires-python = ">=3.11"
dependencies = ["dxgemm=={version}"]

[tool.setuptools]
packages = ["{package}"]
package-data = {{ {package} = ["*"] }}
"""
# The kernels do not depend on a C library: the oldest tag that package indices take.
SETUP = "[bdist_wheel]\nplat_name = manylinux_2_17_{machine}\n"


def make_wheel(arch: str, kernels: Mapping[str, CompiledKernel], wheels: Path) -> Path:
    """Make the wheel of the kernels of one architecture, by key; return its path."""
    package = package_name(arch)
    name = package.replace("_", "-")
    text = PROJECT.format(name=name, package=package, arch=arch, version=__version__)
    command = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps")
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        write_kernels(project / package, arch, kernels)
        (project / "pyproject.toml").write_text(text)
        (project / "setup.cfg").write_text(SETUP.format(machine=os.uname().machine))
        subprocess.run([*command, "--wheel-dir", wheels, project], check=True)
    (path,) = wheels.glob(f"{package}-{__version__}-*.whl")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", action="append", required=True, help="repeatable")
    parser.add_argument("--dtype", action="append", choices=RESULT_DTYPES, help="default: all")
    parser.add_argument("--implementation", action="append", help="default: as `dxgemm build`")
    parser.add_argument("--jobs", type=int, help="parallel builds; default: the CPUs")
    parser.add_argument("--wheel-dir", type=Path, default=Path("dist"))
    given = parser.parse_args()
    dtypes = tuple(given.dtype or RESULT_DTYPES)
    names = tuple(given.implementation) if given.implementation else None
    tasks = list(dict.fromkeys(build_tasks(given.arch, dtypes, names)))
    start = time.perf_counter()
    with progress_bar() as report:
        built = build_kernels(tasks, given.jobs, report)
    print(f"{len(built)} kernels in {time.perf_counter() - start:.0f} s")
    for arch in dict.fromkeys(given.arch):
        kernels = {
            spec.key(arch): kernel for (spec, wanted), kernel in zip(tasks, built) if wanted == arch
        }
        path = make_wheel(arch, kernels, given.wheel_dir)
        print(f"{path}: {len(kernels)} kernels, {byte_text(path.stat().st_size)}")


if __name__ == "__main__":
    main()
