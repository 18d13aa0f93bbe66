"""Refusals of the driver: each is reported as an error, nothing is lost, the next call works.

Without a GPU the driver's answers are made up; with one the faults are real.
"""

import ctypes
import gc
import signal
import struct
import sys
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from inspect import getclosurevars
from itertools import count
from types import SimpleNamespace

import counted_builds
import numpy as np
import pytest
from oracle.inputs import operands
from plan_calls import ALPHA, BETA, CALLS

import dxgemm
from dxgemm import errors
from dxgemm.choice.implementation import MOST_SLICES
from dxgemm.choice.registry import find_implementation
from dxgemm.compiler import KernelStore, kernels
from dxgemm.lower import ahead
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.fusion import Fusion
from dxgemm.problem.layout import Layout
from dxgemm.runtime import (
    binding,
    capture,
    counter,
    device,
    exports,
    graphs,
    host,
    launch,
    memory,
    streams,
    upload,
    workspace,
)
from dxgemm.runtime.program import FixedLaunch, Program, ProgramLaunch, Symbol

driver = pytest.importorskip("cuda.bindings.driver")
OUT_OF_MEMORY = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
NOT_INITIALIZED = driver.CUresult.CUDA_ERROR_NOT_INITIALIZED
SUCCESS = driver.CUresult.CUDA_SUCCESS
NOT_CAPTURED, CAPTURED = list(driver.CUstreamCaptureStatus)[:2]


PRIMARY = 9  # handle of the primary context


class FakeDriver:
    """Counts what is called, succeeds, and gives each result a number of its own."""

    CUresult = driver.CUresult
    CUdevice_attribute = driver.CUdevice_attribute
    CUfunction_attribute = driver.CUfunction_attribute
    CUstreamCaptureMode = driver.CUstreamCaptureMode
    CUstreamCaptureStatus = driver.CUstreamCaptureStatus
    CUlaunchConfig = driver.CUlaunchConfig
    CUhostFn = driver.CUhostFn
    CUstream_flags = driver.CUstream_flags

    def __init__(self):
        # results of functions, by name; other functions return nothing or an address
        self.results = {
            "cuCtxGetDevice": 0,
            "cuCtxGetCurrent": PRIMARY,
            "cuDevicePrimaryCtxRetain": PRIMARY,
            "cuDevicePrimaryCtxGetState": (0, 1),
            "cuStreamGetCaptureInfo": (NOT_CAPTURED, 0, None),
            "cuThreadExchangeStreamCaptureMode": 0,
            "cuStreamIsCapturing": NOT_CAPTURED,
        }
        self.fails = {}  # errors of functions, by name; other functions succeed
        self.calls = []  # names of functions, in order; with the context that is made current
        self.allocated = set()  # addresses that are not free
        self.on_launch = lambda *arguments: None  # called with the arguments of each launch

    def __getattr__(self, name):
        if not name.startswith("cu"):
            return lambda *arguments: SimpleNamespace()

        def call(*arguments):
            self.calls.append(f"{name} {arguments[0]}" if name == "cuCtxSetCurrent" else name)
            error = self.fails.get(name, SUCCESS)
            if name == "cuLaunchKernelEx":
                self.on_launch(*arguments)
            if name in self.results:
                result = self.results[name]
                return error, *(result if isinstance(result, tuple) else (result,))
            if "Alloc" in name:
                arguments[0].to_bytes(8)  # OverflowError, as of the bindings
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
    for module in (capture, device, graphs, host, launch, memory, workspace):
        monkeypatch.setattr(module, "driver_api", lambda: fake)
    monkeypatch.setattr(device, "_primary_context", cache(device._primary_context.__wrapped__))
    monkeypatch.setattr(workspace, "simulator_enabled", lambda: False)
    monkeypatch.setattr(workspace, "_pool", lambda ordinal: None)
    monkeypatch.setattr(launch, "device_count", lambda: 1)
    monkeypatch.setattr(launch, "_functions", {})
    for name in ("_idle", "_leases"):
        monkeypatch.setattr(launch, name, weakref.WeakValueDictionary())
    for name in ("_libraries", "_recent", "_first", "_lasting", "_unused"):
        monkeypatch.setattr(launch, name, type(getattr(launch, name))())
    monkeypatch.setattr(graphs, "_kept", [])
    return fake


class Series(ProgramLaunch):
    """Two kernels that note the addresses they are given."""

    def __init__(self):
        self.launched = []
        self.fails = False
        memory = Symbol("memory")
        steps = (Noted(self, address) for address in (memory, memory + 1))
        super().__init__(Program(tuple(steps), {memory.name: 1000}), "sm_90a", 0)

    def note(self, call, stream):
        self.launched.append(call[0])
        if self.fails:
            raise errors.LaunchError("refused")


class Noted:
    """Step of a `Series`."""

    spec = arguments = when = twin = None
    makes, operands = "", ()

    def __init__(self, series, address):
        self.values = (address, 0)
        self.bind = lambda arch, ordinal: series.note


CALL = (1, 2, 3, 3, 1.0, 0.0)


def test_without_memory_for_a_workspace_nothing_is_launched(fake):
    series = Series()
    fake.fails = {"cuMemAllocFromPoolAsync": OUT_OF_MEMORY, "cuMemAlloc": OUT_OF_MEMORY}
    with pytest.raises(errors.LaunchError, match=r"no workspace of 1024 bytes.*OUT_OF_MEMORY"):
        series(CALL, stream=0)
    with pytest.raises(errors.LaunchError, match=r"no workspace of 1024 bytes.*OUT_OF_MEMORY"):
        series.fixed(CALL)
    assert series.launched == []
    fake.fails = {}
    series(CALL, stream=0)
    assert len(series.launched) == 2 and not fake.allocated


@pytest.mark.parametrize("is_simulated", [True, False])
def test_a_workspace_of_more_bytes_than_64_bits_count_is_refused(fake, monkeypatch, is_simulated):
    monkeypatch.setattr(workspace, "simulator_enabled", lambda: is_simulated)
    for size in (2**64, 2**80):
        with pytest.raises(errors.LaunchError, match=f"no workspace of {size} bytes"):
            workspace.Workspace(size, 0)
        with (
            pytest.raises(errors.LaunchError, match=f"no workspace of {size} bytes"),
            workspace.borrowed(size, 0, 0),
        ):
            pass


def test_a_workspace_is_given_back_when_a_launch_fails(fake):
    series = Series()
    series.fails = True
    with pytest.raises(errors.LaunchError, match="refused"):
        series(CALL, stream=0)
    assert len(series.launched) == 1 and not fake.allocated


def test_a_host_operand_without_memory_leaves_the_others_none(fake):
    array = np.ones(3)
    with host.DeviceCopy(array, 0, 0):
        fake.fails = {"cuMemAllocAsync": OUT_OF_MEMORY}
        with (
            pytest.raises(
                errors.LaunchError,
                match=r"no memory for a host operand's copy of 24 bytes.*OUT_OF_MEMORY",
            ),
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
        implementation="tuned", config="64x64", threads=256, dynamic_smem_bytes=0, cluster=1,
        begins_early=False,
    )  # fmt: skip
    problem = contiguous_problem("float32", 4, 5, 6)
    launch._functions[b"identity", ordinal] = 1
    return launch.KernelLaunch(made_up(record), problem, 7, ordinal)


def with_function(own):
    """A problem with an epilogue of dxgemm's own, or of the caller's."""
    fusion = Fusion((SimpleNamespace(is_own=own, operands=()),), ())
    return replace(contiguous_problem("float32", 4, 5, 6), epilogue=fusion)


def test_kernels_of_new_functions_are_unloaded_unless_something_may_launch_them(fake, graph):
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
    own += [bind()[1] for _ in range(launch.MOST_LASTING)]
    held, of_held = bind()
    plan, of_plan = bind()
    plan = plan.fixed(CALL)
    captured, of_capture = bind()
    planned, of_captured_plan = bind()
    planned = planned.fixed(CALL)
    held(CALL, stream=0)
    captured(CALL, stream=5)
    planned(stream=5)
    del captured, planned
    for _ in range(2 * launch.MOST_UNUSED):
        launched, cubin = bind()
        launched(CALL, stream=0)
        launched.fixed(CALL)(stream=0)
    gc.collect()
    bind()
    stay = {*own, of_held, of_plan, of_capture, of_captured_plan, cubin}
    assert len(unloaded) >= launch.MOST_UNUSED and not stay & set(unloaded)
    assert len(set(unloaded)) == len(unloaded)
    assert len(launch._functions) <= len(own) + launch.MOST_UNUSED + len(stay) - len(own) + 2
    gone = made_up(record, unloaded[0])
    assert not launch.is_loaded(gone, 0)
    launch.KernelLaunch(gone, with_function(False), 7, 0)(CALL, stream=0)
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
        assert first._idle is again._idle, "a kernel that was read again is the same"
        first(CALL, stream=0)
        plan = again.fixed(CALL)
        plan(stream=0)
    assert len(launch._idle) > 0
    reference = weakref.ref(first)
    del first, again, plan
    gc.collect()
    assert not launch._idle and reference() is None


def test_the_kernels_gpu_is_made_current_where_there_are_several(fake, monkeypatch):
    monkeypatch.setattr(launch, "device_count", lambda: 2)
    monkeypatch.setattr(
        launch, "current_device", lambda ordinal: nullcontext(fake.calls.append(f"on {ordinal}"))
    )
    for ordinal, made_current in ((0, []), (1, ["on 1"])):
        launched = launch_on(ordinal)
        for queue in (partial(launched, CALL), launched.fixed(CALL)):
            fake.calls = []
            queue(stream=0)
            assert fake.calls == ["cuCtxGetDevice", *made_current, "cuLaunchKernelEx"]
    fake.fails = {"cuCtxGetDevice": driver.CUresult.CUDA_ERROR_INVALID_CONTEXT}
    fake.calls = []
    launch_on(0)(CALL, stream=0)
    assert fake.calls[-2:] == ["on 0", "cuLaunchKernelEx"]


def test_the_launch_configuration_is_the_drivers(fake, kernel_launch):
    (arguments,) = kernel_launch._idle
    config, fields = arguments.config, arguments.fields
    kernel_launch(CALL, stream=12345)
    grid = config.gridDimX, config.gridDimY, config.gridDimZ
    assert grid == (7, 1, 1) and (config.blockDimX, config.blockDimY, config.blockDimZ) == (
        256,
        1,
        1,
    )
    assert int(config.hStream) == 12345
    fields.smem_bytes, fields.attribute_count = 99, 0
    assert (config.sharedMemBytes, config.numAttrs) == (99, 0)


def test_a_library_without_a_driver_for_its_cuda_has_no_streams(monkeypatch):
    def get_current_stream():
        raise RuntimeError("cudaErrorInsufficientDriver")

    broken = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=get_current_stream))
    monkeypatch.setitem(sys.modules, "cupy", broken)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert streams.library_streams(0) == []


def test_launches_of_one_kernel_share_its_arguments(fake, kernel_launch, monkeypatch):
    kernel = kernel_launch._kernel
    other_problem = contiguous_problem("float32", 40, 50, 60)
    other = launch.KernelLaunch(kernel, other_problem, 9, 0)
    plan = other.fixed(CALL)
    (arguments,) = other._idle
    assert kernel_launch._idle is other._idle
    for run, sizes, blocks in (
        (lambda: kernel_launch(CALL, stream=1), (4, 5, 6), 7),
        (lambda: other(CALL, stream=1), (40, 50, 60), 9),
        (lambda: kernel_launch(CALL, stream=1), (4, 5, 6), 7),
    ):
        run()
        packed = struct.unpack_from("@qqq", arguments.buffer, 40)
        assert packed == sizes and arguments.config.gridDimX == blocks
    with pytest.raises(TypeError), monkeypatch.context() as patch:
        patch.setattr(other, "_fixed", None)  # as an interrupt, while they are written
        other(CALL, stream=1)
    assert arguments.owner is None, "whoever comes next writes them again"
    own = getclosurevars(plan).nonlocals["self"]._idle[0].buffer
    before = bytes(own)
    kernel_launch((1, 2, 3, 4, 5.0, 6.0), 7)
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
            kernel_launch(CALL, stream=0)
        with pytest.raises(errors.LaunchError, match=name):
            kernel_launch.fixed(CALL)(0)
        fake.fails, fake.calls = {}, []
        kernel_launch(CALL, stream=0)
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
    fake.results["cuCtxGetCurrent"] = 8
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
    turn = ["cuCtxGetCurrent", "cuCtxSetCurrent 9", "work", "cuCtxSetCurrent 8"]
    assert fake.calls == [turn[0], "cuDevicePrimaryCtxRetain", *turn[1:], *turn]
    fake.results["cuCtxGetCurrent"], fake.calls = 0, []
    with device.current_device(1):
        pass
    assert fake.calls[-1] == "cuCtxSetCurrent 9", "a thread without a context keeps the GPU's"


def test_a_forked_process_is_told_that_cuda_does_not_work_there(fake, kernel_launch):
    fake.fails = dict.fromkeys(("cuLaunchKernelEx", "cuCtxGetCurrent", "cuInit"), NOT_INITIALIZED)
    with pytest.raises(errors.GpuUnavailableError, match=r"forked .*'spawn' or 'forkserver'"):
        kernel_launch(CALL, stream=0)


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


@pytest.mark.parametrize("state", ["another context", "another context, no primary one"])
def test_a_foreign_context_is_refused_and_the_primary_one_works_afterwards(
    fake, kernel_launch, monkeypatch, state
):
    monkeypatch.setattr(binding, "simulator_enabled", lambda: False)
    monkeypatch.setattr(binding, "find_kernel", lambda spec, arch: kernel_launch._kernel)
    bind = partial(binding.launch_kernel, None, kernel_launch._problem, 1, "sm_90a", 0)
    fake.results["cuCtxGetCurrent"] = 8
    fake.results["cuDevicePrimaryCtxGetState"] = (0, int(state == "another context"))
    fake.fails = {"cuLaunchKernelEx": driver.CUresult.CUDA_ERROR_INVALID_HANDLE}
    for call in (partial(kernel_launch, CALL, 0), partial(kernel_launch.fixed(CALL), 0)):
        fake.calls = []
        with pytest.raises(errors.LaunchError, match=r"context is not the primary one of GPU 0"):
            call()
        assert fake.calls.count("cuLaunchKernelEx") == 1
    with pytest.raises(errors.LaunchError, match="primary"):
        bind()
    record = SimpleNamespace(implementation="tuned", entry="kernel", dynamic_smem_bytes=0)
    fake.results |= dict.fromkeys(
        ("cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetFunction"), 5
    )
    fake.calls = []
    launch._function_handle(made_up(record, b"new"), 0)
    assert fake.calls.index(f"cuCtxSetCurrent {PRIMARY}") < fake.calls.index("cuLibraryLoadData")
    assert fake.calls[-1] == "cuCtxSetCurrent 8"
    memory = workspace.Workspace(1000, 0)
    del memory
    assert fake.calls.count(f"cuCtxSetCurrent {PRIMARY}") == 3
    for current in (PRIMARY, 0):
        fake.fails, fake.results["cuCtxGetCurrent"] = {}, current
        fake.results["cuDevicePrimaryCtxGetState"] = (0, 1)
        kernel_launch(CALL, 0)
        bind()


class Arguments:
    """Checks that each launch is given the arguments of its own call."""

    def __init__(self, fake):
        self.expected, self.launched = [], 0
        fake.on_launch = self.check

    def call(self, kernel_launch, number):
        self.expected.append(number)
        kernel_launch((number, number, number, number, float(number), 0.0), number)
        self.expected.pop()

    def check(self, config, function, parameters, extra_address):
        extra = (ctypes.c_void_p * 5).from_address(extra_address)
        packed = (ctypes.c_int64 * 4).from_address(extra[1])
        assert [*packed, int(config.hStream)] == [self.expected[-1]] * 5
        self.launched += 1


def test_a_signal_handler_may_launch_what_it_interrupts(fake, kernel_launch):
    arguments, signals, interrupting = Arguments(fake), 0, True

    def handler(*_):
        nonlocal signals
        signals += 1
        arguments.call(kernel_launch, 2)
        if interrupting:  # else a last signal would set the timer that the test has stopped
            signal.setitimer(signal.ITIMER_REAL, 1e-4 * (1 + signals % 7))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-4)
        for _ in range(20000):
            arguments.call(kernel_launch, 1)
    finally:
        interrupting = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert signals > 20 and arguments.launched == 20000 + signals


@pytest.mark.parametrize("interrupted", ["_set_arguments", "_submit"])
def test_a_finalizer_may_launch_what_it_interrupts(fake, kernel_launch, monkeypatch, interrupted):
    arguments = Arguments(fake)

    class Dropped:
        def __del__(self):
            arguments.call(kernel_launch, 2)

    original, dropped = getattr(kernel_launch, interrupted), [Dropped()]

    def collecting(*values):
        result = original(*values)
        dropped.clear()  # as a garbage collection may, within any allocation
        return result

    if interrupted == "_submit":
        collecting = lambda *values: (dropped.clear(), original(*values))[1]  # noqa: E731
    monkeypatch.setattr(kernel_launch, interrupted, collecting)
    arguments.call(kernel_launch, 1)
    arguments.call(kernel_launch, 3)
    assert arguments.launched == 3


def test_a_first_call_that_interrupts_a_first_call_is_refused():
    with capture.first_call:
        with pytest.raises(errors.LaunchError, match="signal handler or finalizer"):
            dxgemm.gemm(np.ones((2, 3)), np.ones((3, 7)))
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(dxgemm.gemm, np.ones((2, 3)), np.ones((3, 9))).result().any()
    assert (dxgemm.gemm(np.ones((2, 3)), np.ones((3, 7))) == 3).all()


CAPTURES = {"outside": (NOT_CAPTURED, 0), "one": (CAPTURED, 1), "another": (CAPTURED, 2)}


@pytest.mark.parametrize("waiting", CAPTURES)
@pytest.mark.parametrize("producing", CAPTURES)
def test_streams_of_different_captures_are_not_ordered(fake, monkeypatch, waiting, producing):
    states = {5: CAPTURES[waiting], 6: CAPTURES[producing]}
    fake.cuStreamIsCapturing = lambda stream: (SUCCESS, states[stream][0])
    fake.cuStreamGetCaptureInfo = lambda stream: (SUCCESS, *states[stream], None)
    ordered = []
    stream_type = SimpleNamespace(
        from_handle=lambda handle: SimpleNamespace(wait=lambda other: ordered.append(handle))
    )
    monkeypatch.setattr("cuda.core.Stream", stream_type)
    refuses = waiting != producing
    refusal = pytest.raises(errors.LaunchError, match=r"under capture.*another one, outside")
    with refusal if refuses else nullcontext():
        streams.wait_for(5, 6)
    assert ordered == ([] if refuses else [5])


@pytest.mark.parametrize("export", ["dlpack", "interface", "interface of a stream"])
def test_a_foreign_array_is_not_exported_under_capture(fake, monkeypatch, export):
    class Array:
        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, **options):
            raise AssertionError("the export would order streams")

    monkeypatch.setattr(exports, "simulator_enabled", lambda: False)
    monkeypatch.setattr(exports, "current_device", lambda ordinal: nullcontext())
    layout = Layout((2, 2), (8, 4), "float32", 0, read_only=False)
    made = exports.Export(Array(), 1 << 20, layout, 5, 6 if "stream" in export else 0, None)
    fake.cuStreamIsCapturing = lambda stream: (SUCCESS, CAPTURED if stream == 5 else NOT_CAPTURED)
    fake.cuStreamGetCaptureInfo = lambda stream: (
        SUCCESS, *CAPTURES["one" if stream == 5 else "outside"], None
    )  # fmt: skip
    refusal = nullcontext() if export == "interface" else pytest.raises(errors.LaunchError)
    with refusal:
        if export == "dlpack":
            exports.taken("a", Array(), 5)
        else:
            exports.EXPORTS.acquire(made, 5)


@pytest.fixture
def graph(fake):
    """Captures streams from 5 on in a graph; posts when the graph is destroyed."""
    graph = SimpleNamespace(semaphores=[], destroy=None)

    def create(semaphore, function, count, flags):
        graph.semaphores.append((int(function), semaphore))
        return SUCCESS, 77

    def destroy():
        for function, semaphore in graph.semaphores:
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(semaphore)

    graph.destroy = destroy
    fake.cuUserObjectCreate = create
    fake.cuStreamIsCapturing = lambda stream: (SUCCESS, CAPTURED if stream >= 5 else NOT_CAPTURED)
    fake.cuStreamGetCaptureInfo = lambda stream: (SUCCESS, CAPTURED, 1, 99)
    return graph


def freed(fake):
    return fake.calls.count("cuMemFree")


def test_a_graph_keeps_the_workspace_of_a_plan(fake, graph, monkeypatch):
    monkeypatch.setattr("dxgemm.runtime.program.simulator_enabled", lambda: False)
    launched = []
    captured, other = (
        FixedLaunch([workspace.Workspace(1000, 0)], [launched.append]) for _ in range(2)
    )
    captured(5)
    other(0)
    assert launched == [5, 0] and fake.calls.count("cuGraphRetainUserObject") == 1
    del other
    assert freed(fake) == 1
    del captured
    graphs.drop_released()
    assert freed(fake) == 1, "the graph uses it"
    graph.destroy()
    workspace.Workspace(1000, 0)
    assert freed(fake) == 3 and not fake.allocated, "that of the graph, and the new one"


def test_a_graph_keeps_a_prepared_operand(fake, graph):
    parts = workspace.Workspace(1000, 0)
    series = Series().prepared("memory", parts)
    series(CALL, stream=5)
    series(CALL, stream=1)
    assert fake.calls.count("cuGraphRetainUserObject") == 1
    del series, parts
    assert freed(fake) == 0
    graph.destroy()
    graphs.drop_released()
    assert freed(fake) == 1


@pytest.mark.parametrize(
    "function", ["cuStreamGetCaptureInfo", "cuUserObjectCreate", "cuGraphRetainUserObject"]
)
def test_nothing_is_launched_in_a_graph_that_cannot_keep_its_memory(fake, graph, function):
    series = Series().prepared("memory", workspace.Workspace(1000, 0))
    if function == "cuStreamGetCaptureInfo":
        fake.cuStreamGetCaptureInfo = lambda stream: (OUT_OF_MEMORY, None, None, None)
    elif function == "cuUserObjectCreate":
        fake.cuUserObjectCreate = lambda *arguments: (OUT_OF_MEMORY, None)
    fake.fails = {function: OUT_OF_MEMORY}
    with pytest.raises(errors.LaunchError, match="graph cannot keep"):
        series(CALL, stream=5)
    assert series.launched == []


@pytest.fixture
def hoarders(fake, monkeypatch):
    """CuPy and torch that hold free blocks: memory is there once they have given them back."""
    asked = []

    def give_back(name):
        asked.append(name)
        fake.fails = {} if len(asked) == 2 else fake.fails

    cuda = SimpleNamespace(
        Device=lambda ordinal: nullcontext(), get_current_stream=lambda: SimpleNamespace(ptr=3)
    )
    pool = SimpleNamespace(free_all_blocks=lambda: give_back("CuPy"))
    cupy = SimpleNamespace(cuda=cuda, get_default_memory_pool=lambda: pool)
    torch = SimpleNamespace(
        cuda=SimpleNamespace(
            is_initialized=lambda: True,
            current_stream=lambda ordinal: SimpleNamespace(cuda_stream=4),
            empty_cache=lambda: give_back("torch"),
        )
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return asked


ALLOCATIONS = {
    "cuMemAlloc": lambda: workspace.Workspace(1000, 0),
    "cuMemAllocFromPoolAsync": lambda: Series()(CALL, stream=0),
    "cuMemAllocAsync": lambda: host.DeviceCopy(np.ones(3), 0, 0).__enter__(),
}


@pytest.mark.parametrize("function", ALLOCATIONS)
def test_free_blocks_of_other_libraries_are_asked_for_once(fake, hoarders, function):
    fake.fails = {function: OUT_OF_MEMORY}
    ALLOCATIONS[function]()
    assert hoarders == ["CuPy", "torch"]
    hoarders.append("nothing is left")
    fake.fails = {function: OUT_OF_MEMORY}
    with pytest.raises(errors.LaunchError, match="OUT_OF_MEMORY, also after CuPy and torch gave"):
        ALLOCATIONS[function]()
    assert len(hoarders) == 5
    fake.fails = {function: NOT_INITIALIZED}
    with pytest.raises(errors.LaunchError, match=r"NOT_INITIALIZED\.$"):
        ALLOCATIONS[function]()
    assert len(hoarders) == 5, "no other error is one of memory"


@pytest.mark.parametrize("captured", [3, 4])
def test_free_blocks_are_left_alone_during_a_capture(fake, hoarders, captured):
    fake.cuStreamIsCapturing = lambda stream: (
        SUCCESS, CAPTURED if stream == captured else NOT_CAPTURED
    )  # fmt: skip
    fake.fails = {"cuMemAlloc": OUT_OF_MEMORY}
    with pytest.raises(errors.LaunchError, match=r"OUT_OF_MEMORY\.$"):
        workspace.Workspace(1000, 0)
    assert hoarders == []


def test_reading_a_counter_disturbs_no_capture(fake, hoarders, monkeypatch):
    for module in (counter, upload):
        monkeypatch.setattr(module, "driver_api", lambda: fake, raising=False)
    waited, relaxed = [], []
    fake.cuStreamIsCapturing = lambda stream: (SUCCESS, CAPTURED if stream == 4 else NOT_CAPTURED)
    fake.cuStreamSynchronize = lambda stream: (waited.append(stream), (SUCCESS,))[1]
    fake.cuThreadExchangeStreamCaptureMode = lambda mode: (relaxed.append(mode), (SUCCESS, 0))[1]
    fake.results["cuStreamCreate"] = 11
    read = counter.Counter(0)
    waited.clear()
    assert read.read() == 0
    assert sorted(waited) == [0, 3, 11], "the captured stream is not waited for"
    assert not {"cuCtxSynchronize", "cuMemcpyDtoH", "cuMemcpyHtoD"} & set(fake.calls)
    modes = relaxed[::2]
    assert set(modes) == {driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED}


UNREADABLE = ("NO_BINARY_FOR_GPU", "INVALID_IMAGE", "UNSUPPORTED_PTX_VERSION", "NOT_FOUND")


@pytest.fixture
def cubins(fake, monkeypatch, tmp_path):
    """A store with an old cubin of a kernel; builds give new ones, and the driver loads `loads`."""
    spec = ahead.kernel_specs(("float32",), ("coalesced",))[0]
    store = KernelStore(tmp_path)
    made = partial(counted_builds.made_up_kernel, implementation="c", config="c", arch="sm_90a")
    cubins = SimpleNamespace(spec=spec, store=store, built=0, loads={b"new 1"}, error=None)
    store.save(spec.key("sm_90a"), made(b"old"))

    def compile_kernel(spec, arch):
        cubins.built += 1
        return made(b"new %d" % cubins.built)

    def load(cubin, *rest):
        return (SUCCESS, 5) if cubin in cubins.loads else (cubins.error, None)

    cubins.bind = lambda: binding.launch_kernel(
        spec, contiguous_problem("float32", 4, 5, 6), 1, "sm_90a", 0
    )
    monkeypatch.setattr(kernels, "kernel_store", lambda: store)
    monkeypatch.setattr(kernels, "compile_kernel", compile_kernel)
    monkeypatch.setattr(kernels, "_in_memory", OrderedDict())
    monkeypatch.setattr(kernels, "_replaced", set())
    monkeypatch.setattr(binding, "simulator_enabled", lambda: False)
    fake.cuLibraryLoadData = load
    fake.results |= {"cuLibraryGetKernel": 5, "cuKernelGetFunction": 5}
    return cubins


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_cubin_that_the_driver_cannot_use_is_built_again_once(cubins, name):
    cubins.error = getattr(driver.CUresult, f"CUDA_ERROR_{name}")
    for _ in range(2):
        assert cubins.bind()._kernel.cubin == b"new 1"
    assert cubins.built == 1
    assert cubins.store.load(cubins.spec.key("sm_90a")).cubin == b"new 1"
    cubins.loads = set()
    launch._functions.clear()
    launch._idle.clear()
    for _ in range(2):
        with pytest.raises(
            errors.LaunchError, match=f"{name}. It cannot be built again: .*already"
        ):
            cubins.bind()
    assert cubins.built == 1


def test_a_cubin_that_another_process_has_replaced_is_not_built(cubins):
    cubins.error, cubins.loads = driver.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU, {b"theirs"}
    old = kernels.find_kernel(cubins.spec, "sm_90a")
    assert old.cubin == b"old"
    cubins.store.save(cubins.spec.key("sm_90a"), replace(old, cubin=b"theirs"))
    assert cubins.bind()._kernel.cubin == b"theirs" and cubins.built == 0


def test_a_kernel_of_a_wheel_that_the_driver_cannot_use_is_built(cubins, monkeypatch):
    cubins.error = driver.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU
    kernel = cubins.store.load(cubins.spec.key("sm_90a"))
    wheel = SimpleNamespace(load=lambda key: replace(kernel, cubin=b"of the wheel"))
    monkeypatch.setattr(kernels, "kernel_wheel", lambda arch: wheel)
    assert cubins.store.clear() == 1
    assert cubins.bind()._kernel.cubin == b"new 1"
    kernels._in_memory.clear()  # another process finds the wheel first
    assert cubins.bind()._kernel.cubin == b"new 1" and cubins.built == 1


def test_other_errors_of_a_load_build_nothing(cubins):
    cubins.error = OUT_OF_MEMORY
    with pytest.raises(errors.LaunchError, match=r"OUT_OF_MEMORY\.$"):
        cubins.bind()
    assert cubins.built == 0


def test_memory_is_taken_and_given_back_outside_of_a_capture(fake):
    memory = workspace.Workspace(1000, 0)
    del memory
    exchange = "cuThreadExchangeStreamCaptureMode"
    calls = [call for call in fake.calls if "Ctx" not in call]
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
        refused((a.data.ptr, a.data.ptr, out.data.ptr, out.data.ptr, 1.0, 0.0), 0)
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
