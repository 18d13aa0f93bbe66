"""Process groups of torch as the products use them, each with the meetings of its ranks."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, finalize

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from dxgemm import errors
from dxgemm.distributed.meeting import Meeting, introduce

AGREED = 4096  # calls that a rank remembers
DIGEST_S = 5.0  # to wait for operands that a digest is made of
DIGEST_BYTES = 1 << 24  # that are copied to the host at once


class Group:
    """Process group as the products use it. It ends with the process group.

    Attributes:
        process_group: the group of torch.
        rank, size: this rank in the group, and the number of ranks.
        agreed: what the ranks agreed on, by this rank's arguments.
        memory: memory that peers write to; None until it is needed.
        shared_prefix: path that files in memory which all ranks share begin with; None if they
            share none.
        meeting: meetings of the ranks; None before their first call.
    """

    def __init__(self, process_group: Any) -> None:
        self.process_group = process_group
        self.rank = dist.get_rank(process_group)
        self.size = dist.get_world_size(process_group)
        self.agreed: dict[Any, Any] = {}
        self.memory: Any = None
        self.shared_prefix: str | None = None
        self.meeting: Any = None

    def introduce(self, call: str, timeout_s: float) -> Meeting:
        """Find the meetings of the ranks; in the first call, introduce them to each other."""
        if self.meeting is None:
            store = _get_store(self.process_group)
            cells, self.shared_prefix = introduce(
                call,
                dist.PrefixStore("dxgemm", store),
                lambda prefix: dist.PrefixStore(f"dxgemm/{prefix}", store),
                self.rank,
                self.size,
                timeout_s,
            )
            finalize(self, cells.close).atexit = False
            self.meeting = Meeting(self.rank, self.size, cells)
        meeting: Meeting = self.meeting
        return meeting

    def remember(self, key: Any, product: Any) -> None:
        """Remember what the ranks agreed on, and forget what is the oldest."""
        while len(self.agreed) >= AGREED:
            del self.agreed[next(iter(self.agreed))]
        self.agreed[key] = product

    def backend(self, device: torch.device) -> str | None:
        """Find the group's backend for a device."""
        config = dist.get_backend_config(self.process_group)
        return dict(part.split(":") for part in config.split(",")).get(device.type)


@contextmanager
def store_reported(call: str) -> Iterator[None]:
    """Turn the errors of a store into `RankError`."""
    try:
        yield
    except (dist.DistStoreError, dist.DistNetworkError) as error:
        text = str(error).partition("\n")[0]
        raise errors.RankError(
            f"{call}: the group's store cannot be reached ({text}); the process that holds it has "
            "ended."
        ) from error


def _get_store(process_group: Any) -> Any:
    return distributed_c10d._get_process_group_store(process_group)


def machine_name() -> str:
    """Name that processes of one machine share, and those of no other: hosts may share theirs."""
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()} {boot}"


def digest(tensors: list[torch.Tensor], ready: Any) -> bytes | None:
    """Digest of the values of tensors; None if they are not there in time, or cannot be read.

    Args:
        tensors: of one device.
        ready: event after which they may be read; None for all that the current stream has to do.
    """
    found = hashlib.blake2b()
    try:
        if not tensors[0].is_cuda:
            _feed(found, tensors)
            return found.digest()
        if torch.cuda.is_current_stream_capturing():
            return None
        # A stream of its own, because the current one may wait for a rank that waits for this one.
        stream, end = torch.cuda.Stream(), torch.cuda.Event()
        if ready is None:
            stream.wait_stream(torch.cuda.current_stream())
        else:
            stream.wait_event(ready)
        end.record(stream)
        deadline = time.monotonic() + DIGEST_S
        while not end.query():
            if time.monotonic() > deadline:
                return None
            time.sleep(1e-4)
        with torch.cuda.stream(stream):
            _feed(found, tensors)
    except Exception:  # such as no memory: then there is no digest
        return None
    return found.digest()


def _feed(found: Any, tensors: list[torch.Tensor]) -> None:
    """Feed a hash with the bytes of tensors, some rows at a time."""
    for tensor in tensors:
        rows = tensor.detach().reshape(1) if tensor.ndim == 0 else tensor.detach()
        row_bytes = max(1, rows[:1].numel() * rows.element_size())
        for part in rows.split(max(1, DIGEST_BYTES // row_bytes)):
            values = part.resolve_conj().resolve_neg().contiguous().cpu()
            found.update(values.view(-1).view(torch.uint8).numpy())


# By the store object that torch keeps until a group is destroyed, and nobody else has: groups
# themselves may be kept by the program.
_groups: WeakKeyDictionary[Any, Group] = WeakKeyDictionary()


def find_group(call: str, group: Any) -> Group:
    """Find or make the `Group` of a process group; None for the default one.

    Raises:
        RankError: there is no process group, or this process is not in it.
    """
    if not dist.is_initialized():
        raise errors.RankError(
            f"{call}: there is no process group; call torch.distributed.init_process_group."
        )
    process_group = dist.group.WORLD if group is None else group
    if not isinstance(process_group, dist.ProcessGroup):  # torch has a number for others' groups
        raise errors.RankError(
            f"{call}: group is {errors.shown(group)}, or this process is not in the group; pass "
            "one of torch that has it."
        )
    try:
        store = _get_store(process_group)
    except (KeyError, TypeError):
        store = None
    if store is None:
        raise errors.RankError(
            f"{call}: group is {process_group!r}, which was destroyed; pass one of "
            "torch.distributed.new_group."
        )
    found = _groups.get(store)
    if found is None:
        found = _groups[store] = Group(process_group)
    return found
