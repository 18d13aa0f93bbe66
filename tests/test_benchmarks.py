"""The parts of benchmarks/ that need no GPU: replay, what a result file says, its tables."""

from __future__ import annotations

import csv
import gzip
import importlib
import json
import os
import subprocess
import sys
from fractions import Fraction
from itertools import product
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
suite_pages, measuring, pages = map(
    importlib.import_module, ("suite_pages", "measuring", "markdown_pages")
)
charts, provenance, result_files, tables, twins = map(
    importlib.import_module, ("charts", "provenance", "result_files", "tables", "twins")
)
reliability_tables = importlib.import_module("reliability_tables").reliability_tables
extras, markdown = result_files.extras, pages.markdown


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


def results_of(
    suite_rows: list[dict[str, Any]], commit: str = "0123456789abcdef"
) -> dict[str, Any]:
    """pytest-benchmark's JSON around some extra_info."""
    stats = {"min": 0.25, "max": 0.75, "median": 0.5, "iqr": 0.1, "rounds": 3}
    return {
        "machine_info": {
            "gpu": {"name": "NVIDIA H200", "driver": "580.1"},
            "cpu": {"brand_raw": "Some CPU"},
            "python_version": "3.12.3",
            "packages": {"torch": "2.11.0", "numpy": "2.4.6"},
        },
        "commit_info": {"id": "0123456789abcdef"},
        "benchmarks": [{"extra_info": row, "stats": stats} for row in suite_rows],
    }


def gemm_row(implementation: str, tflops: float, vs_cublas: float | None) -> dict[str, Any]:
    return {
        "dtype": "float32", "m": 1024, "n": 1024, "k": 1024, "batch": 1,
        "arrangement": "row_row_row", "epilogue": "none", "implementation": implementation,
        "precision": None, "result_dtype": None, "config": "128x128x8", "gpu_us": 70.5,
        "tflops": tflops, "gbytes_per_s": 178.0, "vs_cublas": vs_cublas,
    }  # fmt: skip


def ladder_row(
    implementation: str, tflops: float, vs_cublas: float | None, **changes: Any
) -> dict[str, Any]:
    """One rung at 4096^3 in float32, unless `changes` says otherwise."""
    own = {
        "rung": None if implementation == "cublas" else 5, "precision": None,
        "twin_tflops": None, "vs_twin": None, "blocks": 1024, "waves": 7.8, "threads": 256,
        "registers": 128, "smem_bytes": 16384, "blocks_per_sm": 2, "configs_us": {},
    }  # fmt: skip
    sizes = dict.fromkeys("mnk", changes.pop("size", 4096))
    return {**gemm_row(implementation, tflops, vs_cublas), **sizes, **own, **changes}


def epilogue_row(
    implementation: str, tflops: float, vs_cublas: float | None, **changes: Any
) -> dict[str, Any]:
    """A chain at 1024^3 in float32, unless `changes` says otherwise."""
    own = {
        "precision": None, "result_dtype": None, "epilogue": "bias | relu", "is_automatic": True,
        "vs_plain": 0.98, "gpu_us": 1e3 / tflops,
    }  # fmt: skip
    return {**gemm_row(implementation, tflops, vs_cublas), **own, **changes}


def host_row(call: str, dtype: str, host_us: float) -> dict[str, Any]:
    return {
        "library": "cupy", "call": call, "dtype": dtype, "m": 64, "n": 64, "k": 64,
        "implementation": "thread_tile_2d", "host_us": host_us,
    }  # fmt: skip


GEMM = results_of([gemm_row("coalesced", 6.2, 0.16), gemm_row("cublas", 38.21, 1.0)])
HOST = results_of(
    [
        host_row("gemm(a, b, out=c)", "float32", 9.5),
        host_row("cupy.matmul(a, b, out=c)", "float32", 24.6),
        host_row("gemm(a, b, out=c)", "float64", 12.5),
        host_row("cupy.matmul(a, b, out=c)", "float64", 24.1),
    ]
)
BUILD = results_of(
    [
        {"step": "first call", "seconds": 0.3, "dtype": "float32", "loaded": []},
        {"step": "first call", "seconds": 0.4, "dtype": "float64", "loaded": []},
        {
            "step": "kernel",
            "seconds": 41.0,
            "dtype": "float64",
            "implementation": "pipeline",
            "loaded": ["numba"],
        },
        {"step": "build", "seconds": 123.4, "loaded": ["libnvvm.so.4", "numba"]},
    ]
)
LADDER = results_of(
    [
        ladder_row("coalesced", 6.2, 0.12, twin_tflops=6.2, vs_twin=1.0, rung=2),
        ladder_row("thread_tile_2d", 26.0, 0.51, twin_tflops=26.0, vs_twin=1.0),
        ladder_row("cublas", 51.3, 1.0),
        ladder_row("thread_tile_2d", 15.0, 0.25, dtype="float64"),
        ladder_row("cublas", 62.0, 1.0, dtype="float64"),
        ladder_row("thread_tile_2d", 204.0, 0.5, precision="tf32"),
        ladder_row("cublas", 408.0, 1.0, precision="tf32"),
        *(ladder_row("thread_tile_2d", 50.0, 0.5, size=n) for n in (1024, 2048, 8192, 16384)),
    ]
)
OTHER = {"is_automatic": False, "vs_plain": None, "config": None}
EPILOGUE = results_of(
    [
        epilogue_row("tuned", 40.0, 1.25),
        epilogue_row("tuned", 50.0, 1.5625, is_automatic=False, config="64x64x8"),
        epilogue_row("cublas_torch", 20.0, 0.625, **OTHER),
        epilogue_row("cublas_cupy", 32.0, 1.0, **OTHER),
        epilogue_row("tuned", 40.0, None, epilogue="relu", vs_plain=1 / 1.0123),
        epilogue_row("tensor_core", 60.0, None, epilogue="relu", vs_plain=1.01, dtype="float64"),
        epilogue_row("tuned", 40.0, None, epilogue="keep", vs_plain=0.8),
        epilogue_row(
            "pipeline", 400.0, None, epilogue="dequantise", dtype="int8", result_dtype="float32"
        ),
    ]
)
REDUCTIONS = [
    epilogue_row(name, 1e3 / us, ratio, epilogue="sum(axis=1)", way=path, **changes)
    for name, us, ratio, path, changes in (
        ("tuned", 20.0, 1.5, "fused", {"vs_plain": 0.75}),
        ("wgmma", 40.0, 0.75, "unfused", {"is_automatic": False}),
        ("cublas_cupy_reduction", 30.0, 1.0, None, OTHER),
        ("cublas_torch_reduction", 60.0, 0.5, None, OTHER),
    )
]
README = f"before\n{pages.BEGIN}\nold\n{pages.END}\nafter\n"


@pytest.mark.parametrize(
    ("name", "slug"),
    [("NVIDIA H200", "nvidia-h200"), ("NVIDIA H100 80GB HBM3", "nvidia-h100")],
)
def test_results_folder_is_named_after_the_gpu(name: str, slug: str) -> None:
    assert provenance.gpu_slug(name) == slug


def test_machine_info_keeps_nothing_that_identifies_a_host() -> None:
    raw = {
        "node": "secret-host", "processor": "x86_64", "machine": "x86_64", "system": "Linux",
        "release": "6.1-secret-kernel", "python_build": ["main", "built by secret"],
        "python_compiler": "GCC", "python_implementation": "CPython", "python_version": "3.12.3",
        "cpu": {"brand_raw": "Some CPU", "count": 16, "arch": "X86_64", "serial": "secret"},
    }  # fmt: skip
    cleaned = provenance.clean_machine_info(raw)
    assert cleaned == {
        "machine": "x86_64",
        "python_implementation": "CPython",
        "python_version": "3.12.3",
        "system": "Linux",
        "cpu": {"arch": "X86_64", "brand_raw": "Some CPU", "count": 16},
    }


def test_commit_can_be_named_where_there_is_no_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DXGEMM_COMMIT", "abc123")
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


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.00271, "0.00271"), (9.504, "9.50"), (38.21, "38.2"), (123.4, "123"), (5123.0, "5123")],
)
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert tables.figure(value) == text


def pipeline_row(implementation: str, tflops: float, vs_cublas: float, **changes: Any) -> Any:
    plain = {"precision": None, "result_dtype": None}
    return {**gemm_row(implementation, tflops, vs_cublas), **plain, **changes}


def test_ladder_names_each_rung_against_cublas_and_its_twin() -> None:
    lines = markdown(tables.ladder(LADDER)).splitlines()
    rung = "| 5 | [thread_tile_2d](../handwritten/ladder/thread_tile_2d.py) "
    assert rung + "| float32 | 26.0 | 0.51 | 50.0 | 0.50 | 1.00 |" in lines
    assert rung + "| tf32 | 204 | 0.50 |  |  |  |" in lines
    assert "|  | cuBLAS | float64 | 62.0 | 1.00 |  |  |  |" in lines


def test_epilogues_are_shown_against_the_quickest_other() -> None:
    (row,) = markdown(tables.epilogue_best(EPILOGUE)).splitlines()[4:]
    assert row == (
        "| float32 | bias | relu | 1024 x 1024 x 1024 | row_row_row | tuned 64x64x8 "
        "| cuBLAS and a kernel of cupy.fuse | 50.0 | 32.0 | 1.56 | 1.25 | 0.98 |"
    ).replace("bias | relu", "`bias \\| relu`")
    assert tables.epilogue_best(results_of([epilogue_row("tuned", 40.0, None)])) == []


def test_costs_of_epilogues_are_percent_of_the_plain_kernel() -> None:
    lines = markdown(tables.epilogue_costs(EPILOGUE)).splitlines()
    assert lines[2:] == [
        "| epilogue | float32 | float64 | int8 |",
        "| --- | ---: | ---: | ---: |",
        "| `relu` | 1.2 | -1.0 |  |",
        "| `keep` | 25.0 |  |  |",
        "| `dequantise` |  |  | 2.0 |",
    ]


def test_reductions_are_shown_against_the_quickest_other() -> None:
    results = results_of([*(b["extra_info"] for b in EPILOGUE["benchmarks"]), *REDUCTIONS])
    row = markdown(tables.epilogue_best(results)).splitlines()[-1]
    assert row == (
        "| float32 | `sum(axis=1)` | 1024 x 1024 x 1024 | row_row_row | tuned 128x128x8 fused "
        "| cuBLAS and CuPy | 50.0 | 33.3 | 1.50 | 1.50 | 0.75 |"
    )
    assert tables.epilogue_costs(results) == tables.epilogue_costs(EPILOGUE)


def accuracy_row(implementation: str, k: int, max_error: float, data: str = "normal") -> dict:
    return {
        "kind": "float32", "data": data, "dtype": "float32", "m": 256, "n": 256, "k": k,
        "implementation": implementation, "answered_by": "tuned", "config": "64x64x8", "slices": 1,
        "max_error": max_error, "rms_error": max_error / 8, "ratio": max_error / 20,
    }  # fmt: skip


ACCURACY = results_of(
    [
        accuracy_row(name, k, error * scale, data)
        for data, scale in (("normal", 1), ("uniform", 2))
        for name, error in (("automatic", 0.5), ("warp_tile", 4.0), ("tuned", 0.5), ("cublas", 1.0))
        for k in (64, 256, 1024)
    ]
)


def test_each_suite_has_a_page_with_a_chart_a_table_and_all_rows() -> None:
    pytest.importorskip("matplotlib")
    suites = {"gemm": GEMM, "accuracy": ACCURACY, "host_overhead": HOST, "build_time": BUILD}
    files = suite_pages.site_files([suites])
    assert files == suite_pages.site_files([suites])
    for suite, results in suites.items():
        assert (
            f"[{suite}](results/{suite}.md) | {len(results['benchmarks'])} |" in files["results.md"]
        )
        page = files[f"results/{suite}.md"]
        assert page.count("\n| ---") == 1
        assert page.count(f"]({suite}.svg)") == page.count(f"]({suite}-nvidia-h200.csv)") == 1
        rows = list(csv.DictReader(files[f"results/{suite}-nvidia-h200.csv"].splitlines()))
        assert [row["dtype"] for row in rows] == [r.get("dtype", "") for r in extras(results)]
    assert "| float32 | 1 | 0.16 | 0.16 |" in files["results/gemm.md"]  # of dxgemm's own
    assert "| first call |  | 2 | 0.346 | 0.400 |" in files["results/build_time.md"]
    assert "| float32 | uniform | 3 | 1.00 | 1.00 |" in files["results/accuracy.md"]
    texts = [e.text for e in ElementTree.fromstring(files["results/accuracy.svg"]).iter()]
    assert {"float32 normal", "float32 uniform"} <= set(texts)
    assert suite_pages.site_files([])["results.md"] == suite_pages.INTRODUCTION


def test_a_suite_that_is_not_listed_is_shown_by_its_first_figure() -> None:
    rows = [
        {"dtype": dtype, "precision": None, "regret": regret, "vs_cublas": None}
        for dtype, regret in (("float64", 1.0), ("float64", 1.44), ("float32", 1.0))
    ]
    files = suite_pages.site_files([{"new": results_of(rows)}])
    assert "| arithmetic | rows | H200 | most |" in files["results/new.md"]
    assert "| float64 | 2 | 1.20 | 1.44 |" in files["results/new.md"]


def test_the_best_own_kernel_of_a_problem_counts() -> None:
    rows = [gemm_row("tuned", 6.0, 0.5), gemm_row("wgmma", 9.0, 0.8), gemm_row("cublas", 12.0, 1.0)]
    page = suite_pages.site_files([{"gemm": results_of(rows)}])["results/gemm.md"]
    assert "| float32 | 1 | 0.80 | 0.80 |" in page


RUN = {
    "machine_info": {"gpu": {"name": "NVIDIA H200", "driver": "580.1"}},
    "commit_info": {"id": "0123456789abcdef"},
    "date": "2026-11-21",
}
SANITIZER = {
    "machine_info": RUN["machine_info"],
    "lanes": {
        "memcheck": {
            "commit": "0123456789abcdef",
            "date": "2026-11-21",
            "subjects": {
                "tuned": {"cases": 1000, "refused": 0, "reports": 2, "failure": ""},
                "wgmma": {"cases": 10, "refused": 3, "reports": 0, "failure": "no"},
            },
        }
    },
}
SOAK = {
    **RUN, "seed": 1, "seconds": 90.0, "problems": 1234, "calls": 1500, "kernels": 165,
    "threads": 8, "streams": 26, "failure": "",
    "memory_bytes": {"start": 1 << 30, "most": 3 << 29, "end": 1 << 30},
    "by_kind": {"float32": 1000, "tf32": 234}, "by_implementation": {}, "by_extra": {},
}  # fmt: skip


def test_the_page_of_reliability_shows_committed_runs(tmp_path: Path) -> None:
    assert "No run is committed yet; `make soak`" in markdown(reliability_tables(tmp_path))
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "sanitizer.json").write_text(json.dumps(SANITIZER))
    soak = {**SOAK, "failure": "float32 tuned\nmore"}
    (tmp_path / "gpu" / "soak.json").write_text(json.dumps(soak))
    text = markdown(reliability_tables(tmp_path))
    assert "| memcheck | 2 | 1,010 | 3 | 2 | 1 | 2026-11-21 | 0123456789ab |" in text
    assert "Failed in memcheck: wgmma, no." in text
    assert "| 1 | 1.5 | 1,234 | 1,500 | 165 | 8 | 26 | 1024 | 1536 | 1024 | float32 tuned |" in text


DROP_IN = {
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
}  # fmt: skip


def test_the_page_of_reliability_shows_tests_of_others(tmp_path: Path) -> None:
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "drop_in.json").write_text(json.dumps(DROP_IN))
    text = markdown(reliability_tables(tmp_path))
    assert "| torch | 1,200 | 2 | 2 | 7 | 3 | 2026-11-29 | cccccccccccc |" in text
    assert "- Skipped, torch: torch's: an error beyond the bound: 2" in text
    assert "Failed: mm float16, sample 2: an error. Rounded once more." in text
    assert "Failed: mm float16, sample 3: NaN." in text


def test_pages_show_the_suites_that_there_are() -> None:
    text = pages.suite_text([{"gemm": GEMM}, {"epilogue": EPILOGUE}], "epilogue")
    assert text.startswith("### NVIDIA H200\n\nDriver 580.1")
    assert markdown(tables.epilogue_costs(EPILOGUE)) in text
    assert pages.suite_text([{"gemm": GEMM}], "epilogue") == pages.NO_RESULTS


def precision_row(variant: str, **changes: Any) -> dict[str, Any]:
    """Row of a variant of 1024^3 in float32, unless `changes` says otherwise."""
    own = {
        "data": "normal", "way": variant, "is_native": False,
        "max_error": 0.7512, "rms_error": 0.1234,
    }  # fmt: skip
    return {**gemm_row("emulated_float32", 120.0, 3.0), **own, **changes}


PRECISION = results_of(
    [
        precision_row("cublas", tflops=40.0, vs_cublas=1.0),
        precision_row("emulated"),
        precision_row("emulated, b prepared", tflops=140.0, vs_cublas=3.5),
        precision_row("float32", data="cancelling", gpu_us=50.0),
        precision_row("emulated", data="cancelling", is_native=True, gpu_us=60.0),
        precision_row("bf16x6, promoted every 1", rms_error=0.05),
    ]
)


def test_precisions_are_shown_by_rate_and_refusal() -> None:
    size = "1024 x 1024 x 1024"
    parts = [part for table in tables.TABLES["precision"] for part in table(PRECISION)]
    text = markdown(parts).splitlines()
    assert f"| {size} | 40.0 | 120 | 140 | 3.00 | 3.50 |" in text
    assert f"| float32 | cancelling | {size} | 60.0 | 50.0 | 1.20 |" in text


def test_the_first_page_has_a_chart_and_a_small_table() -> None:
    rows = [pipeline_row("tuned", 40.0, 1.25, precision="emulated"), gemm_row("tuned", 40.0, 1.1)]
    choice = {"dtype": "float32", "precision": None, "vs_cublas": 2.0}
    suites = {"gemm": results_of(rows), "choice_regret": results_of([choice]), "ladder": LADDER}
    text = pages.front_text([suites, {"host_overhead": HOST}], "docs/")
    assert "| x cuBLAS | H200, 1024 | H200, random |" in text
    assert "| float32 | 1.10 | 2.00 |" in text and "| emulated float32 | 1.25 |  |" in text
    assert text.startswith("![Every rung") and "](docs/speed.svg)" in text
    assert pages.front_text([{"host_overhead": HOST}], "") == pages.NO_RESULTS
    pytest.importorskip("matplotlib")
    chart = ElementTree.fromstring(pages.page_charts([suites])[pages.SPEED_CHART])
    texts = [element.text for element in chart.iter()]
    assert "5 thread_tile_2d, float32" in texts and "0.51, 26.0 TFLOP/s" in texts


def test_shares_of_the_area_of_tiles_follow_from_waves(monkeypatch, tmp_path) -> None:
    module = importlib.import_module("tile_shares")
    assert module.share(1536, 1536, (128, 128), 1) == 1536**2 / (2 * 132 * 128**2)
    assert module.share(1536, 1536, (128, 144), 1) == 1536**2 / (132 * 128 * 144)
    assert module.share(256, 128 * 66, (256, 128), 2) == 1
    size = {"m": 1576, "n": 768, "k": 3072}
    row = size | {"family": "plain", "dtype": "bfloat16", "arrangement": "row_col_row"}
    suite = results_of([row | {"config": "64x144 stages 6 turned"}])
    folder = tmp_path / "nvidia-h200"
    folder.mkdir()
    kernels = ["Memset (Device)", "nvjet_sm90_tst_128x72_64x8_1x2_h_bz_TNT"]
    (folder / module.NAME).write_text(json.dumps({"rows": [size | {"kernels": kernels}]}))
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    (found,) = module.shares([{"half": suite}])
    assert found.chosen == module.share(1576, 768, (144, 64), 1)
    assert found.cublas == module.share(1576, 768, (144, 128), 2) and found.plain < found.cublas
    pytest.importorskip("matplotlib")
    assert "1576 x 768 x 3072" in pages.page_charts([{"half": suite}])[pages.SHARE_CHART]


def test_a_twofold_product_is_exact_where_float64_is_not() -> None:
    if not simulator_enabled():
        pytest.skip("its arrays are CuPy's on a GPU, where the suite checks what it measures")
    precision = importlib.import_module("precision_cases")
    rng = np.random.default_rng(1)
    a, b = precision.cancelling(rng, "float64", 2, 3, 102)
    upper, lower = precision.twofold_product(a, b)
    for i, j in np.ndindex(2, 3):
        terms = [Fraction(x) * Fraction(y) for x, y in zip(a[i], b[:, j], strict=True)]
        rest = sum(terms) - Fraction(upper[i, j]) - Fraction(lower[i, j])
        assert abs(rest) <= sum(map(abs, terms)) / 2**98


def test_operands_of_the_suite_precision_are_what_they_are_called() -> None:
    if not simulator_enabled():
        pytest.skip("its arrays are CuPy's on a GPU, where the suite checks what it measures")
    precision = importlib.import_module("precision_cases")
    for dtype, (data, make) in product(("float32", "float64"), precision.DATA.items()):
        a, b = make(np.random.default_rng(0), dtype, 6, 5, 8)
        assert (a.shape, b.shape, a.dtype, b.dtype) == ((6, 8), (8, 5), *(dtype,) * 2), data
    a, b = precision.cancelling(np.random.default_rng(0), "float32", 6, 5, 8)
    assert (abs(a @ b) < 1e-5 * (abs(a) @ abs(b))).all()


def test_reducers_are_what_they_are_called() -> None:
    if not simulator_enabled():
        pytest.skip("its arrays are CuPy's on a GPU, where the suite checks what it measures")
    reduced = importlib.import_module("reduced")
    matrix = np.random.default_rng(0).normal(size=(6, 5))
    for text, reducer in reduced.REDUCERS.items():
        reduction = reducer.bind()
        assert str(reduction) == text
        expected = reducer.found(reduction.on_host(matrix), 5)
        found = reducer.found(reducer.in_cupy(matrix.copy()), 5)
        for wanted, part in zip(expected, found, strict=True):
            assert (wanted is None) == (part is None)
            if wanted is not None:
                np.testing.assert_allclose(part, wanted, rtol=1e-14)


def test_every_rung_has_a_number_and_a_first_sentence() -> None:
    own = [i for i in dxgemm.implementations() if i.is_own and i.rung is not None]
    assert [rung.name for rung in tables.rungs()] == [implementation.name for implementation in own]
    for rung in own:
        assert pages.first_sentence(tables.kernel_path(rung)).endswith(".")


def test_kernels_are_listed_with_what_was_measured() -> None:
    text = pages.handwritten_readme([{"ladder": LADDER}])
    assert "[thread_tile_2d.py](ladder/thread_tile_2d.py)" in text
    assert "[thread_tile_2d](ladder/thread_tile_2d.py) | float32 | 26.0" in text
    assert "## NVIDIA H200" in text


def test_twins_are_of_one_gpu_size_and_dtype() -> None:
    shape = (4096, 4096, 4096)
    assert twins.twin_tflops("coalesced", "float32", None, shape, "NVIDIA H200") == 6.2
    assert twins.twin_tflops("coalesced", "float64", None, shape, "NVIDIA H200") is None
    assert twins.twin_tflops("coalesced", "float32", None, (1, 1, 1), "NVIDIA H200") is None
    assert twins.twin_tflops("coalesced", "float32", None, shape, "NVIDIA A100") is None


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
    assert ("float64", "naive", "128x1") in read_table(table).speeds


def test_times_of_tiles_are_added_to_those_of_a_table_and_judged(tmp_path: Path) -> None:
    best, other, alone = "wgmma 128x192 stages 5", "wgmma 128x256 stages 4", "naive 128x1"
    problem = ["float16", 4096, 4096, 4096, 1, None, "row_col", False]
    kept = {"workload": problem, "us": {best: 220.0, alone: 9e4}}
    times = {"workload": problem, "us": {best: 200.0, other: 210.0, "torch": 190.0}}
    packed, path = tmp_path / "tuning.jsonl.gz", tmp_path / "times.jsonl"
    packed.write_bytes(gzip.compress(f"{json.dumps(kept)}\n".encode()))
    path.write_text(f"{json.dumps(times)}\n")
    run_script("tile_times.py", path, "--add-to", packed)
    (line,) = gzip.decompress(packed.read_bytes()).decode().splitlines()
    assert json.loads(line)["us"] == {best: 200.0, other: 210.0, alone: 9e4}
    printed = run_script("tile_times.py", path, "--summary").splitlines()
    assert "torch   190.0  best   200.0 (0.95)" in printed[0]
    costs = {line.split("without ")[1].split("  ")[0]: line.split()[-1] for line in printed[4:]}
    assert costs["128x192 stages 5"] == "1.05" and costs["128x256 stages 4"] == "1.00"


def test_every_suite_runs_in_the_simulator_and_leaves_no_results(tmp_path: Path) -> None:
    if not simulator_enabled():
        pytest.skip("on a GPU the suites run themselves")
    printed = run_script("run.py", "--smoke", "--out", tmp_path)
    assert all(f"bench_{suite}.py" in printed for suite in result_files.SUITES)
    assert list(tmp_path.iterdir()) == []


def test_pages_keep_what_is_outside_the_markers() -> None:
    page = pages.replace_between_markers(README, "new")
    assert page == f"before\n{pages.BEGIN}\nnew\n{pages.END}\nafter\n"


def test_the_gate_takes_what_is_exact_and_no_other_result() -> None:
    cases = importlib.import_module("cases")
    case = cases.Case("int8", 6, 5, 3, "row_col_row")
    assert case.bytes_moved == 6 * 3 + 3 * 5 + 4 * 6 * 5

    def wrong(case: Any, x: Any) -> Any:
        plan = cases.own("widening_tile")(case, x)
        return lambda: plan() + np.eye(6, 5, dtype="int32")

    found = measuring.measure(case, {"own": cases.own("widening_tile"), "wrong": wrong})
    assert found["own"].samples_s and found["own"].explanation and not found["own"].wrong
    assert "wrong gives a wrong result" in found["wrong"].wrong and not found["wrong"].samples_s


def test_what_a_rival_raises_fails_no_other_row(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = importlib.import_module("cases")
    case = cases.Case("float32", 6, 5, 3)
    own = cases.own("naive")
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

    del variants["unsampled"], variants["waiting"]
    row, benchmark = measuring.Row(case, variants, ["own", "unmade"]), RecordingBenchmark()
    run = measuring.bench([row])
    with pytest.warns(UserWarning, match="blocking is left out: Traceback") as warned:
        run(benchmark, row, "own")
        with pytest.raises(pytest.fail.Exception, match="scaling"):  # its own row
            run(benchmark, row, "unmade")
    assert len(warned) == 2 and benchmark.extra_info["implementation"] == "naive"


@pytest.fixture(scope="module")
def fused() -> Any:
    """Module that measures the suite `epilogue`."""
    if not simulator_enabled():
        pytest.skip("its arrays are CuPy's on a GPU, where the suite checks what it measures")
    return importlib.import_module("fused")


def test_chains_are_what_they_are_called(fused: Any) -> None:
    catalogue = {name: each for name, each in vars(epilogues).items() if isinstance(each, Epilogue)}
    others = {name for name, each in catalogue.items() if each.takes_pairs or each.returns_real}
    others |= {name for name in catalogue if name.startswith("fast_")}  # less exact than the gate
    names = catalogue.keys() - others
    assert names == {text for text in fused.CHAINS if " | " not in text}
    for text, chain in fused.CHAINS.items():
        assert repr(chain.bind(*(None for _ in chain.operands))) == text


def test_chains_on_arrays_are_the_epilogues_on_the_host(fused: Any) -> None:
    values = np.random.default_rng(0).normal(0, 2, (6, 5))
    for text, chain in fused.CHAINS.items():
        if "magnitude" in text:
            continue  # of complex numbers
        case = fused.FusedCase("float64", 6, 5, 3, epilogue=text)
        arrays = case.operands(np.random.default_rng(1), is_exact=True).arrays
        expected, _ = chain.bind(*arrays.values()).on_host(values)
        found = chain.on_arrays(values, *fused.as_columns(arrays).values())
        tolerance = 1e-6 if text == "dequantise" else 1e-14
        np.testing.assert_allclose(found, expected, tolerance, tolerance, err_msg=text)


def test_the_gate_of_epilogues_stops_what_is_wrong(fused: Any) -> None:
    for text in ("keep", "gelu"):
        case = fused.FusedCase("float32", 6, 5, 3, epilogue=text)
        x = case.operands(np.random.default_rng(1), is_exact=True)
        sums, values = case.expected(x)
        plan, plain = fused.fused()(case, x), fused.plain()(case, x)
        case.check("own", plan, x, (sums, values))
        case.check("plain", plain, x, (sums, values))
        error = 1e-4 * (np.arange(30).reshape(6, 5) == 29)
        with pytest.raises(dxgemm.errors.WrongResultError, match="own gives a wrong result"):
            case.check("own", plan, x, (sums, values + error))
        with pytest.raises(dxgemm.errors.WrongResultError):
            case.check("plain", plain, x, (sums + 1, values))
    case = fused.FusedCase("float32", 6, 5, 3, epilogue="keep")
    x = case.operands(np.random.default_rng(1), is_exact=True)
    sums, values = case.expected(x)
    with pytest.raises(dxgemm.errors.WrongResultError):  # what is kept
        case.check("own", fused.fused()(case, x), x, (sums + 1, values))


def test_readme_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="results:begin"):
        pages.replace_between_markers("no markers", "")


def test_results_are_written_without_what_nobody_reads() -> None:
    stats = {"min": 0.1, "median": 0.2, "max": 0.3, "rounds": 3}
    raw = {"fullname": "bench_x.py::bench[a]", "name": "bench[a]", "options": {"timer": "t"}}
    raw |= {"extra_info": {"gpu_us": 1.5}, "stats": {**stats, "ld15iqr": 0.1, "total": 0.6}}
    text = result_files.result_text(result_files.pruned({**GEMM, "benchmarks": [raw, raw]}))
    kept = {"extra_info": {"gpu_us": 1.5}, "fullname": "bench_x.py::bench[a]", "stats": stats}
    assert json.loads(text) == {**GEMM, "benchmarks": [kept, kept]}
    assert len([line for line in text.splitlines() if "bench_x.py" in line]) == 2


def test_results_that_are_missing_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "nvidia-h200").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "nvidia-h200" / "gemm.json").write_text(json.dumps(GEMM))
    (tmp_path / "nvidia-h200" / "soak.json").write_text(json.dumps(SOAK))
    (tmp_path / "nvidia-h200" / "another.json").write_text(json.dumps(HOST))
    assert list(result_files.load_results(tmp_path)[0].items()) == [
        ("gemm", GEMM),
        ("another", HOST),
    ]
