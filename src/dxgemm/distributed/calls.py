"""Arguments of sharded products: checked by each rank, then by all, before anything is launched."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch

from dxgemm import errors
from dxgemm.call.operand import memory_problem
from dxgemm.distributed.agreement import Group, digest, machine_name, store_reported
from dxgemm.distributed.meeting import COLLECTS, Description, describe_error
from dxgemm.distributed.model import NETWORK, NVLINK, Link, ShardedProblem, choose
from dxgemm.distributed.schedule import (
    GATHER,
    PEER,
    PLAIN,
    REDUCE,
    SCATTER,
    Schedule,
    even_rows,
    make_schedule,
)
from dxgemm.epilogues import BoundEpilogue
from dxgemm.log import logger
from dxgemm.torch.operands import check_devices, check_operands, list_shapes

T = TypeVar("T")
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}  # by type of device


@dataclass(frozen=True)
class Product:
    """Sharded product that the ranks agreed on.

    Attributes:
        row_counts: rows of A, or of the result, that each rank has.
        method: how it is computed.
        schedule: this rank's schedule; None for one collective before or after one product.
        token: number of the call in which they agreed.
    """

    row_counts: tuple[int, ...]
    method: str
    chunks: int
    schedule: Schedule | None
    token: int = 0

    @property
    def collects(self) -> bool:
        """True if a prepared call is launched by collectives of torch, which cannot be repeated."""
        return self.method != PEER


class Call(NamedTuple):
    """Arguments of a sharded product on one rank.

    Attributes:
        operation: name of the function.
        a, b: operands of this rank.
        rows: row counts of all shards, if the caller passed them.
        out: where to write the result; None for a new tensor.
        chain: epilogue of the result.
        method: method that the caller named; None for the choice.
        timeout_s: seconds to wait for other ranks.
        needs: whether gradients of a, b and the epilogue's operands are needed.
        error: error that this rank's arguments have, found before.
    """

    operation: str
    a: torch.Tensor
    b: torch.Tensor
    rows: tuple[int, ...] | None = None
    out: torch.Tensor | None = None
    chain: BoundEpilogue | None = None
    method: str | None = None
    timeout_s: float = 300.0
    needs: tuple[bool, bool, bool] = (False, False, False)
    error: errors.DxgemmError | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """All of the arguments that decides whether they are right, and what the ranks do."""
        a, b, out, chain = self.a, self.b, self.out, self.chain
        problem = self._memory_problem()
        if problem:
            return self.operation, problem
        return (
            self.operation, a.shape, a.dtype, a.device, b.shape, b.dtype, b.device,
            None if out is None else (out.shape, out.dtype, out.device, self._overlaps(out)),
            None if chain is None else (chain.shape, tuple(map(_layout, chain.values))),
            self.rows, self.method, self.needs,
        )  # fmt: skip

    def _memory_problem(self) -> str:
        """Reason why the memory of a tensor is not its value; "" if all are usable."""
        arrays = [("a", self.a), ("b", self.b), *((x[0], x[2]) for x in self._arrays())]
        return next(filter(None, (memory_problem(*pair) for pair in arrays)), "")

    @property
    def is_captured(self) -> bool:
        """True if the current stream is under capture."""
        return self.a.is_cuda and torch.cuda.is_current_stream_capturing()

    def digest(self, ready: Any) -> bytes | None:
        """Digest of the operands that are read; None if they cannot be read by now."""
        return digest(self._read(), ready)

    def _overlaps(self, out: torch.Tensor) -> bool:
        """True if out shares memory with what is read."""
        read = (x for x in self._read() if isinstance(x, torch.Tensor))
        used = {x.untyped_storage().data_ptr() for x in read}
        return out.numel() > 0 and out.untyped_storage().data_ptr() in used

    def _read(self) -> list[Any]:
        """Operands that are read: a, b and arrays of the epilogue."""
        return [self.a, self.b, *(value for label, _, value in self._arrays() if label != "out")]

    def _arrays(self) -> list[tuple[str, str, Any]]:
        """Label, kind and value of what must fit the result: out, and arrays of the epilogue."""
        arrays: list[tuple[str, str, Any]] = []
        if self.out is not None:
            arrays.append(("out", "matrix", self.out))
        chain = self.chain
        if chain is not None:
            for label, entry, value in zip(chain.labels, chain.operands, chain.values):
                if label is not None:
                    arrays.append((label, entry.kind, value))
        return arrays

    def describe(self, group: Group) -> Description:
        """Describe the call to the other ranks, or the error that the arguments have."""
        try:
            if self.error is not None:
                raise self.error
            self._check(group)
        except errors.DxgemmError as error:
            return {"error": describe_error(error)}
        return {
            "operation": self.operation,
            "dtype": str(self.a.dtype).removeprefix("torch."),
            "m": self.a.shape[0],
            "n": self.b.shape[1],
            "k": self.a.shape[1],
            "rows": self.rows and list(self.rows),
            "arrays": [[label, kind, list(value.shape)] for label, kind, value in self._arrays()],
            "method": self.method,
            "needs": list(self.needs),
            "is_splittable": not (self.chain and any(s.uses_row for s in self.chain.stages)),
            "is_captured": self.is_captured,
            "place": _place(group, self.a.device),
        }

    def _check(self, group: Group) -> None:
        """Raise unless the arguments fit together, as far as one rank can tell."""
        name, a, b, device = self.operation, self.a, self.b, self.a.device
        check_operands(name, takes_complex=True, a=a, b=b)
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
            raise errors.ShapeError(
                f"{name}: {list_shapes(a=a, b=b)}; they must be (m, k) and (k, n)."
            )
        backend = group.backend(device)
        if backend is None or backend != BACKENDS.get(device.type):
            raise errors.DeviceMismatchError(
                f"{name}: the operands are on {device}, for which the group has the backend "
                f"{backend}; CUDA tensors need nccl, and CPU tensors gloo."
            )
        problem = self._memory_problem()
        if problem:
            raise errors.ArrayTypeError(problem.replace("gemm", name, 1))
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            raise errors.DeviceMismatchError(
                f"{name}: the operands are on {device}, and the current device is "
                f"cuda:{torch.cuda.current_device()}; call torch.cuda.set_device({device.index})."
            )
        if self.rows is not None and (len(self.rows) != group.size or min(self.rows) < 0):
            raise errors.ShapeError(
                f"{name}: rows is {self.rows}; pass a row count for each of {group.size} ranks."
            )
        if self.out is not None and self.out.dtype != a.dtype:
            raise errors.DtypeError(f"{name}: out is {self.out.dtype}, the operands {a.dtype}.")
        if self.out is not None and self._overlaps(self.out):
            raise errors.OverlapError(f"{name}: out shares memory with what is read.")
        chain = self.chain
        if chain is not None and (chain.reduction or chain.takes_pairs or chain.is_masked):
            raise errors.UnsupportedProblemError(
                f"{name}: epilogue {chain!r} has a reduction, pairs of columns or a mask, which "
                "sharded products do not take."
            )
        if any(self.needs) and (name == REDUCE or self.out is not None or chain is not None):
            raise errors.UnsupportedProblemError(
                f"{name}: there are no gradients of gemm_all_reduce, through an epilogue or with "
                "out=; detach the operands."
            )
        check_devices(name, {"a": a} | {label: value for label, _, value in self._arrays()})


def _layout(value: Any) -> Any:
    return (value.shape, value.device) if isinstance(value, torch.Tensor) else None


# Launches of a call on a rank, which does first what needs no other rank: it allocates memory, and
# launches the products before a collective. It yields once until all ranks have done so.
Steps = Generator[None, None, T]


def meet(group: Group, call: Call, begin: Callable[[Product], Steps[T]]) -> T:
    """Meet the other ranks for a call, and once it is launched, to its result.

    A rank that repeats a call begins its steps before the ranks meet, and again if it turns out
    that they disagree.

    Raises:
        DxgemmError: the arguments of the ranks do not fit together; the same error on all ranks.
        RankError: the call failed on another rank, or a rank did not come within the call's time.
    """
    with store_reported(call.operation):
        meeting = group.introduce(call.operation, call.timeout_s)
        key = None if call.error is not None else call.key
        product = group.agreed.get(key)
        if product is not None and product.method == PEER and call.is_captured:
            product = None  # the ranks agree anew, because peers refuse it

        def digest() -> bytes | None:
            memory = group.memory
            begun = memory is not None and memory.number == meeting.number
            return call.digest(memory.begun if begun else None)

        try:
            with meeting.call(call.operation, call.timeout_s, key, digest):
                if product is not None:
                    next(steps := begin(product))
                    is_agreed = meeting.arrive(product.token, product.collects)
                else:
                    is_agreed = meeting.arrive(0)
                if not is_agreed:
                    decided = meeting.agree(call.describe(group), decide)
                    product = _product(group, call, decided, meeting.number)
                    group.remember(key, product)
                    next(steps := begin(product))
                    if product.collects:
                        meeting.commit(COLLECTS)
                try:
                    next(steps)
                except StopIteration as end:
                    result: T = end.value
        except BaseException:
            if group.memory is not None and meeting.refusal is not None:
                with suppress(Exception):
                    group.memory.release()
            raise
    if group.memory is not None and group.memory.number == meeting.number:
        group.memory.watch()
    return result


def _product(group: Group, call: Call, decided: Description, token: int) -> Product:
    """Make the product that a decision means for this rank."""
    rows, method, chunks = tuple(decided["rows"]), decided["method"], decided["chunks"]
    schedule = None
    if method != PLAIN:
        schedule = make_schedule(call.operation, method, rows, group.rank, chunks)
    elif call.operation == SCATTER and (len(set(rows)) > 1 or not call.a.is_cuda):
        # Collectives of torch scatter even shards only, and gloo's add in an order of its own.
        schedule = make_schedule(call.operation, method, rows, group.rank, 1)
    return Product(rows, method, chunks, schedule, token)


def decide(found: list[Description]) -> dict[str, Any]:
    """Decide for all ranks how a call is computed, from the descriptions of all.

    Raises:
        DxgemmError: the descriptions do not fit together.
    """
    operation = _same(found, "operation", errors.UnsupportedProblemError)
    dtype = _same(found, "dtype", errors.DtypeError)
    rows = _same(found, "rows", errors.ShapeError)
    method = _same(found, "method", errors.UnsupportedProblemError)
    _same(found, "needs", errors.UnsupportedProblemError)
    for size in "k" if operation == GATHER else "mn":
        _same(found, size, errors.ShapeError)
    if operation == GATHER:
        given = [description["m"] for description in found]
        total = sum(given)
    else:
        total = found[0]["m"]
        given = rows or list(even_rows(total, len(found)))
    if (rows or given) != given or sum(given) != total:
        raise errors.ShapeError(
            f"{operation}: rows is {rows}, but the ranks have {given}, {total} in all."
        )
    for rank, description in enumerate(found):
        m = given[rank] if operation == SCATTER else total
        _check_arrays(rank, description, m)
    problem = ShardedProblem(
        operation,
        tuple(given),
        max(description["n"] for description in found),
        max(description["k"] for description in found),
        dtype,
        _link_between([description["place"] for description in found]),
        is_splittable=all(description["is_splittable"] for description in found),
    )
    choice = choose(problem, method)
    if choice.method == PEER and any(description["is_captured"] for description in found):
        raise errors.LaunchError(  # a graph would write the flags of one call
            f"{operation}: moves between peers cannot be captured in a CUDA graph; pass "
            'method="plain".'
        )
    logger.debug("%s", choice)
    return {"rows": given, "method": choice.method, "chunks": choice.chunks}


def _same(found: list[Description], name: str, error: type[errors.DxgemmError]) -> Any:
    """Find what all ranks pass for an argument, or raise."""
    values = [description[name] for description in found]
    if any(value != values[0] for value in values):
        listed = ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))
        raise error(f"{found[0]['operation']}: {name} is {listed}; it must be the same on all.")
    return values[0]


def _check_arrays(rank: int, description: Description, m: int) -> None:
    """Raise unless out and the epilogue's arrays have the shape of a rank's result."""
    n = description["n"]
    for label, kind, shape in description["arrays"]:
        wanted = {"row": [n], "column": [m]}.get(kind, [m, n])
        if shape != wanted:
            raise errors.ShapeError(
                f"{description['operation']}: {label} of rank {rank} is {tuple(shape)}; for its "
                f"result of ({m}, {n}) it must be {tuple(wanted)}."
            )


def _place(group: Group, device: torch.device) -> Description:
    """Describe where a rank computes, and which GPUs it can copy to."""
    place: Description = {"machine": machine_name(), "is_shared": group.shared_prefix is not None}
    if device.type == "cuda":
        # Each process numbers the GPUs that it sees; their UUIDs are the same in all.
        visible = {
            index: str(torch.cuda.get_device_properties(index).uuid)
            for index in range(torch.cuda.device_count())
        }
        place["index"], place["gpu"] = device.index, visible[device.index]
        place["reaches"] = [
            uuid
            for index, uuid in visible.items()
            if index != device.index and torch.cuda.can_device_access_peer(device.index, index)
        ]
    return place


def _link_between(places: Sequence[Description]) -> Link:
    """Find the slowest link between the places of the ranks."""
    gpus = [place.get("gpu") for place in places]
    is_near = (
        None not in gpus
        and len({place["machine"] for place in places}) == 1
        and all(place["is_shared"] for place in places)
        and len({*gpus}) == len(places)
        # torch's symmetric memory tells the ranks' GPUs apart by their indices.
        and len({place["index"] for place in places}) == len(places)
        and all({*gpus} <= {place["gpu"], *place["reaches"]} for place in places)
    )
    return NVLINK if is_near else NETWORK
