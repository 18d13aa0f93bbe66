"""The lanes of compute-sanitizer, as far as they can be tried without it."""

import json

import pytest
import sanitize
from sanitize import Outcome, read_output, report, run_cases

from dxgemm.gpu.status import GpuStatus, simulator_enabled

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
    assert report("racecheck", outcomes).split("\n") == [
        "racecheck: 3 subjects, 15 cases, 5 refused, 4 reports, advisory, 1 failed",
        "    wgmma: 4 reports",
        "    fused: 0 reports: no",
    ]


def test_every_lane_runs_every_subject_after_what_builds(monkeypatch, tmp_path, capsys):
    ran = []

    def run_lane(sanitizer, lane, subject, are_few):
        ran.append((lane, subject))
        return Outcome(4, 1, int((lane, subject) == ("memcheck", "tuned")))

    monkeypatch.setattr(sanitize, "run_lane", run_lane)
    monkeypatch.setattr(sanitize, "find_sanitizer", lambda: "compute-sanitizer")
    monkeypatch.setattr(sanitize, "probe", lambda: GpuStatus(13000, 1, None))
    out = tmp_path / "sanitizer.json"
    chosen = ["--lane=memcheck", "--lane=plain", "--subject=tuned", "--subject=wgmma"]
    monkeypatch.setattr("sys.argv", ["sanitize.py", *chosen, f"--out={out}"])
    assert sanitize.main() == 1
    assert {lane for lane, _ in ran[:2]} == {"plain"} and len(set(ran)) == 4
    assert "memcheck: 2 subjects, 8 cases, 2 refused, 1 reports" in capsys.readouterr().out
    assert json.loads(out.read_text())["lanes"]["memcheck"]["subjects"]["tuned"]["reports"] == 1
    monkeypatch.setattr("sys.argv", ["sanitize.py", "--lane=synccheck", f"--out={out}"])
    assert sanitize.main() == 0
    assert set(json.loads(out.read_text())["lanes"]) == {"plain", "memcheck", "synccheck"}


@pytest.mark.parametrize("gpu_problem", [None, "no NVIDIA driver"])
def test_what_is_missing_is_named(monkeypatch, capsys, gpu_problem):
    monkeypatch.setattr(sanitize, "find_sanitizer", lambda: None)
    monkeypatch.setattr(sanitize, "probe", lambda: GpuStatus(13000, 1, gpu_problem))
    monkeypatch.setattr("sys.argv", ["sanitize.py"])
    assert sanitize.main() == 2
    missing = gpu_problem or "compute-sanitizer is not installed"
    assert capsys.readouterr().err.startswith(f"sanitize: {missing}")
