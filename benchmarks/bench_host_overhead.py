"""Host time of one call, beside what CuPy and torch take for theirs.

The matrices are so small that the GPU is done before the host: the time is what a call costs
before it returns. "patched" calls are routed by `dxgemm.patch`, "unrouted" ones fall through to
their library. All calls of one dtype and size are interleaved, and the GPU is waited for
outside the clock. The launches of an empty kernel are what no call can undercut.

The first call on a new shape, whose kernel is loaded already, checks the operands, chooses and
binds. It is timed on ten new shapes in a row, and on one alone after all the other calls, which
leave none of it in the CPU's caches. The choice is timed by itself too, on random products in a
row. `routes[key]` finds a choice again.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle, islice
from time import perf_counter
from timeit import Timer
from typing import Any, NamedTuple

import numpy as np
import pytest
from interleave import replay, replay_clock
from oracle import inputs

import dxgemm
from dxgemm.call.route import clear_routes, routes
from dxgemm.choice.selection import choose
from dxgemm.epilogues import bias, relu
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.problem import Problem
from dxgemm.runtime.device import device_facts
from dxgemm.tuning.sampling import interleave
from dxgemm.tuning.workloads import random_workloads

SMOKE = simulator_enabled()
if not SMOKE:
    import cupy
    from cuda.bindings import driver
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

ROUNDS = 1 if SMOKE else 200
CALLS = 1 if SMOKE else 50  # a round: fewer launches than the driver queues without blocking
SIZES = [4] if SMOKE else [32, 64]
SEED = 3  # of random problems
# By the number of new shapes in a row.
FIRST_CALLS = {"first call on a new shape": 10, "the same, alone after other work": 1}
NEW_SHAPES = 2 if SMOKE else 40

# Python expressions to time, with matrices a, b and c and a vector v of a library. c and v are 0.
DXGEMM_CALLS = (
    "gemm(a, b, out=c)",
    "gemm(a, b, c, beta=1)",
    "gemm(a, b, out=c, epilogue=bias(v))",
    "gemm(a, b, out=c, epilogue=bias(v) | relu)",
    "gemm(a, b)",
    "plan()",
)
LIBRARY_CALLS = {
    "numpy": ["numpy.matmul(a, b, out=c)"],
    "cupy": [
        "cupy.matmul(a, b, out=c)",
        "cupy.matmul(a, b)",
        "patched cupy.matmul(a, b)",
        "unrouted cupy.matmul(a, b)",
    ],
    "torch": [
        "torch.mm(a, b)",
        "patched torch.mm(a, b)",
        "unrouted torch.mm(a, b)",
        "torch.mm(a, b, out=c)",
        "torch.addmm(c, a, b, out=c)",
        "torch.addmm(v, a, b, out=c)",
    ],
}
# Options of `dxgemm.patch`, inside which a call is made, by the word before it.
PATCHES = {"patched": {"only": None}, "unrouted": {"dtypes": []}}
LAUNCHES = {
    "cuda.core": "launch(stream, config, kernel)",
    "driver": "cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)",
}
CHOICES = ("choose(next(problems), device)", "routes[key]")
LIBRARIES = ["numpy"] if SMOKE else [name for name in ("cupy", "torch") if find_spec(name)]

pytestmark = pytest.mark.benchmark(timer=replay_clock)


class Variant(NamedTuple):
    """An expression to time, and the library that its operands or its launch belong to."""

    library: str
    call: str

    def __str__(self) -> str:
        return f"{self.library}: {self.call}"


def list_variants() -> list[Variant]:
    variants = []
    for library in LIBRARIES:
        calls = (*DXGEMM_CALLS, *LIBRARY_CALLS[library], *FIRST_CALLS)
        variants += [Variant(library, call) for call in calls]
    variants += [Variant("dxgemm", call) for call in CHOICES]
    return variants if SMOKE else variants + [Variant(*row) for row in LAUNCHES.items()]


VARIANTS = list_variants()


def upload(library: str, array: np.ndarray) -> Any:
    """An array of a library with the same elements."""
    module = import_module(library)
    return module.from_numpy(array).cuda() if library == "torch" else module.array(array)


def operand_names(library: str, a: np.ndarray, b: np.ndarray) -> dict[str, Any]:
    """Names in the expressions on arrays of `library`."""
    module = import_module(library)
    c = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    a, b, c, v = (upload(library, array) for array in (a, b, c, c[0]))
    arrays = {"a": a, "b": b, "c": c, "v": v, library: module}
    calls = {"gemm": dxgemm.gemm, "plan": dxgemm.plan(a, b, out=c), "bias": bias, "relu": relu}
    return arrays | calls


def launch_names() -> dict[str, Any]:
    """Names in the expressions that launch an empty kernel."""
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
    """Names in the expressions that choose a kernel."""
    dxgemm.plan(a, b)
    return {
        "choose": choose,
        "device": device_facts(0),
        "routes": routes,
        "key": next(reversed(routes)),
    }


def random_problems(dtype: str) -> Iterator[Problem]:
    """Yield random problems without end, other ones than `dxgemm tune` takes."""
    for workload in random_workloads([(dtype, None)], SEED):
        yield workload.problem()


def first_call_sampler(library: str, dtype: str, in_a_row: int) -> Callable[[], float]:
    """A function that times calls on shapes of which nothing is known but that their kernels,
    which other shapes have needed too, are loaded.
    """
    operands = []
    for number in range(NEW_SHAPES):
        m, n, k = ((4 if SMOKE else 96 + 8 * number + step) for step in (0, 8, 16))
        arrays = (np.ones(shape, dtype) for shape in ((m, k), (k, n), (m, n)))
        operands.append([upload(library, array) for array in arrays])
        a, b, c = operands[-1]
        dxgemm.gemm(a, b, out=c)
        assert float(c[0, 0]) == k
    turn = cycle(operands)

    def sample() -> float:
        others = dict(routes)
        clear_routes()
        few = list(islice(turn, min(in_a_row, NEW_SHAPES)))
        begin = perf_counter()
        for a, b, c in few:
            dxgemm.gemm(a, b, out=c)
        seconds = perf_counter() - begin
        routes.update(others)
        if not SMOKE:
            cupy.cuda.Device().synchronize()
        return seconds / len(few)

    return sample


def prepare(variant: Variant, a: np.ndarray, b: np.ndarray) -> Callable[[], float]:
    """Check what the expression computes and return the function that takes one sample."""
    if variant.call in FIRST_CALLS:
        return first_call_sampler(variant.library, a.dtype.name, FIRST_CALLS[variant.call])
    problems = random_problems(a.dtype.name)
    word, _, call = variant.call.partition(" ")
    context = dxgemm.patch(**PATCHES[word]) if word in PATCHES else nullcontext()
    call = call if word in PATCHES else variant.call
    if variant.library in LIBRARIES:
        names = operand_names(variant.library, a, b)
        with context:
            product = eval(call, names)  # c is zero, so beta = 1 gives a @ b too
        product = np.asarray(product) if SMOKE else cupy.asnumpy(product)
        expected = np.maximum(a @ b, 0) if "relu" in variant.call else a @ b
        np.testing.assert_array_equal(product, expected, err_msg=str(variant))
    else:
        names = choice_names(a, b) if variant.call in CHOICES else launch_names()
    timer = Timer(call, globals=names)

    def sample() -> float:
        if variant.call in CHOICES:
            names["problems"] = iter(list(islice(problems, CALLS)))
        with context:
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
        implementation=explanation.choice.implementation if variant.call in DXGEMM_CALLS else None,
        dtype=dtype,
        m=size,
        n=size,
        k=size,
        host_us=1e6 * statistics.median(seconds),
    )
    replay(benchmark, seconds)
