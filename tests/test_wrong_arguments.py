"""G17: each argument of each public function with wrong values of every kind: a typed error.

The error names the function and the argument, hides what dxgemm tried inside, and nothing is done.
"""

import ast
import inspect
import traceback
from decimal import Decimal
from fractions import Fraction
from functools import partial, wraps
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import dxgemm
from dxgemm import epilogues, errors, reductions
from dxgemm.gpu.status import simulator_enabled

PACKAGE = Path(dxgemm.__file__).parent


class Plain:
    """No array, no number, no stream."""


def fail(*arguments, **options):
    raise RuntimeError("not today")


class NoRepr:
    __repr__ = fail


class NoAttribute:
    __getattr__ = fail


class Nothing:
    """No stream, no array, no number, and nothing that could be said about it."""

    __repr__ = __hash__ = __eq__ = __len__ = __iter__ = __float__ = __index__ = __bool__ = fail
    __array__ = __dlpack__ = __dlpack_device__ = __cuda_stream__ = fail
    __cuda_array_interface__ = ptr = property(fail)


class BadArray(np.ndarray):
    shape = property(fail)


class BadFraction(Fraction):
    __float__ = fail


def ones(*shape, dtype="float32"):
    return np.ones(shape, dtype)


def failing_values():
    """Values that fail when they are looked at, by kind."""
    return {
        "no repr": NoRepr(), "no attributes": NoAttribute(), "nothing": Nothing(),
        "in a tuple": ("naive", Nothing()), "too many digits": 10**5000,
        "a bad fraction": BadFraction(1, 2), "a bad array": ones(4, 5).view(BadArray),
        "infinity for a stream": SimpleNamespace(ptr=np.inf),
        "an object for a stream": SimpleNamespace(cuda_stream=object()),
    }  # fmt: skip


def wrong_values():
    """Values that few arguments take, by kind; made anew, because generators run out."""
    return {
        "None": None, "text": "nope", "no text": "", "a text of NumPy": np.str_("nope"),
        "bytes": b"a", "a list": ["tf32"], "an empty list": [], "a tuple": ("naive",),
        "an empty tuple": (), "a kernel of no config": ("naive", {}), "a dict": {"a": 1},
        "a set": {1}, "a generator": (x for x in (1, 2)), "a nested list": [[1.0, 2.0]],
        "True": True, "zero": 0, "two": 2, "nine": 9, "negative": -1, "beyond int64": 2**70,
        "beyond float64": 10**400, "beyond float32": 1e300, "a fraction": 1.5, "NaN": np.nan,
        "complex": 1j, "complex of NumPy": np.complex64(1j), "a decimal": Decimal("0.5"),
        "a type": np.ndarray, "a function": len, "an object": Plain(),
        "a masked array": np.ma.masked_array(ones(4, 5)), "an array": ones(2),
        "an array of no dimensions": np.array(1.0), "an empty array": ones(0, 0),
        "four dimensions": ones(1, 1, 4, 5), "integers": np.arange(3), "bytes of 8 x 8": ones(8, 8,
        dtype="int8"), "blocks": ones(1, 1, dtype="bool"), "blocks of floats": ones(1, 1),
        "objects": np.array([None, 1]), "texts": np.array(["a"]), "float64": ones(4, 6,
        dtype="float64"),
    }  # fmt: skip


# The error of an argument of this name; any other raises some `DxgemmError`.
EXPECTED = {
    "alpha": (errors.ScalarError, errors.ShapeError),  # of groups, also a list of a wrong length
    "beta": (errors.ScalarError, errors.ShapeError, errors.MissingOperandError),
    "stream": errors.StreamError,
    "implementation": (errors.UnknownImplementationError, errors.UnsupportedProblemError),
    "precision": errors.PrecisionError,
    "conjugate": errors.SettingError,
    "batch_invariant": errors.SettingError,
    **dict.fromkeys(
        ("transpose", "transpose_a", "transpose_b"), (errors.SettingError, errors.ShapeError)
    ),
    "triangle": errors.ShapeError,
    "activation": errors.SettingError,
    "jobs": errors.SettingError,
    "progress": errors.SettingError,
    "axis": errors.EpilogueError,
    "k": (errors.EpilogueError, errors.ShapeError),
    "layout": errors.LayoutError,
    "gpu": errors.UnknownGpuError,
}


def on_gpu(array):
    """The array where kernels read it."""
    return array if simulator_enabled() else pytest.importorskip("cupy").asarray(array)


def product():
    return {"a": ones(4, 5), "b": ones(5, 6), "c": ones(4, 6), "beta": 1.0}


def lists():
    return {"a": [ones(4, 5)] * 2, "b": [ones(5, 6)] * 2, "c": [ones(4, 6), ones(4, 6)]}


def parts():
    offsets = np.array([2, 4], "int32")
    return {"a": ones(4, 5), "b": ones(2, 5, 6), "c": ones(4, 6), "offsets": offsets}


def symmetric():
    return {"a": ones(4, 5), "c": ones(4, 4), "beta": 1.0}


@wraps(dxgemm.tensordot)
def einsum(a, b, axes="ij,jk->ik", **options):
    return dxgemm.einsum(axes, a, b, **options)


CALLS = {
    "gemm": (dxgemm.gemm, product),
    "plan": (dxgemm.plan, product),
    "explain": (dxgemm.explain, product),
    "matmul": (dxgemm.matmul, lambda: {"a": ones(4, 5), "b": ones(5, 6)}),
    "matmul of a stack": (dxgemm.matmul, lambda: {"a": ones(2, 1, 4, 5), "b": ones(5, 6)}),
    "gemm_symmetric": (dxgemm.gemm_symmetric, symmetric),
    "gemm_symmetric with b": (dxgemm.gemm_symmetric, lambda: {**symmetric(), "b": ones(4, 5)}),
    "explain_symmetric": (dxgemm.explain_symmetric, symmetric),
    "gemm_grouped": (dxgemm.gemm_grouped, lists),
    "gemm_grouped by offsets": (dxgemm.gemm_grouped, parts),
    "plan_grouped": (dxgemm.plan_grouped, lists),
    "plan_grouped by offsets": (dxgemm.plan_grouped, parts),
    "explain_shape": (dxgemm.explain_shape, lambda: {"m": 4, "n": 6, "k": 5}),
    "explain_shape of a card": (
        dxgemm.explain_shape,
        lambda: {"m": 4, "n": 6, "k": 5, "dtype": "complex64", "gpu": "H100"},
    ),
    "prepare": (dxgemm.prepare, lambda: {"b": on_gpu(ones(5, 6))}),
    "emulation_fallbacks": (dxgemm.emulation_fallbacks, dict),
    "einsum": (einsum, lambda: {"a": ones(4, 5), "b": ones(5, 6)}),
    "tensordot": (dxgemm.tensordot, lambda: {"a": ones(4, 5), "b": ones(5, 6), "axes": 1}),
    "transpose": (dxgemm.transpose, lambda: {"a": ones(4, 5), "axes": (1, 0)}),
    "inner": (partial(dxgemm.inner, lambda x, y: x * y), dict),
    "patch": (dxgemm.patch, dict),
    "device.tile": (dxgemm.device.tile, lambda: {"dtype": "float32"}),
}
REDUCTIONS = [name for name in reductions.__all__ if name.islower()]
OF_TORCH = (
    "linear", "gemm", "matmul", "gemm_grouped", "scaled_mm", "scaled_grouped_mm", "float8_linear",
    "quantise_rows", "functional.scaled_mm",
)  # fmt: skip


def check_refusals(call, function, base, parameter):
    """Check that wrong values of a parameter are refused, and how; return how many were."""
    refused = 0
    for kind, value in (wrong_values() | failing_values()).items():
        if parameter == "stream" and type(value) is int and not simulator_enabled():
            continue  # a number may be the address of a stream: the driver looks there
        arguments = {**base(), parameter: value}
        kept = {n: x.tobytes() for n, x in arguments.items() if type(x) is np.ndarray}
        try:
            function(**arguments)
        except dxgemm.DxgemmError as error:
            check_error(error, call, f"{parameter} is {kind}")
            assert isinstance(error, EXPECTED.get(parameter, dxgemm.DxgemmError)), (kind, error)
            for name, content in kept.items():
                assert arguments[name].tobytes() == content, f"{name} was changed for {kind}"
            refused += 1
        except Exception as error:
            raise AssertionError(f"{call}: {parameter} is {kind}: {error!r}") from error
    return refused


def check_error(error, call, what):
    """Check what a person sees of an error: the call's name, and neither frames nor contexts."""
    assert str(error).startswith(call), (what, str(error))
    assert error.__context__ is None or error.__suppress_context__, (what, error.__context__)
    if isinstance(error, TypeError | ValueError):
        frames = traceback.extract_tb(error.__traceback__)
        inside = [frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)]
        assert not inside, (what, inside)


@pytest.mark.parametrize(
    "call, parameter",
    [
        pytest.param(call, parameter, id=f"{call}-{parameter}")
        for call, (function, _) in CALLS.items()
        for parameter in inspect.signature(function).parameters
    ],
)
def test_wrong_arguments_are_refused(call, parameter):
    function, base = CALLS[call]
    refused = check_refusals(call.partition(" ")[0], function, base, parameter)
    assert refused > 20


@pytest.mark.parametrize("name", OF_TORCH)
def test_wrong_arguments_of_torch_are_refused(name):
    torch, dxt = pytest.importorskip("torch"), pytest.importorskip("dxgemm.torch")
    offsets, one = torch.tensor([1, 3], dtype=torch.int32), torch.ones(1)
    eights = [torch.ones(shape).to(torch.float8_e4m3fn) for shape in ((3, 4), (4, 5), (2, 4, 5))]
    scales = {"scale_a": one, "scale_b": one}
    base = {
        "linear": {"x": torch.ones(3, 4), "weight": torch.ones(5, 4), "bias": torch.ones(5)},
        "gemm": {"a": torch.ones(3, 4), "b": torch.ones(4, 5), "c": torch.ones(3, 5)},
        "matmul": {"a": torch.ones(3, 4), "b": torch.ones(4, 5)},
        "gemm_grouped": {"a": torch.ones(3, 4), "b": torch.ones(2, 4, 5), "offsets": offsets},
        "scaled_mm": {"input": eights[0], "mat2": eights[1], **scales},
        "scaled_grouped_mm": {"input": eights[0], "mat2": eights[2], **scales, "offs": offsets},
        "float8_linear": {"x": torch.ones(3, 4), "weight": torch.ones(5, 4)},
        "quantise_rows": {"x": torch.ones(3, 4)},
        "functional.scaled_mm": {"mat_a": eights[0], "mat_b": eights[1], **scales}
        | dict.fromkeys(("scale_recipe_a", "scale_recipe_b"), "TensorWise"),
    }[name]
    function = attrgetter(name)(dxt)
    for parameter in inspect.signature(function).parameters:
        call = f"dxgemm.torch.{name}"
        assert check_refusals(call, function, lambda: base, parameter) > 20


@pytest.mark.parametrize("parameter", ["in_features", "out_features", "device", "dtype"])
def test_wrong_arguments_of_a_module_of_torch_are_refused(parameter):
    _, dxt = pytest.importorskip("torch"), pytest.importorskip("dxgemm.torch")
    base = {"in_features": 3, "out_features": 4}
    assert check_refusals("dxgemm.torch.Linear", dxt.Linear, lambda: base, parameter) > 20


def test_wrong_arguments_of_jax_are_refused():
    pytest.importorskip("jax")
    gemm = pytest.importorskip("dxgemm.jax").gemm
    for parameter in inspect.signature(gemm).parameters:
        base = {name: x for name, x in product().items() if name != "beta"}
        assert check_refusals("dxgemm.jax.gemm", gemm, lambda base=base: base, parameter) > 20


def test_wrong_arguments_of_sharded_predictions_are_refused():
    from dxgemm.distributed import explain

    sizes = {"m": 512, "n": 256, "k": 128, "gpu": "H100"}
    for parameter in inspect.signature(explain).parameters:
        base = {"operation": "gemm_all_reduce", **sizes}
        call = "dxgemm.distributed.explain"
        assert check_refusals(call, explain, lambda base=base: base, parameter) > 20


@pytest.mark.parametrize("name", REDUCTIONS)
def test_wrong_arguments_of_reductions_are_refused(name):
    function = getattr(reductions, name)
    parameters = inspect.signature(function).parameters
    base = {"k": 2} if "k" in parameters else {}
    for parameter in parameters:
        call = f"reductions.{name}"
        if parameter == "out":  # which only a call can check

            def function_of_out(out):
                dxgemm.gemm(**product(), epilogue=function(**base, out=out))

            assert check_refusals("", function_of_out, dict, "out") > 20
        else:
            assert check_refusals(call, function, lambda: base, parameter) > 20
    for value in wrong_values().values():
        with pytest.raises((errors.EpilogueError, TypeError)):
            function(**base) | value
    assert check_refusals("on_host", function(**base).on_host, dict, "values") > 20


CATALOGUE = {
    name: entry
    for name, entry in vars(epilogues).items()
    if isinstance(entry, epilogues.Epilogue) and not entry.takes_pairs
}


@pytest.mark.parametrize("name", CATALOGUE)
def test_wrong_operands_of_epilogues_are_refused(name):
    entry = CATALOGUE[name]
    right = {"scalar": 0.5, "integer": 1, "row": ones(6), "column": ones(4), "matrix": ones(4, 6)}
    base = {operand.name: right.get(operand.kind, ones(4, 6)) for operand in entry.operands}
    operands = {"a": ones(4, 5), "b": ones(5, 6)}
    for operand in entry.operands:

        def call(operand=operand, **values):
            dxgemm.gemm(**operands, epilogue=entry(**{**base, **values}))

        assert check_refusals("", call, dict, operand.name) > 15
    assert check_refusals("on_host", entry(**base).on_host, lambda: {}, "values") > 20


# Options of `epilogue` and `build` with kinds of values that they take, or that end early.
OPTIONS = {
    "function": (),
    "outputs": ("a list", "an empty list", "a tuple", "an empty tuple"),
    "pairs": (),
    "real": ("True",),
    "arch": ("None", "an empty list", "an empty tuple"),
    "dtypes": ("an empty list", "an empty tuple"),
    "implementations": ("None", "a tuple", "an empty list", "an empty tuple"),
    "jobs": ("None", "True", "two", "nine", "beyond int64", "beyond float64"),
    "progress": ("None", "a type", "a function"),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_wrong_options_of_the_decorator_and_of_builds_are_refused(option):
    def decorated(function=lambda value, row, col: value, **options):
        dxgemm.epilogue(**options)(function)

    is_decorated = option in ("function", "outputs", "pairs", "real")
    call = decorated if is_decorated else dxgemm.build
    base = {} if is_decorated else {"arch": "sm_80", "dtypes": (), "implementations": ("naive",)}
    for kind in wrong_values().keys() - set(OPTIONS[option]):
        with pytest.raises(dxgemm.DxgemmError) as caught:
            call(**{**base, option: wrong_values()[kind]})
        assert str(caught.value).startswith("epilogue" if is_decorated else "build: "), kind


def of_grouped(**changed):
    return lambda: dxgemm.gemm_grouped(**{**lists(), **changed})


def frozen(*shape):
    array = ones(*shape)
    array.flags.writeable = False
    return array


MESSAGES = {
    "the transpose of a": (
        lambda: dxgemm.gemm_symmetric(ones(4, 5), ones(3, 3)),
        "gemm_symmetric: c is (3, 3), but a @ a.T is (4, 4) for a (4, 5) and a.T (5, 4); c must",
    ),
    "a transposed, and b": (
        lambda: dxgemm.explain_symmetric(
            ones(5, 4), ones(3, 3), b=ones(5, 4, dtype="float32"), transpose=True
        ),
        "explain_symmetric: c is (3, 3), but a.T @ b is (4, 4) for a.T (4, 5) and b (5, 4); c must",
    ),
    "shapes of a group": (
        of_grouped(b=[ones(5, 6), ones(7, 6)]),
        "gemm_grouped: inner dimensions differ: a[1] is (4, 5), b[1] is (7, 6); a[1].shape[1] must "
        "equal b[1].shape[0].",
    ),
    "no array in a list": (of_grouped(a=[ones(4, 5), None]), "gemm_grouped: a[1] is None, not"),
    "a number in a list": (of_grouped(alpha=[1.0, "x"]), "gemm_grouped: alpha[1] is 'x' (str);"),
    "an overflow in a list": (of_grouped(beta=[1e300, 0]), "gemm_grouped: beta[0] is 1e+300, wh"),
    "an overflow": (of_grouped(alpha=1e300), "gemm_grouped: alpha is 1e+300, which overflows"),
    "a plan of groups": (
        lambda: dxgemm.plan_grouped(**{**parts(), "offsets": ones(2)}),
        "plan_grouped: offsets has dtype float32; it must be int32 or int64.",
    ),
    "a frozen result": (
        lambda: dxgemm.matmul(ones(2, 1, 4, 5), ones(5, 6), out=frozen(2, 1, 4, 6)),
        "matmul: out is read-only",
    ),
    "an array for a reduction": (
        lambda: dxgemm.gemm(ones(4, 5), ones(5, 6), epilogue=reductions.sum(0, out=ones(4))),
        "gemm: reductions.sum(out=) is (4,); it must be (6,).",
    ),
    "arrays for a reduction": (
        lambda: dxgemm.plan(
            ones(4, 5), ones(5, 6), epilogue=reductions.smallest(2, 1, out=(ones(4, 2), ones(4, 2)))
        ),
        "plan: reductions.smallest(out=)[1] has dtype float32; it must be int64.",
    ),
    "a size": (
        lambda: dxgemm.explain_shape(4, -6, 5),
        "explain_shape: n is -6; pass an integer from 0 to",
    ),
}


@pytest.mark.parametrize("call, message", MESSAGES.values(), ids=MESSAGES)
def test_the_message_has_the_callers_names(call, message):
    with pytest.raises(dxgemm.DxgemmError) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_an_operator_has_names_of_its_own(monkeypatch):
    torch, dxt = pytest.importorskip("torch"), pytest.importorskip("dxgemm.torch")

    def refuse(*operands, **options):
        raise errors.LayoutError("gemm: <a> is odd, <b> is even, vector and <out> are not.")

    monkeypatch.setattr(dxgemm, "gemm", refuse)
    message = r"^dxgemm.torch.linear: x is odd, weight is even, vector and out are not\.$"
    with pytest.raises(errors.LayoutError, match=message):
        dxt.linear(torch.ones(3, 4), torch.ones(5, 4), torch.ones(5), "relu")


def test_a_plan_names_itself_when_it_runs(monkeypatch):
    plan = dxgemm.plan(ones(4, 5), ones(5, 6))

    def refuse(stream):
        raise errors.LaunchError("gemm: the driver refused it.")

    monkeypatch.setattr(plan, "_launch", refuse)
    with pytest.raises(errors.LaunchError, match=r"^plan: the driver refused it\.$"):
        plan()


def test_a_person_sees_the_call_and_the_message():
    a = ones(3, 2)
    try:
        dxgemm.gemm(a, a)
    except errors.ShapeError:
        lines = traceback.format_exc().splitlines()
    assert "dxgemm.gemm(a, a)" in lines[2] and "gemm: inner dimensions" in lines[-1]
    assert len(lines) <= 5, lines


def test_a_cause_from_outside_is_kept():
    class Export:
        def __dlpack__(self, **options):
            raise RuntimeError("no export today")

        def __dlpack_device__(self):
            return 1, 0

    with pytest.raises(errors.ArrayTypeError, match=r"^gemm: ") as caught:
        dxgemm.gemm(Export(), ones(5, 6))
    assert caught.value.__cause__ is not None


def test_no_handler_of_a_failed_look_up_does_work():
    """What raises inside of such a handler would be shown below the look-up's own error."""
    look_ups = {"KeyError", "IndexError", "LookupError", "AttributeError", "TypeError"}
    working = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ExceptHandler) or node.type is None:
                continue
            types = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            if not {getattr(kind, "id", "") for kind in types} <= look_ups:
                continue
            steps = [step for step in node.body if not (isinstance(step, ast.Raise) and step.cause)]
            if any(isinstance(part, ast.Call) for step in steps for part in ast.walk(step)):
                working.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert not working
