"""The soak test, as far as it can be tried on the simulator."""

import json
import os

import numpy as np
import pytest
import soak
from soak import Soak
from soak_problems import FULL_LAYOUTS, draw, kernels

import dxgemm
from dxgemm.gpu.status import simulator_enabled

pytestmark = pytest.mark.skipif(not simulator_enabled(), reason="`make soak` runs it whole")
SEED = 0


def test_problems_of_every_sort_are_right(tmp_path):
    run = Soak(SEED, most_problems=40)
    samples = run.run(minutes=5, threads=1)
    assert run.failure == ""
    counts = soak.report(run, samples, 1.0, 1)
    assert counts["problems"] + sum(counts["refused"].values()) == 40
    assert counts["problems"] == sum(counts["by_kind"].values()) > 20
    assert len(counts["by_implementation"]) > 5
    assert json.loads(json.dumps(counts)) == counts


def test_problems_are_the_same_again():
    numbers = range(len(kernels()) + 20)
    assert [str(draw(3, i)) for i in numbers] == [str(draw(3, i)) for i in numbers]
    assert [draw(3, i).kernel for i in numbers][: len(kernels())] == list(kernels())
    data = [draw(3, 7).rng.random(5) for _ in range(2)]
    np.testing.assert_array_equal(*data)


@pytest.mark.parametrize("damage", ["result", "guard", "operand"])
def test_the_first_wrong_result_stops_it_and_can_be_computed_again(monkeypatch, damage):
    gemm = dxgemm.gemm

    def damaged(a, b, c, alpha, beta, **options):
        result = gemm(a, b, c, alpha, beta, **options)
        if damage == "operand":
            a[0, 0] += 1
        elif damage == "guard":
            rows, columns = result.shape
            np.lib.stride_tricks.as_strided(result, (rows, columns + 1))[0, -1] = 1
        else:
            result[-1, -1] += 1
        return result

    monkeypatch.setattr(dxgemm, "gemm", damaged)
    number = next(
        i
        for i in range(10_000)
        for problem in [draw(SEED, i)]
        if problem.kernel.layouts == FULL_LAYOUTS[2] and not problem.is_planned
        and problem.kernel.name in ("naive", "coalesced", "shared_tile", "thread_tile_1d")
        and problem.batch == (None,) * 3 and min(problem.m, problem.n, problem.k) > 0
    )  # fmt: skip
    run = Soak(SEED)
    run.step(number)
    assert run.failure.startswith(f"{draw(SEED, number)}\nwrong result: ")
    assert run.failure.endswith(f"python tools/soak.py --seed {SEED} --problem {number}")
    samples = run.run(minutes=5, threads=1)  # which ends at once
    assert run.counts["problems", ""] == 0 and len(samples) == 2


def test_memory_that_grows_stops_it(monkeypatch):
    sizes = iter(range(0, 100 << 30, 1 << 30))
    monkeypatch.setattr(soak, "memory_bytes", lambda: next(sizes))
    monkeypatch.setattr(soak, "SAMPLE_S", 0.05)
    run = Soak(SEED)
    run.run(minutes=1, threads=1)
    assert "memory on the GPU has grown by 1073741824 bytes" in run.failure


def test_memory_is_that_of_the_process_itself():
    listed = f"1, 1080\n{os.getpid()}, 1358\n2, [N/A]\n"
    assert soak.own_memory_bytes(listed) == 1358 << 20
    assert soak.own_memory_bytes(f"{os.getpid()}, [N/A]\n") == 0  # then all processes count
    assert soak.own_memory_bytes("1, 1080\nInsufficient Permissions\n") == 0
    assert soak.own_memory_bytes("") == 0


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(soak, "simulator_enabled", lambda: False)
    monkeypatch.setattr("sys.argv", ["soak.py"])
    assert soak.main() == 2
    assert capsys.readouterr().err.startswith("soak: ")
