"""G16: arrays of every library, alone and mixed; the result in c's or else a's library."""

from itertools import product as combinations

import numpy as np
import pytest
from oracle.cases import DTYPES, Case
from oracle.check import assert_right, check
from oracle.inputs import operands
from oracle.libraries import LIBRARIES, InterfaceOnly, is_installed
from oracle.padded import Padded

import dxgemm
from dxgemm import errors
from dxgemm.gpu.status import simulator_enabled

HOST_ONLY = ("numpy", "host_dlpack")
USABLE = [
    library
    for library in LIBRARIES.values()
    if library.name in HOST_ONLY or (not simulator_enabled() and is_installed(library))
]
SIZE = (5, 3, 4) if simulator_enabled() else (65, 33, 47)
LAYOUTS_EVERYWHERE = ("row", "col+1", "row/2", "row@1")

# Where the type of a result without c or out comes from: protocols have no arrays of their own.
RESULT_PACKAGES = {
    "numpy": "numpy", "host_dlpack": "numpy", "cupy": "cupy", "torch": "torch", "numba": "numba",
    "dlpack": "cupy", "cuda_array_interface": "cupy",
}  # fmt: skip


def random_operands(dtype="float32"):
    m, n, k = SIZE
    return operands("random", (m, k), (k, n), (m, n), dtype)


@pytest.fixture(params=USABLE, ids=lambda library: library.name)
def library(request):
    return request.param


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_operands_of_one_library(library, dtype):
    names = LAYOUTS_EVERYWHERE
    cases = [
        Case(dtype, *SIZE, layouts, 0.7, 1.3)
        for layouts in zip(names, names[1:] + names[:1], names[2:] + names[:2], strict=True)
    ]
    check(cases, dxgemm.gemm, library)


@pytest.mark.parametrize(
    "libraries",
    list(combinations(USABLE, repeat=3)),
    ids=lambda libraries: "_".join(library.name for library in libraries),
)
def test_mixed_libraries(libraries):
    values = random_operands()
    a, b, c = (Padded(library, value) for library, value in zip(libraries, values, strict=True))
    assert dxgemm.gemm(a.array, b.array, c.array, 0.7, 1.3) is c.array
    assert_right(c.fetch(), *values, 0.7, 1.3)
    a.assert_unchanged()
    b.assert_unchanged()


@pytest.mark.parametrize("other", USABLE, ids=lambda library: library.name)
def test_a_new_result_is_of_the_library_of_a(library, other):
    a, b, c = random_operands()
    result = dxgemm.gemm(Padded(library, a).array, Padded(other, b).array, alpha=0.7)
    assert type(result).__module__.split(".")[0] == RESULT_PACKAGES[library.name]
    assert tuple(result.shape) == c.shape
    assert_right(to_numpy(result), a, b, c, 0.7, 0.0)


def to_numpy(array):
    """Copies an array of any library to the host."""
    if hasattr(array, "copy_to_host"):
        return array.copy_to_host()
    if hasattr(array, "cpu"):
        return array.cpu().numpy()
    return array.get() if hasattr(array, "get") else array


def test_out_of_another_library_receives_the_result(library):
    a, b, c = random_operands()
    for other in USABLE:
        out = Padded(library, np.full_like(c, np.nan))
        arrays = [Padded(other, value).array for value in (a, b, c)]
        assert dxgemm.gemm(*arrays, 0.7, 1.3, out=out.array) is out.array
        assert_right(out.fetch(), a, b, c, 0.7, 1.3)


class Tagged(np.ndarray):
    """A subclass of NumPy's array."""


def test_subclasses_of_ndarray_are_arrays():
    a, b, c = random_operands()
    assert_right(dxgemm.gemm(a.view(Tagged), b.view(Tagged)), a, b, c, 1.0, 0.0)


@pytest.mark.gpu
def test_a_read_only_interface_is_refused_as_c_and_read_as_a(cupy):
    a, b, c = (cupy.asarray(values) for values in random_operands())
    before = c.get()
    with pytest.raises(errors.ReadOnlyError):
        dxgemm.gemm(a, b, InterfaceOnly(c, read_only=True))
    assert c.get().tobytes() == before.tobytes()
    dxgemm.gemm(InterfaceOnly(a, read_only=True), b, c)
    assert_right(c.get(), a.get(), b.get(), before, 1.0, 0.0)


@pytest.mark.gpu
class TestTorch:
    """Properties that only tensors have."""

    @pytest.fixture
    def tensors(self):
        torch = pytest.importorskip("torch")
        return [torch.from_numpy(values).cuda() for values in random_operands()]

    def test_a_tensor_that_requires_grad_is_refused_until_detached(self, tensors):
        a, b, c = tensors
        a.requires_grad_()
        with pytest.raises(errors.ArrayTypeError, match="detach"):
            dxgemm.gemm(a, b, c)
        dxgemm.gemm(a.detach(), b, c)

    def test_a_lazy_negation_is_refused(self, tensors):
        torch = pytest.importorskip("torch")
        a, b, c = tensors
        imaginary = torch.complex(a, a).conj().imag
        column = imaginary[:, 0].unsqueeze(-1)  # its last stride is 1, as of a plain tensor
        for negated, other in ((imaginary, b), (column, b[:1])):
            assert negated.is_neg()
            with pytest.raises(errors.ArrayTypeError, match="resolve_neg"):
                dxgemm.gemm(negated, other, c)

    def test_tensors_on_the_host_are_copied_and_updated(self):
        torch = pytest.importorskip("torch")
        a, b, c = random_operands()
        tensors = [torch.from_numpy(values.copy()) for values in (a, b, c)]
        assert dxgemm.gemm(*tensors, 0.7, 1.3) is tensors[2]
        assert_right(tensors[2].numpy(), a, b, c, 0.7, 1.3)

    def test_tensors_on_host_and_device_mix(self, tensors):
        for on_host in ((0,), (1,), (2,), (0, 2)):
            mixed = [t.cpu() if place in on_host else t.clone() for place, t in enumerate(tensors)]
            assert dxgemm.gemm(*mixed, 0.7, 1.3) is mixed[2]
            assert_right(mixed[2].cpu().numpy(), *random_operands(), 0.7, 1.3)

    def test_integer_and_half_tensors_are_refused(self, tensors):
        a, b, c = tensors
        for wrong in (a.int(), a.half(), a.bfloat16(), a.to(dtype=a.dtype.to_complex())):
            with pytest.raises(errors.DtypeError, match=str(wrong.dtype).removeprefix("torch.")):
                dxgemm.gemm(wrong, b, c)
