"""Problems that kernels cannot index: computed in pieces, or refused before a launch."""

import math

import numpy as np
import pytest
from known_devices import H200

import dxgemm
from dxgemm import epilogues, errors, reductions
from dxgemm.call import route
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.parts.kernel import MOST_BLOCKS, MOST_INDEX
from dxgemm.problem import pieces
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.pieces import MOST_INDICES, MOST_MATRICES, pieces_of

DTYPES = ("float32", "float64", "float16", "int8", "complex64")
CUTS = {"m": (9, 2, 3), "n": (2, 9, 3), "k": (2, 3, 9), "batch": (2, 3, 2)}


@pytest.fixture
def few_indices(monkeypatch):
    """Kernels seem to index four rows, columns and k, and two matrices."""
    monkeypatch.setattr(pieces, "MOST_INDICES", 4)
    monkeypatch.setattr(pieces, "MOST_MATRICES", 2)
    dxgemm.clear_cache()
    route.clear_routes()
    yield
    route.clear_routes()


def integers(rng, shape, dtype):
    array = rng.integers(-2, 3, shape)
    if dtype.startswith("complex"):
        array = array + 1j * rng.integers(-2, 3, shape)
    return array.astype(dtype)


def operands(dtype, cut, order):
    """a, b and c of integers, one dimension of which is cut."""
    rng, (m, n, k) = np.random.default_rng(3), CUTS[cut]
    batch = (5,) if cut == "batch" else ()
    result = "int32" if dtype == "int8" else dtype
    shapes = (*batch, m, k), (*batch, k, n), (*batch, m, n)
    arrays = [integers(rng, shape, kind) for shape, kind in zip(shapes, (dtype, dtype, result))]
    if order == "columns":
        arrays = [array.swapaxes(-1, -2).copy().swapaxes(-1, -2) for array in arrays]
    return arrays


@pytest.mark.parametrize("order", ["rows", "columns"])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_pieces_make_the_whole(few_indices, dtype, cut, order):
    a, b, c = operands(dtype, cut, order)
    wide = np.complex128 if dtype == "complex64" else np.float64
    product = a.astype(wide) @ b.astype(wide)
    assert (dxgemm.gemm(a, b) == product).all()
    expected = 2 * product - 3 * c.astype(wide)
    out = np.full_like(c, 77)
    assert (dxgemm.gemm(a, b, c, 2, -3, out=out) == expected).all()
    step = dxgemm.plan(a, b, c, 2, -3)
    assert (step() == expected).all() and c is step()
    assert "pieces" in str(dxgemm.explain(a, b))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_epilogues_of_pieces_take_their_elements(few_indices, dtype, cut):
    a, b, c = operands(dtype, cut, "rows")
    rng = np.random.default_rng(4)
    vector, matrix = integers(rng, c.shape[-1], dtype), integers(rng, c.shape, dtype)
    kept = np.zeros_like(c)
    chain = epilogues.bias(vector) | epilogues.keep(kept=kept) | epilogues.residual(matrix)
    found = dxgemm.gemm(a, b, c, beta=1.0, epilogue=chain)
    biased = a.astype(float) @ b.astype(float) + operands(dtype, cut, "rows")[2] + vector
    assert (kept == biased).all() and (found == biased + matrix).all()


@dxgemm.epilogue
def plus_row(value, row, col):
    return value + row


@dxgemm.epilogue
def plus_col(value, row, col):
    return value + col


@pytest.mark.parametrize("order", ["rows", "columns"])
@pytest.mark.parametrize(
    "cut, refused, taken", [("m", plus_row, plus_col), ("n", plus_col, plus_row)]
)
def test_an_epilogue_that_counts_what_is_cut_is_refused(few_indices, cut, refused, taken, order):
    a, b, c = operands("float32", cut, order)
    before = c.copy()
    with pytest.raises(errors.UnsupportedProblemError, match=r"in pieces, but its epilogue"):
        dxgemm.gemm(a, b, c, epilogue=refused)
    assert (c == before).all()
    rows, cols = np.indices(c.shape)
    assert (dxgemm.gemm(a, b, c, epilogue=taken) == a @ b + (cols if cut == "m" else rows)).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda a, b: dxgemm.gemm(a, b, epilogue=reductions.sum(1)),
        lambda a, b: dxgemm.gemm(a, b, mask=np.ones((1, 1), bool)),
        lambda a, b: dxgemm.gemm_symmetric(a),
    ],
    ids=["reduction", "mask", "symmetric"],
)
def test_results_that_are_one_are_refused(few_indices, call):
    a, b, _ = operands("float32", "m", "rows")
    with pytest.raises(errors.UnsupportedProblemError, match=r"m = 9.* in pieces, but"):
        call(a, b)


SIZES = [limit + step for limit in (MOST_INDICES, 2**31, 2**32) for step in (-128, 0, 1, 128)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cut", CUTS)
def test_pieces_cover_the_whole_and_kernels_index_them(dtype, cut):
    for size in SIZES:
        sizes = {"m": 3, "n": 2, "k": 5, "batch": 1, cut: size}
        problem = contiguous_problem(dtype, **sizes)
        kernel_cut = {"m": "n", "n": "m"}.get(cut, cut) if problem.is_transposed else cut
        found = pieces_of(problem)
        if not found:
            assert size <= (MOST_MATRICES if cut == "batch" else MOST_INDICES)
            continue
        place = {"batch": 1, "m": 2, "n": 3, "k": 4}[kernel_cut]
        firsts = [piece[place] for piece in found]
        lengths = [getattr(piece.problem, kernel_cut) for piece in found]
        assert firsts == [0, *np.cumsum(lengths, dtype=object)[:-1]] and sum(lengths) == size
        assert max(max(p.m, p.n, p.k, p.batch) for p, *_ in found) <= MOST_INDICES
        assert min(lengths) > 1 and all(first % 1024 == 0 for first in firsts)
        assert not pieces_of(found[0].problem) and len({piece.problem for piece in found}) <= 3


class Recorded:
    """Launches in place of the simulator's, which note what a kernel would compute."""

    def __init__(self):
        self.calls = []

    def __call__(self, spec, problem, blocks):
        def launch(call, stream):
            self.calls.append((problem, blocks, *call[:4]))

        return launch


@pytest.mark.skipif(not simulator_enabled(), reason="takes the place of the simulator's launches")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cut", CUTS)
def test_no_launch_wraps(monkeypatch, dtype, cut):
    """Neither sizes nor grids do, where operands are too large for 32 bits; nothing is touched."""
    from dxgemm.runtime import simulator

    recorded = Recorded()
    monkeypatch.setattr(simulator, "SimulatedLaunch", recorded)
    route.clear_routes()
    item = np.zeros((), dtype)
    for size in (2**31 - 128, 2**31 + 128, 2**32 + 1000):
        sizes = {"m": 1, "n": 1, "k": 1, "batch": 1, cut: size}
        m, n, k, batch = sizes.values()
        a, b = np.broadcast_to(item, (batch, m, k)), np.broadcast_to(item, (batch, k, n))
        try:
            dxgemm.gemm(a, b)
        except (MemoryError, errors.UnsupportedProblemError):
            continue
        for problem, blocks, *_ in recorded.calls:
            assert max(problem.m, problem.n, problem.k, problem.batch) <= MOST_INDEX
            assert 0 < blocks <= MOST_BLOCKS
    assert recorded.calls
    route.clear_routes()


@pytest.mark.parametrize("name", [i.name for i in dxgemm.implementations() if i.is_own])
def test_a_launch_beyond_the_indices_is_refused(name):
    """No kernel is bound to a problem beyond its indices, whatever made the problem."""
    from dxgemm.choice.registry import find_implementation
    from dxgemm.runtime.binding import launch_kernel

    implementation = find_implementation(name)
    dtype = implementation.dtypes[0]
    config = implementation.kernel.configs[0]
    spec = implementation.spec(config, dtype, ("row",))
    for sizes, blocks in (
        ((MOST_INDEX + 1, 1, 1), 1),
        ((1, 1, 2**32 + 5), 1),
        ((1, 1, 1), 2**32 + 7),
    ):
        problem = contiguous_problem(dtype, *sizes)
        with pytest.raises(errors.UnsupportedProblemError, match=r"is for sizes up to"):
            launch_kernel(spec, problem, blocks, "sm_90a", 0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8"])
def test_the_choice_leaves_out_what_no_grid_holds(dtype):
    """Wide results of one row: tiles of one column would be more than a grid has blocks."""
    from dxgemm.choice.selection import rank

    problem = contiguous_problem(dtype, 1, 2**12, 1, MOST_MATRICES)
    for candidate in rank(problem, H200).candidates:
        assert candidate.implementation.tile_count(candidate.config, problem) <= MOST_BLOCKS


def test_predicted_times_of_the_largest_problems_are_finite():
    for sizes in ((2**30, 2**30, 2**30), (2**40, 2, 2), (1, 1, 2**40), (3, 3, 3, 2**40)):
        m, n, k, *batch = sizes
        found = dxgemm.explain_shape(m, n, k, batch=(*batch, 1)[0], gpu="H200")
        assert math.isfinite(found.prediction.us)


def test_more_pieces_than_a_call_launches_are_refused():
    with pytest.raises(errors.UnsupportedProblemError, match="more than 65536"):
        pieces_of(contiguous_problem("float32", 2**40, 2**40, 2**36))
