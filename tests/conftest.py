"""Where the suite runs, what it runs over, and how many contract cases it checked.

With a GPU, arrays are CuPy's and sizes real. Without one, numba's simulator runs the kernels on
NumPy arrays; it takes about 10 ms a thread block, so sizes are tiny and of each group of cases one
is run, in rotation.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dxgemm._gpu import probe

if probe().problem:
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # numba reads it when it is imported

import dxgemm
from dxgemm import errors
from dxgemm._gpu import simulator_enabled
from dxgemm.testing.cases import Group
from dxgemm.testing.check import check
from dxgemm.testing.libraries import LIBRARIES, NumpyLibrary

CASES_PROPERTY = "contract_cases"
SOURCES = Path(dxgemm.__file__).parents[1]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a GPU, not the simulator")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if simulator_enabled():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints how many contract cases each implementation was checked on, and what it refused."""
    checked: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("skipped"):
        for name, value in report.user_properties:
            if name == CASES_PROPERTY and report.when == "call":
                implementation, ran, declined = value
                checked[implementation] += ran
                refused[implementation] += declined
    if checked:
        terminalreporter.section("contract cases")
    for implementation in sorted(checked):
        terminalreporter.write_line(
            f"{implementation}: {checked[implementation]:,} checked, "
            f"{refused[implementation]:,} refused with a reason"
        )


class Contract:
    """Checks groups of cases on one implementation, and refusals against its right to refuse."""

    def __init__(self, implementation: Any, library: NumpyLibrary, record: Callable) -> None:
        self.implementation = implementation
        self.library = library
        self._record = record

    def __call__(
        self,
        groups: Iterable[Group],
        *,
        limit: float = 1.0,
        config: Any = None,
        thin: bool = False,
    ) -> None:
        """Asserts that all cases are right.

        Args:
            groups: cases in groups that share a product.
            limit: 1 for the acceptance rule, 0 for bit-exact data.
            config: a config of the implementation to force.
            thin: whether the simulator may run one case of each group instead of all.
        """
        name = self.implementation.name
        chosen = name if config is None else (name, config)

        def gemm(a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
            return dxgemm.gemm(a, b, c, alpha, beta, implementation=chosen)

        ran, refused = 0, []
        for index, group in enumerate(groups):
            if thin and simulator_enabled():
                group = (group[(7 * index + group[0].m) % len(group)],)
            refused += check(
                group, gemm, self.library, limit=limit, refusal=errors.UnsupportedProblemError
            )
            ran += len(group)
        assert not (refused and self.implementation.is_own), refused[0]
        self._record(CASES_PROPERTY, (name, ran - len(refused), len(refused)))
        if len(refused) == ran:
            pytest.skip(refused[0])


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the suite's kernels out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DXGEMM_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        yield


@pytest.fixture(params=dxgemm.implementations(), ids=lambda implementation: implementation.name)
def implementation(request: pytest.FixtureRequest) -> Any:
    """Every registered implementation in turn."""
    return request.param


@pytest.fixture(scope="session")
def home() -> NumpyLibrary:
    """The library whose arrays kernels run on without a copy: CuPy, or NumPy on the simulator."""
    return LIBRARIES["numpy" if simulator_enabled() else "cupy"]


@pytest.fixture
def contract(
    implementation: Any, home: NumpyLibrary, record_property: Callable[[str, object], None]
) -> Contract:
    """The contract check of one implementation."""
    return Contract(implementation, home, record_property)


@pytest.fixture
def multiply(implementation: Any, home: NumpyLibrary) -> Callable[..., np.ndarray]:
    """gemm as a function of NumPy arrays, whose copies on the device one implementation uses."""

    def multiply(
        a: np.ndarray,
        b: np.ndarray,
        c: np.ndarray | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> np.ndarray:
        sent = [None if operand is None else home.send(operand) for operand in (a, b, c)]
        try:
            result = dxgemm.gemm(*sent, alpha, beta, implementation=implementation.name)
        except errors.UnsupportedProblemError as refusal:
            assert not implementation.is_own, refusal
            pytest.skip(str(refusal))
        return home.fetch(result)

    return multiply


@pytest.fixture(scope="session")
def run_python() -> Callable[..., str]:
    """Runs a program in a fresh interpreter, without the simulator unless asked, to its output."""

    def run_python(program: str, *arguments: str, **environment: str) -> str:
        inherited = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"}
        finished = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env={**inherited, "PYTHONPATH": str(SOURCES), **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    return run_python
