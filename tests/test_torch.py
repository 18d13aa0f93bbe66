"""The operators of PyTorch: on CUDA tensors, or on CPU tensors with numba's simulator."""

from importlib import import_module

import numpy as np
import pytest

import dxgemm
from dxgemm import errors
from dxgemm.gpu.status import simulator_enabled
from dxgemm.runtime.arrays import find_library

torch = pytest.importorskip("torch", reason="the operators need torch: dxgemm[torch]")
forward_ad = import_module("torch.autograd.forward_ad")
dxt = import_module("dxgemm.torch")

DEVICE = "cpu" if simulator_enabled() else "cuda"
# m, n, k: odd, and whole tiles.
SIZES = [(3, 5, 4), (4, 8, 8)]
if not simulator_enabled():
    SIZES = [(37, 65, 43), (128, 256, 64)]
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA", allow_module_level=True)

ACTIVATIONS = {
    None: lambda x: x,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
# Of which the derivative is computed from the input, or from the output.
FROM_INPUT = ["gelu", "gelu_tanh", "silu"]
FROM_OUTPUT = ["relu", "sigmoid", "tanh"]
TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 3e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}
compiled_on_gpu = pytest.mark.skipif(simulator_enabled(), reason="inductor needs a GPU here")
BACKENDS = ["aot_eager", pytest.param("inductor", marks=compiled_on_gpu)]


@pytest.fixture
def random():
    """Random tensors on the device, the same in each run."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape, dtype=torch.float32, requires_grad=False):
        wide = torch.complex128 if dtype.is_complex else torch.float64
        values = torch.randn(shape, generator=generator, dtype=wide)
        return values.to(DEVICE, dtype).requires_grad_(requires_grad)

    return random


@pytest.fixture
def launches(monkeypatch):
    """Arguments of each call of `dxgemm.gemm`: ((a, b), epilogue)."""
    calls = []

    def spy(a, b, *arguments, epilogue=None, **named):
        calls.append(((a, b), epilogue))
        return gemm(a, b, *arguments, epilogue=epilogue, **named)

    gemm = dxgemm.gemm
    monkeypatch.setattr(dxgemm, "gemm", spy)
    monkeypatch.setattr("dxgemm.api.gemm", spy)
    return calls


def assert_close(actual, expected, terms=1):
    """Assert that two tensors are equal but for rounding; expected may have a wider dtype."""
    tolerance = TOLERANCES[actual.dtype.to_real()]
    expected = expected.to(actual.dtype)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * terms**0.5)


def reference(x, weight, bias=None, activation=None):
    """Result of torch in float64."""
    bias = None if bias is None else bias.double()
    return ACTIVATIONS[activation](torch.nn.functional.linear(x.double(), weight.double(), bias))


def gradients(result, operands):
    """Gradients of a sum of the result's elements with unequal weights."""
    weights = torch.arange(result.numel(), device=result.device).reshape(result.shape) % 5 - 2.0
    return torch.autograd.grad((result * weights.to(result.dtype)).sum().real, operands)


def assert_gradients(result, expected, operands):
    for mine, theirs in zip(gradients(result, operands), gradients(expected, operands)):
        assert_close(mine, theirs)


def check_derivatives(function, operands):
    assert torch.autograd.gradcheck(function, operands)
    assert torch.autograd.gradgradcheck(function, operands, fast_mode=True)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear_agrees_with_torch(random, activation, dtype, size):
    m, n, k = size
    x, weight, bias = (random(*s, dtype=dtype) for s in ((m, k), (n, k), (n,)))
    result = dxt.linear(x, weight, bias, activation)
    assert result.dtype is dtype and result.is_contiguous()
    assert_close(result, reference(x, weight, bias, activation))


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_gradients_agree_with_torch(random, activation, dtype):
    m, n, k = SIZES[0]
    operands = [random(*s, dtype=dtype, requires_grad=True) for s in ((2, m, k), (n, k), (n,))]
    wide = [operand.detach().double().requires_grad_() for operand in operands]
    results = gradients(dxt.linear(*operands, activation), operands)
    for result, expected in zip(results, gradients(reference(*wide, activation), wide)):
        assert result.dtype is dtype
        tolerance = 4 * TOLERANCES[dtype] * float(expected.abs().max())
        torch.testing.assert_close(result, expected.to(dtype), rtol=0, atol=tolerance)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3)], ids=str)
def test_any_leading_dimensions(random, lead):
    _, n, k = SIZES[0]
    x, weight, bias = random(*lead, k), random(n, k), random(n)
    result = dxt.linear(x, weight, bias, "relu")
    assert result.shape == (*lead, n)
    assert_close(result, reference(x, weight, bias, "relu"))


def test_any_strides(random):
    m, n, k = SIZES[0]
    x, weight, bias = random(k, 2, m).permute(2, 1, 0), random(k, 2 * n).T[::2], random(2 * n)[::2]
    assert_close(dxt.linear(x, weight, bias), reference(x, weight, bias))
    a, b, c = random(k, m).T, random(2 * n, k)[::2].T, random(n, m).T
    assert_close(dxt.gemm(a, b, c), a.double() @ b.double() + c)


@pytest.mark.parametrize(
    "shapes", [((0, 4), (5, 4)), ((3, 0), (5, 0)), ((2, 3, 4), (0, 4))], ids=str
)
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_empty_sizes(random, activation, shapes):
    x, weight = (random(*shape, requires_grad=True) for shape in shapes)
    bias = random(weight.shape[0], requires_grad=True)
    result = dxt.linear(x, weight, bias, activation)
    expected = reference(x, weight, bias, activation)
    assert_close(result, expected)
    assert_gradients(result, expected, (x, weight, bias))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_first_and_second_derivatives_of_linear(random, activation):
    operands = [
        random(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 2), (2, 2), (2,))
    ]

    def layer(x, weight, bias):
        return dxt.linear(x, weight, bias, activation)

    check_derivatives(layer, operands)


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3), (3, 2), (2, 2)),
        ((2, 3), (3, 2), (2,)),
        ((2, 2, 3), (2, 3, 2), (2, 1)),
        ((2, 2, 3), (3, 2), (2, 2, 2)),
        ((2, 3), (2, 3, 1), ()),
        ((1, 2, 3), (2, 3, 1), (2, 1, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_gemm_and_its_derivatives(random, shapes, dtype):
    operands = [random(*shape, dtype=dtype, requires_grad=True) for shape in shapes]

    def product(a, b, c):
        return dxt.gemm(a, b, c, 0.5, -2)

    a, b, c = operands
    assert_close(product(a, b, c), 0.5 * (a @ b) - 2 * c)
    assert_close(dxt.gemm(a, b), a @ b)
    check_derivatives(product, operands)


MATMULS = [
    ((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((2, 3), (3, 2)), ((2, 2, 2, 3), (3,)),
    ((3,), (2, 2, 3, 2)), ((2, 2, 2, 3), (3, 2)), ((2, 3), (2, 1, 3, 2)),
    ((2, 1, 2, 3), (3, 3, 2)), ((2, 0, 3), (3, 2)), ((2, 2, 0), (0, 2)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("shapes", MATMULS, ids=str)
def test_matmul_and_its_derivatives(random, shapes, dtype):
    operands = [random(*shape, dtype=dtype, requires_grad=True) for shape in shapes]
    expected = torch.matmul(*operands)
    result = dxt.matmul(*operands)
    assert result.shape == expected.shape and result.is_contiguous()
    assert_close(result, expected)
    assert_gradients(result, expected, operands)
    torch.library.opcheck(torch.ops.dxgemm.matmul.default, (*operands, 0.5))
    for wanted in ([True, False], [False, True]):
        some = [x.detach().requires_grad_(needs) for x, needs in zip(operands, wanted)]
        dxt.matmul(*some).sum().real.backward()
        assert [x.grad is not None for x in some] == wanted


@pytest.mark.parametrize("name", ["gemm", "matmul"])
def test_lazy_conjugates_are_read_as_they_lie(random, monkeypatch, name):
    seen, multiply = [], getattr(dxgemm, name)

    def spy(a, b, *rest, **named):
        return seen.append((a, b)) or multiply(a, b, *rest, **named)

    monkeypatch.setattr(dxgemm, name, spy)
    a, b = (random(3, 3, dtype=torch.complex128, requires_grad=True) for _ in range(2))
    found, expected = getattr(dxt, name)(a.mH, b.conj()), a.mH @ b.conj()
    assert_close(found, expected)
    assert_gradients(found, expected, (a, b))
    forward, *backward = seen
    assert [x.is_conj() for x in forward] == [True, True]
    own = {a.data_ptr(), b.data_ptr()}
    assert backward and all(own & {x.data_ptr() for x in operands} for operands in backward)


def test_a_lazy_conjugate_is_added(random):
    a, c = (random(3, 3, dtype=torch.complex128) for _ in range(2))
    assert_close(dxt.gemm(a, a, c.conj(), 1.0, 2.0), a @ a + 2 * c.conj())


def test_second_derivatives_of_matmul(random):
    for shapes in (MATMULS[1], MATMULS[6], MATMULS[8]):
        operands = [random(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
        check_derivatives(lambda a, b: dxt.matmul(a, b, -2.0), operands)


def test_rows_of_a_batch_are_one_product_where_they_lie_evenly(random, monkeypatch):
    shapes, multiply = [], dxgemm.matmul
    monkeypatch.setattr(
        dxgemm, "matmul", lambda a, b, **named: shapes.append(a.shape) or multiply(a, b, **named)
    )
    a, b = random(2, 3, 5, 4), random(4, 6)
    for left in (a, a.mT.contiguous().mT):
        assert_close(dxt.matmul(left, b), left.double() @ b.double())
    assert shapes == [(30, 4), (2, 3, 5, 4)]


def test_matmul_under_autocast_and_compiled(random):
    a, b = random(2, 3, 4), random(4)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert dxt.matmul(a, b).dtype is torch.bfloat16
    compiled = torch.compile(dxt.matmul, fullgraph=True, backend="aot_eager")
    assert_close(compiled(a, b), a.double() @ b.double())


@pytest.mark.parametrize("device", [DEVICE, "meta"])
@pytest.mark.parametrize(
    "name, shapes, message",
    [
        ("matmul", ((), (3,)), r"must be \(..., m, k\) or \(k,\)"),
        ("matmul", ((2, 3), (4,)), r"a is \(2, 3\), b is \(4,\)"),
        ("matmul", ((2, 2, 3), (3, 3, 2)), "equal, or 1 to be broadcast"),
        ("linear", ((3, 4), (5, 3), None), r"x is \(3, 4\), weight is \(5, 3\)"),
        ("linear", ((3, 4), (4,), None), r"weight \(n, k\)"),
        ("linear", ((3, 4), (5, 4), (4,)), r"bias must be \(5,\)"),
        ("linear", ((), (5, 4), None), r"x must be \(..., k\)"),
        ("gemm", ((3, 4), (5, 3), None), r"a is \(3, 4\), b is \(5, 3\)"),
        ("gemm", ((4,), (4, 5), None), r"must be \(m, k\)"),
        ("gemm", ((2, 3, 4), (3, 4, 5), None), "dimensions must be equal"),
        ("gemm", ((3, 4), (4, 5), (3,)), r"c must broadcast to \(3, 5\)"),
        ("gemm", ((3, 4), (4, 5), (1, 3, 5)), r"c must broadcast to \(3, 5\)"),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit(random, name, shapes, message, device):
    operands = [None if shape is None else random(*shape).to(device) for shape in shapes]
    with pytest.raises(errors.ShapeError, match=message):
        getattr(dxt, name)(*operands)


GROUPS = {"rows": ((7, 3), (3, 3, 2)), "columns": ((3, 2, 3), (3, 7)), "inner": ((2, 7), (7, 3))}


@pytest.mark.parametrize("shapes", GROUPS.values(), ids=GROUPS)
def test_groups_and_their_derivatives(random, shapes):
    """Rows without a group, the last two here, are 0 in results and in gradients."""
    operands = [random(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    offsets = torch.tensor([2, 2, 5], dtype=torch.int32, device=DEVICE)

    def product(a, b):
        return dxt.gemm_grouped(a, b, offsets)

    a, b = operands
    parts = [slice(0, 2), slice(2, 2), slice(2, 5)]
    expected = torch.zeros_like(product(a, b))
    for index, part in enumerate(parts):
        if a.ndim == 3:
            expected[:, part] = a[index] @ b[:, part]
        elif b.ndim == 3:
            expected[part] = a[part] @ b[index]
        else:
            expected[index] = a[:, part] @ b[part]
    assert_close(product(a, b), expected)
    check_derivatives(product, operands)
    torch.library.opcheck(torch.ops.dxgemm.gemm_grouped.default, (*operands, offsets))


def test_bad_groups_are_refused(random):
    offsets = torch.tensor([2, 5], dtype=torch.int32, device=DEVICE)
    for shapes, error, words in (
        (((5, 3), (2, 4, 2)), errors.ShapeError, "must be"),
        (((2, 5, 3), (2, 3, 2)), errors.ShapeError, "must be"),
        (((5, 3), (3, 3, 2)), errors.ShapeError, "offsets has 2"),
    ):
        with pytest.raises(error, match=words):
            dxt.gemm_grouped(*(random(*shape) for shape in shapes), offsets)
    with pytest.raises(errors.ArrayTypeError, match="offsets is a list"):
        dxt.gemm_grouped(random(5, 3), random(2, 3, 2), [2, 5])


TRIANGLES = ("", "lower", "upper", "unit lower", "unit upper")


def triangle_of(x, triangle):
    if not triangle:
        return x
    distance = 1 if triangle.startswith("unit") else 0
    part = x.tril(-distance) if triangle.endswith("lower") else x.triu(distance)
    return part + distance * torch.eye(*x.shape[-2:], dtype=x.dtype, device=x.device)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_triangular_products_and_their_derivatives(random, dtype):
    for a_triangle, b_triangle in zip(TRIANGLES, TRIANGLES[::-1], strict=True):
        a = random(2, 3, 4, dtype=dtype, requires_grad=True)
        b = random(5, 4, dtype=dtype, requires_grad=True)
        triangular = a_triangle or None, b_triangle or None
        found = dxt.gemm(a, b.mT, triangular=triangular)
        expected = triangle_of(a, a_triangle) @ triangle_of(b.mT, b_triangle)
        assert_close(found, expected)
        weights = random(*found.shape, dtype=dtype)
        first, second = [], []
        for result in (found, expected):
            first += [torch.autograd.grad(result, (a, b), weights, create_graph=True)]
            size = sum((grad * grad.conj()).real.sum() for grad in first[-1])
            second += [torch.autograd.grad(size, (a, b))]
        for grad, exact in zip(first[0] + second[0], first[1] + second[1], strict=True):
            assert_close(grad, exact)
    spoiled = a.detach().masked_fill(torch.ones_like(a.real).triu(1).bool(), torch.nan)
    assert_close(dxt.gemm(spoiled, b.mT, triangular=("lower", None)), a.tril() @ b.mT)


def test_triangles_that_are_refused(random):
    a = random(3, 3)
    with pytest.raises(errors.SettingError, match="triangular is 'lower'"):
        dxt.gemm(a, a, triangular="lower")
    with pytest.raises(errors.UnsupportedProblemError, match="does not go with an epilogue"):
        dxt.gemm(a, a, triangular=("lower", None), epilogue=dxgemm.epilogues.relu)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_gemm_agrees_with_addmm(random, dtype):
    for m, n, k in SIZES:
        a, b, c = (random(*s, dtype=dtype) for s in ((m, k), (k, n), (m, n)))
        expected = torch.addmm(c.double(), a.double(), b.double(), alpha=0.5, beta=2.0)
        assert_close(dxt.gemm(a, b, c, 0.5, 2.0), expected)


def test_beta_zero_never_reads_c(random):
    a, b = random(3, 4), random(4, 5)
    c = torch.full((3, 5), torch.nan, device=DEVICE)
    assert_close(dxt.gemm(a, b, c, beta=0.0), a @ b)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_the_derivative_needs_is_kept_only_for_it(random, launches, activation):
    x, weight, bias = random(3, 4), random(5, 4, requires_grad=True), random(5)
    dxt.linear(x, weight, bias, activation)
    with torch.no_grad():
        dxt.linear(x, weight, bias, activation)
    dxt.linear(x, weight.detach(), bias, activation)
    kept, *others = ["keep" in repr(epilogue) for _, epilogue in launches]
    assert kept == (activation in FROM_INPUT)
    assert others == [False, False]


def test_the_backward_pass_reads_views(random, launches):
    x, weight = random(3, 4, requires_grad=True), random(5, 4, requires_grad=True)
    grad = random(3, 5)
    dxt.linear(x, weight).backward(grad)
    read = [tuple(operand.data_ptr() for operand in operands) for operands, _ in launches]
    pairs = [(x, weight), (grad, weight), (grad, x)]
    assert read == [tuple(operand.data_ptr() for operand in pair) for pair in pairs]


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_batch_invariant_products_have_such_gradients(random, monkeypatch, activation):
    asked, gemm = [], dxgemm.gemm

    def spy(*operands, batch_invariant=False, **options):
        asked.append(batch_invariant)
        return gemm(*operands, batch_invariant=batch_invariant, **options)

    monkeypatch.setattr(dxgemm, "gemm", spy)
    x, weight, bias = (random(*s, requires_grad=True) for s in ((3, 4), (5, 4), (5,)))
    layer = dxt.Linear(4, 5, activation=activation, batch_invariant=True, device=DEVICE)
    assert repr(layer).endswith(", batch_invariant=True)")
    for result in (
        dxt.linear(x, weight, bias, activation, batch_invariant=True),
        layer(x),
        dxt.gemm(x, weight.T, batch_invariant=True),
    ):
        result.sum().backward()
    assert asked == [True] * 9
    expected = reference(x, weight, bias, activation)
    assert_close(dxt.linear(x, weight, bias, activation, batch_invariant=True), expected)


def test_only_the_gradients_that_are_needed_are_computed(random, launches):
    x, weight, bias = random(3, 4), random(5, 4), random(5, requires_grad=True)
    dxt.linear(x, weight, bias).sum().backward()
    assert len(launches) == 1
    assert_close(bias.grad, torch.full_like(bias, 3.0))


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_the_result_may_be_changed_in_place(random, activation):
    x, weight = random(2, 3, 4), random(5, 4, requires_grad=True)
    result = dxt.linear(x, weight, None, activation)
    result += 1.0
    assert_close(result, reference(x, weight, None, activation) + 1.0)


OPCHECKED = [(torch.float32, True), (torch.float32, False), (torch.float16, True)]


LINEAR = [  # x, weight and bias; the last has strides
    ((3, 4), (5, 4), (5,)), ((3, 4), (5, 4), None), ((2, 3, 4), (5, 4), (5,)),
    ((4,), (5, 4), (5,)), ((0, 4), (5, 4), (5,)), ((3, 2, 4), (5, 4), None),
]  # fmt: skip
GEMM = [
    ((3, 4), (4, 5), None), ((3, 4), (4, 5), (3, 5)), ((2, 3, 4), (4, 5), (5,)),
    ((1, 3, 4), (2, 4, 5), (2, 1, 1)), ((3, 0), (0, 5), (5,)),
]  # fmt: skip


@pytest.mark.parametrize("dtype, requires_grad", OPCHECKED, ids=str)
@pytest.mark.parametrize(
    "name, shapes, options",
    [
        *(("linear", s, (activation,)) for s in LINEAR for activation in (None, "relu")),
        *(("linear_keep", shapes, ("gelu",)) for shapes in LINEAR),
        *(("gemm", shapes, (0.5, 2.0)) for shapes in GEMM),
    ],
    ids=str,
)
def test_opcheck(random, name, shapes, options, dtype, requires_grad):
    operands = [None if s is None else random(*s, dtype=dtype) for s in shapes]
    if shapes is LINEAR[-1]:
        operands[:2] = operands[0].transpose(0, 1), operands[1].T.contiguous().T
    operands = [x if x is None else x.requires_grad_(requires_grad) for x in operands]
    torch.library.opcheck(getattr(torch.ops.dxgemm, name).default, (*operands, *options))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("activation", [None, *FROM_INPUT, *FROM_OUTPUT])
def test_compiled_in_one_graph(random, activation, dynamic, backend):
    if backend == "inductor":
        pytest.importorskip("triton")
    torch._dynamo.reset()
    m, n, k = SIZES[0]

    def network(x, weight, bias):
        hidden = dxt.linear(x, weight, bias, activation)
        return dxt.gemm(hidden.flatten(0, -2), weight, alpha=0.5) + 1.0

    compiled = torch.compile(network, fullgraph=True, backend=backend, dynamic=dynamic)
    for rows in (m, m + 1):
        operands = [random(*s, requires_grad=True) for s in ((2, rows, k), (n, k), (n,))]
        result, expected = compiled(*operands), network(*operands)
        assert_close(result, expected)
        for mine, theirs in zip(gradients(result, operands), gradients(expected, operands)):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-3)
        with torch.no_grad():
            assert_close(compiled(*operands), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_casts_as_that_of_torch(random, dtype):
    x, weight, bias = random(3, 4), random(5, 4, requires_grad=True), random(5)
    with torch.autocast(DEVICE, dtype):
        results = [
            dxt.linear(x, weight, bias, "gelu"),
            torch.compile(dxt.linear, backend="aot_eager", fullgraph=True)(x, weight, bias, "gelu"),
            dxt.gemm(x, weight.T, bias),
        ]
        assert dxt.linear(x.double(), weight.double()).dtype is torch.float64
    assert [result.dtype for result in results] == 3 * [dtype]
    assert_close(results[0], reference(x, weight, bias, "gelu"))
    assert_close(results[1], reference(x, weight, bias, "gelu"))
    assert_close(results[2], reference(x, weight, bias))
    results[0].sum().backward()
    assert weight.grad.dtype is torch.float32


def test_the_module_is_that_of_torch(random):
    torch.manual_seed(0)
    mine = dxt.Linear(4, 5, activation="silu", device=DEVICE)
    theirs = torch.nn.Linear(4, 5, device=DEVICE)
    theirs.load_state_dict(mine.state_dict())
    x = random(2, 3, 4)
    assert_close(mine(x), torch.nn.functional.silu(theirs(x)))
    assert repr(mine) == "Linear(in_features=4, out_features=5, bias=True, activation='silu')"
    assert dxt.Linear(4, 5, bias=False, device="meta")(x.to("meta")).shape == (2, 3, 5)


@pytest.mark.parametrize("layer", [dxt.linear, lambda *args: dxt.Linear(4, 5, activation=args[-1])])
def test_an_unknown_activation(random, layer):
    with pytest.raises(ValueError, match="activation is 'swish'; pass 'relu', 'gelu'"):
        layer(random(3, 4), random(5, 4), None, "swish")


def test_operands_that_do_not_fit(random):
    x, weight, array = random(3, 4), random(5, 4), np.ones((3, 4), np.float32)
    for call, error, message in (
        (lambda: dxt.linear(array, weight, None, "gelu"), "ArrayType", "linear: x is a ndarray"),
        (lambda: dxt.linear(x, None), "ArrayType", "linear: weight is a NoneType; pass a tensor"),
        (lambda: dxt.gemm(x, weight.T, [0.0]), "ArrayType", "gemm: c is a list; pass a tensor"),
        (lambda: dxt.linear(x, weight.half()), "Dtype", "x is torch.float32, weight is torch.flo"),
        (lambda: dxt.linear(x, weight, random(5).double()), "Dtype", "bias is torch.float64"),
        (lambda: dxt.gemm(x.to(torch.int8), weight.T.to(torch.int8)), "Dtype", "a is torch.int8"),
        (lambda: dxt.linear(x.to("meta"), weight), "DeviceMismatch", "x is on meta"),
        (lambda: dxt.gemm(x, x.T, beta=random(1)), "Scalar", "gemm: beta is a tensor"),
        (lambda: dxt.matmul(x, x.T, random(1)), "Scalar", "matmul: alpha is a tensor; pass a num"),
    ):
        with pytest.raises(getattr(errors, f"{error}Error"), match=message):
            call()


@pytest.mark.parametrize("activation", FROM_INPUT)
def test_the_operator_alone_has_no_derivative_of_these(random, activation):
    operands = random(3, 4, requires_grad=True), random(5, 4), None, activation
    with pytest.raises(errors.UnsupportedProblemError, match=r"call dxgemm.torch.linear"):
        torch.ops.dxgemm.linear(*operands)


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_tangents_are_refused(random, activation):
    x, weight = random(3, 4), random(5, 4)
    with pytest.raises(errors.UnsupportedProblemError, match="linear: x has a tangent"):
        torch.func.jvp(lambda x: dxt.linear(x, weight, None, activation), (x,), (x,))
    with pytest.raises(errors.UnsupportedProblemError, match="gemm: b has a tangent"):
        torch.func.jvp(lambda b: dxt.gemm(x, b), (weight.T,), (weight.T,))
    with forward_ad.dual_level(), pytest.raises(errors.ArrayTypeError, match="a tangent"):
        torch.ops.dxgemm.linear(forward_ad.make_dual(x, x), weight, None, activation)


def test_fake_tensors_beside_real_ones_are_refused(random):
    x = random(4, 4)
    fake = import_module("torch._subclasses.fake_tensor").FakeTensorMode().from_tensor(x)
    calls = {
        "linear": lambda x, y: dxt.linear(x, y, None, "gelu"),
        "gemm": dxt.gemm,
        "gemm ": lambda x, y: dxt.gemm(x, x, epilogue=dxgemm.epilogues.residual(y)),
        "matmul": dxt.matmul,
        "gemm_grouped": lambda x, y: dxt.gemm_grouped(x, y[None], torch.tensor([4])),
    }
    for name, call in calls.items():
        for pair in ((x, fake), (fake, x)):
            with pytest.raises(errors.ArrayTypeError, match=f"^dxgemm.torch.{name.strip()}: torch"):
                call(*pair)


def test_tensors_that_require_grad_are_refused_on_the_host(random):
    x = random(4, 4, requires_grad=True)
    for on_host in (dxgemm.epilogues.relu.bound.on_host, dxgemm.reductions.sum().on_host):
        with pytest.raises(errors.ArrayTypeError, match=r"^on_host: values cannot be read"):
            on_host(x)


def test_parameters_are_of_torchs_library(random):
    tensor = random(2, 2)
    assert find_library("a", tensor) is find_library("b", torch.nn.Parameter(tensor))


@pytest.mark.gpu
def test_a_side_stream(random):
    x, weight, bias = random(64, 32), random(48, 32), random(48)
    expected = dxt.linear(x, weight, bias, "gelu")
    late = torch.full_like(x, torch.nan)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(500_000_000)
        late.copy_(x)
        result = dxt.linear(late, weight, bias, "gelu")
        late.fill_(torch.nan)
        assert not stream.query(), "the host waited"
    stream.synchronize()
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


@pytest.mark.gpu
def test_a_graph_of_a_training_step(random):
    layer = dxt.Linear(32, 48, activation="gelu", device="cuda")
    x = random(64, 32)

    def step():
        layer.weight.grad = layer.bias.grad = None
        result = layer(x)
        result.square().sum().backward()
        return result

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    grad = layer.weight.grad
    x.copy_(random(64, 32))
    graph.replay()
    expected = step()
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    torch.testing.assert_close(grad, layer.weight.grad)


def torchs_products(x, weight, bias):
    """Products of torch of all kinds, each with a row for each row of x."""
    batch = x.expand(2, *x.shape)
    return {
        "mm": torch.mm(x, weight.T),
        "matmul": x @ weight.T,
        "matmul of a batch": (batch @ weight.T)[1],
        "bmm": torch.bmm(batch, weight.T.expand(2, *weight.T.shape))[1],
        "mv": (x @ weight[0])[:, None],
        "addmm": torch.addmm(bias, x, weight.T, beta=0.5, alpha=2.0),
        "addmv": torch.addmv(bias[0], x, weight[0], beta=0.5, alpha=2.0)[:, None],
        "baddbmm": torch.baddbmm(bias, batch, weight.T.expand(2, *weight.T.shape))[1],
        "linear": torch.nn.functional.linear(x, weight, bias),
        "einsum": torch.einsum("ij,kj->ik", x, weight),
    }


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_products_of_torch_are_batch_invariant(random, launches, dtype):
    m, n, k = (5, 4, 24) if simulator_enabled() else (300, 72, 520)
    x, weight, bias = random(m, k, dtype=dtype), random(n, k, dtype=dtype), random(n, dtype=dtype)
    wide = (operand.double() for operand in (x, weight, bias))
    expected = torchs_products(*wide)
    assert not launches
    with dxt.batch_invariant():
        found = torchs_products(x, weight, bias)
        fewer = {rows: torchs_products(x[:rows], weight, bias) for rows in (1, 2, m - 1)}
    assert len(launches) >= 4 * len(found)
    for name, result in found.items():
        assert result.dtype is dtype
        assert_close(result, expected[name], terms=k)
        for rows, part in fewer.items():
            assert torch.equal(part[name], result[:rows]), (name, rows)


def test_batch_invariant_products_of_torch_have_tangents(random):
    x, weight, bias = random(5, 4), random(3, 4), random(3)

    def tangents():
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, 2 * x)
            found = torchs_products(dual, weight, bias)
            return {name: forward_ad.unpack_dual(y).tangent for name, y in found.items()}

    expected = tangents()
    with dxt.batch_invariant():
        for name, found in tangents().items():
            assert_close(found, expected[name], terms=4)


SMALL_ROWS = (1, 2, 3) if simulator_enabled() else range(1, 301)
MANY_ROWS = (4,) if simulator_enabled() else (512, 1000, 4097, 8192)
ROUTED = {
    "linear": lambda x, weight, bias: torch.nn.functional.linear(x, weight, bias),
    "linear without a bias": lambda x, weight, bias: torch.nn.functional.linear(x, weight),
    "matmul": lambda x, weight, bias: x @ weight.T,
    "bmm": lambda x, weight, bias: torch.bmm(x[None], weight.T[None])[0],
    "addmm": lambda x, weight, bias: torch.addmm(bias, x, weight.T, alpha=0.5, beta=2.0),
}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", ROUTED)
def test_rows_and_their_gradients_have_the_same_bits_for_every_number(
    random, launches, name, dtype
):
    n, k = (3, 5) if simulator_enabled() else (72, 520)
    every = random(MANY_ROWS[-1], k, dtype=dtype)
    weight, bias = random(n, k, dtype=dtype, requires_grad=True), random(n, dtype=dtype)
    upstream = random(MANY_ROWS[-1], n, dtype=dtype)

    def compute(rows):
        x = every[:rows].clone().requires_grad_()
        with dxt.batch_invariant():
            result = ROUTED[name](x, weight, bias)
            (grad,) = torch.autograd.grad(result, x, upstream[:rows])
        return result.detach(), grad

    whole = compute(MANY_ROWS[-1])
    for rows in (*SMALL_ROWS, *MANY_ROWS):
        for part, wanted in zip(compute(rows), whole, strict=True):
            assert torch.equal(part, wanted[:rows]), rows
    assert len(launches) == 2 * (1 + len(SMALL_ROWS) + len(MANY_ROWS))
    factor = 0.5 if name == "addmm" else 1.0
    expected = upstream.double() @ weight.detach().double() * factor
    assert_close(whole[1], expected, terms=n)


def test_gradients_of_a_module_are_batch_invariant(random, launches):
    m, n, k = (4, 3, 5) if simulator_enabled() else (70, 33, 130)
    layer = torch.nn.Linear(k, n, device=DEVICE)
    x = random(m, k)
    grads = []
    for rows in (m, 1):
        part = x[:rows].clone().requires_grad_()
        with dxt.batch_invariant():
            layer(part).sum().backward()
        grads.append(part.grad)
    assert torch.equal(grads[0][:1], grads[1])
    assert_close(grads[0], layer.weight.detach().sum(0).expand(m, k))
    assert len(launches) == 6  # a product forward and two backward, of each


@pytest.mark.filterwarnings("error")
def test_no_warning_about_torchs_operators(random):
    with dxt.batch_invariant():
        torch.mm(random(3, 4), random(4, 2))


def test_products_are_torchs_again_outside(random, launches):
    a, b = random(3, 4), random(4, 2)
    with pytest.raises(ZeroDivisionError), dxt.batch_invariant():
        with dxt.batch_invariant():
            torch.mm(a, b)
        torch.mm(a, b)
        raise ZeroDivisionError
    assert len(launches) == 2
    torch.mm(a, b)
    assert len(launches) == 2


def test_other_dtypes_are_torchs_inside_too(random, launches):
    a, b = (random(3, 3, dtype=torch.float64).to(torch.complex128) for _ in range(2))

    def products():
        with_vector = a @ b[0], torch.addmv(a[0], a, b[0], beta=2)
        return torch.addmm(a, a, b, alpha=1j, beta=2), a @ b, *with_vector

    expected = products()
    with dxt.batch_invariant():
        found = products()
    for result, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(result, wanted)
    assert not launches
