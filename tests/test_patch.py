"""`patch` routes products of CuPy and torch, and leaves what it cannot compute to them."""

from __future__ import annotations

import pickle
import threading
from importlib import import_module

import numpy as np
import pytest

import dxgemm
from dxgemm import errors
from dxgemm.drop_in import routing
from dxgemm.gpu.status import simulator_enabled

DEVICE = "cpu" if simulator_enabled() else "cuda"


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch", reason="needs torch")
    if not simulator_enabled() and not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return torch


@pytest.fixture
def random(torch):
    generator = torch.Generator().manual_seed(0)

    def random(*shape, dtype=None):
        values = torch.randint(-3, 4, shape, generator=generator)
        return values.to(device=DEVICE, dtype=dtype or torch.float32)

    return random


def products_of(torch, random, dtype=None):
    a, b, c, v = (random(*s, dtype=dtype) for s in ((3, 4), (4, 5), (3, 5), (5,)))
    stack, other = random(2, 3, 4, dtype=dtype), random(2, 4, 5, dtype=dtype)
    return {
        "mm": lambda: torch.mm(a, b),
        "matmul": lambda: a @ b,
        "matmul of a stack": lambda: torch.matmul(stack, b),
        "bmm": lambda: torch.bmm(stack, other),
        "mv": lambda: a @ b[:, 0],
        "addmm": lambda: torch.addmm(c, a, b, beta=2, alpha=0.5),
        "addmm of a vector": lambda: torch.addmm(v, a, b),
        "addmv": lambda: torch.addmv(c[:, 0], a, b[:, 0], beta=3),
        "baddbmm": lambda: torch.baddbmm(c, stack, other),
        "linear": lambda: torch.nn.functional.linear(stack, b.T, v),
        "einsum": lambda: torch.einsum("bij,bjk->bik", stack, other),
        "transposed": lambda: torch.mm(b.T, a.T),
    }


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "complex64"])
def test_products_of_torch(torch, random, dtype):
    products = products_of(torch, random, getattr(torch, dtype))
    expected = {name: product() for name, product in products.items()}
    with dxgemm.patch(only=None) as patch:
        found = {name: product() for name, product in products.items()}
    report = patch.report()
    assert sum(report.routed.values()) == len(products) and not report.fell_through, str(report)
    for name, wanted in expected.items():
        torch.testing.assert_close(found[name], wanted)
        assert found[name].dtype is wanted.dtype and found[name].stride() == wanted.stride(), name
    products["mm"]()
    assert patch.report() == report


def test_gradients_of_torch_in_the_whole_process(torch, random):
    layer = torch.nn.Linear(4, 3, device=DEVICE)
    x = random(5, 4).requires_grad_()

    def gradients():
        return torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()])

    expected = gradients()
    patch = dxgemm.patch(only=None).enable()
    try:
        found = gradients()
    finally:
        patch.disable()
    torch.testing.assert_close(found, expected)
    assert sum(patch.report().routed.values()) == 3 and not patch.report().fell_through
    gradients()
    assert sum(patch.report().routed.values()) == 3
    with pytest.raises(errors.SettingError, match="patch: it is not enabled"):
        patch.disable()


def test_what_falls_through_is_counted(torch, random):
    a, b = random(3, 4), random(4, 5)
    integers = random(3, 3, dtype=torch.int32) if simulator_enabled() else None
    with dxgemm.patch(only=None, dtypes=["float64"]) as patch:
        torch.mm(a, b)
        torch.mm(a, b)
        torch.mm(a.double(), b.double())
        if integers is not None:
            torch.mm(integers, integers)
    fallen = {("torch.mm", "dtype float32"): 2}
    if integers is not None:
        fallen["torch.mm", "dtype torch.int32"] = 1
    assert patch.report().fell_through == fallen and patch.report().routed == {"torch.mm": 1}
    assert str(patch.report()).splitlines()[:4] == [
        "by dxgemm: 1 calls",
        "         1  torch.mm",
        f"fell through: {sum(fallen.values())} calls",
        "         2  torch.mm: dtype float32",
    ]


def test_refusals_fall_through(torch, random, monkeypatch):
    a, b = random(3, 4), random(4, 5)

    def refuse(*_, **__):
        raise errors.UnsupportedProblemError("gemm: not this one.")

    monkeypatch.setattr(routing, "prepare", refuse)
    monkeypatch.setattr(routing.Patch, "_timed", refuse)
    expected = torch.mm(a, b)
    for only in (None, "faster"):
        with dxgemm.patch(only=only) as patch:
            for _ in range(2):
                assert torch.equal(torch.mm(a, b), expected)
        reason = "UnsupportedProblemError: gemm: not this one."
        assert patch.report().fell_through["torch.mm", reason] == 2
        assert not patch.report().routed


@pytest.mark.parametrize("is_faster", [True, False])
def test_only_what_is_faster_is_routed(torch, random, monkeypatch, is_faster):
    a, b = random(3, 4), random(4, 5)
    monkeypatch.setattr(routing.Patch, "_timed", lambda *_: "" if is_faster else routing.SLOWER)
    with dxgemm.patch() as patch:
        torch.mm(a, b)
        torch.mm(a, b)
    counts = {"torch.mm": 2} if is_faster else {("torch.mm", "the library is faster"): 2}
    report = patch.report()
    assert (report.routed if is_faster else report.fell_through) == counts


def test_a_trial_times_both(torch, random, monkeypatch):
    monkeypatch.setattr(routing, "MOST_CALLS", 1)
    a, b = random(3, 4), random(4, 5)
    with dxgemm.patch() as patch:
        result = torch.mm(a, b)
    assert torch.equal(result, (a.double() @ b.double()).float())
    report = patch.report()
    assert sum(report.routed.values()) + sum(report.fell_through.values()) == 1
    if simulator_enabled():  # which is slow
        assert report.fell_through == {("torch.mm", routing.SLOWER): 1}


def test_contexts_are_nested_and_undone(torch, random):
    a, b = random(3, 4), random(4, 5)
    inner = dxgemm.patch(only=None)
    with pytest.raises(ZeroDivisionError), dxgemm.patch(only=None, dtypes=[]) as outer:
        torch.mm(a, b)
        with inner, inner:
            torch.mm(a, b)
        torch.mm(a, b)
        raise ZeroDivisionError
    torch.mm(a, b)
    assert sum(outer.report().fell_through.values()) == 2
    assert inner.report().routed == {"torch.mm": 1}
    assert not routing.Hooks.installed and not routing.Hooks.users


def test_a_context_is_of_its_thread(torch, random):
    a, b = random(3, 4), random(4, 5)

    def in_thread():
        thread = threading.Thread(target=lambda: torch.mm(a, b))
        thread.start()
        thread.join()

    with dxgemm.patch(only=None) as patch:
        in_thread()
        assert not patch.report().routed
        torch.mm(a, b)
    patch.enable()
    in_thread()
    patch.disable()
    assert patch.report().routed == {"torch.mm": 2}


def test_contexts_that_are_left_in_another_order(torch, random):
    a, b = random(3, 4), random(4, 5)
    first, second = dxgemm.patch(only=None), dxgemm.patch(only=None)
    first.__enter__()
    second.__enter__()
    first.__exit__()
    torch.mm(a, b)
    second.__exit__()
    assert second.report().routed == {"torch.mm": 1} and not first.report().routed
    with pytest.raises(errors.SettingError, match="patch: its context is not entered"):
        second.__exit__()
    assert not routing.Hooks.installed and not routing.Hooks.users


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_functions_are_pickled_by_name(library):
    module = pytest.importorskip(library)
    with dxgemm.patch():
        hooks = import_module(f"dxgemm.drop_in.{library}_hooks")
        for owner, name, *_ in hooks.DIRECT if library == "torch" else hooks.HOOKED:
            function = getattr(owner, name)
            assert pickle.loads(pickle.dumps(function)) is function, (module, name)


def test_shapes_that_torch_refuses(torch, random):
    """`gemm` takes matrices for batches, and broadcasts; torch's operators do not."""
    dxt = import_module("dxgemm.torch")
    shapes = (3, 4), (4, 5), (2, 3, 4), (2, 4, 5), (1, 4, 5)
    a, b, batch, other, one = (random(*shape) for shape in shapes)
    calls = [
        lambda: torch.mm(batch, other), lambda: batch.mm(b), lambda: torch.bmm(a, b),
        lambda: batch.bmm(one), lambda: torch.mv(batch, b[:, 0]), lambda: torch.mv(a, b),
        lambda: torch.addmm(b[0], batch, other), lambda: torch.baddbmm(b[0], a, b),
        lambda: torch.baddbmm(b[0], batch, one), lambda: torch.addmm(b[:, 0], a, b),
        lambda: torch.addmv(a[:, :1], a, b[:, 0]),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises((RuntimeError, IndexError)) as caught:
            call()
        with dxgemm.patch(only=None), pytest.raises(caught.type) as patched:
            call()
        assert str(patched.value) == str(caught.value)
        with dxt.batch_invariant(), pytest.raises((RuntimeError, ValueError, IndexError)):
            call()


def test_batch_invariance_comes_first(torch, random):
    dxt = import_module("dxgemm.torch")
    a, b = random(3, 4), random(4, 5)
    with dxgemm.patch(only=None) as patch, dxt.batch_invariant():
        torch.mm(a, b)
    assert not patch.report().routed
    with dxt.batch_invariant(), dxgemm.patch(only=None) as patch:
        torch.mm(a, b)
    assert not patch.report().routed


def test_precision(torch, random, monkeypatch):
    asked = []

    def spy(*arguments, **_):
        *_, (_, _, _, precision, *_) = arguments
        asked.append(precision)
        raise errors.UnsupportedProblemError("gemm: not this one.")

    monkeypatch.setattr(routing, "prepare", spy)
    a, b = random(3, 4), random(4, 5)
    with dxgemm.patch(only=None, precision="tf32"):
        torch.mm(a, b)
        torch.mm(a.double(), b.double())
    assert asked == ["tf32", None]


@pytest.mark.parametrize(
    ("error", "words", "options"),
    [
        (errors.DtypeError, "dtypes is 'int8'", {"dtypes": ["int8"]}),
        (errors.DtypeError, "dtypes is 'float32'; pass a list", {"dtypes": "float32"}),
        (errors.PrecisionError, "bogus", {"precision": "bogus"}),
        (errors.PrecisionError, "tf32", {"precision": "tf32", "dtypes": ["float64"]}),
        (errors.SettingError, "only is 'slower'", {"only": "slower"}),
    ],
)
def test_bad_options(error, words, options):
    with pytest.raises(error, match=f"^patch: .*{words}"):
        dxgemm.patch(**options)


def products_of_cupy(cupy):
    rng = np.random.default_rng(0)
    a, b, stack, other = (
        cupy.asarray(rng.integers(-3, 4, shape).astype("float32"))
        for shape in ((3, 4), (4, 5), (2, 3, 4), (2, 4, 5))
    )
    return {
        "matmul": lambda: cupy.matmul(a, b),
        "matmul into out": lambda: cupy.matmul(a, b, out=cupy.empty((3, 5), "float32")),
        "@": lambda: a @ b,
        "@ of a stack": lambda: stack @ other,
        "@ of a vector": lambda: stack @ b[:, 0],
        "dot": lambda: cupy.dot(a, b),
        "dot of vectors": lambda: a[0].dot(b[:, 0]),
        "dot of stacks": lambda: cupy.dot(stack, other),
        "tensordot": lambda: cupy.tensordot(stack, b, axes=1),
        "tensordot of pairs": lambda: cupy.tensordot(stack, other, ([0, 2], [0, 1])),
        "inner": lambda: cupy.inner(stack, a),
        "einsum": lambda: cupy.einsum("bij,bjk->bki", stack, other),
        "inner of vectors": lambda: cupy.inner(a[0], a[1]),
        "tensordot over all": lambda: cupy.tensordot(a, a, 2),
    }


def test_functions_of_cupy_are_put_back():
    cupy = pytest.importorskip("cupy", reason="needs CuPy")

    def functions():
        return cupy.matmul, cupy.einsum, cupy.ndarray.dot, cupy.ndarray.__matmul__

    before = functions()
    with dxgemm.patch():
        assert all(own is not other for own, other in zip(functions(), before))
    assert functions() == before
    assert "__matmul__" not in vars(cupy.ndarray) and "dot" not in vars(cupy.ndarray)


@pytest.mark.gpu
def test_products_of_cupy(cupy):
    products = products_of_cupy(cupy)
    expected = {name: product() for name, product in products.items()}
    with dxgemm.patch(only=None) as patch:
        found = {name: product() for name, product in products.items()}
    report = patch.report()
    assert sum(report.routed.values()) == len(products) and not report.fell_through, str(report)
    for name, wanted in expected.items():
        cupy.testing.assert_array_equal(found[name], wanted)
        assert found[name].dtype == wanted.dtype and found[name].shape == wanted.shape
        if name != "einsum":
            assert found[name].strides == wanted.strides, name


@pytest.mark.gpu
def test_what_cupy_computes(cupy):
    a = cupy.arange(12, dtype="int64").reshape(3, 4)
    singles = a.astype("float32")
    with dxgemm.patch(only=None) as patch:
        assert (cupy.matmul(a, a.T) == (a[:, None] * a).sum(2)).all()
        cupy.matmul(singles, singles.T, dtype="float64")
        assert float(cupy.dot(singles[0], cupy.full((), 2, "float32")).sum()) == 12
        cupy.tensordot(singles, singles.astype("float64"), ([1], [1]))
    assert not patch.report().routed and len(patch.report().fell_through) >= 4
    with dxgemm.patch() as patch:
        for _ in range(3):
            singles @ singles.T
    seen = patch.report()
    assert sum(seen.routed.values()) + sum(seen.fell_through.values()) == 3
    into = cupy.empty((3, 3), "float32", order="F"), cupy.empty((3, 3)), cupy.empty((2, 3, 3), "f")
    calls = [
        lambda: cupy.matmul(singles, singles),
        lambda: cupy.dot(singles, singles.T, out=into[0]),
        lambda: cupy.dot(singles, singles.T, out=into[1]),
        lambda: cupy.matmul(singles, singles.T, out=into[2]),
    ]
    for call in calls:
        with pytest.raises(ValueError) as caught:
            call()
        with dxgemm.patch(only=None), pytest.raises(ValueError) as patched:
            call()
        assert str(patched.value) == str(caught.value)


def test_transforms_of_torch(torch, random):
    """vmap, derivatives by functions, inference mode, fake tensors and compiled code."""
    from torch._subclasses import FakeTensorMode

    stack, other = random(2, 3, 4), random(2, 4, 5)
    a, b = stack[0], other[0]

    def loss(a, b):
        return (a @ b).square().sum()

    def products(a, b):
        return torch.mm(a, b) + torch.matmul(a, b) + a @ b + a.mm(b)

    def scripted(a, b):
        return torch.mm(a, b)

    compiled = torch.compile(products, backend="eager", fullgraph=True)
    calls = {
        "vmap": lambda: torch.vmap(torch.mm)(stack, other),
        "grad": lambda: torch.func.grad(loss)(a, b),
        "jvp": lambda: torch.func.jvp(loss, (a, b), (a, b))[1],
        "compiled": lambda: compiled(a, b),
        "scripted": lambda: torch.jit.script(scripted)(a, b),
        "traced": lambda: torch.jit.trace(products, (a, b))(a, b),
        "symbolic": lambda: torch.fx.symbolic_trace(products)(a, b),
        "autocast": lambda: torch.autocast(DEVICE)(products)(a, b),
        "sparse": lambda: torch.mm(a.to_sparse(), b),
        "negative": lambda: torch.mm(torch.complex(a, a).conj().imag, b),
        "Parameter": lambda: torch.nn.Parameter(a, requires_grad=False) @ b,
        "zeros without memory": lambda: torch._efficientzerotensor((3, 4), device=DEVICE) @ b + 1,
        "conjugate": lambda: torch.mm(torch.complex(a, a).conj(), torch.complex(b, b)),
    }
    expected = {name: call() for name, call in calls.items()}
    with dxgemm.patch(only=None) as patch:
        found = {name: call() for name, call in calls.items()}
        with torch.inference_mode():
            found["inference"] = torch.mm(a, b)
        routed = sum(patch.report().routed.values())
        with FakeTensorMode() as mode:
            fake = torch.mm(mode.from_tensor(a), mode.from_tensor(b))
    assert fake.shape == (3, 5) and sum(patch.report().routed.values()) == routed > 4
    expected["inference"] = torch.mm(a, b)
    for name, wanted in expected.items():
        torch.testing.assert_close(found[name], wanted)
    assert not patch.report().fell_through, str(patch.report())


@pytest.mark.gpu
def test_graphs_of_torch(torch, random):
    a, b = random(64, 64), random(64, 64)
    expected = torch.mm(a, b)
    graph = torch.cuda.CUDAGraph()
    with dxgemm.patch() as patch, torch.cuda.graph(graph):
        found = torch.mm(a, b)
    graph.replay()
    assert patch.report().fell_through == {("torch.mm", routing.CAPTURED): 1}
    assert torch.equal(found, expected)
    with dxgemm.patch(only=None) as patch:
        torch.mm(a, b)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = torch.mm(a, b)
    a *= 2
    graph.replay()
    assert patch.report().routed == {"torch.mm": 2} and torch.equal(found, 2 * expected)
