"""G12: the same bits each time; with batch_invariant=True a row's whatever the number of rows."""

import math
from collections import defaultdict
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from contract import misfit
from known_devices import A100, H200
from oracle.kinds import FLOAT_KINDS, KINDS, numpy_dtype

import dxgemm
from dxgemm import epilogues, errors, reductions
from dxgemm.call.route import clear_routes
from dxgemm.choice import batch_invariant, legality, registry
from dxgemm.choice.batch_invariant import rank_for_any_rows
from dxgemm.choice.registry import find_implementation
from dxgemm.choice.selection import choose, rank, time_candidates
from dxgemm.compiler import kernel_store
from dxgemm.gpu.status import probe, simulator_enabled
from dxgemm.problem import problem as problem_module
from dxgemm.problem.define import contiguous_problem, define_problem
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.problem.layout import Layout

ROWS = (*range(1, 258), 1000, 1024, 4097, 8192, 70_000)
SIZES = [(1, 2048), (64, 64), (64, 5000), (1000, 27), (4096, 4096), (2048, 100_000)]


def problem_of(kind, m, n, k, batch=1, transposed=False):
    """Problem of row-major operands; of a column-major result if `transposed`."""
    wanted = KINDS[kind]

    def layout(rows, cols, dtype, is_transposed=False):
        item_size = ITEM_SIZES[dtype]
        strides = (1, rows) if is_transposed else (cols, 1)
        strides = (rows * cols, *strides)
        return Layout((batch, rows, cols), tuple(s * item_size for s in strides), dtype, 0, False)

    problem, _ = define_problem(
        layout(m, k, wanted.dtype), layout(k, n, wanted.dtype), None,
        layout(m, n, wanted.out_dtype, transposed), alpha_is_zero=False, beta_is_zero=True,
        precision=wanted.precision,
    )  # fmt: skip
    assert problem.is_transposed is (m > 1 and (transposed or n == 1))
    return problem


def chosen(problem, implementation=None, device=H200):
    (candidate,) = rank_for_any_rows(problem, device, implementation).candidates
    return candidate.implementation.name, candidate.config, candidate.slices


def order_of(problem, device=H200):
    """Order of sums of the chosen config, which has no split-K."""
    name, config, slices = chosen(problem, device=device)
    assert slices == 1
    return find_implementation(name).order_of_sums(config)


@pytest.mark.parametrize("n, k", SIZES)
@pytest.mark.parametrize("kind", FLOAT_KINDS)
def test_the_order_depends_neither_on_rows_nor_on_the_batch(configs_of_a_gpu, kind, n, k):
    orders = {order_of(problem_of(kind, m, n, k)) for m in ROWS[::16]}
    orders |= {order_of(problem_of(kind, 33, n, k, batch)) for batch in (2, 1000)}
    assert len(orders) == 1
    transposed = {order_of(problem_of(kind, m, n, k, transposed=True)) for m in ROWS[1::16]}
    assert len(transposed) == 1


LARGEST = 2**33  # bytes of an operand, and rows
EDGES = (2**20, 2**30, 2**31 - 513, 2**31 - 1, 2**31, 2**31 + 128, 2**32 + 1, LARGEST)


@pytest.mark.parametrize("device", [H200, A100], ids=["H200", "A100"])
@pytest.mark.parametrize("kind", FLOAT_KINDS)
def test_neither_bytes_nor_rows_nor_matrices_change_the_order(configs_of_a_gpu, kind, device):
    item_size = ITEM_SIZES[KINDS[kind].dtype]
    for n, k in ((1, 2048), (3, 9), (64, 5000), (4096, 4095), (4096, 4096)):
        bytes_of_rows = [size // (k * item_size) for size in (2**30, 2**30 + 2**20, LARGEST)]
        rows = [16, 1000, *(edge + more for edge in bytes_of_rows for more in (-1, 1)), *EDGES]
        for transposed in (False, True):
            problems = [problem_of(kind, m, n, k, transposed=transposed) for m in rows]
            batches = (
                2,
                LARGEST // (33 * k * item_size),
                LARGEST // (k * n * item_size) + 1,
                2**32,
            )
            problems += [problem_of(kind, 33, n, k, b, transposed=transposed) for b in batches]
            assert len({order_of(problem, device) for problem in problems}) == 1, (n, k)


def strided(problem, **changes):
    """A problem with other strides of a, in elements; those of one matrix if it has no batch."""
    return replace(problem, a=problem.a._replace(**changes))


@pytest.mark.parametrize("kind", ["tf32", "float16", "float32"])
def test_strides_that_depend_on_rows_do_not_change_the_order(configs_of_a_gpu, kind):
    """Windows that overlap, columns of any length, and matrices in reverse order."""
    layouts = {
        "windows": lambda m: strided(problem_of(kind, m, 512, 64), row=8),
        "windows of columns": lambda m: strided(problem_of(kind, m, 512, 64), row=1, col=16),
        "columns": lambda m: strided(problem_of(kind, m, 512, 64), row=1, col=-(-m // 16) * 16),
        "misaligned columns": lambda m: strided(problem_of(kind, m, 512, 64), row=1, col=m | 1),
        "reversed rows": lambda m: strided(problem_of(kind, m, 512, 64), row=-64),
    }
    for name, make in layouts.items():
        orders = {order_of(make(m)) for m in (2, 8, 15, 16, 100, 8192, 2**20, 2**24 + 1)}
        assert len(orders) == 1, name
    straight = problem_of(kind, 33, 512, 64, 3)
    assert order_of(strided(straight, batch=-straight.a.batch)) == order_of(straight)
    assert order_of(strided(straight, batch=straight.a.batch + 1)) == order_of(straight)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "complex64"])
def test_a_long_k_is_explained(configs_of_a_gpu, dtype):
    for m, n in ((1, 6), (5, 6), (5, 60)):
        explanation = dxgemm.explain_shape(m, n, 2**39, dtype, batch_invariant=True, gpu="H200")
        assert "pieces" in explanation.work.computed_as


def test_a_copy_is_made_whatever_its_size():
    problem = problem_of("float16", 2**20, 4096, 4095)
    assert problem.aligned.a == problem.a
    copied = batch_invariant.for_any_rows(problem).aligned
    assert copied.a.row == 4096 and copied.padded == "a"


def test_operands_that_no_kernel_of_the_order_takes_are_refused(configs_of_a_gpu, monkeypatch):
    """Another order is never taken in silence."""
    problem = problem_of("float32", 64, 512, 512)
    name, _, _ = chosen(problem)
    samples = {batch_invariant._with_rows(batch_invariant.for_any_rows(problem), rows)
               for rows in batch_invariant.TYPICAL_ROWS}  # fmt: skip
    whole = legality.refusal

    def refuse(implementation, asked, device):
        return whole(implementation, asked, device) if asked in samples else "too long a stride"

    monkeypatch.setattr(legality, "refusal", refuse)
    with pytest.raises(errors.UnsupportedProblemError, match=f"{name}: too long a stride"):
        chosen(problem)


@pytest.mark.parametrize("kind", FLOAT_KINDS)
def test_the_order_sees_no_more_of_strides_than_is_promised(kind):
    problem, samples = problem_of(kind, 32, 512, 64), {}
    for row in range(64, 200):
        apart = replace(problem, a=problem.a._replace(row=row))
        is_aligned = row * ITEM_SIZES[problem.dtype] % 16 == 0
        samples.setdefault(is_aligned, set()).add(batch_invariant._with_rows(apart, 16))
    assert set(map(len, samples.values())) == {1}


def test_the_quickest_config_of_the_order_is_taken(configs_of_a_gpu):
    found = {m: chosen(problem_of("float16", m, 4096, 4096)) for m in (1, 8192)}
    assert found[1] != found[8192]
    for m, (name, config, _) in found.items():
        problem, implementation = problem_of("float16", m, 4096, 4096), find_implementation(name)
        order, us = implementation.order_of_sums(config), {}
        (times,) = time_candidates(problem, H200, registry.IMPLEMENTATIONS)
        for row, row_us in zip(times.columns.rows, times.us, strict=True):
            if not row.fill and row.implementation.order_of_sums(row.config) == order:
                us[row.implementation.name, row.config] = row_us
        assert us[name, config] == min(us.values())


def test_the_orders_are_compared_once_for_all_rows(configs_of_a_gpu, monkeypatch):
    asked = []

    def time_and_count(*arguments):
        asked.append(arguments)
        return time_candidates(*arguments)

    monkeypatch.setattr(batch_invariant, "time_candidates", time_and_count)
    first = order_of(problem_of("float32", 100, 512, 512))
    count = len(asked)  # once for each typical number of rows, and once for these
    assert count == 1 + len(batch_invariant.TYPICAL_ROWS)
    assert order_of(problem_of("float32", 101, 512, 512)) == first
    assert len(asked) == count + 1
    order_of(problem_of("float32", 101, 512, 768))
    assert len(asked) == 2 * count + 1


def test_without_it_the_choice_depends_on_rows(configs_of_a_gpu):
    problems = [problem_of("float32", m, 4096, 4096) for m in (1, 100, 4096)]
    assert len({str(choose(problem, H200)) for problem in problems}) > 1


def test_values_decide_nothing(configs_of_a_gpu):
    split = replace(contiguous_problem("float32", 8192, 8192, 8192), precision="emulated")
    assert "emulated_float32" in {c.implementation.name for c in rank(split, H200).candidates}
    ranking = rank_for_any_rows(split, H200, None)
    assert ranking.candidates[0].implementation.fallback(split) is None
    assert "values of all rows" in ranking.rejected["emulated_float32"]


@pytest.mark.parametrize(
    "name, reason",
    [
        ("emulated_float32", "values of all rows"),
        ("cublas", "its library"),
        ("pipeline", "in another order"),
    ],
)
def test_a_named_one_whose_rows_depend_on_each_other_is_refused(
    configs_of_a_gpu, monkeypatch, name, reason
):
    implementation = find_implementation(name)
    monkeypatch.setattr(type(implementation), "supports", lambda *arguments: None)
    with pytest.raises(
        errors.UnsupportedProblemError, match=f"{name}.* not batch.invariant.*{reason}"
    ):
        chosen(problem_of("float32", 64, 64, 64), name)


def test_what_is_named_is_kept(configs_of_a_gpu):
    problem, tuned = problem_of("float32", 64, 64, 4096), find_implementation("tuned")
    assert chosen(problem, "naive")[0] == "naive"
    config = next(config for config in tuned.configs("float32") if config.split_k == 1)
    assert chosen(problem, ("tuned", config)) == ("tuned", config, 1)
    with pytest.raises(
        errors.UnsupportedProblemError, match="order in which split-K slices are added"
    ):
        chosen(problem, ("tuned", config, 4))


def test_exact_sums_may_take_any_kernel(configs_of_a_gpu):
    problem = contiguous_problem("int8", 64, 64, 64)
    assert rank_for_any_rows(problem, H200, None) == rank(problem, H200)


def test_a_reduction_is_refused(home):
    a = home.send(np.ones((3, 3), np.float32))
    with pytest.raises(errors.UnsupportedProblemError, match="second step"):
        dxgemm.gemm(a, a, epilogue=reductions.sum(axis=1), batch_invariant=True)


def test_explain_and_plan_say_so(home):
    a = home.send(np.ones((3, 3), np.float32))
    explained = dxgemm.explain(a, a, batch_invariant=True)
    assert "batch invariant" in explained.choice.rule
    assert dxgemm.plan(a, a, batch_invariant=True).explain() == explained
    assert "batch invariant" not in dxgemm.explain(a, a).choice.rule


def sharing_an_order():
    """Each kernel and config that shares its order of sums, after the first of the same order."""
    for kind in ("float32", "float64", "tf32", "float16", "bfloat16"):
        first = {}
        problem = contiguous_problem(KINDS[kind].dtype, 64, 64, 64)
        problem = replace(problem, precision=KINDS[kind].precision)
        for implementation in dxgemm.implementations():
            if implementation.supports(problem):
                continue
            for config in implementation.configs(KINDS[kind].dtype):
                order, name = implementation.order_of_sums(config), implementation.name
                if isinstance(order, str) and not (kind == "tf32" and order == "fma"):
                    if order in first:
                        yield pytest.param(
                            kind, first[order], (name, config), id=f"{kind}-{order}-{name}-{config}"
                        )
                    else:
                        first[order] = name, config


@pytest.mark.gpu
@pytest.mark.parametrize("kind, first, other", [*sharing_an_order()])
def test_kernels_of_one_order_give_the_same_bits(home, kind, first, other):
    for name, config in (first, other):
        implementation = find_implementation(name)
        if reason := misfit(implementation, config, kind) or implementation.runs_on(H200.arch):
            pytest.skip(reason)
    rng, wanted, compared = np.random.default_rng(0), KINDS[kind], 0
    dtypes = [numpy_dtype(wanted.dtype)] * 2 + [numpy_dtype(wanted.out_dtype)]
    wide = "float64" if kind == "float64" else "float32"
    for order, fused in (("row", True), ("row", False), ("col", False)):
        for m, n, k in ((5, 264, 1000), (300, 264, 1000), (67, 131, 517), (64, 64, 64)):
            sizes = (m, k), (k, n) if order == "row" else (n, k), (m, n)
            a, b, c = (home.send(rng.standard_normal(s).astype(t)) for s, t in zip(sizes, dtypes))
            shift = home.send(rng.standard_normal(n).astype(wide))
            epilogue = epilogues.bias(shift) | epilogues.gelu if fused else None
            results = []
            for implementation in (first, other):
                out = home.send(np.zeros((m, n) if order == "row" else (n, m), dtypes[2]))
                try:
                    dxgemm.gemm(
                        a, b if order == "row" else b.T, c, 1.3, 0.7,
                        out=out if order == "row" else out.T, epilogue=epilogue,
                        precision=wanted.precision, implementation=implementation,
                    )  # fmt: skip
                except errors.UnsupportedProblemError:
                    continue
                results.append(home.fetch(out).tobytes())
            if len(results) == 2:
                compared += 1
                assert results[0] == results[1], (order, fused, m, n, k)
    assert compared


MOST_ROWS = 6 if simulator_enabled() else 300
MANY_ROWS = () if simulator_enabled() else (301, 512, 1000, 1024, 4096, 8191, 8192)
N, K = (5, 7) if simulator_enabled() else (264, 1000)
WIDTHS = (8, 7) if simulator_enabled() else (264, 263)  # rows of the result aligned, and not


@pytest.mark.parametrize("layout", ["row", "col"])
@pytest.mark.parametrize("b_layout", ["row", "col"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_whatever_the_number_of_rows(home, kind, b_layout, layout):
    if simulator_enabled() and b_layout != layout:
        pytest.skip("tiny tiles tell the layouts of b apart only where they load it")
    wanted = KINDS[kind]
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal if not wanted.is_integer else partial(rng.integers, -128, 128)
    most = max((MOST_ROWS, *MANY_ROWS))
    sizes = (most, K), (K, N) if b_layout == "row" else (N, K)
    a, b = (home.send(numbers(size=s).astype(numpy_dtype(wanted.dtype))) for s in sizes)
    wide = "float64" if wanted.dtype == "float64" else "float32"
    shift = home.send(rng.standard_normal(N).astype(wide))

    def compute(m):
        shape = (m, N) if layout == "row" else (N, m)
        out = home.send(np.zeros(shape, numpy_dtype(wanted.out_dtype)))
        dxgemm.gemm(
            a[:m], b if b_layout == "row" else b.T, out=out if layout == "row" else out.T,
            epilogue=epilogues.bias(shift) | epilogues.gelu, precision=wanted.precision,
            batch_invariant=True,
        )  # fmt: skip
        rows = home.fetch(out)
        return rows if layout == "row" else rows.T

    every = compute(most)
    # One column-major row lies in memory as a row-major one does.
    for m in (*range(1 if layout == "row" else 2, MOST_ROWS + 1), *MANY_ROWS):
        assert compute(m).tobytes() == every[:m].tobytes(), m


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("kind", ["float32", "float64", "float16"])
def test_a_row_has_the_same_bits_alone_and_in_batches(home, kind, n):
    rng = np.random.default_rng(0)
    a, b = (home.send(rng.standard_normal(s).astype(numpy_dtype(kind)))
            for s in ((5, MOST_ROWS, K), (5, K, n)))  # fmt: skip

    def compute(a, b):
        return home.fetch(dxgemm.gemm(a, b, batch_invariant=True))

    alone = np.stack([compute(a[i], b[i]) for i in range(5)])
    for count in (2, 5):
        for m in (1, MOST_ROWS):
            together = compute(a[:count, :m], b[:count])
            assert together.tobytes() == alone[:count, :m].tobytes(), (count, m)
        rows = compute(a[:count, :1], b[0])
        assert rows[1].tobytes() == compute(a[1, :1], b[0]).tobytes(), count
        shared = compute(a[:count], b[0])
        assert shared[0].tobytes() == alone[0].tobytes(), count
        assert shared[1].tobytes() == compute(a[1], b[0]).tobytes(), count


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "tf32"])
def test_copies_of_any_size_keep_the_bits(home, cupy, monkeypatch, kind):
    """Rows are copied to aligned ones beyond the bytes that are copied elsewhere, and windows."""
    monkeypatch.setattr(problem_module, "MOST_COPIED_BYTES", 2**12)
    clear_routes()
    wanted, rng = KINDS[kind], np.random.default_rng(0)
    line, b = rng.standard_normal(300 * 1001), rng.standard_normal((1001, 264))
    line, b = (home.send(x.astype(numpy_dtype(wanted.dtype))) for x in (line, b))
    windows = cupy.lib.stride_tricks.as_strided(
        line, (300, 1000), (8 * line.itemsize, line.itemsize)
    )
    options = {"precision": wanted.precision, "batch_invariant": True}
    for a, right in ((line.reshape(300, 1001), b), (windows, b[:1000]), (windows.copy(), b[:1000])):
        rows = home.fetch(dxgemm.gemm(a, right, **options))
        for m in (2, 16, 299):
            assert home.fetch(dxgemm.gemm(a[:m], right, **options)).tobytes() == rows[:m].tobytes()
    apart = home.fetch(dxgemm.gemm(windows.copy(), b[:1000], **options))
    assert home.fetch(dxgemm.gemm(windows, b[:1000], **options)).tobytes() == apart.tobytes()
    clear_routes()


SHAPES = [(264, 520, 3000), (1, 4096, 4096), (64, 64, 30_000)]  # whole, few rows, split-K slices
BITS = """
import hashlib, sys
import numpy as np, cupy, dxgemm

def digests(kind, device):
    dtype, _, precision = kind.partition(":")
    with cupy.cuda.Device(device):
        for m, n, k in {shapes}:
            rng = np.random.default_rng(0)
            a, b = (cupy.asarray(rng.standard_normal(s).astype(dtype)) for s in ((m, k), (k, n)))
            for _ in range({repeats}):
                product = dxgemm.gemm(a, b, precision=precision or None)
                yield hashlib.sha256(product.get().tobytes()).hexdigest()

found = list(digests(sys.argv[1], int(sys.argv[2])))
runs = [set(found[i : i + {repeats}]) for i in range(0, len(found), {repeats})]
assert all(len(run) == 1 for run in runs), runs
print(*(run.pop() for run in runs))
"""


REPEATED = ["float32", "float64", "float16", "float32:tf32", "float32:emulated"]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", REPEATED)
def test_repeats_processes_and_gpus_have_the_same_bits(run_python, kind):
    pytest.importorskip("cupy")
    program = BITS.format(shapes=SHAPES, repeats=50)
    devices = [0, 0, *range(1, probe().device_count)]
    environment = {"DXGEMM_CACHE_DIR": str(kernel_store().directory)}
    runs = {run_python(program, kind, str(device), **environment) for device in devices}
    assert len(runs) == 1


@pytest.mark.parametrize("n, k", SIZES)
@pytest.mark.parametrize("kind", ["float32", "float64", "float16"])
def test_no_other_order_is_quicker_for_every_number_of_rows(give_table, kind, n, k):
    give_table(H200, {})
    problems = [problem_of(kind, m, n, k) for m in batch_invariant.TYPICAL_ROWS]
    least = defaultdict(lambda: [math.inf] * len(problems))
    for place, problem in enumerate(problems):
        (times,) = time_candidates(problem, H200, legality.legal_kernels(problem, H200))
        for row, us in zip(times.columns.rows, times.us.tolist(), strict=True):
            if not row.fill and row.implementation.is_own:
                each = least[row.implementation.order_of_sums(row.config)]
                each[place] = min(each[place], us)
    mine = least.pop(order_of(problem_of(kind, 77, n, k)))
    for other in least.values():
        assert any(a <= b for a, b in zip(mine, other))
