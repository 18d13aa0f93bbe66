"""Imports point down the layers only, and `import dxgemm` stays light."""

import ast
import os
import re
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import dxgemm
from dxgemm.handwritten import ROOMS

PACKAGE = Path(dxgemm.__file__).parent
ORACLE = Path(__file__).parent / "oracle"

# From the bottom up: a module imports from lower lines only; a package also from itself.
LAYERS = (
    ("errors", "handwritten", "version"),
    ("log",),
    ("gpu",),
    ("problem",),
    ("epilogues",),
    ("compiler", "inners", "reductions"),
    ("runtime",),
    ("cublasdx",),
    ("choice",),
    ("lower",),
    ("call",),
    ("api", "builds", "contractions", "device", "groups"),
    ("drop_in",),
    ("__init__",),
    ("tuning",),
    ("cli", "jax", "torch"),
    ("distributed",),
    ("__main__",),
)
LEVELS = {name: level for level, names in enumerate(LAYERS) for name in names}

ORACLE_MAY_IMPORT = {"problem", "errors"}
# llvmlite comes with numba, whose intrinsics are written in it.
KERNEL_FILES_MAY_IMPORT = {
    *sys.stdlib_module_names,
    "numpy",
    "numba",
    "llvmlite",
    "dxgemm.handwritten",
}
MODULE_NAME = r"dxgemm(\.\w+)+"
HEAVY = ("numba", "llvmlite", "nvmath", "cupy", "jax", "torch", "cuda", "scipy", "typer", "rich")


def source_files():
    """(path, dotted name inside the package) of every source file, followed links included."""
    for folder, _, files in os.walk(PACKAGE, followlinks=True):
        for path in (Path(folder, file) for file in sorted(files) if file.endswith(".py")):
            yield path, ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


@cache
def imported_names(path):
    """The dotted names a file imports anywhere, in functions too, `a.b` for `from a import b`.

    A string that names a module counts as one: what it is for is to import it.
    """
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and re.fullmatch(MODULE_NAME, str(node.value)):
            names.add(node.value)
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def own_unit(name):
    """The module or package of dxgemm that an imported name belongs to, None if it is foreign."""
    root, _, rest = name.partition(".")
    part = rest.partition(".")[0]
    if root != "dxgemm":
        return None
    is_unit = part and ((PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").exists())
    return part if is_unit else "__init__"


FILES = [*source_files()]
HANDWRITTEN = [(path, name) for path, name in FILES if name.startswith("handwritten")]


def test_imports_point_down():
    for path, name in FILES:
        unit = name.split(".")[0]
        imported = {own_unit(other) for other in imported_names(path)} - {None, unit}
        assert unit in LEVELS, f"{name} has no layer: say in LAYERS where it belongs"
        for other in imported:
            assert LEVELS.get(other, len(LAYERS)) < LEVELS[unit], f"{name} imports {other}"


def test_the_oracle_shares_no_arithmetic_with_what_it_judges():
    for path in ORACLE.glob("*.py"):
        imported = {own_unit(other) for other in imported_names(path)} - {None}
        assert imported <= ORACLE_MAY_IMPORT, path


def test_nothing_imports_tests_or_benchmarks():
    for path, name in FILES:
        roots = {other.partition(".")[0] for other in imported_names(path)}
        assert not roots & {"tests", "oracle", "benchmarks", "pytest", "conftest"}, name


def test_kernel_files_can_be_lifted_out():
    for path, name in HANDWRITTEN:
        for other in imported_names(path):
            root = other.partition(".")[0]
            is_own = other.startswith("dxgemm.handwritten")
            assert is_own or root in KERNEL_FILES_MAY_IMPORT, f"{name} imports {other}"


def test_a_kernel_builds_on_frames_and_frames_on_parts():
    rooms = [f"handwritten.{room}." for room in ROOMS]

    def room(dotted):
        return max((r for r in rooms if f"{dotted}.".startswith(r)), key=len, default=rooms[0])

    for path, name in HANDWRITTEN:
        for other in imported_names(path):
            other = other.removeprefix("dxgemm.")
            assert rooms.index(room(other)) <= rooms.index(room(name)), f"{name} imports {other}"


def test_only_cublasdx_imports_nvmath():
    for path, name in FILES:
        roots = {other.partition(".")[0] for other in imported_names(path)}
        assert "nvmath" not in roots or name.startswith("cublasdx"), name


def test_no_cycles_inside_a_package():
    files = {name: path for path, name in source_files()}
    own = {f"dxgemm.{name}" for name in files}
    edges = {}
    for name, path in files.items():
        if not name.endswith("__init__"):
            candidates = imported_names(path)
            candidates = candidates | {other.rpartition(".")[0] for other in candidates}
            edges[f"dxgemm.{name}"] = candidates & own
    while edges:
        leaves = [name for name, targets in edges.items() if not targets & edges.keys()]
        assert leaves, f"these import each other: {sorted(edges)}"
        for name in leaves:
            del edges[name]


def test_importing_dxgemm_imports_nothing_heavy(run_python):
    program = f"""
import sys, dxgemm
assert "numpy" not in sys.modules and "dxgemm.api" not in sys.modules
dxgemm.gemm
assert not set({HEAVY}) & set(sys.modules), set({HEAVY}) & set(sys.modules)
dxgemm.implementations()
assert "numba" not in sys.modules
"""
    run_python(program)


def test_a_public_name_is_imported_on_its_first_use(run_python):
    program = """
import dxgemm
from dxgemm.handwritten import ROOMS
assert set(dxgemm.__all__) <= set(dir(dxgemm)) and "gemm" not in vars(dxgemm)
for name in dxgemm.__all__:
    assert getattr(dxgemm, name) is getattr(dxgemm, name) is vars(dxgemm)[name], name
assert dxgemm.gemm.__module__ == "dxgemm.api"
assert not hasattr(dxgemm, "gem")
"""
    run_python(program)


@pytest.mark.parametrize(
    "name",
    ["", "epilogues", "reductions", "inners", "errors", "device", "distributed", "torch", "jax"],
)
def test_dir_lists_the_public_names_alone(name):
    if name in ("torch", "jax"):
        pytest.importorskip(name)
    module = import_module(f"dxgemm.{name}" if name else "dxgemm")
    assert dir(module) == sorted(module.__all__)
    if name != "distributed":  # which needs torch
        assert not [entry for entry in dir(module) if not hasattr(module, entry)]


@pytest.mark.parametrize(
    ("before", "set_to", "after"),
    [
        ("", None, "dxgemm.simulate() and dxgemm.simulate(unless_gpu=True)"),
        ("", "0", "not dxgemm.simulate(unless_gpu=True) and dxgemm.simulate()"),
        ("with pytest.raises(errors.GpuUnavailableError): dxgemm.gemm(a, a)", None,
         "dxgemm.simulate()"),
        ("import numba", "1", "dxgemm.simulate()"),
    ],
)  # fmt: skip
def test_simulate_enables_the_simulator(run_python, before, set_to, after):
    environment = {} if set_to is None else {"NUMBA_ENABLE_CUDASIM": set_to}
    program = f"""
import os
import numpy as np, pytest, dxgemm
from dxgemm import errors
a = np.ones((2, 2), np.float32)
{before}
assert {after}
assert os.environ["NUMBA_ENABLE_CUDASIM"] == "1"
assert (dxgemm.gemm(a, a) == 2).all()
"""
    run_python(program, CUDA_VISIBLE_DEVICES="", **environment)


def test_simulate_refuses_what_comes_too_late(run_python):
    run_python("""
import os
import numba, pytest, dxgemm
from dxgemm import errors
with pytest.raises(errors.LaunchError, match="numba was imported without"):
    dxgemm.simulate()
assert "NUMBA_ENABLE_CUDASIM" not in os.environ
os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
with pytest.raises(errors.LaunchError, match="numba was imported without"):
    dxgemm.simulate(unless_gpu=True)
with pytest.raises(errors.SettingError, match="^simulate: unless_gpu is 'yes'"):
    dxgemm.simulate(unless_gpu="yes")
""")


def test_the_operators_of_torch_name_what_is_missing(run_python):
    program = """
import sys
sys.modules["torch"] = None
import dxgemm
from dxgemm.handwritten import ROOMS
try:
    import dxgemm.torch
except dxgemm.errors.MissingPackageError as error:
    assert "pip install 'dxgemm[torch]'" in str(error)
else:
    raise SystemExit("imported without torch")
"""
    run_python(program)


def test_handwritten_refuses_a_second_name(run_python):
    program = """
import sys
sys.path.insert(0, sys.argv[1])
try:
    import handwritten
except ImportError as error:
    assert "dxgemm.handwritten" in str(error)
else:
    raise SystemExit("imported twice")
"""
    run_python(program, str((PACKAGE / "handwritten").resolve().parent))
