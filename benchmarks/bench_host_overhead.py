"""Host time of one call, beside what CuPy and torch take for theirs.

The matrices are so small that the GPU is done before the host: the time is what a call costs
before it returns. All calls of one dtype and size are interleaved, and the GPU is waited for
outside the clock. The launches of an empty kernel are what no call can undercut. The choice of a
kernel is timed by itself, which a call pays once for each problem: of one problem; of random single
products in a row; and of random batches and epilogues. These problems are made right before the
choice, outside the clock, as a call makes its own. `routes[key]` is what finds the choice again.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import count, islice
from timeit import Timer
from typing import Any, NamedTuple

import numpy as np
import pytest
from interleave import replay, replay_clock

import dxgemm
from dxgemm._dispatch import choose
from dxgemm._gpu import simulator_enabled
from dxgemm._problem import Problem, contiguous_problem
from dxgemm._route import routes
from dxgemm.runtime.device import device_facts
from dxgemm.testing import inputs
from dxgemm.tuning.sampling import interleave
from dxgemm.tuning.trees import Part

SMOKE = simulator_enabled()
if not SMOKE:
    import cupy
    from cuda.bindings import driver
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

ROUNDS = 1 if SMOKE else 200
CALLS = 1 if SMOKE else 50  # a round: fewer launches than the driver queues without blocking
SIZES = [4] if SMOKE else [32, 64]
GEMM_TARGET_US = 12.0
PLAN_TARGET_US = 6.0
CHOICE_TARGET_US = 3.0
ROUTE_TARGET_US = 1.0
UNSEEN = 10**6  # of a part of problems that no tree was grown from

# Python expressions to time, with operands a, b and c of a library.
DXGEMM_CALLS = {
    "gemm(a, b, out=c)": GEMM_TARGET_US,
    "gemm(a, b, c, beta=1)": GEMM_TARGET_US,
    "gemm(a, b)": None,
    "plan()": PLAN_TARGET_US,
}
LIBRARY_CALLS = {
    "numpy": ["numpy.matmul(a, b, out=c)"],
    "cupy": ["cupy.matmul(a, b, out=c)"],
    "torch": ["torch.mm(a, b, out=c)", "torch.addmm(c, a, b, out=c)"],
}
LAUNCHES = {
    "cuda.core": "launch(stream, config, kernel)",
    "driver": "cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)",
}
CHOICES = {
    "choose(problem, device)": CHOICE_TARGET_US,
    "choose(next(products), device)": CHOICE_TARGET_US,
    "choose(next(varied), device)": CHOICE_TARGET_US,
    "routes[key]": ROUTE_TARGET_US,
}
RANDOM_PROBLEMS = {"products": False, "varied": True}  # whether they are varied
LIBRARIES = ["numpy"] if SMOKE else [name for name in ("cupy", "torch") if find_spec(name)]

pytestmark = pytest.mark.benchmark(timer=replay_clock)


class Variant(NamedTuple):
    """An expression to time, and the library that its operands or its launch belong to."""

    library: str
    call: str
    target_us: float | None = None

    def __str__(self) -> str:
        return f"{self.library}: {self.call}"


def list_variants() -> list[Variant]:
    variants = []
    for library in LIBRARIES:
        variants += [Variant(library, *row) for row in DXGEMM_CALLS.items()]
        variants += [Variant(library, call) for call in LIBRARY_CALLS[library]]
    variants += [Variant("dxgemm", *row) for row in CHOICES.items()]
    return variants if SMOKE else variants + [Variant(*row) for row in LAUNCHES.items()]


VARIANTS = list_variants()


def operand_names(library: str, a: np.ndarray, b: np.ndarray) -> dict[str, Any]:
    """What the expressions on arrays of `library` refer to."""
    module = import_module(library)

    def upload(array: np.ndarray) -> Any:
        return module.from_numpy(array).cuda() if library == "torch" else module.array(array)

    a, b, c = upload(a), upload(b), upload(np.zeros((a.shape[0], b.shape[1]), a.dtype))
    plan = dxgemm.plan(a, b, out=c)
    return {"a": a, "b": b, "c": c, "gemm": dxgemm.gemm, "plan": plan, library: module}


def launch_names() -> dict[str, Any]:
    """What the expressions that launch an empty kernel refer to."""
    device = Device()
    device.set_current()
    options = ProgramOptions(arch=f"sm_{device.arch}")
    program = Program('extern "C" __global__ void empty() {}', "c++", options)
    kernel = program.compile("cubin").get_kernel("empty")
    return {
        "launch": launch,
        "stream": device.default_stream,
        "config": LaunchConfig(grid=1, block=1),
        "kernel": kernel,
        "cuLaunchKernel": driver.cuLaunchKernel,
        "function": driver.CUfunction(int(kernel.handle)),
    }


def choice_names(a: np.ndarray, b: np.ndarray) -> dict[str, Any]:
    """What the expressions that choose a kernel refer to."""
    (m, k), n, dtype = a.shape, b.shape[1], a.dtype.name
    dxgemm.plan(a, b)
    return {
        "choose": choose,
        "problem": contiguous_problem(dtype, m, n, k),
        "device": device_facts(0),
        "routes": routes,
        "key": next(reversed(routes)),
    }


def random_problems(dtype: str, is_varied: bool) -> Iterator[Problem]:
    """Without end, others than the decision trees have learned from."""
    for number in count(UNSEEN):
        yield from Part(dtype, None, is_varied, number).problems


def prepare(variant: Variant, a: np.ndarray, b: np.ndarray) -> Callable[[], float]:
    """Check what the expression computes and return the function that takes one sample."""
    drawn = {
        name: random_problems(a.dtype.name, is_varied)
        for name, is_varied in RANDOM_PROBLEMS.items()
        if f"next({name})" in variant.call
    }
    if variant.library in LIBRARIES:
        names = operand_names(variant.library, a, b)
        product = eval(variant.call, names)  # c is zero, so beta = 1 gives a @ b too
        product = np.asarray(product) if SMOKE else cupy.asnumpy(product)
        np.testing.assert_array_equal(product, a @ b, err_msg=str(variant))
    else:
        names = choice_names(a, b) if variant.call in CHOICES else launch_names()
    timer = Timer(variant.call, globals=names)

    def sample() -> float:
        for name, problems in drawn.items():
            names[name] = iter(list(islice(problems, CALLS)))
        seconds = timer.timeit(CALLS) / CALLS
        if not SMOKE:
            cupy.cuda.Device().synchronize()
        return seconds

    sample()
    return sample


@pytest.fixture(scope="module", params=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=SIZES)
def size(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def samples_s(dtype: str, size: int) -> dict[str, list[float]]:
    """Samples of every variant, interleaved."""
    shape = (size, size)
    a, b, _ = inputs.operands("integers", shape, shape, shape, dtype)
    return interleave({str(variant): prepare(variant, a, b) for variant in VARIANTS}, ROUNDS)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def bench_call(
    benchmark: Any, samples_s: dict[str, list[float]], dtype: str, size: int, variant: Variant
) -> None:
    seconds = samples_s[str(variant)]
    explanation = dxgemm.explain_shape(size, size, size, dtype)
    benchmark.group = f"{dtype}, {size} x {size}"
    benchmark.extra_info.update(
        library=variant.library,
        call=variant.call,
        implementation=explanation.implementation if variant.call in DXGEMM_CALLS else None,
        dtype=dtype,
        m=size,
        n=size,
        k=size,
        host_us=1e6 * statistics.median(seconds),
        target_us=variant.target_us,
    )
    replay(benchmark, seconds)
