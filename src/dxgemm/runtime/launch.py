"""Launches of cubins with next to no host work: their arguments are one packed buffer."""

from __future__ import annotations

import ctypes
import struct
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakValueDictionary, finalize

from dxgemm.compiler import PARAMETERS, CompiledKernel
from dxgemm.compiler.locks import lock_across_forks
from dxgemm.errors import LaunchError
from dxgemm.gpu.status import probe
from dxgemm.problem.kernel_arguments import Arguments, Call
from dxgemm.runtime.capture import launch_is_captured, outside_capture
from dxgemm.runtime.device import (
    current_device,
    device_count,
    driver_api,
    refuse_foreign_context,
)
from dxgemm.runtime.graphs import keep_in_graph
from dxgemm.runtime.tensor_maps import TensorMap, TensorMaps

CAPTURES_EARLY = 12030  # first CUDA version that captures launches which begin early
# Native sizes and alignment ("@"), as the C struct of a kernel's parameters.
_SCALAR_FORMATS = {"float32": "f", "float64": "d", "int32": "i", "int64": "q"}
CALL_PARAMETERS = 6  # four pointers, alpha and beta
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 0  # CU_LAUNCH_PARAM_*

# Errors of a driver that cannot use a cubin, whatever the state of the GPU.
_UNREADABLE = {
    f"CUDA_ERROR_{name}"
    for name in (
        "INVALID_IMAGE", "INVALID_SOURCE", "INVALID_PTX", "UNSUPPORTED_PTX_VERSION",
        "NO_BINARY_FOR_GPU", "UNSUPPORTED_DEVSIDE_SYNC", "NOT_FOUND", "SYMBOL_NOT_FOUND",
    )
}  # fmt: skip

Key = tuple[bytes, int]  # of a loaded kernel: its identity, and the GPU
_functions: dict[Key, int] = {}
_libraries: dict[Key, Any] = {}  # that the functions are of
_idle: WeakValueDictionary[Key, _Idle] = WeakValueDictionary()

# There may be kernels with a new function of the caller for each request. Of these, the first ones
# stay loaded, so that no launch of a usual program asks for captures; then the ones bound last, and
# those of graphs and of launches that live. All other kernels stay.
MOST_LASTING = MOST_UNUSED = 256
_lasting: set[Key] = set()
_first: set[Key] = set()  # of the caller's functions
_leases: WeakValueDictionary[Key, _Lease] = WeakValueDictionary()
_recent: OrderedDict[Key, _Lease] = OrderedDict()
_unused: deque[Key] = deque()  # filled by the garbage collector, which must not call the driver
_loading = lock_across_forks()  # held while a kernel is found or loaded, or unloaded


class UnreadableCubinError(LaunchError):
    """The driver cannot use this cubin; built again, the kernel may be loaded."""


def kernel_arguments(problem: Arguments) -> tuple[int, ...]:
    """Arguments that a problem fixes, in the order of `PARAMETERS`: sizes, then strides."""
    p = problem
    return p.m, p.n, p.k, p.batch, *p.a, *p.b, *p.c, *p.out


@cache
def _formats(scalar_dtype: str) -> tuple[struct.Struct, struct.Struct]:
    """C structs of the parameters of a call, and of those of a problem, which follow them."""
    kinds = {"pointer": "P", "int64": "q", "scalar": _SCALAR_FORMATS[scalar_dtype]}
    formats = [kinds[kind] for _, kind in PARAMETERS]
    of_call, fixed = formats[:CALL_PARAMETERS], formats[CALL_PARAMETERS:]
    return struct.Struct("@" + "".join(of_call)), struct.Struct("@" + "".join(fixed))


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig of cuda.h; setting a field of the bindings' own class takes a microsecond."""

    _fields_ = (
        *((f"grid_{axis}", ctypes.c_uint) for axis in "xyz"),
        *((f"block_{axis}", ctypes.c_uint) for axis in "xyz"),
        ("smem_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


@cache
def _captures_early() -> bool:
    """True if the driver captures launches that begin early in graphs."""
    return (probe().driver_version or 0) >= CAPTURES_EARLY


def launch_config(kernel: CompiledKernel) -> tuple[Any, _LaunchConfig]:
    """Launch configuration of a kernel for the driver, and its memory; grid and stream are 0."""
    driver = driver_api()
    config, names = driver.CUlaunchConfig(), driver.CUlaunchAttributeID
    cluster, attributes = kernel.record.cluster, []
    if cluster > 1:
        attribute = driver.CUlaunchAttribute()
        attribute.id = names.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        extents = attribute.value.clusterDim
        extents.x, extents.y, extents.z = cluster, 1, 1
        attributes.append(attribute)
    if kernel.record.begins_early and _captures_early():
        attribute = driver.CUlaunchAttribute()
        attribute.id = names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    config.attrs = attributes
    fields = _LaunchConfig.from_address(config.getPtr())
    fields.grid_z = fields.block_y = fields.block_z = 1
    fields.block_x = kernel.record.threads
    fields.smem_bytes = kernel.record.dynamic_smem_bytes
    fields.attribute_count = len(attributes)
    return config, fields


class _Lease:
    """Use of a kernel that can be unloaded, which the launches and graphs of it share."""

    def __init__(self, key: Key) -> None:
        finalize(self, _unused.append, key).atexit = False


def _lease_of(key: Key, is_lasting: bool) -> _Lease | None:
    """Find or make the lease of a kernel; None of one that stays loaded."""
    if not is_lasting and len(_first) < MOST_LASTING:
        _first.add(key)
    if is_lasting or key in _first or key in _lasting:
        _lasting.add(key)
        return None
    lease = _leases.get(key)
    if lease is None:
        lease = _leases[key] = _Lease(key)
    _recent[key] = lease
    _recent.move_to_end(key)
    while len(_recent) > MOST_UNUSED:
        _recent.popitem(last=False)
    return lease


def _unload_unused() -> None:
    """Unload the kernels that have no lease any more."""
    while _unused and not launch_is_captured():
        gone = _unused.popleft()
        if gone not in _leases and gone not in _lasting and gone in _libraries:
            del _functions[gone]
            with current_device(gone[1]), outside_capture():
                driver_api().cuLibraryUnload(_libraries.pop(gone))


class _Idle(list["_Arguments"]):
    """Argument memory of a kernel that no call is using."""


class _Arguments:
    """Memory from which the driver takes a kernel's arguments and launch configuration.

    The driver copies both during the launch, which runs without Python's lock. So a launch takes
    them off the list of idle ones until it has returned. There is no lock to wait for: another
    thread, or a call in a signal handler or a finalizer that interrupts this one, finds the list
    empty and makes arguments of its own.

    Attributes:
        buffer: arguments of the call, arguments that the problem fixes, epilogue arguments and
            tensor maps, in this order.
        fixed: slice of the arguments that the problem fixes.
        operands, maps: offsets of the epilogue arguments and of the tensor maps.
        pack, pack_operands: functions that write the arguments of a call, and of its epilogue.
        submit: the driver's launch.
        config: launch configuration for the driver.
        fields: memory of config, as a C struct.
        owner: the launch that wrote the grid and the arguments that its problem fixes.
        lease: use of a kernel that can be unloaded; None of one that stays.
    """

    def __init__(
        self, kernel: CompiledKernel, problem: Arguments, ordinal: int, maps_size: int
    ) -> None:
        driver = driver_api()
        self.kernel = kernel
        with _loading:
            self.function = driver.CUfunction(_function_handle(kernel, ordinal))
            is_lasting = problem.epilogue is None or problem.epilogue.is_own
            self.lease = _lease_of((kernel.identity, ordinal), is_lasting)
            _unload_unused()
        self.submit = submit_on(ordinal)
        of_call, fixed = _formats(problem.scalar_dtype)
        self.pack = of_call.pack_into
        self.operands = of_call.size + fixed.size
        self.fixed = slice(of_call.size, self.operands)
        operands = struct.Struct("@" + (problem.epilogue.format if problem.epilogue else ""))
        self.pack_operands = operands.pack_into if operands.size else None
        self.maps = size = self.operands + operands.size
        if maps_size:
            parameters = len(PARAMETERS) + len(operands.format) - 1
            self.maps = parameter_offset(self.function, parameters)
            size = self.maps + maps_size
        self.buffer = bytearray(size)  # packed into twice as fast as a ctypes array
        self._view = (ctypes.c_char * size).from_buffer(self.buffer)
        self._size = ctypes.c_size_t(size)
        self._extra = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER, ctypes.addressof(self._view),
            _BUFFER_SIZE, ctypes.addressof(self._size),
            _END,
        )  # fmt: skip
        self.extra_address = ctypes.addressof(self._extra)
        self.config, self.fields = launch_config(kernel)
        self.owner: KernelLaunch | None = None


class KernelLaunch:
    """Kernel bound to one problem: call it with pointers, alpha, beta and a stream."""

    def __init__(
        self,
        kernel: CompiledKernel,
        problem: Arguments,
        blocks: int,
        ordinal: int,
        tensor_maps: tuple[TensorMap | bytes | None, ...] = (),
        *,
        is_alone: bool = False,
    ) -> None:
        """Bind the kernel; this is cheap if it has been bound to another problem before.

        Args:
            kernel: the built kernel.
            problem: the problem that it computes.
            blocks: blocks of the grid, for each split-K slice.
            ordinal: ordinal of the GPU.
            tensor_maps: tensor maps of the operands that the kernel reads by TMA.
            is_alone: True to give the launch argument memory of its own, for `fixed`.
        """
        self._problem = problem
        self._blocks, self._slices = blocks, problem.slices
        self._ordinal = ordinal
        self._tensor_maps = TensorMaps(tensor_maps, ordinal) if tensor_maps else None
        self._kernel = kernel
        key = kernel.identity, ordinal
        shared = None if is_alone else _idle.get(key)
        if shared is None:
            shared = _Idle() if is_alone else _idle.setdefault(key, _Idle())
        self._idle = shared
        try:
            arguments = shared.pop()
        except IndexError:
            arguments = None
        arguments = arguments or self._new_arguments()
        # Copied to attributes of this object, because each call reads them.
        self._pack, self._function = arguments.pack, arguments.function
        self._lease = arguments.lease
        self._operands, self._pack_operands = arguments.operands, arguments.pack_operands
        self._idle.append(arguments)
        self._fixed = _formats(problem.scalar_dtype)[1].pack(*kernel_arguments(problem))
        self._submit = arguments.submit

    def __call__(self, call: Call, stream: int) -> None:
        """Queue the kernel on a stream, a raw handle, and return at once.

        Raises:
            LaunchError: the driver refused the launch.
        """
        idle = self._idle
        try:
            arguments = idle.pop()
        except IndexError:
            arguments = None  # other calls use all there are
        if arguments is None:
            arguments = self._new_arguments()
        try:
            self._set_arguments(arguments, call)
            arguments.fields.stream = stream
            if self._lease is not None:
                keep_in_graph(stream, self._lease)
            extra_address = arguments.extra_address
            (error,) = self._submit(arguments.config, self._function, 0, extra_address)
            if error:
                self._queue_in_context(arguments.config, extra_address)
        finally:
            idle.append(arguments)

    def fixed(self, call: Call) -> Callable[[int], None]:
        """Pack all arguments but the stream in memory of its own, for many quick calls."""
        maps = self._tensor_maps.maps if self._tensor_maps else ()
        launch = KernelLaunch(
            self._kernel, self._problem, self._blocks, self._ordinal, maps, is_alone=True
        )
        (arguments,) = launch._idle
        launch._set_arguments(arguments, call)
        return launch._queue_again(arguments)

    def _new_arguments(self) -> _Arguments:
        maps_size = self._tensor_maps.size if self._tensor_maps else 0
        return _Arguments(self._kernel, self._problem, self._ordinal, maps_size)

    def _set_arguments(self, arguments: _Arguments, call: Call) -> None:
        buffer = arguments.buffer
        if arguments.owner is not self:
            arguments.owner = None  # while they are written: an interrupt may come between
            buffer[arguments.fixed] = self._fixed
            fields = arguments.fields
            fields.grid_x, fields.grid_y = self._blocks, self._slices
            arguments.owner = self
        self._pack(buffer, 0, *call[:CALL_PARAMETERS])
        if self._pack_operands:
            self._pack_operands(buffer, self._operands, *call[CALL_PARAMETERS:])
        if self._tensor_maps:
            buffer[arguments.maps :] = self._tensor_maps.encode(*call[:2])

    def _queue_again(self, arguments: _Arguments) -> Callable[[int], None]:
        """Function that queues the kernel with its arguments as they are; it looks nothing up."""
        configs: dict[int, Any] = {}  # by stream; a thread may use another one at the same time
        submit, function, extra_address = self._submit, self._function, arguments.extra_address
        lease = self._lease

        def queue(stream: int) -> None:
            config = configs.get(stream) or self._config_on(stream, configs)
            if lease is not None:
                keep_in_graph(stream, lease)
            (error,) = submit(config, function, 0, extra_address)
            if error:
                self._queue_in_context(config, extra_address)

        return queue

    def _config_on(self, stream: int, configs: dict[int, Any]) -> Any:
        config, fields = launch_config(self._kernel)
        fields.grid_x, fields.grid_y = self._blocks, self._slices
        fields.stream = stream
        configs[stream] = config
        return config

    def _queue_in_context(self, config: Any, extra_address: int) -> None:
        """Queue again after an error: most likely this thread has no current context yet.

        Raises:
            LaunchError: another context than a primary one is current, or there was no other cause
                that this could remove.
        """
        refuse_foreign_context()
        with current_device(self._ordinal):
            (error,) = self._submit(config, self._function, 0, extra_address)
        if error:
            record = self._kernel.record
            raise LaunchError(
                f"gemm: the driver refused to launch {record.implementation} {record.config} "
                f"({self._blocks} blocks of {record.threads} threads): {error.name}."
            )


def submit_on(ordinal: int) -> Callable[..., Any]:
    """The driver's launch, for kernels of one GPU.

    With one GPU there may only be no current context at all, which the launch reports. With several
    another one's may be current, so each launch asks first.
    """
    driver = driver_api()
    submit, current_gpu = driver.cuLaunchKernelEx, driver.cuCtxGetDevice
    if device_count() == 1:
        return submit

    def submit_there(*arguments: Any) -> Any:
        error, current = current_gpu()
        if error or int(current) != ordinal:
            with current_device(ordinal):
                return submit(*arguments)
        return submit(*arguments)

    return submit_there


def parameter_offset(function: Any, index: int) -> int:
    """Offset that the compiler gave a parameter; that of an aligned one need not be a multiple."""
    error, offset, _ = driver_api().cuFuncGetParamInfo(function, index)
    if error:
        raise LaunchError(f"gemm: the driver does not know parameter {index}: {error.name}.")
    return int(offset)


def is_loaded(kernel: CompiledKernel | None, ordinal: int) -> bool:
    """True if a kernel is loaded on a GPU already."""
    return kernel is not None and (kernel.identity, ordinal) in _functions


def function_of(kernel: CompiledKernel, ordinal: int) -> Any:
    """Function of a kernel on a GPU, where it stays loaded."""
    with _loading:
        handle = _function_handle(kernel, ordinal)
        _lasting.add((kernel.identity, ordinal))
    return driver_api().CUfunction(handle)


def _function_handle(kernel: CompiledKernel, ordinal: int) -> int:
    """Handle of the kernel's function on a GPU: faster to launch than the library's kernel."""
    key = kernel.identity, ordinal
    if key not in _functions:
        _functions[key] = _load(kernel, ordinal)
    return _functions[key]


def _load(kernel: CompiledKernel, ordinal: int) -> int:
    """Load a cubin and return its function."""
    driver = driver_api()
    with current_device(ordinal), outside_capture():
        error, library = driver.cuLibraryLoadData(kernel.cubin, [], [], 0, [], [], 0)
        if not error:
            error, entry = driver.cuLibraryGetKernel(library, kernel.record.entry.encode())
        if not error:
            error, function = driver.cuKernelGetFunction(entry)
        if not error and kernel.record.dynamic_smem_bytes:
            limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            (error,) = driver.cuFuncSetAttribute(function, limit, kernel.record.dynamic_smem_bytes)
    if error:
        refusal = UnreadableCubinError if error.name in _UNREADABLE else LaunchError
        raise refusal(f"gemm: cannot load {kernel.record.implementation}: {error.name}.")
    _libraries[kernel.identity, ordinal] = library
    return int(function)
