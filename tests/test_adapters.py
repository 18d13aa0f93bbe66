"""Properties that dxgemm reads off foreign objects, tested on made-up ones without a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import dxgemm
from dxgemm import errors
from dxgemm.gpu.status import simulator_enabled
from dxgemm.runtime.arrays import dtype_name
from dxgemm.runtime.streams import stream_handle

HANDLE = 0x5EED

STREAMS = {
    "a raw handle": HANDLE,
    "a protocol method": SimpleNamespace(__cuda_stream__=lambda: (0, HANDLE)),
    "a protocol attribute": SimpleNamespace(__cuda_stream__=(0, HANDLE)),
    "as CuPy names it": SimpleNamespace(ptr=HANDLE),
    "as torch names it": SimpleNamespace(cuda_stream=HANDLE),
    "as numba names it": SimpleNamespace(handle=SimpleNamespace(value=HANDLE)),
}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_the_handle_is_read_off_any_stream(stream):
    assert stream_handle(stream) == HANDLE


def test_the_default_stream_is_zero_however_it_is_written():
    assert stream_handle(0) == 0
    assert stream_handle(SimpleNamespace(ptr=0)) == 0
    assert stream_handle(SimpleNamespace(handle=SimpleNamespace(value=None))) == 0


@pytest.mark.parametrize(
    "stream",
    [SimpleNamespace(ptr="text"), SimpleNamespace(handle=object()), np.ones(1), SimpleNamespace()],
    ids=["text in ptr", "object in handle", "an array", "nothing"],
)
def test_what_only_looks_like_a_stream_is_refused(stream):
    with pytest.raises(errors.StreamError, match="gemm: stream is"):
        stream_handle(stream)


def test_byte_order_is_part_of_a_dtype():
    assert dtype_name(np.dtype("f4")) == "float32"
    assert dtype_name(np.dtype("f8").newbyteorder()) != "float64"


BROKEN_ARRAYS = {
    "an interface that is no dict": SimpleNamespace(__cuda_array_interface__=3),
    "an interface without a pointer": SimpleNamespace(
        __cuda_array_interface__={"shape": (2, 2), "typestr": "<f4", "version": 3}
    ),
    "a capsule that is none": SimpleNamespace(
        __dlpack__=lambda **options: None, __dlpack_device__=lambda: (1, 0)
    ),
    "an export that fails": SimpleNamespace(
        __dlpack__=lambda **options: 1 / 0, __dlpack_device__=lambda: (1, 0)
    ),
}


@pytest.mark.parametrize("broken", BROKEN_ARRAYS.values(), ids=BROKEN_ARRAYS)
@pytest.mark.parametrize("name", ["a", "b", "c", "out"])
def test_a_broken_export_is_refused(name, broken):
    arguments = {"a": np.ones((2, 2)), "b": np.ones((2, 2)), name: broken}
    with pytest.raises(errors.ArrayTypeError, match="gemm: a SimpleNamespace cannot be read"):
        dxgemm.gemm(**arguments)


@pytest.mark.skipif(not simulator_enabled(), reason="the simulator is off")
def test_the_simulator_refuses_device_memory():
    interface = {"shape": (2, 2), "typestr": "<f8", "data": (4096, False), "version": 3}
    on_device = SimpleNamespace(__cuda_array_interface__=interface)
    with pytest.raises(dxgemm.DxgemmError, match="gemm: "):
        dxgemm.gemm(on_device, np.ones((2, 2)))
