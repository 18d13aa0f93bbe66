"""One rank's run of a sharded product: products of rows, with the moves beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import dxgemm
from dxgemm.distributed.agreement import Group, find_group
from dxgemm.distributed.calls import Call, Product, met
from dxgemm.distributed.collectives import (
    GatherRounds,
    ReduceRounds,
    ScatterRounds,
    all_gather,
    as_real,
    gather_rows,
    reduce_scatter,
    reported,
)
from dxgemm.distributed.meeting import COLLECTS
from dxgemm.distributed.peers import GatherPeers, ScatterPeers
from dxgemm.distributed.schedule import (
    GATHER,
    PEER,
    SCATTER,
    Add,
    Multiply,
    Rows,
    Schedule,
    shards_of,
)
from dxgemm.epilogues import BoundEpilogue


class Computed(NamedTuple):
    """Result of a sharded product, the gathered rows of A if they were kept, and row counts."""

    out: torch.Tensor
    gathered: torch.Tensor | None
    row_counts: tuple[int, ...]


def compute(group: Any, call: Call, keeps_gathered: bool = False) -> Computed:
    """Compute a sharded product, once the ranks have agreed on it.

    Args:
        group: process group of torch; None for the default one.
        call: the arguments.
        keeps_gathered: True to return the gathered rows of A beside the result.
    """
    members = find_group(call.operation, group)
    with met(members, call) as product:
        gathered = None
        if call.operation == GATHER:
            out, gathered = _gather(members, product, call, keeps_gathered)
        elif call.operation == SCATTER:
            rows = product.row_counts[members.rank]
            out = call.a.new_empty((rows, call.b.shape[1])) if call.out is None else call.out
            _scatter(members, product, call, out, call.chain)
        else:
            out = _reduce(members, product, call)
        return Computed(out, gathered, product.row_counts)


def _gather(
    group: Group, product: Product, call: Call, keeps_gathered: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """epilogue(A @ b), with the rows of A from all ranks."""
    shard, b, counts = call.a.resolve_conj(), call.b, product.row_counts
    out = shard.new_empty((sum(counts), b.shape[1])) if call.out is None else call.out
    if product.schedule is None:
        gathered = gather_rows(call.operation, group, shard, counts)
        return dxgemm.gemm(gathered, b, out=out, epilogue=call.chain), gathered
    transport: GatherPeers | GatherRounds
    if product.method == PEER:
        transport = GatherPeers(group, shard, counts, product.chunks, call.timeout_s)
    else:
        transport = GatherRounds(call.operation, group, shard, counts, product.chunks)
        group.meeting.commit(COLLECTS)

    gathered = shard.new_empty((sum(counts), shard.shape[1])) if keeps_gathered else None

    def multiply(step: Multiply) -> None:
        rows = shard if step.owner == group.rank else transport.rows_of(step)
        if gathered is not None:
            gathered[slice(*step.rows)] = rows
        chain = rows_of_chain(call.chain, step.rows)
        dxgemm.gemm(rows, b, out=out[slice(*step.rows)], epilogue=chain)

    follow(product.schedule, transport, multiply)
    return out, gathered


def _scatter(
    group: Group,
    product: Product,
    call: Call,
    out: torch.Tensor,
    chain: BoundEpilogue | None,
) -> torch.Tensor:
    """epilogue(sum of a @ b over the ranks), this rank's rows."""
    a, b, counts = call.a, call.b, product.row_counts
    if product.schedule is None:
        partial = dxgemm.gemm(a, b)
        result = out if out.is_contiguous() else torch.empty_like(out).contiguous()
        group.meeting.commit(COLLECTS)
        if partial.numel():
            with reported(call.operation):
                reduce_scatter(as_real(result), as_real(partial), group=group.process_group)
        return apply(chain, result, out)
    transport: ScatterPeers | ScatterRounds
    if product.method == PEER:
        transport = ScatterPeers(group, out, counts, product.chunks, call.timeout_s)
    else:
        transport = ScatterRounds(call.operation, group, out, counts, product.chunks)
        group.meeting.commit(COLLECTS)
    first, _ = shards_of(counts)[group.rank]

    def compute_step(step: Multiply | Add) -> None:
        if isinstance(step, Add):
            received = transport.received(step)
            sums = received[0] if len(received) == 1 else received.sum(0)
            out[step.rows[0] - first : step.rows[1] - first].add_(sums)
        else:
            target = out if step.owner == group.rank else transport.part(step)
            dxgemm.gemm(a[slice(*step.rows)], b, out=target)

    follow(product.schedule, transport, compute_step)
    return apply(chain, out, out)


def _reduce(group: Group, product: Product, call: Call) -> torch.Tensor:
    """epilogue(sum of a @ b over the ranks), all rows."""
    a, b, counts = call.a, call.b, product.row_counts
    out = a.new_empty((len(a), b.shape[1])) if call.out is None else call.out
    result = out if out.is_contiguous() else torch.empty_like(out).contiguous()
    if product.schedule is None:
        dxgemm.gemm(a, b, out=result)
        group.meeting.commit(COLLECTS)
        if result.numel():
            with reported(call.operation):
                dist.all_reduce(as_real(result), group=group.process_group)
    elif product.method == PEER:
        own = result[slice(*shards_of(counts)[group.rank])]
        _scatter(group, product, call, own, None)
        group.meeting.commit(COLLECTS)
        if result.numel():
            with reported(call.operation):
                all_gather(result, own, group)
    else:

        def multiply(step: Multiply) -> None:
            dxgemm.gemm(a[slice(*step.rows)], b, out=result[slice(*step.rows)])

        group.meeting.commit(COLLECTS)
        follow(product.schedule, ReduceRounds(call.operation, group, result), multiply)
    return apply(call.chain, result, out)


def follow(schedule: Schedule, transport: Any, compute_step: Callable[[Any], None]) -> None:
    """Launch the steps and moves of a schedule in their order."""
    moves = list(reversed(schedule.moves))
    try:
        for done, step in enumerate(schedule.steps):
            while moves and moves[-1].after <= done:
                transport.move(moves[-1])
                moves.pop()
            for message in step.needs:
                transport.arrive(message)
            compute_step(step)
        while moves:
            transport.move(moves[-1])
            moves.pop()
        transport.finish()
    except BaseException:
        transport.abandon(moves)
        raise


def rows_of_chain(chain: BoundEpilogue | None, rows: Rows) -> BoundEpilogue | None:
    """Cut the operands of an epilogue to some rows of the result."""
    if chain is None:
        return None
    kinds = [entry.kind for entry in chain.operands]
    return chain.with_values(
        value[slice(*rows)] if kind in ("column", "matrix", "output") else value
        for kind, value in zip(kinds, chain.values, strict=True)
    )


def apply(chain: BoundEpilogue | None, sums: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """epilogue(sums), by a product without an inner dimension; sums may be out."""
    if chain is not None:
        m, n = sums.shape
        target = None if sums is out else out
        empty = sums.new_empty((m, 0)), sums.new_empty((0, n))
        dxgemm.gemm(*empty, sums, beta=1.0, out=target, epilogue=chain)
    elif sums is not out:
        out.copy_(sums)
    return out
