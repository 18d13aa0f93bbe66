"""Refusals of the driver: each is reported as an error, nothing is lost, the next call works.

Without a GPU the driver's answers are made up; with one the faults are real.
"""

from __future__ import annotations

import gc
import signal
import struct
import weakref
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from inspect import getclosurevars
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from plan_calls import ALPHA, BETA, CALLS

import dxgemm
from dxgemm import errors
from dxgemm.choice.implementation import MOST_SLICES
from dxgemm.choice.registry import find_implementation
from dxgemm.launches.series import Call, LaunchSeries
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.fusion import Fusion
from dxgemm.runtime import binding, capture, device, host, launch, workspace
from dxgemm.testing.inputs import operands

driver = pytest.importorskip("cuda.bindings.driver")
OUT_OF_MEMORY = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
NOT_INITIALIZED = driver.CUresult.CUDA_ERROR_NOT_INITIALIZED
SUCCESS = driver.CUresult.CUDA_SUCCESS
NOT_CAPTURED, CAPTURED = list(driver.CUstreamCaptureStatus)[:2]


class FakeDriver:
    """Counts what is called, succeeds, and gives each result a number of its own.

    Attributes:
        results: results of functions, by name; other functions return nothing or an address.
        fails: errors of functions, by name; other functions succeed.
        calls: names of functions, in order; with the context that is made current.
        allocated: addresses that are not free.
    """

    CUresult = driver.CUresult
    CUdevice_attribute = driver.CUdevice_attribute
    CUfunction_attribute = driver.CUfunction_attribute
    CUstreamCaptureMode = driver.CUstreamCaptureMode
    CUstreamCaptureStatus = driver.CUstreamCaptureStatus
    CUlaunchConfig = driver.CUlaunchConfig

    def __init__(self):
        self.results = {
            "cuCtxGetDevice": 0,
            "cuThreadExchangeStreamCaptureMode": 0,
            "cuStreamIsCapturing": NOT_CAPTURED,
        }
        self.fails = {}
        self.calls = []
        self.allocated = set()

    def __getattr__(self, name):
        if not name.startswith("cu"):
            return lambda *arguments: SimpleNamespace()

        def call(*arguments):
            self.calls.append(f"{name} {arguments[0]}" if name == "cuCtxSetCurrent" else name)
            error = self.fails.get(name, SUCCESS)
            if name in self.results:
                return error, self.results[name]
            if "Alloc" in name:
                address = len(self.calls)
                if not error:
                    self.allocated.add(address)
                return error, address
            if "Free" in name:
                self.allocated.remove(arguments[0])
            return (error,)

        return call


@pytest.fixture
def fake(monkeypatch):
    """Replaces the driver."""
    fake = FakeDriver()
    for module in (capture, device, launch, workspace):
        monkeypatch.setattr(module, "driver_api", lambda: fake)
    monkeypatch.setattr(workspace, "simulator_enabled", lambda: False)
    monkeypatch.setattr(workspace, "_pool", lambda ordinal: None)
    monkeypatch.setattr(launch, "device_count", lambda: 1)
    monkeypatch.setattr(launch, "_functions", {})
    for name in ("_shared", "_leases"):
        monkeypatch.setattr(launch, name, weakref.WeakValueDictionary())
    for name in ("_libraries", "_recent", "_kept", "_unused"):
        monkeypatch.setattr(launch, name, type(getattr(launch, name))())
    return fake


class Series(LaunchSeries):
    """Two kernels that note the addresses they are given."""

    def __init__(self):
        super().__init__(0)
        self._take(1000)
        self.launched = []
        self.fails = False

    def calls(self, base, call, operands):
        return [Call(self._launch, (base,)), Call(self._launch, (base + 1,))]

    def _launch(self, address, stream):
        self.launched.append(address)
        if self.fails:
            raise errors.LaunchError("refused")


CALL = (1, 2, 3, 3, 1.0, 0.0)


def test_without_memory_for_a_workspace_nothing_is_launched(fake):
    series = Series()
    fake.fails = {"cuMemAllocFromPoolAsync": OUT_OF_MEMORY, "cuMemAlloc": OUT_OF_MEMORY}
    with pytest.raises(errors.LaunchError, match=r"no workspace of 1024 bytes.*OUT_OF_MEMORY"):
        series(*CALL, stream=0)
    with pytest.raises(errors.LaunchError, match=r"no workspace of 1024 bytes.*OUT_OF_MEMORY"):
        series.fixed(*CALL)
    assert series.launched == []
    fake.fails = {}
    series(*CALL, stream=0)
    assert len(series.launched) == 2 and not fake.allocated


def test_a_workspace_is_given_back_when_a_launch_fails(fake):
    series = Series()
    series.fails = True
    with pytest.raises(errors.LaunchError, match="refused"):
        series(*CALL, stream=0)
    assert len(series.launched) == 1 and not fake.allocated


def test_a_host_operand_without_memory_leaves_the_others_none(fake):
    array = np.ones(3)
    with host.DeviceCopy(array, 0, 0):
        fake.fails = {"cuMemAllocAsync": OUT_OF_MEMORY}
        with (
            pytest.raises(errors.LaunchError, match=r"cuMemAllocAsync gave .*OUT_OF_MEMORY"),
            host.DeviceCopy(array, 0, 0),
        ):
            pass
        assert len(fake.allocated) == 1
    assert not fake.allocated


@pytest.mark.parametrize("function", ["cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"])
def test_a_failed_copy_frees_its_memory_and_leaves_the_array(fake, function):
    array = np.ones(3)
    fake.fails = {function: driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS}
    with (
        pytest.raises(errors.LaunchError, match=f"{function} gave CUDA_ERROR_ILLEGAL_ADDRESS"),
        host.DeviceCopy(array, 0, 0) as copy,
    ):
        copy.upload()
        copy.download()
    assert not fake.allocated and (array == 1).all()


@pytest.fixture
def kernel_launch(fake):
    """A launch of a kernel that is not there."""
    return launch_on(0)


def made_up(record, cubin=b""):
    return SimpleNamespace(cubin=cubin, identity=cubin or b"identity", record=record)


def launch_on(ordinal):
    record = SimpleNamespace(
        implementation="tuned", config="64x64", threads=256, dynamic_smem_bytes=0, cluster=1
    )
    problem = contiguous_problem("float32", 4, 5, 6)
    launch._functions[b"identity", ordinal] = 1
    return launch.KernelLaunch(made_up(record), problem, 7, ordinal)


def with_function(own):
    """A problem with an epilogue of dxgemm's own, or of the caller's."""
    fusion = Fusion((SimpleNamespace(is_own=own, operands=()),), ())
    return replace(contiguous_problem("float32", 4, 5, 6), epilogue=fusion)


def test_kernels_of_new_functions_are_unloaded_unless_something_may_launch_them(fake):
    fake.results |= dict.fromkeys(("cuLibraryGetKernel", "cuKernelGetFunction"), 5)
    record = launch_on(0)._kernel.record
    record.entry = "kernel"
    libraries = count()
    unloaded = []
    fake.cuLibraryLoadData = lambda cubin, *_: (SUCCESS, cubin)
    fake.cuLibraryUnload = lambda library: unloaded.append(library) or (SUCCESS,)

    def bind(own=False):
        cubin = b"%d" % next(libraries)
        return launch.KernelLaunch(made_up(record, cubin), with_function(own), 7, 0), cubin

    own = [bind(own=True)[1] for _ in range(launch.MOST_UNUSED)]
    held, of_held = bind()
    plan, of_plan = bind()
    plan = plan.fixed(*CALL)
    captured, of_capture = bind()
    planned, of_captured_plan = bind()
    planned = planned.fixed(*CALL)
    held(*CALL, stream=5)
    fake.results["cuStreamIsCapturing"] = CAPTURED
    captured(*CALL, stream=5)
    planned(stream=5)
    fake.results["cuStreamIsCapturing"] = NOT_CAPTURED
    del captured, planned
    for _ in range(2 * launch.MOST_UNUSED):
        launched, cubin = bind()
        launched(*CALL, stream=0)
        launched.fixed(*CALL)(stream=0)
    gc.collect()
    bind()
    stay = {*own, of_held, of_plan, of_capture, of_captured_plan, cubin}
    assert len(unloaded) >= launch.MOST_UNUSED and not stay & set(unloaded)
    assert len(set(unloaded)) == len(unloaded)
    assert len(launch._functions) <= len(own) + launch.MOST_UNUSED + len(stay) - len(own) + 2
    gone = made_up(record, unloaded[0])
    assert not launch.is_loaded(gone, 0)
    launch.KernelLaunch(gone, with_function(False), 7, 0)(*CALL, stream=0)
    assert launch.is_loaded(gone, 0), "it is loaded again"


def test_launches_that_are_dropped_leave_nothing_but_the_modules(fake):
    problem = contiguous_problem("float32", 4, 5, 6)
    for number in range(100):
        record = launch_on(0)._kernel.record
        identity = b"%d" % number
        launch._functions[identity, 0] = 1
        first, again = (
            launch.KernelLaunch(made_up(record, identity), problem, 7, 0) for _ in range(2)
        )
        assert first._arguments is again._arguments, "a kernel that was read again is the same"
        first(*CALL, stream=0)
        plan = again.fixed(*CALL)
        plan(stream=0)
    assert len(launch._shared) > 0
    reference = weakref.ref(first)
    del first, again, plan
    gc.collect()
    assert not launch._shared and reference() is None


def test_the_kernels_gpu_is_made_current_where_there_are_several(fake, monkeypatch):
    monkeypatch.setattr(launch, "device_count", lambda: 2)
    monkeypatch.setattr(
        launch, "current_device", lambda ordinal: nullcontext(fake.calls.append(f"on {ordinal}"))
    )
    for ordinal, made_current in ((0, []), (1, ["on 1"])):
        launched = launch_on(ordinal)
        for queue in (partial(launched, *CALL), launched.fixed(*CALL)):
            fake.calls = []
            queue(stream=0)
            assert fake.calls == ["cuCtxGetDevice", *made_current, "cuLaunchKernelEx"]
    fake.fails = {"cuCtxGetDevice": driver.CUresult.CUDA_ERROR_INVALID_CONTEXT}
    fake.calls = []
    launch_on(0)(*CALL, stream=0)
    assert fake.calls[-2:] == ["on 0", "cuLaunchKernelEx"]


def test_the_launch_configuration_is_the_drivers(fake, kernel_launch):
    config, fields = kernel_launch._config, kernel_launch._fields
    kernel_launch(*CALL, stream=12345)
    grid = config.gridDimX, config.gridDimY, config.gridDimZ
    assert grid == (7, 1, 1) and (config.blockDimX, config.blockDimY, config.blockDimZ) == (
        256,
        1,
        1,
    )
    assert int(config.hStream) == 12345
    fields.smem_bytes, fields.attribute_count = 99, 0
    assert (config.sharedMemBytes, config.numAttrs) == (99, 0)


def test_launches_of_one_kernel_take_turns_at_its_arguments(fake, kernel_launch, monkeypatch):
    kernel = kernel_launch._kernel
    other_problem = contiguous_problem("float32", 40, 50, 60)
    other = launch.KernelLaunch(kernel, other_problem, 9, 0)
    plan = other.fixed(*CALL)
    assert other._buffer is kernel_launch._buffer
    for run, sizes, blocks in (
        (lambda: kernel_launch(*CALL, stream=1), (4, 5, 6), 7),
        (lambda: other(*CALL, stream=1), (40, 50, 60), 9),
        (lambda: kernel_launch(*CALL, stream=1), (4, 5, 6), 7),
    ):
        run()
        packed = struct.unpack_from("@qqq", kernel_launch._buffer, 40)
        assert packed == sizes and kernel_launch._config.gridDimX == blocks
    arguments = kernel_launch._arguments
    with pytest.raises(TypeError), monkeypatch.context() as patch:
        patch.setattr(other, "_fixed", None)  # as an interrupt, while they are written
        other(*CALL, stream=1)
    assert arguments.owner is None, "whoever comes next writes them again"
    own = getclosurevars(plan).nonlocals["self"]._buffer
    before = bytes(own)
    kernel_launch(1, 2, 3, 4, 5.0, 6.0, 7)
    assert bytes(own) == before, "a plan has arguments of its own"
    plan(1)
    plan(2)
    configs = getclosurevars(plan).nonlocals["configs"]
    found = {stream: (int(each.hStream), each.gridDimX) for stream, each in configs.items()}
    assert found == {1: (1, 9), 2: (2, 9)}, "threads may queue a plan on streams of their own"


def test_a_refused_launch_is_named_and_the_next_one_works(fake, kernel_launch):
    for name in ("OUT_OF_RESOURCES", "FAILED", "TIMEOUT"):
        fake.fails = {"cuLaunchKernelEx": getattr(driver.CUresult, f"CUDA_ERROR_LAUNCH_{name}")}
        with pytest.raises(errors.LaunchError, match=rf"tuned 64x64 \(7 blocks.*_{name}"):
            kernel_launch(*CALL, stream=0)
        with pytest.raises(errors.LaunchError, match=name):
            kernel_launch.fixed(*CALL)(0)
        fake.fails, fake.calls = {}, []
        kernel_launch(*CALL, stream=0)
        assert fake.calls == ["cuLaunchKernelEx"]


def test_a_gpu_that_the_driver_does_not_describe_is_refused(fake, monkeypatch):
    monkeypatch.setattr(device, "simulator_enabled", lambda: False)
    monkeypatch.setattr(device, "require_gpu", lambda: None)
    fake.results["cuDeviceGetAttribute"] = 0
    fake.fails = {"cuDeviceGetAttribute": NOT_INITIALIZED}
    refusal = r"the GPU cannot be used: cuDeviceGetAttribute gave CUDA_ERROR_NOT_INITIALIZED\."
    with pytest.raises(errors.GpuUnavailableError, match=refusal):
        device.device_facts.__wrapped__(0)


def test_a_gpu_is_made_current_for_the_call_alone(fake, monkeypatch):
    monkeypatch.setattr(device, "_primary_context", cache(device._primary_context.__wrapped__))
    fake.results |= {"cuCtxGetCurrent": 8, "cuDevicePrimaryCtxRetain": 9}
    fake.fails = {"cuDevicePrimaryCtxRetain": OUT_OF_MEMORY}
    with (
        pytest.raises(errors.GpuUnavailableError, match=r"cuDevicePrimaryCtxRetain.*OUT_OF_MEMORY"),
        device.current_device(1),
    ):
        pass
    assert "cuCtxSetCurrent" not in fake.calls
    fake.fails, fake.calls = {}, []
    for _ in range(2):
        with device.current_device(1):
            fake.calls.append("work")
    assert fake.calls.count("cuDevicePrimaryCtxRetain") == 1, "its reference is kept"
    turn = ["cuCtxGetDevice", "cuCtxGetCurrent", "cuCtxSetCurrent 9", "work", "cuCtxSetCurrent 8"]
    assert fake.calls == [*turn[:2], "cuDevicePrimaryCtxRetain", *turn[2:], *turn]
    fake.results["cuCtxGetCurrent"], fake.calls = 0, []
    with device.current_device(1):
        pass
    assert fake.calls[-1] == "cuCtxSetCurrent 9", "a thread without a context keeps the GPU's"


def test_a_forked_process_is_told_that_cuda_does_not_work_there(fake, kernel_launch):
    fake.fails = dict.fromkeys(("cuLaunchKernelEx", "cuCtxGetDevice", "cuInit"), NOT_INITIALIZED)
    with pytest.raises(errors.GpuUnavailableError, match=r"forked .*'spawn' or 'forkserver'"):
        kernel_launch(*CALL, stream=0)


@pytest.mark.parametrize(
    "status, error",
    [(CAPTURED, SUCCESS), (NOT_CAPTURED, driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)],
)
def test_no_kernel_is_built_or_loaded_under_capture(fake, monkeypatch, status, error):
    kernel = made_up(None, b"loaded")
    built = {"loaded": kernel, "built": made_up(None, b"built")}
    monkeypatch.setattr(binding, "simulator_enabled", lambda: False)
    monkeypatch.setattr(binding, "find_kernel", lambda spec, arch: built.get(spec.implementation))
    monkeypatch.setattr(binding, "obtain_kernel", lambda spec, arch: built[spec.implementation])
    monkeypatch.setattr(launch, "KernelLaunch", lambda kernel, *arguments: kernel)
    monkeypatch.setattr(launch, "_functions", {(b"loaded", 0): 1})

    def bind(name):
        spec = SimpleNamespace(implementation=name, config="64x64")
        return binding.launch_kernel(spec, contiguous_problem("float32", 4, 5, 6), 1, "sm_90a", 0)

    fake.results["cuStreamIsCapturing"] = status
    fake.fails = {"cuStreamIsCapturing": error}
    with capture.launching_on(5):
        assert bind("loaded") is kernel
        for name in ("built", "missing"):
            with pytest.raises(errors.LaunchError, match=f"under capture.*{name} 64x64 is not"):
                bind(name)
    assert bind("built") is built["built"]  # nobody said that it is for a captured launch


@pytest.mark.parametrize(
    "function",
    ["cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetFunction", "cuFuncSetAttribute"],
)
def test_a_kernel_that_cannot_be_loaded_is_named_and_can_be_loaded_later(fake, function):
    record = SimpleNamespace(implementation="tuned", entry="kernel", dynamic_smem_bytes=1 << 20)
    kernel = made_up(record, function.encode())
    fake.results |= dict.fromkeys(
        ("cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetFunction"), 5
    )
    fake.fails = {function: OUT_OF_MEMORY}
    with pytest.raises(errors.LaunchError, match=r"cannot load tuned.*OUT_OF_MEMORY"):
        launch._function_handle(kernel, 0)
    assert not launch.is_loaded(kernel, 0)
    fake.fails = {}
    assert launch._function_handle(kernel, 0) == 5
    assert launch.is_loaded(kernel, 0)


def test_memory_is_taken_and_given_back_outside_of_a_capture(fake):
    memory = workspace.Workspace(1000, 0)
    del memory
    exchange = "cuThreadExchangeStreamCaptureMode"
    calls = [call for call in fake.calls if call != "cuCtxGetDevice"]
    assert calls == [exchange, "cuMemAlloc", exchange, exchange, "cuMemFree", exchange]


@pytest.mark.gpu
def test_a_gpu_has_no_workspace_that_is_larger_than_it(cupy):
    config = find_implementation("tuned").configs("float32")[-1]
    sliced = ("tuned", config, MOST_SLICES)
    _, memory_bytes = cupy.cuda.runtime.memGetInfo()
    m = 4096
    n = 16 * (memory_bytes // (MOST_SLICES * m * 4) // 16 + 1)  # so that the sums of slices need it
    a, b = cupy.ones((m, 4096), "float32"), cupy.ones((4096, n), "float32")
    out = cupy.full((m, n), 7, "float32")
    for run in (dxgemm.gemm, dxgemm.plan):
        with pytest.raises(errors.LaunchError, match=r"no workspace.*OUT_OF_MEMORY"):
            run(a, b, out, implementation=sliced)
    assert (out == 7).all()
    few = slice(None), slice(256)
    assert (dxgemm.gemm(a, b[few], out=out[few], implementation=sliced) == 4096).all()
    assert (out[:, 256:] == 7).all()


@pytest.mark.gpu
def test_a_launch_that_the_driver_refuses_leaves_the_process_usable(cupy):
    a, out = cupy.ones((64, 64), "float32"), cupy.full((64, 64), 7, "float32")
    good = dxgemm.plan(a, a, out, implementation="thread_tile_2d").route.launch
    kernel = replace(good._kernel, record=replace(good._kernel.record, threads=4096))
    refused = launch.KernelLaunch(kernel, good._problem, good._blocks, 0)
    with pytest.raises(errors.LaunchError, match=r"blocks of 4096 threads.*INVALID_VALUE"):
        refused(a.data.ptr, a.data.ptr, out.data.ptr, out.data.ptr, 1.0, 0.0, 0)
    assert (out == 7).all()
    assert (dxgemm.gemm(a, a, out, implementation="thread_tile_2d") == 64).all()


@pytest.mark.gpu
def test_a_kernel_of_more_shared_memory_than_there_is_is_not_loaded(cupy):
    a, out = cupy.ones((64, 64), "float32"), cupy.full((64, 64), 7, "float32")
    good = dxgemm.plan(a, a, out, implementation="thread_tile_2d").route.launch
    record = replace(good._kernel.record, dynamic_smem_bytes=1 << 20)
    # Another cubin to the driver, so that it is loaded again.
    kernel = replace(good._kernel, record=record, cubin=good._kernel.cubin + b"\0")
    with pytest.raises(errors.LaunchError, match=r"cannot load thread_tile_2d.*INVALID_VALUE"):
        launch.KernelLaunch(kernel, good._problem, good._blocks, 0)
    assert (dxgemm.gemm(a, a, out, implementation="thread_tile_2d") == 64).all()


@pytest.mark.gpu
@pytest.mark.parametrize("call", CALLS)
def test_interrupted_calls_leave_a_right_result_to_the_next(cupy, call):
    class Interrupted(Exception):
        pass

    def interrupt(number, frame):
        raise Interrupted

    values = operands("integers", (129, 33), (33, 65), (129, 65), "float32")
    arrays = [cupy.asarray(value) for value in values]
    options = CALLS[call].options()
    plan = dxgemm.plan(*arrays, ALPHA, BETA, **options)

    interrupted = 0
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for microseconds in range(200, 1200, 10):
            try:
                signal.setitimer(signal.ITIMER_REAL, microseconds * 1e-6)
                for _ in range(1000):  # longer than that, unless Python drops the exception
                    plan()
                    dxgemm.gemm(*arrays, ALPHA, BETA, **options)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 50
    for run in (plan, lambda: dxgemm.gemm(*arrays, ALPHA, BETA, **options)):
        arrays[2].set(values[2])
        np.testing.assert_array_equal(run().get(), CALLS[call].expected(*values))


STICKY = """
import cupy, dxgemm
a, out = cupy.ones((64, 64), "float32"), cupy.zeros((64, 64), "float32")
plans = [dxgemm.plan(a, a, out), dxgemm.plan(a, a, out, precision="emulated")]
wild = cupy.RawKernel('extern "C" __global__ void wild() { *(volatile int*)16 = 1; }', "wild")
wild((1,), (1,), ())
try:
    cupy.cuda.Device().synchronize()
except cupy.cuda.runtime.CUDARuntimeError:
    pass
for run in (*plans, lambda: dxgemm.gemm(a, a, out), lambda: dxgemm.gemm(a.T, a, out)):
    try:
        run()
    except dxgemm.errors.LaunchError as error:
        assert "ILLEGAL_ADDRESS" in str(error), error
    else:
        raise SystemExit("no error")
"""


@pytest.mark.gpu
def test_an_illegal_address_is_passed_on_and_the_process_ends_by_itself(cupy, run_python):
    run_python(STICKY)


FORKED = """
import os, cupy, dxgemm
a, out = cupy.ones((64, 64), "float32"), cupy.zeros((64, 64), "float32")
plan = dxgemm.plan(a, a, out, stream=0)
plan()
child = os.fork()
if child == 0:
    try:
        plan()
    except dxgemm.errors.GpuUnavailableError as error:
        os._exit("spawn" not in str(error))
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert (plan() == 64).all()
"""


@pytest.mark.gpu
def test_a_forked_process_is_told_and_its_parent_goes_on(cupy, run_python):
    run_python(FORKED)


LIVE_PLANS = """
import sys, cupy, dxgemm
from dxgemm import reductions
from dxgemm.choice.registry import find_implementation
config = find_implementation("tuned").configs("float32")[-1]
a = cupy.ones((256, 256), "float32")
plans = [
    dxgemm.plan(a, a),
    dxgemm.plan(a, a, implementation=("tuned", config, 4)),
    dxgemm.plan(a, a, epilogue=reductions.sum(axis=1)),
    dxgemm.plan(a, a, precision="emulated"),
    dxgemm.plan_grouped([a, a], [a, a]),
]
sys.cycle = plans  # alive while modules are taken apart
for plan in plans:
    plan()
"""


@pytest.mark.gpu
def test_python_ends_quietly_with_live_plans(cupy, run_python):
    program = f"{LIVE_PLANS}\nimport os; os.dup2(1, 2)"  # what is complained of is output too
    assert run_python(program) == ""
