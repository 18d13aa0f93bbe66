"""The contract check itself: an implementation of dxgemm may refuse nothing, a baseline may."""

from __future__ import annotations

from dataclasses import replace

import pytest
from contract import Contract

import dxgemm
from dxgemm import errors
from dxgemm.testing.cases import Case

GROUPS = [(Case("float32", 2, 3, 4),), (Case("float32", 3, 2, 1),)]


@pytest.fixture
def recorded():
    return []


@pytest.fixture
def check(home, recorded):
    """Runs the contract on an implementation with its ownership overridden."""

    def check(*, is_own):
        implementation = replace(dxgemm.implementations()[0], is_own=is_own)
        Contract(implementation, home, lambda *entry: recorded.append(entry))(GROUPS)

    return check


def refuse(*arguments, **options):
    raise errors.UnsupportedProblemError("not today")


def test_a_refusal_by_an_own_implementation_fails(monkeypatch, check):
    monkeypatch.setattr(dxgemm, "gemm", refuse)
    with pytest.raises(AssertionError, match="not today"):
        check(is_own=True)


def test_a_baseline_that_refuses_everything_is_skipped_with_its_reason(monkeypatch, check):
    monkeypatch.setattr(dxgemm, "gemm", refuse)
    with pytest.raises(pytest.skip.Exception, match="not today"):
        check(is_own=False)


def test_cases_and_refusals_are_counted(monkeypatch, check, recorded):
    gemm = dxgemm.gemm

    def refuse_the_second(a, *arguments, **options):
        return refuse() if a.shape == (3, 1) else gemm(a, *arguments, **options)

    monkeypatch.setattr(dxgemm, "gemm", refuse_the_second)
    check(is_own=False)
    assert recorded == [("contract_cases", (dxgemm.implementations()[0].name, 1, 1))]


def test_a_wrong_result_fails(monkeypatch, check):
    gemm = dxgemm.gemm

    def off_by_one(a, b, c, alpha, beta, *, implementation):
        gemm(a, b, c, alpha, beta, implementation=implementation)[0, 0] += 1
        return c

    monkeypatch.setattr(dxgemm, "gemm", off_by_one)
    with pytest.raises(AssertionError, match=r"worst at \[0, 0\]"):
        check(is_own=True)
