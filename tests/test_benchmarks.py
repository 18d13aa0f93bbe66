"""The parts of benchmarks/ that need no GPU: replay, gates, what a result file says, its tables."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import dxgemm
from dxgemm import epilogues
from dxgemm.choice.tables import read_table
from dxgemm.epilogues import Epilogue
from dxgemm.gpu.status import simulator_enabled
from dxgemm.tuning import sampling

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
suite_pages, measuring, report = map(import_module, ("suite_pages", "measuring", "report"))
provenance, result_files, tables = map(import_module, ("provenance", "result_files", "tables"))
reliability_tables = import_module("reliability_tables").reliability_tables
extras, markdown = result_files.extras, report.markdown
simulated = pytest.mark.skipif(
    not simulator_enabled(), reason="its arrays are CuPy's on a GPU, where the suites check it"
)


class RecordingBenchmark:
    """Runs `pedantic` rounds as pytest-benchmark does, on the replay clock."""

    def __init__(self) -> None:
        self.durations: list[float] = []
        self.extra_info: dict[str, Any] = {}

    def pedantic(self, target: Any, setup: Any, rounds: int) -> None:
        for _ in range(rounds):
            setup()
            start = measuring.replay_clock()
            target()
            self.durations.append(measuring.replay_clock() - start)


def results_of(suite_rows: list[dict[str, Any]]) -> dict[str, Any]:
    """pytest-benchmark's JSON around some extra_info."""
    stats = {"min": 0.25, "max": 0.75, "median": 0.5, "rounds": 3}
    return {
        "machine_info": {
            "gpu": {"name": "NVIDIA H200", "driver": "580.1"}, "python_version": "3.12.3",
            "cpu": {"brand_raw": "Some CPU"}, "packages": {"torch": "2.11.0", "numpy": "2.4.6"},
        },
        "commit_info": {"id": "0123456789abcdef"},
        "benchmarks": [
            {"fullname": "bench_x.py", "extra_info": row, "stats": stats} for row in suite_rows
        ],
    }  # fmt: skip


def row_of(implementation: str, tflops: float, vs_cublas: float | None, **more: Any) -> Any:
    """A row at 1024^3 in float32, unless `more` says otherwise."""
    size = dict.fromkeys("mnk", more.pop("size", 1024))
    return {
        "dtype": "float32", **size, "batch": 1, "arrangement": "row_row_row", "epilogue": "none",
        "implementation": implementation, "precision": None, "result_dtype": None,
        "config": "128x128x8", "gpu_us": 1e3 / tflops, "tflops": tflops, "vs_cublas": vs_cublas,
        **more,
    }  # fmt: skip


def lines_of(table: Any, results: dict[str, Any]) -> list[str]:
    return markdown(table(results)).splitlines()


LADDER = results_of(
    [
        row_of("coalesced", 6.2, 0.12, size=4096, rung=2, vs_twin=1.0),
        row_of("thread_tile_2d", 26.0, 0.51, size=4096, rung=5, vs_twin=1.0),
        row_of("cublas", 51.3, 1.0, size=4096),
        row_of("thread_tile_2d", 204.0, 0.5, size=4096, rung=5, precision="tf32"),
        *(row_of("thread_tile_2d", 50.0, 0.5, size=n, rung=5) for n in (1024, 8192, 16384)),
    ]
)
CHAIN = {"epilogue": "bias | relu", "is_automatic": True, "vs_plain": 0.98}
OTHER = {**CHAIN, "is_automatic": False, "vs_plain": None, "config": None}
EPILOGUE = results_of(
    [
        row_of("tuned", 40.0, 1.25, **CHAIN),
        row_of("tuned", 50.0, 1.5625, **{**CHAIN, "is_automatic": False, "config": "64x64x8"}),
        row_of("cublas_torch", 20.0, 0.625, **OTHER),
        row_of("cublas_cupy", 32.0, 1.0, **OTHER),
        row_of("tuned", 40.0, None, **{**CHAIN, "epilogue": "relu", "vs_plain": 1 / 1.0123}),
        row_of("tuned", 40.0, None, **{**CHAIN, "epilogue": "keep", "vs_plain": 0.8}),
    ]
)
PRECISION = results_of(
    [
        row_of("cublas", 40.0, 1.0, data="normal", way="cublas", is_native=False),
        row_of("emulated_float32", 120.0, 3.0, data="normal", way="emulated", is_native=False),
        row_of("emulated_float32", 140.0, 3.5, data="normal", way=tables.PREPARED, is_native=False),
        row_of("tuned", 20.0, None, data="cancelling", way="float32", is_native=False),
        row_of("tuned", 16.0, None, data="cancelling", way="emulated", is_native=True),
    ]
)


def test_results_folder_is_named_after_the_gpu() -> None:
    assert provenance.gpu_slug("NVIDIA H200") == "nvidia-h200"
    assert provenance.gpu_slug("NVIDIA H100 80GB HBM3") == "nvidia-h100"


def test_machine_info_keeps_nothing_that_identifies_a_host(monkeypatch: Any) -> None:
    raw = {
        "node": "secret-host", "processor": "x86_64", "machine": "x86_64", "system": "Linux",
        "release": "6.1-secret-kernel", "python_build": ["main", "built by secret"],
        "python_compiler": "GCC", "python_implementation": "CPython", "python_version": "3.12.3",
        "cpu": {"brand_raw": "Some CPU", "count": 16, "arch": "X86_64", "serial": "secret"},
    }  # fmt: skip
    assert provenance.clean_machine_info(raw) == {
        "machine": "x86_64", "python_implementation": "CPython", "python_version": "3.12.3",
        "system": "Linux", "cpu": {"arch": "X86_64", "brand_raw": "Some CPU", "count": 16},
    }  # fmt: skip
    monkeypatch.setenv("DXGEMM_COMMIT", "abc123")  # where there is no checkout
    assert provenance.commit_info() == {"id": "abc123"}


def test_interleaving_takes_one_sample_of_each_variant_a_round() -> None:
    taken: list[str] = []
    variants = {name: lambda name=name: taken.append(name) or float(len(taken)) for name in "abc"}
    samples = sampling.interleave(variants, rounds=2)
    assert "".join(taken) == "abcbca"
    assert samples == {"a": [1.0, 6.0], "b": [2.0, 4.0], "c": [3.0, 5.0]}


def test_replay_hands_over_exactly_the_measured_times() -> None:
    benchmark = RecordingBenchmark()
    measuring.replay(benchmark, [1e-6, 0.1, 3e-5])
    assert benchmark.durations == [1e-6, 0.1, 3e-5]


def test_figures_have_three_digits() -> None:
    values = (0.00271, 9.504, 38.21, 123.4, 5123.0)
    assert [*map(tables.figure, values)] == ["0.00271", "9.50", "38.2", "123", "5123"]


def test_views_pivot_rows_by_labels_and_columns() -> None:
    rung = "| 5 | [thread_tile_2d](../handwritten/ladder/thread_tile_2d.py) "
    assert rung + "| float32 | 26.0 | 0.51 | 50.0 | 0.50 | 1.00 |" in lines_of(
        tables.ladder, LADDER
    )
    best = lines_of(tables.epilogue_best, EPILOGUE)
    assert best[4:] == [
        r"| float32 | `bias \| relu` | 1024 x 1024 x 1024 | row_row_row | tuned 64x64x8 "
        "| cuBLAS and a kernel of cupy.fuse | 50.0 | 32.0 | 1.56 | 1.25 | 0.98 |"
    ]
    assert tables.epilogue_best(results_of([row_of("tuned", 40.0, None)])) == []
    costs = ["| epilogue | float32 |", "| --- | ---: |", "| `relu` | 1.2 |", "| `keep` | 25.0 |"]
    assert lines_of(tables.TABLES["epilogue"][1], EPILOGUE)[2:] == costs
    size = "1024 x 1024 x 1024"
    rates, refusals = (lines_of(table, PRECISION) for table in tables.TABLES["precision"])
    assert f"| {size} | 40.0 | 120 | 140 | 3.00 | 3.50 |" in rates
    assert f"| float32 | cancelling | {size} | 62.5 | 50.0 | 1.25 |" in refusals


def test_each_suite_has_a_page_with_a_chart_a_table_and_all_rows() -> None:
    pytest.importorskip("matplotlib")
    seconds = [{"step": "first call", "seconds": s, "dtype": "float32"} for s in (0.3, 0.4)]
    own = [row_of("tuned", 6.0, 0.5), row_of("wgmma", 9.0, 0.8), row_of("cublas", 12.0, 1.0)]
    regrets = [{"dtype": "float64", "regret": regret, "vs_cublas": None} for regret in (1.0, 1.44)]
    named = {"gemm": own, "build_time": seconds, "new": regrets}
    suites = {name: results_of(rows) for name, rows in named.items()}
    files = suite_pages.site_files([suites])
    assert files == suite_pages.site_files([suites])
    for suite, results in suites.items():
        count = len(results["benchmarks"])
        assert f"[{suite}](results/{suite}.md) | {count} |" in files["results.md"]
        page = files[f"results/{suite}.md"]
        assert page.count("\n| ---") == 1
        assert page.count(f"]({suite}.svg)") == page.count(f"]({suite}-nvidia-h200.csv)") == 1
        rows = list(csv.DictReader(files[f"results/{suite}-nvidia-h200.csv"].splitlines()))
        assert [row["dtype"] for row in rows] == [r["dtype"] for r in extras(results)]
    assert "| float32 | 1 | 0.80 | 0.80 |" in files["results/gemm.md"]  # the best of dxgemm's own
    assert "| first call |  | 2 | 0.346 | 0.400 |" in files["results/build_time.md"]
    assert "| float64 | 2 | 1.20 | 1.44 |" in files["results/new.md"]  # by its first figure
    texts = [e.text for e in ElementTree.fromstring(files["results/gemm.svg"]).iter()]
    assert "float32" in texts
    assert suite_pages.site_files([])["results.md"] == suite_pages.INTRODUCTION


RUN = {
    "machine_info": {"gpu": {"name": "NVIDIA H200", "driver": "580.1"}},
    "commit_info": {"id": "0123456789abcdef"},
    "date": "2026-11-21",
}
RUNS: dict[str, Any] = {
    "sanitizer": {
        **RUN,
        "lanes": {
            "memcheck": {
                "commit": "0123456789abcdef", "date": "2026-11-21",
                "subjects": {
                    "tuned": {"cases": 1000, "refused": 0, "reports": 2, "failure": ""},
                    "wgmma": {"cases": 10, "refused": 3, "reports": 0, "failure": "no"},
                },
            }
        },
    },
    "soak": {
        **RUN, "seed": 1, "seconds": 90.0, "problems": 1234, "calls": 1500, "kernels": 165,
        "threads": 8, "streams": 26, "failure": "float32 tuned\nmore",
        "memory_bytes": {"start": 1 << 30, "most": 3 << 29, "end": 1 << 30},
    },
    "drop_in": {
        **RUN, "explained": {"sample 2": "Rounded once more."},
        "suites": {
            "torch": {
                "date": "2026-11-29", "commit": 40 * "c",
                "subjects": {
                    "mm float16": {
                        "passed": 1200, "skipped": {"torch's: an error of 2, more than 1": 2},
                        "failed": ["mm float16, sample 2: an error", "mm float16, sample 3: NaN"],
                        "routed": 7, "fell_through": {"torch.mm: no": 3},
                    },
                },
            },
        },
    },
}  # fmt: skip


def test_the_page_of_reliability_shows_committed_runs(tmp_path: Path) -> None:
    assert "No run is committed yet; `make soak`" in markdown(reliability_tables(tmp_path))
    (tmp_path / "gpu").mkdir()
    for name, run in RUNS.items():
        (tmp_path / "gpu" / f"{name}.json").write_text(json.dumps(run))
    lines = markdown(reliability_tables(tmp_path)).splitlines()
    for line in (
        "| memcheck | 2 | 1,010 | 3 | 2 | 1 | 2026-11-21 | 0123456789ab |",
        "Failed in memcheck: wgmma, no.",
        "| 1 | 1.5 | 1,234 | 1,500 | 165 | 8 | 26 | 1024 | 1536 | 1024 | float32 tuned |",
        "| torch | 1,200 | 2 | 2 | 7 | 3 | 2026-11-29 | cccccccccccc |",
        "- Skipped, torch: torch's: an error beyond the bound: 2",
        "Failed: mm float16, sample 2: an error. Rounded once more.",
        "Failed: mm float16, sample 3: NaN.",
    ):
        assert line in lines


def test_the_first_page_has_a_chart_and_a_small_table() -> None:
    rows = [row_of("tuned", 40.0, 1.25, precision="emulated"), row_of("tuned", 40.0, 1.1)]
    choice = {"dtype": "float32", "precision": None, "vs_cublas": 2.0}
    suites = {"gemm": results_of(rows), "choice_regret": results_of([choice]), "ladder": LADDER}
    host = {"host_overhead": results_of([])}
    text = report.front_text([suites, host], "docs/")
    assert "| x cuBLAS | H200, 1024 | H200, random |" in text
    assert "| float32 | 1.10 | 2.00 |" in text and "| emulated float32 | 1.25 |  |" in text
    assert text.startswith("![Every rung") and "](docs/speed.svg)" in text
    assert report.front_text([host], "") == report.NO_RESULTS
    pytest.importorskip("matplotlib")
    chart = ElementTree.fromstring(report.page_charts([suites])[report.SPEED_CHART])
    texts = [element.text for element in chart.iter()]
    assert "5 thread_tile_2d, float32" in texts and "0.51, 26.0 TFLOP/s" in texts


def test_shares_of_the_area_of_tiles_follow_from_waves() -> None:
    module = import_module("charts")
    assert module.share(1536, 1536, (128, 128), 1) == 1536**2 / (2 * 132 * 128**2)
    assert module.share(1536, 1536, (128, 144), 1) == 1536**2 / (132 * 128 * 144)
    assert module.share(256, 128 * 66, (256, 128), 2) == 1
    kernels = ["Memset (Device)", "nvjet_sm90_tst_128x72_64x8_1x2_h_bz_TNT"]
    size = {"m": 1576, "n": 768, "k": 3072, "dtype": "bfloat16", "config": "64x144 stages 6 turned"}
    suites = {"half": results_of([{**size, "torch_kernels": kernels}])}
    (found,) = module.shares([suites])
    assert found.chosen == module.share(1576, 768, (144, 64), 1)
    assert found.cublas == module.share(1576, 768, (144, 128), 2) and found.plain < found.cublas
    pytest.importorskip("matplotlib")
    assert "1576 x 768 x 3072" in report.page_charts([suites])[report.SHARE_CHART]


def test_kernels_are_listed_with_what_was_measured() -> None:
    own = [i for i in dxgemm.implementations() if i.is_own and i.rung is not None]
    assert [rung.name for rung in tables.rungs()] == [implementation.name for implementation in own]
    assert all(report.first_sentence(tables.kernel_path(rung)).endswith(".") for rung in own)
    text = report.handwritten_readme([{"ladder": LADDER}])
    assert "[thread_tile_2d.py](ladder/thread_tile_2d.py)" in text
    assert "[thread_tile_2d](ladder/thread_tile_2d.py) | float32 | 26.0" in text


def test_pages_keep_what_is_outside_the_markers() -> None:
    around = f"before\n{report.BEGIN}\n{{}}\n{report.END}\nafter\n"
    page = report.replace_between_markers(around.format("old"), "new")
    assert page == around.format("new")
    with pytest.raises(ValueError, match="results:begin"):
        report.replace_between_markers("no markers", "")


def test_results_are_written_without_what_nobody_reads(tmp_path: Path) -> None:
    raw = results_of([{"gpu_us": 1.5}, {"gpu_us": 2.5}])
    noisy = [
        {**one, "options": {}, "stats": {**one["stats"], "iqr": 0.1}} for one in raw["benchmarks"]
    ]
    path = result_files.save("gemm", {**raw, "benchmarks": noisy}, tmp_path)
    assert path == tmp_path / "nvidia-h200" / "gemm.json" and json.loads(path.read_text()) == raw
    assert len([line for line in path.read_text().splitlines() if "bench_x.py" in line]) == 2
    result_files.save("another", raw, tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "nvidia-h200" / "soak.json").write_text(json.dumps(RUNS["soak"]))
    assert [*result_files.load_results(tmp_path)[0].items()] == [("gemm", raw), ("another", raw)]


def run_script(name: str, *arguments: object) -> str:
    """Run a script in a process of its own, without the simulator unless it asks for it; output."""
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"}
    path = [str(Path(dxgemm.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    command = [sys.executable, str(BENCHMARKS / name), *map(str, arguments)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def test_a_table_is_fitted_without_a_gpu(tmp_path: Path) -> None:
    lines = [
        json.dumps({"workload": ["float64", size, size, size], "us": {"naive 128x1": size / 10}})
        for size in (16, 32, 64, 128, 256)
    ]
    packed, table = tmp_path / "tuning.jsonl.gz", tmp_path / "table"
    packed.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    for workloads in (5, 5):  # the second time from the table of the first
        run_script("fit_table.py", "nvidia-h200", "--observations", packed, "--table", table)
        assert json.loads((table / "chip.json").read_text())["workloads"] == workloads
    run_script("fit_table.py", "nvidia-h200", "--amend", "--observations", packed, "--table", table)
    assert ("float64", "naive", "128x1") in read_table(table).speeds


@simulated
def test_every_suite_runs_in_the_simulator_and_leaves_no_results(tmp_path: Path) -> None:
    printed = run_script("run.py", "--smoke", "--out", tmp_path)
    assert all(f"bench_{suite}.py" in printed for suite in result_files.SUITES)
    assert list(tmp_path.iterdir()) == []


def test_cases_are_all_combinations_of_axes() -> None:
    cases = import_module("cases")
    kinds = [{"dtype": "float32"}, {"dtype": "float32", "precision": "tf32"}]
    sizes = [4, (1, 2, 3), (5, 6, 7, 8)]
    shapes = [(4, 4, 4, 1), (1, 2, 3, 1), (5, 6, 7, 8)]
    found = cases.grid(of=kinds, size=sizes, arrangement="row_col_row")
    assert [(c.precision, c.m, c.n, c.k, c.batch, c.arrangement) for c in found] == [
        (precision, *shape, "row_col_row") for precision in (None, "tf32") for shape in shapes
    ]


def test_the_gate_takes_what_is_exact_and_no_other_result() -> None:
    cases = import_module("cases")
    case = cases.Case("int8", 6, 5, 3, "row_col_row")
    assert case.bytes_moved == 6 * 3 + 3 * 5 + 4 * 6 * 5

    def wrong(case: Any, x: Any) -> Any:
        plan = cases.own("widening_tile")(case, x)
        return lambda: plan() + np.eye(6, 5, dtype="int32")

    found = measuring.measure(case, {"own": cases.own("widening_tile"), "wrong": wrong})
    assert found["own"].samples_s and found["own"].explanation and not found["own"].wrong
    assert "wrong gives a wrong result" in found["wrong"].wrong and not found["wrong"].samples_s


def test_what_a_rival_raises_fails_no_other_row(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = import_module("cases")
    case, own = cases.Case("float32", 6, 5, 3), cases.own("naive")
    blocked: list[Any] = []
    calls: list[str] = []

    def blocking(case: Any, x: Any) -> Any:
        blocked.append(own(case, x))
        return blocked[-1]

    def waiting(case: Any, x: Any) -> Any:
        return measuring.Waiting(own(case, x))

    def unmade(case: Any, x: Any) -> Any:
        raise RuntimeError("Invalid scaling configuration.")

    def unsampled(case: Any, x: Any) -> Any:
        def call() -> Any:
            calls.append("unsampled")
            if len(calls) > 2:  # the check, the first time
                raise MemoryError("no memory")
            return own(case, x)()

        return call

    def holding(calls: Any) -> float:
        """As a timer that holds the stream: what blocks the host is never enqueued in time."""
        if calls[0] in blocked:
            raise RuntimeError("not enqueued in 1 s")
        return float(measuring.seconds_by_host(calls))

    monkeypatch.setattr(measuring, "timer", lambda: holding)
    makers = (blocking, waiting, unmade, unsampled)
    variants = {"own": own} | {each.__name__: each for each in makers}
    found = measuring.measure(case, variants)
    assert [name for name, one in found.items() if one.samples_s] == ["own", "waiting"]
    for name, text in (("blocking", "1 s"), ("unmade", "scaling"), ("unsampled", "no memory")):
        assert text in found[name].wrong

    run = measuring.bench([case], {"own": own, "unmade": unmade}, {"blocking": blocking})
    (parameters,) = [mark.args[1] for mark in run.pytestmark if mark.name == "parametrize"]
    (row, _), (_, unmade_name) = parameters
    benchmark = RecordingBenchmark()
    with pytest.warns(UserWarning, match="blocking is left out: Traceback") as warned:
        run(benchmark, row, "own")
        with pytest.raises(pytest.fail.Exception, match="scaling"):  # its own row
            run(benchmark, row, unmade_name)
    assert len(warned) == 2 and benchmark.extra_info["implementation"] == "naive"


@simulated
def test_a_twofold_product_is_exact_where_float64_is_not() -> None:
    precision = import_module("bench_precision")
    rng = np.random.default_rng(1)
    x = precision.PrecisionCase("float64", 2, 3, 102, data="cancelling").operands(rng)
    a, b = x.a, x.b
    upper, lower = precision.twofold_product(a, b)
    for i, j in np.ndindex(2, 3):
        terms = [Fraction(x) * Fraction(y) for x, y in zip(a[i], b[:, j], strict=True)]
        rest = sum(terms) - Fraction(upper[i, j]) - Fraction(lower[i, j])
        assert abs(rest) <= sum(map(abs, terms)) / 2**98
    x = precision.PrecisionCase("float32", 6, 5, 8, data="cancelling").operands(rng)
    a, b = x.a, x.b
    assert (abs(a @ b) < 1e-5 * (abs(a) @ abs(b))).all()


@simulated
def test_chains_and_reducers_are_what_they_are_called() -> None:
    fused, reduced = import_module("fused"), import_module("bench_epilogue")
    catalogue = {name: each for name, each in vars(epilogues).items() if isinstance(each, Epilogue)}
    others = {name for name, each in catalogue.items() if each.takes_pairs or each.returns_real}
    others |= {name for name in catalogue if name.startswith("fast_")}  # less exact than the gate
    assert catalogue.keys() - others == {text for text in fused.CHAINS if " | " not in text}
    values = np.random.default_rng(0).normal(0, 2, (6, 5))
    for text, chain in fused.CHAINS.items():
        assert repr(chain.bind(*(None for _ in chain.operands))) == text
        if "magnitude" in text:
            continue  # of complex numbers
        case = fused.FusedCase("float64", 6, 5, 3, epilogue=text)
        arrays = case.operands(np.random.default_rng(1), is_exact=True).arrays
        expected, _ = chain.bind(*arrays.values()).on_host(values)
        found = chain.on_arrays(values, *fused.as_columns(arrays))
        tolerance = 1e-6 if text == "dequantise" else 1e-14
        np.testing.assert_allclose(found, expected, tolerance, tolerance, err_msg=text)
    for text, reducer in reduced.REDUCERS.items():
        reduction = reducer.bind()
        assert str(reduction) == text
        wanted = reducer.found(reduction.on_host(values), 5)
        for one, other in zip(wanted, reducer.found(reducer.in_cupy(values.copy()), 5)):
            assert (one is None) == (other is None)
            if one is not None:
                np.testing.assert_allclose(other, one, rtol=1e-14)


@simulated
def test_the_gate_of_epilogues_stops_what_is_wrong() -> None:
    fused = import_module("fused")
    for text in ("keep", "gelu"):
        case = fused.FusedCase("float32", 6, 5, 3, epilogue=text)
        x = case.operands(np.random.default_rng(1), is_exact=True)
        sums, values, peak = case.expected(x)
        plan, plain = fused.fused()(case, x), fused.plain()(case, x)
        case.check("own", plan, x, (sums, values, peak))
        case.check("plain", plain, x, (sums, values, peak))
        error = 1e-4 * (np.arange(30).reshape(6, 5) == 29)
        wrong = [(plan, sums, values + error), (plain, sums + 1, values)]
        wrong += [(plan, sums + 1, values)] if text == "keep" else []  # what is kept
        for call, *expected in wrong:
            with pytest.raises(dxgemm.errors.WrongResultError, match="own gives a wrong result"):
                case.check("own", call, x, (*expected, peak))
    # In half precision, what a later step cancels is as exact as the activation.
    case = fused.FusedCase("float16", 6, 5, 3, epilogue="bias | gelu | residual")
    x = case.operands(np.random.default_rng(1), is_exact=True)
    x.arrays["matrix"][:] = x.arrays["matrix"] - case.expected(x)[1]
    plan, (sums, values, peak) = fused.fused()(case, x), case.expected(x)
    case.check("own", plan, x, (sums, values + 2.0**-15 * peak, peak))
    with pytest.raises(dxgemm.errors.WrongResultError):
        case.check("own", plan, x, (sums, values + 2.0**-11 * peak, peak))
