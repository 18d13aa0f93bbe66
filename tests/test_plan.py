"""Plans run again on what their arrays hold by then, and say what was decided."""

import numpy as np
import pytest
from contract import inability, insists_on_alignment
from oracle.cases import DTYPES
from oracle.check import assert_right
from oracle.inputs import operands

import dxgemm
from dxgemm import errors
from dxgemm.gpu.status import simulator_enabled

SIZE = (5, 3, 4) if simulator_enabled() else (129, 65, 33)


@pytest.fixture(params=DTYPES)
def values(request):
    m, n, k = SIZE
    return operands("random", (m, k), (k, n), (m, n), request.param)


def test_planning_writes_nothing(home, values):
    c = home.send(values[2])
    dxgemm.plan(home.send(values[0]), home.send(values[1]), c, 0.7, 1.3)
    dxgemm.explain(home.send(values[0]), home.send(values[1]), c, 0.7, 1.3)
    assert home.fetch(c).tobytes() == values[2].tobytes()


def test_a_plan_runs_again_on_changed_contents(home, values):
    a, b, c = (home.send(value) for value in values)
    plan = dxgemm.plan(a, b, c, 0.7, 0.0)
    for factor in (1, 2, -3):
        a[...] = home.send(factor * values[0])
        assert plan() is c
        assert_right(home.fetch(c), factor * values[0], values[1], values[2], 0.7, 0.0)


def test_a_plan_in_place_accumulates(home, values):
    a, b, c = (home.send(value) for value in values)
    plan = dxgemm.plan(a, b, c, 0.5, 1.0)
    plan()
    plan()
    assert_right(home.fetch(c), *values, 1.0, 1.0)


def test_a_plan_without_c_keeps_one_result(home, values):
    a, b, _ = (home.send(value) for value in values)
    plan = dxgemm.plan(a, b)
    assert plan() is plan.result is plan()
    assert_right(home.fetch(plan.result), *values, 1.0, 0.0)


def test_a_plan_says_what_it_computes_and_by_which_kernel(home, values):
    a, b, _ = (home.send(value) for value in values)
    m, n, k = SIZE
    plan = dxgemm.plan(a, b, implementation="naive")
    text = repr(plan)
    assert text.startswith(f"<dxgemm.Plan: gemm {m} x {n} x {k} {values[0].dtype} on ")
    assert " by naive " in text and plan.__name__ == "plan"


def test_a_plan_holds_its_operands(home, values):
    plan = dxgemm.plan(*(home.send(value) for value in values), 0.7, 0.0)
    for _ in range(3):
        home.send(np.full_like(values[0], np.nan))  # would reuse memory that was let go
    assert_right(home.fetch(plan()), *values, 0.7, 0.0)


def test_two_calls_with_one_layout_are_independent(home, values):
    m, n, k = SIZE
    others = operands("integers", (m, k), (k, n), (m, n), values[0].dtype.name)
    first = dxgemm.plan(*(home.send(value) for value in values), 0.7, 1.3)
    second = dxgemm.plan(*(home.send(value) for value in others), 2.0, -1.0)
    assert_right(home.fetch(first()), *values, 0.7, 1.3)
    assert_right(home.fetch(second()), *others, 2.0, -1.0)


def test_explain_says_what_would_run(home, values):
    a, b, c = (home.send(value) for value in values)
    for implementation in dxgemm.implementations():
        if not implementation.is_own or inability(implementation, values[0].dtype.name):
            continue
        if insists_on_alignment(implementation):
            continue
        explanation = dxgemm.explain(a, b, c, implementation=implementation.name)
        planned = dxgemm.plan(a, b, c, implementation=implementation.name).explain()
        assert explanation.implementation == planned.choice.implementation == implementation.name
        assert set(explanation.choice.rejected) == {
            other.name for other in dxgemm.implementations() if other is not implementation
        }
        assert str(explanation).startswith("gemm 5 x 3 x 4" if simulator_enabled() else "gemm 129")


def test_explain_names_host_copies(values):
    explanation = dxgemm.explain(*values, 0.7, 1.3)
    assert explanation.work.copied == (() if simulator_enabled() else ("a", "b", "c"))


def test_explain_says_when_the_transposed_product_is_computed(home, values):
    a, b, _ = (home.send(value) for value in values)
    out = home.send(np.empty(SIZE[1::-1], values[0].dtype)).T
    explanation = dxgemm.explain(a, b, out=out)
    assert explanation.work.is_transposed
    assert (explanation.work.m, explanation.work.n) == (SIZE[1], SIZE[0])


def test_explain_shape_needs_no_arrays():
    explanation = dxgemm.explain_shape(512, 256, 128, "float64", batch=3)
    assert (explanation.work.m, explanation.work.n, explanation.work.k, explanation.work.batch) == (
        512,
        256,
        128,
        3,
    )
    assert explanation.work.flops == (2 * 512 * 256 * 128 * 3)
    assert explanation.as_dict()["work"]["dtype"] == "float64"


def test_explain_shape_is_that_of_operands_in_any_order(home):
    for layout in ("row_row", "row_col", "col_row", "col_col"):
        shapes = zip(layout.split("_"), ((6, 4), (4, 5)), strict=True)
        a, b = (
            home.send(np.zeros(shape if order == "row" else shape[::-1], np.float32))
            for order, shape in shapes
        )
        a, b = (a if layout.startswith("row") else a.T), (b if layout.endswith("row") else b.T)
        for options in ({}, {"batch_invariant": True}):
            explained = dxgemm.explain_shape(6, 5, 4, layout=layout, **options)
            assert explained == dxgemm.explain(a, b, **options)
    with pytest.raises(errors.LayoutError, match="layout is 'across'; pass 'row_row' or"):
        dxgemm.explain_shape(6, 5, 4, layout="across")


def test_own_implementations_support_every_layout_unless_tma_reads_it():
    from dxgemm.problem.define import define_problem
    from dxgemm.problem.layout import Layout

    layouts = [
        Layout((5, 4), strides, "float32", 0, False)
        for strides in ((16, 4), (4, 20), (-16, 4), (0, 0), (40, 12))
    ]
    target = Layout((5, 5), (20, 4), "float32", 0, False)
    for a in layouts:
        b = a._replace(shape=(4, 5), strides=a.strides[::-1])
        problem, _ = define_problem(a, b, target, None, alpha_is_zero=False, beta_is_zero=False)
        for implementation in dxgemm.implementations():
            if implementation.is_own and not inability(implementation, "float32"):
                assert implementation.supports(problem) is None or insists_on_alignment(
                    implementation
                )
