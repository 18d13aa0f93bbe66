"""G13: gemm runs behind a producer that still works on the caller's stream; the host goes on."""

import contextlib

import numpy as np
import pytest
from oracle.cases import Case
from oracle.check import assert_right
from oracle.inputs import operands
from oracle.libraries import InterfaceOnly
from plan_calls import ALPHA, BETA, CALLS

import dxgemm
from dxgemm import errors

pytestmark = pytest.mark.gpu

SPIN_CYCLES = 1_000_000_000  # about half a second
SPIN_SOURCE = """
extern "C" __global__ void spin(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
}
"""
SHAPES = Case("float32", 129, 65, 33).shapes
VALUES = operands("random", *SHAPES, "float32")


@pytest.fixture(scope="module")
def spin(cupy):
    """Keeps the current CuPy stream busy; built and run once beforehand."""
    kernel = cupy.RawKernel(SPIN_SOURCE, "spin")

    def spin(cycles=SPIN_CYCLES):
        kernel((1,), (1,), (np.int64(cycles),))

    spin(1)
    cupy.cuda.Device().synchronize()
    return spin


@pytest.fixture
def ready(cupy):
    """a, b and c on the device, every kernel for them built, nothing left to run."""
    arrays = [cupy.asarray(values) for values in VALUES]
    dxgemm.gemm(arrays[0], arrays[1], arrays[2].copy(), 0.7, 1.3)
    late = cupy.full_like(arrays[0], np.nan)  # CuPy's kernels too: it builds them at first use
    late[...] = arrays[0]
    late.fill(np.nan)
    cupy.cuda.Device().synchronize()
    return arrays


def late_copy(cupy, spin, array):
    """A copy that its stream fills only after a long while, NaN until then."""
    copy = cupy.full_like(array, np.nan)
    cupy.cuda.get_current_stream().synchronize()
    spin()
    copy[...] = array
    return copy


def assert_late(stream, c):
    """Assert that a stream was still busy, and then has the right result."""
    assert not stream.done, "the host waited"
    stream.synchronize()
    assert_right(c.get(), *VALUES, 0.7, 1.3)


def test_the_current_stream_of_cupy(cupy, spin, ready):
    a, b, c = ready
    with cupy.cuda.Stream(non_blocking=True) as stream:
        late = late_copy(cupy, spin, a)
        dxgemm.gemm(late, b, c, 0.7, 1.3)
        late.fill(np.nan)
        assert_late(stream, c)


@pytest.mark.parametrize("is_planned", [True, False], ids=["plan", "gemm"])
@pytest.mark.parametrize("call", CALLS)
def test_the_host_goes_on_while_a_stream_waits_for_an_event(cupy, spin, ready, call, is_planned):
    values = operands("integers", *SHAPES, "float32")
    arrays = [cupy.asarray(value) for value in values]
    options = CALLS[call].options()
    run = dxgemm.plan(*arrays, ALPHA, BETA, **options)
    if not is_planned:

        def run():
            return dxgemm.gemm(*arrays, ALPHA, BETA, **options)

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        run()  # all that is made at first use
    cupy.cuda.Device().synchronize()
    arrays[2].set(values[2])
    cupy.cuda.Device().synchronize()
    late = cupy.asarray(values[0])
    arrays[0].fill(np.nan)
    cupy.cuda.Device().synchronize()
    producer = cupy.cuda.Stream(non_blocking=True)
    with producer:
        spin()
        arrays[0][...] = late
        filled = producer.record()
    with stream:
        stream.wait_event(filled)
        found = run()
        assert not filled.done and not stream.done, "the host waited"
        stream.synchronize()
    np.testing.assert_array_equal(found.get(), CALLS[call].expected(*values))


@pytest.mark.parametrize("kind", ["legacy", "per thread"])
@pytest.mark.parametrize("is_passed", [True, False], ids=["passed", "current"])
@pytest.mark.parametrize("call", ["one kernel", "split-K slices"])
def test_the_default_streams(cupy, spin, ready, kind, is_passed, call):
    a, b, c = ready
    stream = {"legacy": cupy.cuda.Stream.null, "per thread": cupy.cuda.Stream.ptds}[kind]
    options = CALLS[call].options()
    dxgemm.gemm(a, b, c.copy(), 0.7, 1.3, **options)
    cupy.cuda.Device().synchronize()
    with stream:
        late = late_copy(cupy, spin, a)
        if not is_passed:
            dxgemm.gemm(late, b, c, 0.7, 1.3, **options)
    if is_passed:
        dxgemm.gemm(late, b, c, 0.7, 1.3, stream=stream, **options)
    assert_late(stream, c)


def test_cublas_runs_on_the_stream_that_is_passed(cupy, spin, ready):
    a, b, c = ready
    try:
        dxgemm.gemm(a, b, c.copy(), 0.7, 1.3, implementation="cublas")
    except errors.UnsupportedProblemError as refusal:
        pytest.skip(str(refusal))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        late = late_copy(cupy, spin, a)
    dxgemm.gemm(late, b, c, 0.7, 1.3, implementation="cublas", stream=stream)
    assert_late(stream, c)


@pytest.mark.parametrize("kind", ["handle", "cupy", "torch", "numba", "cuda.core"])
def test_a_stream_that_is_passed(cupy, spin, ready, kind):
    a, b, c = ready
    stream = cupy.cuda.Stream(non_blocking=True)
    passed = stream_of(kind, stream)  # may import torch, which takes longer than the producer
    with stream:
        late = late_copy(cupy, spin, a)
    dxgemm.gemm(late, b, c, 0.7, 1.3, stream=passed)
    assert_late(stream, c)


def stream_of(kind, stream):
    """The same CUDA stream as an object of another library."""
    if kind == "handle":
        return stream.ptr
    if kind == "torch":
        return pytest.importorskip("torch").cuda.ExternalStream(stream.ptr)
    if kind == "numba":
        from numba import cuda

        return cuda.external_stream(stream.ptr)
    if kind == "cuda.core":
        from cuda.core import Stream

        return Stream.from_handle(stream.ptr)
    return stream


def test_the_current_stream_of_torch(cupy, spin, ready):
    torch = pytest.importorskip("torch")
    a, b, c = (torch.from_dlpack(array) for array in ready)
    late = torch.full_like(a, torch.nan)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), cupy.cuda.ExternalStream(stream.cuda_stream):
        spin()
        late.copy_(a)
        dxgemm.gemm(late, b, c, 0.7, 1.3)
        late.fill_(torch.nan)
        assert not stream.query(), "the host waited"
    stream.synchronize()
    assert_right(c.cpu().numpy(), *VALUES, 0.7, 1.3)


def test_the_stream_of_numba_arrays(cupy, spin, ready):
    from numba import cuda

    a, b, c = ready
    stream = cuda.stream()
    late = cuda.device_array(a.shape, a.dtype, stream=stream)
    addend = cuda.device_array(c.shape, c.dtype, stream=stream)
    late_view, addend_view = cupy.asarray(late), cupy.asarray(addend)
    b_array = cuda.as_cuda_array(b)  # waits for the stream that CuPy names, the default one
    with cupy.cuda.ExternalStream(int(stream)) as queue:
        late_view.fill(np.nan)
        spin()
        late_view[...] = a
        addend_view[...] = c
    dxgemm.gemm(late, b_array, addend, 0.7, 1.3)
    assert not queue.done, "the host waited"
    stream.synchronize()
    assert_right(addend.copy_to_host(), *VALUES, 0.7, 1.3)


def test_operands_on_different_streams_of_different_libraries(cupy, spin, ready):
    torch = pytest.importorskip("torch")
    a, b, c = ready
    b_tensor = torch.full(b.shape, torch.nan, device="cuda")
    b_source = torch.from_dlpack(b)
    torch.cuda.synchronize()
    torch_stream = torch.cuda.Stream()
    with contextlib.ExitStack() as streams:
        streams.enter_context(torch.cuda.stream(torch_stream))
        with cupy.cuda.ExternalStream(torch_stream.cuda_stream):
            spin()
        b_tensor.copy_(b_source)
        cupy_stream = streams.enter_context(cupy.cuda.Stream(non_blocking=True))
        late = late_copy(cupy, lambda: spin(2 * SPIN_CYCLES), a)
        dxgemm.gemm(late, b_tensor, c, 0.7, 1.3)
        b_tensor.fill_(torch.nan)
        assert not cupy_stream.done, "the host waited"
        assert not torch_stream.query(), "torch's stream must wait for the launch that reads b"
    torch.cuda.synchronize()
    assert_right(c.get(), *VALUES, 0.7, 1.3)


def test_interfaces_of_different_streams(cupy, spin, ready):
    a, b, c = ready
    first, second = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with first:
        late_a = InterfaceOnly(late_copy(cupy, spin, a))
    with second:
        late_b = InterfaceOnly(late_copy(cupy, spin, b))
    target = InterfaceOnly(c)
    dxgemm.gemm(late_a, late_b, target, 0.7, 1.3)
    assert not (first.done and second.done), "the host waited"
    cupy.cuda.Device().synchronize()
    assert_right(c.get(), *VALUES, 0.7, 1.3)
