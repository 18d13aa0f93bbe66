"""Built kernels in a wheel: found before the cache, and never used where they do not belong."""

import json
import logging
import os
import shutil
import subprocess
import sys
from collections import OrderedDict
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path

import counted_builds
import pytest
from conftest import SOURCES
from counted_builds import ARCH, made_up_kernel
from packaging.requirements import Requirement

import dxgemm
from dxgemm.compiler import KernelStore, find_kernel, kernel_wheel, kernels, obtain_kernel
from dxgemm.compiler.wheels import MANIFEST, package_name, write_kernels
from dxgemm.gpu.status import GpuStatus, simulator_enabled
from dxgemm.runtime.device import device_facts

ROOT = Path(__file__).parents[1]
SPEC, OTHER = counted_builds.spec("one"), counted_builds.spec("other")
KERNEL = made_up_kernel(bytes(range(256)), "coalesced", "32x32", ARCH)
KERNEL = replace(KERNEL, record=replace(KERNEL.record, toolkit="nvidia-nvjitlink 13.0.88"))


@pytest.fixture
def wheel(tmp_path, monkeypatch, caplog):
    """The folder of an installed wheel with one kernel."""
    folder = tmp_path / package_name(ARCH)
    write_kernels(folder, ARCH, {SPEC.key(ARCH): KERNEL})
    store = KernelStore(tmp_path / "cache")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(kernels, "kernel_store", lambda: store)
    monkeypatch.setattr(kernels, "_in_memory", OrderedDict())
    status = GpuStatus(13000, 0, "no GPU")
    monkeypatch.setattr("dxgemm.compiler.wheels.probe", lambda: status)
    kernel_wheel.cache_clear()
    caplog.set_level(logging.INFO, "dxgemm")
    yield folder
    kernel_wheel.cache_clear()


def test_a_kernel_is_found_without_a_cache(wheel, tmp_path):
    assert obtain_kernel(SPEC, ARCH) == KERNEL
    assert not (tmp_path / "cache").exists()
    assert find_kernel(OTHER, ARCH) is None and find_kernel(SPEC, "sm_80") is None
    dxgemm.clear_cache()
    assert find_kernel(SPEC, ARCH) == KERNEL


@pytest.mark.parametrize(
    "changed, reason",
    [
        ({"dxgemm": "0.0.9"}, f"it is of dxgemm 0.0.9, not {dxgemm.__version__}"),
        ({"arch": "sm_80"}, f"it is for sm_80, not {ARCH}"),
        ({"machine": "riscv64"}, f"it is for riscv64, not {os.uname().machine}"),
        ({"cuda": 14}, "it needs a driver for CUDA 14, not 13"),
        ({"future": 1}, "its manifest is damaged"),
        (None, "its manifest is damaged"),
    ],
    ids=["version", "architecture", "machine", "driver", "unknown field", "truncated"],
)
def test_a_foreign_wheel_is_ignored_with_one_line(wheel, caplog, changed, reason):
    manifest = (wheel / MANIFEST).read_text()
    text = manifest[:-5] if changed is None else json.dumps({**json.loads(manifest), **changed})
    (wheel / MANIFEST).write_text(text)
    for _ in range(2):
        assert find_kernel(SPEC, ARCH) is None
    assert caplog.messages == [f"ignored the kernels in {wheel}: {reason}"]


def test_a_python_without_lzma_ignores_wheels_with_one_line(wheel, caplog, monkeypatch):
    monkeypatch.setattr("dxgemm.compiler.wheels.lzma", None)
    assert find_kernel(SPEC, ARCH) is None
    assert caplog.messages == [f"ignored the kernels in {wheel}: this Python has no lzma"]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "of another key", "a folder"])
def test_a_damaged_kernel_is_ignored_with_one_line(wheel, caplog, damage):
    path = wheel / SPEC.key(ARCH)
    content = bytearray(path.read_bytes())
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    elif damage == "of another key":
        write_kernels(wheel / "more", ARCH, {OTHER.key(ARCH): KERNEL})
        (wheel / "more" / OTHER.key(ARCH)).rename(path)
    else:
        content[40] ^= damage == "flipped"
        path.write_bytes(content[: -9 if damage == "truncated" else None])
    for _ in range(2):
        assert find_kernel(SPEC, ARCH) is None
    assert caplog.messages == [f"ignored damaged kernels in {wheel}; install it again"]


def link_requirements(name, folder, done):
    """Link what a package needs to run, without extras, from this environment into another."""
    for text in distribution(name).requires or ():
        needed = Requirement(text)
        if needed.name in done or (needed.marker and not needed.marker.evaluate({"extra": ""})):
            continue
        done.add(needed.name)
        found = distribution(needed.name)
        for top in {path.parts[0] for path in found.files or ()} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(found.locate_file(top))
        link_requirements(needed.name, folder, done)


def copy_of_the_project(folder):
    """Copy what a wheel is made of: setuptools writes into the folder, as other tests may too."""
    left_out = shutil.ignore_patterns("*.egg-info", "__pycache__")
    for name in ("src", "handwritten"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=left_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Python of an environment without compilers, with dxgemm and a few kernels from wheels."""
    pytest.importorskip("setuptools", minversion="77")
    arch = ARCH if simulator_enabled() else device_facts(0).arch
    root = tmp_path_factory.mktemp("wheels")
    wheels, environment = root / "dist", root / "environment"
    offline = {**os.environ, "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    offline |= {"NUMBA_ENABLE_CUDASIM": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    path = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])
    pip = (sys.executable, "-m", "pip", "--quiet")

    def run(*command, path=path):
        environment = {**offline, "PYTHONPATH": path}
        subprocess.run(list(map(str, command)), env=environment, check=True, cwd=ROOT)

    few = ("--arch", arch, "--dtype", "float32", "--implementation", "coalesced", "--jobs", "1")
    run(sys.executable, ROOT / "tools" / "kernel_wheel.py", *few, "--wheel-dir", wheels)
    run(*pip, "wheel", "--no-deps", "--wheel-dir", wheels, copy_of_the_project(root / "project"))
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    (site,) = environment.glob("lib/python*/site-packages")
    made = sorted(wheels.glob("*.whl"))
    assert [path.name.split("-")[:2] for path in made] == [
        ["dxgemm", dxgemm.__version__],
        [package_name(arch), dxgemm.__version__],
    ]
    run(*pip, "--python", python, "install", "--no-deps", *made, path="")
    sys.path.append(str(site))  # for the metadata of the wheels
    link_requirements(package_name(arch), site, set())
    sys.path.remove(str(site))
    return python


def run_installed(python, *arguments, **environment):
    """Run Python without this environment's packages; the user's cache is an empty folder."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    kept["HOME"] = str(python.parent)
    environment = kept | environment
    command = [str(python), *arguments]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


WITHOUT_GPU = """
import sys
from importlib.util import find_spec
import numpy as np
import dxgemm.handwritten
from dxgemm.lower.ahead import kernel_specs
from dxgemm.compiler import find_kernel, obtain_kernel
assert "site-packages" in dxgemm.__file__ and "site-packages" in dxgemm.handwritten.__file__
specs = kernel_specs(("float32",), ("coalesced",), "sm_90a")
assert all(find_kernel(spec, "sm_90a").cubin.startswith(b"\\x7fELF") for spec in specs)
assert not dxgemm.cache_info().kernels
assert not any(map(find_spec, ("numba", "nvmath", "elftools", "cupy")))
for spec, arch in ((kernel_specs(("float32",), ("naive",))[0], "sm_90a"), (specs[0], "sm_80")):
    try:
        obtain_kernel(spec, arch)
    except dxgemm.errors.MissingPackageError as error:
        assert "numba" in str(error) and "pip install 'dxgemm[cu13]'" in str(error)
"""
SIMULATED = """
import numpy as np
import dxgemm
try:
    dxgemm.gemm(np.ones((2, 2), "f"), np.ones((2, 2), "f"))
except dxgemm.errors.MissingPackageError as error:
    print(error)
"""


@pytest.mark.long_build
def test_wheels_run_in_an_environment_without_compilers(installed):
    if simulator_enabled():
        run_installed(installed, "-c", WITHOUT_GPU)
    assert "pip install 'dxgemm[simulator]'" in run_installed(
        installed, "-c", SIMULATED, NUMBA_ENABLE_CUDASIM="1"
    )
    assert "kernels for" in run_installed(installed, "-m", "dxgemm", "info")
    command = "explain", "64", "64", "64", "--gpu=H100", "--all"
    explained = run_installed(installed, "-m", "dxgemm", *command)
    assert "coalesced" in explained


ON_A_GPU = """
import sys
import numpy as np
import dxgemm
a, b = np.arange(12, dtype="f").reshape(3, 4), np.arange(20, dtype="f").reshape(4, 5)
np.testing.assert_array_equal(dxgemm.gemm(a, b, implementation="coalesced"), a @ b)
np.testing.assert_array_equal(dxgemm.gemm(a, b), a @ b)
assert not {"numba", "llvmlite", "nvmath"} & set(sys.modules)
mapped = open("/proc/self/maps").read()
assert not any(name in mapped for name in ("libnvvm", "libnvJitLink", "libnvrtc"))
assert not dxgemm.cache_info().kernels
"""


@pytest.mark.gpu
def test_wheels_compute_without_compilers(installed):
    run_installed(installed, "-W", "ignore", "-c", ON_A_GPU)
