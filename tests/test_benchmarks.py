"""The parts of benchmarks/ that need no GPU, on made-up measurements."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from html.parser import HTMLParser
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import charts
import html_page
import interleave
import markdown_pages as pages
import numpy as np
import precision_chart
import provenance
import pytest
import reliability_tables as reliability
import result_files
import rivals
import tables
import twins
from markdown_pages import markdown

import dxgemm
from dxgemm import epilogues, errors
from dxgemm.choice.tables import read_table
from dxgemm.epilogues import Epilogue
from dxgemm.gpu.status import simulator_enabled
from dxgemm.tuning import sampling

BENCHMARKS = Path(charts.__file__).parent
Row = dict[str, Any]
OTHER = {"is_automatic": False, "vs_plain": None, "config": None}


class RecordingBenchmark:
    """Runs `pedantic` rounds as pytest-benchmark does, on the replay clock."""

    def __init__(self) -> None:
        self.durations: list[float] = []

    def pedantic(self, target: Any, setup: Any, rounds: int) -> None:
        for _ in range(rounds):
            setup()
            start = interleave.replay_clock()
            target()
            self.durations.append(interleave.replay_clock() - start)


def results_of(*rows: Row) -> dict[str, Any]:
    """pytest-benchmark's JSON around some extra_info."""
    stats = {"min": 0.25, "max": 0.75}
    return {
        "machine_info": {
            "gpu": {"name": "NVIDIA H200", "driver": "580.1"},
            "cpu": {"brand_raw": "Some CPU"},
            "python_version": "3.12.3",
            "packages": {"torch": "2.11.0", "numpy": "2.4.6"},
        },
        "commit_info": {"id": "0123456789abcdef"},
        "benchmarks": [{"extra_info": row, "stats": stats} for row in rows],
    }


def gemm_row(implementation: str, tflops: float, vs_cublas: float | None, **changes: Any) -> Row:
    """A product at 1024^3 in float32, unless `changes` says otherwise."""
    plain = {
        "dtype": "float32", "m": 1024, "n": 1024, "k": 1024, "batch": 1, "precision": None,
        "arrangement": "row_row_row", "epilogue": "none", "implementation": implementation,
        "config": "128x128x8", "gpu_us": 70.5, "tflops": tflops, "gbytes_per_s": 178.0,
        "vs_cublas": vs_cublas, "result_dtype": None,
    }  # fmt: skip
    return {**plain, **changes}


def cube(size: int) -> dict[str, int]:
    return dict.fromkeys("mnk", size)


def ladder_row(name: str, tflops: float, vs_cublas: float, size: int = 4096, **changes: Any) -> Row:
    own = {
        "rung": None if name == "cublas" else 5, "twin_tflops": None, "vs_twin": None,
        "blocks": 1024, "waves": 7.8, "threads": 256, "registers": 128, "smem_bytes": 16384,
        "blocks_per_sm": 2, "configs_us": {},
    }  # fmt: skip
    return gemm_row(name, tflops, vs_cublas, **cube(size), **{**own, **changes})


def epilogue_row(name: str, tflops: float, vs_cublas: float | None, **changes: Any) -> Row:
    own = {"epilogue": "bias | relu", "is_automatic": True, "vs_plain": 0.98}
    return gemm_row(name, tflops, vs_cublas, **{**own, "gpu_us": 1e3 / tflops, **changes})


def host_row(call: str, dtype: str, host_us: float, target_us: float | None) -> Row:
    return {
        "library": "cupy", "call": call, "dtype": dtype, "m": 64, "n": 64, "k": 64,
        "implementation": "thread_tile_2d", "host_us": host_us, "target_us": target_us,
    }  # fmt: skip


def build_row(step: str, seconds: float, target_s: float | None, **more: Any) -> Row:
    return {"step": step, "seconds": seconds, "target_s": target_s, "loaded": [], **more}


def batched_row(implementation: str, way: str, batch: int, vs_cublas: float) -> Row:
    sizes = [[32, 32, 32]] if way == "strided" else [[4, 4, 4], [8, 8, 8]]
    changes = {"m": 32, "way": way, "batch": batch, "sizes": sizes, "config": None, "gpu_us": 10.0}
    return gemm_row(implementation, 2.0, vs_cublas, **changes)


def accuracy_row(implementation: str, k: int, max_error: float, data: str) -> Row:
    return {
        "kind": "float32", "data": data, "dtype": "float32", "m": 256, "n": 256, "k": k,
        "implementation": implementation, "answered_by": "tuned", "config": "64x64x8", "slices": 1,
        "max_error": max_error, "rms_error": max_error / 8, "ratio": max_error / 20,
    }  # fmt: skip


def choice_row(dtype: str, precision: str | None, batch: int, regret: float, against: Any) -> Row:
    changes = {"m": 16, "n": 3, "k": 2, "batch": batch, "config": "32x32", "gpu_us": 2.0}
    more = {"layout": "row_row_row", "best": "naive 128x1", "regret": regret}
    return gemm_row("tuned", 1.0, against, dtype=dtype, precision=precision, **changes, **more)


def precision_row(way: str, **changes: Any) -> Row:
    own = {"data": "normal", "way": way, "is_native": False, "max_error": 0.7512}
    return gemm_row("emulated_float32", **{"tflops": 120.0, "vs_cublas": 3.0, "rms_error": 0.1234,
                                      **own, **changes})  # fmt: skip


CALL, MATMUL = "gemm(a, b, out=c)", "cupy.matmul(a, b, out=c)"
GEMM = results_of(gemm_row("coalesced", 6.2, 0.16), gemm_row("cublas", 38.21, 1.0))
WITH_TORCH = results_of(*result_files.extras(GEMM), gemm_row("torch", 38.3, 1.0))
HOST = results_of(
    host_row(CALL, "float32", 9.5, 12.0),
    host_row(MATMUL, "float32", 24.6, None),
    host_row(CALL, "float64", 12.5, 12.0),
    host_row(MATMUL, "float64", 24.1, None),
)
BUILD = results_of(
    build_row("first call", 0.3, 0.5, dtype="float32"),
    build_row("first call", 0.4, 0.5, dtype="float64"),
    build_row("kernel", 41.0, 30.0, dtype="float64", implementation="pipeline", loaded=["numba"]),
    build_row("build", 123.4, None, loaded=["libnvvm.so.4", "numba"]),
)
LADDER = results_of(
    ladder_row("coalesced", 6.2, 0.12, twin_tflops=6.2, vs_twin=1.0, rung=2),
    ladder_row("thread_tile_2d", 26.0, 0.51, twin_tflops=26.0, vs_twin=1.0),
    ladder_row("cublas", 51.3, 1.0),
    ladder_row("thread_tile_2d", 15.0, 0.25, dtype="float64"),
    ladder_row("cublas", 62.0, 1.0, dtype="float64"),
    ladder_row("thread_tile_2d", 204.0, 0.5, precision="tf32"),
    ladder_row("cublas", 408.0, 1.0, precision="tf32"),
    *(ladder_row("thread_tile_2d", 50.0, 0.5, size=n) for n in (1024, 2048, 8192, 16384)),
)
EPILOGUES = [
    epilogue_row("tuned", 40.0, 1.25),
    epilogue_row("tuned", 50.0, 1.5625, is_automatic=False, config="64x64x8"),
    epilogue_row("cublas_torch", 20.0, 0.625, **OTHER),
    epilogue_row("cublas_cupy", 32.0, 1.0, **OTHER),
    epilogue_row("tuned", 40.0, None, epilogue="relu", vs_plain=1 / 1.0123),
    epilogue_row("tensor_core", 60.0, None, epilogue="relu", vs_plain=1.01, dtype="float64"),
    epilogue_row("tuned", 40.0, None, epilogue="keep", vs_plain=0.8),
    epilogue_row("pipeline", 400.0, None, epilogue="dequantise", dtype="int8",
                 result_dtype="float32"),
]  # fmt: skip
EPILOGUE = results_of(*EPILOGUES)
REDUCTIONS = results_of(
    *EPILOGUES,
    *(
        epilogue_row(name, 1e3 / us, ratio, epilogue="sum(axis=1)", way=way, **changes)
        for name, us, ratio, way, changes in (
            ("tuned", 20.0, 1.5, "fused", {"vs_plain": 0.75}),
            ("wgmma", 40.0, 0.75, "split", {"is_automatic": False}),
            ("cublas_cupy_reduction", 30.0, 1.0, None, OTHER),
            ("cublas_torch_reduction", 60.0, 0.5, None, OTHER),
        )
    ),
)
TF32 = {"precision": "tf32", "arrangement": "row_col_row"}
SQUARES = results_of(
    *(
        gemm_row("pipeline", 40.0, ratio, **cube(size))
        for size, ratio in ((1024, 0.5), (2048, 2.0), (4096, 1.0), (8192, 1.0), (16384, 1.0))
    ),
    gemm_row("pipeline", 40.0, 0.1, **TF32),
    gemm_row("pipeline_tma", 300.0, 0.9, **TF32),  # of the two that serve it the faster
    gemm_row("pipeline_tma", 500.0, 0.8, dtype="float16", result_dtype="float32"),
    gemm_row("pipeline", 1.0, 0.1, batch=2),
    gemm_row("tuned", 50.0, 1.1),
)
FLAT = {"m": 4096, "n": 64, "k": 27}
RECTANGLES = results_of(
    gemm_row("pipeline", 3.0, 0.3, **FLAT),
    gemm_row("coalesced", 5.0, 0.5, **FLAT),
    gemm_row("tuned", 11.0, 1.1, **FLAT),
    gemm_row("cublas", 10.0, 1.0, **FLAT),
    gemm_row("pipeline", 40.0, 0.8),  # a square
    gemm_row("pipeline", 2.0, 0.2, m=7),  # nothing to compare with
)
BATCHED = results_of(
    batched_row("automatic", "strided", 1000, 2.0),
    batched_row("cublas", "strided", 1000, 1.0),
    batched_row("automatic", "list", 300, 4.5),
)
ACCURACY = results_of(
    *(
        accuracy_row(name, k, error * scale, data)
        for data, scale in (("normal", 1), ("uniform", 2))
        for name, error in (("automatic", 0.5), ("warp_tile", 4.0), ("tuned", 0.5), ("cublas", 1.0))
        for k in (64, 256, 1024)
    )
)
CHOICE = results_of(
    choice_row("float64", None, 1, 1.0, 2.0),
    choice_row("float64", None, 7, 1.2, 0.5),
    choice_row("float64", "split", 1, 1.5, None),
    choice_row("float32", None, 1, 1.0, 3.0),
)
PRECISIONS = [
    precision_row("cublas", tflops=40.0, vs_cublas=1.0),
    precision_row("split"),
    precision_row("split, b prepared", tflops=140.0, vs_cublas=3.5),
    precision_row("float32", data="cancelling", gpu_us=50.0),
    precision_row("split", data="cancelling", is_native=True, gpu_us=60.0),
    precision_row("bf16x6, promoted every 1", rms_error=0.05),
]
PRECISION = results_of(*PRECISIONS)
DOUBLE = {"dtype": "float64", **cube(4096)}
LINES = {"dtype": "float64", "m": 256, "n": 256}
PRECISION_FLOAT64 = results_of(
    *PRECISIONS,
    precision_row("split", **DOUBLE, gpu_us=2000.0, tflops=68.7, vs_cublas=1.15),
    precision_row("split, b prepared", **DOUBLE, tflops=76.0, vs_cublas=1.27),
    precision_row("split13", **DOUBLE, tflops=84.0, max_error=40.0),
    *(
        precision_row(way, **LINES, k=k, max_error=error)
        for k, most in ((64, 0.0), (256, 2.5), (1024, 300.0))
        for way, error in (("cublas", most), ("split", 0.25))
    ),
)
BIAS = "`bias \\| relu`"
SIZE = "1024 x 1024 x 1024"
BEST = "thread_tile_2d 128x128x8"
# A table, what it is made of, and cells that stand in one of its rows, in this order.
SHOWN: list[tuple[Callable[..., Any], Any, list[str]]] = [
    (tables.host_overhead_full, HOST, ["cupy", f"`{CALL}`", "9.50", "12.5", "12, missed"]),
    (tables.host_overhead_full, HOST, ["cupy", f"`{MATMUL}`", "24.6", "24.1"]),
    (tables.build_time_short, BUILD, ["first call", "0.400", "0.5, met"]),
    (tables.build_time_short, BUILD, ["kernel", "41.0", "30, missed"]),
    (tables.build_time_full, BUILD, ["first call", "float64", "0.400", "0.250", "0.750"]),
    (tables.build_time_full, BUILD, ["kernel", "float64", "pipeline", "41.0", "numba"]),
    (tables.build_time_full, BUILD, ["build", "123", "libnvvm.so.4, numba"]),
    (tables.gemm_full, GEMM, [SIZE, "coalesced", "128x128x8", "70.5", "6.20", "178", "0.16"]),
    (tables.gemm_short, GEMM, ["1024", "coalesced", "6.20", "38.2", "0.16"]),
    (tables.gemm_short, WITH_TORCH, ["1024", "coalesced", "6.20", "38.2", "38.3", "0.16"]),
    (tables.pipeline_squares, SQUARES, ["float32", "40.0 (0.50)", "40.0 (2.00)", "1.00"]),
    (tables.pipeline_squares, SQUARES, ["tf32", "row_col_row", "300 (0.90)"]),
    (tables.pipeline_squares, SQUARES, ["float16 to float32", "500 (0.80)"]),
    (tables.pipeline_rectangles, RECTANGLES, ["4096 x 64 x 27", "3.00", "0.30", "tuned", "1.10"]),
    (tables.pipeline_rectangles, RECTANGLES, ["7 x 1024 x 1024", "2.00", "0.20", "", ""]),
    (tables.ladder_table, LADDER, ["5", "26.0", "0.51", "26.0", "1.00", "15.0", "0.25"]),
    (tables.ladder_table, LADDER, ["cuBLAS", "51.3", "1.00", "62.0", "1.00"]),
    (tables.ladder_reduced_table, LADDER, ["tf32", "thread_tile_2d", "204", "0.50"]),
    (tables.ladder_best_table, LADDER, ["4096", BEST, "0.51", BEST, "0.25"]),
    (tables.ladder_best_table, LADDER, ["8192", BEST, "0.50", "", ""]),
    (tables.ladder_full, LADDER, ["coalesced", "6.20", "0.12", "1.00", "256", "128", "16384", "2"]),
    (tables.epilogue_short, EPILOGUE, [BIAS, "tuned 64x64x8", "50.0", "32.0", "1.56", "1.25"]),
    (tables.epilogue_costs, EPILOGUE, ["`relu`", "1.2", "-1.0", ""]),
    (tables.epilogue_costs, EPILOGUE, ["`keep`", "25.0", "", ""]),
    (tables.epilogue_costs, EPILOGUE, ["`dequantise`", "", "", "2.0"]),
    (tables.epilogue_full, EPILOGUE, [BIAS, "tuned", "64x64x8", "20.0", "50.0", "1.56", "0.98"]),
    (tables.epilogue_full, EPILOGUE, [BIAS, "cublas_torch", "50.0", "20.0", "0.62"]),
    (tables.epilogue_full, EPILOGUE, ["`dequantise`", "int8 to float32", "pipeline", "2.50"]),
    (tables.reduction_ways, REDUCTIONS, ["`sum(axis=1)`", "20.0", "40.0", "30.0", "1.50", "0.75"]),
    (tables.reduction_full, REDUCTIONS, ["cublas_torch_reduction", "60.0", "16.7", "0.50"]),
    (tables.batched_short, BATCHED, ["32", "2.00"]),
    (tables.batched_full, BATCHED, ["list", "300", "4 x 4 x 4, 8 x 8 x 8", "automatic", "4.50"]),
    (tables.accuracy_short, ACCURACY, ["float32", "1.00", "2.00", "8.00", "0.400"]),
    (tables.accuracy_full, ACCURACY, ["uniform", "256 x 256 x 64", "warp_tile", "8.00", "0.400"]),
    (tables.choice_short, CHOICE, ["float32", "1", "0", "1.000", "1.00", "3.00"]),
    (tables.choice_short, CHOICE, ["float64", "2", "1", "1.100", "1.20", "1.00"]),
    (tables.choice_short, CHOICE, ["float64 split", "1", "0", "1.500", "1.50", ""]),
    (tables.choice_full, CHOICE, ["tuned 32x32", "naive 128x1"]),
    (tables.precision_page, PRECISION, [SIZE, "40.0", "", "120", "140", "3.00", "3.50"]),
    (tables.precision_page, PRECISION, ["normal", SIZE, "parts", "0.751 / 0.123", ""]),
    (tables.precision_page, PRECISION, ["cancelling", SIZE, "float32", "0.751 / 0.123"]),
    (tables.precision_page, PRECISION, ["cancelling", SIZE, "60.0", "50.0", "1.20"]),
    (tables.precision_page, PRECISION, ["bf16x6, promoted every 1", "120", "0.751 / 0.0500"]),
    (tables.precision_page, PRECISION_FLOAT64, ["68.7", "76.0", "84.0", "1.15", "1.27"]),
    (tables.precision_page, PRECISION_FLOAT64, ["parts", "0.751 / 0.123", "", "40.0 / 0.123"]),
]


@pytest.mark.parametrize(
    "table, results, cells",
    [pytest.param(*row, id=f"{row[0].__name__}-{row[2][0]}") for row in SHOWN],
)
def test_a_table_shows_what_was_measured(table: Any, results: Any, cells: list[str]) -> None:
    text = markdown(table(results))
    assert any(stand_in(line, cells) for line in text.splitlines()), text


def stand_in(line: str, cells: list[str]) -> bool:
    """Whether a row of a table has these cells, in this order."""
    row = iter([cell.strip() for cell in re.split(r"(?<!\\)\|", line)])
    return all(cell in row for cell in cells)


def test_means_are_geometric_and_over_every_size() -> None:
    assert "thread_tile_2d 0.50" in markdown(tables.ladder_means(LADDER))
    assert "3.00" in markdown(tables.batched_short(BATCHED)).splitlines()[-1]


def test_tables_are_left_out_where_nothing_was_measured() -> None:
    cublas = results_of(ladder_row("cublas", 51.3, 1.0))
    for table, results in (
        (tables.pipeline_squares, GEMM),
        (tables.ladder_reduced_table, cublas),
        (tables.ladder_means, cublas),
        (tables.reduction_ways, EPILOGUE),
        (tables.reduction_full, EPILOGUE),
        (tables.precision_forecast, PRECISION),
    ):
        assert table(results) == []
    (empty,) = tables.epilogue_short(results_of(epilogue_row("tuned", 40.0, None)))
    assert empty.rows == []


def test_reductions_have_tables_of_their_own() -> None:
    assert tables.epilogue_best(REDUCTIONS) == tables.epilogue_best(EPILOGUE)
    assert tables.epilogue_costs(REDUCTIONS) == tables.epilogue_costs(EPILOGUE)


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
    interleave.replay(benchmark, [1e-6, 0.1, 3e-5])
    assert benchmark.durations == [1e-6, 0.1, 3e-5]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.00271, "0.00271"), (9.504, "9.50"), (38.21, "38.2"), (123.4, "123"), (5123.0, "5123")],
)
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert tables.figure(value) == text


def test_charts_of_accuracy_are_of_one_sort_of_data(tmp_path: Path) -> None:
    page = tmp_path / "accuracy.md"
    page.write_text(README)
    files = pages.accuracy_pages([{"gemm": GEMM}, {"accuracy": ACCURACY}], page)
    drawn = [path for path in files if path != page]
    assert [path.stem.rpartition("-")[2] for path in drawn] == ["normal", "uniform"]
    for path in drawn:
        assert f"/{path.name})" in files[page]
        texts = [element.text for element in ElementTree.fromstring(files[path]).iter()]
        assert "tuned" in texts and "cublas" in texts and "warp_tile" not in texts


RUN = {
    "machine_info": {"gpu": {"name": "NVIDIA H200", "driver": "580.1"}},
    "commit_info": {"id": "0123456789abcdef"},
    "date": "2026-11-21",
}
TESTS = {
    **RUN,
    "contract_cases": 12345,
    "files": {"test_cache.py": {"passed": 20}, "test_cache_security.py": {"passed": 3, "error": 1}},
    "run_again": {"fedcba98765432": ["a", "b"]},
}
SUBJECTS = {
    "tuned": {"cases": 1000, "refused": 0, "reports": 2, "failure": ""},
    "wgmma": {"cases": 10, "refused": 3, "reports": 0, "failure": "no"},
}
MEMCHECK = {"commit": "0123456789abcdef", "date": "2026-11-21", "subjects": SUBJECTS}
SANITIZER = {"machine_info": RUN["machine_info"], "lanes": {"memcheck": MEMCHECK}}
SOAK = {
    **RUN, "seed": 1, "seconds": 90.0, "problems": 1234, "calls": 1500, "kernels": 165,
    "threads": 8, "streams": 26, "failure": "float32 tuned\nmore",
    "memory_bytes": {"start": 1 << 30, "most": 3 << 29, "end": 1 << 30},
    "by_kind": {"float32": 1000, "tf32": 234}, "by_implementation": {}, "by_extra": {},
}  # fmt: skip


def test_runs_of_tests_sanitizer_and_soak_are_summed_up(tmp_path: Path) -> None:
    assert reliability.load_runs("tests", tmp_path) == []
    (tmp_path / "nvidia-h200").mkdir()
    (tmp_path / "nvidia-h200" / "tests.json").write_text(json.dumps(TESTS))
    loaded = reliability.load_runs("tests", tmp_path)
    for show, runs, cells in (
        (reliability.tests_text, loaded, ["the cache and its security", "23", "0", "1", "0"]),
        (reliability.sanitizer_text, [SANITIZER], ["memcheck", "2", "1,010", "3", "2", "1"]),
        (reliability.soak_text, [SOAK], ["1.5", "1,234", "1,500", "1536", "float32 tuned"]),
        (reliability.soak_text, [SOAK], ["tf32", "234"]),
    ):
        assert len(show([])) == 1
        assert any(stand_in(line, cells) for line in markdown(show(runs)).splitlines()), cells
    for commit in ("0123456789ab,", "fedcba987654;"):
        assert commit in markdown(reliability.tests_text(loaded))
    assert "wgmma, no" in markdown(reliability.sanitizer_text([SANITIZER]))


def test_the_groups_of_tests_are_files_that_there_are() -> None:
    names = [name for group in reliability.GROUPS.values() for name in group]
    assert len(set(names)) == len(names)
    for name in names:
        assert Path(__file__).with_name(f"test_{name}.py").is_file(), name


def test_a_forecast_gives_back_what_was_measured() -> None:
    (table,) = tables.precision_forecast(PRECISION_FLOAT64)
    measured, *others = table.rows
    assert measured[6] == "68.7" and others
    assert 0.4 < float(measured[5]) < 1 and {line[5] for line in others} == {measured[5]}


def test_the_chart_of_errors_has_a_line_for_each_way() -> None:
    drawn = precision_chart.error_charts(PRECISION_FLOAT64)
    assert list(drawn) == ["float64"]
    svg = ElementTree.fromstring(drawn["float64"])
    lines = [e.get("points") for e in svg.iter() if e.tag.endswith("polyline")]
    assert len(lines) == 4  # of two ways, and beside their names
    heights = [float(point.split(",")[1]) for point in lines[0].split()]
    assert heights == sorted(heights, reverse=True)  # errors that grow, drawn upwards


@pytest.fixture
def on_host() -> Callable[[str], Any]:
    """Imports a module of benchmarks/ whose arrays are those of the machine: NumPy's here."""
    if not simulator_enabled():
        pytest.skip("its arrays are CuPy's on a GPU, where the suite checks what it measures")
    return import_module


def test_a_twofold_product_is_exact_where_float64_is_not(on_host: Any) -> None:
    precision = on_host("precision_comparison")
    rng = np.random.default_rng(1)
    a, b = precision.cancelling(rng, "float64", 2, 3, 102)
    upper, lower = precision.twofold_product(a, b)
    for i, j in np.ndindex(2, 3):
        terms = [Fraction(x) * Fraction(y) for x, y in zip(a[i], b[:, j], strict=True)]
        rest = sum(terms) - Fraction(upper[i, j]) - Fraction(lower[i, j])
        assert abs(rest) <= sum(map(abs, terms)) / 2**98


def test_operands_of_the_suite_precision_are_what_they_are_called(on_host: Any) -> None:
    precision = on_host("precision_comparison")
    for dtype, (data, make) in product(("float32", "float64"), precision.DATA.items()):
        a, b = make(np.random.default_rng(0), dtype, 6, 5, 8)
        assert (a.shape, b.shape, a.dtype, b.dtype) == ((6, 8), (8, 5), *(dtype,) * 2), data
    a, b = precision.cancelling(np.random.default_rng(0), "float32", 6, 5, 8)
    assert (abs(a @ b) < 1e-5 * (abs(a) @ abs(b))).all()


def test_reducers_are_what_they_are_called(on_host: Any) -> None:
    matrix = np.random.default_rng(0).normal(size=(6, 5))
    for text, reducer in on_host("reduced_comparison").REDUCERS.items():
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
        assert pages.first_sentence(rung.name).endswith(".")


def test_twins_are_of_one_gpu_size_and_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = twins.Twin("32x32", 1.5)
    monkeypatch.setattr(twins, "TWINS", {("coalesced", "float32", None): twin})
    square, gpu = (twins.SIZE,) * 3, twins.GPU
    assert twins.find_twin("coalesced", "float32", None, square, gpu) is twin
    assert twins.find_twin("coalesced", "float64", None, square, gpu) is None
    assert twins.find_twin("coalesced", "float32", None, (1, 1, 1), gpu) is None
    assert twins.find_twin("coalesced", "float32", None, square, "another") is None


class Document(HTMLParser):
    """Checks that tags are closed in order, and collects the page's words."""

    VOID = ("meta",)

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attributes: Any) -> None: ...

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def page() -> str:
    """The page of charts and tables."""
    sizes = [
        gemm_row("tuned", rate, 1.25, **cube(size))
        for size, rate in ((256, 5.0), (512, 20.0), (1024, 43.0), (1000, 30.0))
    ]
    gpu = {"gemm": results_of(*sizes), "host_overhead": HOST, "build_time": BUILD}
    return html_page.html_page(
        [{**gpu, "epilogue": EPILOGUE, "ladder": LADDER, "accuracy": ACCURACY}]
    )


def test_the_page_is_whole_in_itself(page: str) -> None:
    words = Document(page).words
    assert not any(text in page for text in ("http", "<script", "<link", "src=", "url("))
    assert "prefers-color-scheme: dark" in page
    for text in ("NVIDIA H200", "float32, row_row_row", "tuned, 512: 20 TFLOP/s", "1.25 tuned"):
        assert text in words
    assert "tuned, 1000: 30 TFLOP/s" not in words
    assert f"cupy: {CALL}" in words and "bias | relu" in words


def test_a_gpu_without_results_has_a_page_too() -> None:
    assert Document(html_page.html_page([])).words


def test_the_page_maps_the_choice_of_every_size(configs_of_a_gpu: None) -> None:
    facts = html_page.FACTS["NVIDIA H200"]
    maps = list(html_page.choice_maps(facts))
    assert len(maps) == len(html_page.MAP_KINDS)
    for chart in maps:
        words = Document(chart).words
        assert sum("m = n = " in text and ": " in text for text in words) == (
            len(html_page.MAP_SIZES) ** 2
        )


@pytest.mark.parametrize("scheme, is_dark", [("light", False), ("dark", True)])
def test_a_browser_draws_the_page(tmp_path: Path, page: str, scheme: str, is_dark: bool) -> None:
    image = pytest.importorskip("PIL.Image")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs Chromium")
    file, picture = tmp_path / "report.html", tmp_path / "report.png"
    file.write_text(page)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,3200"]
    options += ["--blink-settings=preferredColorScheme=0"] if is_dark else []
    command = [browser, *options, f"--screenshot={picture}", file.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    drawn = np.asarray(image.open(picture).convert("RGB"), float)
    assert (drawn[0, 0].mean() < 64) == is_dark and (drawn[0, 0].mean() > 192) != is_dark
    differs = np.abs(drawn - drawn[0, 0]).max(axis=2) > 64
    assert differs.mean() > 0.002
    assert len(np.unique((drawn[differs] // 32), axis=0)) > 20, "lines and text in many colours"


def run_script(name: str, *arguments: object) -> None:
    """Runs a program of benchmarks/ in a process of its own, without the simulator."""
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"}
    path = [str(Path(dxgemm.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    command = [sys.executable, str(BENCHMARKS / name), *map(str, arguments)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr


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
    (key,) = read_table(table).speeds
    assert key == ("float64", "naive", "128x1")


@pytest.mark.parametrize("suite", result_files.SUITES)
def test_every_suite_runs_in_the_simulator_and_leaves_no_results(
    suite: str, tmp_path: Path
) -> None:
    if not simulator_enabled():
        pytest.skip("on a GPU the suites run themselves")
    run_script("run.py", "--smoke", "--suite", suite, "--out", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_roof_of_squares_is_memory_s_and_then_arithmetic_s() -> None:
    facts = html_page.FACTS["NVIDIA H200"]
    (_, low), (_, high) = html_page.roof(gemm_row("tuned", 1.0, 1.0), [16, 4096], facts).points
    assert low == pytest.approx(16 / 6 * 4.8)  # 16 / 6 FLOP a byte at 4.8 TB/s
    assert high == pytest.approx(facts.peak_tflops["float32"])


@pytest.mark.parametrize(
    ("most", "step"), [(8.0, 1.0), (67.0, 10.0), (989.0, 200.0), (0.5, 0.1), (40.0, 5.0)]
)
def test_axes_have_round_steps(most: float, step: float) -> None:
    assert charts.nice_step(most) == pytest.approx(step)


def test_labels_do_not_meet_and_stay_above_the_axis() -> None:
    assert charts.spread([10, 12, 100], lowest=200) == [10, 24, 100]
    assert charts.spread([180, 190, 195], lowest=200) == [172, 186, 200]
    assert charts.spread([], lowest=200) == []


def test_long_labels_are_cut() -> None:
    assert charts.shorten("short") == "short"
    assert len(charts.shorten("x" * 60)) == charts.LONGEST_LABEL


def test_every_series_has_its_colour() -> None:
    considered = [i for i in dxgemm.implementations() if i.automatic_for != ()]
    assert {i.name for i in considered} <= html_page.COLORS.keys()


def test_markdown_in_cells_becomes_html() -> None:
    assert html_page.inline("`a \\| b` < [c](d)") == "<code>a | b</code> &lt; c"


README = f"before\n{pages.BEGIN}\nold\n{pages.END}\nafter\n"
NEWER = {**GEMM, "commit_info": {"id": "fedcba9876543210", "dirty": True}}


def test_a_page_keeps_what_is_outside_the_markers() -> None:
    gpus = [{"host_overhead": HOST, "gemm": NEWER}]
    readme, docs = pages.render(gpus, README)
    assert readme.startswith("before\n") and readme.endswith("\nafter\n") and "old" not in readme
    for text in (readme, docs):  # of each suite, what it was measured with
        assert "commit 0123456789ab." in text and "commit fedcba987654 with changes." in text
    assert pages.render(gpus, readme) == (readme, docs)
    with pytest.raises(ValueError, match="results:begin"):
        pages.render([], "no markers")


def test_pages_show_the_tables_of_their_suites() -> None:
    gpus = [{"gemm": GEMM}, {"epilogue": EPILOGUE, "precision": PRECISION, "ladder": LADDER}]
    for text, parts in (
        (pages.epilogues_text(gpus), tables.epilogue_short(EPILOGUE)),
        (pages.precision_text(gpus), tables.precision_page(PRECISION)),
        (pages.handwritten_readme(gpus), tables.ladder_table(LADDER)[-1:]),
    ):
        assert "NVIDIA H200" in text
        assert markdown(parts).splitlines()[-1].rpartition("|  |")[2] in text
    assert pages.epilogues_text(gpus[:1]) == pages.NO_RESULTS


def test_results_that_are_missing_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "nvidia-h200").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "nvidia-h200" / "gemm.json").write_text(json.dumps(GEMM))
    assert result_files.load_results(tmp_path) == [{"gemm": GEMM}]
    assert pages.NO_RESULTS in pages.render([], README)[0]


def test_a_trial_of_int8_takes_what_is_exact_and_no_other_result() -> None:
    comparison = import_module("comparison")
    case = comparison.Case("int8", 6, 5, 3, "row_col_row")
    assert case.bytes_moved == 6 * 3 + 3 * 5 + 4 * 6 * 5
    trial = comparison.Trial(case, lambda calls: 1.0)
    right = trial.attempt("widening_tile")
    assert not right.is_wrong and right.call_s == 1.0
    trial._exact[-1, -1] += 1
    assert trial.attempt("widening_tile").is_wrong


@pytest.fixture
def fused(on_host: Any) -> Any:
    """The module that the suite `epilogue` measures with."""
    return on_host("fused_comparison")


def test_chains_are_what_they_are_called(fused: Any) -> None:
    names = {name for name in vars(epilogues) if isinstance(getattr(epilogues, name), Epilogue)}
    assert names == {text for text in fused.CHAINS if " | " not in text}
    for text, chain in fused.CHAINS.items():
        assert repr(chain.bind(*(None for _ in chain.operands))) == text


def test_chains_on_arrays_are_the_epilogues_on_the_host(fused: Any) -> None:
    values = np.random.default_rng(0).normal(0, 2, (6, 5))
    for text, chain in fused.CHAINS.items():
        case = fused.FusedCase("float64", 6, 5, 3, epilogue=text)
        arrays = fused.exact_operands(case).arrays
        expected, _ = chain.bind(*arrays.values()).on_host(values)
        found = chain.on_arrays(values, *fused.as_columns(arrays).values())
        tolerance = 1e-6 if text == "dequantise" else 1e-14
        np.testing.assert_allclose(found, expected, tolerance, tolerance, err_msg=text)


def test_the_gate_of_epilogues_stops_what_is_wrong(fused: Any) -> None:
    own, plain = fused.own_call(None), fused.plain_call(None)
    for text in ("keep", "gelu"):
        case = fused.FusedCase("float32", 6, 5, 3, epilogue=text)
        gate = fused.Gate(case, lambda calls: 1.0)
        assert not gate.attempt("own", own).is_wrong
        assert not gate.attempt("plain", plain).is_wrong
        gate._expected[-1, -1] += 1e-4
        assert gate.attempt("own", own).is_wrong
    gate = fused.Gate(fused.FusedCase("float32", 6, 5, 3, epilogue="keep"), lambda calls: 1.0)
    gate._sums[-1, -1] += 1
    assert gate.attempt("own", own).is_wrong  # what is kept
    assert gate.attempt("plain", plain).is_wrong


def test_the_kernels_built_ahead_are_those_that_are_planned(fused: Any) -> None:
    def kernel(problem: Any, plan: dxgemm.Plan) -> Any:
        candidate = plan.route.candidate
        return candidate.implementation.spec_for(candidate.config, problem)

    problem = "int8", 6, 5, 3, "row_col_row"
    cases = [fused.FusedCase("float32", 6, 5, 3, epilogue=text) for text in fused.CHAINS]
    cases += [fused.FusedCase(*problem, result_dtype="float32", epilogue="dequantise")]
    for case in cases:
        operands = fused.random_arrays(case, np.random.default_rng(0))
        makers = fused.own_call(None), fused.plain_call(None)
        for problem, make in zip(fused.problems_of(case), makers, strict=True):
            plan = make(case, operands)
            assert kernel(problem, plan) == kernel(plan.route.problem, plan), case


def test_readme_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="results:begin"):
        pages.render([], "no markers")


def test_results_that_are_missing_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "nvidia-h200").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "nvidia-h200" / "gemm.json").write_text(json.dumps(GEMM))
    assert result_files.load_results(tmp_path) == [{"gemm": GEMM}]
    assert pages.NO_RESULTS in pages.render([], README)[0]


@pytest.mark.parametrize("rival", rivals.RIVALS)
def test_a_rival_that_is_not_installed_says_so(monkeypatch: Any, rival: str) -> None:
    for package in ("torch", "nvmath"):
        monkeypatch.setitem(sys.modules, package, None)
    operands = [np.ones(shape) for shape in ((128, 64), (64, 64), (128, 64))]
    with pytest.raises(errors.MissingPackageError, match=r"torch|nvmath"):
        rivals.RIVALS[rival](operands)


def test_nvmath_device_is_a_rival_on_a_few_squares() -> None:
    bench_gemm = importlib.import_module("bench_gemm")

    def rivals_of(dtype: str, size: int, result_dtype: str | None = None) -> list[str]:
        case = bench_gemm.Case(dtype, size, size, size, result_dtype=result_dtype)
        return bench_gemm.rivals_of(case)

    assert rivals_of("float64", 2048) == ["torch", "nvmath", "nvmath.device"]
    assert rivals_of("float64", 1000) == ["torch", "nvmath"]
    assert rivals_of("float16", 4096, "float32") == ["nvmath.device"]
    assert rivals_of("int8", 4096) == []
