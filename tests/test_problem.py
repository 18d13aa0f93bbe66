"""The pure logic of operands: overlap against brute force, extents, orientation."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from dxgemm import errors
from dxgemm.problem.define import Result, contiguous_problem, define_problem
from dxgemm.problem.layout import Layout, Strides, byte_extent, share_elements, transposed
from dxgemm.problem.problem import MOST_COPIED_BYTES, flattened, oriented

ITEM = 4


def layout(shape, strides):
    return Layout(shape, tuple(stride * ITEM for stride in strides), "float32", 0, False)


def positions(shape, strides):
    """The element positions of all indices, by enumeration."""
    return [
        sum(place * stride for place, stride in zip(index, strides))
        for index in itertools.product(*map(range, shape))
    ]


def define(a, b, c, **options):
    options = {"alpha_is_zero": False, "beta_is_zero": False, **options}
    return define_problem(a, b, c, None, **options)[0]


@pytest.mark.parametrize("row", range(-7, 8))
@pytest.mark.parametrize("col", range(-7, 8))
def test_self_overlap_of_a_matrix_is_decided_exactly(row, col):
    for rows, cols in itertools.product((1, 2, 3, 5), repeat=2):
        places = positions((rows, cols), (row, col))
        c = layout((rows, cols), (row, col))
        operands = layout((rows, 1), (1, 1)), layout((1, cols), (1, 1)), c
        if len(set(places)) == len(places):
            define(*operands)
        else:
            with pytest.raises(errors.OverlapError, match="overlaps itself"):
                define(*operands)


def test_self_overlap_of_a_batch_is_never_missed():
    steps = (-9, -3, -2, -1, 0, 1, 2, 3, 6, 9)
    for strides in itertools.product(steps, repeat=3):
        for shape in ((2, 3, 3), (3, 2, 2), (1, 2, 3)):
            places = positions(shape, strides)
            batch, rows, cols = shape
            operands = (
                layout((batch, rows, 1), (0, 1, 1)),
                layout((batch, 1, cols), (0, 1, 1)),
                layout(shape, strides),
            )
            if len(set(places)) < len(places):
                with pytest.raises(errors.OverlapError):
                    define(*operands)


@pytest.mark.parametrize("seed", range(20))
def test_shared_elements_are_found_exactly(seed):
    rng = np.random.default_rng(seed)
    for _ in range(50):
        shapes = rng.integers(1, 5, (2, 2)).tolist()
        strides = rng.integers(-9, 10, (2, 2)).tolist()
        starts = rng.integers(200, 230, 2).tolist()
        touched = [
            {start + place for place in positions(shape, steps)}
            for start, shape, steps in zip(starts, shapes, strides)
        ]
        first, second = (
            layout(tuple(shape), tuple(steps)) for shape, steps in zip(shapes, strides)
        )
        shared = share_elements(ITEM * starts[0], first, ITEM * starts[1], second)
        assert shared == bool(touched[0] & touched[1])


def test_the_extent_of_a_layout_covers_its_elements_and_no_more():
    for strides in itertools.product((-5, -1, 0, 2), repeat=2):
        places = positions((3, 4), strides)
        assert byte_extent(layout((3, 4), strides)) == (
            ITEM * min(places),
            ITEM * (max(places) + 1),
        )
    assert byte_extent(layout((0, 4), (4, 1))) == (0, 0)


def test_a_column_major_result_is_computed_transposed():
    a, b = layout((3, 5), (5, 1)), layout((5, 4), (4, 1))
    problem = define(a, b, layout((3, 4), (1, 3)))
    assert problem.is_transposed
    assert (problem.m, problem.n, problem.k) == (4, 3, 5)
    assert problem.a == Strides(0, 1, 4) and problem.b == Strides(0, 1, 5)
    assert problem.out == Strides(0, 3, 1)
    assert not define(a, b, layout((3, 4), (4, 1))).is_transposed


@pytest.mark.parametrize("shape", list(itertools.product((1, 3), repeat=4)))
def test_arrays_without_padding_are_the_contiguous_problem(shape):
    """Sizes include one row, one column and one element, whose strides have no effect."""
    batch, m, n, k = shape
    a, b, out = (
        layout((batch, rows, cols), (rows * cols, cols, 1))
        for rows, cols in ((m, k), (k, n), (m, n))
    )
    expected = contiguous_problem("float32", m, n, k, batch)
    for target in (None, out):
        assert define(a, b, target, beta_is_zero=True) == expected


@pytest.mark.parametrize("n", [1, 4])
def test_what_multiplies_parts_is_given_rows_to_reduce(n):
    operands = layout((3, 2), (2, 1)), layout((2, n), (n, 1)), None, None
    options = {"alpha_is_zero": False, "beta_is_zero": True, "precision": "emulated"}
    for axis, is_transposed in ((0, True), (1, False), (None, n == 1)):
        problem, shape = define_problem(
            *operands, **options, result=Result(is_reduced=True, reduced_axis=axis)
        )
        assert problem.is_transposed == is_transposed and shape == (3, n)
        assert (problem.m, problem.n) == ((n, 3) if is_transposed else (3, n))
    is_stored = define_problem(*operands, **options, result=Result(is_reduced=True))[0]
    assert is_stored.is_transposed == (n == 1)


def batch_steps(m):
    """Strides of a batch and its rows: some lead evenly through all rows."""
    return [(batch, row) for row in (2, -2, 6) for batch in (m * row, m * row + row, -m * row)]


def row_step(batch, m, steps):
    """The step between all rows of a batch; None if they do not lie evenly."""
    places = positions((batch, m), steps)
    found = {after - before for before, after in itertools.pairwise(places)}
    return found.pop() if len(found) == 1 else None


@pytest.mark.parametrize("takes_columns", [False, True])
@pytest.mark.parametrize("m", [1, 2, 3])
def test_a_batch_is_flattened_where_and_only_where_its_rows_lie_evenly(m, takes_columns):
    batch, n, k = 3, 2, 2
    b = layout((k, n), (n, 1))
    for a_steps, c_steps, out_steps in itertools.product(batch_steps(m), repeat=3):
        every = {"a": (a_steps, k), "c": (c_steps, n), "out": (out_steps, n)}
        given = {name: layout((batch, m, cols), (*s, 1)) for name, (s, cols) in every.items()}
        steps = {name: row_step(batch, m, s) for name, (s, _) in every.items()}
        for reads_c in (False, True):
            options = {"alpha_is_zero": False, "beta_is_zero": not reads_c}
            names = [*steps] if reads_c else ["a", "out"]

            def define_all(operands, reads_c=reads_c, options=options):
                a, c, out = (operands[name] for name in ("a", "c", "out"))
                if takes_columns:
                    a, c, out = transposed(a), transposed(c), transposed(out)
                    factors = transposed(b), a
                else:
                    factors = a, b
                return define_problem(*factors, c if reads_c else None, out, **options)[0]

            flat = flattened(define_all(given), takes_columns=takes_columns)
            if None in (steps[name] for name in names):
                assert flat is None
                continue
            matrices = {
                name: layout((batch * m, cols), (steps[name] or 0, 1))
                for name, (_, cols) in every.items()
            }
            assert oriented(flat) == define_all(matrices)
            if takes_columns:
                assert flattened(define_all(given)) is None


def test_what_is_not_shared_or_no_batch_is_not_flattened():
    batch = contiguous_problem("float32", 3, 4, 5, batch=2)
    shared = replace(batch, b=batch.b._replace(batch=0))
    assert oriented(flattened(shared)) == contiguous_problem("float32", 6, 4, 5)
    for unfit in (
        batch,
        contiguous_problem("float32", 3, 4, 5),
        replace(shared, m=0),
        replace(shared, a=shared.a._replace(batch=0)),
        replace(shared, c=shared.c._replace(batch=0), reads_c=True),
        replace(shared, batch=2**29),  # too many rows
    ):
        assert flattened(unfit, takes_columns=True) is None
    assert flattened(replace(shared, c=shared.c._replace(batch=0))) == flattened(shared)


def test_alpha_zero_leaves_no_inner_dimension():
    operands = layout((3, 5), (5, 1)), layout((5, 4), (4, 1)), layout((3, 4), (4, 1))
    assert define(*operands, alpha_is_zero=True).k == 0


def test_work_and_traffic_are_counted() -> None:
    problem = contiguous_problem("float64", 10, 20, 30, batch=2)
    assert problem.flops == 2 * 2 * 10 * 20 * 30
    assert problem.bytes_moved == 8 * 2 * (10 * 30 + 30 * 20 + 10 * 20)
    problem = contiguous_problem("int8", 10, 20, 30)
    assert (problem.out_dtype, problem.scalar_dtype, problem.arithmetic) == (
        "int32",
        "int32",
        "int8",
    )
    assert problem.bytes_moved == 10 * 30 + 30 * 20 + 4 * 10 * 20


def test_int8_may_lie_at_any_address_and_its_result_at_multiples_of_four():
    a = Layout((3, 5), (7, 1), "int8", 0, False, alignment=1)
    b = Layout((5, 4), (1, 9), "int8", 0, False, alignment=2)
    problem = define(a, b, None, beta_is_zero=True)
    assert problem.a == Strides(0, 7, 1) and problem.b == Strides(0, 1, 9)
    assert problem.out_dtype == "int32"
    with pytest.raises(errors.LayoutError, match=r"c has strides.*4-byte int32"):
        define(a, b, Layout((3, 4), (18, 4), "int32", 0, False))


@pytest.mark.parametrize(
    "dtype, strides, alignment, expected",
    [
        ("float16", Strides(0, 96, 1), 16, None),
        ("float16", Strides(0, 1, 64), 16, None),
        ("float16", Strides(0, 96, 1), 8, Strides(0, 96, 1)),
        ("float16", Strides(0, 97, 1), 16, Strides(0, 96, 1)),
        ("float16", Strides(6208, 97, 1), 16, Strides(6144, 96, 1)),
        ("float16", Strides(6148, 96, 1), 16, Strides(6144, 96, 1)),
        ("float16", Strides(0, 1, 65), 16, Strides(0, 1, 64)),
        ("float16", Strides(0, 192, 2), 16, Strides(0, 96, 1)),
        ("float16", Strides(0, 2, 192), 16, Strides(0, 1, 64)),
        ("int8", Strides(0, 96, 1), 16, None),
        ("int8", Strides(0, 1, 64), 16, Strides(0, 96, 1)),
        ("float32", Strides(0, 1, 64), 16, None),
        ("float32", Strides(0, 1, 65), 16, Strides(0, 1, 64)),
        ("float32", Strides(0, 97, 1), 16, Strides(0, 96, 1)),
    ],
)
def test_copies_have_aligned_rows(dtype, strides, alignment, expected):
    batch = 3 if strides.batch else 1
    problem = contiguous_problem(dtype, 64, 128, 96, batch=batch)
    k_major = replace(problem, b=problem.b._replace(row=1, col=96))
    problem = replace(k_major, a=strides, a_alignment=alignment)
    assert dtype != "float32" or problem.aligned is problem
    precision = "tf32" if dtype == "float32" else None
    k_major, problem = (replace(each, precision=precision) for each in (k_major, problem))
    aligned = problem.aligned
    padded = "a" if expected else ""
    assert aligned == replace(problem, a=expected or strides, a_alignment=16, padded=padded)
    assert (aligned is problem) == (expected is None)
    assert aligned.aligned is aligned
    turned = replace(problem, m=128, n=64, a=k_major.b.transposed(), b=strides.transposed())
    turned = replace(turned, a_alignment=16, b_alignment=alignment)
    assert turned.aligned.b == (expected or strides).transposed()


@pytest.mark.parametrize(("m", "n", "copied"), [(64, 128, "a"), (128, 64, "b"), (96, 96, "a")])
def test_tf32_copies_the_smaller_of_two_mn_major_operands(m, n, copied):
    problem = contiguous_problem("float32", m, n, 32, precision="tf32")
    assert problem.aligned is problem  # a is K-major
    problem = replace(problem, a=Strides(0, 1, m))
    aligned = problem.aligned
    assert aligned.padded == copied
    assert aligned.a == (Strides(0, 32, 1) if copied == "a" else problem.a)
    assert aligned.b == (Strides(0, 1, 32) if copied == "b" else problem.b)
    assert aligned.aligned is aligned


def test_rows_of_copies_are_whole_sectors_and_long_ones_whole_lines():
    problem = contiguous_problem("bfloat16", 65, 33, 31)
    aligned = problem.aligned
    assert (aligned.a, aligned.b) == (Strides(0, 32, 1), Strides(0, 48, 1))
    aligned = contiguous_problem("bfloat16", 65, 511, 513).aligned
    assert (aligned.a, aligned.b) == (Strides(0, 576, 1), Strides(0, 512, 1))


def test_what_is_not_read_or_too_large_is_not_copied():
    problem = contiguous_problem("float16", 65, 33, 31)
    unread = replace(problem, k=0)
    assert unread.aligned is unread
    without_rows, copied = replace(problem, m=0).aligned, problem.aligned
    assert without_rows.b == copied.b != problem.b  # as that of a problem with rows
    long = replace(problem, m=MOST_COPIED_BYTES)
    assert long.aligned.a is long.a
    assert long.aligned.b != long.b
