"""Predicted times of sharded products, and the choice among the methods that compute them.

    print(dxgemm.distributed.explain("gemm_reduce_scatter", 16384, 4096, 1024, "float64", ranks=8))

needs neither torch nor a GPU, if `gpu` names one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from dxgemm import explain_shape
from dxgemm.distributed.schedule import (
    CHUNKED,
    CHUNKS,
    GATHER,
    METHODS,
    OPERATIONS,
    PEER,
    PLAIN,
    REDUCE,
    Add,
    Move,
    Multiply,
    count_of,
    even_rows,
    make_schedule,
    simulate,
)
from dxgemm.errors import (
    DtypeError,
    SettingError,
    UnsupportedProblemError,
    named_in_errors,
    shown,
)
from dxgemm.gpu.cards import find_card
from dxgemm.problem.arguments import check_name, check_size
from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES, RESULT_DTYPES

LAUNCH_US = 3.0  # between two kernels of a stream
# Another method than "plain" is chosen if its predicted times are below this share of those of
# "plain", on an idle stream and behind other work.
MARGIN = 0.95
# Rate at which an H100 adds matrices, in bytes that are read and written.
ADD_GBYTES_PER_S = 3000.0
MOST_RANKS = 2**16  # that `explain` simulates
# Kernels of NCCL take multiprocessors from products beside them: an assumption.
COLLECTIVE_SLOWDOWN = 1.3


@dataclass(frozen=True)
class Link:
    """Speed of the links between GPUs.

    Attributes:
        name: name for explanations.
        collective_gbytes_per_s: bytes that a rank receives in a collective, over its time.
        collective_us: latency of a collective.
        peer_gbytes_per_s: rate of a copy into another GPU's memory; None if there are none.
        peer_us: latency of a copy and its signal.
    """

    name: str
    collective_gbytes_per_s: float
    collective_us: float
    peer_gbytes_per_s: float | None = None
    peer_us: float = 0.0

    def collective(self, bytes_received: float) -> float:
        """Time of a collective in microseconds."""
        if not bytes_received:
            return 0.0
        return self.collective_us + bytes_received / (self.collective_gbytes_per_s * 1e3)

    def copy(self, bytes_copied: float) -> float:
        """Time of a copy between peers in microseconds."""
        assert self.peer_gbytes_per_s is not None
        return self.peer_us + bytes_copied / (self.peer_gbytes_per_s * 1e3)


# Rates between two H100s: 67 MB arrived in 315 to 346 us by NCCL, without multicast, and copies ran
# at 383 GB/s. The latencies are assumptions.
NVLINK = Link("NVLink", 225.0, 20.0, 383.0, 8.0)
# One port of 400 Gb/s for each GPU: an assumption.
NETWORK = Link("network", 45.0, 40.0)


class Host(NamedTuple):
    """Times of a host in microseconds. They are estimates.

    Attributes:
        call_us: a call's checks, and its meeting with the other ranks.
        product_us, add_us, copy_us, collective_us: a launch, with what it waits for.
    """

    call_us: float = 40.0
    product_us: float = 18.0
    add_us: float = 20.0
    copy_us: float = 15.0
    collective_us: float = 45.0


NO_HOST = Host(*[0.0] * len(Host._fields))


@dataclass(frozen=True)
class ShardedProblem:
    """Sizes of a product over the ranks of a group.

    Attributes:
        operation: one of `OPERATIONS`.
        row_counts: rows of A, or of the result, that each rank has.
        n, k: columns and inner dimension of one rank's product, the largest of all ranks.
        dtype: dtype of A and B.
        link: the slowest link between the ranks.
        gpu: name of a card; None for the GPU at hand.
        is_splittable: False if only the whole result can be computed at once.
    """

    operation: str
    row_counts: tuple[int, ...]
    n: int
    k: int
    dtype: str
    link: Link
    gpu: str | None = None
    is_splittable: bool = True

    @property
    def m(self) -> int:
        return sum(self.row_counts)

    @property
    def is_even(self) -> bool:
        return len(set(self.row_counts)) == 1

    @property
    def moved_row_bytes(self) -> int:
        """Bytes of a row that moves: of A, or of the result."""
        return ITEM_SIZES[self.dtype] * (self.k if self.operation == GATHER else self.n)

    @property
    def gemm_us(self) -> float:
        """Predicted time of one rank's arithmetic, in one product."""
        return gemm_us(self.m, self.n, self.k, self.dtype, self.gpu)

    @property
    def move_us(self) -> float:
        """Predicted time of the collective alone."""
        received = (self.m - min(self.row_counts)) * self.moved_row_bytes
        return self.link.collective(received * (2 if self.operation == REDUCE else 1))

    def problems(self) -> dict[str, str]:
        """Reasons why methods cannot compute the problem."""
        reasons = {}
        if self.link.peer_gbytes_per_s is None:
            reasons[PEER] = "not all ranks have GPUs of one host that reach each other's memory"
        elif self.operation == REDUCE and not self.is_even:
            reasons[PEER] = f"{self.m} rows cannot be shared out evenly"
        if self.operation == GATHER and not self.is_splittable:
            reason = "the epilogue depends on the row, which parts of the result do not know"
            reasons |= dict.fromkeys((CHUNKED, PEER), reason)
        return reasons


@lru_cache(maxsize=4096)
def gemm_us(m: int, n: int, k: int, dtype: str, gpu: str | None) -> float:
    """Predicted time of one product in microseconds, with its launch."""
    if not m or not n:
        return 0.0
    found = explain_shape(m, n, max(k, 1), dtype, gpu=gpu).prediction
    return (found.us or found.roofline.time_us) + LAUNCH_US


def predict_us(problem: ShardedProblem, method: str, chunks: int, is_idle: bool = False) -> float:
    """Predicted time of a method in microseconds.

    Args:
        is_idle: True for a call on an idle stream, which waits for each launch of its host; False
            for one behind other work, which hides the host.
    """
    host = Host() if is_idle else NO_HOST
    link, row_bytes = problem.link, problem.moved_row_bytes
    if method == PLAIN:
        pair = (host.product_us, problem.gemm_us), (host.collective_us, problem.move_us)
        return _in_turn(host.call_us, 0.0, pair[::-1] if problem.operation == GATHER else pair)
    slowdown = COLLECTIVE_SLOWDOWN if method == CHUNKED else 1.0

    def step_us(rank: int, step: Multiply | Add) -> float:
        rows = count_of(step.rows)
        if isinstance(step, Add):
            # Two matrices are read and one is written. Those of several others are added up before.
            ranks = len(problem.row_counts)
            passes = 3 if ranks == 2 else 3 + ranks
            return LAUNCH_US + passes * rows * row_bytes / (ADD_GBYTES_PER_S * 1e3)
        return slowdown * gemm_us(rows, problem.n, problem.k, problem.dtype, problem.gpu)

    def move_us(move: Move) -> float:
        moved = count_of(move.rows) * row_bytes
        if method == PEER:
            return link.copy(moved)
        if problem.operation == REDUCE:
            return link.collective(2 * moved * (1 - 1 / len(problem.row_counts)))
        return link.collective(moved * (len(problem.row_counts) - 1))

    def host_us(launch: Multiply | Add | Move) -> float:
        if isinstance(launch, Move):
            return host.copy_us if method == PEER else host.collective_us
        return host.add_us if isinstance(launch, Add) else host.product_us

    counts = problem.row_counts
    schedules = [
        make_schedule(problem.operation, method, counts, rank, chunks)
        for rank in range(len(counts))
    ]
    finished_us = host.call_us + max(simulate(schedules, step_us, move_us, host_us))
    if method == PEER and problem.operation == REDUCE:
        # The other half of the reduction is a plain all-gather.
        launched_us = host.call_us + max(sum(map(host_us, of.launches)) for of in schedules)
        gather = host.collective_us, problem.move_us / 2
        return _in_turn(launched_us, finished_us, [gather])
    return finished_us


def _in_turn(
    launched_us: float, finished_us: float, launches: Iterable[tuple[float, float]]
) -> float:
    """Time at which launches are done, each of which takes a time of the host, then of the GPU."""
    for host_us, device_us in launches:
        launched_us += host_us
        finished_us = max(finished_us, launched_us) + device_us
    return finished_us


@dataclass(frozen=True)
class Choice:
    """Method that computes a sharded product, and why.

    Attributes:
        problem: the sizes.
        method, chunks: the method, and the chunks of each shard.
        rule: reason for the choice.
        predicted_us: predicted time of each method with its best number of chunks, behind other
            work that hides the host.
        idle_us: the same on an idle stream.
        rejected: by name of every other method, the reason why it cannot compute the problem.
    """

    problem: ShardedProblem
    method: str
    chunks: int
    rule: str
    predicted_us: dict[str, float]
    idle_us: dict[str, float]
    rejected: dict[str, str]

    def __str__(self) -> str:
        problem = self.problem
        size = f"{problem.m} x {problem.n} x {problem.k} {problem.dtype} per rank"
        lines = [
            f"{problem.operation} {size}, {len(problem.row_counts)} ranks over {problem.link.name}",
            f"  method          {self.method}, {self.chunks} chunks per shard: {self.rule}",
            f"  gemm alone      {problem.gemm_us:10.1f} us",
            f"  moves alone     {problem.move_us:10.1f} us",
        ]
        lines += [
            f"  {name:<14}  {us:10.1f} us, {self.idle_us[name]:.1f} us on an idle stream"
            for name, us in self.predicted_us.items()
        ]
        return "\n".join(
            lines + [f"  not {name:<10}  {why}" for name, why in self.rejected.items()]
        )


def choose(problem: ShardedProblem, method: str | None = None) -> Choice:
    """Choose the method with the shortest predicted time, and the number of chunks.

    It cannot depend on whether a stream is idle: methods round differently, and repeats of a call
    have equal bits.

    Raises:
        UnsupportedProblemError: the named method is unknown, or cannot compute the problem.
    """
    rejected = problem.problems()
    if method is not None and (method not in METHODS or method in rejected):
        reason = rejected.get(method, f"there are {', '.join(METHODS)}")
        raise UnsupportedProblemError(f"{problem.operation}: not method {method!r}: {reason}.")
    best = {
        name: min(
            (predict_us(problem, name, chunks, True), predict_us(problem, name, chunks), chunks)
            for chunks in ((1,) if name == PLAIN else CHUNKS)
        )
        for name in METHODS
        if name not in rejected
    }
    plain_idle_us, plain_us, _ = best[PLAIN]
    quicker = [
        name
        for name, (idle_us, us, _) in best.items()
        if idle_us < MARGIN * plain_idle_us and us < MARGIN * plain_us
    ]
    chosen = method or min(quicker, key=best.__getitem__, default=PLAIN)
    rule = "as named" if method else "shortest predicted time"
    idle, queued = ({name: times[index] for name, times in best.items()} for index in (0, 1))
    return Choice(problem, chosen, best[chosen][2], rule, queued, idle, rejected)


@named_in_errors("dxgemm.distributed.explain")
def explain(
    operation: str,
    m: int,
    n: int,
    k: int,
    dtype: str = "bfloat16",
    *,
    ranks: int = 2,
    gpu: str | None = None,
    link: Link = NVLINK,
    method: str | None = None,
) -> Choice:
    """Explain which method a sharded product of (m, k) and (k, n) would take, with its times.

    Args:
        operation: "all_gather_gemm", whose n is shared out among the ranks as A's rows are;
            "gemm_reduce_scatter" or "gemm_all_reduce", whose k is.
        m, n, k: sizes of the whole product.
        dtype: dtype of the operands.
        ranks: number of ranks, up to 65,536.
        gpu: name of a card, such as "H100"; None for the first GPU.
        link: `NVLINK`, `NETWORK`, or a `Link` with other figures.
        method: None to choose, or a name.

    Raises:
        UnsupportedProblemError: the operation or the method is unknown or not possible.
        UnknownGpuError, GpuUnavailableError, ShapeError, DtypeError: as in `dxgemm.explain_shape`.
        SettingError: link is no `Link`.
    """
    check_name("operation", operation, OPERATIONS, UnsupportedProblemError)
    check_name("dtype", dtype, (*RESULT_DTYPES, *COMPLEX_PARTS), DtypeError)
    m, n, k = check_size("m", m), check_size("n", n), check_size("k", k)
    ranks = check_size("ranks", ranks, 1, MOST_RANKS)
    if gpu is not None:
        find_card(gpu)
    if not isinstance(link, Link):
        raise SettingError(f"gemm: link is {shown(link)}; pass NVLINK, NETWORK or another Link.")
    if method is not None:
        check_name("method", method, METHODS, UnsupportedProblemError)
    if operation == GATHER:
        n = -(-n // ranks)
    else:
        k = -(-k // ranks)
    return choose(ShardedProblem(operation, even_rows(m, ranks), n, k, dtype, link, gpu), method)
