"""Type checkers accept what a call takes, and find what it refuses."""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from typing import get_args

import pytest
from conftest import SOURCES

import dxgemm
from dxgemm import device, distributed, epilogues, errors, inners, reductions
from dxgemm.drop_in import Patch
from dxgemm.handwritten.parts.triangle import TRIANGLES
from dxgemm.problem.arguments import Conjugate, Precision, Triangle
from dxgemm.problem.dtypes import EMULATED, MODULI_COUNTS, PRECISIONS, THREE_PRODUCTS

# A user's script that uses every public function; type checkers must refuse the lines that end in
# "wrong", and no others.
SCRIPT = """
from typing import Any

import numpy as np

import dxgemm
import dxgemm.distributed
import dxgemm.jax
import dxgemm.torch
from dxgemm import device, epilogues, errors, inners, reductions
from dxgemm.epilogues import (
    BoundEpilogue, ColumnVector, Epilogue, Inner, Integer, Matrix, Parameter, RowVector, Scalar,
)

a = np.ones((4, 4), np.float32)
c = np.zeros((4, 4), np.float32)
simulated: bool = dxgemm.simulate(unless_gpu=True)
dxgemm.gemm(a, a, c, 2, 1)
dxgemm.gemm(a, a, alpha=2j)
dxgemm.gemm(a, a, alpha=np.float32(2), beta=np.float64(0.0), precision="tf32")
dxgemm.gemm(a, a, alpha=np.complex64(2j), conjugate="ab", epilogue=epilogues.bias(c[0]))
dxgemm.gemm(a, a, implementation=("tuned", "64x64x8 thread 8x4 stages 4", 2))
dxgemm.gemm(a, a, triangular=("lower", None), mask=None, stream=None, batch_invariant=True)
dxgemm.gemm_symmetric(a, c, triangle="lower", beta=np.float32(1))
dxgemm.gemm_grouped([a, a], [a, a], alpha=[1.0, 2.0])
dxgemm.matmul(a, a, alpha=np.float32(2), precision="emulated14")
dxgemm.einsum("ij,jk", a, a, alpha=np.float32(2), precision="tf32", epilogue=epilogues.relu)
dxgemm.tensordot(a, a, 1, beta=0.0)
contraction: dxgemm.Contraction = dxgemm.explain_einsum("ij,jk", a, a)
copied: int = contraction.copied + len(contraction.products)
plan: dxgemm.Plan = dxgemm.plan(a, a, out=c, precision="3m", batch_invariant=True)
result: Any = plan()
group: dxgemm.GroupedPlan = dxgemm.plan_grouped([a], [a])
prepared: dxgemm.PreparedOperand = dxgemm.prepare(a, precision="emulated")
explanation: dxgemm.Explanation = dxgemm.explain(a, a, alpha=np.float32(2), precision="tf32")
text: str = explanation.choice.implementation + explanation.title + explanation.full()
texts: tuple[object, ...] = (explanation.config, *explanation.steps, *explanation.as_dict())
threads: int | None = explanation.occupancy.threads
work = dxgemm.explain_symmetric(a, triangle="upper", alpha=2.0).work
sizes: tuple[int, int] = (work.m, plan.explain().work.n)
time: float | None = dxgemm.explain_shape(4, 4, 4, precision="tf32").prediction.us
dxgemm.explain_shape(4, 4, 4, np.float32, out_dtype=np.dtype("float32"))
names: list[str] = [implementation.name for implementation in dxgemm.implementations()]
built: int = len(dxgemm.build(arch="sm_90a", implementations=("naive",), jobs=1))
cleared: int = dxgemm.clear_cache() + len(str(dxgemm.cache_info()))
fallen: int = dxgemm.emulation_fallbacks(0)
with dxgemm.patch(dtypes=["float32"], only="faster") as patched:
    print(patched.report())
patched = dxgemm.patch(precision="tf32").enable()
patched.disable()
try:
    dxgemm.gemm(a, a, c)
except (dxgemm.DxgemmError, errors.LaunchError) as error:
    print(error)


@dxgemm.epilogue
def shifted(value: float, row: int, col: int, by: Scalar, seed: Integer, along: RowVector) -> float:
    return value + by


@dxgemm.epilogue(outputs=("kept",))
def kept(value: float, row: int, col: int, x: Matrix, y: ColumnVector) -> tuple[float, float]:
    return value, value


bound: BoundEpilogue = shifted(0.5, 1, c[0]) | epilogues.relu
function: Epilogue = kept
parameters: tuple[Parameter, ...] = kept.parameters
values: Any = epilogues.relu.on_host(a)[0]
bindings: list[BoundEpilogue] = [
    epilogues.bias(c[0]), epilogues.bias_column(c[0]), epilogues.clamp(0, 1), epilogues.scale(2.0),
    epilogues.dequantise(c[0], c[0]), epilogues.dropout(0.5, 1), epilogues.leaky_relu(0.1),
    epilogues.residual(c), epilogues.scale_columns(c[0]), epilogues.scale_rows(c[0]),
]
ready: list[Epilogue] = [
    epilogues.fast_gelu_tanh, epilogues.fast_silu, epilogues.fast_swiglu, epilogues.geglu,
    epilogues.gelu, epilogues.gelu_tanh, epilogues.keep, epilogues.magnitude, epilogues.phase,
    epilogues.sigmoid, epilogues.silu, epilogues.squared_magnitude, epilogues.swiglu,
    epilogues.tanh,
]
numbers: list[float] = [
    epilogues.logistic(1.0), epilogues.normal_cdf(1.0), epilogues.fast_tanh(1.0),
    epilogues.pair_sum(1, 2), epilogues.pair_min(1, 2), epilogues.pair_max(1, 2),
]
for chained in ready:
    dxgemm.gemm(a, a, epilogue=bindings[0] | chained | reductions.argmin(1, fused=False))
reduced: list[reductions.Reduction] = [
    reductions.sum(0), reductions.mean(1, keepdims=True), reductions.norm(), reductions.min(0),
    reductions.max(0), reductions.abs_max(), reductions.logsumexp(1), reductions.argmax(1),
    reductions.smallest(4, 1), reductions.largest(4, 1),
]
quantised: reductions.Quantised = dxgemm.gemm(a, a, epilogue=reductions.quantise_rows("e4m3"))
made: reductions.Quantisation = reductions.quantise_rows(block=128)
found: reductions.Extremes = dxgemm.gemm(a, a, epilogue=reduced[-1])
l1: Inner = dxgemm.inner(lambda x, y: abs(x - y), symmetric=True)


@dxgemm.inner(add="min")
def nearest(x: float, y: float) -> float:
    return x + y


inner_functions: list[Inner] = [
    l1, nearest, inners.canberra, inners.chebyshev, inners.hamming, inners.l1, inners.logsumexp,
    inners.max_min, inners.max_plus, inners.max_plus_int16, inners.min_plus, inners.min_plus_int16,
    inners.squared_euclidean,
]
for each in inner_functions:
    dxgemm.gemm(a, a.T, inner=each)
tile: device.Tile = device.tile("float32", 128, 128, a="row", b="col")
tile.launch(nearest, tile.blocks(4, 4), a, a, c)
queued: Any = tile.plan(nearest, tile.blocks(4, 4), a, a, c)

x: Any = a
y = dxgemm.torch.linear(x, x, x[0], activation="gelu")
y = dxgemm.torch.gemm(y, y, y, alpha=0.5, beta=2.0)
y = dxgemm.torch.scaled_mm(y, y, x, x) + dxgemm.torch.gemm_grouped(y, y, x)
y = dxgemm.torch.scaled_grouped_mm(y, y, x, x, x) + dxgemm.torch.float8_linear(y, y)
y = dxgemm.torch.functional.scaled_mm(y, y, x, None, x, None)
elements, scales = dxgemm.torch.quantise_rows(y)
layer = dxgemm.torch.Linear(4, 4)
layer8 = dxgemm.torch.Float8Linear(4, 4)
dxgemm.torch.derivative(shifted)
with dxgemm.torch.batch_invariant():
    y = dxgemm.torch.matmul(y, y, 2.0)
z = dxgemm.jax.gemm(x, x, alpha=2.0)
y = dxgemm.distributed.all_gather_gemm(y, y, rows=[2, 2])
y = dxgemm.distributed.gemm_reduce_scatter(y, y, method="peer")
y = dxgemm.distributed.gemm_all_reduce(y, y)
sharded = dxgemm.distributed.gemm(x, x)
link: dxgemm.distributed.Link = dxgemm.distributed.NETWORK or dxgemm.distributed.NVLINK
choice: dxgemm.distributed.Choice
choice = dxgemm.distributed.explain("all_gather_gemm", 8, 8, 8, link=link)
reasons: tuple[type[errors.DxgemmError], ...] = (
    errors.ArrayTypeError, errors.BuildError, errors.DeviceMismatchError, errors.DtypeError,
    errors.EpilogueError, errors.GpuUnavailableError, errors.LayoutError,
    errors.MissingOperandError, errors.MissingPackageError, errors.OverlapError,
    errors.PrecisionError, errors.RankError, errors.ReadOnlyError, errors.ScalarError,
    errors.SettingError, errors.ShapeError, errors.StreamError, errors.UnknownGpuError,
    errors.UnknownImplementationError, errors.UnsupportedProblemError, errors.WrongResultError,
)

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


CHECKERS = {
    "mypy": ["--strict", "--config-file", os.devnull],
    "pyright": ["--pythonpath", sys.executable],
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_checker_finds_the_wrong_lines_of_a_script(tmp_path, checker):
    if not find_spec(checker):
        pytest.skip(f"needs {checker}: dxgemm[dev]")
    if subprocess.run([sys.executable, "-m", checker, "--version"], capture_output=True).returncode:
        pytest.skip(f"{checker} fetches itself from npm at its first run, and cannot")
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(SOURCES)]}))
    program = [sys.executable, "-m", checker, *CHECKERS[checker], "script.py"]
    environment = {**os.environ, "MYPYPATH": str(SOURCES)}
    checked = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True)
    lines = re.findall(r"script\.py:(\d+):.* error", checked.stdout)
    wrong = {n for n, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith("# wrong")}
    assert set(map(int, lines)) == wrong, checked.stdout + checked.stderr


def test_the_script_uses_every_public_name():
    used = set(re.findall(r"\w+", SCRIPT))
    names = {
        name
        for module in (dxgemm, device, distributed, epilogues, errors, inners, reductions)
        for name in module.__all__
    }
    for package in ("torch", "jax"):  # which need not be installed
        tree = ast.parse((SOURCES / "dxgemm" / package / "__init__.py").read_text())
        (listed,) = (n.value for n in tree.body if isinstance(n, ast.Assign))
        names.update(ast.literal_eval(listed))
    for kind in (dxgemm.Contraction, dxgemm.Explanation, dxgemm.Plan, Patch):
        names |= {name for name in vars(kind) if name[0] != "_"}
    assert not names - used - {"compute", "multiply"}  # which hooks call


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
