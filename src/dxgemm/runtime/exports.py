"""Operands of other libraries, which are exported once per call, by DLPack or CUDA's interface.

An export may be a temporary that its owner makes for this call alone. So an operand becomes an
`Export` where a call reads it first. The export is ordered before the stream of the launch, and it
lives until the launch has run: an owner such as a memory pool reuses what is given back at once,
on a stream that nobody else knows.

JAX arrays are exports too. They never change, so that nothing is written to them. A result in JAX's
memory is handed to JAX as a new array once its launch is queued, see `_JaxResult`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from queue import SimpleQueue
from typing import Any

import numpy as np

from dxgemm.errors import ArrayTypeError, LaunchError, MissingPackageError, ReadOnlyError
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.layout import (
    Layout,
    address_array,
    byte_extent,
    contiguous_strides,
    normalised,
)
from dxgemm.runtime.arrays import (
    HOST,
    LEAST_ADDRESS,
    NULL,
    Ints,
    Library,
    dtype_name,
    find_library,
    libraries,
    numpy_dtype,
)
from dxgemm.runtime.capture import is_captured, outside_capture
from dxgemm.runtime.device import call_driver, current_device, driver_api
from dxgemm.runtime.streams import library_streams, wait_for

# DLPack's types of devices whose memory is read: the host's own and pinned, CUDA's and managed.
_CPU, _CUDA, _PINNED, _MANAGED = 1, 2, 3, 13
_NO_ORDER = -1  # a consumer stream that asks for none
_DEFAULT_STREAM = 1  # the legacy one, as both protocols write it: 0 is ambiguous there


class Export:
    """Operand of another library, exported for one call.

    Attributes:
        array: the caller's object.
        pointer: address of its first element.
        layout: its layout.
        stream: stream on which the export is complete.
        current: stream on which its library's next work on it would run.
        is_new: True until a launch has been ordered behind it.
        changes: False if its library never writes to it again.
    """

    changes = True

    def __init__(
        self, array: Any, pointer: int, layout: Layout, stream: int, current: int, owner: Any
    ) -> None:
        self.array = array
        self.pointer = pointer
        self.layout = layout
        self.stream = stream
        self.current = current
        self.is_new = True
        self._owner = owner  # of the memory: freed with it

    def part(self, index: Ints, shape: Ints, strides: Ints) -> Export:
        """View of the same memory that begins where `array[index]` does."""
        offset = sum(i * stride for i, stride in zip(index, self.layout.strides))
        layout = self.layout._replace(shape=shape, strides=strides)
        pointer = self.pointer + offset
        return Export(self.array, pointer, normalised(layout), self.stream, self.current, self)

    def as_numpy(self) -> np.ndarray:
        """View of the same memory, which is the host's."""
        array = address_array(self.pointer, self.layout, owner=self)
        return array.view(numpy_dtype(self.layout.dtype))

    def indexable(self) -> Any:
        """View of the same memory that can be indexed: by NumPy, or by CuPy on a GPU."""
        if self.layout.device == HOST:
            return self.as_numpy()
        try:
            cupy = import_module("cupy")
        except ImportError as error:
            raise MissingPackageError(
                f"gemm: a {type(self.array).__name__} is copied by CuPy, which is not installed: "
                "the cu12 or cu13 extra brings it."
            ) from error
        first, end = byte_extent(self.layout)
        start = self.pointer + first
        memory = cupy.cuda.UnownedMemory(start, end - first, self, self.layout.device)
        pointer = cupy.cuda.MemoryPointer(memory, -first)
        dtype = numpy_dtype(self.layout.dtype)
        return cupy.ndarray(self.layout.shape, dtype, pointer, self.layout.strides)

    def finish(self) -> Any:
        """Return the object that the caller gets, if this is a result; its launch is queued."""
        return self.array


class _JaxArray(Export):
    """Array of JAX, which is complete when it is exported, and never changes."""

    changes = False


class _JaxResult(_JaxArray):
    """New memory of JAX, which a launch writes before JAX knows it as an array."""

    def finish(self) -> Any:
        if self.layout.device == HOST:
            return self.array  # complete, and nobody has seen it before
        keep_until_done(self, self.stream, self.layout.device)
        jax = import_module("jax")
        with _all_dtypes(jax):
            return jax.dlpack.from_dlpack(_Handover(self))


class _Handover:
    """Result of a launch, whose export waits for it: JAX's later work runs after the launch."""

    def __init__(self, result: Export) -> None:
        self._result, self._stream = result, result.stream

    def __dlpack_device__(self) -> Any:
        return self._result.array.__dlpack_device__()

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        with current_device(self._result.layout.device), outside_capture():
            if stream is None:
                call_driver("cuStreamSynchronize", self._stream, failure="gemm: a result for JAX")
            else:
                wait_for(stream, self._stream)
        return self._result.array.__dlpack__(stream=stream, **options)


class Exports(Library):
    """The library of all exports, numba's arrays among them.

    Stream order follows the protocols: the "stream" entry of CUDA's interface, and the stream
    handed to `__dlpack__`.
    """

    always_ordered = True

    def inspect(self, array: Export) -> tuple[int, Any]:
        return array.pointer, array.layout

    def _layout(self, key: Layout) -> Layout:
        return key

    def empty(self, shape: tuple[int, ...], dtype: str, like: Export) -> Export:
        source, device = like.array, like.layout.device
        if isinstance(like, _JaxArray):
            return _empty_of_jax(shape, dtype, like)
        if device == HOST:
            return _known(np.empty(shape, numpy_dtype(dtype)))
        if type(source).__module__.startswith("numba"):
            cuda = import_module("numba.cuda")
            with cuda.gpus[device]:
                return _exported("out", cuda.device_array(shape, numpy_dtype(dtype)), like.stream)
        if find_spec("cupy") is not None:
            cupy = import_module("cupy")
            with cupy.cuda.Device(device):
                return _known(cupy.empty(shape, numpy_dtype(dtype)))
        if find_spec("torch") is not None:
            torch = import_module("torch")
            options = {"dtype": getattr(torch, dtype), "device": f"cuda:{device}"}
            return _known(torch.empty(shape, **options))
        raise MissingPackageError(
            f"gemm: a {type(source).__name__} has no library to allocate the result in; pass out=, "
            "or install CuPy (the cu12 or cu13 extra) or torch."
        )

    def assign(self, target: Export, source: Any) -> None:
        source_array = source.indexable() if isinstance(source, Export) else source
        if target.layout.device == HOST:
            target.as_numpy()[...] = source_array
            return
        array, cupy = target.indexable(), import_module("cupy")
        with cupy.cuda.Device(target.layout.device), cupy.cuda.ExternalStream(target.stream):
            array[...] = source_array

    def view(self, array: Export, index: Ints, shape: Ints, strides: Ints) -> Export:
        return array.part(index, shape, strides)

    def view_key(self, key: Layout, shape: Ints, strides: Ints) -> Layout:
        return normalised(key._replace(shape=shape, strides=strides))

    def host_view(self, array: Export) -> np.ndarray:
        return array.as_numpy()

    def current_stream(self, array: Export) -> int:
        return array.current

    def acquire(self, array: Export, stream: int) -> None:
        if array.layout.device == HOST:
            return
        if _in_capture(stream, array.layout.device):  # of a plan, which is ordered by its caller
            if array.current and array.current != stream:
                wait_for(stream, array.current)
            return
        ready = array
        if array.changes and not array.is_new:
            # Another run of a plan, whose memory is that of the first export. A new one tells the
            # library to order the work that has been queued since.
            ready = _exported("an operand", array.array, stream)
        array.is_new = False
        if ready.stream != stream:
            wait_for(stream, ready.stream)

    def release(self, array: Export, stream: int) -> None:
        if array.layout.device == HOST:
            return
        if array.current and array.current != stream:
            wait_for(array.current, stream)
        if not is_captured(stream):  # a graph is of a plan, which keeps its exports
            keep_until_done(array, stream, array.layout.device)


EXPORTS = Exports()
libraries.update({Export: EXPORTS, _JaxArray: EXPORTS, _JaxResult: EXPORTS})


def taken(name: str, array: Any, stream: int) -> tuple[Any, Library]:
    """Operand whose type is new: the array and its library, or its export.

    Args:
        name: name of the operand, for messages.
        array: the operand.
        stream: stream that the call launches on.

    Raises:
        ArrayTypeError: the operand is no array, or its export fails.
        LaunchError: the stream is under capture.
    """
    library = find_library(name, array)
    if library is None:
        return _exported(name, array, stream), EXPORTS
    return array, library


def launch_stream(stream: int | None, *arrays: Any) -> int:
    """Handle of the stream that a call launches on.

    Args:
        stream: the caller's; None for the current one of the first array's library.
        arrays: out, c and a of the call.
    """
    if stream is not None:
        return stream
    array = next((array for array in arrays if array is not None), None)
    with suppress(Exception):  # refused when it is read as an operand
        library = libraries.get(type(array)) or find_library("out", array)
        if library is not None:
            return library.current_stream(array)
    return _interface_stream(array)


def finished(result: Any) -> Any:
    """Return the result of a call, whose launch is queued, as the caller gets it.

    It may be a list, or the named tuple of a reduction's results.
    """
    if isinstance(result, Export):
        return result.finish()
    if isinstance(result, list):
        result[:] = map(finished, result)
        return result
    if isinstance(result, tuple):
        return type(result)(*map(finished, result))
    return result


def refuse_new_jax_array(call: str, result: Any) -> None:
    """Refuse a plan that would write to an array of JAX each time that it is called."""
    entries = result if isinstance(result, list | tuple) else (result,)
    if any(isinstance(entry, _JaxResult) for entry in entries):
        raise ReadOnlyError(
            f"{call}: the result would be a JAX array, which never changes, but each call of a "
            "plan writes to it; pass out= of another library."
        )


def refuse_deleted(name: str, array: Any) -> None:
    """Refuse an array of JAX that has no memory any more."""
    if _is_of_jax(array) and array.is_deleted():
        raise ArrayTypeError(f"gemm: {name} is a JAX array that was deleted or donated.")


def indexable(array: Any) -> Any:
    """Array whose elements and slices Python can take; a host export as a NumPy array."""
    return array.as_numpy() if isinstance(array, Export) else array


@contextmanager
def in_order(ordered: Sequence[tuple[Library, Any]], ordinal: int, stream: int) -> Iterator[None]:
    """Order the launch in a `with` block between earlier and later work on its operands.

    Args:
        ordered: library and array of each operand whose stream may be another one.
        ordinal: ordinal of the GPU.
        stream: stream of the launch.
    """
    with _on_device(ordinal):
        for library, array in ordered:
            library.acquire(array, stream)
        yield
        for library, array in ordered:
            library.release(array, stream)


def keep_until_done(kept: Any, stream: int, ordinal: int) -> None:
    """Keep an object alive until the work that is queued on a stream has run."""
    flags = driver_api().CUevent_flags
    flag = flags.CU_EVENT_DISABLE_TIMING | flags.CU_EVENT_BLOCKING_SYNC
    with current_device(ordinal):
        event = call_driver("cuEventCreate", flag, failure=_KEEPING)
        call_driver("cuEventRecord", event, stream, failure=_KEEPING)
    _waiting().put((kept, event, ordinal))


_KEEPING = "gemm: keeping an export"


@cache
def _waiting() -> SimpleQueue[Any]:
    """Queue of what is kept, which a thread empties."""
    queue: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_drop_in_turn, args=(queue,), daemon=True).start()
    return queue


def _drop_in_turn(queue: SimpleQueue[Any]) -> None:
    """Wait for each event, and drop what was kept for it."""
    while True:
        kept, event, ordinal = queue.get()
        driver = driver_api()
        with current_device(ordinal), outside_capture():
            driver.cuEventSynchronize(event)
            driver.cuEventDestroy(event)
            del kept  # here, where this thread may free memory


def _exported(name: str, array: Any, stream: int) -> Export:
    """Export an operand for a launch on a stream."""
    kind = type(array).__name__
    is_jax = _is_of_jax(array)
    refuse_deleted(name, array)
    try:
        has_dlpack = hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__")
        view, is_pinned = _by_dlpack(name, array, stream) if has_dlpack else _by_interface(array)
        strides = contiguous_strides(view.shape) if view.strides is None else view.strides
        layout = Layout(
            tuple(view.shape),
            tuple(stride * view.dtype.itemsize for stride in strides),
            dtype_name(view.dtype),
            HOST if is_pinned else view.device_id,
            read_only=view.readonly or is_jax,
        )
        pointer = view.ptr
    except (ArrayTypeError, LaunchError):
        raise
    except Exception as error:
        raise ArrayTypeError(
            f"gemm: a {kind} cannot be read through DLPack or __cuda_array_interface__, as {name}: "
            f"{error}"
        ) from error
    if pointer < LEAST_ADDRESS and 0 not in layout.shape:
        raise ArrayTypeError(f"gemm: {name} {NULL.reason}")
    current = 0 if is_jax else _interface_stream(array)
    ready = stream if has_dlpack else current or stream
    made = _JaxArray if is_jax else Export
    return made(array, pointer, normalised(layout), ready, current, view)


def _by_dlpack(name: str, array: Any, stream: int) -> tuple[Any, bool]:
    """View of an operand by DLPack, and whether it is in pinned memory."""
    from cuda.core.utils import StridedMemoryView

    device, ordinal = map(int, array.__dlpack_device__())
    if device not in (_CPU, _CUDA, _PINNED, _MANAGED):
        raise ArrayTypeError(
            f"gemm: {name} is on a device of DLPack's type {device}; pass an array in host memory "
            "or on an NVIDIA GPU."
        )
    if device == _CPU:
        return StridedMemoryView.from_dlpack(array, _NO_ORDER), False
    if device == _PINNED:  # complete when the host reads it
        return StridedMemoryView.from_dlpack(array, 0), True
    with _on_device(ordinal):
        if _in_capture(stream, ordinal):
            raise LaunchError(
                f"gemm: a stream is under capture, and the export of {name} through DLPack could "
                "touch streams outside of it and die before the graph; capture the call of a plan."
            )
        return StridedMemoryView.from_dlpack(array, stream or _DEFAULT_STREAM), False


def _in_capture(stream: int, ordinal: int) -> bool:
    """True if a stream of the launch, or one that an export may use, is under capture."""
    return not simulator_enabled() and any(map(is_captured, (stream, *library_streams(ordinal))))


def _by_interface(array: Any) -> tuple[Any, bool]:
    """View of an operand by `__cuda_array_interface__`, which is read once."""
    from cuda.core.utils import StridedMemoryView

    return StridedMemoryView.from_cuda_array_interface(array, _NO_ORDER), False


def _interface_stream(array: Any) -> int:
    """Stream of `__cuda_array_interface__`; 0 if it has none."""
    with suppress(Exception):  # JAX has no interface for all dtypes
        return int(array.__cuda_array_interface__.get("stream") or 0)
    return 0


def _known(array: Any) -> Export:
    """New array of a known library, as an export."""
    library = find_library("out", array)
    assert library is not None
    pointer, key = library.inspect(array)
    library.check("out", array, key)
    current = library.current_stream(array)
    return Export(array, pointer, library.layout(key), current, current, array)


def _is_of_jax(array: Any) -> bool:
    return str(type(array).__module__).startswith("jaxlib") and hasattr(array, "is_deleted")


def _empty_of_jax(shape: tuple[int, ...], dtype: str, like: Export) -> _JaxResult:
    """New memory of JAX, beside `like`."""
    jax = import_module("jax")
    (device,) = like.array.devices()
    with _all_dtypes(jax):
        array = jax.numpy.empty(shape, numpy_dtype(dtype), device=device)
    new = _exported("out", array, like.stream)
    layout = new.layout._replace(read_only=False)
    return _JaxResult(array, new.pointer, layout, like.stream, 0, new)


def _all_dtypes(jax: Any) -> AbstractContextManager[None]:
    """Context in which JAX does not narrow 64-bit dtypes."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    return import_module("jax.experimental").enable_x64()


def _on_device(ordinal: int) -> AbstractContextManager[None]:
    """Make a GPU current, if there are real ones."""
    return nullcontext() if simulator_enabled() or ordinal == HOST else current_device(ordinal)
