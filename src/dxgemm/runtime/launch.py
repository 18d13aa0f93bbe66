"""Launching a cubin with next to no host work: its arguments are one packed buffer."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from dxgemm._errors import LaunchError
from dxgemm._problem import Problem
from dxgemm.compiler import PARAMETERS, CompiledKernel
from dxgemm.runtime.capture import outside_capture
from dxgemm.runtime.device import current_device, device_count, driver_api
from dxgemm.runtime.tensor_maps import TensorMap, TensorMaps

# Native sizes and alignment ("@"), as the C struct of a kernel's parameters.
_SCALAR_FORMATS = {"float32": "f", "float64": "d", "int32": "i"}
_CALL_PARAMETERS = 6  # four pointers, alpha and beta
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 0  # CU_LAUNCH_PARAM_*

_functions: dict[tuple[bytes, int], int] = {}  # by cubin and GPU


def kernel_arguments(problem: Problem) -> dict[str, int]:
    """The arguments that a problem fixes: sizes, and strides in elements."""
    return {
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "batch": problem.batch,
        "a_stride_batch": problem.a.batch,
        "a_stride_m": problem.a.row,
        "a_stride_k": problem.a.col,
        "b_stride_batch": problem.b.batch,
        "b_stride_k": problem.b.row,
        "b_stride_n": problem.b.col,
        "c_stride_batch": problem.c.batch,
        "c_stride_m": problem.c.row,
        "c_stride_n": problem.c.col,
        "out_stride_batch": problem.out.batch,
        "out_stride_m": problem.out.row,
        "out_stride_n": problem.out.col,
    }


@cache
def _formats(scalar_dtype: str) -> tuple[struct.Struct, struct.Struct]:
    """The parameters that change from call to call, and all parameters, as C structs."""
    kinds = {"pointer": "P", "int64": "q", "scalar": _SCALAR_FORMATS[scalar_dtype]}
    formats = "".join(kinds[kind] for _, kind in PARAMETERS)
    return struct.Struct("@" + formats[:_CALL_PARAMETERS]), struct.Struct("@" + formats)


class KernelLaunch:
    """One kernel bound to one problem: call it with pointers, alpha, beta and a stream.

    The driver copies the arguments during the launch, which runs without Python's lock: a lock of
    our own keeps threads from overwriting each other's pointers.
    """

    def __init__(
        self,
        kernel: CompiledKernel,
        problem: Problem,
        blocks: int,
        ordinal: int,
        tensor_maps: tuple[TensorMap | bytes | None, ...] = (),
    ) -> None:
        self._kernel = kernel
        self._problem = problem
        self._blocks = blocks
        self._ordinal = ordinal
        self._lock = threading.Lock()
        driver = driver_api()
        self._function = driver.CUfunction(_function_handle(kernel, ordinal))
        self._submit = driver.cuLaunchKernelEx
        self._configs: dict[int, Any] = {}  # by stream
        # Another GPU's context may be current; with one GPU only none at all, which a launch tells.
        self._context_may_differ = device_count() > 1

        arguments = kernel_arguments(problem)
        fixed = [arguments[name] for name, _ in PARAMETERS[_CALL_PARAMETERS:]]
        of_call, everything = _formats(problem.scalar_dtype)
        self._pack = of_call.pack_into
        size = everything.size
        operands = problem.epilogue.format if problem.epilogue else ""
        self._pack_operands = struct.Struct("@" + operands).pack_into if operands else None
        self._operands_offset = size
        size += struct.calcsize("@" + operands)
        self._tensor_maps = TensorMaps(tensor_maps, ordinal) if tensor_maps else None
        if self._tensor_maps:
            parameters = len(PARAMETERS) + len(operands)
            self._tensor_maps_offset = _parameter_offset(self._function, parameters)
            size = self._tensor_maps_offset + self._tensor_maps.size
        self._buffer = bytearray(size)  # packed into twice as fast as a ctypes array
        everything.pack_into(self._buffer, 0, *(0,) * _CALL_PARAMETERS, *fixed)
        self._view = (ctypes.c_char * size).from_buffer(self._buffer)
        self._size = ctypes.c_size_t(size)
        self._extra = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER, ctypes.addressof(self._view),
            _BUFFER_SIZE, ctypes.addressof(self._size),
            _END,
        )  # fmt: skip
        self._extra_address = ctypes.addressof(self._extra)

    def __call__(
        self,
        a: int,
        b: int,
        c: int,
        out: int,
        alpha: float,
        beta: float,
        stream: int,
        operands: tuple[Any, ...] = (),
    ) -> None:
        """Queue the kernel on a stream, a raw handle, and return at once.

        `operands` are the arguments of the problem's epilogue, if it has one.

        Raises:
            LaunchError: the driver refused.
        """
        with self._lock:
            self._set_arguments(a, b, c, out, alpha, beta, operands)
            self._queue(stream)

    def fixed(
        self,
        a: int,
        b: int,
        c: int,
        out: int,
        alpha: float,
        beta: float,
        operands: tuple[Any, ...] = (),
    ) -> Callable[[int], None]:
        """The launch with everything but the stream packed for good, in a buffer of its own."""
        maps = self._tensor_maps.maps if self._tensor_maps else ()
        launch = KernelLaunch(self._kernel, self._problem, self._blocks, self._ordinal, maps)
        launch._set_arguments(a, b, c, out, alpha, beta, operands)
        return launch._queue

    def _set_arguments(
        self,
        a: int,
        b: int,
        c: int,
        out: int,
        alpha: float,
        beta: float,
        operands: tuple[Any, ...],
    ) -> None:
        self._pack(self._buffer, 0, a, b, c, out, alpha, beta)
        if self._pack_operands:
            self._pack_operands(self._buffer, self._operands_offset, *operands)
        if self._tensor_maps:
            self._buffer[self._tensor_maps_offset :] = self._tensor_maps.encode(a, b)

    def _queue(self, stream: int) -> None:
        config = self._configs.get(stream) or self._config(stream)
        if self._context_may_differ:
            self._queue_in_context(config)
            return
        (error,) = self._submit(config, self._function, 0, self._extra_address)
        if error:
            # Most likely a thread that never used CUDA, which has no current context yet.
            self._queue_in_context(config)

    def _config(self, stream: int) -> Any:
        """The launch configuration on a stream, made once: it saves converting nine arguments."""
        driver = driver_api()
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self._blocks, self._problem.slices, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self._kernel.record.threads, 1, 1
        config.sharedMemBytes = self._kernel.record.dynamic_smem_bytes
        config.hStream = driver.CUstream(stream)
        if self._kernel.record.cluster > 1:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            size = attribute.value.clusterDim
            size.x, size.y, size.z = self._kernel.record.cluster, 1, 1
            config.attrs, config.numAttrs = [attribute], 1
        else:
            config.numAttrs = 0
        self._configs[stream] = config
        return config

    def _queue_in_context(self, config: Any) -> None:
        with current_device(self._ordinal):
            (error,) = self._submit(config, self._function, 0, self._extra_address)
        if error:
            record = self._kernel.record
            raise LaunchError(
                f"gemm: the driver refused to launch {record.implementation} {record.config} "
                f"({self._blocks} blocks of {record.threads} threads): {error.name}."
            )


def _parameter_offset(function: Any, index: int) -> int:
    """Where the compiler put a parameter: one of 64-byte alignment need not be at a multiple."""
    error, offset, _ = driver_api().cuFuncGetParamInfo(function, index)
    if error:
        raise LaunchError(f"gemm: the driver does not know parameter {index}: {error.name}.")
    return int(offset)


def is_loaded(kernel: CompiledKernel | None, ordinal: int) -> bool:
    """Whether a kernel can be launched on a GPU without loading it."""
    return kernel is not None and (kernel.cubin, ordinal) in _functions


def _function_handle(kernel: CompiledKernel, ordinal: int) -> int:
    """The kernel's function in one GPU's context: quicker to launch than the library's kernel."""
    key = kernel.cubin, ordinal
    if key not in _functions:
        _functions[key] = _load(kernel, ordinal)
    return _functions[key]


def _load(kernel: CompiledKernel, ordinal: int) -> int:
    """The function of a newly loaded cubin, which stays loaded."""
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
        raise LaunchError(f"gemm: cannot load {kernel.record.implementation}: {error.name}.")
    return int(function)
