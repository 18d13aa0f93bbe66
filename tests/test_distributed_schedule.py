"""Schedules of sharded products, simulated for all ranks in one process; and their predictions."""

import subprocess
import sys
from itertools import pairwise

import pytest

from dxgemm import errors
from dxgemm.distributed.model import NETWORK, NVLINK, ShardedProblem, choose, explain, predict_us
from dxgemm.distributed.schedule import (
    CHUNK_ROWS,
    CHUNKED,
    GATHER,
    OPERATIONS,
    PEER,
    REDUCE,
    SCATTER,
    Add,
    Message,
    Move,
    Multiply,
    Schedule,
    count_of,
    even_rows,
    make_schedule,
    shards_of,
    simulate,
    split_rows,
)

RANKS = [2, 3, 9]
SHAPES = ["equal", "uneven", "empty", "one has all", "none"]


def row_counts(shape, ranks):
    """Row counts of shards of a shape."""
    return {
        "equal": [1024] * ranks,
        "uneven": [300 + 37 * rank for rank in range(ranks)],
        "empty": [513 if rank % 2 else 0 for rank in range(ranks)],
        "one has all": [5000] + [0] * (ranks - 1),
        "none": [0] * ranks,
    }[shape]


def all_schedules(operation, method, counts, chunks):
    return [make_schedule(operation, method, counts, r, chunks) for r in range(len(counts))]


# Row counts of all ranks, and chunks of each shard.
CASES = [
    (row_counts(shape, ranks), chunks) for ranks in RANKS for shape in SHAPES for chunks in (1, 3)
]
over_ranks = pytest.mark.parametrize("ranks", RANKS)
methods = pytest.mark.parametrize("method", [CHUNKED, PEER])
chunked = pytest.mark.parametrize("chunks", [1, 3])


def unit(*_):
    return 1.0


@methods
@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_rank_waits_forever(operation, method):
    for counts, chunks in CASES:
        finished = simulate(all_schedules(operation, method, counts, chunks), unit, unit)
        assert len(finished) == len(counts)


def assert_covers(rows, first, end):
    """Assert that chunks of rows are those from first to end, each once."""
    filled = sorted(piece for piece in rows if count_of(piece))
    assert sum(map(count_of, filled)) == end - first
    assert all(left[1] == right[0] for left, right in pairwise(filled))
    assert not filled or (filled[0][0], filled[-1][1]) == (first, end)


@methods
@pytest.mark.parametrize("operation", [GATHER, SCATTER])
def test_every_row_is_multiplied_once(operation, method):
    for counts, chunks in CASES:
        for schedule in all_schedules(operation, method, counts, chunks):
            for owner, (first, end) in enumerate(shards_of(counts)):
                own = [step.rows for step in products_of(schedule) if step.owner == owner]
                assert_covers(own, first, end)


def products_of(schedule):
    return [step for step in schedule.steps if isinstance(step, Multiply)]


def sums_of(schedule):
    return [step for step in schedule.steps if isinstance(step, Add)]


@methods
def test_what_others_have_sent_is_added_to_every_own_row_once(method):
    for counts, chunks in CASES:
        for schedule in all_schedules(SCATTER, method, counts, chunks):
            first, end = shards_of(counts)[schedule.rank]
            assert_covers([step.rows for step in sums_of(schedule)], first, end)
            assert schedule.steps[-chunks - 1] == Multiply((first, end), schedule.rank, 0)


@pytest.mark.parametrize("total", [0, 1, 7, 4096, 5000])
@chunked
def test_a_sum_for_all_is_multiplied_and_reduced_once(total, chunks):
    schedule = make_schedule(REDUCE, CHUNKED, [total, 0], 0, chunks)
    assert_covers([step.rows for step in schedule.steps], 0, total)
    assert_covers([move.rows for move in schedule.moves], 0, total)
    for move in schedule.moves:
        assert schedule.steps[move.after - 1].rows == move.rows


@pytest.mark.parametrize("operation", [GATHER, SCATTER])
def test_peers_send_what_is_needed_and_nothing_else(operation):
    for counts, chunks in CASES:
        schedules = all_schedules(operation, PEER, counts, chunks)
        moves = [move for schedule in schedules for move in schedule.moves]
        sent = {move.message: move.rows for move in moves}
        steps = [(schedule, step) for schedule in schedules for step in schedule.steps]
        needed = [message for _, step in steps for message in step.needs]
        assert sorted(sent) == sorted(needed) and len(sent) == len(moves)
        assert all(message.source != message.target for message in sent)
        for schedule, step in steps if operation == GATHER else ():
            assert all(sent[need] == step.rows for need in step.needs)
            assert all(need.target == schedule.rank for need in step.needs)


def test_sums_are_sent_once_they_are_computed_and_added_in_the_order_of_ranks():
    for counts, chunks in CASES:
        for schedule in all_schedules(SCATTER, PEER, counts, chunks):
            for move in schedule.moves:
                made, message = schedule.steps[move.after - 1], move.message
                assert made.rows == move.rows
                assert (made.owner, made.chunk) == (message.target, message.chunk)
            assert not any(step.needs for step in products_of(schedule))
            others = [rank for rank in range(len(counts)) if rank != schedule.rank]
            for step in sums_of(schedule):
                assert [message.source for message in step.needs] == others


@over_ranks
@methods
def test_the_own_shard_is_first_where_rows_arrive_and_last_where_they_leave(ranks, method):
    for rank in range(ranks):
        gather = products_of(make_schedule(GATHER, method, [1024] * ranks, rank, 2))
        assert gather[0].owner == rank and not gather[0].needs
        scatter = products_of(make_schedule(SCATTER, method, [1024] * ranks, rank, 2))
        assert [step.owner for step in scatter].index(rank) == len(scatter) - 1


@over_ranks
def test_at_each_time_a_rank_receives_from_one_other(ranks):
    schedules = all_schedules(GATHER, PEER, [1024] * ranks, 1)
    for at_once in zip(*(schedule.moves for schedule in schedules)):
        assert {move.message.target for move in at_once} == {*range(ranks)}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_all_ranks_come_to_the_same_rounds(operation):
    for counts, chunks in CASES:
        schedules = all_schedules(operation, CHUNKED, counts, chunks)
        rounds = [[move.message.chunk for move in schedule.moves] for schedule in schedules]
        assert rounds == [[*range(chunks)]] * len(counts)


def test_copies_hide_behind_products_that_take_longer():
    schedules = all_schedules(GATHER, PEER, [1024] * 8, 1)
    assert max(simulate(schedules, lambda *_: 10.0, lambda _: 9.0)) == 80.0
    assert max(simulate(schedules, lambda *_: 10.0, lambda _: 11.0)) == 7 * 11.0 + 10.0


@pytest.mark.parametrize("host, whole", [(0.0, 20.0), (5.0, 30.0), (20.0, 70.0)])
def test_nothing_begins_before_its_host_has_launched_it(host, whole):
    """A rank launches its copy, its own product, and that of the rows which it receives."""
    schedules = all_schedules(GATHER, PEER, [1024] * 2, 1)
    assert [type(launch) for launch in schedules[0].launches] == [Move, Multiply, Multiply]
    found = simulate(schedules, lambda *_: 10.0, lambda _: 9.0, lambda _: host)
    assert found == [whole] * 2


def test_the_clock_finds_ranks_that_wait_for_each_other():
    messages = Message(0, 1, 0), Message(1, 0, 0)
    schedules = [
        Schedule(rank, (Multiply((0, 1), rank, 0, (messages[1 - rank],)),), (move,))
        for rank, move in enumerate(Move(message, (0, 1), 1) for message in messages)
    ]
    with pytest.raises(ValueError, match="waits forever"):
        simulate(schedules, unit, unit)


def test_the_clock_finds_a_round_that_a_rank_leaves_out():
    whole, lacking = all_schedules(SCATTER, CHUNKED, [8, 8], 2)
    with pytest.raises(ValueError, match="waits forever"):
        simulate([whole, Schedule(1, lacking.steps, lacking.moves[:1])], unit, unit)


@pytest.mark.parametrize("rows", [(0, 0), (3, 10), (0, 5000), (100, 100 + 8 * CHUNK_ROWS)])
@pytest.mark.parametrize("chunks", [1, 2, 8])
def test_rows_are_split_into_whole_tiles_where_there_are_enough(rows, chunks):
    pieces = split_rows(rows, chunks)
    assert len(pieces) == chunks
    assert_covers(pieces, *rows)
    if count_of(rows) >= chunks * CHUNK_ROWS:
        assert all(count_of(piece) % CHUNK_ROWS == 0 for piece in pieces if piece[1] != rows[1])


def test_even_rows_are_those_of_chunks():
    assert even_rows(10, 4) == (3, 3, 3, 1)
    assert even_rows(4, 8) == (1, 1, 1, 1, 0, 0, 0, 0)
    assert even_rows(0, 2) == (0, 0)


@pytest.mark.usefixtures("configs_of_a_gpu")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_few_rows_are_multiplied_plainly_and_many_beside_their_moves(operation):
    few = explain(operation, 16, 8192, 8192, ranks=2, gpu="H100")
    many = explain(operation, 8192, 8192, 8192, ranks=2, gpu="H100")
    assert few.method == "plain" and many.method != "plain"
    assert many.predicted_us[many.method] < many.predicted_us["plain"]
    assert many.predicted_us[many.method] >= many.problem.gemm_us


@pytest.mark.usefixtures("configs_of_a_gpu")
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("size", [16, 512, 2048, 8192])
def test_another_method_is_quicker_than_plain_on_an_idle_stream_too(operation, size):
    choice = explain(operation, size, size, size, ranks=8, gpu="H100")
    for times in (choice.predicted_us, choice.idle_us):
        assert times[choice.method] <= times["plain"]
    assert all(choice.idle_us[name] > us for name, us in choice.predicted_us.items())


@pytest.mark.usefixtures("configs_of_a_gpu")
def test_an_explanation_says_which_method_and_why():
    text = str(explain(SCATTER, 4096, 4096, 4096, "float64", ranks=8, gpu="H100", link=NETWORK))
    for part in ("8 ranks over network", "method", "gemm alone", "not peer", "plain"):
        assert part in text


@pytest.mark.usefixtures("configs_of_a_gpu")
def test_what_cannot_be_computed_is_refused():
    with pytest.raises(errors.UnsupportedProblemError, match="one host"):
        explain(GATHER, 64, 64, 64, gpu="H100", link=NETWORK, method="peer")
    with pytest.raises(errors.UnsupportedProblemError, match="'plain' or 'chunked' or 'peer'"):
        explain(GATHER, 64, 64, 64, gpu="H100", method="fast")
    with pytest.raises(errors.UnsupportedProblemError, match="all_gather_gemm"):
        explain("gemm", 64, 64, 64, gpu="H100")
    whole = ShardedProblem(GATHER, (64, 64), 64, 64, "float32", NVLINK, "H100", False)
    assert choose(whole).method == "plain"
    with pytest.raises(errors.UnsupportedProblemError, match="depends on the row"):
        choose(whole, "chunked")
    sums = ShardedProblem(SCATTER, (64, 64), 64, 64, "float32", NVLINK, "H100", False)
    assert not choose(sums).rejected
    uneven = ShardedProblem(REDUCE, (64, 32), 64, 64, "float32", NVLINK, "H100")
    assert "evenly" in choose(uneven).rejected["peer"]


@pytest.mark.usefixtures("configs_of_a_gpu")
@pytest.mark.parametrize("operation", OPERATIONS)
@methods
def test_no_method_is_predicted_below_its_arithmetic(operation, method):
    problem = ShardedProblem(operation, (4096, 4096), 4096, 4096, "float32", NVLINK, "H100")
    assert predict_us(problem, method, 2) >= problem.gemm_us - 10


def test_predictions_need_no_torch():
    program = """
import sys
sys.modules["torch"] = None
import dxgemm.distributed
print(dxgemm.distributed.explain("gemm_all_reduce", 512, 512, 512, ranks=4, gpu="H100"))
try:
    dxgemm.distributed.all_gather_gemm
except dxgemm.errors.MissingPackageError as error:
    assert "dxgemm[torch]" in str(error)
else:
    raise SystemExit("found without torch")
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert "4 ranks over NVLink" in finished.stdout
