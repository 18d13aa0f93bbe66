"""The contract check itself: an implementation of dxgemm may refuse nothing, a baseline may."""

from dataclasses import replace

import pytest
from contract import Contract, may_refuse
from oracle.cases import Case
from oracle.check import check as run_cases

import dxgemm
from dxgemm import errors
from dxgemm.choice.implementation import Role

GROUPS = [(Case("float32", 2, 3, 4),), (Case("float32", 3, 2, 1),)]


@pytest.fixture
def recorded():
    return []


@pytest.fixture
def check(home, recorded):
    """Runs the contract on an implementation in a role of its own."""

    def check(role):
        implementation = replace(dxgemm.implementations()[0], role=role)
        Contract(implementation, home, lambda *entry: recorded.append(entry))(GROUPS)

    return check


def refuse(*arguments, **options):
    raise errors.UnsupportedProblemError("not today")


def test_a_refusal_by_an_own_implementation_fails(monkeypatch, check):
    monkeypatch.setattr(dxgemm, "gemm", refuse)
    with pytest.raises(AssertionError, match="not today"):
        check(Role.CANDIDATE)


def test_a_baseline_that_refuses_everything_is_skipped_with_its_reason(monkeypatch, check):
    monkeypatch.setattr(dxgemm, "gemm", refuse)
    with pytest.raises(pytest.skip.Exception, match="not today"):
        check(Role.BASELINE)


@pytest.mark.parametrize(
    "kind, layouts, may",
    [
        ("float16", ("row_aligned", "col_aligned", "row"), False),
        ("float16", ("row+1", "row_aligned", "row"), True),
        ("float16", ("row_aligned", "row@1", "row"), True),
        ("float16", ("rows_reversed", "row_aligned", "row"), True),
        ("tf32", ("col_aligned", "row_aligned", "row"), True),
        ("tf32", ("row_aligned", "row_aligned", "row"), False),
        ("tf32", ("row/2", "row_aligned", "row"), True),
        ("int8", ("row_aligned", "col_aligned", "row"), False),
        ("int8", ("row@1", "row_aligned", "row"), True),
        ("float32", ("row+1", "row@1", "row"), False),
        ("float64", ("col", "row", "row"), False),
    ],
)
def test_only_tensor_cores_may_decline_and_only_for_layouts(home, kind, layouts, may):
    own = dxgemm.implementations()[0]
    case = Case(kind, 3, 4, 5, layouts)
    (refusal,) = run_cases([case], refuse, home, refusal=errors.UnsupportedProblemError)
    assert may_refuse(own, refusal) == may
    assert may_refuse(replace(own, role=Role.BASELINE), refusal)


def test_cases_and_refusals_are_counted(monkeypatch, check, recorded):
    gemm = dxgemm.gemm

    def refuse_the_second(a, *arguments, **options):
        return refuse() if a.shape == (3, 1) else gemm(a, *arguments, **options)

    monkeypatch.setattr(dxgemm, "gemm", refuse_the_second)
    check(Role.BASELINE)
    assert recorded == [("contract_cases", (dxgemm.implementations()[0].name, 1, 1))]


def test_a_wrong_result_fails(monkeypatch, check):
    gemm = dxgemm.gemm

    def off_by_one(a, b, c, alpha, beta, *, implementation):
        gemm(a, b, c, alpha, beta, implementation=implementation)[0, 0] += 1
        return c

    monkeypatch.setattr(dxgemm, "gemm", off_by_one)
    with pytest.raises(AssertionError, match=r"worst at \[0, 0\]"):
        check(Role.CANDIDATE)
