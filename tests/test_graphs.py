"""G14: captured in a CUDA graph once, replayed on what the arrays then hold."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from oracle.cases import Case
from oracle.check import assert_right
from oracle.inputs import operands
from plan_calls import ALPHA, BETA, CALLS

import dxgemm
from dxgemm import errors, reductions
from dxgemm.call import route
from dxgemm.runtime import graphs, launch

pytestmark = pytest.mark.gpu

LIBRARIES = ("cupy", "torch", "cuda.core")
SHAPES = Case("float32", 129, 65, 33).shapes
FIRST, SECOND = (operands(data, *SHAPES, "float32") for data in ("random", "canary"))


@pytest.fixture(params=LIBRARIES)
def library(request):
    """Name of each library that captures graphs."""
    found = pytest.importorskip(request.param)
    if request.param == "cuda.core" and not hasattr(found.Stream, "create_graph_builder"):
        pytest.skip("this cuda.core makes no graphs")
    return request.param


def graph_of(library, call):
    """Capture a call in a graph of a library, and return a function that replays the graph.

    The function waits for all work queued on the GPU, replays the graph, and waits for it.
    """
    cupy = import_module("cupy")
    gc.collect()  # torch destroys a graph of another test with a call that no capture survives
    if library == "cupy":
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
            call()
            graph = stream.end_capture()
    elif library == "torch":
        torch = import_module("torch")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            stream = torch.cuda.current_stream()
            with cupy.cuda.ExternalStream(stream.cuda_stream):
                call()
    else:
        core = import_module("cuda.core")
        core.Device(0).set_current()
        stream = core.Device(0).create_stream()
        builder = stream.create_graph_builder().begin_building("global")
        with cupy.cuda.ExternalStream(int(stream.handle)):
            call()
        graph = builder.end_building().complete()

    def replay():
        # Copies from host memory are queued on the default stream, for which graphs do not wait.
        cupy.cuda.Device().synchronize()
        if library == "torch":
            graph.replay()
        else:
            graph.launch(stream)
        cupy.cuda.Device().synchronize()

    return replay


@pytest.mark.parametrize(
    "implementation, kind",
    [(None, "float32"), ("pipeline", "float64"), ("pipeline_tma", "float16"), ("wgmma", "float16")],
)
def test_a_graph_of_every_sort_of_kernel(implementation, kind, cupy):
    shapes = Case(kind, 136, 264, 200).shapes
    first, second = (operands(data, *shapes, kind) for data in ("random", "canary"))
    arrays = [cupy.asarray(values) for values in first]
    plan = dxgemm.plan(*arrays, ALPHA, BETA, implementation=implementation)
    replay = graph_of("cupy", plan)
    for values in (first, second):
        for array, new in zip(arrays, values):
            array.set(new)
        replay()
        assert_right(arrays[2].get(), *values, ALPHA, BETA)


@pytest.mark.parametrize("call", CALLS)
def test_a_replay_computes_what_the_arrays_hold_by_then(library, call, cupy):
    first = operands("integers", *SHAPES, "float32")
    second = tuple(2 * values for values in first)
    arrays = [cupy.asarray(values) for values in first]
    plan = dxgemm.plan(*arrays, ALPHA, BETA, **CALLS[call].options())
    replay = graph_of(library, plan)
    for values in (first, second, first):
        for array, new in zip(arrays, values):
            array.set(new)
        replay()
        found = plan.result.get()
        np.testing.assert_array_equal(found, CALLS[call].expected(*values))


def shift_by(number):
    """An epilogue whose kernels no other test loads, where the number is its own."""

    @dxgemm.epilogue
    def shift(value, row, col):
        return value + number

    return shift


def test_a_call_that_would_load_a_kernel_is_refused_and_the_capture_goes_on(library, cupy):
    host_a, number = FIRST[0], 1.0 + LIBRARIES.index(library)
    shift, arrays = shift_by(number), [*map(cupy.asarray, FIRST)]
    dxgemm.gemm(host_a, *arrays[1:])  # loads its kernel

    def disturb(a, b, c):
        with pytest.raises(errors.LaunchError, match=r"under capture.*not loaded yet"):
            dxgemm.gemm(a, b, c, epilogue=shift)
        with pytest.raises(errors.LaunchError, match=r"under capture.*a in host memory"):
            dxgemm.gemm(host_a, b, c)

    captured_with(library, disturb)
    dxgemm.gemm(*arrays, epilogue=shift)
    assert_right(arrays[2].get() - np.float32(number), *FIRST)


def test_a_graph_outlives_the_kernels_that_are_unloaded(cupy, monkeypatch):
    monkeypatch.setattr(launch, "MOST_LASTING", 0)
    monkeypatch.setattr(launch, "MOST_UNUSED", 1)
    a, b, c = map(cupy.asarray, FIRST)
    numbers = [0.25 + place for place in range(5)]

    def drop():
        route.clear_routes()
        gc.collect()

    def result(number):
        return dxgemm.gemm(a, b, c, epilogue=shift_by(number), implementation="coalesced")

    def expect(number):
        assert_right(c.get() - np.float32(number), *FIRST)

    result(numbers[0])
    replay = graph_of("cupy", lambda: result(numbers[0]))
    drop()
    before = len(launch._libraries)
    for number in numbers[1:]:
        result(number)
        expect(number)
        drop()
    assert len(launch._libraries) < before + len(numbers) - 1, "some were unloaded"
    c.fill(0)
    replay()
    expect(numbers[0])
    for number in numbers:  # loaded again
        result(number)
        expect(number)


@pytest.fixture
def run_alone(library, run_python):
    """Runs a function of this file with a library, in a process without threads of other libraries.

    What a thread of JAX's client does, such as a query of an event, ends captures of other threads.
    """
    program = f"import {__name__} as tests, sys; getattr(tests, sys.argv[1])(sys.argv[2])"
    here = str(Path(__file__).parent)
    return lambda function: run_python(program, function, library, PYTHONPATH=here)


def captured_with(library, disturb):
    """Replay the graph of a plan whose capture calls something else with its operands, too."""
    a, b, c = map(import_module("cupy").asarray, FIRST)
    plan = dxgemm.plan(a, b, c, ALPHA, BETA)

    def call():
        disturb(a, b, c)
        plan()

    replay = graph_of(library, call)
    c.set(FIRST[2])
    replay()
    assert_right(c.get(), *FIRST, ALPHA, BETA)


def in_a_thread(function):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function).result()


def other_threads_make_and_drop_plans(library):
    cupy = import_module("cupy")
    others = [cupy.asarray(values) for values in SECOND]
    shift = shift_by(-1.0 - LIBRARIES.index(library))
    stream = cupy.cuda.Stream(non_blocking=True)

    def make_and_drop():
        with stream:
            for options in (CALLS["split-K slices"].options(), {"epilogue": shift}):
                dxgemm.plan(*others, ALPHA, BETA, **options)()
            dxgemm.plan_grouped(others[:1], others[1:2], others[2:])()

    captured_with(library, lambda *operands: in_a_thread(make_and_drop))


def test_other_threads_make_and_drop_plans_during_a_capture(cupy, run_alone):
    run_alone("other_threads_make_and_drop_plans")


@pytest.mark.parametrize("call", CALLS)
def test_a_plan_allocates_nothing_and_a_dropped_one_leaves_nothing(monkeypatch, call, cupy):
    driver = pytest.importorskip("cuda.bindings.driver")
    arrays = [cupy.asarray(values) for values in FIRST]
    dxgemm.plan(*arrays, ALPHA, BETA, **CALLS[call].options())  # loads what stays loaded
    allocations = []

    class Count(cupy.cuda.MemoryHook):
        def alloc_preprocess(self, **arguments):
            allocations.append("cupy")

        malloc_preprocess = alloc_preprocess

    def counted(name, function):
        def call(*arguments):
            allocations.append(name)
            return function(*arguments)

        return call

    for name in dir(driver):
        if name.startswith(("cuMemAlloc", "cuMemFree", "cuMemHostAlloc")):
            monkeypatch.setattr(driver, name, counted(name, getattr(driver, name)))
    with Count():
        plan = dxgemm.plan(*arrays, ALPHA, BETA, **CALLS[call].options())
        made = list(allocations)
        for _ in range(5):
            plan()
        assert allocations == made
        del plan
    assert allocations.count("cuMemFree") == allocations.count("cuMemAlloc")


@pytest.mark.parametrize("fused", [True, False])
def test_a_graph_of_a_reduction_with_indices(fused, cupy):
    first, second = (operands(data, *SHAPES, "float32") for data in ("integers", "canary"))
    a, b, _ = map(cupy.asarray, first)
    reduction = replace(reductions.smallest(2, axis=1), fused=fused)
    plan = dxgemm.plan(a, b, epilogue=reduction, implementation="tuned")
    replay = graph_of("cupy", plan)
    for values in (first, second):
        a.set(values[0])
        b.set(values[1])
        replay()
        expected = reduction.on_host(values[0] @ values[1])
        np.testing.assert_array_equal(plan.result.values.get(), expected.values)
        np.testing.assert_array_equal(plan.result.indices.get(), expected.indices)


def test_a_captured_reduction_takes_its_workspace_along(cupy):
    first, second = (operands(data, *SHAPES, "float32") for data in ("integers", "canary"))
    a, b, _ = map(cupy.asarray, first)
    sums = cupy.zeros(a.shape[0], "float32")
    epilogue = reductions.sum(axis=1, out=sums)

    def call():
        dxgemm.gemm(a, b, epilogue=epilogue, implementation="tuned")

    call()  # loads the kernels
    replay = graph_of("cupy", call)
    for values in (first, second):
        a.set(values[0])
        b.set(values[1])
        sums.fill(0)
        replay()
        expected = epilogue.on_host(values[0] @ values[1])
        np.testing.assert_allclose(sums.get(), expected, rtol=1e-5)


def test_a_graph_and_later_calls_have_workspaces_of_their_own(cupy):
    options = CALLS["split-K slices"].options()
    captured = operands("integers", *Case("float32", 600, 600, 2000).shapes, "float32")
    later = tuple(2 * values for values in captured)
    arrays, others = (list(map(cupy.asarray, values)) for values in (captured, later))
    dxgemm.plan(*arrays, **options)  # loads the kernels
    stream, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with stream:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
        dxgemm.gemm(*arrays, **options)
        graph = stream.end_capture()
    cupy.cuda.Device().synchronize()
    for _ in range(50):  # side by side on the GPU
        graph.launch(stream)
        with other:
            dxgemm.gemm(*others, **options)
    cupy.cuda.Device().synchronize()
    for found, (a, b, _) in ((arrays[2], captured), (others[2], later)):
        np.testing.assert_array_equal(found.get(), a @ b)


def test_a_graph_keeps_what_it_uses_and_no_longer(library, cupy):
    driver = pytest.importorskip("cuda.bindings.driver")
    gc.collect()
    graphs.drop_released()
    before = len(graphs._kept)
    a, b, c = map(cupy.asarray, FIRST)
    kept = [
        dxgemm.prepare(b),
        dxgemm.plan(a, b, **CALLS["split-K slices"].options()),
        dxgemm.plan_grouped([a, a], [b, b]),
    ]

    def call():
        prepared, plan, group = kept
        dxgemm.gemm(a, prepared, out=c, implementation="emulated_float32_tile")
        plan()
        group()

    call()
    results = [c, kept[1].result, *kept[2]()]
    wanted = [result.copy() for result in results]
    replay = graph_of(library, call)
    kept.clear()
    gc.collect()
    junk = [driver.cuMemAlloc(size)[1] for size in (512, 4096, 1 << 16, 1 << 20) * 16]
    for address, size in zip(junk, (512, 4096, 1 << 16, 1 << 20) * 16):
        driver.cuMemsetD32(address, 0x7FC00000, size // 4)  # NaN
    for result in results:
        result.fill(0)
    replay()
    for result, wants in zip(results, wanted):
        assert (result == wants).all()
    for address in junk:
        driver.cuMemFree(address)
    assert len(graphs._kept) == before + 3
    del replay
    gc.collect()
    end = time.monotonic() + 30
    while len(graphs._kept) > before and time.monotonic() < end:
        graphs.drop_released()
        time.sleep(0.01)
    assert len(graphs._kept) == before


class Exported:
    """An array of no known library, over a tensor's memory."""

    def __init__(self, tensor):
        self._tensor = tensor

    def __dlpack__(self, **options):
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()


@pytest.mark.parametrize("capturing", ["cupy", "torch"])
def test_an_operand_outside_of_a_capture_is_refused_and_the_capture_goes_on(capturing, cupy):
    torch = pytest.importorskip("torch")
    x = torch.arange(64 * 64, device="cuda", dtype=torch.float32).reshape(64, 64) % 7
    w = cupy.asarray(x.cpu().numpy())
    y, z = torch.zeros_like(x), cupy.zeros_like(w)
    own, out, foreign = (x, y, w) if capturing == "torch" else (w, z, x)
    calls = [(own, foreign), (foreign, own), (own, Exported(x))]
    for operands_ in (*calls, (own, own)):
        dxgemm.gemm(*operands_, out=out)
    cupy.cuda.Device().synchronize()

    def call():
        for operands_ in calls:
            with pytest.raises(errors.LaunchError, match="a stream is under capture"):
                dxgemm.gemm(*operands_, out=out)
        dxgemm.gemm(own, own, out=out)

    if capturing == "torch":
        graph = torch.cuda.CUDAGraph()
        gc.collect()
        with torch.cuda.graph(graph):
            call()
        out.zero_()
        graph.replay()
    else:
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
            call()
            graph = stream.end_capture()
        out.fill(0)
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
    cupy.cuda.Device().synchronize()
    assert (out == own @ own).all()


def queries(library):
    cupy = import_module("cupy")
    other, stream = cupy.asarray(SECOND[1]), cupy.cuda.Stream(non_blocking=True)

    def query(a, b, _):
        with stream:
            dxgemm.emulation_fallbacks()
            dxgemm.cache_info()
            dxgemm.explain(a, b)
            dxgemm.prepare(other)

    def disturb(*operands):
        query(*operands)
        in_a_thread(lambda: query(*operands))

    captured_with(library, disturb)


def test_queries_disturb_no_capture(cupy, run_alone):
    run_alone("queries")
