"""Complex operands: the rules of `gemm` on real and imaginary parts."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from complex_operands import (
    CALLS,
    DTYPES,
    IS_SIMULATED,
    ORDERS,
    check,
    check_errors,
    check_plan,
    check_rows,
    check_special_values,
    check_unread,
    conjugated,
    integers,
    normal,
    put,
)

import dxgemm
from dxgemm import errors
from dxgemm.call.route import clear_routes
from dxgemm.handwritten.kernels import complex_copy
from dxgemm.lower.ahead import complex_specs
from dxgemm.problem.complex_form import START_BYTES, real_form, real_forms
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.dtypes import COMPLEX_PARTS
from dxgemm.problem.layout import Layout, Strides
from dxgemm.runtime.arrays import HOST, host_view
from dxgemm.runtime.host import device_copy_layout

SIZES = [(5, 6, 4), (1, 7, 3), (9, 5, 0)]
if not IS_SIMULATED:
    SIZES += [(4, 1, 5), (3, 3, 1), (1, 1, 1)]
    SIZES += [(130, 67, 33), (64, 128, 96), (1, 300, 257), (255, 2, 129), (300, 1, 300)]
LAYOUTS = ORDERS[:: 7 if IS_SIMULATED else 1]
# alpha, beta, and what is conjugated.


def permitted(dtype, precision):
    """Options by which a precision is not only permitted but computed, small as a product is."""
    names = {"3m": "tuned", "emulated": f"emulated_{COMPLEX_PARTS[dtype]}"}
    implementation = None if IS_SIMULATED else names.get(precision)
    return {"precision": precision, "implementation": implementation}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layouts", LAYOUTS, ids="".join)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("precision", [None, "3m"])
def test_products_of_integers_are_exact(home, dtype, layouts, sizes, precision):
    if (precision or sizes[2] == 0) and layouts not in LAYOUTS[::3]:
        pytest.skip("its kernels read any strides in the same way, or neither a nor b")
    calls = CALLS[(LAYOUTS.index(layouts) + sizes[0]) % 2 :: 2] if IS_SIMULATED else CALLS
    check(home, dtype, sizes, layouts, calls, batch=None, **permitted(dtype, precision))


@pytest.fixture(params=range(3), ids=["expanded", "exchanged", "parted"])
def number(request, monkeypatch):
    """Number of the form of each product, wherever there is one."""

    def numbered(problem, conjugates, *, is_any=True):
        forms = real_forms(problem, conjugates)
        return forms[min(request.param, len(forms) - 1)]

    clear_routes()
    monkeypatch.setattr("dxgemm.call.complex_call.real_form", numbered)
    monkeypatch.setattr("dxgemm.call.complex_call._is_direct", lambda problem, arch: False)
    yield request.param
    clear_routes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layouts", LAYOUTS[::5], ids="".join)
@pytest.mark.parametrize("sizes", SIZES[:1] + SIZES[4:], ids=str)
def test_every_form_is_exact(home, number, dtype, layouts, sizes):
    check(home, dtype, sizes, layouts, CALLS[:: 2 if IS_SIMULATED else 1], batch=None)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", "CF")
def test_every_form_takes_batches(home, number, dtype, order):
    a, b = integers((3, 5, 4), dtype, 1), integers((4, 6), dtype, 2)
    c = integers((3, 5, 6), dtype, 3)
    for left, right in ((a, b), (b.T, a.swapaxes(-1, -2))):
        addend = c if left is a else c.swapaxes(-1, -2)
        sent = home.send(np.array(left, order=order)), home.send(np.array(right, order=order))
        result = dxgemm.gemm(*sent, home.send(addend.copy()), 1j, 1 - 2j, conjugate="b")
        used = dxgemm.explain(*sent, home.send(addend.copy()), 1j, 1 - 2j, conjugate="b")
        assert number != 2 or order == "F" or "in parts" in used.work.complex_form
        np.testing.assert_array_equal(
            home.fetch(result), 1j * (left @ right.conj()) + (1 - 2j) * addend
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_form_keeps_special_values_apart(home, number, dtype):
    for layouts in LAYOUTS[::4]:
        check_special_values(home, dtype, layouts)
    for layout in "CFs":
        check_unread(home, dtype, layout)


@pytest.mark.parametrize(
    ("sizes", "b_layout", "words"),
    [
        ((4096, 4096, 4096), "row", "b expanded"),
        ((4096, 8, 4096), "row", "b expanded"),
        ((8, 4096, 4096), "row", "a in parts"),
        ((8, 4096, 4096), "col", "b expanded, the result to its place"),
        ((8, 8, 8), "row", "b expanded"),
    ],
)
def test_the_larger_operand_is_read_once(sizes, b_layout, words):
    m, n, k = sizes
    problem = contiguous_problem("complex64", m, n, k, layout=f"row_{b_layout}")
    form = real_form(problem, "")
    assert str(form).endswith(words)
    least = problem.bytes_moved + 2 * START_BYTES
    assert form.cost_bytes <= 6 * least
    if m == 8 < n:
        assert form.cost_bytes <= 1.1 * least
        assert form.problem.is_transposed == (b_layout == "col")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("a_batch", "b_batch"), [((), (3,)), ((3,), ()), ((3,), (3,)), ((1,), (3,))]
)
def test_batches_are_broadcast(home, dtype, a_batch, b_batch):
    a, b = integers((*a_batch, 5, 4), dtype, 1), integers((*b_batch, 4, 6), dtype, 2)
    c = integers((3, 5, 6), dtype, 3)
    for order, precision in [*product("CF", (None, "3m"))][:: 3 if IS_SIMULATED else 1]:
        sent = home.send(a), home.send(b)
        if order == "F":
            sent = tuple(home.send(x.swapaxes(-1, -2).copy()).swapaxes(-1, -2) for x in (a, b))
        call = *sent, home.send(c), 1j, 2
        result = dxgemm.gemm(*call, conjugate="b", **permitted(dtype, precision))
        np.testing.assert_array_equal(home.fetch(result), 1j * (a @ b.conj()) + 2 * c)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shapes",
    [((4,), (4,)), ((4,), (4, 6)), ((5, 4), (4,)), ((2, 1, 5, 4), (3, 4, 6)), ((2, 3, 4), (4,))],
)
def test_matmul(home, dtype, shapes):
    a, b = (integers(shape, dtype) for shape in shapes)
    result = dxgemm.matmul(home.send(a), home.send(b), conjugate="a")
    np.testing.assert_array_equal(home.fetch(result), np.matmul(a.conj(), b))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layouts", LAYOUTS[::2], ids="".join)
def test_special_values_stay_in_their_components(home, dtype, layouts):
    check_special_values(home, dtype, layouts)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", "CFs")
def test_what_is_not_read_does_not_leak(home, dtype, layout):
    check_unread(home, dtype, layout)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_plan_reads_its_arrays_anew(home, dtype):
    plan = check_plan(home, dtype, implementation="naive")
    assert "b expanded" in plan.explain().work.complex_form
    a = home.send(integers((4, 4), dtype))
    explained = dxgemm.explain(a, a, **permitted(dtype, "3m"))
    assert "three products" in explained.work.complex_form


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["row_row", "col_col"])
def test_explain_shape_is_that_of_the_call(home, dtype, layout):
    a, b = (home.send(np.zeros(shape, dtype)) for shape in ((6, 4), (4, 5)))
    if layout == "col_col":
        a, b = (home.send(np.zeros(shape, dtype)).T for shape in ((4, 6), (5, 4)))
    for options in ({}, {"batch_invariant": True}, {"precision": "3m"}):
        dxgemm.gemm(a, b, **options)  # builds the kernel, whose registers both tell then
        explained = dxgemm.explain_shape(6, 5, 4, dtype, layout=layout, **options)
        assert explained == dxgemm.explain(a, b, **options)
        assert explained.work.complex_form is not None
    with pytest.raises(errors.DtypeError, match="out_dtype is 'float32'"):
        dxgemm.explain_shape(6, 5, 4, dtype, out_dtype="float32")


@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_invariant_rows_have_the_same_bits(home, dtype):
    check_rows(home, dtype, (6, 5, 40) if IS_SIMULATED else (130, 67, 1000))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("triangle", ["both", "lower", "upper"])
@pytest.mark.parametrize("transpose", [False, True])
def test_hermitian_results_are_exact(home, dtype, triangle, transpose):
    sizes = [(5, 4), (1, 7), (4, 0)]
    if not IS_SIMULATED:
        sizes += [(9, 3), (6, 1), (130, 67), (257, 300), (64, 1000)]
    for n, k in sizes:
        keep = {"both": np.ones((n, n), bool), "lower": np.tri(n) > 0, "upper": np.tri(n).T > 0}
        a = integers((k, n) if transpose else (n, k), dtype, 1)
        c = integers((n, n), dtype, 2)
        c = (c + c.conj().T).astype(dtype)
        gram = a.conj().T @ a if transpose else a @ a.conj().T
        for a_layout, c_layout in ("CF", "FC", "sC"):
            a_sent, _ = put(home, a, a_layout)
            sent, _ = put(home, c, c_layout)
            dxgemm.gemm_symmetric(a_sent, sent, 2, -3, transpose=transpose, triangle=triangle)
            wanted = np.where(keep[triangle], 2 * gram - 3 * c, c)
            np.testing.assert_array_equal(home.fetch(sent), wanted)
            if triangle == "both":
                new = dxgemm.gemm_symmetric(a_sent, transpose=transpose)
                np.testing.assert_array_equal(home.fetch(new), gram)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("precision", ["3m", "emulated"])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("sizes", [(130, 67), (257, 300), (600, 1000)])
def test_hermitian_results_of_every_precision(home, dtype, precision, transpose, sizes):
    n, k = sizes
    a = integers((k, n) if transpose else (n, k), dtype, 1)
    gram = a.conj().T @ a if transpose else a @ a.conj().T
    for triangle, keeps in (("both", np.ones((n, n), bool)), ("upper", np.tri(n).T > 0)):
        out = home.send(np.zeros((n, n), dtype))
        dxgemm.gemm_symmetric(
            home.send(a), transpose=transpose, triangle=triangle, precision=precision, out=out
        )
        np.testing.assert_array_equal(home.fetch(out), np.where(keeps, gram, 0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_hermitian_result_is_so_bit_for_bit(home, dtype):
    n, k = (7, 30) if IS_SIMULATED else (200, 1000)
    (a,) = normal((n, k), dtype=dtype)
    found = home.fetch(dxgemm.gemm_symmetric(home.send(a), alpha=0.3))
    assert (found == found.conj().T).all() and (found.diagonal().imag == 0).all()
    np.testing.assert_allclose(found, 0.3 * (a @ a.conj().T), rtol=0, atol=k * 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("precision", [None, "3m"])
def test_arrays_in_host_memory(dtype, precision):
    """On a GPU they are copied, whatever they are the conjugates of."""
    a, b, c = (integers((5, 5), dtype, seed) for seed in range(3))
    kept = c.copy()
    dxgemm.gemm(a, b.T, c, 1j, 2, conjugate="ab", **permitted(dtype, precision))
    np.testing.assert_array_equal(c, 1j * (a.conj() @ b.T.conj()) + 2 * kept)
    c = (kept + kept.conj().T).astype(dtype)
    kept = c.copy()
    dxgemm.gemm_symmetric(a, c, 2, 3, transpose=True, triangle="upper")
    wanted = 2 * (a.conj().T @ a) + 3 * kept
    np.testing.assert_array_equal(c, np.where(np.tri(5).T > 0, wanted, kept))


def test_real_operands_have_no_conjugate(home):
    a, b = (home.send(np.ones(shape, "float32")) for shape in ((2, 3), (3, 2)))
    assert (home.fetch(dxgemm.gemm(a, b, conjugate="ab")) == 3).all()


def test_bad_calls_write_nothing(home):
    a, b = (home.send(integers(shape, "complex64")) for shape in ((4, 4), (4, 4)))
    c, real = home.send(np.full((4, 4), 5, "complex64")), home.send(np.ones((4, 4), "float32"))
    for operands, options, error, words in (
        ((a, real, c), {}, errors.DtypeError, "dtypes differ"),
        ((a, b, real), {}, errors.DtypeError, "c must be complex64"),
        ((real, real, None, 1j), {}, errors.ScalarError, "must be a real number"),
        ((a, b, c, 1e300j), {}, errors.ScalarError, "overflows float32"),
        ((a, b, c, "i"), {}, errors.ScalarError, "must be a"),
        ((a, b, c), {"conjugate": "c"}, errors.SettingError, "pass '' or 'a' or 'b' or 'ab'"),
        ((a, b, c), {"precision": "emulated14"}, errors.PrecisionError, "complex64"),
        ((a, b, a), {}, errors.OverlapError, "with a"),
        ((real, real), {"precision": "3m"}, errors.PrecisionError, "complex64 and complex128"),
    ):
        with pytest.raises(error, match=words):
            dxgemm.gemm(*operands, **options)
    with pytest.raises(errors.UnsupportedProblemError, match="call it for each matrix"):
        dxgemm.gemm_symmetric(a, b=b)
    with pytest.raises(errors.ScalarError, match="takes real factors"):
        dxgemm.gemm_symmetric(a, c, 1j)
    offsets = home.send(np.array([4], "int32"))
    with pytest.raises(errors.DtypeError, match="groups with offsets"):
        dxgemm.gemm_grouped(a, home.send(integers((1, 4, 4), "complex64")), offsets=offsets)
    with pytest.raises(errors.DtypeError, match="complex64"):
        dxgemm.prepare(b)
    assert (home.fetch(c) == 5).all()


def test_operands_that_lie_right_are_not_copied():
    """Of a row-major product b alone is copied; what else is depends on the layouts."""

    def form(**changes):
        problem = replace(contiguous_problem("complex64", 4, 6, 5), **changes)
        return real_form(problem, "", is_any=False)

    rows = form()
    assert rows.copies.keys() == {"b"} and rows.copies["b"].variant[0] == "straight"
    assert (rows.product.m, rows.product.n, rows.product.k) == (4, 12, 10)
    columns = form(b=rows.problem.b._replace(row=1, col=5))
    assert columns.product.b.row == 1 and columns.copies["b"].variant[0] == "straight"
    turned = form(a=rows.problem.a._replace(row=1, col=4))
    assert turned.copies.keys() == {"a", "b"} and turned.copies["a"].variant[0] == "turned"
    apart = form(out=rows.problem.out._replace(row=30, col=2))
    assert apart.copies.keys() == {"b", "out"}
    added = form(reads_c=True, in_place=False)
    assert added.copies.keys() == {"b"} and not added.product.in_place
    row = form(m=1, reads_c=True, in_place=False, c=Strides(0, 0, 2), out=Strides(0, 0, 1))
    assert row.copies.keys() == {"b", "c"}
    elsewhere = form(reads_c=True, in_place=False, c=rows.problem.c._replace(row=7))
    assert elsewhere.copies.keys() == {"b", "c"} and elsewhere.product.in_place


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(64, 64, 64), (257, 130, 65), (1000, 1003, 517), (3, 4099, 999)])
@pytest.mark.parametrize("precision", [None, "emulated", "3m"])
def test_errors_are_within_the_rule(home, dtype, sizes, precision):
    check_errors(home, dtype, sizes, **permitted(dtype, precision))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("conjugate", ["", "a", "b", "ab"])
def test_host_operands_are_conjugated(dtype, conjugate):
    a, b = integers((70, 33), dtype, 1), integers((33, 50), dtype, 2)
    left, right = conjugated(a, b, conjugate)
    found = dxgemm.gemm(a, np.asfortranarray(b), alpha=1 - 2j, conjugate=conjugate)
    np.testing.assert_array_equal(found, (1 - 2j) * (left @ right))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("orders", [*product("CF", repeat=3)], ids="".join)
def test_cublas_multiplies_complex_numbers_itself(cupy, home, dtype, orders):
    a, b = integers((40, 30), dtype, 1), integers((30, 50), dtype, 2)
    c = integers((40, 50), dtype, 3)
    (a_sent, _), (b_sent, _), (c_sent, _) = (
        put(home, x, order) for x, order in zip((a, b, c), orders)
    )
    dxgemm.gemm(a_sent, b_sent, c_sent, 2j, 1 - 1j, implementation="cublas")
    np.testing.assert_array_equal(home.fetch(c_sent), 2j * (a @ b) + (1 - 1j) * c)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_graph_replays_all_copies(cupy, home, dtype):
    a, b = integers((40, 30), dtype, 1), integers((30, 50), dtype, 2)
    a_sent, out = home.send(np.asfortranarray(a)), home.send(np.zeros((40, 50), dtype))
    call = (a_sent, home.send(b)), {"out": out, "alpha": 1j, "conjugate": "a"}
    dxgemm.gemm(*call[0], **call[1])
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        dxgemm.gemm(*call[0], **call[1])
        graph = stream.end_capture()
        for seed in (4, 5):
            a = integers((40, 30), dtype, seed)
            a_sent[...] = home.send(a)
            graph.launch()
            stream.synchronize()
            np.testing.assert_array_equal(home.fetch(out), 1j * (a.conj() @ b))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_torch_s_lazy_conjugates_are_taken_as_such(device):
    torch = pytest.importorskip("torch", reason="needs torch")
    a, b = (torch.tensor(integers(s, "complex64"), device=device) for s in ((4, 3), (3, 5)))
    for left, right in ((a.conj(), b), (a, b.conj()), (a.conj(), b.conj()), (b.mH, a.mH)):
        found = dxgemm.gemm(left, right)
        assert torch.equal(found, left.resolve_conj() @ right.resolve_conj())
        assert torch.equal(dxgemm.gemm(left, right, conjugate="a"), left.conj() @ right)
    dxgemm.gemm(a.cpu(), b.cpu())  # registers the type
    np.testing.assert_array_equal(host_view(a.cpu().conj()), a.cpu().numpy())
    with pytest.raises(errors.LayoutError, match="resolve_conj"):
        dxgemm.gemm(a, b, torch.zeros((4, 5), dtype=a.dtype, device=device).conj())


def test_the_kernels_around_the_product_are_built_ahead():
    specs = complex_specs(("float32", "float64", "float16"))
    assert {spec.implementation for spec in specs} == {"complex_copy", "complex_sum"}
    variants = {spec.variant for spec in specs if spec.dtype == "float64"}
    assert {("straight", "", "i"), ("straight", "conjugate", "i"), ("turned", "", "")} <= variants
    assert {("both",), ("three",), ("of parts",), ("of parts, conjugate",)} <= variants
    assert {("straight", "", "parts"), ("straight", "", "halves")} <= variants
    assert not complex_specs(("float16",))


def test_copies_have_tiles_as_wide_as_their_rows():
    configs = complex_copy.KERNEL.configs
    for columns, wanted in ((1, 8), (8, 8), (9, 16), (17, 32), (4096, 32)):
        assert complex_copy.choose_config(configs, columns).cols == wanted
    for config in configs:
        assert config.threads == 256 and config.smem_bytes("float64") <= 48 * 1024


@pytest.mark.parametrize("layout", ["row_row", "row_col"])
def test_copies_of_a_batch_are_one_where_rows_lie_evenly(layout):
    problem = contiguous_problem("complex64", 4, 6, 5, batch=9, layout=layout)
    copy = real_form(problem, "").copies["b"].sizes
    assert (copy.batch, copy.m, copy.n) == ((1, 45, 6) if layout == "row_row" else (1, 54, 5))
    apart = replace(problem, b=problem.b._replace(batch=40))
    assert real_form(apart, "").copies["b"].sizes.batch == 9


@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_of_host_operands_are_conjugates_where_these_are(dtype):
    layout = Layout((3, 4), (64, 16), dtype, HOST, read_only=False, is_conjugate=True)
    copy = device_copy_layout(layout, 0)
    assert copy.is_conjugate and copy.device == 0
    assert not device_copy_layout(layout._replace(is_conjugate=False), 0).is_conjugate
