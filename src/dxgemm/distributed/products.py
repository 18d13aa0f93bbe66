"""One rank's run of a sharded product: products of rows, with the moves beside them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import dxgemm
from dxgemm.distributed.agreement import Group, find_group
from dxgemm.distributed.calls import Call, Product, Steps, meet
from dxgemm.distributed.collectives import (
    GatherRounds,
    ReduceRounds,
    ScatterRounds,
    all_gather,
    collect,
    gather_rows,
    reduce_scatter,
)
from dxgemm.distributed.meeting import COLLECTS
from dxgemm.distributed.peers import GatherPeers, ScatterPeers
from dxgemm.distributed.schedule import (
    GATHER,
    PEER,
    REDUCE,
    SCATTER,
    Add,
    Move,
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
    operations = {GATHER: _gather, SCATTER: _scatter_rows, REDUCE: _reduce}
    return meet(members, call, partial(operations[call.operation], members, call, keeps_gathered))


def _gather(group: Group, call: Call, keeps_gathered: bool, product: Product) -> Steps[Computed]:
    """epilogue(A @ b), with the rows of A from all ranks."""
    shard, b, counts = call.a.resolve_conj(), call.b, product.row_counts
    out = shard.new_empty((sum(counts), b.shape[1])) if call.out is None else call.out
    if product.schedule is None:
        gathered = yield from gather_rows(call.operation, group, shard, counts)
        dxgemm.gemm(gathered, b, out=out, epilogue=call.chain)
        return Computed(out, gathered, counts)
    kept = shard.new_empty((sum(counts), shard.shape[1])) if keeps_gathered else None
    transport: GatherPeers | GatherRounds
    if product.method == PEER:
        yield
        transport = GatherPeers(group, shard, counts, call.timeout_s)
    else:
        transport = GatherRounds(call.operation, group, shard, counts, product.chunks)
        yield

    def multiply(step: Multiply) -> None:
        rows = shard if step.owner == group.rank else transport.rows_of(step)
        if kept is not None:
            kept[slice(*step.rows)] = rows
        chain = rows_of_chain(call.chain, step.rows)
        dxgemm.gemm(rows, b, out=out[slice(*step.rows)], epilogue=chain)

    follow(product.schedule, transport, multiply)
    return Computed(out, kept, counts)


def _scatter_rows(group: Group, call: Call, _: bool, product: Product) -> Steps[Computed]:
    """epilogue(sum of a @ b over the ranks), this rank's rows."""
    counts = product.row_counts
    rows = counts[group.rank]
    out = call.a.new_empty((rows, call.b.shape[1])) if call.out is None else call.out
    yield from _scatter(group, product, call, out, call.chain)
    return Computed(out, None, counts)


def _scatter(
    group: Group, product: Product, call: Call, out: torch.Tensor, chain: BoundEpilogue | None
) -> Steps[None]:
    """Write the rows of `_scatter_rows`."""
    a, b, counts = call.a, call.b, product.row_counts
    if product.schedule is None:
        sums = dxgemm.gemm(a, b)
        result = out if out.is_contiguous() else torch.empty_like(out).contiguous()
        yield
        collect(call.operation, group, reduce_scatter, result, sums)
        apply(chain, result, out)
        return
    transport: ScatterPeers | ScatterRounds
    if product.method == PEER:
        yield
        transport = ScatterPeers(group, out, counts, product.chunks, call.timeout_s)
    else:
        transport = ScatterRounds(call.operation, group, out, counts, product.chunks)
        yield
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
    apply(chain, out, out)


def _reduce(group: Group, call: Call, _: bool, product: Product) -> Steps[Computed]:
    """epilogue(sum of a @ b over the ranks), all rows."""
    a, b, counts = call.a, call.b, product.row_counts
    out = a.new_empty((len(a), b.shape[1])) if call.out is None else call.out
    result = out if out.is_contiguous() else torch.empty_like(out).contiguous()
    if product.schedule is None:
        dxgemm.gemm(a, b, out=result)
        yield
        collect(call.operation, group, dist.all_reduce, result)
    elif product.method == PEER:
        own = result[slice(*shards_of(counts)[group.rank])]
        yield from _scatter(group, product, call, own, None)
        group.meeting.commit(COLLECTS)
        collect(call.operation, group, all_gather, result, own)
    else:

        def multiply(step: Multiply) -> None:
            dxgemm.gemm(a[slice(*step.rows)], b, out=result[slice(*step.rows)])

        yield
        follow(product.schedule, ReduceRounds(call.operation, group, result), multiply)
    apply(call.chain, result, out)
    return Computed(out, None, counts)


def follow(schedule: Schedule, transport: Any, compute_step: Callable[[Any], None]) -> None:
    """Launch the steps and moves of a schedule in their order."""
    launches = schedule.launches
    done = 0
    try:
        for launch in launches:
            if isinstance(launch, Move):
                transport.move(launch)
            else:
                for message in launch.needs:
                    transport.arrive(message)
                compute_step(launch)
            done += 1
        transport.finish()
    except BaseException:
        transport.abandon([launch for launch in launches[done:] if isinstance(launch, Move)])
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


def apply(chain: BoundEpilogue | None, sums: torch.Tensor, out: torch.Tensor) -> None:
    """out = epilogue(sums), by a product without an inner dimension; sums may be out."""
    if chain is not None:
        m, n = sums.shape
        target = None if sums is out else out
        empty = sums.new_empty((m, 0)), sums.new_empty((0, n))
        dxgemm.gemm(*empty, sums, beta=1.0, out=target, epilogue=chain)
    elif sums is not out:
        out.copy_(sums)
