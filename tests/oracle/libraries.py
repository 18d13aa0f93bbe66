"""Array libraries of callers: each sends a buffer, views a slot of it and fetches it back.

CuPy, torch and numba are imported where they are used, so that the rest works without them.
"""

import importlib.util
from typing import Any

import numpy as np

from oracle.buffers import Slot
from oracle.kinds import numpy_dtype


class NumpyLibrary:
    """Host arrays."""

    name = "numpy"
    requires = "numpy"

    def send(self, buffer: np.ndarray) -> Any:
        """Returns a copy of the buffer where this library keeps its data."""
        return buffer.copy()

    def view(self, sent: Any, slot: Slot) -> Any:
        """Returns the operand in `slot` as an array of this library."""
        return slot.view(sent)

    def fetch(self, sent: Any) -> np.ndarray:
        """Returns the buffer as it is now, after all work on the current stream."""
        return np.asarray(sent)


class CupyLibrary(NumpyLibrary):
    """CuPy arrays."""

    name = "cupy"
    requires = "cupy"

    def send(self, buffer: np.ndarray) -> Any:
        import cupy

        return cupy.asarray(buffer)

    def view(self, sent: Any, slot: Slot) -> Any:
        import cupy

        strides = tuple(stride * sent.itemsize for stride in slot.strides)
        start = sent.data + slot.start * sent.itemsize
        return cupy.ndarray(slot.shape, sent.dtype, start, strides)

    def fetch(self, sent: Any) -> np.ndarray:
        return sent.get()


class TorchLibrary(NumpyLibrary):
    """torch tensors, which have no negative strides."""

    name = "torch"
    requires = "torch"

    def send(self, buffer: np.ndarray) -> Any:
        import torch

        if buffer.dtype.name == "bfloat16":
            return torch.from_numpy(buffer.view(np.int16)).cuda().view(torch.bfloat16)
        return torch.from_numpy(buffer).cuda()

    def view(self, sent: Any, slot: Slot) -> Any:
        return sent.as_strided(slot.shape, slot.strides, slot.start)

    def fetch(self, sent: Any) -> np.ndarray:
        import torch

        if sent.dtype is torch.bfloat16:
            return sent.cpu().view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
        return sent.cpu().numpy()


class NumbaLibrary(CupyLibrary):
    """numba device arrays, made over CuPy's memory."""

    name = "numba"
    requires = "cupy"

    def view(self, sent: Any, slot: Slot) -> Any:
        from numba import cuda

        return cuda.as_cuda_array(super().view(sent, slot))


class DlpackOnly:
    """Array that offers nothing but DLPack."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class InterfaceOnly:
    """Array that offers nothing but `__cuda_array_interface__`."""

    def __init__(self, array: Any, *, read_only: bool = False) -> None:
        self._owner = array
        interface = dict(array.__cuda_array_interface__)
        interface["data"] = (interface["data"][0], read_only)
        self.__cuda_array_interface__ = interface


class DlpackLibrary(CupyLibrary):
    """CuPy's memory behind DLPack alone."""

    name = "dlpack"

    def view(self, sent: Any, slot: Slot) -> Any:
        return DlpackOnly(super().view(sent, slot))


class HostDlpackLibrary(NumpyLibrary):
    """Host memory behind DLPack alone."""

    name = "host_dlpack"

    def view(self, sent: Any, slot: Slot) -> Any:
        return DlpackOnly(super().view(sent, slot))


class InterfaceLibrary(CupyLibrary):
    """CuPy's memory behind `__cuda_array_interface__` alone."""

    name = "cuda_array_interface"

    def view(self, sent: Any, slot: Slot) -> Any:
        return InterfaceOnly(super().view(sent, slot))


LIBRARIES = {
    library.name: library
    for library in (
        NumpyLibrary(),
        HostDlpackLibrary(),
        CupyLibrary(),
        TorchLibrary(),
        NumbaLibrary(),
        DlpackLibrary(),
        InterfaceLibrary(),
    )
}


def is_installed(library: NumpyLibrary) -> bool:
    """True if the package behind a library can be imported."""
    return importlib.util.find_spec(library.requires) is not None
