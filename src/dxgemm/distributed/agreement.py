"""Agreement of the ranks of a process group on a call, before anything is launched.

Each rank leaves a description of its call in the group's store. The first rank reads all of them,
and leaves its decision there, or an error that all ranks raise. A rank that does not come is named
within a time limit.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_process_group_store

from dxgemm import errors

Decide = Callable[[list[dict[str, Any]]], dict[str, Any]]


class Group:
    """Process group as the products use it.

    Attributes:
        process_group: the group of torch.
        rank, size: this rank in the group, and the number of ranks.
        agreed: what the ranks agreed on, by this rank's arguments.
        memory: memory that peers write to; None until it is needed.
    """

    def __init__(self, process_group: Any) -> None:
        self.process_group = process_group
        self.rank = dist.get_rank(process_group)
        self.size = dist.get_world_size(process_group)
        self.agreed: dict[Any, Any] = {}
        self.memory: Any = None
        self._calls = 0

    def backend(self, device: torch.device) -> str | None:
        """Find the group's backend for a device."""
        config = dist.get_backend_config(self.process_group)
        return dict(part.split(":") for part in config.split(",")).get(device.type)

    def agree(
        self,
        call: str,
        description: dict[str, Any],
        decide: Decide,
        timeout_s: float,
    ) -> dict[str, Any]:
        """Exchange descriptions of a call, and take over the first rank's decision.

        Args:
            call: name of the function, for errors.
            description: what JSON holds. "error" has type and text of an error of this rank's
                arguments.
            decide: makes a decision of all descriptions, or raises; the first rank calls it.
            timeout_s: seconds to wait for the other ranks.

        Returns:
            The decision.

        Raises:
            DxgemmError: the error that a rank described, or that `decide` raised; the same one on
                all ranks.
            RankError: a rank did not come in time, or the store cannot be reached.
        """
        self._calls += 1
        deadline = time.monotonic() + timeout_s
        store = dist.PrefixStore("dxgemm", _get_process_group_store(self.process_group))
        names = [f"{self._calls}/{rank}" for rank in range(self.size)]
        decision = f"{self._calls}/decision"
        try:
            store.set(names[self.rank], json.dumps(description))
            self._wait(call, store, dict(enumerate(names)), deadline, timeout_s)
            if self.rank == 0:
                found = [json.loads(store.get(name)) for name in names]
                store.set(decision, json.dumps(_decided(found, decide)))
            self._wait(call, store, {0: decision}, deadline, timeout_s)
            decided = json.loads(store.get(decision))
            # All have come to this call, so nobody reads what was left for the one before.
            store.delete_key(f"{self._calls - 1}/{self.rank}")
        except (dist.DistStoreError, dist.DistNetworkError) as error:
            raise errors.RankError(
                f"{call}: the group's store cannot be reached ({_first_line(error)}); the process "
                "that holds it has ended."
            ) from error
        if "error" in decided:
            name, text = decided["error"]
            raise getattr(errors, name)(text)
        return decided

    def _wait(
        self, call: str, store: Any, keys: dict[int, str], deadline: float, timeout_s: float
    ) -> None:
        """Wait until each rank has left its key."""
        left_s = max(deadline - time.monotonic(), 0.001)
        try:
            store.wait([*keys.values()], timedelta(seconds=left_s))
        except dist.DistStoreError as error:
            late = [rank for rank, key in keys.items() if not store.check([key])]
            if not late:
                return
            ranks = "rank" if len(late) == 1 else "ranks"
            raise errors.RankError(
                f"{call}: {ranks} {', '.join(map(str, late))} of {self.size} did not call it "
                f"within {timeout_s:g} s; every rank of the group must, with equal arguments as "
                "often as the others."
            ) from error


def _decided(found: list[dict[str, Any]], decide: Decide) -> dict[str, Any]:
    """Decision as JSON holds it: what `decide` returns, or an error's type and text."""
    for rank, description in enumerate(found):
        if "error" in description:
            name, text = description["error"]
            return {"error": [name, f"rank {rank}: {text}"]}
    try:
        return decide(found)
    except errors.DxgemmError as error:
        return {"error": describe_error(error)}


def describe_error(error: errors.DxgemmError) -> list[str]:
    """Type and text of an error, for a description."""
    return [type(error).__name__, str(error)]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def host_name() -> str:
    """Name that GPUs of one host share."""
    return socket.gethostname()


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
    if process_group == dist.GroupMember.NON_GROUP_MEMBER:
        raise errors.RankError(f"{call}: this process is not in the group that was passed.")
    found = _groups.get(process_group)
    if found is None:
        found = _groups[process_group] = Group(process_group)
    return found
