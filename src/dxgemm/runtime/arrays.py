"""Arrays of any library as a pointer and a hashable layout, in well under a microsecond.

Each kind of array has a `Library`. Every call runs `inspect`, whose second result is a key made of
the library's own objects, and `current_stream`; `layout` translates a key once, when it is new.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Hashable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from dxgemm.errors import ArrayTypeError, LaunchError, MissingPackageError
from dxgemm.problem.layout import Layout
from dxgemm.runtime.capture import is_captured
from dxgemm.runtime.device import device_count
from dxgemm.runtime.streams import library_streams, wait_for

HOST = -1


class Library(ABC):
    """Interface of dxgemm to one kind of array.

    Attributes:
        always_ordered: False if all arrays of the library follow its current stream, so that
            operands of one library need no ordering among themselves.
    """

    always_ordered = False

    @abstractmethod
    def inspect(self, array: Any) -> tuple[int, Hashable]:
        """Address of element [0, 0], and a key from which `layout` can tell everything else."""

    @abstractmethod
    def layout(self, key: Any) -> Layout:
        """Layout that a key stands for."""

    def doubts(self, key: Any) -> bool:
        """True if an array with this key may be unusable, so that each one must be verified."""
        return False

    def verify(self, name: str, array: Any) -> None:  # noqa: B027
        """Raise if a doubtful array is unusable."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        """Allocate an array of this library, row-major, on the device of `like`."""

    def view(
        self, array: Any, index: tuple[int, ...], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Any:
        """View of any shape and strides in bytes that begins where `array[index]` does."""
        raise ArrayTypeError(
            f"matmul: a {type(array).__name__} cannot be viewed as matrices; pass an array of two "
            "or three dimensions, or one of CuPy, NumPy or torch: cupy.asarray copies nothing."
        )

    def current_stream(self, array: Any) -> int:
        """Handle of the stream on which this library's next work on `array` would run."""
        return 0

    def acquire(self, array: Any, stream: int) -> None:
        """Make `stream` wait for the work queued on `array`."""
        current = self.current_stream(array)
        if current != stream:
            wait_for(stream, current)

    def release(self, array: Any, stream: int) -> None:
        """Make the library's later work on `array` wait for `stream`."""
        current = self.current_stream(array)
        if current != stream:
            wait_for(current, stream)


class CuPy(Library):
    def __init__(self) -> None:
        self._cupy = import_module("cupy")
        self._get_current_stream = self._cupy.cuda.get_current_stream
        self._only_device = 0 if device_count() == 1 else None

    def inspect(self, array: Any) -> tuple[int, Hashable]:
        memory = array.data
        device = self._only_device
        if device is None:
            device = memory.device_id
        return memory.ptr, (array.shape, array.strides, array.dtype, device)

    def layout(self, key: Any) -> Layout:
        shape, strides, dtype, device = key
        return Layout(shape, strides, dtype_name(dtype), device, read_only=False)

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        with like.device:
            return self._cupy.empty(shape, numpy_dtype(dtype))

    def view(
        self, array: Any, index: tuple[int, ...], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Any:
        part = array[index] if index else array
        return self._cupy.ndarray(shape, part.dtype, part.data, strides)

    def current_stream(self, array: Any) -> int:
        return self._get_current_stream().ptr


class Torch(Library):
    """CUDA tensors, and CPU tensors as host arrays."""

    def __init__(self) -> None:
        self._torch = import_module("torch")
        # Triton and inductor use it too: building a Stream object costs a microsecond.
        self._raw_stream = getattr(self._torch._C, "_cuda_getCurrentRawStream", None)

    def inspect(self, array: Any) -> tuple[int, Hashable]:
        return array.data_ptr(), (
            array.shape, array.stride(), array.dtype, array.get_device(), array.requires_grad,
            array.is_conj(),
        )  # fmt: skip

    def doubts(self, key: Any) -> bool:
        shape, strides, _, _, requires_grad, _ = key
        # The imaginary part of a conjugate may be a lazy negation. It views every other float, so
        # that the stride of each dimension is even.
        may_be_negated = all(stride % 2 == 0 for stride, size in zip(strides, shape) if size > 1)
        return requires_grad or may_be_negated

    def verify(self, name: str, array: Any) -> None:
        if array.requires_grad and self._torch.is_grad_enabled():
            raise ArrayTypeError(
                f"gemm: {name} is a tensor that requires grad, and gemm is not differentiable; "
                f"call dxgemm.torch.gemm, pass {name}.detach(), or call under torch.no_grad()."
            )
        if array.is_neg():
            raise ArrayTypeError(
                f"gemm: {name} is a lazy negation (is_neg()), whose memory holds the opposite "
                f"sign; pass {name}.resolve_neg()."
            )

    def layout(self, key: Any) -> Layout:
        shape, strides, dtype, device, _, is_conjugate = key
        item_size = dtype.itemsize
        return Layout(
            tuple(shape),
            tuple(stride * item_size for stride in strides),
            str(dtype).removeprefix("torch."),
            device,
            read_only=False,
            is_conjugate=is_conjugate,
        )

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        return self._torch.empty(shape, dtype=getattr(self._torch, dtype), device=like.device)

    def view(
        self, array: Any, index: tuple[int, ...], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Any:
        part = array[index] if index else array
        return part.as_strided(shape, [stride // array.itemsize for stride in strides])

    def host_view(self, array: Any) -> np.ndarray:
        """View the memory of a host tensor as a NumPy array; bfloat16 as integers."""
        tensor = array.detach()
        if tensor.is_conj():  # what is in memory
            tensor = tensor.conj()
        if tensor.dtype is self._torch.bfloat16:
            tensor = tensor.view(self._torch.int16)
        return tensor.numpy()

    def current_stream(self, array: Any) -> int:
        device = array.get_device()
        if device == HOST:
            return 0
        if self._raw_stream is not None:
            return self._raw_stream(device)
        return self._torch.cuda.current_stream(array.device).cuda_stream


class Host(Library):
    """NumPy arrays. On the simulator, kernels run on host memory."""

    def inspect(self, array: Any) -> tuple[int, Hashable]:
        key = (array.shape, array.strides, array.dtype, not array.flags.writeable)
        return array.__array_interface__["data"][0], key

    def layout(self, key: Any) -> Layout:
        shape, strides, dtype, read_only = key
        return Layout(shape, strides, dtype_name(dtype), HOST, read_only)

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        return np.empty(shape, numpy_dtype(dtype))

    def view(
        self, array: Any, index: tuple[int, ...], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Any:
        part = array[index] if index else array  # not array[()], which copies a scalar
        writeable = array.flags.writeable
        return np.lib.stride_tricks.as_strided(part, shape, strides, writeable=writeable)


class Foreign(Library):
    """Any other object with `__cuda_array_interface__` or DLPack, numba's arrays among them.

    Read through cuda-core's `StridedMemoryView`. Stream order follows the protocols: the "stream"
    entry of the interface, and the stream handed to `__dlpack__`.
    """

    always_ordered = True

    def inspect(self, array: Any) -> tuple[int, Hashable]:
        view = _memory_view(array, _NO_ORDER)
        return view.ptr, (view.shape, view.strides, view.dtype, view.device_id, view.readonly)

    def layout(self, key: Any) -> Layout:
        shape, strides, dtype, device, read_only = key
        if strides is None:
            strides = contiguous_strides(shape)
        byte_strides = tuple(stride * dtype.itemsize for stride in strides)
        return Layout(tuple(shape), byte_strides, dtype_name(dtype), device, read_only)

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        if type(like).__module__.startswith("numba"):
            return import_module("numba.cuda").device_array(shape, numpy_dtype(dtype))
        device = _memory_view(like, _NO_ORDER).device_id
        if device == HOST:
            return np.empty(shape, numpy_dtype(dtype))
        if find_spec("cupy") is not None:
            cupy = import_module("cupy")
            with cupy.cuda.Device(device):
                return cupy.empty(shape, numpy_dtype(dtype))
        if find_spec("torch") is not None:
            torch = import_module("torch")
            return torch.empty(shape, dtype=getattr(torch, dtype), device=f"cuda:{device}")
        raise MissingPackageError(
            f"gemm: a {type(like).__name__} has no library to allocate the result in; pass out=, "
            "or install CuPy (the cu12 or cu13 extra) or torch."
        )

    def current_stream(self, array: Any) -> int:
        return getattr(array, "__cuda_array_interface__", {}).get("stream") or 0

    def acquire(self, array: Any, stream: int) -> None:
        # A stream that the array does not name may be the current one of its library.
        is_named = hasattr(array, "__cuda_array_interface__")
        if any(map(is_captured, (stream,) if is_named else (stream, *library_streams(0)))):
            self._acquire_in_capture(array, stream)
            return
        # An export to a consumer stream orders the two. Both protocols write the legacy default
        # stream as 1, because 0 is ambiguous.
        _memory_view(array, stream or 1)

    def _acquire_in_capture(self, array: Any, stream: int) -> None:
        """Order an array under capture, where an export could touch streams outside of it."""
        if not hasattr(array, "__cuda_array_interface__"):
            raise LaunchError(
                f"gemm: a stream is under capture, and the export of a {type(array).__name__} "
                "through DLPack could touch streams outside of that capture; pass an array of "
                "CuPy or torch over the same memory, made before the capture."
            )
        current = self.current_stream(array)
        if current and current != stream:
            wait_for(stream, current)

    def release(self, array: Any, stream: int) -> None:
        current = self.current_stream(array)
        if current and current != stream:
            wait_for(current, stream)


_NO_ORDER = -1
libraries: dict[type, Library] = {}  # filled by library_of; read directly where time matters
_host = Host()


def library_of(name: str, array: Any) -> Library:
    """Library of an operand, cached by the operand's type.

    Raises:
        ArrayTypeError: the operand is no array.
    """
    kind = type(array)
    library = libraries.get(kind)
    if library is None:
        library = libraries[kind] = _find_library(name, array)
    return library


def host_view(array: Any) -> np.ndarray:
    """View a host operand as a NumPy array over the same memory, to copy from and to.

    Its dtype may be an integer of the same size: NumPy alone has no bfloat16.
    """
    if isinstance(array, np.ndarray):
        return array
    library = libraries.get(type(array))
    if isinstance(library, Torch):
        return library.host_view(array)
    try:
        return np.from_dlpack(array)
    except (BufferError, TypeError) as error:
        raise ArrayTypeError(
            f"gemm: a {type(array).__name__} in host memory cannot be read through DLPack: {error}"
        ) from error


@cache  # NumPy takes microseconds to make the name
def dtype_name(dtype: np.dtype) -> str:
    """NumPy's name of a dtype; a foreign byte order is part of it, so that it is refused."""
    return dtype.name if dtype.isnative else f"{dtype.name} in foreign byte order"


def numpy_dtype(name: str) -> np.dtype:
    """NumPy dtype of a name; bfloat16 comes from ml_dtypes.

    Raises:
        MissingPackageError: ml_dtypes is needed, and is not installed.
    """
    if name != "bfloat16":
        return np.dtype(name)
    try:
        return np.dtype(import_module("ml_dtypes").bfloat16)
    except ImportError as error:
        raise MissingPackageError(
            "gemm: NumPy has no bfloat16 of its own; pip install ml-dtypes."
        ) from error


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a row-major array, in elements."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides[: len(shape)])


def _find_library(name: str, array: Any) -> Library:
    # NumPy imports numpy.ma at first use, in 20 ms.
    if isinstance(array, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())):
        raise ArrayTypeError(
            f"gemm: {name} is a masked array, whose mask would be ignored; pass {name}.filled(0)."
        )
    if isinstance(array, np.ndarray):
        return _host
    for base in type(array).__mro__:
        root = base.__module__.partition(".")[0]
        if root == "cupy" and base.__name__ == "ndarray":
            return CuPy()
        if root == "torch" and base.__name__ == "Tensor":
            return libraries.setdefault(base, Torch())  # one for Tensor, Parameter and others
    exports = hasattr(array, "__cuda_array_interface__") or hasattr(array, "__dlpack__")
    if exports and not isinstance(array, type):
        return Foreign()
    raise ArrayTypeError(
        f"gemm: {name} is {_shown(array)}, not an array; pass an array of CuPy, NumPy, torch or "
        "numba, or any object with __dlpack__ or __cuda_array_interface__."
    )


def _shown(value: Any) -> str:
    text = repr(value)
    kind = type(value).__name__
    return (
        "None" if value is None else f"a {kind}, {text if len(text) <= 40 else text[:37] + '...'}"
    )


def _memory_view(array: Any, stream: int) -> Any:
    from cuda.core.utils import StridedMemoryView

    try:
        return StridedMemoryView.from_any_interface(array, stream)
    except Exception as error:
        raise ArrayTypeError(
            f"gemm: a {type(array).__name__} cannot be read through DLPack or "
            f"__cuda_array_interface__: {error}"
        ) from error
