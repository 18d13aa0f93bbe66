"""Elements that are not computed keep every bit: in c, out and auxiliary outputs, in any memory.

Operands in host memory are copied to the GPU and back. Without a GPU, a made-up driver has a memory
of its own, full of other numbers, and the kernels run on the simulator.
"""

import ctypes
from itertools import cycle
from types import SimpleNamespace

import numpy as np
import pytest
from contract import inability
from oracle.kinds import KINDS, numpy_dtype
from oracle.libraries import LIBRARIES
from oracle.padded import Padded

import dxgemm
from dxgemm.call import resolve, route
from dxgemm.epilogues import keep
from dxgemm.gpu.status import simulator_enabled
from dxgemm.runtime import capture, device, host, memory
from dxgemm.runtime.device import device_facts

STALE = 0xA5  # each byte of the made-up memory
BLOCK = 64  # of a mask
SIZES = (66, 3) if simulator_enabled() else (300, 200)
SIDE = 7 if simulator_enabled() else 300  # of a symmetric result


class SeparateMemory:
    """Driver whose device memory is apart from that of the host, and never 0."""

    CUresult = SimpleNamespace(
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT="implicit",
        CUDA_ERROR_NOT_INITIALIZED="not initialized",
        CUDA_ERROR_OUT_OF_MEMORY="no memory",
    )
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed")
    CUstreamCaptureStatus = SimpleNamespace(CU_STREAM_CAPTURE_STATUS_NONE="none")

    def __init__(self):
        self.allocated = {}

    def cuCtxGetCurrent(self):
        return None, 1

    def cuThreadExchangeStreamCaptureMode(self, mode):
        return None, mode

    def cuStreamIsCapturing(self, stream):
        return None, "none"

    def cuStreamSynchronize(self, stream):
        return (None,)

    def cuMemAllocAsync(self, size, stream):
        memory = np.full(size, STALE, np.uint8)
        self.allocated[memory.ctypes.data] = memory
        return None, memory.ctypes.data

    def cuMemFreeAsync(self, pointer, stream):
        del self.allocated[pointer]
        return (None,)

    def copy(self, target, source, size, stream):
        ctypes.memmove(target, source, size)
        return (None,)

    cuMemcpyHtoDAsync = cuMemcpyDtoHAsync = copy


@pytest.fixture
def host_copies(monkeypatch):
    """Operands in host memory are copied to a device and back, a made-up one without a GPU."""
    if not simulator_enabled():
        yield
        return
    driver = SeparateMemory()
    for module in (capture, device, host, memory):
        monkeypatch.setattr(module, "driver_api", lambda: driver)
    monkeypatch.setattr(device, "_primary_context", lambda ordinal: 1)
    monkeypatch.setattr(resolve, "simulator_enabled", lambda: False)
    route.clear_routes()
    yield
    route.clear_routes()
    assert not driver.allocated


@pytest.fixture(params=["host", "device"])
def library(request, home):
    """Library whose arrays a call writes to."""
    if request.param == "device":
        return home
    request.getfixturevalue("host_copies")
    return LIBRARIES["numpy"]


@pytest.fixture
def draw(library):
    """Draws an operand of small integers, whose sums are exact, between guards."""
    rng = np.random.default_rng(0)

    def draw(shape, dtype, layout="row"):
        values = rng.integers(-3, 4, shape)
        if dtype.startswith("complex"):
            values = values + 1j * rng.integers(-3, 4, shape)
        values = values.astype(numpy_dtype(dtype))
        return values, Padded(library, values, layout)

    return draw


def assert_only(live, padded, before, expected):
    """Assert that live elements are as expected, and that no other byte of the memory changed."""
    found, live = padded.fetch(), np.broadcast_to(live, before.shape)
    assert (found[live] == expected.astype(before.dtype)[live]).all()
    assert found[~live].tobytes() == before[~live].tobytes()


def wide(values):
    return values.astype(complex if values.dtype.kind == "c" else float)


CASES = {
    "float32": {},
    "float64": {"dtype": "float64"},
    "bfloat16": {"dtype": "bfloat16"},
    "tf32": {"precision": "tf32"},
    "into float32": {"dtype": "float16", "out_dtype": "float32", "kept_dtype": "float16"},
    "int8": {"dtype": "int8", "out_dtype": "int8", "kept_dtype": "float32"},
    "column-major": {"layout": "col"},
    "gaps": {"layout": "row/2"},
    "reversed": {"layout": "rows_reversed"},
    "batch": {"batch": (2,)},
    "k is 0": {"k": 0},
    "c is read": {"beta": 2.0},
    "in place": {"beta": -1.0, "in_place": True},
    "alpha is 0": {"alpha": 0.0, "in_place": True},
}


def case_of(wanted):
    dtype = wanted.get("dtype", "float32")
    out_dtype = wanted.get("out_dtype", dtype)
    defaults = {
        "dtype": dtype, "out_dtype": out_dtype, "kept_dtype": out_dtype, "precision": None,
        "layout": "row", "batch": (), "k": 3, "alpha": 1.0, "beta": 0.0, "in_place": False,
    }  # fmt: skip
    return SimpleNamespace(**{**defaults, **wanted})


def targets(draw, case, shape):
    """Arguments c, alpha, beta and out of a call; the written array, and its values before."""
    before, out = draw(shape, case.out_dtype, case.layout)
    if case.in_place:
        return (out.array, case.alpha, case.beta), {}, out, before, before
    c, sent = draw(shape, case.out_dtype)
    c_argument = sent.array if case.beta else None
    return (c_argument, case.alpha, case.beta), {"out": out.array}, out, before, c


@pytest.mark.parametrize("wanted", CASES.values(), ids=CASES)
def test_dead_blocks(draw, library, wanted):
    case, (m, n) = case_of(wanted), SIZES
    (a, sent_a), (b, sent_b) = (
        draw((*case.batch, m, case.k), case.dtype),
        draw((case.k, n), case.dtype),
    )
    shape = (*case.batch, m, n)
    scalars, options, out, before, c = targets(draw, case, shape)
    kept_before, kept = draw(shape, case.kept_dtype, case.layout)
    mask = np.arange(-(-m // BLOCK) * -(-n // BLOCK)).reshape(-1, -(-n // BLOCK)) % 2 == 0
    options |= {"mask": library.send(mask), "precision": case.precision}
    dxgemm.gemm(sent_a.array, sent_b.array, *scalars, epilogue=keep(kept=kept.array), **options)
    expected = case.alpha * (wide(a) @ wide(b)) + case.beta * wide(c)
    live = np.kron(mask, np.ones((BLOCK, BLOCK)))[:m, :n] != 0
    assert_only(live, out, before, expected)
    assert_only(live, kept, kept_before, expected)


SYMMETRIC = [name for name in CASES if name != "int8"]  # whose results are written whole


@pytest.mark.parametrize(
    "name, triangle", [*zip(SYMMETRIC, cycle(["lower", "upper"]))], ids=SYMMETRIC
)
def test_the_other_triangle(draw, name, triangle):
    case, n = case_of(CASES[name]), SIDE
    live = np.tri(n, dtype=bool) if triangle == "lower" else np.tri(n, dtype=bool).T
    shape = (*case.batch, n, n)
    a, sent_a = draw((*case.batch, n, case.k), case.dtype)
    b, sent_b = draw((n, case.k), case.dtype)
    for is_summed in (False, True):
        scalars, options, out, before, c = targets(draw, case, shape)
        kept_before, kept = draw(shape, case.kept_dtype, case.layout)
        dxgemm.gemm_symmetric(
            sent_a.array, *scalars, b=sent_b.array if is_summed else None, triangle=triangle,
            epilogue=keep(kept=kept.array), precision=case.precision, **options,
        )  # fmt: skip
        product = wide(a) @ wide(b if is_summed else a).swapaxes(-1, -2)
        product = product + product.swapaxes(-1, -2) if is_summed else product
        expected = case.alpha * product + case.beta * wide(c)
        assert_only(live, out, before, expected)
        assert_only(live, kept, kept_before, expected)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("triangle", ["lower", "upper"])
def test_the_other_triangle_of_a_hermitian_result(library, dtype, triangle):
    live = np.tri(SIDE, dtype=bool) if triangle == "lower" else np.tri(SIDE, dtype=bool).T
    a = (np.arange(4 * SIDE).reshape(SIDE, 4) % 5 * (1 + 2j)).astype(dtype)
    for is_turned in (False, True):
        out, kept = (library.send(np.full((SIDE, SIDE), -7j, dtype)) for _ in range(2))
        out, kept = (out.T, kept.T) if is_turned else (out, kept)
        sent, epilogue = library.send(a), keep(kept=kept)
        dxgemm.gemm_symmetric(sent, out=out, triangle=triangle, epilogue=epilogue)
        for found in map(library.fetch, (out, kept)):
            assert (found == np.where(live, a @ a.conj().T, np.complex64(-7j))).all()


@pytest.mark.parametrize("in_order", [False, True], ids=["out_rows", "rows in order"])
def test_rows_beyond_the_last_offset(draw, library, in_order):
    (a, sent_a), (b, sent_b) = draw((9, 8), "float16"), draw((3, 8, 16), "float16")
    (before, out), (kept_before, kept) = (draw((12, 16), "float16") for _ in range(2))
    offsets, rows = np.int32([2, 2, 6]), np.int32([4, 0, 11, -1, 7, 99, 2, 9, 1])
    options = {"epilogue": keep(kept=kept.array[:9])} if is_fused(library) else {}
    sums = np.concatenate([a[:2] @ b[0], a[2:6] @ b[2]])
    if in_order:
        options["out"] = out.array[:9]
        written, live = range(6), np.arange(12) < 6
    else:
        options |= {"out": out.array, "out_rows": library.send(rows)}
        written = [line for line in rows[:6] if 0 <= line < 12]
        live = np.isin(np.arange(12), written)
        sums_of = [row for row, line in enumerate(rows[:6]) if 0 <= line < 12]
    expected = np.zeros((12, 16))
    expected[list(written)] = sums if in_order else sums[sums_of]
    dxgemm.gemm_grouped(sent_a.array, sent_b.array, offsets=library.send(offsets), **options)
    assert_only(live[:, None], out, before, expected)
    expected = np.concatenate([sums, np.zeros((6, 16))])
    is_kept = (np.arange(12) < 6) & bool(options.get("epilogue"))
    assert_only(is_kept[:, None], kept, kept_before, expected)


def is_fused(library):
    """True if a group in float16 takes an epilogue: in host memory, or on a GPU that has wgmma."""
    return library.name == "numpy" or device_facts(0).arch == "sm_90a"


def test_a_group_of_lists(draw):
    """Empty problems, and what is between the matrices of a group, stay as they are."""
    sizes = ((5, 0, 3), (0, 4, 2), (4, 6, 0), (3, 2, 5))
    a, b = (
        [draw(s, "float32") for s in shapes]
        for shapes in zip(*(((m, k), (k, n)) for m, n, k in sizes))
    )
    outs = [draw((m, n), "float32", "row/2") for m, n, _ in sizes]
    dxgemm.gemm_grouped(
        [x.array for _, x in a], [x.array for _, x in b], out=[x.array for _, x in outs]
    )
    for (x, _), (y, _), (before, out) in zip(a, b, outs):
        assert_only(True, out, before, x @ y)


def test_torch_tensors_in_host_memory(host_copies):
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16):
        a, b = torch.ones((66, 4), dtype=dtype), torch.ones((4, 3), dtype=dtype)
        out, kept = (torch.full((3, 66), 7.0, dtype=dtype).T for _ in range(2))
        mask = torch.tensor([[False], [True]])
        dxgemm.gemm(a, b, out=out, mask=mask, epilogue=keep(kept=kept))
        for found in (out, kept):
            assert (found[:64] == 7).all() and (found[64:] == 4).all()


FIRST_CONFIGS = [
    pytest.param(implementation, kind, id=f"{implementation.name}-{kind}")
    for implementation in dxgemm.implementations()
    if implementation.is_own
    and (implementation.kernel.takes_masks or implementation.kernel.takes_triangles)
    for kind in KINDS
    if inability(implementation, kind) is None
]


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["device"], indirect=True)
@pytest.mark.parametrize("implementation, kind", FIRST_CONFIGS)
def test_outputs_of_every_kernel(draw, library, implementation, kind):
    wanted, kernel, done = KINDS[kind], implementation.kernel, 0
    options = {"precision": wanted.precision, "implementation": implementation.name}
    m, n, k = 300, 200, 64
    (a, sent_a), (b, sent_b) = (
        draw((m, k), wanted.dtype, "row_aligned"),
        draw((k, n), wanted.dtype, "col_aligned"),
    )
    for layout in ("row_aligned", "row", "col"):
        if kernel.takes_masks:
            (before, out), (kept_before, kept) = (
                draw((m, n), wanted.out_dtype, layout) for _ in range(2)
            )
            mask = np.arange(6).reshape(3, 2) % 3 != 1
            live = np.kron(mask, np.ones((128, 128)))[:m, :n] != 0
            epilogue = keep(kept=kept.array)
            dxgemm.gemm(
                sent_a.array, sent_b.array, out=out.array, mask=library.send(mask),
                epilogue=epilogue, **options,
            )  # fmt: skip
            expected = wide(a) @ wide(b)
            assert_only(live, out, before, expected)
            assert_only(live, kept, kept_before, expected)
            done += 1
        if kernel.takes_triangles and not wanted.is_integer:
            (before, out), (kept_before, kept) = (
                draw((m, m), wanted.out_dtype, layout) for _ in range(2)
            )
            epilogue = keep(kept=kept.array)
            dxgemm.gemm_symmetric(
                sent_a.array, out=out.array, triangle="lower", epilogue=epilogue, **options
            )
            assert_only(np.tri(m, dtype=bool), out, before, wide(a) @ wide(a).T)
            assert_only(np.tri(m, dtype=bool), kept, kept_before, wide(a) @ wide(a).T)
            done += 1
    assert done
