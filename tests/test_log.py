"""The logger: choices, builds and kernels that stand in; printed where DXGEMM_LOG says so."""

import logging

import numpy as np
import pytest

import dxgemm
from dxgemm import log
from dxgemm.call import route
from dxgemm.errors import SettingError

CALL = """
import sys
sys.stderr = sys.stdout
import numpy as np
import dxgemm
a = np.ones((5, 7), np.float32)
for _ in range(2):
    dxgemm.gemm(a, a.T, implementation="coalesced")
"""


def test_each_choice_is_logged_once(caplog):
    caplog.set_level(logging.DEBUG, "dxgemm")
    route.clear_routes()
    a, b = np.ones((3, 4), np.float32), np.ones((4, 2), np.float32)
    for _ in range(2):
        dxgemm.gemm(a, b, implementation="naive")
    (record,) = [r for r in caplog.records if r.name == "dxgemm" and r.levelno == logging.DEBUG]
    assert "gemm 3 x 2 x 4 float32 on" in record.message and "naive" in record.message


BUILD = """
import logging, sys
from dxgemm.choice.registry import find_implementation
from dxgemm.lower.ahead import common_specs
from dxgemm.compiler import obtain_kernel
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
spec = common_specs(find_implementation("naive"), ("float32",))[0]
for _ in range(2):
    obtain_kernel(spec, "sm_90a")
print(spec)
"""


def test_a_build_is_logged_once(run_python, tmp_path):
    line, spec = run_python(BUILD, DXGEMM_CACHE_DIR=str(tmp_path)).splitlines()
    assert line.startswith(f"INFO:dxgemm:built {spec} for sm_90a in ")


@pytest.mark.parametrize("level, lines", [("debug", 1), ("info", 0), ("", 0)])
def test_the_environment_prints_it(run_python, level, lines):
    printed = run_python(CALL, DXGEMM_LOG=level, NUMBA_ENABLE_CUDASIM="1").splitlines()
    assert sum(line.startswith("dxgemm: gemm 5 x 5 x 7 float32 on") for line in printed) == lines


def test_an_unknown_level_is_an_error():
    with pytest.raises(SettingError, match="it can be debug, info, warning"):
        log.print_from("loud")
