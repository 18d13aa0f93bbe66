"""Arrays of any library as a pointer and a hashable layout, in well under a microsecond.

Each kind of array has a `Library`. Every call runs `inspect`, whose second result is a key made of
the library's own objects, and `current_stream`. When a key is new, `check` judges the array and
`layout` translates the key, once. Objects of unknown libraries become an `Export` first.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Hashable
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from dxgemm.errors import ArrayTypeError, MissingPackageError, shown
from dxgemm.problem.layout import Layout, normalised
from dxgemm.runtime.device import device_count
from dxgemm.runtime.streams import wait_for

HOST = -1
Ints = tuple[int, ...]  # an index, a shape or strides
LEAST_ADDRESS = 1 << 16  # neither Linux nor CUDA gives out a lower one
_LEAST_USUAL_ADDRESS = 1 << 40  # beyond the offset of any view


class Unusable(NamedTuple):
    """Key of an array whose memory is not its value.

    Attributes:
        reason: what the array is, and the way out; a message says "a " and its name before it.
    """

    reason: str


NULL = Unusable("has a null address, but is not empty; pass an array that has memory.")


class Library(ABC):
    """Interface of dxgemm to one kind of array.

    Attributes:
        always_ordered: False if all arrays of the library follow its current stream, so that
            operands of one library need no ordering among themselves.
    """

    always_ordered = False

    @abstractmethod
    def inspect(self, array: Any) -> tuple[int, Hashable]:
        """Address of element [0, 0], and a key from which `layout` can tell everything else.

        The key begins with the shape and the strides; it is an `Unusable` if there is no such
        address. Nothing is raised here, where the name of the operand is unknown.
        """

    def layout(self, key: Any) -> Layout:
        """Layout that a key stands for."""
        return normalised(self._layout(key))

    @abstractmethod
    def _layout(self, key: Any) -> Layout:
        """Layout that a key stands for, with strides of the library's."""

    def check(self, name: str, array: Any, key: Any) -> None:
        """Raise if an array with this key, which is new, has memory that is not its value."""
        if type(key) is Unusable:
            raise ArrayTypeError(f"gemm: {name} {key.reason}")

    def doubts(self, key: Any) -> bool:
        """True if an array with this key may be unusable, so that each one must be verified."""
        return False

    def verify(self, name: str, array: Any) -> None:  # noqa: B027
        """Raise if a doubtful array is unusable."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        """Allocate an array of this library, row-major, on the device of `like`."""

    def assign(self, target: Any, source: Any) -> None:
        """Copy an array of the same shape and dtype, or a number, into an array."""
        target[...] = source

    @abstractmethod
    def view(self, array: Any, index: Ints, shape: Ints, strides: Ints) -> Any:
        """View of any shape and strides in bytes that begins where `array[index]` does."""

    def view_key(self, key: Any, shape: Ints, strides: Ints) -> Any:
        """Key of such a view of an array with a key."""
        return (shape, strides, *key[2:])

    def host_view(self, array: Any) -> np.ndarray:
        """View an array in host memory as a NumPy array: see the function of this name."""
        raise NotImplementedError

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
        pointer = memory.ptr
        if pointer < LEAST_ADDRESS and array.size:
            return 0, NULL
        return pointer, (array.shape, array.strides, array.dtype, device)

    def _layout(self, key: Any) -> Layout:
        shape, strides, dtype, device = key
        return Layout(shape, strides, dtype_name(dtype), device, read_only=False)

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        with like.device:
            return self._cupy.empty(shape, numpy_dtype(dtype))

    def assign(self, target: Any, source: Any) -> None:
        with target.device:
            target[...] = source

    def view(self, array: Any, index: Ints, shape: Ints, strides: Ints) -> Any:
        part = array[index] if index else array
        return self._cupy.ndarray(shape, part.dtype, part.data, strides)

    def current_stream(self, array: Any) -> int:
        if self._only_device is not None:
            return self._get_current_stream().ptr
        # Each GPU has a current stream of its own, whichever GPU is current.
        return self._get_current_stream(array.data.device_id).ptr


class Torch(Library):
    """CUDA tensors, and CPU tensors as host arrays."""

    def __init__(self) -> None:
        self._torch = import_module("torch")
        self._forward_ad: Any = import_module("torch.autograd.forward_ad")
        has_levels = hasattr(self._forward_ad, "_current_level")
        self._levels = self._forward_ad if has_levels else SimpleNamespace(_current_level=0)
        # Triton and inductor use it too: building a Stream object costs a microsecond.
        self._raw_stream = getattr(self._torch._C, "_cuda_getCurrentRawStream", None)
        complex32 = self._torch.complex32
        self._complex = {complex32, self._torch.complex64, self._torch.complex128}

    def inspect(self, array: Any) -> tuple[int, Hashable]:
        try:
            pointer, dtype = array.data_ptr(), array.dtype
            # A real tensor cannot be a lazy conjugate; any may be a lazy negation. Asking for one
            # of the two costs as much as the rest.
            lazy = array.is_neg() if dtype not in self._complex else self._lazy(array)
            # A tensor may have a tangent in a level of forward mode, of which there are few.
            is_doubtful = array.requires_grad or self._levels._current_level >= 0
            key = array.shape, array.stride(), dtype, array.device, is_doubtful, lazy
        except Exception as error:  # of a tensor without strides, a storage, or sizes
            return 0, Unusable(f"is a {type(array).__name__} without memory of its own: {error}")
        # Without memory, a view's address is its offset.
        if pointer < _LEAST_USUAL_ADDRESS and pointer <= 16 * array.storage_offset():
            return self._without_address(array, key)
        return pointer, key

    def _lazy(self, array: Any) -> Any:
        """Key of a complex tensor's lazy operations: False for none, True for the conjugate."""
        return "negation" if array.is_neg() else array.is_conj()

    def _without_address(self, array: Any, key: Any) -> tuple[int, Hashable]:
        if array.numel():
            return 0, Unusable(
                f"is a tensor on {array.device} without memory: it is no real tensor, or its "
                "storage was freed; pass one that has memory."
            )
        return 0, key

    def check(self, name: str, array: Any, key: Any) -> None:
        super().check(name, array, key)
        shape, strides, dtype, device, _, lazy = key
        if device.type not in ("cpu", "cuda"):
            raise ArrayTypeError(
                f"gemm: {name} is a tensor on {device}; pass one in host memory or on an NVIDIA "
                f"GPU, such as {name}.cuda()."
            )
        if array.layout is not self._torch.strided:
            raise ArrayTypeError(
                f"gemm: {name} is a tensor of layout {array.layout}; pass {name}.to_dense()."
            )
        if array.is_quantized:
            raise ArrayTypeError(f"gemm: {name} is a quantised tensor; pass {name}.dequantize().")
        if lazy == "negation" or (lazy and dtype not in self._complex):
            raise ArrayTypeError(
                f"gemm: {name} is a lazy negation (is_neg()), whose memory holds the opposite "
                f"sign; pass {name}.resolve_neg()."
            )
        end = array.storage_offset() + 1
        for size, stride in zip(shape, strides):
            end += (size - 1) * stride
        needed = end * dtype.itemsize if array.numel() else 0
        held = array.untyped_storage().nbytes()
        if needed > held:
            raise ArrayTypeError(
                f"gemm: {name} reaches {needed} bytes into a storage of {held}, which was freed or "
                "shrunk; pass a tensor that has its memory."
            )

    def doubts(self, key: Any) -> bool:
        return bool(key[4])

    def verify(self, name: str, array: Any) -> None:
        if array.requires_grad and self._torch.is_grad_enabled():
            raise ArrayTypeError(
                f"gemm: {name} is a tensor that requires grad, and gemm is not differentiable; "
                f"call dxgemm.torch.gemm, pass {name}.detach(), or call under torch.no_grad()."
            )
        is_forward = self._torch._C._is_fwd_grad_enabled()
        if is_forward and self._forward_ad.unpack_dual(array).tangent is not None:
            raise ArrayTypeError(
                f"gemm: {name} is a tensor with a tangent, and gemm is not differentiable; pass "
                f"{name}.detach()."
            )

    def _layout(self, key: Any) -> Layout:
        shape, strides, dtype, device, _, lazy = key
        item_size = dtype.itemsize
        return Layout(
            tuple(shape),
            tuple(stride * item_size for stride in strides),
            str(dtype).removeprefix("torch."),
            HOST if device.type == "cpu" else device.index,
            read_only=False,
            is_conjugate=bool(lazy),
        )

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        return self._torch.empty(shape, dtype=getattr(self._torch, dtype), device=like.device)

    def view(self, array: Any, index: Ints, shape: Ints, strides: Ints) -> Any:
        part = array[index] if index else array
        return part.as_strided(shape, [stride // array.itemsize for stride in strides])

    def view_key(self, key: Any, shape: Ints, strides: Ints) -> Any:
        item_size = key[2].itemsize
        return (shape, tuple(stride // item_size for stride in strides), *key[2:])

    def host_view(self, array: Any) -> np.ndarray:
        """View the memory of a host tensor as a NumPy array; bfloat16 and float8 as integers."""
        tensor = array.detach()
        if tensor.is_conj():  # what is in memory
            tensor = tensor.conj()
        if tensor.dtype is self._torch.bfloat16:
            tensor = tensor.view(self._torch.int16)
        elif str(tensor.dtype).startswith("torch.float8"):
            tensor = tensor.view(self._torch.int8)
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
        try:
            key = (array.shape, array.strides, array.dtype, not array.flags.writeable)
            pointer = array.__array_interface__["data"][0]
        except Exception as error:  # of a property of a subclass
            return 0, Unusable(f"is a {type(array).__name__} that cannot be read: {error}")
        if pointer < LEAST_ADDRESS and array.size:
            return 0, NULL
        return pointer, key

    def _layout(self, key: Any) -> Layout:
        shape, strides, dtype, read_only = key
        return Layout(shape, strides, dtype_name(dtype), HOST, read_only)

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        return np.empty(shape, numpy_dtype(dtype))

    def view(self, array: Any, index: Ints, shape: Ints, strides: Ints) -> Any:
        part = array[index] if index else array  # not array[()], which copies a scalar
        writeable = array.flags.writeable
        return np.lib.stride_tricks.as_strided(part, shape, strides, writeable=writeable)


libraries: dict[type, Library] = {}  # filled by find_library; read directly where time matters
_host = Host()


def find_library(name: str, array: Any) -> Library | None:
    """Library of an operand, cached by the operand's type; None for one that must be exported.

    Raises:
        ArrayTypeError: the operand is no array, or of a type whose memory is not its value.
    """
    kind = type(array)
    library = libraries.get(kind)
    if library is None:
        library = _find_library(name, array)
        if library is not None:
            libraries[kind] = library
    return library


def host_view(array: Any) -> np.ndarray:
    """View a host operand as a NumPy array over the same memory, to copy from and to.

    Its dtype may be an integer of the same size: NumPy alone has no bfloat16.
    """
    return array if isinstance(array, np.ndarray) else libraries[type(array)].host_view(array)


@cache  # NumPy takes microseconds to make the name
def dtype_name(dtype: np.dtype) -> str:
    """NumPy's name of a dtype; a foreign byte order is part of it, so that it is refused."""
    return dtype.name if dtype.isnative else f"{dtype.name} in foreign byte order"


def numpy_dtype(name: str) -> np.dtype:
    """NumPy dtype of a name; bfloat16 and float8 come from ml_dtypes.

    Raises:
        MissingPackageError: ml_dtypes is needed, and is not installed.
    """
    if name != "bfloat16" and not name.startswith("float8"):
        return np.dtype(name)
    try:
        return np.dtype(getattr(import_module("ml_dtypes"), name))
    except ImportError as error:
        raise MissingPackageError(
            f"gemm: NumPy has no {name} of its own; pip install ml-dtypes."
        ) from error


def _find_library(name: str, array: Any) -> Library | None:
    # NumPy imports numpy.ma at first use, in 20 ms.
    if isinstance(array, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())):
        raise ArrayTypeError(
            f"gemm: {name} is a masked array, whose mask would be ignored; pass {name}.filled(0)."
        )
    if isinstance(array, np.ndarray):
        return _host
    for base in type(array).__mro__:
        root = str(base.__module__).partition(".")[0]
        if root == "cupy" and base.__name__ == "ndarray":
            _refuse_distributed(name, array)
            return CuPy()
        if root == "torch" and base.__name__ == "Tensor":
            _refuse_wrapper(name, array, base)
            return libraries.setdefault(base, Torch())  # one for Tensor, Parameter and others
    try:
        exports = hasattr(array, "__cuda_array_interface__") or hasattr(array, "__dlpack__")
    except Exception:
        exports = True  # the export tells
    if exports and not isinstance(array, type):
        return None
    raise ArrayTypeError(
        f"gemm: {name} is {shown(array)}, not an array; pass an array of CuPy, NumPy, torch, JAX "
        "or numba, or any object with __dlpack__ or __cuda_array_interface__."
    )


def _refuse_distributed(name: str, array: Any) -> None:
    """Refuse CuPy's distributed arrays, whose own memory is a dummy."""
    if type(array).__module__.startswith("cupyx.distributed"):
        raise ArrayTypeError(
            f"gemm: {name} is a {type(array).__name__}, which is spread over GPUs; pass the array "
            "of one of them."
        )


def _refuse_wrapper(name: str, array: Any, tensor: Any) -> None:
    """Refuse tensors that compute torch's operators themselves: fake, wrapped and sharded ones."""
    kind = type(array)
    if kind.__torch_dispatch__ is tensor.__torch_dispatch__:
        return
    way_out = "pass the tensor inside of it"
    if kind.__name__ == "DTensor":
        way_out = f"call dxgemm.distributed.gemm, or pass {name}.to_local()"
    raise ArrayTypeError(
        f"gemm: {name} is a {kind.__name__}, which computes torch's operators itself "
        f"(__torch_dispatch__), so that its memory need not be its value; {way_out}."
    )
