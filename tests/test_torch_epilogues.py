"""Epilogues in the operators of PyTorch, and their derivatives."""

import gc
import weakref
from importlib import import_module

import numpy as np
import pytest

import dxgemm
from dxgemm import epilogues, errors, reductions
from dxgemm.call.route import clear_routes
from dxgemm.epilogues import ColumnVector, Integer, Matrix, RowVector, Scalar
from dxgemm.epilogues.function import find_epilogue
from dxgemm.gpu.status import simulator_enabled
from dxgemm.runtime import simulator

torch = pytest.importorskip("torch", reason="the operators need torch: dxgemm[torch]")
dxt = import_module("dxgemm.torch")

DEVICE = "cpu" if simulator_enabled() else "cuda"
if not simulator_enabled() and not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)
TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 8e-2}
M, N, K = 3, 5, 4
compiled_on_gpu = pytest.mark.skipif(simulator_enabled(), reason="inductor needs a GPU here")
BACKENDS = ["aot_eager", pytest.param("inductor", marks=compiled_on_gpu)]


@dxgemm.epilogue
def shrink(value, row, col, factors: RowVector, power: Scalar = 1.0):
    return factors * value / (power + value * value)


@dxt.derivative(shrink)
def shrink_slope(value, row, col, factors: RowVector, power: Scalar):
    below = power + value * value
    return factors * (power - value * value) / (below * below)


@dxt.derivative(shrink, "factors")
def shrink_of_factors(value, row, col, factors: RowVector, power: Scalar):
    return value / (power + value * value)


@dxgemm.epilogue
def gate(value, row, col, matrix: Matrix, vector: ColumnVector):
    return value * matrix + vector


@dxt.derivative(gate)
def gate_slope(value, row, col, matrix: Matrix, vector: ColumnVector):
    return matrix


@dxt.derivative(gate, "vector")
def one(value, row, col, matrix: Matrix, vector: ColumnVector):
    return 1.0


@dxgemm.epilogue
def without_derivative(value, row, col, vector: RowVector):
    return value * value + vector


@pytest.fixture
def random():
    """Random tensors on the device, the same in each run."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape, dtype=torch.float64, requires_grad=True):
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        return values.to(DEVICE, dtype).requires_grad_(requires_grad)

    return random


def shrink_of_torch(value, factors, power):
    return factors * value / (power + value * value)


# Operands' shapes, the chain, and what torch computes: the last are functions of the operands.
CHAINS = {
    **{
        name: ((), lambda name=name: getattr(epilogues, name), formula)
        for name, formula in {
            "relu": torch.relu,
            "gelu": torch.nn.functional.gelu,
            "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
            "silu": torch.nn.functional.silu,
            "fast_gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
            "fast_silu": torch.nn.functional.silu,
            "sigmoid": torch.sigmoid,
            "tanh": torch.tanh,
        }.items()
    },
    "bias": (((N,),), epilogues.bias, torch.add),
    "bias_column": (((M,),), epilogues.bias_column, lambda x, v: x + v[:, None]),
    "residual": (((M, N),), epilogues.residual, torch.add),
    "scale": ((), lambda: epilogues.scale(-0.5), lambda x: -0.5 * x),
    "scale_rows": (((M,),), epilogues.scale_rows, lambda x, v: x * v[:, None]),
    "scale_columns": (((N,),), epilogues.scale_columns, torch.mul),
    "leaky_relu": ((), lambda: epilogues.leaky_relu(0.1), lambda x: torch.where(x > 0, x, 0.1 * x)),
    "clamp": ((), lambda: epilogues.clamp(-0.5, 1.0), lambda x: x.clamp(-0.5, 1.0)),
    "a chain": (
        ((N,), (M, N), (M,)),
        lambda v, matrix, column: (
            epilogues.bias(v)
            | epilogues.gelu
            | epilogues.residual(matrix)
            | epilogues.sigmoid
            | epilogues.scale_rows(column)
        ),
        lambda x, v, matrix, column: torch.sigmoid(
            torch.nn.functional.gelu(x + v) + matrix
        ) * column[:, None],
    ),
}  # fmt: skip
OWN_CHAINS = {
    "own": (((N,),), lambda v: shrink(v, 2.0), lambda x, v: shrink_of_torch(x, v, 2.0)),
    "own, of a batch of one": (
        ((1, N),),
        lambda v: shrink(v, 2.0),
        lambda x, v: shrink_of_torch(x, v[0], 2.0),
    ),
    "own in a chain": (
        ((N,), (M, N), (N,)),
        lambda v, matrix, w: (
            shrink(v) | epilogues.relu | epilogues.residual(matrix) | shrink(w, 3.0)
        ),
        lambda x, v, matrix, w: shrink_of_torch(
            torch.relu(shrink_of_torch(x, v, 1.0)) + matrix, w, 3.0
        ),
    ),
}


def assert_gradients_agree(result, expected, operands, tolerance=1e-9):
    """Assert that results and gradients are equal but for rounding."""
    weights = torch.arange(result.numel(), device=DEVICE).reshape(result.shape) % 5 - 2.0
    pairs = [(result, expected)]
    losses = [(r * weights.to(r.dtype)).sum() for r in (result, expected)]
    wanted = [operand for operand in operands if operand.requires_grad]
    pairs += zip(*(torch.autograd.grad(loss, wanted) for loss in losses), strict=True)
    for mine, theirs in pairs:
        scale = max(1.0, float(theirs.detach().abs().max()))
        torch.testing.assert_close(mine, theirs.to(mine.dtype), rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("name", [*CHAINS, *OWN_CHAINS])
def test_gradients_of_chains(random, name):
    shapes, chain, formula = {**CHAINS, **OWN_CHAINS}[name]
    operands = [random(*shape) for shape in ((M, K), (K, N), (N,), *shapes)]

    def fused(a, b, c, *bound):
        made = chain(*bound)
        return dxt.gemm(a, b, c, 0.5, -2.0, epilogue=made)

    a, b, c, *bound = operands
    expected = formula(0.5 * a @ b - 2.0 * c, *bound)
    assert_gradients_agree(fused(*operands), expected, operands)
    assert torch.autograd.gradcheck(fused, operands, fast_mode=True)
    if name in CHAINS:
        assert torch.autograd.gradgradcheck(fused, operands, fast_mode=True)


def test_every_epilogue_of_the_catalogue_has_derivatives_or_none():
    known = import_module("dxgemm.torch.derivatives")._derivatives
    with_derivatives = {
        name
        for name, entry in vars(epilogues).items()
        if isinstance(entry, epilogues.Epilogue) and None in known(entry)
    }
    assert with_derivatives == {*CHAINS, "dropout"} - {"a chain"}


def test_dropout_drops_the_same_elements_of_the_gradient(random):
    a, b, v = random(M, K), random(K, N), random(N)

    def fused(a, b, v):
        return dxt.gemm(a, b, epilogue=epilogues.dropout(0.5, 2**60 + 7) | epilogues.bias(v))

    mask, _ = epilogues.dropout(0.5, 2**60 + 7).on_host(np.ones((M, N)))
    assert 0 < (mask == 0).sum() < M * N
    expected = (a @ b) * torch.from_numpy(mask).to(DEVICE) + v
    assert_gradients_agree(fused(a, b, v), expected, (a, b, v))
    assert torch.autograd.gradgradcheck(fused, (a, b, v), fast_mode=True)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_gradients_in_each_dtype(random, dtype):
    """Operands of the epilogue may be float32 beside half precision, and have such gradients."""
    x, weight, bias = (random(*s, dtype=dtype) for s in ((2, M, K), (N, K), (N,)))
    factors, matrix = random(N, dtype=torch.float32), random(2, M, N, dtype=dtype)
    operands = (x, weight, bias, factors, matrix)
    chain = shrink(factors, 2.0) | epilogues.residual(matrix)
    result = dxt.linear(x, weight, bias, "silu", epilogue=chain)
    hidden = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    expected = shrink_of_torch(torch.nn.functional.silu(hidden), factors.double(), 2.0) + matrix
    assert result.dtype is dtype
    assert_gradients_agree(result, expected, operands, TOLERANCES[dtype])


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 0)], ids=str)
def test_operands_of_linear_have_the_leading_dimensions(random, lead):
    x, weight, matrix, column = random(*lead, K), random(N, K), random(*lead, N), random(*lead)
    chain = epilogues.residual(matrix)
    expected = torch.nn.functional.linear(x, weight) + matrix
    if lead:
        chain |= epilogues.scale_rows(column)
        expected = expected * column[..., None]
    result = dxt.linear(x, weight, epilogue=chain)
    assert result.shape == expected.shape
    operands = (x, weight, matrix, column)[: 4 if lead else 3]
    if result.numel():
        assert_gradients_agree(result, expected, operands)


@pytest.mark.parametrize(
    "shapes",
    [((2, M, N), (M,)), ((M, N), (2, M)), ((1, M, N), (1, M))],
    ids=str,
)
def test_operands_of_batches(random, shapes):
    a, b, c = random(2, M, K), random(K, N), random(N)
    matrix, vector = random(*shapes[0], requires_grad=False), random(*shapes[1])
    result = dxt.gemm(a, b, c, 2.0, 0.5, epilogue=gate(matrix, vector))
    expected = (2.0 * a @ b + 0.5 * c) * matrix + vector[..., None]
    assert_gradients_agree(result, expected, (a, b, c, vector))


def test_only_what_derivatives_read_is_kept(random, monkeypatch):
    chains, gemm = [], dxgemm.gemm

    def spy(*operands, epilogue=None, **options):
        chains.append(repr(epilogue))
        return gemm(*operands, epilogue=epilogue, **options)

    monkeypatch.setattr(dxgemm, "gemm", spy)
    x, weight, bias, matrix = random(M, K), random(N, K), random(N), random(M, N)
    factors = random(N, requires_grad=False)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        for chain in (
            epilogues.residual(matrix),
            shrink(factors) | epilogues.residual(matrix),
            epilogues.relu,
            gate(matrix.detach(), random(M)),
        ):
            dxt.linear(x, weight, bias, epilogue=chain)
    assert all(tensor.data_ptr() != matrix.data_ptr() for tensor in saved[:-2])
    with torch.no_grad():
        dxt.linear(x, weight, bias, epilogue=shrink(factors))
    dxt.linear(x.detach(), weight.detach(), epilogue=shrink(factors) | epilogues.bias(bias))
    assert chains == [
        "bias | residual",
        "bias | keep | shrink | residual",
        "bias | relu",
        "bias | gate",
        "bias | shrink",
        "shrink | bias",
    ]


def test_the_derivative_of_the_element_is_one_pass(random, monkeypatch):
    calls, gemm = [], dxgemm.gemm
    monkeypatch.setattr(
        dxgemm, "gemm", lambda a, b, *more, **named: calls.append(a) or gemm(a, b, *more, **named)
    )
    x, weight, factors = random(M, K), random(N, K), random(N, requires_grad=False)
    dxt.linear(x, weight, epilogue=shrink(factors)).sum().backward()
    assert weight.grad.is_contiguous()
    assert [a.shape for a in calls] == [(M, K), (M, 0), (M, N), (N, M)]


def test_batch_invariant_gradients(random, monkeypatch):
    asked, gemm = [], dxgemm.gemm

    def spy(*operands, batch_invariant=False, **options):
        asked.append(batch_invariant)
        return gemm(*operands, batch_invariant=batch_invariant, **options)

    monkeypatch.setattr(dxgemm, "gemm", spy)
    chain = epilogues.relu | epilogues.bias(random(N))
    dxt.linear(random(M, K), random(N, K), epilogue=chain, batch_invariant=True).sum().backward()
    assert asked == 3 * [True]


def test_without_a_derivative(random):
    x, weight, vector = (random(*s, requires_grad=False) for s in ((M, K), (N, K), (N,)))
    chain = without_derivative(vector)
    expected = (x @ weight.T) ** 2 + vector
    torch.testing.assert_close(dxt.linear(x, weight, epilogue=chain), expected)
    x.requires_grad_()
    with torch.no_grad():
        torch.testing.assert_close(dxt.linear(x, weight, epilogue=chain), expected)
    with pytest.raises(
        errors.UnsupportedProblemError, match="without_derivative has no deriv"
    ) as e:
        dxt.linear(x, weight, epilogue=chain)
    assert "@dxgemm.torch.derivative(without_derivative)" in str(e.value)
    # Stages before the first that needs a gradient need no derivative.
    bias = random(N)
    later = dxt.linear(x.detach(), weight, epilogue=chain | epilogues.bias(bias))
    assert_gradients_agree(later, expected + bias, (bias,))


def test_an_operand_without_a_derivative(random):
    x, weight, matrix, vector = random(M, K), random(N, K), random(M, N), random(M)
    with pytest.raises(errors.UnsupportedProblemError, match=r"respect to matrix; register one"):
        dxt.linear(x, weight, epilogue=gate(matrix, vector))


def test_there_are_no_second_derivatives_of_own_epilogues(random):
    x, weight, factors = random(M, K), random(N, K), random(N, requires_grad=False)
    result = dxt.linear(x, weight, epilogue=shrink(factors)).sum()
    with pytest.raises(errors.UnsupportedProblemError, match="shrink_slope is a derivative that"):
        torch.autograd.grad(result, x, create_graph=True)


def test_the_operator_alone_does_not_guess_what_to_keep(random):
    a, b, factors = random(M, K), random(K, N), random(N)
    arguments = a, b, None, 1.0, 0.0, shrink.key, [factors], [1.0], [], False
    with pytest.raises(errors.UnsupportedProblemError, match=r"call dxgemm.torch.gemm"):
        torch.ops.dxgemm.gemm_epilogue(*arguments)


@pytest.mark.parametrize(
    "chain",
    [epilogues.swiglu, epilogues.keep(kept=None), epilogues.relu | reductions.sum(axis=1)],
    ids=str,
)
def test_epilogues_that_are_not_taken(random, chain):
    with pytest.raises(errors.UnsupportedProblemError, match="outputs, pairs of columns or a red"):
        dxt.gemm(random(M, K), random(K, 6), epilogue=chain)


def test_operands_that_do_not_fit(random):
    x, weight = random(2, M, K), random(N, K)
    for chain, error, words in (
        (epilogues.bias(random(N + 1)), errors.ShapeError, r"vector is \(6,\)"),
        (epilogues.residual(random(M, N)), errors.ShapeError, r"matrix is \(3, 5\)"),
        (epilogues.bias(random(N, dtype=torch.float32)), errors.DtypeError, "float32"),
        (epilogues.bias(random(N).to("meta")), errors.DeviceMismatchError, "is on meta"),
        (epilogues.bias([1.0] * N), errors.ArrayTypeError, "vector is a list; pass a tensor"),
        (epilogues.bias, errors.EpilogueError, "vector .* is missing"),
        ("relu", errors.EpilogueError, "epilogue is 'relu'"),
    ):
        with pytest.raises(error, match=words):
            dxt.linear(x, weight, epilogue=chain)
    with pytest.raises(errors.ShapeError, match=r"vector is \(6,\)"):
        meta = x.to("meta"), weight.to("meta")
        dxt.linear(*meta, epilogue=epilogues.bias(random(N + 1).to("meta")))


def test_tangents_of_operands_are_refused(random):
    x, weight = random(M, K), random(N, K)
    with pytest.raises(errors.UnsupportedProblemError, match="bias: vector has a tangent"):
        torch.func.jvp(
            lambda v: dxt.linear(x, weight, epilogue=epilogues.bias(v)), (x[0, :1],), (x[0, :1],)
        )


def test_derivatives_that_are_refused():
    def slope(value, row, col):
        return 1.0

    for of, operand, words in (
        (shrink, None, "must have the operands of <epilogue shrink"),
        (shrink, "power", "shrink has no vector or matrix 'power'; it has factors"),
        (epilogues.relu, "value", "relu has no vector or matrix 'value'; it has none"),
        (epilogues.swiglu, None, "neither takes pairs nor has outputs"),
        (epilogues.scale(2.0), None, "pass an epilogue without operands"),
    ):
        with pytest.raises(errors.EpilogueError, match=words):
            dxt.derivative(of, operand)(slope)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_leaves_the_operands_of_the_epilogue(random, dtype):
    x, weight, factors = (random(*s, dtype=torch.float32) for s in ((M, K), (N, K), (N,)))
    with torch.autocast(DEVICE, dtype):
        results = [
            dxt.linear(x, weight, epilogue=shrink(factors, 2.0)),
            dxt.gemm(x, weight.T, epilogue=shrink(factors, 2.0)),
        ]
    for result in results:
        assert result.dtype is dtype
        rounded = x.to(dtype).double() @ weight.to(dtype).double().T
        expected = shrink_of_torch(rounded, factors, 2.0)
        assert_gradients_agree(result, expected, (x, weight, factors), TOLERANCES[dtype])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiled_in_one_graph(random, dynamic, backend):
    if backend == "inductor":
        pytest.importorskip("triton")
    torch._dynamo.reset()
    outside = epilogues.scale(0.5) | epilogues.silu

    def network(x, weight, bias, factors, matrix):
        hidden = dxt.linear(x, weight, bias, "relu", epilogue=shrink(factors, 2.0) | outside)
        chain = epilogues.dropout(0.25, 3) | epilogues.gelu | epilogues.residual(matrix)
        return dxt.gemm(hidden.flatten(0, -2), weight, epilogue=chain) + 1.0

    compiled = torch.compile(network, fullgraph=True, backend=backend, dynamic=dynamic)
    for rows in (M, M + 1):
        shapes = ((2, rows, K), (N, K), (N,), (N,), (2 * rows, K))
        operands = [random(*shape) for shape in shapes]
        assert_gradients_agree(compiled(*operands), network(*operands), operands)
        with torch.no_grad():
            torch.testing.assert_close(compiled(*operands), network(*operands))


def test_compiled_with_an_operand_without_a_derivative(random):
    torch._dynamo.reset()

    def network(x, weight, vector):
        return dxt.linear(x, weight, epilogue=without_derivative(vector))

    operands = [random(*shape) for shape in ((M, K), (N, K), (N,))]
    with pytest.raises(Exception, match="without_derivative has no derivative"):
        torch.compile(network, fullgraph=True, backend="aot_eager")(*operands)


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize(
    "stages, shapes, numbers, kept",
    [
        ([epilogues.relu], [], [], []),
        ([shrink], [(N,)], [2.0], [0]),
        ([epilogues.bias, epilogues.gelu, shrink], [(N,), (1, N)], [2.0], [1, 2]),
        ([epilogues.dropout, epilogues.residual], [(M, N)], [0.5, 7], []),
    ],
    ids=str,
)
def test_opcheck(random, stages, shapes, numbers, kept, requires_grad):
    a, b, c = (random(*s, requires_grad=requires_grad) for s in ((M, K), (K, N), (N,)))
    operands = [random(*shape, requires_grad=requires_grad) for shape in shapes]
    keys = "\n".join(stage.key for stage in stages)
    arguments = a, b, c, 0.5, 2.0, keys, operands, numbers, kept, False
    torch.library.opcheck(torch.ops.dxgemm.gemm_epilogue.default, arguments)


def test_opcheck_of_a_derivative(random):
    grad, value, factors = random(M, N), random(M, N).detach(), random(N).detach()
    arguments = grad, value, shrink_slope.key, [factors], [2.0]
    torch.library.opcheck(torch.ops.dxgemm.apply_epilogue.default, arguments)


def test_an_epilogue_may_be_dropped_before_the_backward_pass(random):
    def product(number):
        @dxgemm.epilogue
        def shrunk(value, row, col, factors: RowVector):
            return value * factors * number

        @dxgemm.torch.derivative(shrunk)
        def slope(value, row, col, factors: RowVector):
            return 1.0 * factors * number

        out = dxgemm.torch.gemm(a, b, epilogue=shrunk(factors))
        return out, weakref.ref(shrunk)

    a, b, factors = random(M, K), random(K, N), random(N).detach()
    out, reference = product(3.0)
    gc.collect()
    (found,) = torch.autograd.grad(out.sum(), a)
    torch.testing.assert_close(found, (3.0 * factors).expand(M, N) @ b.detach().T)
    if simulator_enabled():
        del out
        clear_routes()
        simulator._made_kernel.cache_clear()
        gc.collect()
        assert reference() is None, "nothing else keeps it, nor its derivative"


def test_epilogues_of_graphs_are_kept(random):
    derivatives = import_module("dxgemm.torch.derivatives")

    @dxgemm.epilogue
    def more(value, row, col, factors: RowVector):
        return value * factors + 17.0

    b, factors = random(K, N).detach(), random(N).detach()
    call = torch.compile(
        lambda a: dxgemm.torch.gemm(a, b, epilogue=more(factors)), backend="aot_eager"
    )
    call(random(M, K).detach())
    assert derivatives._in_graphs[more.key] == [more]


def test_keys_tell_epilogues_of_the_same_code_apart():
    assert len({entry.key for entry in (epilogues.bias, epilogues.bias_column)}) == 2

    @dxgemm.epilogue
    def add(value, row, col, number: Integer):
        return value + number

    assert find_epilogue(add.key) is add
