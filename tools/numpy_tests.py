"""NumPy's shipped tests of products, with CuPy's arrays in NumPy's place, and CuPy's own.

NumPy's test modules are imported as they are. Then the name `np` in them becomes CuPy, with NumPy
for what CuPy lacks, and the assertions of `numpy.testing` take copies on the host. CuPy's tests,
from its source package, stay as they are. Each test is run twice, without the patch and with it.
What fails without it is a difference between CuPy and NumPy, and counts as skipped.
"""

from __future__ import annotations

import inspect
import io
from contextlib import redirect_stderr, redirect_stdout
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest

import dxgemm

ARRAYS, EINSUM, LINALG = (
    "_core/tests/test_multiarray.py",
    "_core/tests/test_einsum.py",
    "linalg/tests/test_linalg.py",
)
# Test modules, and names of tests that have to do with products.
SUBJECTS = (
    (ARRAYS, "atmul"),
    (ARRAYS, "(Dot or TestInner or TestVdot) and not huge"),
    (EINSUM, "sums"),
    (EINSUM, "not sums"),
    (LINALG, "MatrixPower"),
    (LINALG, "TestSolve or TestInv"),
    (LINALG, "TestPinv or TestLstsq"),
    (LINALG, "MultiDot or matmul or outer or vecdot or tensordot"),
)
# The same of CuPy's tests.
CUPY_SUBJECTS = (
    ("math_tests/test_matmul.py", "not ComputeTypes"),
    ("math_tests/test_matmul.py", "ComputeTypes"),
    ("linalg_tests/test_product.py", "TestProduct"),
    ("linalg_tests/test_product.py", "not TestProduct"),
    ("linalg_tests/test_einsum.py", "Error or Unary or Ternary or Large"),
    ("linalg_tests/test_einsum.py", "ListArgEinSum or Binary"),
    ("linalg_tests/test_solve.py", "Pinv or Lstsq or Tensor or Inv"),
)


class Stand:
    """CuPy in the place of a module of NumPy: names that it lacks are NumPy's."""

    def __init__(self, own: Any, theirs: ModuleType) -> None:
        self._own, self._theirs = own, theirs

    def __getattr__(self, name: str) -> Any:
        theirs = getattr(self._theirs, name)
        if name == "testing":
            return _Testing()
        if isinstance(theirs, type) and issubclass(theirs, numpy.generic | numpy.dtype):
            return theirs
        own = getattr(self._own, name, theirs)
        return Stand(own, theirs) if isinstance(theirs, ModuleType) else own


class _Testing:
    def __getattr__(self, name: str) -> Any:
        return _on_host(getattr(numpy.testing, name))


def _fetched(value: Any) -> Any:
    """A copy on the host of arrays, also of those in lists and tuples."""
    if hasattr(value, "get") and hasattr(value, "__cuda_array_interface__"):
        return value.get()
    if type(value) in (list, tuple):
        return type(value)(map(_fetched, value))
    return value


def _on_host(function: Any) -> Any:
    """Assertion that takes copies on the host."""
    if not inspect.isfunction(function):
        return function

    @wraps(function)
    def asserted(*arguments: Any, **named: Any) -> Any:
        if arguments and callable(arguments[0]):  # such as assert_raises
            return function(*arguments, **named)
        return function(*map(_fetched, arguments), **named)

    return asserted


def adapt(module: ModuleType, library: Any) -> None:
    """Put a library in NumPy's place in a module of tests."""
    names = vars(module)
    stand = Stand(library, numpy)
    for name, value in [*names.items()]:
        home = getattr(value, "__module__", None) or ""
        if value is numpy:
            names[name] = stand
        elif home.startswith("numpy.testing"):
            names[name] = _on_host(value)
        elif name in ("multi_dot", "matrix_power", "norm", "matrix_rank"):
            names[name] = getattr(stand.linalg, name)
        elif value is getattr(numpy, name, None) and not isinstance(value, type):
            names[name] = getattr(stand, name)
        elif isinstance(value, type) and home == module.__name__:
            for attribute, function in [*vars(value).items()]:
                if function is getattr(numpy, attribute, value):
                    setattr(value, attribute, _looked_up(stand, attribute))


def _looked_up(stand: Any, name: str) -> Any:
    """Function of the stand-in that is looked up at each call, as it may be patched."""
    return staticmethod(lambda *arguments, **named: getattr(stand, name)(*arguments, **named))


class _Outcomes:
    """Plugin that adapts the modules to a library, if there is one, and keeps the outcomes."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.found: dict[str, tuple[str, str]] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for module in {item.module for item in items} if self._library else ():
            adapt(module, self._library)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            crash = getattr(report.longrepr, "reprcrash", None)
            text = (crash.message if crash else str(report.longrepr or "")).strip()
            self.found[report.nodeid] = report.outcome, text.partition("\n")[0][:200]


def _outcomes(file: Path, chosen: str, library: Any) -> dict[str, tuple[str, str]]:
    plugin = _Outcomes(library)
    options = ["-q", "--noconftest", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts="]
    options += [f"--rootdir={file.parent}", "-c", "/dev/null"]
    options += ["-W", "ignore", "-k", chosen]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        pytest.main([str(file), *options], plugins=[plugin])
    return plugin.found


def run(path: str, chosen: str, library: Any = None) -> dict[str, Any]:
    """Run tests of NumPy without the patch and with it; returns counts, and what failed.

    Args:
        path: the module, in NumPy's package.
        chosen: names of the tests, as pytest's -k takes them.
        library: stands for CuPy; None for that.
    """
    if library is None:
        import cupy as library
    return compare(Path(numpy.__file__).parent / path, chosen, library)


def compare(file: Path, chosen: str, library: Any = None) -> dict[str, Any]:
    """`run` of any module, which is left as it is without a library."""
    plain = _outcomes(file, chosen, library)
    patch = dxgemm.patch(only=None)
    with patch:
        patched = _outcomes(file, chosen, library)
    counts: dict[str, Any] = {"passed": 0, "skipped": {}, "failed": []}
    for name, (outcome, text) in patched.items():
        was, why = plain.get(name, ("missing", ""))
        if was != "passed":
            reason = f"CuPy alone: {why.replace(':', ' ').partition(' ')[0]}"
            reason = "skipped by the library" if was == "skipped" else reason
            counts["skipped"][reason] = counts["skipped"].get(reason, 0) + 1
        elif outcome == "passed":
            counts["passed"] += 1
        else:
            counts["failed"].append(f"{name.rpartition('/')[2]}: {text}")
    report = patch.report()
    counts["routed"] = sum(report.routed.values())
    counts["fell_through"] = {f"{name}: {why}": n for (name, why), n in report.fell_through.items()}
    return counts
