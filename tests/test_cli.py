"""The command line on real files: results, bad input, atomic output, JSON."""

from __future__ import annotations

import errno
import importlib
import io
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import inability
from typer.testing import CliRunner

import dxgemm
from dxgemm import errors
from dxgemm.cli import counters, matrices
from dxgemm.cli.app import app
from dxgemm.gpu.status import GpuStatus, probe, simulator_enabled
from dxgemm.runtime.simulator import blocks_reported

run_command, info_command, demo_command, ladder_command, profile_command, bench_command = map(
    importlib.import_module,
    (f"dxgemm.cli.{name}" for name in ("run", "info", "demo", "ladder", "profile", "bench")),
)
needs_simulator = pytest.mark.skipif(not simulator_enabled(), reason="about the simulator")
needs_no_gpu = pytest.mark.skipif(not probe().problem, reason="about machines without a GPU")


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def printed(*arguments: object) -> str:
    """What a command that succeeds prints."""
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def invoke_json(*arguments: object) -> Any:
    return json.loads(printed(*arguments, "--json"))


def invoke_process(
    *arguments: object, cache: Path, simulator: str | None = None
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, where only `simulator` sets NUMBA_ENABLE_CUDASIM."""
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"}
    environment["DXGEMM_CACHE_DIR"] = str(cache)
    if simulator is not None:
        environment["NUMBA_ENABLE_CUDASIM"] = simulator
    program = [sys.executable, "-m", "dxgemm", *map(str, arguments)]
    return subprocess.run(program, env=environment, capture_output=True, text=True)


def assert_refused(result: Any, *fragments: str, status: int = 2) -> None:
    """One line that says why, last on stderr; nothing on stdout."""
    assert (result.exit_code, result.stdout) == (status, "")
    assert "Traceback" not in result.stderr
    reason = result.stderr.splitlines()[-1]
    assert reason.startswith("dxgemm: ")
    for fragment in fragments:
        assert fragment in reason


# Small integers, float32: (5, 4), (4, 3) and (5, 3).
A, B, C = (
    np.random.default_rng(1).integers(-9, 9, shape).astype(np.float32)
    for shape in ((5, 4), (4, 3), (5, 3))
)


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Saves an array under a name and returns its path."""

    def save(name: str, array: np.ndarray) -> Path:
        path = tmp_path / f"{name}.npy"
        np.save(path, array)
        return path

    return save


@pytest.fixture
def operands(save: Callable[..., Path]) -> tuple[Path, Path, Path]:
    return save("A", A), save("B", B), save("C", C)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.npy"


INT8 = np.int8([[-128, 127]]), np.int8([[127], [-128]]), np.int32([[2**30]])
INT8_SUM = -3 * (INT8[0].astype(int) @ INT8[1]) + 2147483647 * INT8[2].astype(int)
BATCH = np.arange(12.0).reshape(2, 3, 2), np.asfortranarray(np.arange(8.0).reshape(2, 4))
WIDE, COMPLEX = (np.ones((1, 1), dtype) for dtype in (np.int64, np.complex64))
# Operands, options, result and what is printed of it.
RUNS: dict[str, tuple[Any, Any, Any, str]] = {
    "product": ((A, B), (), A @ B, "5x3 float32 = 5x4 @ 4x3"),
    "factors": ((A, B, C), ("--alpha", 2, "--beta", -3), 2 * A @ B - 3 * C, "= 2 * 5x4 @ 4x3"),
    "batch, Fortran order": (BATCH, (), BATCH[0] @ BATCH[1], "2x3x4 float64"),
    "int8": (
        INT8, ("--alpha", -3, "--beta", 2**31 - 1), INT8_SUM.astype(np.int32),
        "1x1 int32 = -3 * 1x2 @ 2x1 + 2147483647 * 1x1",
    ),
    "all digits": ((WIDE, WIDE), ("--alpha", 2**53 + 1), np.int64([[2**53 + 1]]), "int64"),
    "complex factors": (
        (COMPLEX,) * 3, ("--alpha", "1+2j", "--beta", -1), np.complex64([[2j]]), "complex64",
    ),
    "epilogue, precision": (
        (A, B), ("--epilogue", "relu", "--precision", "emulated"), np.maximum(A @ B, 0),
        "= relu(5x4 @ 4x3)",
    ),
}  # fmt: skip
for _dtype in matrices.SUPPORTED:
    _pair = np.array([[1, 0], [2, 3]]).astype(_dtype), np.array([[2, 1], [0, 1]]).astype(_dtype)
    RUNS[_dtype] = (_pair, (), _pair[0] @ _pair[1], "= 2x2 @ 2x2")


class TestRun:
    @pytest.mark.parametrize("name", RUNS)
    def test_the_result_is_written(self, save, output, name):
        arrays, options, expected, text = RUNS[name]
        paths = [save(letter, array) for letter, array in zip("ABC", arrays)]
        assert text in printed("run", *paths, "-o", output, *options)
        found = np.load(output)
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == dxgemm.gemm(*arrays[:2]).dtype

    def test_the_file_of_c_can_be_updated(self, operands):
        printed("run", *operands, "--alpha", "2", "--beta", "-3", "-o", operands[2])
        np.testing.assert_array_equal(np.load(operands[2]), 2 * A @ B - 3 * C)

    @pytest.mark.parametrize("options", [(), ("--json",)])
    def test_a_dash_writes_the_file_to_stdout(self, operands, options, tmp_path):
        a, b, _ = operands
        result = invoke("run", a, b, "-o", "-", *options)
        assert result.exit_code == 0
        np.testing.assert_array_equal(np.load(io.BytesIO(result.stdout_bytes)), A @ B)
        assert "float32" in result.stderr and len(list(tmp_path.iterdir())) == 3
        refused = invoke("run", a, a, "-o", "-")
        assert refused.exit_code == 2 and refused.stdout_bytes == b""

    def test_json_names_what_ran(self, operands, output):
        a, b, _ = operands
        options = "--implementation", "thread_tile_2d", "--alpha", "1"
        report = invoke_json("run", a, b, "-o", output, *options)
        assert report.pop("seconds") > 0
        assert report.pop("device") and report.pop("config")
        assert report == {
            "output": str(output), "shape": [5, 3], "dtype": "float32", "alpha": 1, "beta": 0,
            "implementation": "thread_tile_2d",
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("array", "fragment"),
        [
            (np.ones((4, 3), int), "int64"),
            (np.ones((4, 3), np.longdouble), "holds float128 values, and float16, float32"),
            (np.ones((4, 3), "V2"), "holds |V2 values"),
            (np.ones((4, 3), ">f8"), "holds >f8 values, in a byte order that is not native"),
            (np.array([["x"]]), "<U1"),
            (np.ones(4, np.float32), "(4,)"),
            (np.ones((2, 3), np.float32), "run: inner dimensions differ: a is (5, 4), b is (2, 3)"),
            (np.ones((4, 3)), "float64"),
        ],
        ids=lambda value: value.replace(" ", "") if isinstance(value, str) else "",
    )
    def test_an_unsupported_array_is_refused(self, operands, save, output, array, fragment):
        assert_refused(invoke("run", operands[0], save("bad", array), "-o", output), fragment)
        assert not output.exists()

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"1.0, 2.0\n",
            b"PK\x03\x04",
            b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4'}",
            b"\x93NUMPY\x01\x00\x10\x00{'descr': (4000, ",
        ],
        ids=["empty", "text", "npz", "incomplete header", "damaged header"],
    )
    def test_what_is_no_npy_file_is_refused(self, operands, tmp_path, output, content):
        path = tmp_path / "bad.npy"
        path.write_bytes(content)
        assert_refused(invoke("run", operands[0], path, "-o", output), "bad.npy", "numpy.save")

    def test_a_damaged_or_missing_file_is_refused(self, operands, output):
        a, b, _ = operands
        content = b.read_bytes()
        b.write_bytes(content[:-1])
        assert_refused(invoke("run", a, b, "-o", output), "B.npy is not a readable .npy file")
        b.write_bytes(content.replace(b"(4, 3), }            ", b"(4000000000000, 3), }"))
        assert_refused(invoke("run", a, b, "-o", output), "B.npy")
        b.unlink()
        assert_refused(invoke("run", a, b, "-o", output), "B.npy", "No such file")

    def test_pickles_are_never_loaded(self, operands, tmp_path, output):
        witness, path = tmp_path / "witness", tmp_path / "pickle.npy"
        np.save(path, np.array([[Unpickled(witness)]]), allow_pickle=True)
        assert_refused(invoke("run", operands[0], path, "-o", output), "Object arrays")
        assert not witness.exists()

    @pytest.mark.parametrize(
        ("options", "fragments"),
        [
            (("--beta", "1"), ("pass c",)),
            (("--implementation", "magic"), ("'magic'", "naive, coalesced, shared_tile")),
            (("--precision", "half"), ("'half'",)),
            *(
                (("--epilogue", name), (f"run: epilogue is {name!r}; pass 'relu' or 'leaky_relu'",))
                for name in ("bias", "keep", "magic")
            ),
        ],
    )
    def test_options_that_do_not_fit_are_refused(self, operands, output, options, fragments):
        a, b, _ = operands
        assert_refused(invoke("run", a, b, "-o", output, *options), *fragments)

    def test_numbers_that_are_none_are_refused(self, operands, save, output):
        paths = [save(letter, array) for letter, array in zip("ABC", INT8)]
        refused = invoke("run", *paths, "--alpha", "0.5", "-o", output)
        assert_refused(refused, "alpha is 0.5")
        refused = invoke("run", *paths, "-o", output, "--alpha", "two")
        assert refused.exit_code == 2 and "'two' is no number" in refused.stderr

    @needs_simulator
    def test_what_takes_hours_is_refused_unless_allowed(self, operands, output, monkeypatch):
        monkeypatch.setattr(run_command, "MAX_SIMULATED", 59)
        arguments = "run", *operands[:2], "-o", output
        assert_refused(invoke(*arguments), "m * n * k is 60, above the 59", "--allow-slow")
        assert not output.exists()
        printed(*arguments, "--allow-slow")


class Unpickled:
    """Creates a file when it is unpickled."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> Any:
        return Path.touch, (self.witness,)


class TestOutputFile:
    @pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "disk full"), KeyboardInterrupt()])
    def test_a_failed_write_leaves_the_old_file(self, operands, tmp_path, monkeypatch, error):
        a, b, c = operands
        before = c.read_bytes()

        def half_save(file: Any, array: np.ndarray) -> None:
            file.write(b"half")
            raise error

        monkeypatch.setattr(run_command.np, "save", half_save)
        result = invoke("run", a, b, "-o", c)
        assert result.exit_code != 0
        if isinstance(error, OSError):
            assert_refused(result, "cannot write", "disk full")
        assert_refused(invoke("run", a, a, "-o", c), "inner dimensions differ")
        assert c.read_bytes() == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["A.npy", "B.npy", "C.npy"]

    def test_permissions_and_links_are_kept(self, operands, tmp_path, output):
        a, b, c = operands
        c.chmod(0o640)
        printed("run", a, b, "-o", c)
        assert stat.S_IMODE(c.stat().st_mode) == 0o640
        link = tmp_path / "link.npy"
        link.symlink_to(output)
        printed("run", a, b, "-o", link)
        assert link.is_symlink() and np.load(output).shape == (5, 3)

    def test_a_path_that_takes_no_file_is_refused(self, operands, tmp_path):
        a, b, _ = operands
        assert_refused(invoke("run", a, b, "-o", tmp_path), "it is a directory")
        assert_refused(invoke("run", a, b, "-o", tmp_path / "none" / "out.npy"), "No such file")


class TestInfo:
    @pytest.fixture
    def installed(self, monkeypatch):
        """Makes packages and their versions those that are found."""
        return lambda found: monkeypatch.setattr(
            info_command, "installed_versions", lambda _: found
        )

    def test_json_and_text_agree(self):
        report, text = invoke_json("info"), printed("info")
        assert report["dxgemm"] == dxgemm.__version__
        assert report["cache"]["directory"] in text
        for name, number in report["packages"].items():
            assert f"{name:<24}{number}" in text

    def test_a_slow_toolkit_is_named(self, monkeypatch):
        toolkit = importlib.import_module("dxgemm.compiler.toolkit")
        monkeypatch.setattr(toolkit, "toolkit_versions", lambda: {"nvidia-nvjitlink": "13.5.37"})
        monkeypatch.setattr(info_command, "pipeline_faults", toolkit.pipeline_faults.__wrapped__)
        assert "not built: nvidia-nvjitlink 13.5.37" in invoke_json("info")["warnings"][0]

    def test_what_a_bare_install_lacks_is_named(self, installed):
        installed({"numpy": "2.4.6"})
        missing, text = invoke_json("info")["missing"], printed("info")
        assert len(missing) == 7
        assert all(f"{'missing':<24}{line}" in text for line in missing)
        assert "pip install 'dxgemm[cu1" in text
        installed(dict.fromkeys(info_command.PACKAGES, "1.0"))
        assert invoke_json("info")["missing"] == []
        text = printed("info")
        assert "missing" not in text and "nvmath-python           1.0" in text

    def test_packages_newer_than_the_driver_are_named(self, monkeypatch, installed):
        monkeypatch.setattr(info_command, "probe", lambda: GpuStatus(12040, 0, None))
        monkeypatch.setattr(info_command, "pipeline_faults", tuple)
        installed({"nvidia-nvjitlink": "13.1.115"})
        (warning,) = invoke_json("info")["warnings"]
        assert "only CUDA 12.4" in warning and "dxgemm[cu12]" in warning


class TestDemo:
    @pytest.fixture(autouse=True)
    def _few_simulated_images(self, monkeypatch):
        monkeypatch.setattr(demo_command, "SIMULATED_GRAM_IMAGES", 5)
        monkeypatch.setattr(demo_command, "SIMULATED_IMAGES", 45)

    def test_every_own_implementation_is_timed(self):
        report = invoke_json("demo", "--all")
        timings = report["gram_matrix"]["timings"]
        timed = {(t["implementation"], t["dtype"]) for t in timings if t["time_us"]}
        for implementation in dxgemm.implementations():
            for dtype in ("float32", "float64"):
                if implementation.is_own and not inability(implementation, dtype):
                    assert (implementation.name, dtype) in timed
        assert report["classification"]["accuracy"] > 0.8

    def test_without_a_compiler_the_kernels_of_wheels_are_timed(self, monkeypatch, capsys):
        plan = dxgemm.plan

        def plan_of_a_wheel(*arrays, implementation):
            if implementation in ("naive", "tuned"):
                fail(implementation)
            return plan(*arrays, implementation=implementation)

        def fail(name, **settings):
            raise errors.MissingPackageError(f"building {name} 8x8 needs numba-cuda")

        monkeypatch.setattr(dxgemm, "plan", plan_of_a_wheel)
        monkeypatch.setattr(demo_command, "build_kernels", fail)
        monkeypatch.setattr(demo_command, "find_spec", lambda name: None)
        demo_command._build([("coalesced", "float32")], 5, lambda *progress: None)
        noted = capsys.readouterr().err
        assert "No compiler is installed" in noted and "Building" not in noted
        text = printed("demo")
        assert "Not timed: naive, tuned: needs numba-cuda" in text and "coalesced" in text

    def test_a_wrong_result_fails(self, monkeypatch):
        fetch = demo_command.fetch
        monkeypatch.setattr(demo_command, "fetch", lambda array: fetch(array) + 1)
        assert_refused(invoke("demo"), "differs from NumPy's", status=1)


class TestExplain:
    def test_text_names_problem_and_choice(self):
        text = printed("explain", 50, 60, 70, "--dtype", "float64", "--batch", 3)
        assert "3 x 50 x 60 x 70 float64" in text
        assert "implementation" in text and len(text.splitlines()) <= 15
        whole = printed("explain", 50, 60, 70, "--all")
        assert all(i.name in whole for i in dxgemm.implementations())

    def test_options_are_passed_on(self):
        def work(*options):
            return invoke_json("explain", 5, 6, 7, *options)["work"]

        half = work("--dtype", "bfloat16", "--out-dtype", "float32")
        assert (half["dtype"], half["out_dtype"]) == ("bfloat16", "float32")
        assert work("--dtype", "int8")["out_dtype"] == "int32"
        assert work("--precision", "tf32")["precision"] == "tf32"
        for option in ("--batch-invariant", "--layout=row_col"):
            assert work("--measure", option)["m"] == 5
        assert "batch invariant" in printed("explain", 5, 6, 7, "--batch-invariant")
        assert work("--dtype", "float64", "--precision", "emulated14")["precision"] == "emulated14"
        refused = invoke("explain", 5, 6, 7, "--dtype", "float64", "--precision", "tf32")
        assert_refused(refused, "explain: precision 'tf32' is for float32")
        named = invoke_json("explain", 5, 6, 7, "--implementation", "coalesced")
        assert named["choice"]["implementation"] == "coalesced"
        assert_refused(invoke("explain", 1, 1, 1, "--implementation", "magic"), "'magic'")

    def test_a_card_that_is_not_at_hand_can_be_named(self):
        arguments = ("explain", 4096, 4096, 512, "--gpu", "rtx 4090", "--batch", 2)
        report = invoke_json(*arguments, "--dtype", "float16", "--out-dtype", "float32")
        work, prediction = report["work"], report["prediction"]
        emulated = printed("explain", 4096, 4096, 4096, "--gpu", "H200", "--precision", "emulated")
        assert len(emulated.splitlines()) == 14  # and one for the measured time
        assert (work["device"], work["sm_count"]) == ("NVIDIA GeForce RTX 4090", 128)
        assert work["is_named_gpu"] and prediction["us"] > prediction["roofline"]["time_us"] > 0
        result = invoke(*arguments)
        assert "all times are predicted" in result.stdout and result.stderr == ""
        assert_refused(invoke("explain", 1, 1, 1, "--gpu", "RTX 9999"), "RTX 9999", "RTX 4090")
        measured = invoke(*arguments, "--measure")
        assert measured.exit_code == 2 and "--measure" in measured.stderr

    @pytest.mark.parametrize(
        ("dtype", "batch"), [("float32", 2), ("int8", 1), ("complex64", 2), ("float32", 0)]
    )
    def test_what_is_measured_is_what_was_explained(self, dtype, batch):
        arguments = ("explain", 5, 6, 7, "--batch", batch, "--dtype", dtype)
        explained, measured = (invoke_json(*arguments, *m) for m in ((), ("--measure",)))
        for name in ("batch", "flops", "dtype"):
            assert explained["work"][name] == measured["work"][name]
        assert measured["work"]["batch"] == batch and measured["measured_us"] > 0
        assert measured["clock"] in printed(*arguments, "--measure")

    @needs_simulator
    def test_what_takes_hours_is_not_measured(self):
        assert_refused(invoke("explain", 200, 200, 200, "--measure"), "leave out --measure")

    @pytest.mark.parametrize("arguments", [(1, 1), (1, 1, "x"), (1, 1, 1, "--dtype", "uint8")])
    def test_misuse_shows_the_usage(self, arguments):
        result = invoke("explain", *arguments)
        assert result.exit_code == 2 and "Usage" in result.stderr

    def test_implementations_are_listed(self):
        names = [implementation.name for implementation in dxgemm.implementations()]
        assert [row["name"] for row in invoke_json("implementations")] == names
        assert all(name in printed("implementations") for name in names)


class TestLadder:
    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch):
        monkeypatch.setattr(ladder_command, "SIMULATED_SIZE", 5)
        monkeypatch.setattr(ladder_command, "GPU_SIZE", 256)

    def test_every_rung_stands_in_order(self):
        own = [row for row in invoke_json("ladder")["rungs"] if row["rung"] is not None]
        assert [row["rung"] for row in own] == sorted(row["rung"] for row in own)
        assert {row["name"] for row in own} == {i.name for i in dxgemm.implementations() if i.rung}
        for row in own:
            assert (row["time_us"] is None) == (row["refusal"] is not None), row

    def test_rungs_are_named_by_number_and_name(self):
        arguments = "ladder", "--rung", 2, "--rung", "thread_tile_2d", "--dtype", "float64"
        text = printed(*arguments, "--tune")
        assert "coalesced" in text and "thread_tile_2d" in text and "float64" in text
        assert "checked, bit by bit" in text
        rows = invoke_json(*arguments, "--tune")["rungs"]
        assert rows[1]["vs_before"] == rows[0]["time_us"] / rows[1]["time_us"]
        assert_refused(invoke("ladder", "--rung", "magic"), "'magic'", "2 coalesced")

    def test_tf32_is_for_the_rungs_made_for_it(self):
        (row,) = invoke_json("ladder", "--rung", "2", "--dtype", "tf32")["rungs"][:1]
        assert row["refusal"] == "it is a rung of float32"

    def test_a_wrong_result_fails(self, monkeypatch):
        monkeypatch.setattr("dxgemm.tuning.measure.Bench._plan", lambda *_: lambda: None)
        assert_refused(invoke("ladder", "--rung", "2"), "coalesced is wrong by", status=1)

    @needs_simulator
    def test_what_takes_hours_is_refused(self):
        assert_refused(invoke("ladder", "--size", 4096), "at most 128")


class TestProfile:
    @pytest.fixture
    def with_gpu(self, monkeypatch):
        monkeypatch.setattr(profile_command, "require_gpu", lambda work: None)
        monkeypatch.setattr(profile_command.shutil, "which", lambda name: None)

    def test_the_command_launches_the_rung_once(self, with_gpu):
        report = invoke_json("profile", 2, "--size", 5, "--dtype", "float64")
        launch = "profile coalesced --dtype float64 --size 5 --once"
        assert report["command"].startswith("ncu ")
        assert report["command"].endswith(f"-m dxgemm {launch}")
        printed(*launch.split())
        refused = invoke("profile", 2, "--config", "magic", "--once")
        assert_refused(refused, "'magic'", "coalesced has no config")

    @needs_simulator
    def test_without_a_gpu_it_says_so_in_one_line(self):
        assert_refused(invoke("profile", 2), "profile: profiling needs a GPU", status=1)

    def test_the_counters_are_explained(self, with_gpu):
        result = invoke("profile", 2)
        assert "Three counters" in result.stdout and "ncu is not on the PATH" in result.stderr

    def test_what_ncu_prints_is_read(self):
        ((_, values),) = counters.parse_launches(NCU_OUTPUT)
        assert (values["fma_percent"], values["dram_bytes"]) == (61.5, 1234567.0)
        assert "fp64_percent" not in values
        assert counters.top_stall(values) == "short_scoreboard"
        assert counters.busiest_pipe(values) == ("fma", 61.5)
        lines = dict(profile_command.summary(values))
        assert lines["units busy"] == "fma 61.5 %"
        assert lines["top stall"].startswith("short_scoreboard, 2.25 cycles")

    def test_a_profiler_that_counts_nothing_is_an_error(self):
        program = "print('==ERROR== ERR_NVGPUCTRPERM'); raise SystemExit(1)"
        with pytest.raises(profile_command.ProfilerError, match="ERR_NVGPUCTRPERM"):
            profile_command.profiled_launches([sys.executable, "-c", program])


NCU_OUTPUT = """\
==PROF== Connected to process 7
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","7","kernel","dram__bytes.sum","byte","1,234,567"
"0","7","kernel","sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active","%","61.50"
"0","7","kernel","sm__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_active","%","n/a"
"0","7","kernel","smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio","inst","0.75"
"0","7","kernel","smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio","","2.25"
"""


class TestOccupancy:
    def test_the_calculation_needs_no_gpu(self, tmp_path):
        arguments = ("occupancy", "coalesced", "--config", "4x32", "--arch", "sm_90a")
        report = invoke_process(*arguments, "--json", cache=tmp_path)
        assert report.returncode == 0, report.stderr
        values = json.loads(report.stdout)
        assert values["threads"] == 128
        assert values["resident_warps"] == 4 * values["blocks"]
        assert values["blocks"] == min(values["blocks_by"].values())
        text = invoke_process(*arguments, cache=tmp_path).stdout
        assert f"{values['occupancy']:.1%} occupancy" in text
        assert f"{values['registers']} per thread" in text

    @pytest.mark.parametrize(
        ("rung", "options", "reason"),
        [
            ("wgmma", ("--dtype", "float16", "--arch", "sm_80"), "9.0, not 8.0"),
            ("async_copy", ("--arch", "sm_75"), "8.0 or later, not 7.5"),
        ],
    )
    def test_what_an_architecture_cannot_run_is_refused(self, tmp_path, rung, options, reason):
        result = invoke_process("occupancy", rung, *options, cache=tmp_path, simulator="0")
        assert (result.returncode, result.stdout) == (2, "")
        refused = f"occupancy: {rung} cannot compute this: it needs compute capability {reason}."
        assert result.stderr == f"dxgemm: {refused}\n"

    def test_unknown_architectures_are_refused(self):
        assert_refused(invoke("occupancy", 2, "--arch", "sm_42"), "'sm_42'")


@needs_simulator
def test_the_blocks_of_a_simulated_kernel_are_reported():
    told = []
    a = np.ones((8, 4), np.float32)
    with blocks_reported(lambda done, of: told.append((done, of))):
        dxgemm.gemm(a, a.T, implementation="naive")
    dxgemm.gemm(a, a.T, implementation="naive")
    assert told == [(done, len(told)) for done in range(len(told))] and len(told) > 1


class TestBench:
    def test_outside_a_clone_it_says_where_to_go(self, monkeypatch, tmp_path):
        monkeypatch.setattr(bench_command, "BENCHMARKS", tmp_path)
        assert_refused(invoke("bench"), "make bench", "clone of the repository")

    @needs_simulator
    def test_the_simulator_is_not_measured(self):
        assert_refused(invoke("bench"), "bench: measuring needs a GPU", status=1)

    def test_it_runs_the_scripts_of_the_clone(self, monkeypatch):
        ran = []

        def run(command: list[str]) -> Any:
            ran.append(command)
            return subprocess.CompletedProcess(command, 3)

        monkeypatch.setattr(bench_command.subprocess, "run", run)
        assert invoke("bench", "--suite", "gemm", "--smoke").exit_code == 3
        assert invoke("bench", "--report").exit_code == 3
        scripts = [Path(command[1]) for command in ran]
        assert [path.name for path in scripts] == ["run.py", "report.py"]
        assert all(path.is_file() for path in scripts)
        assert [command[2:] for command in ran] == [["--suite=gemm", "--smoke"], []]


class TestProcess:
    """Commands in a process of their own, with an environment of its own."""

    @pytest.mark.long_build
    def test_kernels_are_built_kept_and_cleared(self, tmp_path):
        build = ("build", "--arch", "sm_90a", "--arch", "sm_80", "--dtype", "float32", "--json")
        build += ("--implementation", "coalesced")
        first, second = (invoke_process(*build, "--jobs", "2", cache=tmp_path) for _ in range(2))
        assert first.returncode == 0, first.stderr
        records = json.loads(first.stdout)
        assert {record["arch"] for record in records} == {"sm_80", "sm_90a"}
        assert {record["dtype"] for record in records} == {"float32"}
        assert {record["implementation"] for record in records} == {"coalesced"}
        assert json.loads(second.stdout) == records
        cached = json.loads(invoke_process("cache", "--json", cache=tmp_path).stdout)
        assert cached["kernel_count"] == len(records)
        assert cached["total_bytes"] == sum(record["cubin_bytes"] for record in records)
        assert "sm_90a" in invoke_process("cache", cache=tmp_path).stdout
        cleared = invoke_process("cache", "clear", "--json", cache=tmp_path)
        assert json.loads(cleared.stdout) == {"removed": len(records)}

    def test_an_unknown_architecture_is_refused(self, tmp_path):
        result = invoke_process("build", "--arch", "hopper", cache=tmp_path)
        assert result.returncode == 2 and "arch is 'hopper'" in result.stderr

    @needs_no_gpu
    def test_without_a_gpu_the_simulator_stands_in_and_says_so(self, operands, output, tmp_path):
        arguments = "run", *operands[:2], "-o", output
        refused = invoke_process(*arguments, cache=tmp_path, simulator="0")
        assert refused.returncode == 1 and len(refused.stderr.splitlines()) == 1
        assert not output.exists()
        result = invoke_process(*arguments, cache=tmp_path)
        assert result.returncode == 0 and "simulator" in result.stderr
        np.testing.assert_array_equal(np.load(output), A @ B)
        build = invoke_process("build", cache=tmp_path)
        assert build.returncode == 1 and "--arch" in build.stderr

    def test_help_is_quick(self):
        loaded = subprocess.run(
            [sys.executable, "-c", HELP_THEN_MODULES], capture_output=True, text=True, check=True
        ).stdout.splitlines()[-1]
        assert loaded == "[]"

    def test_version(self, tmp_path):
        result = invoke_process("--version", cache=tmp_path)
        assert result.stdout == f"dxgemm {dxgemm.__version__}\n"


HELP_THEN_MODULES = """
import sys
from dxgemm.cli.app import app
try:
    app(["--help"])
except SystemExit:
    heavy = {"numba", "cuda", "cupy", "torch", "sklearn", "scipy"}
    print(sorted(heavy & set(sys.modules)))
"""
