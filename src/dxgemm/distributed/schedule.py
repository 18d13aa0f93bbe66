"""Schedules of sharded products: what each rank multiplies and moves, in which order.

A schedule depends on the shards' sizes alone, so that every rank knows those of all others. Nothing
here needs torch or a GPU: `simulate` runs the schedules of all ranks on a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise, product
from typing import NamedTuple

OPERATIONS = GATHER, SCATTER, REDUCE = "all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce"
METHODS = PLAIN, CHUNKED, PEER = "plain", "chunked", "peer"

CHUNKS = (1, 2, 4, 8)  # of a shard, among which the model chooses
# Chunks of a shard are whole tiles of this many rows, where the shard has as many.
CHUNK_ROWS = 256

Rows = tuple[int, int]  # first row, and the one after the last


class Message(NamedTuple):
    """Chunk of rows on its way between two ranks; target is None if all ranks exchange it."""

    source: int | None
    target: int | None
    chunk: int


class Multiply(NamedTuple):
    """Product of rows of A and B, of which the messages in `needs` have arrived before.

    Attributes:
        rows: rows of the whole result.
        owner: rank whose shard the rows belong to.
        chunk: place of the rows among the chunks of the shard.
    """

    rows: Rows
    owner: int
    chunk: int
    needs: tuple[Message, ...] = ()


class Add(NamedTuple):
    """Sum of rows that this rank has computed and of what the messages in `needs` have brought.

    Attributes:
        rows: rows of the whole result.
        chunk: place of the rows among the chunks of the shard.
    """

    rows: Rows
    chunk: int
    needs: tuple[Message, ...]


class Move(NamedTuple):
    """Message that this rank sends, or that all exchange.

    Attributes:
        rows: rows of the whole matrix that is sharded; those of this rank if all exchange theirs.
        after: number of steps of this rank that come before.
    """

    message: Message
    rows: Rows
    after: int = 0


@dataclass(frozen=True)
class Schedule:
    """Steps of a rank in their order, and its moves in theirs, beside them."""

    rank: int
    steps: tuple[Multiply | Add, ...]
    moves: tuple[Move, ...]

    @cached_property
    def launches(self) -> tuple[Multiply | Add | Move, ...]:
        """Steps and moves in the order in which the host launches them."""
        order: list[Multiply | Add | Move] = []
        moves = deque(self.moves)
        for done, step in enumerate((*self.steps, None)):
            while moves and moves[0].after <= done:
                order.append(moves.popleft())
            if step is not None:
                order.append(step)
        return tuple(order)


def split_rows(rows: Rows, chunks: int) -> list[Rows]:
    """Split rows into chunks of whole tiles, the last ones shorter or empty."""
    first, end = rows
    size = -(-(end - first) // chunks)
    if end - first >= chunks * CHUNK_ROWS:
        size = -(-size // CHUNK_ROWS) * CHUNK_ROWS
    edges = [min(first + chunk * size, end) for chunk in range(chunks + 1)]
    return list(pairwise(edges))


def even_rows(total: int, ranks: int) -> tuple[int, ...]:
    """Row counts of shards as `torch.chunk` and DTensor make them, the last ones empty."""
    size = -(-total // ranks)
    return tuple(max(0, min(size, total - rank * size)) for rank in range(ranks))


def shards_of(row_counts: Sequence[int]) -> list[Rows]:
    """Rows of each rank in the whole matrix."""
    ends = list(accumulate(row_counts))
    return [(end - count, end) for end, count in zip(ends, row_counts)]


def pieces_of(row_counts: Sequence[int], chunks: int) -> list[list[Rows]]:
    """Chunks of each rank's rows."""
    return [split_rows(rows, chunks) for rows in shards_of(row_counts)]


def count_of(rows: Rows) -> int:
    """Number of rows."""
    return rows[1] - rows[0]


def all_gather_schedule(
    row_counts: Sequence[int], rank: int, chunks: int, in_rounds: bool
) -> Schedule:
    """Schedule of A @ B on one rank, with A sharded by rows: its own shard first.

    Args:
        row_counts: rows of each rank's shard.
        chunks: chunks of a shard.
        in_rounds: True if all ranks exchange their chunks of one number together; False if each
            rank sends its shard to one rank after the other, beginning with the next one.
    """
    ranks, shards = len(row_counts), shards_of(row_counts)
    pieces = pieces_of(row_counts, chunks)
    steps = [Multiply(shards[rank], rank, 0)]
    # The rank before this one sends to this one first.
    arrivals = [(rank - step) % ranks for step in range(1, ranks)]
    for owner, chunk in _in_order(arrivals, chunks, in_rounds):
        message = Message(None, None, chunk) if in_rounds else Message(owner, rank, chunk)
        steps.append(Multiply(pieces[owner][chunk], owner, chunk, (message,)))
    if in_rounds:
        moves = [Move(Message(None, None, chunk), rows) for chunk, rows in enumerate(pieces[rank])]
    else:
        targets = [(rank + step) % ranks for step in range(1, ranks)]
        moves = [
            Move(Message(rank, target, chunk), pieces[rank][chunk])
            for target, chunk in product(targets, range(chunks))
        ]
    return Schedule(rank, tuple(steps), tuple(moves))


def reduce_scatter_schedule(
    row_counts: Sequence[int], rank: int, chunks: int, in_rounds: bool
) -> Schedule:
    """Schedule of a sum of products on one rank, of which each rank keeps its rows.

    Rows of other ranks come first, so that they move while the others are multiplied. A rank's own
    rows come last. Then the sums that have arrived are added to them, chunk by chunk.

    Args:
        row_counts: rows of the result that each rank keeps.
        chunks, in_rounds: as in `all_gather_schedule`.
    """
    ranks = len(row_counts)
    pieces = pieces_of(row_counts, chunks)
    targets = [(rank + step) % ranks for step in range(1, ranks)]
    steps: list[Multiply | Add] = []
    moves: list[Move] = []
    for owner, chunk in _in_order(targets, chunks, in_rounds):
        rows = pieces[owner][chunk]
        steps.append(Multiply(rows, owner, chunk))
        if not in_rounds:
            moves.append(Move(Message(rank, owner, chunk), rows, len(steps)))
        elif len(steps) % len(targets) == 0:
            moves.append(Move(Message(None, None, chunk), pieces[rank][chunk], len(steps)))
    steps.append(Multiply(shards_of(row_counts)[rank], rank, 0))
    for chunk, rows in enumerate(pieces[rank] if targets else []):
        needs = [Message(source, rank, chunk) for source in range(ranks) if source != rank]
        if in_rounds:
            needs = [Message(None, None, chunk)]
        steps.append(Add(rows, chunk, tuple(needs)))
    return Schedule(rank, tuple(steps), tuple(moves))


def all_reduce_schedule(total: int, rank: int, chunks: int) -> Schedule:
    """Schedule of a sum of products that all ranks keep: each chunk is reduced once it is there."""
    pieces = split_rows((0, total), chunks)
    steps = [Multiply(rows, rank, chunk) for chunk, rows in enumerate(pieces)]
    moves = [Move(Message(None, None, chunk), rows, chunk + 1) for chunk, rows in enumerate(pieces)]
    return Schedule(rank, tuple(steps), tuple(moves))


def make_schedule(
    operation: str, method: str, row_counts: Sequence[int], rank: int, chunks: int
) -> Schedule:
    """Schedule of an operation by the method "chunked", in rounds, or "peer"."""
    in_rounds = method != PEER
    if operation == GATHER:
        return all_gather_schedule(row_counts, rank, chunks, in_rounds)
    if operation == REDUCE and in_rounds:
        return all_reduce_schedule(sum(row_counts), rank, chunks)
    return reduce_scatter_schedule(row_counts, rank, chunks, in_rounds)


def _in_order(ranks: Sequence[int], chunks: int, in_rounds: bool) -> Iterator[tuple[int, int]]:
    """Pair ranks and chunks: chunk by chunk in rounds, else rank by rank."""
    if in_rounds:
        return ((rank, chunk) for chunk, rank in product(range(chunks), ranks))
    return product(ranks, range(chunks))


def simulate(
    schedules: Sequence[Schedule],
    step_us: Callable[[int, Multiply | Add], float],
    move_us: Callable[[Move], float],
    host_us: Callable[[Multiply | Add | Move], float] = lambda _: 0.0,
) -> list[float]:
    """Time in microseconds at which each rank has computed and moved all that is its own.

    A rank computes and moves side by side, each one at a time and in its order, and nothing before
    its host has launched it. An exchange begins once every rank has come to it.

    Args:
        step_us: time of a step of a rank.
        move_us: time of a move.
        host_us: time in which a host launches a step or a move, one after the other.

    Raises:
        ValueError: ranks wait for each other, or for a message that nobody sends.
    """
    ends: list[list[float]] = [[] for _ in schedules]  # of each rank's steps
    free = [0.0] * len(schedules)  # when a rank's mover is free
    moved = [0] * len(schedules)
    arrived: dict[Message, float] = {}
    launched: list[dict[Multiply | Add | Move, float]] = []  # when each rank launches what
    for schedule in schedules:
        ends_us = accumulate(map(host_us, schedule.launches))
        launched.append(dict(zip(schedule.launches, ends_us)))

    def next_step(schedule: Schedule) -> Multiply | Add | None:
        """Find the step that a rank has come to, if what it needs has arrived."""
        place = len(ends[schedule.rank])
        if place == len(schedule.steps):
            return None
        step = schedule.steps[place]
        return step if all(message in arrived for message in step.needs) else None

    def next_move(schedule: Schedule) -> Move | None:
        """Find the move that a rank has come to."""
        place = moved[schedule.rank]
        if place == len(schedule.moves) or schedule.moves[place].after > len(ends[schedule.rank]):
            return None
        return schedule.moves[place]

    def begin_us(rank: int, move: Move) -> float:
        done_us = ends[rank][move.after - 1] if move.after else 0.0
        return max(free[rank], done_us, launched[rank][move])

    def finish(rank: int, move: Move, at_us: float) -> None:
        free[rank] = arrived[move.message] = at_us
        moved[rank] += 1

    def advance() -> bool:
        has_moved = False
        for rank, schedule in enumerate(schedules):
            while step := next_step(schedule):
                ready = [arrived[message] for message in step.needs]
                start = max([launched[rank][step], *ready, *ends[rank][-1:]])
                ends[rank].append(start + step_us(rank, step))
                has_moved = True
            while (move := next_move(schedule)) and move.message.target is not None:
                finish(rank, move, begin_us(rank, move) + move_us(move))
                has_moved = True
        together = [next_move(schedule) for schedule in schedules]
        first = together[0]
        if first and all(move and move.message == first.message for move in together):
            pairs = [(rank, move) for rank, move in enumerate(together) if move]
            at_us = max(begin_us(*pair) for pair in pairs) + max(move_us(m) for _, m in pairs)
            for rank, move in pairs:
                finish(rank, move, at_us)
            has_moved = True
        return has_moved

    while advance():
        pass
    for schedule, done in zip(schedules, ends):
        if len(done) < len(schedule.steps) or moved[schedule.rank] < len(schedule.moves):
            raise ValueError(
                f"rank {schedule.rank} waits forever: {len(done)} of {len(schedule.steps)} steps "
                f"and {moved[schedule.rank]} of {len(schedule.moves)} moves done."
            )
    return [max([at_us, *done[-1:]]) for at_us, done in zip(free, ends)]
