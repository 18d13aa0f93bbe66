"""Whose memory an operand is: refused in every role if it is not its value, and never freed early.

Kinds of operands times roles in a call. Objects that only tell what they are stand for libraries
that are not installed.
"""

import gc
import os
import threading
import time
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from oracle.libraries import DlpackOnly

import dxgemm
from dxgemm import errors, reductions
from dxgemm.epilogues import keep, residual
from dxgemm.gpu.status import probe, simulator_enabled
from dxgemm.runtime import device, exports

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other tests share the GPU
if simulator_enabled():
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

simulated = pytest.mark.skipif(not simulator_enabled(), reason="the simulator is off")
several_gpus = pytest.mark.skipif(probe().device_count < 2, reason="needs two GPUs")
ON_GPU = pytest.param("cuda", marks=pytest.mark.gpu)

S = 8  # rows and columns of every matrix
READING = {
    "a": lambda x, y: dxgemm.gemm(x, y),
    "b": lambda x, y: dxgemm.gemm(y, x),
    "c": lambda x, y: dxgemm.gemm(y, y, x, beta=1.0, out=y + 0),
    "array": lambda x, y: dxgemm.gemm(y, y, epilogue=residual(x)),
    "a of matmul": lambda x, y: dxgemm.matmul(x, y[None, None]),
    "a of a plan": lambda x, y: dxgemm.plan(x, y, out=y + 0)(),
    "a of a symmetric product": lambda x, y: dxgemm.gemm_symmetric(x),
    "a of a list": lambda x, y: dxgemm.gemm_grouped([y, x], [y, y])[1],
    "a with offsets": lambda x, y: dxgemm.gemm_grouped(x, y[None], offsets=all_rows(y)),
    "array with offsets": lambda x, y: dxgemm.gemm_grouped(
        y, y[None], offsets=all_rows(y), epilogue=residual(x)
    ),
    "prepared b": lambda x, y: dxgemm.gemm(y, dxgemm.prepare(x)),
}
WRITING = {
    "out": lambda x, y: dxgemm.gemm(y, y, out=x),
    "c in place": lambda x, y: dxgemm.gemm(y, y, x, beta=1.0),
    "output": lambda x, y: dxgemm.gemm(y, y, epilogue=keep(kept=x)),
    "out of matmul": lambda x, y: dxgemm.matmul(y[None, None], y, out=x[None, None]),
    "out of a plan": lambda x, y: dxgemm.plan(y, y, out=x),
    "out of a list": lambda x, y: dxgemm.gemm_grouped([y, y], [y, y], out=[y + 0, x]),
    "out with offsets": lambda x, y: dxgemm.gemm_grouped(y, y[None], offsets=all_rows(y), out=x),
    "out with out_rows": lambda x, y: dxgemm.gemm_grouped(
        y, y[None], offsets=all_rows(y), out_rows=rows_in_turn(y), out=x
    ),
    "out of a reduction": lambda x, y: dxgemm.gemm(y, y, epilogue=reductions.sum(1, out=x[0])),
}
OTHER = {  # what has another shape or dtype, and is refused before these are asked for
    "mask": lambda x, y: dxgemm.gemm(y, y, mask=x),
    "offsets": lambda x, y: dxgemm.gemm_grouped(y, y[None], offsets=x),
    "rows": lambda x, y: dxgemm.gemm_grouped(y, y[None], offsets=all_rows(y), rows=x),
}


def all_rows(y):
    return np.array([S], np.int32) if isinstance(y, np.ndarray) else y[0, :1].int() * 0 + S


def rows_in_turn(y):
    return np.arange(S, dtype=np.int32)


def ones():
    return np.ones((S, S), np.float32)


def cases(*tables):
    roles = {name: role for table in tables for name, role in table.items()}
    return pytest.mark.parametrize("role", roles.values(), ids=roles)


def assert_refused(role, x, y, *kinds):
    """A role refuses x, and the next call is right."""
    with pytest.raises(kinds or errors.DxgemmError) as caught:
        role(x, y)
    assert isinstance(caught.value, errors.DxgemmError)
    np.testing.assert_array_equal(np.asarray(dxgemm.gemm(y, y)), np.full((S, S), S))


# Arrays that are no arrays of memory: NumPy's, JAX's, and objects that tell what they are.


def interface(address, **more):
    found = {"shape": (S, S), "typestr": "<f4", "data": (address, False), "version": 3}
    return found | more


def null_array():
    return np.asarray(SimpleNamespace(__array_interface__=interface(64)))


def on_device(kind):
    return SimpleNamespace(
        __dlpack_device__=lambda: (kind, 0), __dlpack__=lambda **options: ones().__dlpack__()
    )


def of_cuda(*arguments, **more):
    return SimpleNamespace(__cuda_array_interface__=interface(*arguments, **more))


NOT_MEMORY = {
    "null": null_array,
    "null behind DLPack": lambda: DlpackOnly(null_array()),
    "null interface": lambda: of_cuda(0),
    "masked": lambda: np.ma.masked_array(ones(), ones() > 0),
    "masked interface": lambda: of_cuda(1 << 20, mask=ones()),
    **{f"DLPack device {kind}": lambda kind=kind: on_device(kind) for kind in (4, 7, 8, 10, 14)},
}


@simulated
@pytest.mark.parametrize("kind", NOT_MEMORY.values(), ids=NOT_MEMORY)
@cases(
    READING,
    {name: role for name, role in WRITING.items() if "matmul" not in name and "reduc" not in name},
    OTHER,
)
def test_what_is_no_memory_is_refused_in_every_role(kind, role):
    assert_refused(role, kind(), ones(), errors.ArrayTypeError)


# JAX, whose arrays never change.


@pytest.fixture(scope="module")
def jnp():
    jax = pytest.importorskip("jax", reason="needs jax")
    if not simulator_enabled() and jax.default_backend() != "gpu":
        pytest.skip("jax was installed without its GPU plugin")
    return jax.numpy


@simulated
@cases(READING)
def test_arrays_of_jax_are_read(jnp, role):
    x = jnp.full((S, S), 2, "float32")
    expected = role(np.full((S, S), 2, np.float32), ones())
    np.testing.assert_array_equal(np.asarray(role(x, ones())), expected)
    np.testing.assert_array_equal(np.asarray(x), np.full((S, S), 2))


@simulated
@cases(WRITING)
def test_arrays_of_jax_are_not_written(jnp, role):
    x = jnp.full((S, S), 2, "float32")
    assert_refused(role, x, ones(), errors.ReadOnlyError)
    np.testing.assert_array_equal(np.asarray(x), np.full((S, S), 2))


def test_results_of_arrays_of_jax_are_arrays_of_jax(jnp):
    import jax

    x, y = (jnp.full((S, S), value, "float32") for value in (1, 3))
    found = [
        dxgemm.gemm(x, y),
        dxgemm.gemm(x, y, epilogue=residual(y)),
        dxgemm.matmul(x[None, None], y)[0, 0],
        dxgemm.gemm_symmetric(x),
        dxgemm.gemm_grouped([x], [y])[0],
        dxgemm.gemm(x, y, epilogue=reductions.argmax(1)),
        dxgemm.gemm(x[:0], y),
        dxgemm.gemm(*(z.astype("bfloat16") for z in (x, y))),
        *dxgemm.gemm(x, y, epilogue=reductions.largest(2)),
    ]
    assert all(isinstance(result, jax.Array) for result in found)
    assert [float(result.astype("float32").sum()) for result in found] == [
        24 * 64, 27 * 64, 24 * 64, 8 * 64, 24 * 64, 0, 0, 24 * 64, 48, 1,
    ]  # fmt: skip
    assert found[5].dtype == "int64"


def test_a_plan_has_no_result_in_jax(jnp):
    x = jnp.ones((S, S), "float32")
    with pytest.raises(errors.ReadOnlyError, match=r"plan: .* pass out="):
        dxgemm.plan(x, x)
    with pytest.raises(errors.ReadOnlyError, match=r"plan_grouped: .* pass out="):
        dxgemm.plan_grouped([x], [x])


@simulated
@cases(READING)
def test_deleted_and_traced_arrays_of_jax_are_refused(jnp, role):
    import jax

    deleted = jnp.full((S, S), 2, "float32")
    deleted.delete()
    assert_refused(role, deleted, ones(), errors.ArrayTypeError)
    with pytest.raises(errors.ArrayTypeError):
        jax.jit(lambda x: role(x, ones()))(ones())


# Exports: one for each operand and call, which lives until the launch has run.


class Overwritten(np.ndarray):
    """Array whose memory is overwritten when it is freed."""

    def __del__(self):
        if self.base is None:
            self.fill(np.nan)


class Temporary:
    """Array that makes each of its exports anew."""

    def __init__(self, values):
        self.values = values
        self.exports = 0

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **options):
        self.exports += 1
        export = Overwritten(self.values.shape, self.values.dtype)
        export[...] = self.values
        return export.__dlpack__(**options)


@simulated
@cases(READING)
def test_a_temporary_export_lives_until_the_launch(role):
    values = np.arange(S * S, dtype=np.float32).reshape(S, S)
    x = Temporary(values)
    np.testing.assert_array_equal(np.asarray(role(x, ones())), role(values, ones()))
    assert x.exports == 1


@simulated
@cases({name: role for name, role in WRITING.items() if "matmul" not in name})
def test_a_read_only_export_is_not_written(role):
    values = ones()[0] if role is WRITING["out of a reduction"] else ones()
    values.flags.writeable = False
    x = DlpackOnly(values)
    if role is WRITING["out of a reduction"]:
        x = [x]
    with pytest.raises(errors.ReadOnlyError):
        role(x, ones())
    np.testing.assert_array_equal(values, 1)


@simulated
def test_an_object_that_is_written_is_returned():
    target, kept = ones(), ones()
    out = DlpackOnly(target)
    epilogue = keep(kept=DlpackOnly(kept))
    assert dxgemm.gemm(ones(), DlpackOnly(ones()), out=out, epilogue=epilogue) is out
    np.testing.assert_array_equal((target, kept), S)
    [found] = dxgemm.gemm_grouped([ones()], [ones()], out=[out])
    assert found is out
    out_rows = np.arange(S)[::-1].copy()
    result = dxgemm.gemm_grouped(
        DlpackOnly(np.arange(S * S, dtype=np.float32).reshape(S, S)),
        DlpackOnly(np.eye(S, dtype=np.float32)[None]),
        offsets=DlpackOnly(np.array([3])),
        out_rows=DlpackOnly(out_rows),
        out=out,
    )
    assert result is out
    assert target[-1].tolist() == list(range(S))


class Kept:
    """Stands for an export."""


def test_what_is_kept_lives_until_its_event_has_come(monkeypatch):
    run = threading.Event()
    calls = []

    def answer(name, wait=False):
        def call(*arguments):
            calls.append((name, *arguments))
            if wait:
                assert run.wait(30)
            return (0, "event")

        return call

    driver = SimpleNamespace(
        CUevent_flags=SimpleNamespace(CU_EVENT_DISABLE_TIMING=2, CU_EVENT_BLOCKING_SYNC=1),
        cuEventCreate=answer("create"),
        cuEventRecord=answer("record"),
        cuEventSynchronize=answer("synchronize", wait=True),
        cuEventDestroy=answer("destroy"),
    )
    monkeypatch.setattr(device, "driver_api", lambda: driver)
    monkeypatch.setattr(exports, "driver_api", lambda: driver)
    monkeypatch.setattr(exports, "current_device", lambda ordinal: nullcontext())
    monkeypatch.setattr(exports, "outside_capture", nullcontext)
    kept = Kept()
    is_alive = weakref.ref(kept)
    exports.keep_until_done(kept, 5, 0)
    del kept
    gc.collect()
    assert is_alive() is not None
    run.set()
    end = time.monotonic() + 30
    while is_alive() is not None:
        assert time.monotonic() < end
        time.sleep(0.001)
    names = [name for name, *_ in calls]
    assert names == ["create", "record", "synchronize", "destroy"]
    assert calls[1] == ("record", "event", 5)


# Dimensions of one element, and arrays without elements, have any strides and any address.


def odd(values):
    """Copy of an array, whose strides are odd along dimensions of one element."""
    buffer = np.zeros(values.nbytes + 64, np.uint8)
    start = -buffer.ctypes.data % 16 + (values.size == 0)
    copy = buffer[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    strides = [
        3 if size == 1 or not values.size else stride
        for size, stride in zip(copy.shape, copy.strides)
    ]
    return np.lib.stride_tricks.as_strided(copy, copy.shape, strides)


def integers(*shape):
    return np.random.default_rng(1).integers(-3, 4, shape).astype(np.float32)


@simulated
@pytest.mark.parametrize("sizes", [(1, 5, 3), (4, 1, 3), (4, 5, 1), (1, 1, 1), (0, 5, 3)], ids=str)
def test_strides_of_one_element_mean_nothing(sizes):
    m, n, k = sizes
    a, b, c, row = integers(m, k), integers(k, n), integers(m, n), integers(n)
    out, kept = odd(c), odd(c)
    epilogue = residual(odd(c)) | dxgemm.epilogues.bias(odd(row)) | keep(kept=kept)
    found = dxgemm.gemm(odd(a), odd(b), odd(c), beta=1.0, out=out, epilogue=epilogue)
    assert found is out
    expected = a @ b + 2 * c + row
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(kept, expected)
    np.testing.assert_array_equal(dxgemm.gemm(odd(a[None]), odd(b)), (a @ b)[None])
    np.testing.assert_array_equal(dxgemm.gemm_symmetric(odd(a)), a @ a.T)
    [of_list] = dxgemm.gemm_grouped([odd(a)], [odd(b)], out=[odd(c)])
    np.testing.assert_array_equal(of_list, a @ b)
    for batch in ((), (1, 1), (2, 1), (1, 1, 2)):
        left = np.broadcast_to(a, (*batch, m, k)).copy()
        np.testing.assert_array_equal(dxgemm.matmul(odd(left), odd(b)), left @ b)
    np.testing.assert_array_equal(dxgemm.matmul(odd(a), odd(b[:, 0])), a @ b[:, 0])
    offsets, mask = odd(np.array([m])), odd(np.ones((-(-m // 128), -(-n // 128)), bool))
    np.testing.assert_array_equal(dxgemm.gemm_grouped(odd(a), odd(b[None]), offsets=offsets), a @ b)
    np.testing.assert_array_equal(dxgemm.gemm(odd(a), odd(b), mask=mask), a @ b)
    if m:
        rows = odd(np.zeros(4, np.int64))
        np.testing.assert_array_equal(
            dxgemm.gemm_grouped(odd(a), odd(b[None]), offsets=odd(np.array([4])), rows=rows),
            (a @ b)[[0, 0, 0, 0]],
        )


# Tensors of torch.


def freed(torch, y):
    x = torch.ones((S + 1, S), device=y.device)[1:]
    x.untyped_storage().resize_(0)
    return x


def shrunk(torch, y):
    x = torch.ones_like(y)
    x.untyped_storage().resize_(16)
    return x


def fake(torch, y):
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(y)


def wrapped(torch, y):
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            options = {"dtype": inner.dtype, "device": inner.device}
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, **options)

        def __torch_dispatch__(self, *arguments):
            raise AssertionError("an operator was called")

    return Wrapper(y)


def masked(torch, y):
    from torch.masked import masked_tensor

    return masked_tensor(y, y > 0)


TENSORS = {
    "meta": lambda torch, y: torch.ones((S, S), device="meta"),
    "fake": fake,
    "functional": lambda torch, y: torch._to_functional_tensor(y),
    "wrapper": wrapped,
    "masked": masked,
    "freed": freed,
    "shrunk": shrunk,
    "zeros without memory": lambda torch, y: torch._efficientzerotensor((S, S), device=y.device),
    "sparse": lambda torch, y: y.to_sparse(),
    "sparse rows": lambda torch, y: y.to_sparse_csr(),
    "nested": lambda torch, y: torch.nested.nested_tensor([y, y[:3]]),
    "jagged": lambda torch, y: torch.nested.nested_tensor([y, y[:3]], layout=torch.jagged),
    "quantised": lambda torch, y: torch.quantize_per_tensor(y.cpu(), 1.0, 0, torch.qint8),
    "negation": lambda torch, y: torch._neg_view(y.clone()),
    "complex negation": lambda torch, y: torch._neg_view(y.to(torch.complex64).conj()),
}


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="needs torch")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize("device", [pytest.param("cpu", marks=simulated), ON_GPU])
def test_tensors_without_memory_of_their_own_are_refused(torch, kind, device):
    y = torch.ones((S, S), device=device)
    roles = {**READING, **WRITING, **OTHER}
    left = ("out of matmul", "out of a reduction", "out with out_rows")  # they index the tensor
    for role in (role for name, role in roles.items() if name not in left):
        with pytest.raises((errors.ArrayTypeError, errors.DtypeError)):
            role(TENSORS[kind](torch, y), y)
    assert dxgemm.gemm(y, y).cpu().unique().tolist() == [S]


@simulated
@pytest.mark.parametrize("kind", ["requires grad", "a tangent"])
@cases(READING, WRITING)
def test_tensors_with_derivatives_are_refused(torch, role, kind):
    from torch.autograd import forward_ad

    y = torch.ones((S, S))
    with forward_ad.dual_level():
        x = forward_ad.make_dual(y + 0, y) if kind == "a tangent" else (y + 0).requires_grad_()
        with pytest.raises(errors.ArrayTypeError, match=f"{kind}, and gemm is not differentiable"):
            role(x, y)
        role(x.detach().clone(), y)


@simulated
@pytest.mark.filterwarnings("ignore")
def test_torch_transforms_are_refused(torch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    y = torch.ones((S, S))
    calls = {
        "vmap": lambda: torch.vmap(lambda x: dxgemm.gemm(x, y))(y.expand(2, S, S)),
        "grad": lambda: torch.func.grad(lambda x: dxgemm.gemm(x, y).sum())(y),
        "jvp": lambda: torch.func.jvp(lambda x: dxgemm.gemm(x, y), (y,), (y,)),
        "functionalize": lambda: torch.func.functionalize(lambda x: dxgemm.gemm(x, y))(y),
    }
    for call in calls.values():
        with pytest.raises(errors.ArrayTypeError):
            call()
    with FakeTensorMode(allow_non_fake_inputs=True):  # in which new tensors are fake
        for call in (
            lambda: dxgemm.gemm(y, y),
            lambda: dxgemm.gemm(y, y, epilogue=reductions.sum()),
            lambda: dxgemm.gemm_grouped([y], [y]),
        ):
            with pytest.raises(errors.ArrayTypeError):
                call()
    assert dxgemm.gemm(y, y).unique().tolist() == [S]


@simulated
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["masked", "sparse", "sparse rows", "nested", "jagged"])
def test_operators_of_torch_refuse_what_is_not_dense(torch, kind):
    import dxgemm.torch

    y = torch.ones((S, S))
    x = TENSORS[kind](torch, y)
    for call in (
        lambda: dxgemm.torch.gemm(x, y),
        lambda: dxgemm.torch.gemm(y, y, x, beta=1.0),
        lambda: dxgemm.torch.matmul(y, x),
        lambda: dxgemm.torch.linear(x, y),
    ):
        with pytest.raises(errors.ArrayTypeError):
            call()


# On a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("stream", ["current", "other"])
def test_a_temporary_export_on_a_gpu_lives_until_the_launch_has_run(cupy, stream):
    class OfCupy:
        def __init__(self, array):
            self.array = array

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __dlpack__(self, *, stream=None, **options):
            return (self.array * 1).__dlpack__(stream=stream)

    rng = np.random.default_rng(0)
    a, b = (cupy.asarray(rng.integers(-3, 4, (512, 512)).astype(np.float32)) for _ in range(2))
    expected, out = (a @ b).get(), cupy.zeros((512, 512), np.float32)
    launch = None if stream == "current" else cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    for _ in range(20):
        dxgemm.gemm(OfCupy(a), OfCupy(b), out=out, stream=launch)
        cupy.full((512, 512), 9, np.float32)  # takes what the pool has
        cupy.full((512, 512), 9, np.float32)
        cupy.cuda.Device().synchronize()
        np.testing.assert_array_equal(out.get(), expected)


@pytest.mark.gpu
def test_arrays_of_jax_on_a_gpu(jnp, cupy):
    import jax

    rng = np.random.default_rng(0)
    x, y = (rng.integers(-3, 4, (256, 256)).astype(np.float32) for _ in range(2))
    a, b = jnp.asarray(x), jnp.asarray(y)
    assert exports._exported("a", a, 0).layout.device == 0, "the array is on the GPU"
    for _ in range(20):
        found = dxgemm.gemm(a * 1, b * 1)
        assert isinstance(found, jax.Array)
        np.testing.assert_array_equal(np.asarray(found + 1), x @ y + 1)
    np.testing.assert_array_equal(np.asarray(dxgemm.matmul(a[None, None], b)[0, 0]), x @ y)
    np.testing.assert_array_equal(np.asarray(dxgemm.gemm_grouped([a], [b])[0]), x @ y)
    indices = dxgemm.gemm(a, b, epilogue=reductions.argmax(1))
    np.testing.assert_array_equal(np.asarray(indices), (x @ y).argmax(1))
    out = cupy.zeros((256, 256), np.float32)
    assert dxgemm.gemm(a, cupy.asarray(y), out=out) is out
    np.testing.assert_array_equal(out.get(), x @ y)
    for name in ("out", "c in place", "output", "out of a list"):
        with pytest.raises(errors.ReadOnlyError):
            WRITING[name](jnp.ones((S, S), "float32"), cupy.ones((S, S), np.float32))
    plan = dxgemm.plan(a, b, out=out)
    for _ in range(3):
        out.fill(0)
        np.testing.assert_array_equal(plan().get(), x @ y)


@pytest.mark.gpu
def test_a_captured_call_refuses_an_export_that_only_a_plan_keeps(cupy):
    a, b = (cupy.ones((S, S), np.float32) for _ in range(2))
    out = cupy.zeros_like(a)
    dxgemm.gemm(DlpackOnly(a), b, out=out)
    plan = dxgemm.plan(DlpackOnly(a), b, out=out)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        with pytest.raises(errors.LaunchError, match="plan"):
            dxgemm.gemm(DlpackOnly(a), b, out=out)
        plan()
        graph = stream.end_capture()
        out.fill(0)
        graph.launch(stream)
        stream.synchronize()
    np.testing.assert_array_equal(out.get(), S)


@pytest.mark.gpu
@several_gpus
@pytest.mark.parametrize("allocation", ["pool", "managed", "view"])
def test_arrays_of_cupy_on_a_gpu_that_is_not_current(cupy, allocation):
    x = np.random.default_rng(0).integers(-3, 4, (300, 300)).astype(np.float64)
    with cupy.cuda.Device(1):
        if allocation == "managed":
            memory = cupy.cuda.malloc_managed(x.nbytes)
            a = cupy.ndarray(x.shape, x.dtype, memory)
            a[...] = cupy.asarray(x)
        else:
            a = cupy.asarray(x)
        a = a[:] if allocation == "view" else a
        cupy.cuda.Device().synchronize()
    with cupy.cuda.Device(0), cupy.cuda.Stream(non_blocking=True):
        found = [
            dxgemm.gemm(a, a),
            dxgemm.gemm_grouped([a], [a])[0],
            dxgemm.gemm(a, a, epilogue=reductions.max()),
        ]
        assert all(result.device.id == 1 for result in found)
    with cupy.cuda.Device(1):
        cupy.cuda.Device().synchronize()
        for result in found[:2]:
            np.testing.assert_array_equal(result.get(), x @ x)
        assert found[2].get() == (x @ x).max()
