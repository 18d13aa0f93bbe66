"""The command line on real files: results, bad input, atomic output, JSON."""

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


def succeed(*arguments: object) -> Any:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    return result


def invoke_json(*arguments: object) -> Any:
    return json.loads(succeed(*arguments, "--json").stdout)


def invoke_process(
    *arguments: object, cache: Path, simulator: str | None = None
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, where only `simulator` sets NUMBA_ENABLE_CUDASIM."""
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"}
    environment["DXGEMM_CACHE_DIR"] = str(cache)
    if simulator is not None:
        environment["NUMBA_ENABLE_CUDASIM"] = simulator
    return subprocess.run(
        [sys.executable, "-m", "dxgemm", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
    )


def assert_refused(result: Any, *fragments: str, status: int = 2) -> None:
    """One line that says why, last on stderr; nothing on stdout."""
    assert result.exit_code == status
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    reason = result.stderr.splitlines()[-1]
    assert reason.startswith("dxgemm: ")
    for fragment in fragments:
        assert fragment in reason


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
    """A (5, 4), B (4, 3) and C (5, 3) of small integers, float32."""
    random = np.random.default_rng(1)
    a, b, c = (
        random.integers(-9, 9, shape).astype(np.float32) for shape in ((5, 4), (4, 3), (5, 3))
    )
    return save("A", a), save("B", b), save("C", c)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.npy"


class TestRun:
    def test_the_product_is_written(self, operands, output):
        a, b, _ = operands
        assert "5x3 float32 = 5x4 @ 4x3" in succeed("run", a, b, "-o", output).stdout
        np.testing.assert_array_equal(np.load(output), np.load(a) @ np.load(b))

    def test_alpha_and_beta_update_the_file_of_c(self, operands):
        a, b, c = operands
        expected = 2 * np.load(a) @ np.load(b) - 3 * np.load(c)
        succeed("run", a, b, c, "--alpha", "2", "--beta", "-3", "-o", c)
        np.testing.assert_array_equal(np.load(c), expected)

    def test_a_batch_in_float64_and_fortran_order(self, save, output):
        a = np.arange(12.0).reshape(2, 3, 2)
        b = np.asfortranarray(np.arange(8.0).reshape(2, 4))
        succeed("run", save("A", a), save("B", b), "-o", output)
        np.testing.assert_array_equal(np.load(output), a @ b)

    def test_int8_gives_int32(self, save, output):
        a, b, c = np.int8([[-128, 127]]), np.int8([[127], [-128]]), np.int32([[2**30]])
        arguments = (save("A", a), save("B", b), save("C", c))
        result = succeed("run", *arguments, "--alpha", "-3", "--beta", "2147483647", "-o", output)
        assert "1x1 int32 = -3 * 1x2 @ 2x1 + 2147483647 * 1x1" in result.stdout
        expected = -3 * (a.astype(int) @ b) + 2147483647 * c.astype(int)
        np.testing.assert_array_equal(np.load(output), expected.astype(np.int32))
        assert_refused(invoke("run", *arguments, "--alpha", "0.5", "-o", output), "alpha is 0.5")

    @pytest.mark.parametrize("dtype", matrices.SUPPORTED)
    def test_every_dtype_that_gemm_takes(self, save, output, dtype):
        exact = np.array([[1, 0], [2, 3]]).astype(dtype), np.array([[2, 1], [0, 1]]).astype(dtype)
        if dtype.startswith("complex"):
            exact = exact[0] * 1j, exact[1]
        product = dxgemm.gemm(*exact)
        result = succeed("run", save("A", exact[0]), save("B", exact[1]), "-o", output)
        assert f"2x2 {product.dtype} = 2x2 @ 2x2" in result.stdout
        np.testing.assert_array_equal(np.load(output), exact[0] @ exact[1])
        assert np.load(output).dtype == product.dtype

    def test_numbers_keep_their_digits(self, save, output):
        one = save("one", np.ones((1, 1), np.int64))
        succeed("run", one, one, "-o", output, "--alpha", 2**53 + 1)
        assert np.load(output) == 2**53 + 1
        one = save("one", np.ones((1, 1), np.complex64))
        arguments = "run", one, one, one, "--alpha", "1+2j", "--beta", "-1", "--json"
        report = json.loads(invoke(*arguments, "-o", output).stdout)
        assert (report["alpha"], report["beta"], np.load(output)) == ("(1+2j)", -1, 2j)
        refused = invoke("run", one, one, "-o", output, "--alpha", "two")
        assert refused.exit_code == 2 and "'two' is no number" in refused.stderr

    def test_precision_and_epilogue_are_passed_on(self, operands, output):
        a, b, _ = operands
        product = np.load(a) @ np.load(b)
        result = succeed("run", a, b, "-o", output, "--epilogue", "relu", "--precision", "emulated")
        assert "= relu(5x4 @ 4x3)" in result.stdout
        np.testing.assert_array_equal(np.load(output), np.maximum(product, 0))
        assert_refused(invoke("run", a, b, "-o", output, "--precision", "half"), "'half'")
        for name in ("bias", "keep", "magic"):
            refused = invoke("run", a, b, "-o", output, "--epilogue", name)
            assert_refused(refused, f"run: epilogue is {name!r}; pass 'relu' or 'leaky_relu'")

    @pytest.mark.parametrize("options", [(), ("--json",)])
    def test_a_dash_writes_the_file_to_stdout(self, operands, options, tmp_path):
        a, b, _ = operands
        result = invoke("run", a, b, "-o", "-", *options)
        assert result.exit_code == 0
        found = np.load(io.BytesIO(result.stdout_bytes))
        np.testing.assert_array_equal(found, np.load(a) @ np.load(b))
        assert "float32" in result.stderr and len(list(tmp_path.iterdir())) == 3
        refused = invoke("run", a, a, "-o", "-")
        assert refused.exit_code == 2 and refused.stdout_bytes == b""

    def test_json_names_what_ran(self, operands, output):
        a, b, _ = operands
        report = invoke_json("run", a, b, "-o", output, "--implementation", "thread_tile_2d")
        assert report["output"] == str(output) and report["seconds"] > 0
        found = [report[name] for name in ("shape", "dtype", "implementation")]
        assert found == [[5, 3], "float32", "thread_tile_2d"]

    @pytest.mark.parametrize(
        ("array", "fragment"),
        [
            (np.ones((4, 3), int), "int64"),
            (np.ones((4, 3), np.longdouble), "holds float128 values, and float16, float32"),
            (np.ones((4, 3), "V2"), "holds |V2 values"),
            (np.ones((4, 3), ">f8"), "holds >f8 values, in a byte order that is not native"),
            (np.array([["x"]]), "<U1"),
            (np.ones(4, np.float32), "(4,)"),
            (np.ones((2, 3), np.float32), "a is (5, 4), b is (2, 3)"),
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

    def test_a_damaged_or_missing_file_is_refused(self, operands, tmp_path, output):
        a, b, _ = operands
        content = b.read_bytes()
        b.write_bytes(content[:-1])
        assert_refused(invoke("run", a, b, "-o", output), "B.npy is not a readable .npy file")
        b.write_bytes(content.replace(b"(4, 3), }            ", b"(4000000000000, 3), }"))
        assert_refused(invoke("run", a, b, "-o", output), "B.npy")
        b.unlink()
        assert_refused(invoke("run", a, b, "-o", output), "B.npy", "No such file")

    def test_pickles_are_never_loaded(self, operands, tmp_path, output):
        witness = tmp_path / "witness"
        path = tmp_path / "pickle.npy"
        np.save(path, np.array([[Unpickled(witness)]]), allow_pickle=True)
        assert_refused(invoke("run", operands[0], path, "-o", output), "Object arrays")
        assert not witness.exists()

    def test_options_that_do_not_fit_are_refused(self, operands, output):
        a, b, _ = operands
        assert_refused(invoke("run", a, b, "-o", output, "--beta", "1"), "pass c")
        result = invoke("run", a, b, "-o", output, "--implementation", "magic")
        assert_refused(result, "'magic'", "naive, coalesced, shared_tile")
        assert_refused(invoke("run", b, b, "-o", output), "dxgemm: run: inner dimensions differ")

    @needs_simulator
    def test_what_takes_hours_is_refused_unless_allowed(self, operands, output, monkeypatch):
        monkeypatch.setattr(run_command, "MAX_SIMULATED", 59)
        a, b, _ = operands
        assert_refused(
            invoke("run", a, b, "-o", output), "m * n * k is 60, above the 59", "--allow-slow"
        )
        assert not output.exists()
        assert invoke("run", a, b, "-o", output, "--allow-slow").exit_code == 0


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
        assert c.read_bytes() == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["A.npy", "B.npy", "C.npy"]

    def test_a_refused_problem_leaves_the_old_file(self, operands):
        a, _, c = operands
        before = c.read_bytes()
        assert_refused(invoke("run", a, a, "-o", c), "inner dimensions differ")
        assert c.read_bytes() == before

    def test_its_permissions_are_kept(self, operands):
        a, b, c = operands
        c.chmod(0o640)
        assert invoke("run", a, b, "-o", c).exit_code == 0
        assert stat.S_IMODE(c.stat().st_mode) == 0o640

    def test_a_link_is_followed(self, operands, tmp_path, output):
        a, b, _ = operands
        link = tmp_path / "link.npy"
        link.symlink_to(output)
        assert invoke("run", a, b, "-o", link).exit_code == 0
        assert link.is_symlink()
        assert np.load(output).shape == (5, 3)

    def test_a_place_that_takes_no_file_is_refused(self, operands, tmp_path):
        a, b, _ = operands
        assert_refused(invoke("run", a, b, "-o", tmp_path), "it is a directory")
        assert_refused(invoke("run", a, b, "-o", tmp_path / "none" / "out.npy"), "No such file")


class TestInfo:
    def test_json_and_text_agree(self):
        report = invoke_json("info")
        text = invoke("info").stdout
        assert report["dxgemm"] == dxgemm.__version__
        assert report["cache"]["directory"] in text
        for name, number in report["packages"].items():
            assert f"{name:<24}{number}" in text

    def test_a_slow_toolkit_is_named(self, monkeypatch):
        toolkit = importlib.import_module("dxgemm.compiler.toolkit")
        monkeypatch.setattr(toolkit, "toolkit_versions", lambda: {"nvidia-nvjitlink": "13.5.37"})
        monkeypatch.setattr(info_command, "pipeline_faults", toolkit.pipeline_faults.__wrapped__)
        assert "not built: nvidia-nvjitlink 13.5.37" in invoke_json("info")["warnings"][0]

    def test_what_a_bare_install_lacks_is_named(self, monkeypatch):
        monkeypatch.setattr(info_command, "installed_versions", lambda _: {"numpy": "2.4.6"})
        missing = invoke_json("info")["missing"]
        text = invoke("info").stdout
        assert len(missing) == 7
        assert all(f"{'missing':<24}{line}" in text for line in missing)
        assert "pip install 'dxgemm[cu1" in text
        packages = dict.fromkeys(info_command.PACKAGES, "1.0")
        monkeypatch.setattr(info_command, "installed_versions", lambda _: packages)
        assert invoke_json("info")["missing"] == []
        text = invoke("info").stdout
        assert "missing" not in text and "nvmath-python           1.0" in text

    def test_packages_newer_than_the_driver_are_named(self, monkeypatch):
        monkeypatch.setattr(info_command, "probe", lambda: GpuStatus(12040, 0, None))
        packages = {"nvidia-nvjitlink": "13.1.115"}
        monkeypatch.setattr(info_command, "installed_versions", lambda _: packages)
        monkeypatch.setattr(info_command, "pipeline_faults", tuple)
        (warning,) = invoke_json("info")["warnings"]
        assert "only CUDA 12.4" in warning
        assert "dxgemm[cu12]" in warning


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
        printed = invoke("demo").stdout
        assert "Not timed: naive, tuned: needs numba-cuda" in printed
        assert "coalesced" in printed

    def test_a_wrong_result_fails(self, monkeypatch):
        fetch = demo_command.fetch
        monkeypatch.setattr(demo_command, "fetch", lambda array: fetch(array) + 1)
        assert_refused(invoke("demo"), "differs from NumPy's", status=1)


class TestExplain:
    def test_text_names_problem_and_choice(self):
        text = invoke("explain", 50, 60, 70, "--dtype", "float64", "--batch", 3).stdout
        assert "3 x 50 x 60 x 70 float64" in text
        assert "implementation" in text and len(text.splitlines()) <= 15
        whole = invoke("explain", 50, 60, 70, "--all").stdout
        assert all(i.name in whole for i in dxgemm.implementations())

    def test_json_names_the_implementation_asked_for(self):
        report = invoke_json("explain", 50, 60, 70, "--implementation", "coalesced")
        work = report["work"]
        assert (work["m"], work["n"], work["k"]) == (50, 60, 70)
        assert report["choice"]["implementation"] == "coalesced"

    def test_dtypes_and_precision_are_passed_on(self):
        def work(*options):
            return invoke_json("explain", 5, 6, 7, *options)["work"]

        half = work("--dtype", "bfloat16", "--out-dtype", "float32")
        assert (half["dtype"], half["out_dtype"]) == ("bfloat16", "float32")
        assert work("--dtype", "int8")["out_dtype"] == "int32"
        assert work("--precision", "tf32")["precision"] == "tf32"
        for option in ("--batch-invariant", "--layout=row_col"):
            assert work("--measure", option)["m"] == 5
        assert "batch invariant" in invoke("explain", 5, 6, 7, "--batch-invariant").stdout
        assert work("--dtype", "float64", "--precision", "emulated14")["precision"] == "emulated14"
        refused = invoke("explain", 5, 6, 7, "--dtype", "float64", "--precision", "tf32")
        assert_refused(refused, "'tf32' is for float32")

    def test_a_card_that_is_not_at_hand_can_be_named(self):
        arguments = ("explain", 4096, 4096, 512, "--gpu", "rtx 4090", "--batch", 2)
        report = invoke_json(*arguments, "--dtype", "float16", "--out-dtype", "float32")
        work, prediction = report["work"], report["prediction"]
        emulated = invoke("explain", 4096, 4096, 4096, "--gpu", "H200", "--precision", "emulated")
        assert len(emulated.stdout.splitlines()) == 14  # and one for the measured time
        assert (work["device"], work["sm_count"]) == ("NVIDIA GeForce RTX 4090", 128)
        assert work["is_named_gpu"] and prediction["us"] > prediction["roofline"]["time_us"] > 0
        result = invoke(*arguments)
        assert "all times are predicted" in result.stdout and result.stderr == ""

        measured = invoke(*arguments, "--measure")
        assert measured.exit_code == 2 and "--measure" in measured.stderr

    @pytest.mark.parametrize("dtype", ["float32", "int8", "complex64"])
    def test_the_product_can_be_measured(self, dtype):
        arguments = ("explain", 5, 6, 7, "--batch", 2, "--dtype", dtype, "--measure")
        report = invoke_json(*arguments)
        assert report["measured_us"] > 0
        assert report["clock"] in invoke(*arguments).stdout

    @pytest.mark.parametrize("batch", [0, 1, 2])
    def test_what_is_measured_is_what_was_explained(self, batch):
        arguments = ("explain", 5, 6, 7, "--batch", batch)
        explained, measured = (invoke_json(*arguments, *m)["work"] for m in ((), ("--measure",)))
        assert explained["batch"] == measured["batch"] == batch
        assert explained["flops"] == measured["flops"] == 2 * batch * 5 * 6 * 7

    @pytest.mark.parametrize("arguments", [(1, 1), (1, 1, "x"), (1, 1, 1, "--dtype", "uint8")])
    def test_misuse_shows_the_usage(self, arguments):
        result = invoke("explain", *arguments)
        assert result.exit_code == 2
        assert "Usage" in result.stderr

    def test_implementations_are_listed(self):
        names = [implementation.name for implementation in dxgemm.implementations()]
        assert [row["name"] for row in invoke_json("implementations")] == names
        text = invoke("implementations").stdout
        assert all(name in text for name in names)


class TestLadder:
    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch):
        monkeypatch.setattr(ladder_command, "SIMULATED_SIZE", 5)
        monkeypatch.setattr(ladder_command, "GPU_SIZE", 256)

    def test_every_rung_stands_in_order(self):
        report = invoke_json("ladder")
        own = [row for row in report["rungs"] if row["rung"] is not None]
        assert [row["rung"] for row in own] == sorted(row["rung"] for row in own)
        assert {row["name"] for row in own} == {i.name for i in dxgemm.implementations() if i.rung}
        for row in own:
            assert (row["time_us"] is None) == (row["refusal"] is not None), row

    def test_rungs_are_named_by_number_and_name(self):
        arguments = ("--rung", "2", "--rung", "thread_tile_2d", "--dtype", "float64", "--tune")
        text = invoke("ladder", *arguments).stdout
        assert "coalesced" in text and "thread_tile_2d" in text and "float64" in text
        assert "checked, bit by bit" in text
        rows = invoke_json("ladder", *arguments)["rungs"]
        assert rows[1]["vs_before"] == rows[0]["time_us"] / rows[1]["time_us"]

    def test_tf32_is_for_the_rungs_made_for_it(self):
        (row,) = invoke_json("ladder", "--rung", "2", "--dtype", "tf32")["rungs"][:1]
        assert row["refusal"] == "it is a rung of float32"

    def test_a_wrong_result_fails(self, monkeypatch):
        monkeypatch.setattr("dxgemm.tuning.measure.Bench._plan", lambda *_: lambda: None)
        assert_refused(invoke("ladder", "--rung", "2"), "coalesced is wrong by", status=1)


class TestProfile:
    @pytest.fixture
    def with_gpu(self, monkeypatch):
        monkeypatch.setattr(profile_command, "require_gpu", lambda work: None)
        monkeypatch.setattr(profile_command.shutil, "which", lambda name: None)

    def test_the_command_launches_the_rung_once(self, with_gpu):
        report = invoke_json("profile", 2, "--size", 5, "--dtype", "float64")
        assert report["command"].startswith("ncu ")
        launch = "-m dxgemm profile coalesced --dtype float64 --size 5 --once"
        assert report["command"].endswith(launch)
        succeed("profile", "coalesced", "--dtype", "float64", "--size", 5, "--once")

    def test_the_counters_are_explained(self, with_gpu, monkeypatch):
        monkeypatch.setattr(profile_command.shutil, "which", lambda name: None)
        result = invoke("profile", 2)
        assert "Three counters" in result.stdout
        assert "ncu is not on the PATH" in result.stderr

    def test_what_ncu_prints_is_read(self):
        (values,) = counters.parse_counters(NCU_OUTPUT)
        assert values["fma_percent"] == 61.5
        assert values["dram_bytes"] == 1234567.0
        assert "fp64_percent" not in values
        assert counters.top_stall(values) == "short_scoreboard"
        assert counters.busiest_pipe(values) == ("fma", 61.5)
        lines = dict(profile_command.summary(values))
        assert lines["units busy"] == "fma 61.5 %"
        assert lines["top stall"].startswith("short_scoreboard, 2.25 cycles")

    def test_a_profiler_that_counts_nothing_is_an_error(self):
        with pytest.raises(profile_command.ProfilerError, match="ERR_NVGPUCTRPERM"):
            profile_command.measure(
                [sys.executable, "-c", "print('==ERROR== ERR_NVGPUCTRPERM'); raise SystemExit(1)"]
            )


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
        assert f"{values['registers']} a thread" in text

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            (("wgmma", "--dtype", "float16", "--arch", "sm_80"), "9.0, not 8.0"),
            (("async_copy", "--arch", "sm_75"), "8.0 or later, not 7.5"),
        ],
    )
    def test_what_an_architecture_cannot_run_is_refused(self, tmp_path, arguments, reason):
        result = invoke_process("occupancy", *arguments, cache=tmp_path, simulator="0")
        assert (result.returncode, result.stdout) == (2, "")
        refused = f"occupancy: {arguments[0]} cannot compute this: it needs compute capability"
        assert result.stderr == f"dxgemm: {refused} {reason}.\n"


@pytest.mark.parametrize(
    ("line", "fragments"),
    [
        ("explain 1 1 1 --implementation magic", ["'magic'"]),
        ("explain 1 1 1 --precision half", ["dxgemm: explain: precision is 'half'"]),
        ("explain 1 1 1 --gpu RTX9999", ["RTX9999", "RTX 4090"]),
        ("ladder --rung magic", ["'magic'", "2 coalesced"]),
        ("profile 2 --config magic --once", ["'magic'", "coalesced has no config"]),
        ("occupancy 2 --arch sm_42", ["'sm_42'"]),
    ],
)
def test_what_is_unknown_is_refused(line, fragments):
    assert_refused(invoke(*line.split()), *fragments)


@needs_simulator
@pytest.mark.parametrize(
    ("line", "fragment", "status"),
    [
        ("explain 200 200 200 --measure", "leave out --measure", 2),
        ("ladder --size 4096", "at most 128", 2),
        ("profile 2", "profile: profiling needs a GPU", 1),
        ("bench", "bench: measuring needs a GPU", 1),
    ],
)
def test_what_takes_hours_or_a_gpu_is_refused_without_one(line, fragment, status):
    assert_refused(invoke(*line.split()), fragment, status=status)


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

    @pytest.mark.parametrize(
        ("arguments", "script", "passed_on"),
        [
            (("--suite", "gemm", "--smoke"), "run.py", ["--suite=gemm", "--smoke"]),
            (("--report",), "report.py", []),
        ],
    )
    def test_it_runs_the_scripts_of_the_clone(self, monkeypatch, arguments, script, passed_on):
        ran = []

        def run(command: list[str]) -> Any:
            ran.append(command)
            return subprocess.CompletedProcess(command, 3)

        monkeypatch.setattr(bench_command.subprocess, "run", run)
        assert invoke("bench", *arguments).exit_code == 3
        assert ran == [[sys.executable, str(bench_command.BENCHMARKS / script), *passed_on]]
        assert Path(ran[0][1]).is_file()


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
    def test_build_without_gpu_asks_for_an_architecture(self, tmp_path):
        result = invoke_process("build", cache=tmp_path)
        assert result.returncode == 1 and "--arch" in result.stderr

    @needs_no_gpu
    def test_without_gpu_the_simulator_stands_in_and_says_so(self, operands, output, tmp_path):
        a, b, _ = operands
        result = invoke_process("run", a, b, "-o", output, cache=tmp_path)
        assert result.returncode == 0
        assert "simulator" in result.stderr
        np.testing.assert_array_equal(np.load(output), np.load(a) @ np.load(b))

    @needs_no_gpu
    def test_without_gpu_and_simulator_the_reason_is_given(self, operands, output, tmp_path):
        a, b, _ = operands
        result = invoke_process("run", a, b, "-o", output, cache=tmp_path, simulator="0")
        assert result.returncode == 1
        assert len(result.stderr.splitlines()) == 1
        assert not output.exists()

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
