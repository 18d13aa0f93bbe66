"""Collectives of torch for sharded products: at once, and in rounds beside the products.

They work between hosts too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist

from dxgemm import errors
from dxgemm.distributed.agreement import Group
from dxgemm.distributed.schedule import Add, Message, Move, Multiply, count_of, pieces_of

# Their names from torch 2.13 on, else those before.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@contextmanager
def reported(call: str) -> Iterator[None]:
    """Turn the errors of a backend into `RankError`."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # gloo raises no type of its own
        raise errors.RankError(
            f"{call}: a rank has ended or did not come in time ({error})."
        ) from error


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """View a contiguous tensor as bytes."""
    return tensor.view(-1).view(torch.uint8)


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """View complex numbers as pairs of real ones, for sums."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def collect(
    call: str, group: Group, collective: Callable[..., Any], *tensors: torch.Tensor, **options: Any
) -> Any:
    """Run a collective on contiguous tensors, if they are not empty; to its work if it has one."""
    if not tensors[0].numel():
        return None
    # gloo does not know every dtype, and gathers bytes.
    as_known = as_bytes if collective is all_gather and not tensors[0].is_cuda else as_real
    with reported(call):
        return collective(*map(as_known, tensors), group=group.process_group, **options)


def gather_rows(
    call: str, group: Group, shard: torch.Tensor, row_counts: Sequence[int]
) -> Generator[None, None, torch.Tensor]:
    """Gather the rows of all ranks in a new tensor, once all have yielded.

    Shorter shards are padded on their way.
    """
    most = max(row_counts)
    received, rows = shard.new_empty((group.size * most, shard.shape[1])), padded(shard, most)
    yield
    collect(call, group, all_gather, received, rows)
    if min(row_counts) == most:
        return received
    parts = received.view(group.size, most, shard.shape[1])
    return torch.cat([part[:count] for part, count in zip(parts, row_counts)])


def padded(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Copy rows to a matrix of `count` rows, if they are fewer or not contiguous."""
    if rows.shape[0] == count:  # len() is slower
        return rows.contiguous()
    longer = rows.new_empty((count, rows.shape[1]))
    longer[: len(rows)] = rows
    return longer


class Rounds:
    """Collectives that run beside the products, by the message that each one is.

    Their memory is there before the first one begins.
    """

    def __init__(self, call: str, group: Group) -> None:
        self._call, self._group = call, group
        self._works: dict[Message, Any] = {}

    def arrive(self, message: Message) -> None:
        """Let what is launched from now on wait for a message."""
        work = self._works.pop(message, None)
        if work is not None:
            with reported(self._call):
                work.wait()

    def finish(self) -> None:
        """Let what is launched from now on wait for all messages."""
        for message in [*self._works]:
            self.arrive(message)

    def move(self, move: Move) -> None:
        """Begin the collective of a move."""
        raise NotImplementedError

    def abandon(self, moves: Sequence[Move]) -> None:
        """Take part in the moves that are left, because the others wait in theirs."""
        with suppress(Exception):
            for move in moves:
                self.move(move)
            self.finish()


class GatherRounds(Rounds):
    """Chunks of A, gathered round by round."""

    def __init__(
        self, call: str, group: Group, shard: torch.Tensor, row_counts: Sequence[int], chunks: int
    ) -> None:
        super().__init__(call, group)
        self._pieces = pieces_of(row_counts, chunks)
        first = self._pieces[group.rank][0][0]
        self._sent, self._received = [], []
        for chunk, (begin, end) in enumerate(self._pieces[group.rank]):
            most = max(count_of(pieces[chunk]) for pieces in self._pieces)
            self._sent.append(padded(shard[begin - first : end - first], most))
            self._received.append(shard.new_empty((group.size, most, shard.shape[1])))

    def move(self, move: Move) -> None:
        chunk = move.message.chunk
        pair = self._received[chunk], self._sent[chunk]
        self._works[move.message] = collect(
            self._call, self._group, all_gather, *pair, async_op=True
        )

    def rows_of(self, step: Multiply) -> torch.Tensor:
        """Rows of A, from another rank, that a step multiplies."""
        return self._received[step.chunk][step.owner][: count_of(step.rows)]


class ScatterRounds(Rounds):
    """Partial sums, sent round by round to the ranks that keep them."""

    def __init__(
        self, call: str, group: Group, like: torch.Tensor, row_counts: Sequence[int], chunks: int
    ) -> None:
        """Make the rounds of sums that have the columns and the dtype of `like`."""
        super().__init__(call, group)
        pieces, columns = pieces_of(row_counts, chunks), like.shape[1]
        self._row_bytes = columns * like.element_size()
        # Rows that this rank sends to each in a round, and those of all ranks one after the other.
        self._counts = [[count_of(piece) for piece in of_round] for of_round in zip(*pieces)]
        self._sent, self._received = [], []
        for counts in self._counts:
            own, counts[group.rank] = counts[group.rank], 0
            self._sent.append(like.new_empty((sum(counts), columns)))
            self._received.append(like.new_empty((group.size - 1, own, columns)))

    def part(self, step: Multiply) -> torch.Tensor:
        """Memory for the rows that a step computes for another rank."""
        return self._sent[step.chunk].split(self._counts[step.chunk])[step.owner]

    def move(self, move: Move) -> None:
        chunk, group = move.message.chunk, self._group
        expected = [count_of(move.rows) * self._row_bytes] * group.size
        expected[group.rank] = 0
        if self._row_bytes:
            with reported(self._call):
                self._works[move.message] = dist.all_to_all_single(
                    as_bytes(self._received[chunk]),
                    as_bytes(self._sent[chunk]),
                    expected,
                    [count * self._row_bytes for count in self._counts[chunk]],
                    group=group.process_group,
                    async_op=True,
                )

    def received(self, step: Add) -> torch.Tensor:
        """Sums of the other ranks for a step, in their order: (ranks - 1, rows, n)."""
        return self._received[step.chunk]


class ReduceRounds(Rounds):
    """Rows of the result, reduced over all ranks in place once they are computed."""

    def __init__(self, call: str, group: Group, out: torch.Tensor) -> None:
        super().__init__(call, group)
        self._out = out

    def move(self, move: Move) -> None:
        rows = self._out[slice(*move.rows)]
        self._works[move.message] = collect(
            self._call, self._group, dist.all_reduce, rows, async_op=True
        )
