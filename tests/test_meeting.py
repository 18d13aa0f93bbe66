"""Meetings of ranks, without torch or a GPU: the ranks are threads, or processes with a file."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dxgemm import errors
from dxgemm.distributed import meeting as meetings
from dxgemm.distributed.meeting import (
    COLLECTS,
    DONE,
    ENDED,
    MAPPED_ROWS,
    MAPS_ROWS,
    Meeting,
    SharedCells,
    State,
    StoreCells,
    introduce,
    local_cells,
    pack,
    unpack,
)

PATIENCE_S = 20.0


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(meetings, "RETRY_S", 0.5)
    monkeypatch.setattr(meetings, "BUILD_S", PATIENCE_S)


def on_ranks(size, function, cells=None):
    """Call function(rank, meeting) in a thread for each rank, to the results."""
    of_ranks = cells or local_cells(size)
    with ThreadPoolExecutor(size) as pool:
        made = [Meeting(rank, size, of_ranks[rank]) for rank in range(size)]
        return list(pool.map(function, range(size), made))


def call(
    meeting, key="gemm", operands=0, token=1, fails=None, timeout=PATIENCE_S, steps=(),
    collects=False,
):  # fmt: skip
    """Make a call with the digest `operands`, which raises `fails` in its body."""
    with meeting.call("gemm", timeout, key, lambda: operands):
        is_agreed = meeting.arrive(token, collects)
        for step in steps:
            (meeting.commit if step in (MAPS_ROWS, COLLECTS) else meeting.settle)(step)
        if fails is not None:
            raise fails
        return is_agreed


def outcome(function, *arguments, **named):
    """Result, or the type of the error."""
    try:
        return function(*arguments, **named)
    except BaseException as error:
        return type(error)


FAILURES = [MemoryError("no memory"), KeyboardInterrupt(), errors.LaunchError("refused")]


@pytest.mark.parametrize("fails", FAILURES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("steps", [(), (MAPS_ROWS, MAPPED_ROWS)], ids=["launching", "mapped"])
@pytest.mark.parametrize("size", [2, 3])
def test_a_call_that_is_repeated_with_equal_operands_goes_on(size, steps, fails):
    def run(rank, meeting):
        found = [outcome(call, meeting, operands=0)]
        if rank == 1:
            found.append(outcome(call, meeting, operands=1, fails=fails, steps=steps))
        found.append(outcome(call, meeting, operands=1, steps=() if rank == 1 else steps))
        return [*found, outcome(call, meeting, operands=2), meeting.number]

    for rank, found in enumerate(on_ranks(size, run)):
        assert found == [True, *([type(fails)] if rank == 1 else []), True, True, 3]


LATER = {
    "another call": {"key": "other", "operands": 1},
    "other operands": {"operands": 2},
    "operands that cannot be read": {"operands": None},
}


@pytest.mark.parametrize("later", LATER)
def test_a_failed_call_that_another_one_follows_is_an_error_on_every_rank(later):
    def run(rank, meeting):
        if rank == 1:
            assert outcome(call, meeting, operands=1, fails=MemoryError("full")) is MemoryError
        else:
            with pytest.raises(errors.RankError, match=r"on rank 1: MemoryError: full.*new group"):
                call(meeting, operands=1)
        for _ in range(2):
            with pytest.raises(errors.RankError, match="MemoryError: full"):
                call(meeting, **LATER[later])

    on_ranks(2, run)


@pytest.mark.parametrize("size", [2, 3])
def test_a_failed_call_that_nothing_follows_is_an_error_on_every_rank(size):
    def run(rank, meeting):
        begun = time.monotonic()
        fails = MemoryError("full") if rank == 1 else None
        assert outcome(call, meeting, fails=fails) is (
            MemoryError if rank == 1 else errors.RankError
        )
        assert time.monotonic() - begun < PATIENCE_S / 2
        time.sleep(1.0)
        assert outcome(call, meeting) is errors.RankError

    on_ranks(size, run)


@pytest.mark.parametrize("options", [{"steps": [COLLECTS]}, {"collects": True}], ids=str)
def test_a_call_that_fails_among_collectives_is_not_repeated(options):
    def run(rank, meeting):
        fails = MemoryError("full") if rank == 1 else None
        return [outcome(call, meeting, fails=fails, **options), outcome(call, meeting)]

    assert on_ranks(2, run) == [[errors.RankError] * 2, [MemoryError, errors.RankError]]


@pytest.mark.parametrize("repeats", [True, False])
def test_a_rank_that_fails_before_it_comes_keeps_the_others_from_collectives(repeats):
    """Its call fails while the others wait for it; then it repeats it, or goes on."""

    def run(rank, meeting):
        found = [outcome(call, meeting, operands=0, collects=True)]
        if rank == 1:
            with pytest.raises(MemoryError), meeting.call("gemm", PATIENCE_S, "gemm", lambda: 1):
                time.sleep(0.1)
                raise MemoryError("full")
        operands = 2 if rank == 1 and not repeats else 1
        return [*found, outcome(call, meeting, operands=operands, collects=True)]

    last = True if repeats else errors.RankError
    assert on_ranks(3, run) == [[True, last]] * 3


def test_a_call_that_fails_on_all_ranks_may_be_repeated_by_all():
    def run(rank, meeting):
        fails = MemoryError("full")
        return [outcome(call, meeting, fails=fails), outcome(call, meeting), outcome(call, meeting)]

    assert on_ranks(3, run) == [[MemoryError, True, True]] * 3


def test_random_failures_never_pair_calls_that_differ():
    """Ranks repeat what failed, or go on with the next call: results are right, or refused."""

    shared = [{} for _ in range(30)]

    def run(rank, meeting):
        found = []
        for operands in range(30):
            fails = MemoryError() if (7 * operands + 3 * rank) % 11 == 0 else None
            result = outcome(call, meeting, operands=operands, fails=fails)
            if result is MemoryError and operands < 20:
                result = outcome(call, meeting, operands=operands)
            if result is True:
                shared[meeting.number - 1][rank] = operands
            found.append(result)
        return found

    results = on_ranks(2, run)
    assert all(len({*paired.values()}) <= 1 for paired in shared)
    assert all(found[:20] == [True] * 20 and found[-1] is errors.RankError for found in results)


@pytest.mark.parametrize("tokens", [(1, 1), (0, 0), (1, 0), (0, 1), (1, 2)], ids=str)
def test_ranks_that_did_not_agree_on_the_same_call_find_out(tokens):
    def run(rank, meeting):
        return call(meeting, token=tokens[rank])

    assert on_ranks(2, run) == [tokens == (1, 1)] * 2


def test_ranks_take_over_the_decision_of_the_first():
    def run(rank, meeting):
        found = []
        for number in range(20):
            with meeting.call("gemm", PATIENCE_S, "key", int):
                meeting.arrive(0)
                found.append(meeting.agree({"m": rank + number}, sum_of_rows))
        return found

    def sum_of_rows(found):
        return {"m": sum(description["m"] for description in found)}

    assert on_ranks(3, run) == [[{"m": 3 + 3 * number} for number in range(20)]] * 3


@pytest.mark.parametrize("wrong", ["described", "decided"])
def test_an_error_of_the_arguments_is_the_same_on_all_ranks_and_the_next_call_is_right(wrong):
    def run(rank, meeting):
        description = {"error": ["ShapeError", "a is wrong"]} if wrong == "described" else {}
        for _ in range(3):
            with (
                pytest.raises(errors.ShapeError, match="a is wrong"),
                meeting.call("gemm", PATIENCE_S, "key", int),
            ):
                meeting.arrive(0)
                meeting.agree(description if rank == 1 else {}, decide)
        return call(meeting)

    def decide(found):
        raise errors.ShapeError("a is wrong")

    assert on_ranks(2, run) == [True, True]


def test_a_rank_that_does_not_come_is_named_and_may_come_later():
    def run(rank, meeting):
        if rank == 0:
            with pytest.raises(
                errors.RankError, match=r"rank 1 of 2 did not call it within 0\.1 s"
            ):
                call(meeting, timeout=0.1)
        else:
            time.sleep(0.3)
        return call(meeting)

    assert on_ranks(2, run) == [True, True]


def test_calls_of_two_threads_are_not_mixed():
    meeting = Meeting(0, 1, local_cells(1)[0])
    with meeting.call("gemm", 1.0, "key", int), pytest.raises(errors.RankError, match="way"):
        call(meeting)
    assert call(meeting)


def test_states_survive_packing():
    for state in (State(1 << 40, DONE, 3, ENDED, "é" * 2000), State(0, 0)):
        packed = pack(state)
        assert len(packed) <= meetings.STATE_BYTES - 8
        assert unpack(packed)[:4] == state[:4] and state.text.startswith(unpack(packed).text[:-1])


# Cells of processes


class Store:
    """Store of threads, with the functions of torch's stores that are used."""

    def __init__(self, content=None, prefix=""):
        self.content, self.prefix = {} if content is None else content, prefix

    def set(self, key, value):
        self.content[self.prefix + key] = value

    def get(self, key):
        return self.content[self.prefix + key]

    def check(self, keys):
        return all(self.prefix + key in self.content for key in keys)

    def delete_key(self, key):
        self.content.pop(self.prefix + key, None)

    def prefixed(self, prefix):
        return Store(self.content, f"{prefix}/")


def introduced(store, size, timeout=PATIENCE_S, ranks=None):
    """Introduce ranks that are threads."""

    def run(rank):
        return introduce("gemm", store, store.prefixed, rank, size, timeout)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size) if ranks is None else ranks))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(meetings, "shared_folder", lambda: str(tmp_path))
    return tmp_path


def test_ranks_of_one_machine_share_a_file_that_is_gone_from_the_folder(folder):
    store = Store()
    found = introduced(store, 3)
    assert {prefix for _, prefix in found} == {found[0][1]} and found[0][1].startswith(str(folder))
    assert not [*folder.iterdir()] and not {key for key in store.content if "go" not in key}
    for rank, (cells, _) in enumerate(found):
        cells.write(State(rank, DONE))
        cells.write_note(f"note {rank}".encode())
    for cells, _ in found:
        assert [cells.read(rank).call for rank in range(3)] == [0, 1, 2]
        assert cells.read_note(2) == b"note 2"
    for cells, _ in found:
        cells.close()


def test_ranks_that_share_no_file_meet_in_the_store(folder, monkeypatch):
    monkeypatch.setattr(meetings, "SharedCells", lambda *_: (_ for _ in ()).throw(OSError()))
    store = Store()
    found = introduced(store, 2)
    assert all(isinstance(cells, StoreCells) and prefix is None for cells, prefix in found)
    assert on_ranks(2, lambda rank, meeting: call(meeting), [cells for cells, _ in found])
    for cells, _ in found:
        cells.close()
    assert not store.content


def test_what_an_earlier_group_left_in_the_store_is_not_taken(folder):
    store = Store()
    for kind in ("hello", "came", "welcome", "go"):
        for rank in range(2):
            store.set(f"{kind}/{rank}", json.dumps(["0" * 32, "1" * 32, "/nowhere"]))
    cells = [cells for cells, _ in introduced(store, 2)]
    assert all(isinstance(of_rank, SharedCells) for of_rank in cells)
    for of_rank in cells:
        of_rank.close()


def test_a_rank_that_does_not_come_to_the_introduction_is_named(folder):
    store = Store()
    for rank, late in ((0, "rank 1"), (1, "rank 0")):
        with pytest.raises(errors.RankError, match=f"{late} of 2 did not call it within 0.05 s"):
            introduced(store, 2, 0.05, [rank])
    assert not [*folder.iterdir()]
    for cells, _ in introduced(store, 2):
        cells.close()


def test_what_is_being_written_is_not_read(tmp_path):
    path = tmp_path / "cells"
    path.touch()
    cells = SharedCells(path, 0, 1)
    cells.write(State(5, DONE))
    cells._memory[10] ^= 1
    assert cells.read(0) is None and cells.read_note(0) is None
    cells.write(State(6, DONE))
    assert cells.read(0) == State(6, DONE)
    with pytest.raises(errors.RankError, match="too long"):
        cells.write_note(b"x" * meetings.NOTE_BYTES)
    cells.close()


PROGRAM = """
import sys, time
from pathlib import Path
from dxgemm.distributed.meeting import Meeting, SharedCells
meeting = Meeting(1, 2, SharedCells(Path(sys.argv[1]), 1, 2))
for _ in range(int(sys.argv[2])):
    with meeting.call("gemm", 20.0, "key", int):
        meeting.arrive(1)
print("done", flush=True)
time.sleep(60)
"""


def test_processes_meet_and_one_that_is_killed_is_named_at_once(tmp_path):
    path, calls = tmp_path / "cells", 500
    path.touch()
    meeting = Meeting(0, 2, SharedCells(path, 0, 2))
    program = [sys.executable, "-c", PROGRAM, str(path), str(calls)]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as other:
        while not meeting.cells.read(1):
            time.sleep(0.01)
        assert all(call(meeting) for _ in range(calls))
        assert other.stdout.readline() == b"done\n"
        threading.Timer(0.3, lambda: os.kill(other.pid, signal.SIGKILL)).start()
        begun = time.monotonic()
        with pytest.raises(errors.RankError, match=r"rank 1 of 2 did not call it: .* has ended"):
            call(meeting)
        assert time.monotonic() - begun < PATIENCE_S / 2
    meeting.cells.close()


def test_cells_are_given_back(tmp_path):
    path = tmp_path / "cells"
    path.touch()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        SharedCells(path, 0, 2).close()
    assert len(os.listdir("/proc/self/fd")) == before
