"""G18, the part that needs no GPU: what is wrong with the machine is said in one sentence."""

import ctypes
import re

import pytest

from dxgemm.gpu import status as _gpu


class FakeDriver:
    """libcuda as far as `probe` calls it."""

    def __init__(self, version, devices, error=0):
        self._version = version
        self._devices = devices
        self._error = error

    def cuDriverGetVersion(self, pointer):
        pointer._obj.value = self._version
        return 0

    def cuInit(self, flags):
        return self._error

    def cuDeviceGetCount(self, pointer):
        pointer._obj.value = self._devices
        return 0


@pytest.mark.parametrize(
    "driver, extra, problem",
    [
        (FakeDriver(13000, 1), "cu13", None),
        (FakeDriver(12040, 2), "cu12", None),
        (FakeDriver(11080, 1), None, "runs CUDA 11.8.*needs 12.0.*update the driver"),
        (FakeDriver(13000, 0), None, "shows no GPU.*CUDA_VISIBLE_DEVICES"),
        (FakeDriver(13000, 1, error=100), None, "CUDA error 100"),
    ],
    ids=["cuda13", "cuda12", "too old", "no device", "init fails"],
)
def test_probe_says_what_is_wrong_and_the_way_out(monkeypatch, driver, extra, problem):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    status = _gpu.probe()
    assert status.extra == extra
    if problem is None:
        assert status.problem is None and status.device_count > 0
    else:
        assert re.search(problem, status.problem)


def test_probe_without_a_driver(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    status = _gpu.probe()
    assert status.driver_version is None and status.extra is None
    assert "install the NVIDIA driver" in status.problem


def test_gemm_without_a_gpu_names_the_problem_and_the_simulator(run_python):
    program = """
import ctypes, numpy

def missing(name, *arguments, load=ctypes.CDLL, **options):
    if "cuda" in str(name):
        raise OSError(name)
    return load(name, *arguments, **options)

ctypes.CDLL = missing
import dxgemm
a = numpy.ones((2, 2), "float32")
try:
    dxgemm.gemm(a, a)
except dxgemm.errors.GpuUnavailableError as error:
    assert "driver" in str(error) and "NUMBA_ENABLE_CUDASIM=1" in str(error), error
else:
    raise SystemExit("no error")
"""
    run_python(program)
