"""Fixtures of the suite, for a GPU or the simulator, and its count of contract cases.

With a GPU, arrays are CuPy's and sizes real. Without one, numba's simulator runs the kernels on
NumPy arrays: milliseconds a thread block, so sizes are tiny and where a family has thousands of
cases, one of each group is run, in rotation. Of a function with many products, of implementations,
of sizes or of layouts, a twelfth are run there, chosen by their names.
"""

import gc
import os
import re
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from dxgemm.gpu.status import probe

if probe().problem:
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # numba reads it when it is imported

import other_arch
from contract import CASES_PROPERTY, Contract, inability
from oracle.abilities import fitting_layouts
from oracle.kinds import KINDS, numpy_dtype
from oracle.libraries import LIBRARIES, NumpyLibrary
from oracle.padded import Padded

import dxgemm
from dxgemm import errors
from dxgemm.choice import batch_invariant, tables
from dxgemm.choice.legality import _automatic_kernels
from dxgemm.choice.registry import find_implementation
from dxgemm.choice.selection import forget_candidates
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.dtypes import RESULT_DTYPES
from dxgemm.runtime.device import device_facts

SOURCES = Path(dxgemm.__file__).parents[1]

# Architecture whose kernels are tested in place of those of the GPU at hand.
TEST_ARCH = os.environ.get("DXGEMM_TEST_ARCH")

MOST_CASES = 12  # of products of a function that are all run without a GPU

# Marks of tests that are skipped where there is no GPU, and why.
LEFT_TO_A_GPU = {
    "gpu": "needs a GPU",
    "long_build": "compiles for long, which is left to machines with a GPU",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every", type=int, default=1, metavar="N", help="run one test of N, in the order of files"
    )


def pytest_configure(config: pytest.Config) -> None:
    for name, reason in LEFT_TO_A_GPU.items():
        config.addinivalue_line("markers", f"{name}: {reason}")
    if TEST_ARCH:
        if simulator_enabled():
            raise pytest.UsageError("DXGEMM_TEST_ARCH needs a GPU")
        other_arch.pretend(TEST_ARCH)


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Spares pytest tens of thousands of tests that would be dropped: all but a function's first.

    Dropped are tests of arithmetic that an implementation does not compute and, where there is no
    GPU, those that need it.
    """
    calls = metafunc._calls
    left = [call for call in calls if not _is_void(call.params)]
    if simulator_enabled() and any(map(metafunc.definition.get_closest_marker, LEFT_TO_A_GPU)):
        del left[1:]
    calls[:] = left or calls[:1]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drops tests of arithmetic that an implementation does not compute, then takes one of N.

    Where there is no GPU, one test is left of those of a function that need it, to say so.
    """
    items[:] = [item for item in items if not _is_void(_params(item))]
    if simulator_enabled():
        items[:] = _without_a_gpu(items)
    items[:] = items[:: config.getoption("every")]


def _without_a_gpu(items: list[pytest.Item]) -> list[pytest.Item]:
    """Tests that are left where there is no GPU: a twelfth of many products, one that says why."""
    left, functions = [], set()
    counts = Counter(item.nodeid.partition("[")[0] for item in items)
    for item in items:
        reasons = [why for name, why in LEFT_TO_A_GPU.items() if item.get_closest_marker(name)]
        function = item.nodeid.partition("[")[0]
        is_product = {"implementation", "sizes", "orders", "layout"} & {*_params(item)}
        is_of_many = is_product and counts[function] > MOST_CASES
        if is_of_many and zlib.crc32(item.nodeid.encode()) % 12:
            continue
        if reasons and function in functions:
            continue
        if reasons:
            functions.add(function)
            item.add_marker(pytest.mark.skip(reason=reasons[0]))
        left.append(item)
    return left


def pytest_collection_finish() -> None:
    """Spares the collector the tests themselves, which all live to the end."""
    gc.collect()
    gc.freeze()


def _params(item: pytest.Item) -> dict[str, Any]:
    """Parameters of a test, by name."""
    return getattr(getattr(item, "callspec", None), "params", {})


def _is_void(params: dict[str, Any]) -> bool:
    """True for a kind of arithmetic that the implementation of a test does not compute."""
    implementation, kind = params.get("implementation"), params.get("kind")
    is_own = getattr(implementation, "is_own", False)
    return is_own and kind in KINDS and inability(implementation, kind) is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """Skips tests of kernels that the GPU at hand cannot run, or the toolkit may not build."""
    try:
        return (yield)
    except errors.UnsupportedProblemError as refusal:
        if not re.search("it needs compute capability|nvidia-nvjitlink", str(refusal)):
            raise
        pytest.skip(str(refusal))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints how many contract cases each implementation was checked on, and what it refused."""
    checked: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("skipped"):
        if report.when != "call":
            continue
        for name, value in report.user_properties:
            if name == CASES_PROPERTY:
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


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the suite's kernels out of the user's cache.

    DXGEMM_TEST_CACHE_DIR names a folder to keep them in, so that the next run compiles nothing. The
    user's tables of speeds are kept out too.
    """
    kept = os.environ.get("DXGEMM_TEST_CACHE_DIR")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DXGEMM_CACHE_DIR", kept or str(tmp_path_factory.mktemp("kernels")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))
        if simulator_enabled():  # choices for GPUs do not depend on the toolkit at hand
            patch.setattr("dxgemm.choice.implementation.pipeline_faults", tuple)
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
def home_of(home: NumpyLibrary) -> Callable[[str], NumpyLibrary]:
    """Finds `home` for a named implementation; skips where its kernels do not run."""

    def home_of(name: str) -> NumpyLibrary:
        implementation, arch = find_implementation(name), device_facts(0).arch
        if reason := implementation.runs_on(arch) or implementation.build_fault(arch):
            pytest.skip(reason)
        return home

    return home_of


@pytest.fixture(scope="session")
def cupy() -> Any:
    """CuPy, which a test needs itself."""
    return pytest.importorskip("cupy")


@pytest.fixture
def hopper(cupy: Any) -> Any:
    """CuPy, on a GPU that has the kernels over wgmma and TMA."""
    if device_facts(0).arch != "sm_90a":
        pytest.skip("needs a GPU of compute capability 9.0")
    return cupy


@pytest.fixture
def make(home: NumpyLibrary) -> Callable[..., tuple[np.ndarray, Padded]]:
    """Operands of small integers, whose sums are exact in every arithmetic, between guard pads."""
    rng = np.random.default_rng(0)

    def make(
        shape: tuple[int, ...], dtype: str, layout: str = "row", low: int = -3, high: int = 4
    ) -> tuple[np.ndarray, Padded]:
        values = rng.integers(low, high, shape).astype(numpy_dtype(dtype))
        return values, Padded(home, values, layout)

    return make


@pytest.fixture
def make_operands(make: Callable[..., Any], implementation: Any) -> Callable[..., Any]:
    """a and b as an implementation takes them, each with its copy between guards."""

    def make_operands(kind: str, size: tuple[int, int, int]) -> tuple[Any, Any]:
        reason = inability(implementation, kind)
        if reason is not None:
            pytest.skip(reason)
        m, n, k = size
        dtype = KINDS[kind].dtype
        a_layout, b_layout, _ = fitting_layouts(implementation, kind)
        return make((m, k), dtype, a_layout), make((k, n), dtype, b_layout)

    return make_operands


@pytest.fixture
def contract(
    implementation: Any, home: NumpyLibrary, record_property: Callable[[str, object], None]
) -> Contract:
    """The contract check of one implementation."""
    return Contract(implementation, home, record_property)


@pytest.fixture
def kind() -> str:
    """The kind of arithmetic, for tests that are not parametrised over kinds."""
    return "float32"


@pytest.fixture
def multiply(implementation: Any, home: NumpyLibrary, kind: str) -> Callable[..., np.ndarray]:
    """gemm as a function of NumPy arrays, which one implementation computes on padded copies.

    Skips where an implementation of dxgemm does not compute the kind, or a baseline declines.
    """
    if implementation.is_own:
        reason = inability(implementation, kind)
        if reason is not None:
            pytest.skip(reason)
    wanted, layouts = KINDS[kind], fitting_layouts(implementation, kind)

    def multiply(
        a: np.ndarray,
        b: np.ndarray,
        c: np.ndarray | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> np.ndarray:
        if c is None and wanted.out_dtype != RESULT_DTYPES[wanted.dtype][0]:
            batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            shape = (*batch, a.shape[-2], b.shape[-1])
            c = np.full(shape, np.nan, numpy_dtype(wanted.out_dtype))
        padded = [
            Padded(home, operand, layout)
            for operand, layout in zip((a, b, c), layouts, strict=True)
            if operand is not None
        ]
        arrays = [operand.array for operand in padded]
        try:
            result = dxgemm.gemm(
                *arrays,
                alpha=alpha,
                beta=beta,
                implementation=implementation.name,
                precision=wanted.precision,
            )
        except errors.UnsupportedProblemError as refusal:
            assert not implementation.is_own, refusal
            pytest.skip(str(refusal))
        for operand in padded[:2]:
            operand.assert_unchanged()
        return home.fetch(result) if c is None else padded[2].fetch()

    return multiply


@pytest.fixture
def configs_of_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Implementations have the configs of a GPU, for decisions and predictions without one.

    No measurement of a GPU takes part: there are no tables of speeds.
    """
    for module in ("implementation", "kernel_files"):
        monkeypatch.setattr(f"dxgemm.choice.{module}.simulator_enabled", lambda: False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    monkeypatch.setattr(tables, "PACKAGED", tmp_path / "packaged")
    _forget_configs()
    yield
    monkeypatch.undo()
    _forget_configs()


def _forget_configs() -> None:
    """Clear the caches of earlier choices."""
    batch_invariant._best_for_all.cache_clear()
    _automatic_kernels.cache_clear()
    forget_candidates()


@pytest.fixture
def give_table(configs_of_a_gpu: None) -> Callable[..., Path]:
    """Writes the user's table for a device, beside which there are no others; to its folder."""

    def give_table(device: Any, speeds: Any, corrections: Any = None) -> Path:
        counted, weighed = (
            {key: (entry, 1) for key, entry in entries.items()}
            for entries in (speeds, corrections or {})
        )
        folder = tables.own_folder(device)
        tables.write_table(folder, tables.Chip.of(device), counted, weighed, {})
        _forget_configs()
        return folder

    return give_table


@pytest.fixture(scope="session")
def run_python() -> Callable[..., str]:
    """Runs a program in a fresh interpreter, without the simulator unless asked, to its output."""

    def run_python(program: str, *arguments: str, **environment: str) -> str:
        inherited = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"}
        path = [environment.pop("PYTHONPATH", ""), str(SOURCES), inherited.get("PYTHONPATH", "")]
        finished = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env={**inherited, **environment, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            capture_output=True,
            text=True,
            timeout=900,  # compiling every kernel takes minutes on a busy machine
            check=False,
        )
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    return run_python


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[], str]], str]:
    """Makes a text, by its name, that all workers of a test run share: the first one makes it."""

    def once(name: str, make: Callable[[], str]) -> str:
        if "PYTEST_XDIST_WORKER" not in os.environ:
            return make()
        kept = tmp_path_factory.getbasetemp().parent / name
        with FileLock(f"{kept}.lock"):
            if not kept.exists():
                kept.write_text(make())
        return kept.read_text()

    return once
