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

from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle, islice
from time import perf_counter
from timeit import Timer
from typing import Any, NamedTuple

import numpy as np
from cases import SMOKE, xp
from measuring import Found, Measured, Row, bench
from oracle import inputs

import dxgemm
from dxgemm.call.route import clear_routes, routes
from dxgemm.choice.selection import choose
from dxgemm.epilogues import bias, relu
from dxgemm.runtime.device import device_facts
from dxgemm.tuning.sampling import interleave
from dxgemm.tuning.workloads import random_workloads

ROUNDS = 1 if SMOKE else 200
CALLS = 1 if SMOKE else 50  # a round: fewer launches than the driver queues without blocking
SEED = 3  # of random problems
# By the number of new shapes in a row.
FIRST_CALLS = {"first call on a new shape": 10, "the same, alone after other work": 1}
NEW_SHAPES = 2 if SMOKE else 40

# Python expressions to time, with matrices a, b and c and a vector v of a library. c and v are 0.
DXGEMM_CALLS = (
    "gemm(a, b, out=c)", "gemm(a, b, c, beta=1)", "gemm(a, b, out=c, epilogue=bias(v))",
    "gemm(a, b, out=c, epilogue=bias(v) | relu)", "gemm(a, b)", "plan()",
)  # fmt: skip
LIBRARY_CALLS = {
    "numpy": ["numpy.matmul(a, b, out=c)"],
    "cupy": [
        "cupy.matmul(a, b, out=c)", "cupy.matmul(a, b)", "patched cupy.matmul(a, b)",
        "unrouted cupy.matmul(a, b)",
    ],
    "torch": [
        "torch.mm(a, b)", "patched torch.mm(a, b)", "unrouted torch.mm(a, b)",
        "torch.mm(a, b, out=c)", "torch.addmm(c, a, b, out=c)", "torch.addmm(v, a, b, out=c)",
    ],
}  # fmt: skip
# Options of `dxgemm.patch`, inside which a call is made, by the word before it.
PATCHES: dict[str, dict[str, Any]] = {"patched": {"only": None}, "unrouted": {"dtypes": []}}
LAUNCHES = {
    "cuda.core": "launch(stream, config, kernel)",
    "driver": "cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)",
}
CHOICES = ("choose(next(problems), device)", "routes[key]")
LIBRARIES = ["numpy"] if SMOKE else [name for name in ("cupy", "torch") if find_spec(name)]


class Square(NamedTuple):
    """Matrices that all calls of a row multiply."""

    dtype: str
    size: int

    def __str__(self) -> str:
        return f"{self.dtype}-{self.size}"


def variants(case: Square) -> dict[str, tuple[str, str]]:
    """Expressions to time with their library, by both."""
    found = [
        (library, call)
        for library in LIBRARIES
        for call in (*DXGEMM_CALLS, *LIBRARY_CALLS[library], *FIRST_CALLS)
    ]
    found += [("dxgemm", call) for call in CHOICES]
    found += [] if SMOKE else LAUNCHES.items()
    return {": ".join(variant): variant for variant in found}


def wait() -> None:
    if not SMOKE:
        xp.cuda.Device().synchronize()


def upload(library: str, array: np.ndarray) -> Any:
    """An array of a library with the same elements."""
    module = import_module(library)
    return module.from_numpy(array).cuda() if library == "torch" else module.array(array)


def names_of(library: str, a: np.ndarray, b: np.ndarray) -> dict[str, Any]:
    """Names in the expressions: on arrays of a library, of a choice, or of an empty kernel."""
    if library in LIBRARIES:
        c = np.zeros((a.shape[0], b.shape[1]), a.dtype)
        a, b, c, v = (upload(library, array) for array in (a, b, c, c[0]))
        arrays = {"a": a, "b": b, "c": c, "v": v, library: import_module(library)}
        calls = {"gemm": dxgemm.gemm, "plan": dxgemm.plan(a, b, out=c), "bias": bias, "relu": relu}
        return arrays | calls
    if library == "dxgemm":
        dxgemm.plan(a, b)
        key = next(reversed(routes))
        return {"choose": choose, "device": device_facts(0), "routes": routes, "key": key}
    from cuda.bindings import driver
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

    device = Device()
    device.set_current()
    options = ProgramOptions(arch=f"sm_{device.arch}")
    program = Program('extern "C" __global__ void empty() {}', "c++", options)
    kernel = program.compile("cubin").get_kernel("empty")
    function = driver.CUfunction(int(kernel.handle))
    names = {"launch": launch, "stream": device.default_stream, "kernel": kernel}
    names["config"] = LaunchConfig(grid=1, block=1)
    return {**names, "cuLaunchKernel": driver.cuLaunchKernel, "function": function}


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
        wait()
        return seconds / len(few)

    return sample


def make_sampler(variant: tuple[str, str], a: np.ndarray, b: np.ndarray) -> Callable[[], float]:
    """Check what the expression computes and return the function that takes one sample."""
    library, call = variant
    if call in FIRST_CALLS:
        return first_call_sampler(library, a.dtype.name, FIRST_CALLS[call])
    word, _, rest = call.partition(" ")
    context = dxgemm.patch(**PATCHES[word]) if word in PATCHES else nullcontext()
    code, names = rest if word in PATCHES else call, names_of(library, a, b)
    if library in LIBRARIES:
        with context:
            product = eval(code, names)  # c is zero, so beta = 1 gives a @ b too
        product = np.asarray(product) if SMOKE else xp.asnumpy(product)
        expected = np.maximum(a @ b, 0) if "relu" in call else a @ b
        np.testing.assert_array_equal(product, expected, err_msg=str(variant))
    workloads = random_workloads([(a.dtype.name, None)], SEED)
    timer = Timer(code, globals=names)

    def sample() -> float:
        if call in CHOICES:
            names["problems"] = iter([each.problem() for each in islice(workloads, CALLS)])
        with context:
            seconds = timer.timeit(CALLS) / CALLS
        wait()
        return seconds

    sample()
    return sample


def measure_calls(row: Row) -> Found:
    shape = (row.case.size, row.case.size)
    a, b, _ = inputs.operands("integers", shape, shape, shape, row.case.dtype)
    samplers = {name: make_sampler(variant, a, b) for name, variant in row.variants.items()}
    samples = interleave(samplers, ROUNDS)
    return {name: Measured(samples_s=samples_s) for name, samples_s in samples.items()}


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    (library, call), (dtype, size) = row.variants[name], row.case
    choice = dxgemm.explain_shape(size, size, size, dtype).choice
    named = {"library": library, "call": call, "dtype": dtype, **dict.fromkeys("mnk", size)}
    named["implementation"] = choice.implementation if call in DXGEMM_CALLS else None
    return {**named, "host_us": 1e6 * found[name].seconds}


bench_call = bench(
    [Square(dtype, n) for dtype in ("float32", "float64") for n in ([4] if SMOKE else [32, 64])],
    variants,
    describe=describe,
    measuring=measure_calls,
)
