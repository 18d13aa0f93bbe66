"""Type checkers accept what a call takes, and find what it refuses."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from typing import get_args

import pytest
from conftest import SOURCES

import dxgemm
from dxgemm.handwritten.parts.triangle import TRIANGLES
from dxgemm.problem.arguments import Conjugate, Precision, Triangle
from dxgemm.problem.dtypes import EMULATED, MODULI_COUNTS, PRECISIONS, THREE_PRODUCTS

# A user's script; mypy must refuse the lines that end in "wrong", and no others.
SCRIPT = """
import numpy as np

import dxgemm
from dxgemm import reductions
from dxgemm.epilogues import bias, relu

a = np.ones((4, 4), np.float32)
c = np.zeros((4, 4), np.float32)
dxgemm.gemm(a, a, c, 2, 1)
dxgemm.gemm(a, a, alpha=2j)
dxgemm.gemm(a, a, alpha=np.float32(2), beta=np.float64(0.0), precision="tf32")
dxgemm.gemm(a, a, alpha=np.complex64(2j), conjugate="ab", epilogue=bias(c[0]) | relu)
dxgemm.gemm(a, a, implementation=("tuned", "64x64x8 thread 8x4 stages 4", 2))
dxgemm.gemm_symmetric(a, c, triangle="lower", beta=np.float32(1))
dxgemm.matmul(a, a, alpha=np.float32(2), precision="emulated14")
dxgemm.einsum("ij,jk", a, a, alpha=np.float32(2), precision="tf32", epilogue=relu)
copied: int = dxgemm.explain_einsum("ij,jk", a, a).copied
plan: dxgemm.Plan = dxgemm.plan(a, a, out=c, precision="3m", batch_invariant=True)
text: str = dxgemm.explain(a, a, alpha=np.float32(2), precision="tf32").choice.implementation
work = dxgemm.explain_symmetric(a, triangle="upper", alpha=2.0).work
sizes: tuple[int, int] = (work.m, plan.explain().work.n)
time: float | None = dxgemm.explain_shape(4, 4, 4, precision="tf32").prediction.us

simulated: bool = dxgemm.simulate(unless_gpu=True)
dxgemm.gemm(a, a, epilogue=relu | reductions.mean(1, fused=False, keepdims=True))
dxgemm.explain_shape(4, 4, 4, np.float32, out_dtype=np.dtype("float32"))
values = relu.on_host(a)[0]

dxgemm.simulate(1, 2)  # wrong
dxgemm.gemm(a, a, precision="tf33")  # wrong
dxgemm.plan(a, a, precision="tf33")  # wrong
dxgemm.explain(a, a, precision="tf33")  # wrong
dxgemm.matmul(a, a, precision="emulated21")  # wrong
dxgemm.einsum("ij,jk", a, a, precision="tf33")  # wrong
dxgemm.explain_shape(4, 4, 4, precision="tf33")  # wrong
dxgemm.gemm(a, a, conjugate="c")  # wrong
dxgemm.gemm(a, a, alpha="2")  # wrong
dxgemm.gemm_symmetric(a, triangle="left")  # wrong
dxgemm.explain_symmetric(a, triangle="left")  # wrong
dxgemm.plan(a, a, tile=128)  # wrong
dxgemm.explain(a)  # wrong
"""


@pytest.mark.skipif(not find_spec("mypy"), reason="needs mypy: dxgemm[dev]")
def test_mypy_finds_the_wrong_lines_of_a_script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    program = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "script.py"]
    environment = {**os.environ, "MYPYPATH": str(SOURCES)}
    checked = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True)
    found = {int(n) for n in re.findall(r"^script\.py:(\d+): error", checked.stdout, re.MULTILINE)}
    lines = enumerate(SCRIPT.splitlines(), 1)
    assert found == {n for n, line in lines if line.endswith("# wrong")}, checked.stdout


def test_types_name_what_calls_take():
    names = {name for names in PRECISIONS.values() for name in names} | {THREE_PRODUCTS}
    assert set(get_args(Precision)) == names | {f"{EMULATED}{count}" for count in MODULI_COUNTS}
    assert get_args(Triangle) == TRIANGLES
    assert set(get_args(Conjugate)) == {"", "a", "b", "ab"}


def test_plans_and_explanations_have_the_options_of_the_call():
    for own, other in (
        (dxgemm.plan, dxgemm.gemm),
        (dxgemm.explain, dxgemm.gemm),
        (dxgemm.explain_symmetric, dxgemm.gemm_symmetric),
        (dxgemm.plan_grouped, dxgemm.gemm_grouped),
    ):
        assert inspect.signature(own).parameters == inspect.signature(other).parameters
        for wrong in ("tile", "is_explained"):
            with pytest.raises(TypeError, match=rf"^{own.__name__}\(\): .* argument '{wrong}'"):
                own(1, 2, **{wrong: True})
        with pytest.raises(TypeError, match=rf"^{own.__name__}\(\): missing a required argument"):
            own()
        with pytest.raises(TypeError, match=rf"^{own.__name__}\(\): too many positional"):
            own(*range(9))
        with pytest.raises(TypeError, match=rf"^{own.__name__}\(\): multiple values .* 'a'"):
            own(1, 2, a=3)
