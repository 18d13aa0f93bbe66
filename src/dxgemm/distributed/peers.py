"""Moves between GPUs of one host: copies into the memory of peers, over NVLink.

Each rank copies what another one needs into that one's memory, and then writes a flag there. Copies
are made by copy engines, and flags are written and awaited by the streams themselves. No kernel
takes part, because the blocks of a product may leave no room for one until they end. torch's
symmetric memory maps the memory of all ranks. NVLink multicast is not used.

Calls take the two halves of the memory in turn. In each call a rank awaits flags of all others, so
that they have come to that call and have read what the call before brought: the next one may
overwrite it at once. A call that is repeated after a failure has its number and its half again, and
sends the same rows.

Source: CUDA Driver API, "Stream Memory Operations".
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any
from weakref import finalize

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
import torch.distributed.distributed_c10d as c10d

from dxgemm.distributed.agreement import Group
from dxgemm.distributed.meeting import (
    BUILD_S,
    MAPPED_FLAGS,
    MAPPED_ROWS,
    MAPS_FLAGS,
    MAPS_ROWS,
    Meeting,
)
from dxgemm.distributed.schedule import (
    CHUNKS,
    Add,
    Message,
    Move,
    Multiply,
    count_of,
    pieces_of,
    shards_of,
)
from dxgemm.errors import LaunchError
from dxgemm.log import logger
from dxgemm.runtime.device import driver_api

FLAGS = max(CHUNKS)  # of each source
FLAG_BYTES = 4
ALIGNMENT = 256  # bytes, of the halves


class PeerMemory:
    """Memory of a group's ranks that all of them can write to, and flags.

    A flag holds the number of the call in which its source wrote it last, of those that moved rows
    here. Each rank has a flag of every source for its chunks.

    Attributes:
        number: number of the group's call that began last.
        begun: event at its beginning.
    """

    def __init__(self, group: Group, device: torch.device) -> None:
        # Not the group itself, which has this memory and ends with it.
        self._process_group = group.process_group
        self._rank, self._size, self._prefix = group.rank, group.size, group.shared_prefix
        self._meeting: Meeting = group.meeting
        self._device, self._driver = device, driver_api()
        # Cyclic: the number may go on beyond 2**32.
        self._reached = self._driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ.value
        self._handle: Any = None
        self._buffer: Any = None  # kept, or its memory would be given to others
        self._addresses: list[int] = []  # of all ranks' memory
        self._half = 0  # offset of this call's half, in bytes
        self._calls = self._mapped = 0
        self.number = 0
        self._copies = torch.cuda.Stream(device, priority=-1)
        self._stream: Any = None  # of this call
        self.begun, self._computed, self._ended = (torch.cuda.Event() for _ in range(3))
        self._timeout_s = 0.0
        self._flag_buffer = symmetric_memory.empty(
            group.size * FLAGS * FLAG_BYTES, dtype=torch.uint8, device=device
        )
        self._flag_buffer.zero_()
        torch.cuda.synchronize(device)
        # Kept, like the buffer.
        self._flags = self._map(self._flag_buffer, MAPS_FLAGS, MAPPED_FLAGS)
        self._flag_addresses = self._addresses_of(self._flags)
        self._watch = Watch(partial(end_process, self._rank, self._size))
        finalize(self, self._watch.stop)

    def begin(self, count: int, timeout_s: float) -> None:
        """Begin a call, with the half of the memory that the call before did not use.

        Args:
            count: bytes that are needed, the same on all ranks, who map new memory together if
                they are more than before.
            timeout_s: seconds after which waiting for other ranks is ended.
        """
        current = torch.cuda.current_stream(self._device)
        if self._handle is None or len(self._buffer) < 2 * count:
            size = 2 * -(-max(count, 1) // ALIGNMENT) * ALIGNMENT
            buffer = symmetric_memory.empty(size, dtype=torch.uint8, device=self._device)
            handle = self._map(buffer, MAPS_ROWS, MAPPED_ROWS)
            self._addresses = self._addresses_of(handle)
            self._buffer, self._handle = buffer, handle
        if self._stream is not None and self._stream != current:
            current.wait_stream(self._stream)
        self._stream, self._timeout_s = current, timeout_s
        if self.number != self._meeting.number:
            self._calls += 1
        self.begun.record(current)
        self._copies.wait_event(self.begun)
        self.number = self._meeting.number
        self._half = self._calls % 2 * len(self._buffer) // 2

    def _map(self, buffer: torch.Tensor, begins: int, ends: int) -> Any:
        """Map a buffer of all ranks, once each has its own.

        torch keeps the name and the store for good, so both are of this mapping alone.
        """
        self._meeting.commit(begins)
        self._mapped += 1
        name = f"{self._prefix}-{self._mapped}"
        store = dist.FileStore(name, self._size)
        store.set_timeout(timedelta(seconds=BUILD_S))
        own = symmetric_memory._SymmetricMemory
        c10d._register_process_group(name, self._process_group)  # which torch looks up by the name
        try:
            own.set_group_info(name, self._rank, self._size, store)
            handle = own.rendezvous(buffer, name)
        finally:
            c10d._unregister_process_group(name)
        self._meeting.settle(ends)
        if self._rank == 0:
            with suppress(OSError):
                os.unlink(name)
        return handle

    def _addresses_of(self, handle: Any) -> list[int]:
        """Addresses of all ranks' parts of a buffer."""
        ranks = range(self._size)
        return [handle.get_buffer(rank, (1,), torch.uint8).data_ptr() for rank in ranks]

    def view(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """View the beginning of this rank's memory, of this call's half, as a tensor."""
        return self._handle.get_buffer(self._rank, shape, dtype, self._half // dtype.itemsize)

    def follow(self) -> None:
        """Let the copies wait for what was launched until now."""
        self._computed.record(self._stream)
        self._copies.wait_event(self._computed)

    def send(self, rows: torch.Tensor, offset: int, message: Message) -> None:
        """Copy contiguous rows into a peer's memory, and flag them.

        Args:
            rows: computed before this call, or before the last `follow`.
            offset: bytes from the beginning of this call's half.
            message: says to which rank.
        """
        assert message.target is not None
        copies, driver = self._copies.cuda_stream, self._driver
        target = self._addresses[message.target] + self._half + offset
        if rows.numel():
            self._check(driver.cuMemcpyDtoDAsync(target, rows.data_ptr(), rows.nbytes, copies))
        flag = self._flag(message.target, self._rank, message.chunk)
        self._check(driver.cuStreamWriteValue32(copies, flag, self._calls % 2**32, 0))

    def arrive(self, message: Message) -> None:
        """Let what is launched from now on wait for a message."""
        assert message.source is not None
        flag = self._flag(self._rank, message.source, message.chunk)
        wait = self._driver.cuStreamWaitValue32
        self._check(wait(self._stream.cuda_stream, flag, self._calls % 2**32, self._reached))

    def finish(self) -> None:
        """Let what is launched from now on wait for all copies of this rank."""
        self._stream.wait_stream(self._copies)
        self._ended.record(self._stream)

    def abandon(self, moves: Sequence[Move]) -> None:
        """Let what is launched from now on wait for the copies of a call that failed."""
        self._stream.wait_stream(self._copies)

    def watch(self) -> None:
        """Watch the call that all ranks have launched."""
        self._watch.expect(self._ended, self._timeout_s)

    def release(self) -> None:
        """Let this rank's streams wait no longer, because the group's calls are refused."""
        stream = torch.cuda.Stream(self._device).cuda_stream
        for source in range(self._size):
            for chunk in range(FLAGS):
                flag = self._flag(self._rank, source, chunk)
                self._check(self._driver.cuStreamWriteValue32(stream, flag, self._calls % 2**32, 0))

    def _flag(self, rank: int, source: int, flag: int) -> int:
        """Address of a source's flag in a rank's memory."""
        return self._flag_addresses[rank] + (source * FLAGS + flag) * FLAG_BYTES

    def _check(self, returned: tuple[Any]) -> None:
        if returned[0]:
            raise LaunchError(f"the driver refused a peer's copy or flag: {returned[0].name}.")


def end_process(rank: int, size: int, timeout_s: float) -> None:
    """End this process, as NCCL's watchdog does: nothing else ends the wait of a stream."""
    logger.error(
        "rank %d of %d: other ranks did not come within %g s; ending this process",
        rank,
        size,
        timeout_s,
    )
    os.abort()


class Watch(threading.Thread):
    """Thread that calls a function if an event does not come in time: a GPU waits forever."""

    INTERVAL_S = 0.5

    def __init__(self, give_up: Callable[[float], object]) -> None:
        """Watch nothing yet; `give_up` takes the seconds that were waited."""
        super().__init__(daemon=True, name="dxgemm watch")
        self._give_up = give_up
        self._expected: Any = None
        self._stopped = threading.Event()

    def expect(self, event: Any, timeout_s: float) -> None:
        """Expect an event within a time; the last one that is expected counts."""
        self._expected = event, time.monotonic() + timeout_s, timeout_s
        if not self.ident:
            self.start()

    def stop(self) -> None:
        """Watch no more, and end the thread."""
        self._stopped.set()

    def run(self) -> None:
        while not self._stopped.wait(self.INTERVAL_S):
            expected = self._expected
            if expected is None:
                continue
            event, deadline, timeout_s = expected
            try:
                is_over = event.query()
            except RuntimeError:  # the context has an error, which the program will see
                return
            if is_over:
                if self._expected is expected:
                    self._expected = None
            elif time.monotonic() > deadline:
                self._give_up(timeout_s)
                return


class Peers:
    """Moves of a call by way of a group's memory, which is made if there is none."""

    def __init__(self, group: Group, device: torch.device, count: int, timeout_s: float) -> None:
        """Begin a call, as `PeerMemory.begin` does."""
        if group.memory is None:
            group.memory = PeerMemory(group, device)
        memory = self._memory = group.memory
        memory.begin(count, timeout_s)
        self.arrive, self.finish, self.abandon = memory.arrive, memory.finish, memory.abandon


class GatherPeers(Peers):
    """Chunks of A, each of which its rank copies to all others."""

    def __init__(
        self, group: Group, shard: torch.Tensor, row_counts: Sequence[int], timeout_s: float
    ) -> None:
        self._shard = shard.contiguous()
        self._first, _ = shards_of(row_counts)[group.rank]
        self._shape = sum(row_counts), shard.shape[1]
        self._row_bytes = shard.shape[1] * shard.element_size()
        super().__init__(group, shard.device, self._shape[0] * self._row_bytes, timeout_s)

    def move(self, move: Move) -> None:
        begin, end = move.rows
        rows = self._shard[begin - self._first : end - self._first]
        self._memory.send(rows, begin * self._row_bytes, move.message)

    def rows_of(self, step: Multiply) -> torch.Tensor:
        """Rows of A, from another rank, that a step multiplies."""
        return self._memory.view(self._shape, self._shard.dtype)[slice(*step.rows)]


class ScatterPeers(Peers):
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
        self._like, self._group = like, group
        self._row_counts = row_counts
        self._pieces = pieces_of(row_counts, chunks)
        self._parts: dict[tuple[int, int], torch.Tensor] = {}
        self._row_bytes = like.shape[1] * like.element_size()
        count = (group.size - 1) * max(row_counts) * self._row_bytes
        super().__init__(group, like.device, count, timeout_s)

    def part(self, step: Multiply) -> torch.Tensor:
        """Memory for the rows that a step computes for another rank."""
        part = self._like.new_empty((count_of(step.rows), self._like.shape[1]))
        self._parts[step.owner, step.chunk] = part
        return part

    def move(self, move: Move) -> None:
        """Send a part to this rank's slot: the slots of a rank are in the order of the others."""
        target, chunk, rank = move.message.target, move.message.chunk, self._group.rank
        assert target is not None
        slot = (rank - (rank > target)) * self._row_counts[target]
        row = self._pieces[target][chunk][0] - self._pieces[target][0][0]
        part = self._parts[target, chunk]
        self._memory.follow()
        self._memory.send(part, (slot + row) * self._row_bytes, move.message)

    def received(self, step: Add) -> torch.Tensor:
        """Sums of the other ranks for a step, in their order: (ranks - 1, rows, n)."""
        rank, columns = self._group.rank, self._like.shape[1]
        first, (begin, end) = self._pieces[rank][0][0], self._pieces[rank][step.chunk]
        shape = self._group.size - 1, self._row_counts[rank], columns
        return self._memory.view(shape, self._like.dtype)[:, begin - first : end - first]
