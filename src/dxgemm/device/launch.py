"""Launches of kernels of the caller's: arrays and numbers as numba's kernels take them."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Collection
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from dxgemm.call.operand import Operand, inspected
from dxgemm.compiler import CompiledKernel, FunctionSpec, compute_capability, obtain_kernel
from dxgemm.device.kernel import UserKernel
from dxgemm.errors import (
    DeviceMismatchError,
    DtypeError,
    LaunchError,
    SettingError,
    ShapeError,
    UnsupportedProblemError,
    shown,
)
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.parts.kernel import MOST_BLOCKS, MOST_INDEX
from dxgemm.handwritten.parts.operands import HALVES
from dxgemm.handwritten.parts.tensor_map import MOST_ELEMENTS
from dxgemm.handwritten.parts.tensor_map import Operand as Matrix
from dxgemm.handwritten.parts.wgmma_ring import WARPGROUP_ROWS
from dxgemm.problem.layout import refuse_misaligned
from dxgemm.runtime.arrays import HOST, host_view
from dxgemm.runtime.capture import is_captured
from dxgemm.runtime.device import current_device, device_facts, refuse_foreign_context
from dxgemm.runtime.exports import in_order, indexable
from dxgemm.runtime.host import DeviceCopy, device_copy_layout
from dxgemm.runtime.streams import stream_handle
from dxgemm.runtime.tensor_maps import encode

MODULE = "dxgemm.handwritten.frames.block_tile"
HOPPER = "sm_90a"  # has wgmma
LEAST_CAPABILITY = 80  # whose cp.async all tiles use
MOST_GRID = (MOST_BLOCKS, 65535, 65535)
# Formats of numbers, by dtype, and dtypes of arrays.
_FORMATS = {
    "bool": "?", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i",
    "uint32": "I", "int64": "q", "uint64": "Q", "float32": "f", "float64": "d",
}  # fmt: skip
_ELEMENTS = {*_FORMATS, "float16", "bfloat16", "complex64", "complex128"}


def check_grid(grid: Any) -> tuple[int, int, int]:
    """Blocks along x, y and z.

    Raises:
        SettingError: it is no number of blocks, and no tuple of up to three.
    """
    extents = grid if isinstance(grid, tuple) else (grid,)
    for extent, most in zip(extents, MOST_GRID, strict=False):
        is_integer = isinstance(extent, int | np.integer) and not isinstance(extent, bool)
        if not is_integer or not 0 <= extent <= most:
            extents = ()
    if not 1 <= len(extents) <= len(MOST_GRID):
        raise SettingError(
            f"gemm: grid is {shown(grid)}; pass a number of blocks, or a tuple of up to three, of "
            f"at most {MOST_GRID}."
        )
    x, y, z = (*map(int, extents), 1, 1)[:3]
    return x, y, z


def bind_kernel(
    kernel: UserKernel,
    tile: Any,
    tiles: Collection[Any],
    grid: tuple[int, int, int],
    arguments: tuple[Any, ...],
    stream: Any,
) -> Callable[[], None]:
    """Build and load a kernel; return a call that queues it, with blocks of a tile's threads.

    Args:
        tiles: those that the kernel has, for which there must be shared memory.
    """
    function = kernel.function
    most = function.__code__.co_argcount
    if not most - len(function.__defaults__ or ()) <= len(arguments) <= most:
        raise SettingError(
            f"gemm: {kernel.name} takes {most} arguments, but {len(arguments)} are passed."
        )
    handle = None if stream is None else stream_handle(stream)
    arrays = [value for value in arguments if not _is_number(value)]
    read = [
        _number(name, value) if _is_number(value) else inspected(name, value, handle, *arrays)
        for name, value in ((f"argument {i}", value) for i, value in enumerate(arguments))
    ]
    operands = [value for value in read if isinstance(value, Operand)]
    ordinal = _check_operands(kernel, operands)
    _check_kept(kernel, read)
    facts = device_facts(ordinal)
    smem_bytes = max(each.smem_bytes for each in tiles)
    _check_fits(kernel, tile, smem_bytes, facts)
    is_hopper = any(each.needs_hopper for each in tiles)
    if is_hopper and facts.arch != HOPPER:
        raise UnsupportedProblemError(
            f"gemm: {kernel.name} has a tile by wgmma, which {facts.name} ({facts.arch}) lacks; "
            "make it without instruction=."
        )
    if 0 in grid:
        return lambda: None
    if simulator_enabled():
        return partial(_simulate, kernel, tile, grid, smem_bytes, arguments)
    refuse_foreign_context()
    with current_device(ordinal):
        mapped = [_tensor_map(value) if is_hopper else ("", b"") for value in read]
    tensor_maps = b"".join(encoded for _, encoded in mapped)
    spec = FunctionSpec(
        kernel.name, kernel.digest, kernel.make, tuple(map(_type_of, read, mapped)), MODULE,
        "; ".join(sorted(each.key for each in tiles)), tile.threads,
        max(1, min(each.min_blocks for each in tiles)), smem_bytes,
    )  # fmt: skip
    compiled = obtain_kernel(spec, facts.arch)
    on_device = [operand for operand in operands if operand.layout.device != HOST]
    first = on_device[0] if on_device else None
    # Arrays of one library are ordered by its current stream, on which the kernel then runs.
    ordered = [
        (operand.library, operand.array)
        for operand in on_device
        if handle is not None or operand.library.always_ordered
        or operand.library is not on_device[0].library
    ]  # fmt: skip
    if len(on_device) < len(operands):
        queue = _queue_with_copies(compiled, grid, read, tensor_maps, ordinal)
    else:
        queue = _queue(compiled, grid, read, tensor_maps, ordinal)

    def call() -> None:
        target = handle or 0
        if handle is None and first is not None:
            target = first.library.current_stream(first.array)
        if not ordered:
            queue(target)
            return
        with in_order(ordered, ordinal, target):
            queue(target)

    return call


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | np.bool_ | np.number)


def _number(name: str, value: Any) -> np.generic:
    """A number as NumPy's scalar."""
    kinds = {bool: np.bool_, int: np.int64, float: np.float64}
    try:
        scalar: np.generic = kinds.get(type(value), lambda number: number)(value)
    except OverflowError:
        raise DtypeError(f"gemm: {name} is {value}, beyond 64 bits.") from None
    if scalar.dtype.name not in _FORMATS:
        raise DtypeError(
            f"gemm: {name} is of {scalar.dtype.name}; numbers are of "
            f"{', '.join(_FORMATS)}: pass it as an array of one element."
        )
    return scalar


def _check_operands(kernel: UserKernel, operands: list[Operand]) -> int:
    """Check arrays; return the ordinal of their GPU, or of the first one."""
    devices = {operand.layout.device for operand in operands} - {HOST}
    if len(devices) > 1:
        raise DeviceMismatchError(
            f"gemm: the arrays of {kernel.name} are on GPUs {sorted(devices)}; put them on one."
        )
    for operand in operands:
        if operand.layout.dtype not in _ELEMENTS:
            raise DtypeError(
                f"gemm: {operand.name} is of {operand.layout.dtype}, which kernels do not take."
            )
        refuse_misaligned(f"gemm: {operand.name}", operand.layout)
        if max(operand.layout.shape, default=0) > MOST_INDEX:
            raise UnsupportedProblemError(
                f"gemm: {operand.name} is {operand.layout.shape}; tiles index up to {MOST_INDEX} "
                "rows or columns: pass parts of it."
            )
    return devices.pop() if devices else 0


def _check_kept(kernel: UserKernel, read: list[Any]) -> None:
    """Check that what a tile keeps has the rows of the arguments that it is multiplied by."""
    for tile, place in kernel.beside_kept:
        operand = read[place]
        shape: tuple[int, ...] = operand.layout.shape if isinstance(operand, Operand) else ()
        if len(shape) == 2 and shape[0] > tile.kept:
            raise ShapeError(
                f"gemm: {kernel.name}: {operand.name} has {shape[0]} rows, but is multiplied "
                f"by the {tile.kept} columns that a tile keeps; make the tile with "
                f"kept={shape[0]}."
            )


def _check_fits(kernel: UserKernel, tile: Any, smem_bytes: int, facts: DeviceFacts) -> None:
    if smem_bytes > facts.smem_bytes_per_block:
        raise UnsupportedProblemError(
            f"gemm: {kernel.name} takes {smem_bytes} bytes of shared memory per block, but "
            f"{facts.name} has {facts.smem_bytes_per_block}; take a smaller tile than "
            f"{tile.m}x{tile.n}, or less than kept={tile.kept}."
        )
    if not facts.is_simulated and compute_capability(facts.arch) < LEAST_CAPABILITY:
        raise UnsupportedProblemError(
            f"gemm: {facts.name} is {facts.arch}; tiles need compute capability 8.0 or later."
        )


def _tensor_map(value: Any) -> tuple[str, bytes]:
    """Order and tensor map of an argument that tiles by wgmma can have TMA copy; else empty."""
    if not isinstance(value, Operand) or value.layout.device == HOST:
        return "", b""
    layout, address = value.layout, value.pointer
    if layout.dtype not in HALVES or len(layout.shape) != 2 or not address:
        return "", b""
    # An empty matrix has a map too, so that it needs no other kernel; nothing is copied by it.
    rows, cols = (max(size, 1) for size in layout.shape)
    row, col = (stride // layout.item_size for stride in layout.strides)
    matrix = Matrix("a", layout.item_size, address & -address, 1, rows, cols, 0, row, col)
    if matrix.refusal() is not None or max(rows, cols) > MOST_ELEMENTS:
        return "", b""
    tensor_map = matrix.tensor_map(layout.dtype, WARPGROUP_ROWS, WARPGROUP_ROWS)
    return "row" if matrix.innermost == "k" else "col", encode(address, tensor_map)


def _type_of(value: Any, mapped: tuple[str, bytes]) -> tuple[str, int, str]:
    if isinstance(value, Operand):
        return value.layout.dtype, len(value.layout.shape), mapped[0]
    return value.dtype.name, 0, ""


def _packed(values: list[Any]) -> bytes:
    """Arguments as the C struct of a kernel's parameters.

    numba passes an array as two null pointers, the number of elements, their size, the address, the
    shape and the strides in bytes.
    """
    fields, data = ["@"], []
    for value in values:
        if isinstance(value, Operand):
            layout = value.layout
            shape, strides = layout.shape, layout.strides
            fields.append(f"{5 + 2 * len(shape)}q")
            count = int(np.prod(shape, dtype=object))
            data += [0, 0, count, layout.item_size, value.pointer, *shape, *strides]
        else:
            fields.append(_FORMATS[value.dtype.name])
            data.append(value.item())
    return struct.pack("".join(fields), *data)


def _queue(
    compiled: CompiledKernel, grid: tuple[int, int, int], values: list[Any], tensor_maps: bytes,
    ordinal: int,
) -> Callable[[int], None]:  # fmt: skip
    """Load a kernel; return a function that queues it with its arguments on a stream."""
    from dxgemm.runtime.launch import function_of, launch_config, parameter_offset, submit_on

    function, submit = function_of(compiled, ordinal), submit_on(ordinal)
    packed = _packed(values)
    if tensor_maps:  # behind all other parameters, where the compiler aligned them
        layouts = (value.layout for value in values if isinstance(value, Operand))
        parameters = len(values) + sum(4 + 2 * len(layout.shape) for layout in layouts)
        packed = packed.ljust(parameter_offset(function, parameters), b"\0") + tensor_maps
    buffer, size = ctypes.create_string_buffer(packed, len(packed)), ctypes.c_size_t(len(packed))
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
    configs: dict[int, Any] = {}  # by stream; a thread may use another one at the same time
    kept = buffer, size, extra  # the driver reads them at each launch

    def queue(stream: int) -> None:
        config = configs.get(stream)
        if config is None:
            config, fields = launch_config(compiled)
            fields.grid_x, fields.grid_y, fields.grid_z = grid
            fields.stream = stream
            configs[stream] = config
        (error,) = submit(config, function, 0, ctypes.addressof(kept[-1]))
        if error:  # this thread may have no current context yet
            with current_device(ordinal):
                (error,) = submit(config, function, 0, ctypes.addressof(kept[-1]))
        if error:
            raise LaunchError(
                f"gemm: the driver refused to launch {compiled.record.implementation} ({grid} "
                f"blocks of {compiled.record.threads} threads): {error.name}."
            )

    return queue


def _queue_with_copies(
    compiled: CompiledKernel, grid: tuple[int, int, int], read: list[Any], tensor_maps: bytes,
    ordinal: int,
) -> Callable[[int], None]:  # fmt: skip
    """The same with arrays in host memory, which are copied to the GPU and, unless they are
    read-only, back: the function returns when they are there."""

    def queue(stream: int) -> None:
        if is_captured(stream):
            raise LaunchError(
                "gemm: the stream is under capture, but arrays in host memory cannot be copied; "
                "pass arrays on the GPU."
            )
        copies, values = [], list(read)
        with ExitStack() as stack:
            for place, operand in enumerate(read):
                if not isinstance(operand, Operand) or operand.layout.device != HOST:
                    continue
                host = host_view(indexable(operand.array))
                copy = stack.enter_context(DeviceCopy(host, ordinal, stream))
                copy.upload()
                layout = device_copy_layout(operand.layout, ordinal)
                values[place] = operand._replace(pointer=copy.pointer, layout=layout)
                if not operand.layout.read_only:
                    copies.append(copy)
            _queue(compiled, grid, values, tensor_maps, ordinal)(stream)
            for copy in copies:
                copy.download()

    return queue


def _simulate(
    kernel: UserKernel, tile: Any, grid: Any, smem_bytes: int, arguments: tuple[Any, ...]
) -> None:
    """Run a kernel on numba's simulator, on the arrays themselves."""
    from numba import cuda
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    from dxgemm.handwritten.parts.array_operand import ArgumentDtypeError, ArgumentError
    from dxgemm.runtime.simulator import run_simulated

    values = tuple(
        value if _is_number(value) else FakeCUDAArray(host_view(indexable(value)))
        for value in arguments
    )
    try:
        run_simulated(cuda.jit(kernel.function), grid, tile.threads, smem_bytes, values)
    except ArgumentError as error:
        kind = DtypeError if isinstance(error, ArgumentDtypeError) else ShapeError
        fault = str(error).partition("tile: ")[2]  # behind the place of the thread
        raise kind(f"gemm: {kernel.name}: tile: {fault}") from None
