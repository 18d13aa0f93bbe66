"""G17: every parameter wrong in every way: a typed error naming the values, and nothing done."""

from fractions import Fraction
from importlib.util import find_spec

import numpy as np
import pytest

import dxgemm
from dxgemm import errors
from dxgemm.problem.dtypes import RESULT_DTYPES


def arrays(dtype="float32"):
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal(shape).astype(dtype)
        for name, shape in {"a": (4, 5), "b": (5, 6), "c": (4, 6)}.items()
    }


def ones(*shape, dtype="float32"):
    return np.ones(shape, dtype)


def misaligned(values):
    """The same values one byte past an aligned address."""
    memory = np.zeros(values.nbytes + 1, np.uint8)
    shifted = memory[1:].view(values.dtype).reshape(values.shape)
    shifted[...] = values
    return shifted


def of_records(values):
    """The same values as one field of five-byte records."""
    records = np.zeros(values.shape, [("value", values.dtype), ("flag", np.int8)])
    records["value"] = values
    return records["value"]


ARRAYS = arrays()

UNSUPPORTED_DTYPES = (
    ">i2", ">f2", "longdouble", "clongdouble", ">c8", ">f4", ">f8", "object", "U4", "S4",
    "datetime64[s]", "i4,f4",
)  # fmt: skip

WRONG_SHAPES = {
    "inner dimensions differ": ({"b": ones(6, 6)}, r"\(4, 5\).*\(6, 6\)"),
    "b is transposed": ({"b": ones(6, 5)}, r"\(4, 5\).*\(6, 5\)"),
    "a is a vector": ({"a": ones(5)}, r"1 dimension.*\(5,\)"),
    "b is a number": ({"b": np.array(1, "float32")}, r"0 dimension.*\(\)"),
    "c is a vector": ({"c": ones(6)}, r"1 dimension.*\(6,\)"),
    "a has four dimensions": ({"a": ones(1, 1, 4, 5)}, r"4 dimensions.*\(1, 1, 4, 5\)"),
    "c has a row too many": ({"c": ones(5, 6)}, r"\(5, 6\).*\(4, 6\)"),
    "c has a column too few": ({"c": ones(4, 5)}, r"\(4, 5\).*\(4, 6\)"),
    "c is transposed": ({"c": ones(6, 4)}, r"\(6, 4\).*\(4, 6\)"),
    "c is a row to broadcast": ({"c": ones(1, 6)}, r"\(1, 6\).*\(4, 6\)"),
    "out is too small": ({"out": ones(3, 6)}, r"\(3, 6\).*\(4, 6\)"),
    "batches differ": (
        {"a": ones(2, 4, 5), "b": ones(3, 5, 6), "c": ones(2, 4, 6)},
        r"\(2, 4, 5\).*\(3, 5, 6\)",
    ),
    "c lacks the batch": ({"a": ones(2, 4, 5)}, r"\(4, 6\).*\(2, 4, 6\)"),
    "c has a batch of one": ({"a": ones(2, 4, 5), "c": ones(1, 4, 6)}, r"\(1, 4, 6\).*\(2, 4, 6\)"),
    "out has another batch": (
        {"a": ones(2, 4, 5), "c": ones(2, 4, 6), "out": ones(3, 4, 6)},
        r"\(2, 4, 5\).*\(3, 4, 6\)",
    ),
}


@pytest.fixture(params=["gemm", "plan", "explain"])
def refuses(request):
    """Asserts that a call raises an error of one type and leaves its operands as they are."""

    def refuses(error, match, **changed):
        arguments = {**arrays(), "beta": 1.0, **changed}
        before = {
            name: value.tobytes()
            for name, value in arguments.items()
            if isinstance(value, np.ndarray) and not value.dtype.hasobject
        }
        with pytest.raises(error, match=f"(?s)^{request.param}: .*{match}") as caught:
            getattr(dxgemm, request.param)(**arguments)
        assert isinstance(caught.value, dxgemm.DxgemmError)
        for name, content in before.items():
            assert arguments[name].tobytes() == content, f"{name} was changed"

    return refuses


def test_a_sparse_matrix_is_refused(refuses):
    sparse = pytest.importorskip("scipy.sparse")
    refuses(errors.ArrayTypeError, "a is .*, not an array", a=sparse.eye_array(4, 5))


@pytest.mark.parametrize("dtype", UNSUPPORTED_DTYPES)
@pytest.mark.parametrize("name", ["a", "b", "c", "out"])
def test_an_unsupported_dtype_is_refused(refuses, name, dtype):
    wrong = np.zeros({**ARRAYS, "out": ARRAYS["c"]}[name].shape, dtype)
    refuses(errors.DtypeError, rf"{name} has dtype", **{name: wrong})


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("name", ["a", "b", "c", "out"])
def test_mixed_dtypes_are_refused(refuses, name, dtype):
    wrong = {**arrays(dtype), "out": arrays(dtype)["c"]}[name]
    refuses(errors.DtypeError, f"float32.*{dtype}|{dtype}.*float32", **{name: wrong})
    if name in "ab":
        refuses(errors.DtypeError, f"{name} is int8", **{name: arrays("int8")[name]})


def test_the_result_of_half_precision_is_of_one_allowed_dtype(refuses):
    half = arrays("float16")
    refuses(errors.DtypeError, "be float16 or (both )?float32", **half, out=ones(4, 6))
    refuses(
        errors.DtypeError,
        "be float16 or (both )?float32",
        **{**half, "c": arrays("float64")["c"]},
    )


@pytest.mark.parametrize("dtype", ["int8", "int16", "float32", "float64"])
def test_the_result_of_int8_is_int32(refuses, dtype):
    integers = {**arrays("int8"), "c": ones(4, 6, dtype="int32")}
    wrong = ones(4, 6, dtype=dtype)
    refuses(errors.DtypeError, "be int32", **{**integers, "c": wrong})
    refuses(errors.DtypeError, "be int32", **integers, out=wrong)


def test_the_way_out_of_a_wrong_result_dtype_is_one_that_fits(refuses):
    integers = {**arrays("int8"), "c": ones(4, 6, dtype="longdouble")}
    refuses(errors.DtypeError, r"c\.astype\('int32'\)", **integers)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8"])
def test_tf32_of_anything_but_float32_is_refused(refuses, dtype):
    operands = {**arrays(dtype), "c": ones(4, 6, dtype=RESULT_DTYPES[dtype][0])}
    refuses(errors.PrecisionError, f"'tf32' is for float32.*{dtype}", **operands, precision="tf32")


def test_explain_shape_takes_dtypes_of_numpy_and_torch():
    names = {np.float16: "float16", np.dtype("int8"): "int8", np.complex64: "complex64"}
    wrong = [np.datetime64, np.dtype("V4"), object(), None, 1.5]
    if find_spec("torch"):
        import torch

        names |= {torch.bfloat16: "bfloat16", torch.bool: "bool"}
        wrong += [torch, torch.strided, torch.quint8]
    for dtype, name in names.items():
        out_dtype = None if name == "int8" else dtype
        explained = dxgemm.explain_shape(5, 6, 7, dtype, out_dtype=out_dtype)
        assert str(explained) == str(dxgemm.explain_shape(5, 6, 7, name))
    for dtype in wrong:
        with pytest.raises(errors.DtypeError, match=r"^explain_shape: dtype is"):
            dxgemm.explain_shape(5, 6, 7, dtype)


def test_explain_shape_refuses_what_gemm_refuses():
    with pytest.raises(errors.PrecisionError, match="tf32"):
        dxgemm.explain_shape(2, 3, 4, "float64", precision="tf32")
    with pytest.raises(errors.DtypeError, match="float64"):
        dxgemm.explain_shape(2, 3, 4, "float32", out_dtype="float64")
    with pytest.raises(errors.DtypeError, match="int32"):
        dxgemm.explain_shape(2, 3, 4, "int32 float32")
    with pytest.raises(errors.DtypeError, match="pass 'int32'"):
        dxgemm.explain_shape(2, 3, 4, "int8", out_dtype="int8")


@pytest.mark.parametrize("changed, match", WRONG_SHAPES.values(), ids=WRONG_SHAPES)
def test_wrong_shapes_are_refused_with_the_shapes(refuses, changed, match):
    refuses(errors.ShapeError, match, **changed)


@pytest.mark.parametrize(
    "value", [2, np.float32(2), np.float64(2), np.int64(2), Fraction(2), -0.0], ids=repr
)
def test_real_numbers_of_any_kind_are_accepted(value):
    operands = arrays()
    expected = float(value) * (operands["a"].astype(float) @ operands["b"])
    np.testing.assert_allclose(dxgemm.gemm(**operands, alpha=value), expected, rtol=1e-4, atol=1e-5)


def test_beta_without_c_is_refused(refuses):
    refuses(errors.MissingOperandError, "no c", c=None)
    refuses(errors.MissingOperandError, "no c", c=None, out=ones(4, 6))


@pytest.mark.parametrize(
    "value", [("thread_tile_2d", "64x64"), ("coalesced", 3), ("thread_tile_2d",), ()], ids=str
)
def test_an_unknown_config_is_refused(refuses, value):
    refuses(errors.DxgemmError, "", implementation=value)


@pytest.mark.parametrize("name", ["a", "b", "c", "out"])
@pytest.mark.parametrize("spoil", [misaligned, of_records], ids=["pointer", "strides"])
def test_a_misaligned_operand_is_refused(refuses, name, spoil):
    operand = {**ARRAYS, "out": ARRAYS["c"]}[name]
    refuses(errors.LayoutError, rf"{name} .*4-byte", **{name: spoil(operand)})


def test_read_only_results_are_refused(refuses):
    frozen = ones(4, 6)
    frozen.flags.writeable = False
    refuses(errors.ReadOnlyError, "c is read-only", c=frozen)
    refuses(errors.ReadOnlyError, "out is read-only", out=frozen)


@pytest.mark.gpu
@pytest.mark.parametrize("changed, match", WRONG_SHAPES.values(), ids=WRONG_SHAPES)
def test_wrong_shapes_on_the_device_leave_c_as_it_is(changed, match, cupy):
    operands = {name: cupy.asarray(value) for name, value in {**arrays(), **changed}.items()}
    before = operands["c"].get()
    with pytest.raises(errors.ShapeError, match=match):
        dxgemm.gemm(**operands, beta=1.0)
    assert operands["c"].get().tobytes() == before.tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64"])
def test_unsupported_dtypes_on_the_device_are_refused(dtype, cupy):
    a, b, c = (cupy.asarray(value) for value in arrays().values())
    with pytest.raises(errors.DtypeError, match=dtype):
        dxgemm.gemm(a.astype(dtype), b, c)


BUILTIN = {
    TypeError: "ArrayType Dtype Scalar Stream",
    ValueError: "Shape MissingOperand ReadOnly Overlap Precision Layout Epilogue Setting "
    "DeviceMismatch UnknownGpu UnknownImplementation UnsupportedProblem",
    RuntimeError: "GpuUnavailable Build Launch",
    ImportError: "MissingPackage",
}


def test_every_error_is_also_the_builtin_one_would_expect():
    for builtin, names in BUILTIN.items():
        for name in names.split():
            error = getattr(errors, f"{name}Error")
            assert issubclass(error, dxgemm.DxgemmError) and issubclass(error, builtin), name


def test_numbers_beyond_float64_are_refused():
    a = np.ones((2, 2), np.float32)
    with pytest.raises(errors.ScalarError, match="overflows float64"):
        dxgemm.gemm(a, a, alpha=np.longdouble("1e4000"))
    assert np.isinf(dxgemm.gemm(a, a, alpha=np.inf)).all()
