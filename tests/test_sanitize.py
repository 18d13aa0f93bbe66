"""The lanes of compute-sanitizer, as far as they can be tried without it."""

from __future__ import annotations

import pytest
import sanitize
from sanitize import Outcome, read_output, report, run_cases

from dxgemm._gpu import GpuStatus, simulator_enabled

CASES = "cases 128 refused 64\n"


@pytest.mark.skipif(not simulator_enabled(), reason="`make sanitize` runs them all")
@pytest.mark.parametrize("subject", ["coalesced", "wgmma", "fused", "series"])
def test_the_cases_are_right_on_the_simulator(subject):
    outcome = run_cases(subject)
    assert outcome.failure == ""
    assert (outcome.cases > 0) is (subject != "wgmma")


@pytest.mark.parametrize(
    "output, status, expected",
    [
        (f"{CASES}========= ERROR SUMMARY: 0 errors\n", 0, Outcome(128, 64)),
        (f"{CASES}========= ERROR SUMMARY: 1 error\n", 0, Outcome(128, 64, 1)),
        (
            f"{CASES}========= RACECHECK SUMMARY: 3 hazards displayed (1 error, 2 warnings)\n",
            0,
            Outcome(128, 64, 3),
        ),
        (
            "wrong result: x\n========= ERROR SUMMARY: 0 errors\n",
            1,
            Outcome(failure="wrong result: x"),
        ),
        (f"{CASES}", 0, Outcome(128, 64, 0, CASES.strip())),
        ("", 255, Outcome(failure="status 255")),
    ],
)
def test_what_the_tool_prints_is_read(output, status, expected):
    assert read_output(output, status, "memcheck") == expected


def test_the_plain_lane_has_no_tool():
    assert read_output(CASES, 0, sanitize.PLAIN) == Outcome(128, 64)


def test_a_lane_is_one_line_and_one_for_each_that_tells_something():
    outcomes = {"tuned": Outcome(10, 2), "wgmma": Outcome(5, 3, 4), "fused": Outcome(failure="no")}
    assert report("racecheck", outcomes, 61.2).split("\n") == [
        "racecheck: 3 subjects, 15 cases, 5 refused, 4 reports, advisory, 1 failed, 61 s",
        "    wgmma: 4 reports",
        "    fused: 0 reports: no",
    ]


@pytest.mark.parametrize("gpu_problem", [None, "no NVIDIA driver"])
def test_what_is_missing_is_named(monkeypatch, capsys, gpu_problem):
    monkeypatch.setattr(sanitize, "find_sanitizer", lambda: None)
    monkeypatch.setattr(sanitize, "probe", lambda: GpuStatus(13000, 1, gpu_problem))
    monkeypatch.setattr("sys.argv", ["sanitize.py"])
    assert sanitize.main() == 2
    missing = gpu_problem or "compute-sanitizer is not installed"
    assert capsys.readouterr().err.startswith(f"sanitize: {missing}")
