"""Moves between GPUs of one host: copies into the memory of peers, over NVLink.

Each rank copies what another one needs into that one's memory, by copy engines on a stream beside
the products, and then sets a signal there. torch's symmetric memory maps the memory of all ranks,
and has the signals. NVLink multicast is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed._symmetric_memory as symmetric_memory

from dxgemm.distributed.agreement import Group
from dxgemm.distributed.schedule import Message, Move, Multiply, count_of, pieces_of

BARRIER = 0  # channel of signals; those of chunks follow


class PeerMemory:
    """Memory of a group's ranks that all of them can write to, with the streams that do so."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self._group, self._device = group, device
        self._buffer = torch.empty(0)
        self._handle: Any = None
        self._copies = torch.cuda.Stream(device, priority=-1)
        self._arrivals = torch.cuda.Stream(device, priority=-1)
        self._used: tuple[Any, Any] = (None, None)  # the last stream, and where its use ended
        self._timeout_ms = 0

    def begin(self, count: int, timeout_s: float) -> None:
        """Wait, on the stream of copies, until the memory of all ranks may be written.

        The barrier is behind all products of this rank that read the memory before.

        Args:
            count: bytes that are needed, the same on all ranks, who meet if they are more than
                before.
            timeout_s: seconds that kernels wait for signals of other ranks.
        """
        self._timeout_ms = int(1e3 * timeout_s)
        if self._handle is None or len(self._buffer) < count:
            self._buffer = symmetric_memory.empty(
                max(count, 1), dtype=torch.uint8, device=self._device
            )
            self._handle = symmetric_memory.rendezvous(
                self._buffer, self._group.process_group.group_name
            )
        current = torch.cuda.current_stream(self._device)
        stream, ended = self._used
        if stream is not None and stream != current:
            current.wait_event(ended)
        self._copies.wait_stream(current)
        self._arrivals.wait_stream(current)
        with torch.cuda.stream(self._copies):
            self._handle.barrier(BARRIER, self._timeout_ms)

    def view(self, rank: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """View the beginning of a rank's memory as a tensor."""
        return self._handle.get_buffer(rank, shape, dtype)

    def send(self, target: torch.Tensor, rows: torch.Tensor, message: Message) -> None:
        """Copy rows into a peer's memory once they are computed, and signal it."""
        self._copies.wait_event(torch.cuda.current_stream(self._device).record_event())
        with torch.cuda.stream(self._copies):
            target.copy_(rows)
            self._handle.put_signal(message.target, 1 + message.chunk, self._timeout_ms)

    def arrive(self, message: Message) -> None:
        """Let what is launched from now on wait for a message.

        Its signal is awaited on a stream of its own, so that no product waits for the kernel that
        does, if the message has come before.
        """
        with torch.cuda.stream(self._arrivals):
            self._handle.wait_signal(message.source, 1 + message.chunk, self._timeout_ms)
            arrived = self._arrivals.record_event()
        torch.cuda.current_stream(self._device).wait_event(arrived)

    def finish(self) -> None:
        """Let what is launched from now on wait for all copies of this rank."""
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._copies)
        self._used = current, current.record_event()


def find_memory(group: Group, device: torch.device) -> Any:
    """Find or make the memory of a group."""
    if group.memory is None:
        group.memory = PeerMemory(group, device)
    return group.memory


class GatherPeers:
    """Chunks of A, each of which its rank copies to all others."""

    def __init__(
        self,
        group: Group,
        shard: torch.Tensor,
        row_counts: Sequence[int],
        chunks: int,
        timeout_s: float,
    ) -> None:
        self._memory = find_memory(group, shard.device)
        self._shard = shard.contiguous()
        self._first = pieces_of(row_counts, chunks)[group.rank][0][0]
        self._shape = sum(row_counts), shard.shape[1]
        self._rank = group.rank
        self._memory.begin(self._shape[0] * self._shape[1] * shard.element_size(), timeout_s)
        self.arrive, self.finish = self._memory.arrive, self._memory.finish

    def move(self, move: Move) -> None:
        target = self._memory.view(move.message.target, self._shape, self._shard.dtype)
        rows = self._shard[move.rows[0] - self._first : move.rows[1] - self._first]
        self._memory.send(target[slice(*move.rows)], rows, move.message)

    def rows_of(self, step: Multiply) -> torch.Tensor:
        """Rows of A, from another rank, that a step multiplies."""
        return self._memory.view(self._rank, self._shape, self._shard.dtype)[slice(*step.rows)]


class ScatterPeers:
    """Partial sums, copied to the rank that keeps them, where each other rank has a slot."""

    def __init__(
        self,
        group: Group,
        like: torch.Tensor,
        row_counts: Sequence[int],
        chunks: int,
        timeout_s: float,
    ) -> None:
        """Make the slots of sums that have the columns and the dtype of `like`."""
        self._memory = find_memory(group, like.device)
        self._like, self._group = like, group
        self._row_counts = row_counts
        self._pieces = pieces_of(row_counts, chunks)
        self._parts: dict[tuple[int, int], torch.Tensor] = {}
        row_bytes = like.shape[1] * like.element_size()
        self._memory.begin((group.size - 1) * max(row_counts) * row_bytes, timeout_s)
        self.arrive, self.finish = self._memory.arrive, self._memory.finish

    def part(self, step: Multiply) -> torch.Tensor:
        """Memory for the rows that a step computes for another rank."""
        part = self._like.new_empty((count_of(step.rows), self._like.shape[1]))
        self._parts[step.owner, step.chunk] = part
        return part

    def _slots(self, rank: int, chunk: int) -> torch.Tensor:
        """Chunk of a rank's rows in its memory: (ranks - 1, rows, n), in the order of the ranks."""
        shape = self._group.size - 1, self._row_counts[rank], self._like.shape[1]
        first, (begin, end) = self._pieces[rank][0][0], self._pieces[rank][chunk]
        return self._memory.view(rank, shape, self._like.dtype)[:, begin - first : end - first]

    def move(self, move: Move) -> None:
        target, chunk, rank = move.message.target, move.message.chunk, self._group.rank
        assert target is not None
        slot = self._slots(target, chunk)[rank - (rank > target)]
        self._memory.send(slot, self._parts[target, chunk], move.message)

    def received(self, step: Multiply) -> torch.Tensor:
        """Sums of the other ranks for a step, in their order: (ranks - 1, rows, n)."""
        return self._slots(self._group.rank, step.chunk)
