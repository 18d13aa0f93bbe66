"""NVTX ranges: one for each launched kernel, and only where they are asked for."""

import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

import dxgemm
from dxgemm.call.route import clear_routes
from dxgemm.runtime import nvtx
from dxgemm.runtime.nvtx import RangedLaunch


@pytest.fixture
def ranges(monkeypatch):
    """Names of the ranges, and "end" after each; an `nvtx` package is made up."""
    names = []

    @contextmanager
    def annotate(name, domain):
        assert domain == "dxgemm"
        names.append(name)
        yield
        names.append("end")

    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(annotate=annotate))
    monkeypatch.setattr(nvtx, "find_spec", lambda name: name)
    nvtx._range_maker.cache_clear()
    clear_routes()
    yield names
    nvtx._range_maker.cache_clear()
    clear_routes()


@pytest.fixture
def a(home):
    return home.send(np.ones((3, 5), np.float32))


def test_a_launch_has_a_range_of_its_kernel_and_problem(ranges, a, monkeypatch):
    monkeypatch.setenv("DXGEMM_NVTX", "1")
    dxgemm.gemm(a, a.T, implementation="coalesced")
    step = dxgemm.plan(a, a.T, implementation="naive")
    step()
    first, _, second, _ = ranges
    assert first.startswith("coalesced ") and first.endswith(" float32 unit: 3 x 3 x 5")
    assert second.startswith("naive ") and ranges[1] == ranges[3] == "end"


@pytest.mark.parametrize("setting", [None, "", "0"])
def test_without_the_setting_launches_stay_as_they_are(ranges, a, monkeypatch, setting):
    if setting is None:
        monkeypatch.delenv("DXGEMM_NVTX", raising=False)
    else:
        monkeypatch.setenv("DXGEMM_NVTX", setting)
    step = dxgemm.plan(a, a.T, implementation="coalesced")
    step()
    assert ranges == [] and not isinstance(step.route.launch, RangedLaunch)


def test_without_a_package_there_is_an_error(ranges, a, monkeypatch):
    monkeypatch.setenv("DXGEMM_NVTX", "1")
    monkeypatch.setattr(nvtx, "find_spec", lambda name: None)
    with pytest.raises(dxgemm.errors.MissingPackageError, match="pip install nvtx"):
        dxgemm.gemm(a, a.T, implementation="coalesced")


def test_cupy_makes_ranges_too(ranges, cupy, a, monkeypatch):
    monkeypatch.setattr(nvtx, "find_spec", lambda name: name == "cupyx" or None)
    monkeypatch.setenv("DXGEMM_NVTX", "1")
    with nvtx._range_maker()("a range"):
        dxgemm.gemm(a, a.T, implementation="coalesced")
