"""Epilogues without kernels: what can be one, binding, identity, the twin on the host, checks."""

import cmath  # noqa: F401  # formulas name it
import functools
import gc
import math
import operator
import pickle
import weakref
from math import exp

import ml_dtypes
import numpy as np
import pytest

import dxgemm
from dxgemm import epilogues, errors, reductions
from dxgemm.epilogues import (
    BoundEpilogue,
    ColumnVector,
    Integer,
    Matrix,
    RowVector,
    Scalar,
    bias,
    bias_column,
    clamp,
    dequantise,
    dropout,
    fast_gelu_tanh,
    gelu,
    gelu_tanh,
    keep,
    leaky_relu,
    logistic,
    normal_cdf,
    relu,
    residual,
    scale,
    scale_columns,
    scale_rows,
    sigmoid,
    silu,
    tanh,
)
from dxgemm.epilogues.chain import bound_epilogue
from dxgemm.epilogues.check import check_operands, check_overflow
from dxgemm.epilogues.literals import compiled_function
from dxgemm.epilogues.philox import philox_4x32
from dxgemm.problem.dtypes import scalar_dtype
from dxgemm.problem.layout import Layout

HALF = 0.5
PAIR = (0.25, 0.75)
TABLE = [1.0, 2.0]
CHANGING = 1.0
AWKWARD = (
    math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-30, -1e-30, 0.5, -0.5, 3.0, -3.0, 30.0, -30.0,
    100.0, -100.0, 1e30, -1e30,
)  # fmt: skip
FLOATS = ("float32", "float64")


def name_of(value):
    """A parameter's name in a test's id, the same in every process."""
    text = repr(value)
    return type(value).__name__ if " at 0x" in text else text


def made(text):
    """What a text defines as `f`, or the value of an expression."""
    if not text.startswith(("def", "async")):
        return eval(text, {**globals()})
    names = {**globals()}
    exec(text, names)
    return names["f"]


def with_body(body):
    return made(f"def f(value, row, col):\n {body}")


def halved(x):
    return HALF * x


def circular(x):
    return circular_too(x)


def circular_too(x):
    return circular(x)


@dxgemm.epilogue
def scaled_tanh(value, row, col, factor: Scalar, shift: RowVector):
    return factor * math.tanh(value + shift)


@dxgemm.epilogue(outputs=("before",))
def relu_keeping(value, row, col):
    return (value if value > 0.0 else 0.0), value


@dxgemm.epilogue
def place(value, row, col):
    return value + 10.0 * row + col


def digest(function):
    return dxgemm.epilogue(function).digest


def on_host(epilogue, values, **options):
    return bound_epilogue(epilogue).on_host(np.asarray(values), **options)[0]


def awkward(dtype):
    return np.array([AWKWARD], dtype)


# what can be an epilogue


@pytest.mark.parametrize(
    "text, match",
    [
        ("lambda value, row: value", "lambda.*value, row"),
        ("lambda value, row, col, shift: value", "lambda.*shift has no annotation"),
        ("def f(value, row, col, shift: float): ...", "f.*shift has the annotation.*float"),
        ('def f(value, row, col, shift: "Nowhere"): ...', "f.*Nowhere.*shift"),
        ("lambda value, row, col, *shifts: value", r"lambda.*\*shifts"),
        ("lambda value, row, col, **shifts: value", r"lambda.*\*\*shifts"),
        ("def f(value, row, col, *, shift: Scalar): ...", "f.*shift is keyword-only"),
        ("def f(value, row, col, shift: RowVector = None): ...", "f.*shift.*row vector.*default"),
        ("lambda value, row, col=0: value", "lambda.*col has a default"),
        ('def f(value, row, col, shift: Scalar = "1"): ...', "f.*shift is '1'"),
        ("def f(value, row, col): yield value", "f.*is a generator"),
        ("async def f(value, row, col): ...", "f.*async"),
        ("async def f(value, row, col): yield value", "f.*async"),
        ("object", "object.*plain Python function"),
        ("math.tanh", "tanh.*plain Python function"),
        ("functools.partial(halved)", "partial.*plain Python function"),
        ("relu", "relu.*plain Python function"),
        ("lambda value, row, col: value + TABLE[0]", r"TABLE.*\[1.0, 2.0\].*operand"),
        (
            "lambda value, row, col: epilogues.relu(value, row, col)",
            "module dxgemm.epilogues.*from",
        ),
        ("lambda value, row, col: value + NOWHERE", "NOWHERE has no value"),
        ("lambda value, row, col: circular(value)", "lambda.*calls itself"),
    ],
)
def test_what_cannot_be_an_epilogue_is_refused(text, match):
    with pytest.raises(errors.EpilogueError, match=f"epilogue .*{match}"):
        dxgemm.epilogue(made(text))


@pytest.mark.parametrize(
    "value", [[1.0], {}, {1.0}, np.ones(2), object(), (1.0, [2.0]), errors, [].append], ids=name_of
)
def test_a_closure_that_could_change_is_refused(value):
    def closing(v, row, col):
        return v + value

    with pytest.raises(errors.EpilogueError, match="closing: closure variable value"):
        dxgemm.epilogue(closing)


@pytest.mark.parametrize(
    "value",
    [None, True, 1, 1.0, "text", (1.0, (2, "x")), np.float32(1), np.dtype("f4"), np.float32, math,
     np.exp, math.exp, max, halved, relu],
    ids=name_of,
)  # fmt: skip
def test_a_closure_that_keeps_its_value_is_accepted(value):
    def closing(v, row, col):
        return v, value

    assert len(digest(closing)) == 64


@pytest.mark.parametrize(
    "outputs", ["kept", ("a b",), ("a", "a"), ("shift",), (3,), ("if",)], ids=name_of
)
def test_outputs_must_be_names_of_their_own(outputs):
    def shifted(value, row, col, shift: Scalar):
        return value + shift, value

    with pytest.raises(errors.EpilogueError, match="shifted: outputs is"):
        dxgemm.epilogue(outputs=outputs)(shifted)


def test_annotations_as_text_and_as_objects_mean_the_same():
    def as_text(value, row, col, a: Scalar, b: RowVector, c: ColumnVector, d: Matrix, e: Integer):
        return value

    def as_objects(value, row, col, a, b, c, d, e):
        return value

    kinds = (Scalar, RowVector, ColumnVector, Matrix, Integer)
    as_objects.__annotations__ = dict(zip("abcde", kinds, strict=True))
    for function in (as_text, as_objects):
        parameters = dxgemm.epilogue(function).parameters
        names = [parameter.kind for parameter in parameters]
        assert names == ["scalar", "row", "column", "matrix", "integer"]


# binding


@pytest.mark.parametrize(
    "bind, match",
    [
        (lambda: scaled_tanh(), "scaled_tanh.*factor .*missing"),
        (lambda: scaled_tanh(0.5), "scaled_tanh.*shift .*missing"),
        (lambda: scaled_tanh.bound, "scaled_tanh.*factor .*missing"),
        (lambda: relu | scaled_tanh, "scaled_tanh.*factor .*missing"),
        (lambda: scaled_tanh(0.5, shif=1), "scaled_tanh.*no operand shif.*factor, shift"),
        (lambda: scaled_tanh(0.5, factor=1, shift=1), "scaled_tanh.*factor .*by position"),
        (lambda: scaled_tanh(1, 2, 3), "scaled_tanh.*3 operands.*factor, shift"),
        (lambda: relu_keeping(), "relu_keeping.*before .*missing.*before=array"),
        (lambda: relu_keeping(1), "relu_keeping.*1 operands"),
        (lambda: bound_epilogue(halved), "decorated with @dxgemm.epilogue"),
        (lambda: bound_epilogue("relu"), "'relu'"),
        (lambda: keep(kept=1) | relu | keep(kept=2), "keep [|] relu [|] keep.*kept"),
    ],
)
def test_binding_that_does_not_fit_is_refused(bind, match):
    with pytest.raises(errors.EpilogueError, match=match):
        bind()


NO_SCALARS = [True, np.True_, "1", None, 1j, [1.0], np.ones(1), 10**400]
NO_INTEGERS = [True, 1.0, np.float32(1), 2**63, -(2**63) - 1, "1"]
NO_PROBABILITIES = [-0.1, 1.5, math.nan, np.float32(2), -1]


@pytest.mark.parametrize(
    "bind, value, match",
    [
        *((scale, value, "scale: factor is") for value in NO_SCALARS),
        *((functools.partial(dropout, 0.5), value, "dropout: seed is") for value in NO_INTEGERS),
        *(
            (lambda value: dropout(value, 7), value, r"probability is .* from 0 to 1")
            for value in NO_PROBABILITIES
        ),
    ],
    ids=name_of,
)
def test_numbers_that_do_not_fit_are_refused(bind, value, match):
    with pytest.raises(errors.ScalarError, match=match):
        bind(value)


def test_only_epilogues_compose():
    with pytest.raises(TypeError):
        relu | halved
    with pytest.raises(TypeError):
        relu | 1


def test_defaults_stand_in_for_scalars():
    assert leaky_relu().values == leaky_relu.bound.values == (0.01,)
    assert leaky_relu(0.5).values == leaky_relu(slope=0.5).values == (0.5,)


def test_the_flat_view_is_in_the_order_of_stages_parameters_and_outputs():
    vector, before, matrix = (np.ones(3) for _ in range(3))
    bound = scaled_tanh(shift=vector, factor=2) | (relu_keeping(before=before) | residual(matrix))
    assert isinstance(bound, BoundEpilogue)
    assert bound.stages == (scaled_tanh, relu_keeping, residual)
    seen = [(operand.epilogue, operand.name, operand.kind) for operand in bound.operands]
    assert seen == [
        ("scaled_tanh", "factor", "scalar"),
        ("scaled_tanh", "shift", "row"),
        ("relu_keeping", "before", "output"),
        ("residual", "matrix", "matrix"),
    ]
    assert all(map(operator.is_, bound.values[1:], (vector, before, matrix)))
    assert bound.values[0] == 2


def test_epilogues_are_equal_if_they_do_the_same():
    def again(value, row, col):
        return value + 0.5

    one, other = dxgemm.epilogue(again), dxgemm.epilogue(again)
    assert one is not other and one == other and hash(one) == hash(other)
    assert one != relu and one != again


def test_one_shape_stands_for_all_that_differ_in_what_was_passed():
    chain = bias(np.ones(2)) | gelu
    assert chain.shape is (bias(np.ones(3)) | gelu).shape
    assert chain.shape is not (gelu | bias(np.ones(2))).shape
    assert chain.shape.values == () and chain.shape.operands == chain.operands
    assert bias(0).shape is bias(1).shape is not bias_column(0).shape
    made = [made_of() for made_of in 2 * [lambda: bias(np.ones(2)) | gelu | relu]]
    made.append(bias(np.ones(2)) | (gelu | relu))
    assert len({one.shape for one in made}) == 1 and made[0].stages == made[1].stages
    assert [len(one.values) for one in made] == [1, 1, 1]
    allocated, passed = (chain | reductions.sum(1, out=out) for out in (None, np.ones(2)))
    assert allocated.shape is not passed.shape


def test_a_chain_that_was_refused_is_refused_again():
    keeping = relu_keeping(before=np.ones((2, 2)))
    for _ in range(2):
        with pytest.raises(errors.EpilogueError, match="two stages have an output called before"):
            keeping | keeping


def test_a_shape_keeps_no_array():
    vector, out = np.ones(2), np.ones(2)
    shape = (bias(vector) | reductions.sum(1, out=out)).shape
    references = weakref.ref(vector), weakref.ref(out)
    del vector, out
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    assert str(shape) == "bias | sum(axis=1)"


def test_an_epilogue_with_its_element_is_the_plain_function():
    assert scaled_tanh(1.0, 0, 0, 2.0, 0.5) == 2.0 * math.tanh(1.5)
    assert relu_keeping(-1.0, 0, 0) == (0.0, -1.0)
    assert scaled_tanh.__doc__ is None and gelu.__doc__.startswith("value * Phi")


# identity


def test_a_digest_follows_what_a_function_computes():
    def shifted(shift, constant=lambda x: x + 1.0):
        def function(value, row, col):
            return constant(value) + shift

        return function

    helpers = [
        lambda x: x + 2.0, lambda x: x - 1.0, lambda x, y=1.0: x + y, lambda x, y=2.0: x + y,
        lambda x, *, y=2.0: x + y, lambda x: halved(x), lambda x: math.exp(x),
        lambda x: math.tanh(x), lambda x: exp(x), lambda x: x + HALF, lambda x: x + PAIR[0],
        lambda x: sum([x + 1.0 for _ in PAIR]), lambda x: sum([x + 2.0 for _ in PAIR]),
    ]  # fmt: skip
    different = [
        *map(shifted, (1.0, 2.0, 1, np.float32(1), -0.0, 0.0)),
        *(shifted(1.0, helper) for helper in helpers),
        *(made(f"def f(value, row, col, s: Scalar = {x}): return value") for x in ("1.0", "2.0")),
    ]
    digests = [digest(function) for function in different]
    assert len(set(digests)) == len(digests)
    assert digest(shifted(1.0)) == digests[0]


def test_a_digest_follows_helpers_and_globals(monkeypatch):
    def function(value, row, col):
        return halved(value)

    before = digest(function)
    monkeypatch.setitem(globals(), "HALF", 0.25)
    assert digest(function) != before
    monkeypatch.setitem(globals(), "HALF", 0.5)
    assert digest(function) == before


def test_names_of_attributes_are_no_globals(monkeypatch):
    def function(value, row, col):
        return math.tanh(value)

    monkeypatch.setitem(globals(), "tanh", TABLE)
    digest(function)


def test_digests_are_the_same_in_every_process(run_python, tmp_path):
    (tmp_path / "mine.py").write_text("""
import math
import numpy as np
import dxgemm
from dxgemm.epilogues import Scalar, gelu

SHIFTS, NAMES, TINY = (0.5, 1.5), "abc", np.float32(1e-3)

def helper(x):
    return x + SHIFTS[0] if NAMES in {"abc", "def", "ghi", "jkl"} else -x

@dxgemm.epilogue
def mine(value, row, col, factor: Scalar = 2.0):
    return math.tanh(helper(gelu(value, row, col))) * factor + max(TINY, 0.1)
""")
    program = "import sys; sys.path.insert(0, sys.argv[1]); import mine; " + (
        "print(mine.mine.digest)"
    )
    digests = {run_python(program, str(tmp_path), PYTHONHASHSEED=seed) for seed in ("1", "2", "3")}
    assert len(digests) == 1 and len(digests.pop().strip()) == 64
    source = (tmp_path / "mine.py").read_text()
    (tmp_path / "mine.py").write_text(source.replace("1.5", "1.25"))
    assert run_python(program, str(tmp_path), PYTHONHASHSEED="1").strip() not in digests


def test_a_global_that_changed_is_refused_and_one_that_changed_back_is_not(monkeypatch):
    @dxgemm.epilogue
    def shifted(value, row, col):
        return value + CHANGING

    kept = shifted.bound
    monkeypatch.setitem(globals(), "CHANGING", 2.5)
    with pytest.raises(errors.EpilogueError, match=r"CHANGING was 1.0 when .* is 2.5 now.*operand"):
        shifted()
    assert on_host(kept, np.float32([[1]])) == 2, "what was bound keeps its values"
    monkeypatch.setitem(globals(), "CHANGING", float("1.0"))
    assert on_host(shifted, np.float32([[1]])) == 2


def test_a_global_of_a_helper_that_changed_is_refused(monkeypatch):
    @dxgemm.epilogue
    def function(value, row, col):
        return halved(value)

    @dxgemm.epilogue
    def outer(value, row, col):
        return function(value, row, col)

    monkeypatch.setitem(globals(), "HALF", 0.25)
    for epilogue in (function, outer):
        with pytest.raises(errors.EpilogueError, match=r"global HALF was 0.5 .* is 0.25 now"):
            epilogue()


def test_a_closure_that_changed_is_refused():
    shift = 1.0

    @dxgemm.epilogue
    def shifted(value, row, col):
        return value + shift

    shifted()
    shift = 2.0
    with pytest.raises(errors.EpilogueError, match=r"closure variable shift was 1.0 .* is 2.0 now"):
        shifted()


def test_a_helper_that_was_replaced_is_refused_unless_it_does_the_same(monkeypatch):
    @dxgemm.epilogue
    def function(value, row, col):
        return halved(value)

    def again(x):
        return HALF * x

    def otherwise(x):
        return HALF * x * HALF

    monkeypatch.setitem(globals(), "halved", again)
    function()
    monkeypatch.setitem(globals(), "halved", otherwise)
    with pytest.raises(errors.EpilogueError, match="global halved"):
        function()


def test_a_global_in_the_way_of_a_builtin_is_noticed(monkeypatch):
    @dxgemm.epilogue
    def function(value, row, col):
        return max(value, 0.0)

    monkeypatch.setitem(globals(), "max", min)
    with pytest.raises(errors.EpilogueError, match="global max was undefined"):
        function()


# literals


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_literals_take_the_type_of_the_kernel(dtype):
    shift = 0.5

    def function(value, row, col, factor=0.5):
        nested = (lambda x: x + 0.125)(value)
        constants = 0.5, 0.25 + shift, HALF, PAIR, (1.5, 2.5), ((0.5,), (1.5,)), (1, 1.5)
        return nested, factor, row + 1, True, *constants

    result = compiled_function(function, dtype, lambda f: f)(dtype(1), 0, 0)
    nested, factor, following, flag, half, total, global_half, pair, tail, deep, mixed = result
    for number in (nested, factor, half, total, global_half, *pair, *tail, deep[0][0]):
        assert type(number) is dtype
    assert type(following) is int and flag is True
    assert [type(entry) for entry in mixed] == [int, float]
    assert (nested, total, pair, tail, deep) == (1.125, 0.75, PAIR, (1.5, 2.5), ((0.5,), (1.5,)))
    assert type(function(1.0, 0, 0)[0]) is float, "the original is as it was"


def test_numbers_of_numpy_keep_their_type():
    wide, narrow = np.float64(0.5), np.float32(0.5)
    copy = compiled_function(lambda value: (value * wide, value * narrow), np.float32, lambda f: f)
    assert [type(number) for number in copy(np.float32(1))] == [np.float64, np.float32]


def test_helpers_and_epilogues_are_compiled_once_each():
    compiled = []

    def device(function):
        compiled.append(function.__name__)
        return function

    def doubled(value):
        return halved(value) + halved(value)

    def function(value, row, col):
        return (
            doubled(value) + halved(value) + gelu(value, row, col) + math.exp(0.0) * max(0.0, 1.0)
        )

    copy = compiled_function(function, np.float32, device)
    assert sorted(compiled) == ["_maximum", "doubled", "gelu", "halved"]
    assert copy.__globals__ is not function.__globals__
    result = copy(np.float32(1), 0, 0)
    assert type(result) is np.float64 or type(result) is np.float32
    assert result == pytest.approx(1.5 + 0.5 * (1 + math.erf(math.sqrt(0.5))) + 1)


def test_kernels_have_elementary_functions_of_their_own():
    def function(value, row, col):
        return logistic(value) + normal_cdf(value)

    identity = compiled_function(function, np.float32, lambda f: f)
    assert identity(0.0, 0, 0) == 1.0, "without others, they are those of the host"
    others = {"logistic": lambda x: 10.0, "normal_cdf": lambda x: 20.0}
    for original in (
        function,
        pickle.loads(pickle.dumps(dxgemm.epilogue(function))).function,
    ):
        assert compiled_function(original, np.float32, lambda f: f, others)(0.0, 0, 0) == 30.0


# the twin on the host


@pytest.mark.parametrize("dtype", FLOATS)
def test_stages_are_applied_from_left_to_right(dtype):
    values = np.array([[-1.0, 2.0], [3.0, -4.0]], dtype)
    shift = np.array([1.0, -1.0], dtype)
    bound = bias(shift) | relu | scale(2.0)
    result = on_host(bound, values)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, 2 * np.maximum(values + shift, 0))
    np.testing.assert_array_equal(
        on_host(scale(2.0) | bias(shift) | relu, values), np.maximum(2 * values + shift, 0)
    )


def test_functions_get_row_and_column_of_each_matrix():
    result = on_host(place, np.zeros((2, 3, 4), np.float32))
    rows, cols = np.mgrid[:3, :4]
    np.testing.assert_array_equal(result, np.stack([10 * rows + cols] * 2))


@pytest.mark.parametrize("lead", [(), (1,), (2,)], ids=["shared", "batch of one", "batched"])
def test_operands_are_taken_from_their_place(lead):
    rng = np.random.default_rng(0)
    values = rng.integers(-9, 9, (2, 3, 4)).astype(np.float32)
    row, column, matrix = (
        rng.integers(-9, 9, (*lead, *shape)).astype(np.float32) for shape in ((4,), (3,), (3, 4))
    )
    np.testing.assert_array_equal(on_host(bias(row), values), values + row[..., None, :])
    np.testing.assert_array_equal(on_host(bias_column(column), values), values + column[..., None])
    np.testing.assert_array_equal(on_host(residual(matrix), values), values + matrix)
    np.testing.assert_array_equal(on_host(scale_columns(row), values), values * row[..., None, :])
    np.testing.assert_array_equal(on_host(scale_rows(column), values), values * column[..., None])


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 1), (3, 4), (3, 1), (2, 3, 4)])
def test_operands_of_other_shapes_are_refused_on_the_host(shape):
    with pytest.raises(errors.ShapeError, match=r"bias: vector is .*\(4,\)"):
        on_host(bias(np.zeros(shape)), np.zeros((3, 4)))


def test_outputs_are_new_arrays_in_the_dtype_of_those_bound():
    values = np.float32([[-1.1, 2.0]])
    kept, before = np.zeros((1, 2), np.float16), np.zeros((1, 2), np.float32)
    bound = keep(kept=kept) | bias([1.0, 1.0]) | relu_keeping(before=before) | scale(2)
    result, outputs = bound.on_host(values)
    np.testing.assert_array_equal(outputs["kept"], values.astype(np.float16))
    np.testing.assert_array_equal(outputs["before"], values + np.float32(1))
    np.testing.assert_array_equal(result, 2 * np.maximum(values + np.float32(1), 0))
    assert (outputs["kept"].dtype, outputs["before"].dtype) == (np.float16, np.float32)
    assert not kept.any() and not before.any()


def without_a_value(value):
    value + 1.0


def of_positive(value):
    if value > 0.0:
        return value


def nesting(value):
    def checked(x):
        if x > 0.0:
            return x
        raise ValueError

    return checked(value)


NO_VALUE = "can end without returning a value.*on every path"


@pytest.mark.parametrize(
    "body, match",
    [
        ("return nesting(value)", r"nesting.<locals>.checked raises an exception"),
        (
            "def g(x):\n  from math import pi\n  return x * pi\n return g(value)",
            "g imports a module",
        ),
        (
            "def g(x):\n  global HALF\n  HALF = x\n  return x\n return g(value)",
            "g assigns to a global",
        ),
        (
            "def g(x):\n  nonlocal row\n  row = x\n  return x\n return g(value) + row",
            "assigns to the closure variable row",
        ),
        ("return (lambda x: nesting(x))(value)", "checked raises an exception"),
        ("def g(x):\n  if x > 0: return x\n return g(value)", "g can end without returning"),
        ("value + 1.0", NO_VALUE),
        ("if value > 0.0: return value", NO_VALUE),
        ("if value > 0.0: return\n return value", NO_VALUE),
        ("for i in range(3):\n  if value > i: return value", NO_VALUE),
        ("return of_positive(value)", NO_VALUE),
        ("return None", NO_VALUE),
        ("return value if value > 0.0 else None", NO_VALUE),
        ("return None if value > 0.0 else value", NO_VALUE),
        ("if value > 0.0: return value\n raise ValueError", "raises an exception"),
        ("assert value > 0.0\n return value", "raises an exception"),
    ],
)
def test_a_function_that_can_end_without_a_value_is_refused(body, match):
    with pytest.raises(errors.EpilogueError, match=f"epilogue .*{match}"):
        dxgemm.epilogue(with_body(body))


def sometimes(value, row, col):
    found = None
    if value > 0.0:
        found = value
    return found


def test_a_value_that_may_be_none_is_refused_where_it_is_found(home):
    late, values = dxgemm.epilogue(sometimes), np.float32([[1, -1]])
    told = dxgemm.epilogue(outputs=("kept",))(lambda value, row, col: (value, None))
    for bound in (late.bound, told(kept=np.zeros((1, 2), np.float32))):
        with pytest.raises(errors.EpilogueError, match="must return"):
            bound.on_host(values)
    out = home.send(np.full((1, 2), 7, np.float32))
    with pytest.raises(errors.EpilogueError, match=r"sometimes: .*return"):
        dxgemm.gemm(home.send(np.float32([[1]])), home.send(-values), out=out, epilogue=late)


def test_functions_that_return_on_every_path_are_taken():
    for body in (
        "while True:\n  if value > 1.0: return value\n  value = value * 2.0",
        "match row:\n  case 0: return value\n  case _: return -value",
        "without_a_value(value)\n return value",
    ):
        assert len(digest(with_body(body))) == 64


def test_the_number_of_values_returned_must_fit_the_outputs():
    forgetful = dxgemm.epilogue(outputs=("kept",))(lambda value, row, col: value)
    with pytest.raises(errors.EpilogueError, match=r"lambda.*kept"):
        on_host(forgetful(kept=None), np.zeros((1, 1), np.float32))


@pytest.mark.parametrize("dtype", FLOATS)
def test_arithmetic_has_the_width_of_the_values(dtype):
    @dxgemm.epilogue
    def matching(value, row, col, factor: Scalar, shift: RowVector, term: Matrix):
        width = value.dtype.itemsize
        used = (factor, shift, term, 0.5 * value, math.exp(value), HALF * exp(value) / 3.0)
        return 1.0 if all(number.dtype.itemsize == width for number in used) else 0.0

    for term in (np.ones((1, 1), ml_dtypes.bfloat16), np.ones((1, 1), np.float16), [[1.0]]):
        assert on_host(matching(2, [0.1], term), np.ones((1, 1), dtype)) == 1


def test_the_result_is_rounded_once_to_the_dtype_asked_for():
    values = np.float32([[1 + 2**-11 + 2**-20]])
    result = on_host(scale(1.0), values, dtype=np.float16)
    assert result.dtype == np.float16 and result == np.float16(1 + 2**-10)


def test_functions_of_math_give_what_a_gpu_gives_where_python_raises():
    values = np.float32([[0, -1, np.inf, np.nan, 1000]])
    for text, where, expected in (
        ("math.log(value)", slice(4), [-math.inf, math.nan, math.inf, math.nan]),
        ("exp(value)", [0, 2, 4], [1, math.inf, math.inf]),
        ("1.0 / math.sqrt(value)", slice(3), [math.inf, math.nan, 0]),
    ):
        found = on_host(dxgemm.epilogue(made(f"lambda value, row, col: {text}")), values)
        np.testing.assert_array_equal(found[0, where], expected)


ZERO, LARGE = 0.0, 1e4
# Formulas of a value of 0 at row 0 and column 0, and what they give in IEEE 754.
IEEE = {
    math.inf: [
        "1.0 / value", "1 / row", "1.0 / (value * 1j).real", "value ** -0.5", "ZERO ** -2.0",
        "math.exp(LARGE)", "math.expm1(LARGE)", "math.cosh(LARGE)", "math.pow(value, -1.0)",
        "math.pow(LARGE, LARGE)", "math.atanh(value + 1.0)", "math.gamma(value)",
        "math.lgamma(value)", "math.ldexp(1.0, 5000)", "abs(cmath.log(complex(value, ZERO)))",
        "abs(cmath.exp(complex(LARGE, LARGE)))",
    ],
    -math.inf: [
        "-1.0 / ZERO", "math.log(value)", "math.log1p(value - 1.0)", "math.log2(ZERO)",
        "math.log10(value)", "math.sinh(value - LARGE)",
    ],
    math.nan: [
        "value / ZERO", "float(row) / float(col)", "(value - 8.0) ** 0.3", "math.log(ZERO - 1.0)",
        "math.sqrt(value - 1.0)", "math.fmod(1.0, value)", "math.acos(LARGE)", "math.acosh(value)",
        "math.sin(1.0 / value)", "math.gamma(value - 2.0)",
    ],
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("expected, formula", [(x, text) for x in IEEE for text in IEEE[x]])
def test_arithmetic_raises_nothing_on_the_host_nor_in_a_kernel(home, expected, formula, dtype):
    epilogue = dxgemm.epilogue(made(f"lambda value, row, col: {formula}"))
    one, zero, c = (home.send(np.full((1, 1), x, dtype)) for x in (1, 0, 9))
    dxgemm.gemm(one, zero, c, epilogue=epilogue)
    for result in (on_host(epilogue, np.zeros((1, 1), dtype)), home.fetch(c)):
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    "formula", ["int(value)", "round(value)", "math.floor(value)", "row % col"]
)
def test_what_no_integer_holds_raises_nothing_either(home, formula):
    epilogue = dxgemm.epilogue(made(f"lambda value, row, col: 0.0 * ({formula})"))
    on_host(epilogue, np.float32([[math.nan, math.inf]]))
    one, values = (home.send(np.full((1, 1), x, "float32")) for x in (1, math.nan))
    dxgemm.gemm(one, values, epilogue=epilogue)


def complex_if_positive(value, row, col):
    return value * 1j if value > 0.0 else value


@pytest.mark.parametrize(
    "function, outputs",
    [
        (lambda value, row, col: (1 + 2j) * value, ()),
        (complex_if_positive, ()),
        (lambda value, row, col: (value, 1j * value), ("kept",)),
        (lambda value, row, col: "1.0", ()),
        (lambda value, row, col: (value, "1.0"), ("kept",)),
    ],
)
def test_what_cannot_be_stored_as_it_is_is_refused(home, function, outputs):
    epilogue = dxgemm.epilogue(outputs=outputs)(function)
    arrays = {name: home.send(np.zeros((1, 2), np.float32)) for name in outputs}
    kept = {name: np.zeros((1, 2), np.float32) for name in outputs}
    with pytest.raises(errors.EpilogueError, match="returned"):
        on_host(epilogue(**kept), np.float32([[1, 2]]))
    one, values, c = (home.send(np.float32(x)) for x in ([[1]], [[1, 2]], [[7, 7]]))
    with pytest.raises((errors.EpilogueError, errors.BuildError), match=r"lambda|complex_if"):
        dxgemm.gemm(one, values, c, epilogue=epilogue(**arrays))
    np.testing.assert_array_equal(home.fetch(c), 7)


def test_a_complex_number_between_stages_is_as_good_as_any(home):
    turned = dxgemm.epilogue(lambda value, row, col: (3 + 4j) * value)
    chain = turned | epilogues.magnitude
    one, two = (home.send(np.float32([[x]])) for x in (1, 2))
    assert home.fetch(dxgemm.gemm(one, two, epilogue=chain)) == 10
    assert on_host(chain, np.float32([[2]])) == 10


def test_a_literal_is_passed_on_in_the_type_of_the_values():
    inverse = dxgemm.epilogue(lambda value, row, col: 1.0 / value)
    zero = dxgemm.epilogue(lambda value, row, col: 0.0)
    assert on_host(zero | inverse, np.float32([[1]])) == math.inf


def reads_the_row(x, row):
    return x + row


def reads_no_row(x, row, *others):
    return x if x > others[0] else 0.0


def passes_the_row_on(x, row):
    return HALF * reads_no_row(x * 2.0, row, 0.5)


ROWS = {
    False: [
        "value", "relu(value, row, col)", "relu(value, col, row)",
        "relu(2.0 * value + 1.0, row, col) * gelu(value, row, col)",
        "reads_no_row(value, row, 1.0)", "passes_the_row_on(value, row)",
    ],
    True: [
        "value + row", "place(value, row, col)", "relu(value, row, col) + row",
        "reads_no_row(value, 1.0, row)", "relu(row, row, col)", "max(value, row)",
        "reads_no_row(reads_the_row(value, row), 0.0, 1.0)",
        "relu(value, -row, col)", "relu(value if value > row else 1.0, row, col)",
        "relu(*(value, row, col))", "[relu, place][col](value, row, col)",
        "(relu if value > 0.0 else place)(value, row, col)", "makes_relu(row)(value, row, col)",
        "math.exp(row) * value", "logistic(row)",
    ],
    None: [  # the compiler decides
        "relu(value, row if value > 0.0 else 1, col)", "relu(value=value, row=row, col=col)",
        "(lambda x: relu(x, row, col))(value)",
    ],
}  # fmt: skip


def makes_relu(factor):
    return relu


@pytest.mark.parametrize(
    "uses_row, formula", [(used, text) for used in ROWS for text in ROWS[used]]
)
def test_a_row_that_helpers_ignore_is_not_used(uses_row, formula):
    names = "relu, gelu, place, makes_relu"
    in_closure = made(f"(lambda {names}: lambda value, row, col: {formula})({names})")
    for function in (in_closure, made(f"lambda value, row, col: {formula}")):
        epilogue = dxgemm.epilogue(function)
        assert epilogue.uses_row is uses_row or uses_row is None
        if not epilogue.uses_row:
            found = on_host(epilogue, np.float32([[-1.5], [-1.5], [0.25], [0.25]])).ravel()
            assert found[0] == found[1] and found[2] == found[3]


def test_the_catalogue_uses_rows_for_dropout_alone():
    for name in epilogues.__all__:
        epilogue = getattr(epilogues, name)
        if isinstance(epilogue, epilogues.Epilogue):
            assert epilogue.uses_row is epilogue.uses_col is (name == "dropout"), name


# the catalogue


def reference(function, values):
    """A function of float64, computed for each element and rounded to the values' dtype."""
    with np.errstate(all="ignore"):
        return np.array([[function(float(x)) for x in values[0]]]).astype(values.dtype)


def relative(dtype):
    return 8 * np.finfo(dtype).eps


def normal_gelu(x):
    return -0.0 if x == -math.inf else 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def tanh_gelu(x):
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return -0.0 if x == -math.inf else 0.5 * x * (1 + math.tanh(inner))


def exact_logistic(x):
    if math.isnan(x):
        return x
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "epilogue, function",
    [
        (relu, lambda x: np.maximum(x, 0.0)),
        (leaky_relu(), lambda x: x if x > 0 else 0.01 * x),
        (leaky_relu(0.25), lambda x: x if x > 0 else 0.25 * x),
        (gelu, normal_gelu),
        (gelu_tanh, tanh_gelu),
        (fast_gelu_tanh, lambda x: tanh_gelu(x) + 0.0),
        (sigmoid, exact_logistic),
        (silu, lambda x: -0.0 if x == -math.inf else x * exact_logistic(x)),
        (tanh, np.tanh),
        (clamp(-1.0, 2.0), lambda x: np.clip(x, -1.0, 2.0)),
        (scale(-3.0), lambda x: -3.0 * x),
    ],
    ids=name_of,
)
def test_the_catalogue_computes_its_formulas_on_awkward_values(epilogue, function, dtype):
    values = awkward(dtype)
    result = on_host(epilogue, values)
    # 1 + erf(x) and 1 + tanh(x) lose their relative accuracy where they vanish, subnormals always.
    info = np.finfo(dtype)
    cancels = epilogue in (gelu, gelu_tanh, fast_gelu_tanh)
    absolute = 4 * info.eps if cancels else 1e-5 * info.smallest_normal
    expected = reference(function, values)
    np.testing.assert_allclose(result, expected, rtol=relative(dtype), atol=absolute)
    assert result.dtype == dtype
    assert epilogue is not relu or not np.signbit(result[values == 0]).any()


def test_clamp_is_that_of_torch():
    values = np.float32([[-5, 0, 5, np.nan]])
    np.testing.assert_array_equal(on_host(clamp(-1, 1), values), [[-1, 0, 1, np.nan]])
    np.testing.assert_array_equal(on_host(clamp(2, 1), values), [[1, 1, 1, np.nan]])
    np.testing.assert_array_equal(on_host(clamp(math.nan, 1), values), [[-5, 0, 1, np.nan]])


def test_dequantised_sums_are_float32():
    sums = np.array([[1, -(2**31)], [2**24 + 1, 7]], np.int32)
    rows, columns = np.float32([0.5, 0.1]), np.float32([3, 0.25])
    result = on_host(dequantise(rows, columns), sums, dtype=np.float32)
    expected = sums.astype(np.float32) * rows[:, None] * columns
    np.testing.assert_array_equal(result, expected)


def test_integers_survive_epilogues_without_floats():
    sums = np.array([[-3, 2**31 - 1]], np.int32)
    kept = np.zeros((1, 2), np.int32)
    result, outputs = (keep(kept=kept) | relu).on_host(sums)
    np.testing.assert_array_equal(result, [[0, 2**31 - 1]])
    np.testing.assert_array_equal(outputs["kept"], sums)


# Known answers for seven rounds of Random123, the library of the paper's authors.
@pytest.mark.parametrize(
    "words, expected",
    [
        ([0] * 6, [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]),
        ([0xFFFFFFFF] * 6, [0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0],
            [0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A],
        ),
    ],
)
def test_philox_gives_the_known_answers(words, expected):
    with np.errstate(all="raise"):
        assert list(philox_4x32(*map(np.uint32, words))) == expected


def dropped(probability, seed, shape=(40, 50), dtype=np.float32):
    return on_host(dropout(probability, seed), np.full(shape, 3, dtype)) == 0


def test_dropout_keeps_or_drops_and_rescales():
    values = np.full((40, 50), 3, np.float32)
    result = on_host(dropout(0.25, 7), values)
    assert set(np.unique(result)) == {np.float32(0), np.float32(3) / np.float32(0.75)}
    assert 0.2 < (result == 0).mean() < 0.3
    np.testing.assert_array_equal(on_host(dropout(0.0, 7), values), values)
    assert not on_host(dropout(1.0, 7), values).any()


def test_dropout_follows_the_first_word_of_philox():
    seed = -(2**40) + 12345
    key = [np.uint64(seed & 0xFFFFFFFF), np.uint64((seed >> 32) & 0xFFFFFFFF)]
    for (row, col), is_dropped in np.ndenumerate(dropped(0.3, seed, (4, 5))):
        counter = [np.uint64(word) for word in (row, col, 0, 0)]
        word = int(philox_4x32(*counter, *key)[0])
        assert is_dropped == ((word >> 8) / 2**24 < np.float32(0.3))


def test_dropout_depends_on_place_and_seed_alone():
    wide = dropped(0.5, 1)
    np.testing.assert_array_equal(dropped(0.5, 1, (10, 20)), wide[:10, :20])
    np.testing.assert_array_equal(dropped(0.5, 1, dtype=np.float64), wide)
    np.testing.assert_array_equal(dropped(0.5, 1, (2, 40, 50)), [wide, wide])
    for seed in (2, -1, 1 + 2**24, 1 + 2**32, -(2**63), 2**63 - 1):
        assert (dropped(0.5, seed) != wide).mean() > 0.4
    assert (wide != np.roll(wide, 1, 0)).any() and (wide != np.roll(wide, 1, 1)).any()


def test_the_catalogue_is_documented_and_exported():
    catalogue = {
        name for name, value in vars(epilogues).items() if isinstance(value, epilogues.Epilogue)
    }
    assert len(catalogue) == 25 and catalogue <= set(epilogues.__all__)
    assert all(len(getattr(epilogues, name).__doc__) > 10 for name in catalogue)


# operands against a problem


def layout(shape, dtype="float32", strides=None, device=0, read_only=False, alignment=16):
    item_size = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int8": 1}.get(dtype, 4)
    if strides is None:
        strides = [item_size * math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return Layout(tuple(shape), tuple(strides), dtype, device, read_only, alignment)


def check(bound, *layouts, m=5, n=7, batch=1, device=0, dtype="float32"):
    bound = bound_epilogue(bound)
    check_operands(bound.operands, layouts, m, bound.columns(n), batch, device, dtype)
    for operand, value in zip(bound.operands, bound.values, strict=True):
        if operand.is_number:
            check_overflow(operand, value, scalar_dtype(dtype))


FITTING = {
    "row": [(7,), (1, 7), (3, 7)],
    "column": [(5,), (1, 5), (3, 5)],
    "matrix": [(5, 7), (1, 5, 7), (3, 5, 7)],
    "output": [(3, 5, 7)],
}
BY_KIND = {"row": bias(0), "column": bias_column(0), "matrix": residual(0), "output": keep(kept=0)}
SHAPES = [(), (1,), (5,), (7,), (1, 5), (1, 7), (3, 5), (3, 7), (5, 1), (7, 5), (5, 7), (2, 7),
          (1, 5, 7), (3, 5, 7), (2, 5, 7), (3, 7, 5), (1, 3, 5, 7)]  # fmt: skip


@pytest.mark.parametrize("kind", FITTING)
def test_shapes_of_operands(kind):
    (operand,) = BY_KIND[kind].operands
    for shape in SHAPES:
        if shape in FITTING[kind]:
            check(BY_KIND[kind], layout(shape), batch=3)
            continue
        match = f"gemm: epilogue .*{operand.meaning} for 3 results of 5 x"
        with pytest.raises(errors.ShapeError, match=match):
            check(BY_KIND[kind], layout(shape), batch=3)
    for shape in ((5, 7), (1, 5, 7)):
        check(BY_KIND["output"], layout(shape))


def test_a_wrong_shape_names_epilogue_operand_and_the_shape_that_fits():
    with pytest.raises(errors.ShapeError, match=r"scaled_tanh: shift is \(3, 4\).* shape \(7,\)"):
        check(scaled_tanh(0.5, 0), None, layout((3, 4)))
    with pytest.raises(errors.ShapeError, match=r"shift is .*\(7,\) or \(2, 7\)"):
        check(relu | scaled_tanh(0.5, 0), None, layout((3, 4)), batch=2)


DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "uint8")
HALVES = {"float16", "bfloat16"}
READ = {
    "float32": {"float32", "int32", "int8"} | HALVES,
    "float64": {"float64", "int32", "int8"},
    "float16": {"float32", "int32", "int8"} | HALVES,
    "int8": {"float32", "int32", "int8"} | HALVES,
}
WRITTEN = {
    "float32": {"float32", "int8"} | HALVES,
    "float64": {"float64"},
    "float16": {"float32", "int8"} | HALVES,
    "int8": {"float32", "int32", "int8"} | HALVES,
}


@pytest.mark.parametrize("problem", READ)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_of_operands(problem, dtype):
    for bound, allowed in ((residual(0), READ[problem]), (keep(kept=0), WRITTEN[problem])):
        if dtype in allowed:
            check(bound, layout((5, 7), dtype), dtype=problem)
        else:
            match = f"has dtype {dtype}, but {problem} products .*astype"
            with pytest.raises(errors.DtypeError, match=match):
                check(bound, layout((5, 7), dtype), dtype=problem)


def test_what_is_written_must_be_writable_and_have_its_own_elements():
    with pytest.raises(errors.ReadOnlyError, match="keep: kept is read-only"):
        check(keep(kept=0), layout((5, 7), read_only=True))
    for strides in ((0, 4), (28, 0), (4, 4)):
        with pytest.raises(errors.OverlapError, match="keep: kept overlaps itself"):
            check(keep(kept=0), layout((5, 7), strides=strides))
        check(residual(0), layout((5, 7), strides=strides, read_only=True))
    check(keep(kept=0), layout((1, 5, 7), strides=(0, 4, 20)))


def test_operands_must_be_on_the_device_of_the_call():
    with pytest.raises(errors.DeviceMismatchError, match=r"vector is on GPU 1.*GPU 0"):
        check(bias(0), layout((7,), device=1))
    check(bias(0), layout((7,), device=1), device=1)
    check(bias(0), layout((7,), device=-1))
    check(bias(0), layout((7,), device=1), device=-1)
    with pytest.raises(errors.DeviceMismatchError, match=r"matrix is on GPU 2.*GPU 1"):
        check(bias(0) | residual(0), layout((7,), device=1), layout((5, 7), device=2), device=-1)


@pytest.mark.parametrize(
    "spoiled", [layout((5, 7), strides=(28, 5)), layout((5, 7), alignment=2)], ids=name_of
)
def test_misaligned_operands_are_refused(spoiled):
    for bound in (residual(0), keep(kept=0)):
        with pytest.raises(errors.LayoutError, match=r"multiples? of the 4-byte float32"):
            check(bound, spoiled)


def test_scalars_must_fit_the_type_of_sums():
    for dtype in ("float32", "float16", "int8"):
        with pytest.raises(errors.ScalarError, match=r"scale: factor is 1e[+]300.*float32"):
            check(scale(1e300), None, dtype=dtype)
    check(scale(1e300), None, dtype="float64")
    for value in (math.inf, math.nan, np.float32(2), 3):
        check(scale(value), None)
    check(dropout(0.5, 2**63 - 1), None, None)


def test_a_stage_is_pickled_by_value_for_builds_in_other_processes():
    half = 0.5

    @dxgemm.epilogue
    def local(value, row, col):
        return half * relu(value, row, col)

    (stage,) = local.bound.stages
    copy = pickle.loads(pickle.dumps(stage))
    assert copy == stage and copy.digest == stage.digest
    assert copy.function(-3.0, 0, 0) == 0.0 and copy.function(3.0, 0, 0) == 1.5


def test_max_and_min_of_a_compiled_copy_are_those_of_python():
    def largest(value, row, col):
        return max(value, 0.0), max(0.0, value), min(value, 0.0, -1.0)

    copy = compiled_function(largest, np.float32, lambda function: function)
    assert copy.__globals__["max"] is not max
    for value in map(np.float32, (math.nan, 1.0, -2.0, -0.0, math.inf)):
        for one, other in zip(copy(value, 0, 0), largest(value, 0, 0), strict=True):
            assert np.array_equal(one, other, equal_nan=True) and np.signbit(one) == np.signbit(
                other
            )


def test_names_by_which_helpers_are_called_are_part_of_the_digest():
    """The same code with its parameters exchanged computes something else where it is named."""

    def made(helper):
        @dxgemm.epilogue
        def named(value, row, col):
            return helper(a=value, b=2.0)

        return named

    def straight(a, b):
        return a - b

    def turned(b, a):
        return b - a

    turned.__code__ = turned.__code__.replace(co_name="straight", co_qualname="straight")
    ones = np.ones((2, 2), np.float32)
    found = [float(dxgemm.gemm(2 * ones, ones, epilogue=made(h))[0, 0]) for h in (straight, turned)]
    assert found == [2.0, -2.0] and made(straight).digest != made(turned).digest
