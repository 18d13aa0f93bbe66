"""Sharded products on several ranks: over gloo on the simulator, over NCCL on GPUs.

Each rank is a process (`ranks.Ranks`). The functions that it runs begin with `on_rank`.
"""

import ctypes
import math
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib import import_module
from itertools import product
from multiprocessing import parent_process
from pathlib import Path
from types import SimpleNamespace

import pytest

import dxgemm
from dxgemm import distributed as dxd
from dxgemm import epilogues
from dxgemm.distributed.schedule import (
    GATHER,
    OPERATIONS,
    PEER,
    REDUCE,
    SCATTER,
    shards_of,
)
from dxgemm.gpu.status import simulator_enabled

torch = pytest.importorskip("torch", reason="sharded products need torch: dxgemm[torch]")
ranks_of_tests = import_module("ranks")
dist, tensors = import_module("torch.distributed"), import_module("torch.distributed.tensor")
agreement, calls, collectives, meeting, peers, products = (
    import_module(f"dxgemm.distributed.{name}")
    for name in ("agreement", "calls", "collectives", "meeting", "peers", "products")
)
DEVICE, Ranks = ranks_of_tests.DEVICE, ranks_of_tests.Ranks
Replicate, Shard = tensors.Replicate, tensors.Shard
distribute_tensor = tensors.distribute_tensor

GPUS = 0 if simulator_enabled() else torch.cuda.device_count()
if not simulator_enabled() and GPUS < 2 and parent_process() is None:  # a rank may see only one
    pytest.skip("needs two GPUs, or the simulator", allow_module_level=True)

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
]  # fmt: skip
METHODS = ["plain", "chunked", None] if simulator_enabled() else ["plain", "chunked", "peer", None]
FLOAT, DOUBLE = torch.float32, torch.float64
SCALE = 1 if simulator_enabled() else 61
# Rows of each rank, for any number of ranks: equal ones, uneven ones, and one rank with none.
COUNTS = [(3, 3, 3), (4, 7, 1), (5, 0, 2)]
N, K = 5, 6


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request):
    """Ranks that stay for all tests of the module."""
    if GPUS and request.param > GPUS:
        pytest.skip(f"needs {request.param} GPUs")
    with closing(Ranks(request.param)) as started:
        yield started


@pytest.fixture(scope="module")
def pair():
    """Two ranks."""
    with closing(Ranks(2)) as started:
        yield started


@pytest.fixture
def mortal():
    """Two ranks that a test may end."""
    with closing(Ranks(2)) as started:
        yield started


def integers(*shape, dtype, seed=0):
    """Matrix of small integers, whose sums are exact in every dtype; the same on all ranks."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-2, 3, shape, generator=generator).to(torch.float64)
    if dtype.is_complex:
        values = values + 1j * torch.randint(-2, 3, shape, generator=generator)
    return values.to(DEVICE, dtype)


def scaled(counts, size):
    return [SCALE * count for count in counts[:size]]


def split_k(a, b, rank, ks):
    """Columns of a and rows of b that a rank has."""
    first, end = shards_of(ks)[rank]
    return a[:, first:end], b[first:end]


def shards(operation, rank, a, b, counts, ks):
    """Operands of a rank, options of its call, and the rows that it keeps of the result."""
    rows = slice(*shards_of(counts)[rank])
    if operation == GATHER:
        return (a[rows], b), {}, slice(None)
    is_scattered = operation == SCATTER
    options = {"rows": counts} if is_scattered else {}
    return split_k(a, b, rank, ks), options, rows if is_scattered else slice(None)


def on_rank_multiply(rank, operation, dtype, counts, method):
    """Compute an operation on integers, and compare it with the product of whole matrices."""
    size = dist.get_world_size()
    counts = scaled(counts, size)
    m, n, k = sum(counts), SCALE * N, SCALE * K
    a, b = integers(m, k, dtype=dtype), integers(k, n, dtype=dtype, seed=1)
    ks = [0] * (size - 2) + [k - SCALE, SCALE]
    own, options, kept = shards(operation, rank, a, b, counts, ks)
    result = getattr(dxd, operation)(*own, method=method, **options)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    expected = (a.cpu().to(wide) @ b.cpu().to(wide))[kept]
    assert result.dtype == dtype and result.device.type == DEVICE
    torch.testing.assert_close(result.cpu(), expected.to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_products_are_those_of_whole_matrices(ranks, operation, method):
    for dtype, counts in product(DTYPES, COUNTS):
        if method == "peer" and operation == REDUCE and len({*counts[: ranks.size]}) > 1:
            continue
        ranks.run(on_rank_multiply, operation, dtype, counts, method)


def on_rank_empty(rank, operation, m, n, k):
    a, b = integers(m, k, dtype=torch.float32), integers(k, n, dtype=torch.float32)
    function = getattr(dxd, operation)
    result = function(a, b).cpu()
    rows = m * dist.get_world_size() if operation == GATHER else m
    if operation == SCATTER:
        rows = -(-m // dist.get_world_size())
    assert result.shape == (rows, n) and not result.any()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_empty_products(pair, operation):
    for sizes in [(0, 4, 4), (4, 0, 4), (4, 4, 0)]:
        pair.run(on_rank_empty, operation, *sizes)


def on_rank_epilogue(rank, operation, method, name):
    """Compare a fused epilogue with one that is applied to the product of whole matrices."""
    size, dtype = dist.get_world_size(), torch.float32
    counts = scaled(COUNTS[1], size)
    m, n, k = sum(counts), SCALE * N, SCALE * K
    a, b = integers(m, k, dtype=dtype), integers(k, n, dtype=dtype, seed=1)
    row, column = integers(1, n, dtype=dtype)[0], integers(1, m, dtype=dtype)[0]
    matrix = integers(m, n, dtype=dtype, seed=2)
    ks = [0] * (size - 2) + [k - 2, 2]
    own, options, kept = shards(operation, rank, a, b, counts, ks)
    chain = {
        "vectors": lambda: epilogues.bias(row) | epilogues.bias_column(column[kept]),
        "matrix": lambda: epilogues.relu | epilogues.residual(matrix[kept]),
        "row itself": lambda: epilogues.dropout(0.5, 7),
    }[name]
    result = getattr(dxd, operation)(*own, epilogue=chain(), method=method, **options)
    sums = (a.double() @ b.double()).to(dtype)[kept]
    empty = sums.new_empty((len(sums), 0)), sums.new_empty((0, n))
    expected = dxgemm.gemm(*empty, sums, beta=1.0, epilogue=chain())
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["vectors", "matrix", "row itself"])
def test_epilogues_see_the_whole_sums(pair, operation, method, name):
    if method == "peer" and operation == REDUCE:
        pytest.skip("its rows are uneven here")
    if operation == GATHER and method in ("chunked", "peer") and name == "row itself":
        (error, *_) = [e for _, e in pair.outcomes(on_rank_epilogue, operation, method, name)]
        assert error[0] == "UnsupportedProblemError" and "depends on the row" in error[1]
        return
    pair.run(on_rank_epilogue, operation, method, name)


def on_rank_repeat(rank, operation, dtype, method):
    """Results of ten equal calls on random numbers, which must have the same bits."""
    generator = torch.Generator().manual_seed(rank)
    m, n, k = 8 * SCALE, SCALE * N, SCALE * K
    a = torch.randn(m, k, generator=generator).to(DEVICE, dtype)
    b = torch.randn(k, n, generator=generator).to(DEVICE, dtype)
    results = [getattr(dxd, operation)(a, b, method=method) for _ in range(10)]
    assert all(torch.equal(result, results[0]) for result in results)
    return results[0].cpu().double()


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_repeats_are_bit_equal(pair, operation, method, dtype):
    results = pair.run(on_rank_repeat, operation, dtype, method)
    if operation == REDUCE:
        assert torch.equal(*results)


def on_rank_overwrite(rank, operation, method):
    """Overwrite the operands right after each call, as a later kernel of the stream may."""
    m, n, k = 8 * SCALE, SCALE * N, SCALE * K
    results = []
    for seed in range(6):
        a = integers(m, k, dtype=torch.float32, seed=seed)
        b = integers(k, n, dtype=torch.float32, seed=seed)
        results.append(getattr(dxd, operation)(a, b, method=method))
        a.fill_(1e6)
        b.fill_(1e6)
    return [float(result.abs().max()) for result in results]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("method", METHODS)
def test_operands_may_be_overwritten_after_a_call(pair, operation, method):
    for largest in pair.run(on_rank_overwrite, operation, method):
        assert max(largest) <= 2 * 4 * SCALE * K


def on_rank_out(rank):
    a, b = integers(4, 6, dtype=torch.float64), integers(6, 5, dtype=torch.float64)
    size = dist.get_world_size()
    whole = torch.full((7, 4 * size), torch.nan, device=DEVICE, dtype=torch.float64).T
    out = whole[:, 1:6]  # column-major, and not whole
    assert dxd.all_gather_gemm(a, b, out=out) is out
    torch.testing.assert_close(out, (a @ b).repeat(size, 1))
    assert whole[:, 0].isnan().all() and whole[:, 6].isnan().all()
    out = whole[:2, 1:6]
    assert dxd.gemm_reduce_scatter(a, b, out=out) is out
    torch.testing.assert_close(out, size * (a @ b)[rank * 2 : rank * 2 + 2])
    out = whole[:4, 1:6]
    assert dxd.gemm_all_reduce(a, b, out=out) is out
    torch.testing.assert_close(out, size * (a @ b))


def on_rank_strided(rank):
    """Operands that are transposed, and lazy conjugates."""
    size = dist.get_world_size()
    a, b = integers(6, 4, dtype=torch.complex128).mH, integers(5, 6, dtype=torch.complex128).mT
    gathered = dxd.all_gather_gemm(a, b)
    torch.testing.assert_close(gathered, (a @ b).repeat(size, 1))
    torch.testing.assert_close(dxd.gemm_all_reduce(a, b), size * (a @ b))


@pytest.mark.parametrize("function", [on_rank_out, on_rank_strided])
def test_results_are_written_to_out_and_operands_may_have_any_strides(pair, function):
    pair.run(function)


on_gpus = pytest.mark.skipif(not GPUS, reason="needs GPUs")


def on_rank_large(rank, operation, method):
    """Sizes of several chunks, ten times, while the operands change in place."""
    m, n, k, size = 8192, 2048, 512, dist.get_world_size()
    m += 8 if operation != REDUCE else 0
    wholes = [[integers(*shape, dtype=FLOAT, seed=seed + shape[0]) for shape in ((m, k), (k, n))]
              for seed in range(3)]  # fmt: skip
    expected = [a @ b for a, b in wholes]
    ks = [k // 2 + 64] + [(k // 2 - 64) // (size - 1)] * (size - 1)
    counts = [m // 2 + 16] + [(m // 2 - 16) // (size - 1)] * (size - 1)
    if operation == REDUCE:
        counts = [m // size] * size
    split = [shards(operation, rank, *whole, counts, ks) for whole in wholes]
    parts, (_, options, kept) = [own for own, _, _ in split], split[0]
    a, b = (torch.empty_like(x).contiguous() for x in parts[0])
    results = []
    for call in range(10):
        for mine, part in zip((a, b), parts[call % 3]):
            mine.copy_(part)
        results.append(getattr(dxd, operation)(a, b, method=method, **options))
    for call, result in enumerate(results):
        assert torch.equal(result, expected[call % 3][kept]), f"call {call}"


@on_gpus
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("method", METHODS)
def test_large_products_in_several_chunks(pair, operation, method):
    pair.run(on_rank_large, operation, method)


def on_rank_late_stream(rank, operation, method):
    """Operands that a late stream of one rank has still to write."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        a, b = (torch.zeros(256, 256, device=DEVICE) for _ in range(2))
        getattr(dxd, operation)(a, b, method=method)
        if rank == 1:
            torch.cuda._sleep(400_000_000)
        a.fill_(1.0)
        b.fill_(1.0)
        result = getattr(dxd, operation)(a, b, method=method)
        a.zero_()
        b.zero_()
    stream.synchronize()
    factor = 1 if operation == GATHER else dist.get_world_size()
    assert (result == 256 * factor).all()


@on_gpus
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("method", METHODS)
def test_a_late_stream_is_waited_for(pair, operation, method):
    pair.run(on_rank_late_stream, operation, method)


def on_rank_capture(rank):
    a = torch.ones(256, 256, device=DEVICE)
    dxd.all_gather_gemm(a, a, method="peer")
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        dxd.all_gather_gemm(a, a, method="peer")


@on_gpus
def test_moves_between_peers_are_not_captured(mortal):
    for _, error in mortal.outcomes(on_rank_capture):
        assert error[0] == "LaunchError" and "CUDA graph" in error[1]


def on_rank_stall(rank):
    """The stream of one rank does not come to a call that its host has launched."""
    a = torch.ones(256, 256, device=DEVICE)
    dxd.all_gather_gemm(a, a, method="peer", timeout=3.0)
    torch.cuda.synchronize()
    if rank == 1:
        torch.cuda._sleep(60_000_000_000)
    dxd.all_gather_gemm(a, a, method="peer", timeout=3.0)
    if rank == 0:
        torch.cuda.synchronize()


@on_gpus
def test_a_gpu_does_not_wait_for_a_peer_forever(mortal):
    mortal.ask(on_rank_stall, on=range(2))
    left = mortal.processes[0]
    left.join(ranks_of_tests.LONGEST_S)
    assert left.exitcode == -signal.SIGABRT


# Moves between peers, without GPUs: ranks are threads, and each has one queue for all its streams.


class Symmetric:
    """Symmetric memory of ranks that are threads, and a driver that runs what is queued at once.

    So a wait holds up all that its rank would queue after it, on any stream.
    """

    CUstreamWaitValue_flags = SimpleNamespace(CU_STREAM_WAIT_VALUE_GEQ=SimpleNamespace(value=0))

    def __init__(self, size):
        self.size, self.own = size, threading.local()
        self._SymmetricMemory = SimpleNamespace(
            set_group_info=lambda *_: None, rendezvous=self.rendezvous
        )
        self.barrier = threading.Barrier(size)
        self.allocations = []

    def empty(self, count, dtype, device):
        return torch.full((count,), 0x7F, dtype=dtype)  # large numbers

    def rendezvous(self, tensor, name):
        if not self.own.rank:
            self.allocations.append({})
        self.barrier.wait(20)
        of_ranks = self.allocations[-1]
        of_ranks[self.own.rank] = tensor
        self.barrier.wait(20)

        def get_buffer(rank, shape, dtype, offset=0):
            first, end = (x * dtype.itemsize for x in (offset, offset + math.prod(shape)))
            assert end <= len(of_ranks[rank])
            return of_ranks[rank][first:end].view(dtype).view(*shape)

        return SimpleNamespace(get_buffer=get_buffer)

    def cuMemcpyDtoDAsync(self, target, source, count, stream):
        ctypes.memmove(target, source, count)
        return (0,)

    def cuStreamWriteValue32(self, stream, address, value, flags):
        ctypes.c_int32.from_address(address).value = value
        return (0,)

    def cuStreamWaitValue32(self, stream, address, value, flags):
        deadline = time.monotonic() + 20
        while ctypes.c_int32.from_address(address).value < value:
            assert time.monotonic() < deadline, "waits forever"
            time.sleep(1e-4)
        return (0,)


class Queue:
    """Stream that runs what is queued at once."""

    cuda_stream = 0

    def __init__(self, *_, **__):
        pass

    def wait_stream(self, _):
        pass

    wait_event = wait_stream


class Event:
    """Event of a `Queue`."""

    def record(self, stream):
        pass

    def query(self):
        return True


class ThreadGroup(agreement.Group):
    """Group of ranks that are threads."""

    def __init__(self, rank, size, cells):
        self.rank, self.size, self.agreed, self.memory = rank, size, {}, None
        self.shared_prefix, self.process_group = "peers", None
        self.meeting = meeting.Meeting(rank, size, cells)

    def backend(self, device):
        return "gloo"


@pytest.fixture
def symmetric(monkeypatch):
    """Runs a function on ranks that are threads, whose peers are a `Symmetric` in place of GPUs."""

    def run(size, chunks, function):
        made, gemms, gemm, queue = Symmetric(size), threading.Lock(), dxgemm.gemm, Queue()

        def one_at_a_time(*arguments, **named):
            time.sleep(0.01 * made.own.rank)  # the others are in the next call meanwhile
            with gemms:
                return gemm(*arguments, **named)

        def decide(_):
            return SimpleNamespace(method=PEER, chunks=chunks)

        groups = [
            ThreadGroup(*of) for of in zip(range(size), [size] * size, meeting.local_cells(size))
        ]
        monkeypatch.setattr(dxgemm, "gemm", one_at_a_time)
        monkeypatch.setattr(peers, "symmetric_memory", made)
        for name in ("_register_process_group", "_unregister_process_group"):
            monkeypatch.setattr(peers.c10d, name, lambda *_: None)
        monkeypatch.setattr(peers, "driver_api", lambda: made)
        monkeypatch.setattr(peers.dist, "FileStore", lambda *_: SimpleNamespace(set_timeout=id))
        monkeypatch.setattr(torch.cuda, "Stream", Queue)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: queue)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(calls, "choose", lambda problem, method: decide(problem))
        monkeypatch.setattr(products, "find_group", lambda *_: groups[made.own.rank])

        def run_one(rank):
            made.own.rank = rank
            return function(rank, groups[rank])

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(run_one, range(size)))

    return run


@pytest.mark.skipif(bool(GPUS), reason="GPUs are tested themselves")
@pytest.mark.parametrize("chunks", [1, 2, 4])
@pytest.mark.parametrize("counts", [(4, 4), (3, 5, 2), (0, 6, 1, 3)], ids=str)
def test_peers_compute_the_whole_product(symmetric, chunks, counts):
    size, m, n, k = len(counts), sum(counts), 5, 8
    a, b = integers(m, k, dtype=FLOAT), integers(k, n, dtype=FLOAT, seed=1)
    vector = integers(1, m, dtype=FLOAT, seed=2)[0]
    expected = a @ b + vector[:, None]
    ks = [1] * (size - 1) + [k - size + 1]

    def run(rank, group):
        rows = slice(*shards_of(counts)[rank])
        for operation in (GATHER, SCATTER, SCATTER, GATHER, GATHER):
            if operation == GATHER:
                call = calls.Call(GATHER, a[rows], b, chain=epilogues.bias_column(vector))
                result, gathered, _ = products.compute(None, call, keeps_gathered=True)
                assert torch.equal(result, expected) and torch.equal(gathered, a)
            else:
                chain = epilogues.bias_column(vector[rows])
                call = calls.Call(SCATTER, *split_k(a, b, rank, ks), counts, chain=chain)
                assert torch.equal(products.compute(None, call).out, expected[rows])
        return group.memory._calls

    assert symmetric(size, chunks, run) == [5] * size


@pytest.mark.skipif(bool(GPUS), reason="GPUs are tested themselves")
@pytest.mark.parametrize("count", range(1, 6))
@pytest.mark.parametrize(
    "operation, owner, name",
    [
        (GATHER, peers.symmetric_memory, "empty"),
        (GATHER, peers.PeerMemory, "begin"),
        (GATHER, peers.PeerMemory, "send"),
        (GATHER, peers.PeerMemory, "arrive"),
        (GATHER, peers.GatherPeers, "rows_of"),
        (GATHER, dxgemm, "gemm"),
        (GATHER, peers.PeerMemory, "finish"),
        (SCATTER, peers.ScatterPeers, "part"),
        (SCATTER, peers.PeerMemory, "send"),
        (SCATTER, peers.ScatterPeers, "received"),
        (SCATTER, dxgemm, "gemm"),
        (SCATTER, products, "apply"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_peer_call_that_fails_may_be_repeated(
    symmetric, monkeypatch, operation, owner, name, count
):
    """The nth time that rank 1 comes to a step, the call fails there; then it is repeated."""
    a, b = integers(8, 6, dtype=FLOAT), integers(6, 5, dtype=FLOAT, seed=1)
    failures = []

    def run(rank, group):
        if rank == 1:
            found = peers.symmetric_memory if name == "empty" else owner
            right, seen = getattr(found, name), []

            def fails(*arguments, **named):
                if threading.current_thread() is own:
                    seen.append(name)
                    if len(seen) == count:
                        failures.append(name)
                        raise KeyboardInterrupt
                return right(*arguments, **named)

            own = threading.current_thread()
            monkeypatch.setattr(found, name, fails)
        rows = slice(4 * rank, 4 * rank + 4)
        for factor in (1, 2, 3):

            def call(factor=factor):
                if operation == GATHER:
                    return products.compute(None, calls.Call(GATHER, factor * a[rows], b)).out
                shards = split_k(factor * a, b, rank, [2, 4])
                return products.compute(None, calls.Call(SCATTER, *shards)).out

            try:
                result = call()
            except KeyboardInterrupt:
                result = call()
            whole = factor * a @ b
            assert torch.equal(result, whole if operation == GATHER else whole[rows])
        return group.memory._calls

    assert symmetric(2, 2, run) == [3, 3]
    assert failures or name in ("empty", "begin", "finish", "apply", "gemm")


@pytest.mark.parametrize("is_over", [True, False])
def test_a_wait_is_ended_after_its_time(monkeypatch, is_over):
    monkeypatch.setattr(peers.Watch, "INTERVAL_S", 0.01)
    ended = []
    watch = peers.Watch(ended.append)
    watch.expect(SimpleNamespace(query=lambda: True), 0.1)
    watch.expect(SimpleNamespace(query=lambda: is_over), 0.2)
    time.sleep(0.1)
    assert not ended
    watch.join(0.5)
    assert ended == ([] if is_over else [0.2])


def test_a_rank_that_waits_for_others_in_vain_ends(monkeypatch, caplog):
    aborted = []
    monkeypatch.setattr(peers.os, "abort", lambda: aborted.append(True))
    peers.end_process(1, 4, 3.0)
    assert aborted and "rank 1 of 4: other ranks did not come within 3 s" in caplog.text


def on_rank_in_subgroup(rank, members):
    group = dist.new_group(members)
    try:
        own = members.index(rank) if rank in members else 0
        a, b = integers(4, 6, dtype=DOUBLE, seed=own), integers(6, 5, dtype=DOUBLE)
        others = [integers(4, 6, dtype=DOUBLE, seed=seed) for seed in range(len(members))]
        gathered = dxd.all_gather_gemm(a, b, group=group)
        assert torch.equal(gathered, torch.cat(others) @ b)
        result = dxd.gemm_reduce_scatter(a, b, group=group)
        assert torch.equal(result, (sum(others) @ b)[2 * own : 2 * own + 2])
    finally:
        if rank in members:
            dist.destroy_process_group(group)


def test_some_of_the_ranks_may_be_a_group(ranks):
    members = [ranks.size - 1, 0]
    outcomes = ranks.outcomes(on_rank_in_subgroup, sorted(members))
    for rank, (_, error) in enumerate(outcomes):
        if rank in members:
            assert error is None, error
        else:
            assert error[0] == "RankError" and "not in the group" in error[1]


# Gradients


def on_rank_gradients(rank, operation, counts, method, needs):
    """Compare the gradients of shards with those of whole matrices."""
    size = dist.get_world_size()
    counts = scaled(counts, size)
    m, n, k = sum(counts), 4, 6
    first, end = shards_of(counts)[rank]
    dtype = torch.float64
    a, b = integers(m, k, dtype=dtype), integers(k, n, dtype=dtype, seed=1)
    weights = integers(m, n, dtype=dtype, seed=2)
    whole_a, whole_b = (x.clone().requires_grad_() for x in (a, b))
    (whole_a @ whole_b * weights).sum().backward()
    if operation == GATHER:  # columns of b are shared out
        columns = shards_of([n - 1, 1] + [0] * (size - 2))[rank]
        parts = [(slice(first, end), slice(None)), (slice(None), slice(*columns))]
        kept = (slice(None), slice(*columns))
    else:
        shares = shards_of([k - 1, 1] + [0] * (size - 2))[rank]
        parts = [(slice(None), slice(*shares)), (slice(*shares), slice(None))]
        kept = (slice(first, end), slice(None))
    shards = [x[part].clone() for x, part in zip((a, b), parts)]
    for shard, needed in zip(shards, needs):
        shard.requires_grad_(needed)
    options = {"method": method} | ({"rows": counts} if operation == SCATTER else {})
    result = getattr(dxd, operation)(*shards, **options)
    (result * weights[kept]).sum().backward()
    for shard, whole, part, needed in zip(shards, (whole_a, whole_b), parts, needs):
        assert (shard.grad is not None) == needed
        if needed:
            torch.testing.assert_close(shard.grad, whole.grad[part])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("operation", [GATHER, SCATTER])
def test_gradients_are_those_of_whole_matrices(pair, operation, needs, method):
    for counts in COUNTS:
        pair.run(on_rank_gradients, operation, counts, method, needs)


def on_rank_gradient_of_a_sum(rank):
    a, b = torch.ones(2, 2, device=DEVICE, requires_grad=True), torch.ones(2, 2, device=DEVICE)
    dxd.gemm_all_reduce(a, b)


# DTensors


def on_rank_dtensor(rank, m):
    mesh = dist.init_device_mesh(DEVICE, (dist.get_world_size(),))
    k, n = 6, 5
    a, b = integers(m, k, dtype=torch.float64), integers(k, n, dtype=torch.float64, seed=1)
    weights = integers(m, n, dtype=torch.float64, seed=2)
    table = [
        (Shard(0), Shard(1), None, Shard(1)),
        (Shard(1), Shard(0), None, Shard(0)),
        (Shard(1), Shard(0), Replicate(), Replicate()),
        (Shard(0), Replicate(), None, Shard(0)),
        (Replicate(), Shard(1), None, Shard(1)),
        (Replicate(), Replicate(), None, Replicate()),
    ]
    for placed_a, placed_b, asked, expected in table:
        x, y = distribute_tensor(a, mesh, [placed_a]), distribute_tensor(b, mesh, [placed_b])
        result = dxd.gemm(x, y, placement=asked)
        assert isinstance(result, tensors.DTensor) and result.placements == (expected,)
        torch.testing.assert_close(result.full_tensor(), a @ b)
    x = distribute_tensor(a, mesh, [Shard(0)]).requires_grad_()
    y = distribute_tensor(b, mesh, [Shard(1)]).requires_grad_()
    (dxd.gemm(x, y) * distribute_tensor(weights, mesh, [Shard(1)])).sum().backward()
    torch.testing.assert_close(x.grad.full_tensor(), weights @ b.T)
    torch.testing.assert_close(y.grad.full_tensor(), a.T @ weights)


def test_products_of_dtensors(ranks):
    for m in (6, 7, 1):
        ranks.run(on_rank_dtensor, m)


def on_rank_wrong_dtensor(rank):
    mesh = dist.init_device_mesh(DEVICE, (dist.get_world_size(),))
    x = distribute_tensor(torch.ones(4, 4, device=DEVICE), mesh, [Shard(0)])
    dxd.gemm(x, x)


def test_the_example_agrees_with_one_gpu():
    program = Path(__file__).resolve().parent.parent / "examples" / "tensor_parallel.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    finished = subprocess.run(
        [*launcher, "--nproc-per-node", "2", str(program)], capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    for name in ("Y", "gradient of w2", "trailing matrix"):
        assert f"  {name} " in finished.stdout


# Faults


def on_rank_call(rank, operation, arguments, options=None):
    """Call with operands of shapes and dtypes of its own."""
    a, b = (torch.ones(shape, dtype=dtype, device=DEVICE) for shape, dtype in arguments[rank])
    own = {name: of_ranks[rank] for name, of_ranks in (options or {}).items()}
    getattr(dxd, operation)(a, b, **own)


FITTING = [((2, 4), (4, 3))] * 2
# Operation, shapes and options of two ranks, and their error.
MISMATCHES = {
    "inner dimensions of the ranks": (
        GATHER, [((2, 4), (4, 3)), ((2, 5), (5, 3))], {}, "ShapeError", "k is 4 on rank 0, 5 on",
    ),
    "inner dimensions of one rank": (
        GATHER, [((2, 4), (4, 3)), ((2, 4), (5, 3))], {}, "ShapeError", "rank 1: all_gather_gemm",
    ),
    "columns of sums": (
        SCATTER, [((2, 4), (4, 3)), ((2, 4), (4, 2))], {}, "ShapeError", "n is 3 on rank 0, 2 on",
    ),
    "rows of sums": (
        REDUCE, [((2, 4), (4, 3)), ((3, 4), (4, 3))], {}, "ShapeError", "m is 2 on rank 0, 3 on",
    ),
    "dimensions": (GATHER, [((2, 4), (4, 3)), ((4,), (4, 3))], {}, "ShapeError", "rank 1"),
    "methods": (
        GATHER, FITTING, {"method": ["plain", "chunked"]}, "UnsupportedProblemError", "method",
    ),
    "an unknown method": (
        GATHER, FITTING, {"method": ["fast"] * 2}, "UnsupportedProblemError", "'fast'",
    ),
    "row counts": (GATHER, FITTING, {"rows": [(2, 2), (2, 3)]}, "ShapeError", "rows is"),
    "row counts of other shards": (
        GATHER, FITTING, {"rows": [(2, 3)] * 2}, "ShapeError", "the ranks have [2, 2]",
    ),
    "too few row counts": (
        GATHER, FITTING, {"rows": [(4,)] * 2}, "ShapeError", "for each of 2 ranks",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MISMATCHES)
def test_shards_and_options_that_do_not_fit_are_the_same_error_on_all_ranks(pair, case):
    operation, shapes, options, error, text = MISMATCHES[case]
    arguments = [[(shape, FLOAT) for shape in of_rank] for of_rank in shapes]
    assert_same_error(pair.outcomes(on_rank_call, operation, arguments, options), error, text)


def assert_same_error(outcomes, error, text):
    found = [raised for _, raised in outcomes]
    assert None not in found and len({*found}) == 1, found
    assert found[0][0] == error and text in found[0][1], found[0]


def test_mixed_dtypes_are_the_same_error_on_all_ranks(pair):
    same = [[((2, 4), dtype), ((4, 3), dtype)] for dtype in (FLOAT, DOUBLE)]
    assert_same_error(pair.outcomes(on_rank_call, GATHER, same), "DtypeError", "float64 on rank 1")
    mixed = [[((2, 4), FLOAT), ((4, 3), FLOAT)], [((2, 4), FLOAT), ((4, 3), DOUBLE)]]
    assert_same_error(pair.outcomes(on_rank_call, GATHER, mixed), "DtypeError", "rank 1: all_g")


def on_rank_other_function(rank):
    a = torch.ones(4, 4, device=DEVICE)
    [dxd.all_gather_gemm, dxd.gemm_all_reduce][rank](a, a)


def test_different_functions_are_an_error_that_names_them_on_all_ranks(pair):
    texts = "all_gather_gemm: operation is", "gemm_all_reduce: operation is"
    for (_, (error, found)), text in zip(pair.outcomes(on_rank_other_function), texts):
        assert error == "UnsupportedProblemError" and found.startswith(text)
        assert "gemm_all_reduce on rank 1" in found


def on_rank_wrong_array(rank, case):
    a, b = torch.ones(2, 4, device=DEVICE), torch.ones(4, 3, device=DEVICE)
    options = {
        "out": {"out": torch.full((4 - rank, 3), 7.0, device=DEVICE)},
        "dtype of out": {"out": torch.full((4, 3), 7.0, device=DEVICE, dtype=torch.float64)},
        "bias": {"epilogue": epilogues.bias(torch.ones(3 + rank, device=DEVICE))},
        "residual": {"epilogue": epilogues.residual(torch.ones(2, 3, device=DEVICE))},
        "pairs": {"epilogue": epilogues.swiglu},
        "overlap": {"out": torch.empty(4, 4, device=DEVICE)[:, :3]},
        "overlap of a matrix": {"out": (c := torch.ones(4, 3, device=DEVICE))},
        "gradient of a bias": {
            "epilogue": epilogues.bias(torch.ones(3, device=DEVICE, requires_grad=True))
        },
        "array": {"epilogue": epilogues.bias([1.0, 2.0, 3.0])},
    }[case]
    if case == "overlap":
        a = options["out"][:2, :3]
        b = b[:3]
    if case == "overlap of a matrix":
        options["epilogue"] = epilogues.residual(c)
    try:
        dxd.all_gather_gemm(a, b, **options)
    finally:
        assert case != "out" or (options["out"] == 7.0).all()


@pytest.mark.parametrize(
    "case, error, text",
    [
        ("out", "ShapeError", "out of rank 1 is (3, 3)"),
        ("dtype of out", "DtypeError", "out is torch.float64"),
        ("bias", "ShapeError", "of rank 1 is (4,)"),
        ("residual", "ShapeError", "of rank 0 is (2, 3)"),
        ("pairs", "UnsupportedProblemError", "pairs of columns"),
        ("overlap", "OverlapError", "out shares memory"),
        ("overlap of a matrix", "OverlapError", "out shares memory"),
        ("gradient of a bias", "UnsupportedProblemError", "no gradients"),
        ("array", "ArrayTypeError", "is a list"),
    ],
)
def test_wrong_arrays_are_the_same_error_on_all_ranks(pair, case, error, text):
    assert_same_error(pair.outcomes(on_rank_wrong_array, case), error, text)


def on_rank_tangent(rank):
    """Call with an operand of the epilogue that has a tangent of forward-mode differentiation."""
    forward_ad, a = torch.autograd.forward_ad, torch.ones(4, 4, device=DEVICE)
    with forward_ad.dual_level():
        dxd.all_gather_gemm(a, a, epilogue=epilogues.bias(forward_ad.make_dual(a[0], a[1])))


def on_rank_elsewhere(rank):
    """Operands on a device for which the group has no backend."""
    device = "cpu" if DEVICE == "cuda" else "meta"
    a = torch.ones(4, 4, device=device)
    dxd.all_gather_gemm(a, a)


@pytest.mark.parametrize(
    "function, error, text",
    [
        (on_rank_gradient_of_a_sum, "UnsupportedProblemError", "gemm_all_reduce"),
        (on_rank_wrong_dtensor, "UnsupportedProblemError", "redistribute"),
        (on_rank_tangent, "UnsupportedProblemError", "has a tangent"),
        (on_rank_elsewhere, "DeviceMismatchError", "has the backend"),
    ],
)
def test_what_no_rank_computes_is_the_same_error_on_all_ranks(pair, function, error, text):
    assert_same_error(pair.outcomes(function), error, text)


def on_rank_without_memory(rank, operation, kind):
    """Call with a shard on rank 1 whose memory is not its value."""
    a, b = torch.ones(4, 4, device=DEVICE), torch.ones(4, 4, device=DEVICE)
    if rank == 1 and kind == "freed":
        a.untyped_storage().resize_(0)
    elif rank == 1:
        a = torch._neg_view(a)
    getattr(dxd, operation)(a, b)


@pytest.mark.parametrize("operation", [GATHER, SCATTER, REDUCE])
@pytest.mark.parametrize(("kind", "text"), [("freed", "was freed"), ("negation", "is_neg()")])
def test_a_shard_without_memory_is_the_same_error_on_all_ranks(pair, operation, kind, text):
    outcomes = pair.outcomes(on_rank_without_memory, operation, kind)
    assert_same_error(outcomes, "ArrayTypeError", text)


def on_rank_count(rank):
    """Number of agreements that equal calls need."""
    agree, agreements = meeting.Meeting.agree, []

    def counted(*arguments):
        agreements.append(arguments)
        return agree(*arguments)

    meeting.Meeting.agree = counted
    try:
        a, b = torch.ones(3, 4, device=DEVICE), torch.ones(4, 7, device=DEVICE)
        for _ in range(5):
            dxd.all_gather_gemm(a, b)
    finally:
        meeting.Meeting.agree = agree
    return len(agreements)


def test_equal_calls_are_agreed_on_once(pair):
    assert pair.run(on_rank_count) == [1, 1]


def on_rank_late(rank, m):
    if rank == 1:
        time.sleep(2.0)
    a, b = integers(m, 4, dtype=FLOAT), integers(4, 3, dtype=FLOAT)
    for _ in range(3):
        result = dxd.all_gather_gemm(a, b)
        if rank == 1:
            time.sleep(0.5)
    torch.testing.assert_close(result, (a @ b).repeat(dist.get_world_size(), 1))


def test_a_late_rank_is_waited_for(pair):
    pair.run(on_rank_late, 11)


def on_rank_wait(rank, timeout):
    a = torch.ones(4, 4, device=DEVICE)
    started = time.monotonic()
    try:
        dxd.gemm_all_reduce(a, a, timeout=timeout)
    finally:
        assert time.monotonic() - started < timeout + 5.0


def test_a_rank_that_never_calls_is_named_in_time(mortal):
    ((_, error),) = mortal.outcomes(on_rank_wait, 2.0, on=[0])
    assert error[0] == "RankError" and "rank 1 of 2 did not call" in error[1], error


def test_a_rank_that_has_ended_is_named_in_time(mortal):
    mortal.run(on_rank_late, 4)
    mortal.processes[0].kill()
    mortal.processes[0].join()
    mortal._pipes[1].send((on_rank_wait, (2.0,)))
    assert mortal._pipes[1].poll(60)
    _, error = mortal._pipes[1].recv()
    assert error[0] == "RankError" and "rank 0 of 2 did not call" in error[1], error


def test_a_rank_that_has_ended_between_equal_calls_is_an_error(mortal):
    mortal.run(on_rank_count)
    mortal.processes[1].kill()
    mortal.processes[1].join()
    ((_, error),) = mortal.outcomes(on_rank_count, on=[0])
    assert error[0] == "RankError" and "has ended" in error[1], error


# Where a call fails, and how often it comes there.
STEPS = {
    "gemm": (dxgemm, "gemm"),
    "apply": (products, "apply"),
    "new_empty": (torch.Tensor, "new_empty"),
    "commit": (meeting.Meeting, "commit"),
    "padded": (collectives, "padded"),
    "rounds": (collectives.Rounds, "arrive"),
    "begin": (peers.PeerMemory, "begin"),
    "send": (peers.PeerMemory, "send"),
    "arrive": (peers.PeerMemory, "arrive"),
    "finish": (peers.PeerMemory, "finish"),
    "rows_of": (peers.GatherPeers, "rows_of"),
    "part": (peers.ScatterPeers, "part"),
    "received": (peers.ScatterPeers, "received"),
}
# Operands that a call left in memory do not stand in for those that a failed copy should bring.
FACTORS = (1, 2, 3, 5)


def on_rank_failure(rank, operation, method, step, count, repeats):
    """Outcomes of four calls, the second of which fails on rank 1 where it comes to a step.

    Rank 1 then repeats it, or goes on.
    """
    owner, name = STEPS[step]
    right, seen = getattr(owner, name), []

    def fails(*arguments, **named):
        seen.append(name)
        if len(seen) == count:
            raise MemoryError("injected")
        return right(*arguments, **named)

    m, n, k = 8 * SCALE, SCALE * N, SCALE * K
    a, b = integers(m, k, dtype=FLOAT), integers(k, n, dtype=FLOAT, seed=1)
    size, kept = dist.get_world_size(), slice(4 * SCALE * rank, 4 * SCALE * (rank + 1))
    group, found = dist.new_group(), []
    torch.cuda.synchronize() if DEVICE == "cuda" else None
    for factor in FACTORS:
        for attempt in range(2):
            if (rank, factor, attempt) == (1, 2, 0):
                setattr(owner, name, fails)
            x = factor * a[kept] if operation == GATHER else factor * a
            options = {"method": method, "group": group, "timeout": 5.0}
            try:
                result = getattr(dxd, operation)(x, b, **options)
                whole = factor * (a @ b) * (1 if operation == GATHER else size)
                expected = whole[kept] if operation == SCATTER else whole
                found.append("right" if torch.equal(result, expected) else "wrong")
                break
            except (MemoryError, dxgemm.errors.RankError) as error:
                found.append(type(error).__name__)
                if isinstance(error, dxgemm.errors.RankError) or not repeats:
                    break
            finally:
                setattr(owner, name, right)
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    dist.destroy_process_group(group)
    return found


def assert_right_or_refused(outcomes, repeats):
    """Assert that the ranks tell the same about each call, and that no result is wrong."""
    first, second = outcomes
    if "MemoryError" in second and repeats:
        second = [*second]
        second.remove("MemoryError")
    assert len(first) == len(second) == len(FACTORS) and first[0] == second[0] == "right"
    assert {*first, *second} <= {"right", "RankError", "MemoryError"}
    assert [x == "right" for x in first] == [x == "right" for x in second]
    assert first[-1] == second[-1] == ("right" if first[1] == "right" else "RankError")


@pytest.mark.parametrize("repeats", [True, False], ids=["repeated", "left out"])
@pytest.mark.parametrize("method", METHODS[:-1])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_call_that_fails_on_one_rank_is_right_or_refused_on_all(pair, operation, method, repeats):
    of_peers = {"begin", "send", "arrive", "finish", "rows_of", "part", "received"}
    failed = 0
    for step in STEPS:
        if method != "peer" and step in of_peers:
            continue
        for count in (1, 2) if step in ("gemm", "new_empty", "send") else (1,):
            outcomes = pair.run(on_rank_failure, operation, method, step, count, repeats)
            assert_right_or_refused(outcomes, repeats)
            failed += "MemoryError" in outcomes[1]
            if method == "peer" and operation != REDUCE and repeats:
                assert outcomes[0] == ["right"] * len(FACTORS), (step, count)
    assert failed >= 3


def on_rank_changing(rank, operation):
    """Repeat calls that the ranks agreed on, in pairs that they did not agree on."""
    b = integers(4, 3, dtype=FLOAT)
    found = []
    for rows in [(4, 4), (4, 5), (4, 4), (6, 4), (6, 5), (4, 5)]:
        a = [integers(count, 4, dtype=FLOAT, seed=count) for count in rows]
        try:
            result = getattr(dxd, operation)(a[rank], b)
            expected = torch.cat(a) @ b if operation == GATHER else sum(a) @ b
            assert torch.equal(result, expected)
            found.append("right")
        except dxgemm.errors.ShapeError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("operation", [GATHER, REDUCE])
def test_ranks_that_repeat_other_calls_than_each_other_are_told(pair, operation):
    first, second = pair.run(on_rank_changing, operation)
    assert first == second
    if operation == GATHER:
        assert first == ["right"] * 6
    else:
        assert [found == "right" for found in first] == [True, False, True, False, False, False]
        assert "m is 4 on rank 0, 5 on rank 1" in first[1]


WRONG_TYPES = {
    "b": ({"b": 1}, "ArrayTypeError"),
    "rows": ({"rows": [2.5, 1]}, "ShapeError"),
    "method": ({"method": ["plain"]}, "UnsupportedProblemError"),
    "timeout": ({"timeout": "long"}, "SettingError"),
    "epilogue": ({"epilogue": 5}, "EpilogueError"),
}


def on_rank_wrong_option(rank, options):
    """Wrong arguments of one rank, then a right call of both."""
    a = torch.ones(4, 4, device=DEVICE)
    given = {"b": a} | (options if rank == 1 else {})
    try:
        dxd.all_gather_gemm(a, **given)
    except dxgemm.errors.DxgemmError as error:
        found = type(error).__name__, str(error)
    assert (dxd.all_gather_gemm(a, a) == 4).all()
    return found


@pytest.mark.parametrize("case", WRONG_TYPES)
def test_arguments_of_wrong_types_on_one_rank_are_an_error_on_all(pair, case):
    options, error = WRONG_TYPES[case]
    first, second = pair.run(on_rank_wrong_option, options)
    assert first == second and first[0] == error and "rank 1: " in first[1]


def held():
    """List the open files, threads and files in memory that groups hold."""
    files = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return (
        [path for path in files if "dxgemm-" in path]
        + [thread.name for thread in threading.enumerate() if "dxgemm" in thread.name]
        + [*Path(meeting.shared_folder()).glob("dxgemm-*")]
    )


def on_rank_groups(rank):
    """Make and destroy groups, which the program keeps."""
    a = integers(4 * SCALE, 4, dtype=FLOAT)
    kept = []
    for _ in range(4):
        group = dist.new_group()
        kept.append(group)
        for method in METHODS:
            dxd.all_gather_gemm(a, a.mT, group=group, method=method)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        found = agreement.find_group("test", group)
        parts = [weakref.ref(found), *map(weakref.ref, filter(None, [found.memory]))]
        assert held() and len(agreement._groups) == 1
        del found
        dist.destroy_process_group(group)
        time.sleep(2 * peers.Watch.INTERVAL_S)
        assert not held() and not agreement._groups and not any(part() for part in parts)
    with pytest.raises(dxgemm.errors.RankError, match="destroyed"):
        dxd.all_gather_gemm(a, a.mT, group=kept[0])


def test_what_a_group_holds_ends_with_it(mortal):
    mortal.run(on_rank_groups)


def on_rank_of_a_destroyed_mesh(rank):
    mesh = dist.init_device_mesh(DEVICE, (dist.get_world_size(),))
    x = distribute_tensor(torch.ones(4, 4, device=DEVICE), mesh, [Shard(0)])
    dist.destroy_process_group()
    dxd.gemm(x, x)


def test_tensors_of_a_destroyed_mesh_are_refused(mortal):
    for _, (error, text) in mortal.outcomes(on_rank_of_a_destroyed_mesh):
        assert error == "RankError" and text.startswith("dxgemm.distributed.gemm: ")


def on_rank_again(rank, port):
    """Destroy the default group and make it anew: its name is the same."""
    for count in range(3):
        dist.destroy_process_group()
        store = dist.PrefixStore(str(count), dist.TCPStore("127.0.0.1", port, None, False))
        backend = "nccl" if DEVICE == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=2)
        for method in METHODS:
            a = integers(4 + count * rank, 4, dtype=FLOAT)
            result = dxd.all_gather_gemm(a, a[:4], method=method)
            assert len(result) == 8 + count
    return len(agreement._groups)


def test_a_group_of_the_same_name_finds_nothing_of_the_one_before(mortal):
    assert mortal.run(on_rank_again, mortal._store.port) == [1, 1]


def place(machine="one", gpu="A", index=0, reaches="AB", is_shared=True):
    return {
        "machine": machine, "gpu": gpu, "index": index, "reaches": [*reaches],
        "is_shared": is_shared,
    }  # fmt: skip


PLACES = {
    "two GPUs": ([place(), place(gpu="B", index=1)], "NVLink"),
    "hosts of one name": ([place(), place("other boot", "B", 1)], "network"),
    "one GPU": ([place(), place(index=1)], "network"),
    "GPUs of one index": ([place(reaches=""), place(gpu="B", reaches="")], "network"),
    "no way between GPUs": ([place(), place(gpu="B", index=1, reaches="")], "network"),
    "containers": ([place(is_shared=False), place(gpu="B", index=1, is_shared=False)], "network"),
    "CPUs": ([{"machine": "one", "is_shared": True}] * 2, "network"),
}


@pytest.mark.parametrize("case", PLACES)
def test_only_gpus_of_one_machine_that_reach_each_other_are_peers(case):
    places, link = PLACES[case]
    assert calls._link_between(places).name == link


def test_machines_of_one_name_differ_by_their_boot(monkeypatch):
    name = agreement.machine_name()
    monkeypatch.setattr(agreement.Path, "read_text", lambda _: "another boot\n")
    assert agreement.machine_name() != name


def on_rank_place(rank):
    group = agreement.find_group("test", None)
    group.introduce("test", 20.0)
    return calls._place(group, torch.device(DEVICE, torch.cuda.current_device()))


@on_gpus
def test_gpus_are_told_apart_by_their_uuid():
    with closing(Ranks(2, sees_one=True)) as started:
        first, second = started.run(on_rank_place)
        assert first["index"] == second["index"] and first["gpu"] != second["gpu"]
        for operation in OPERATIONS:
            started.run(on_rank_multiply, operation, FLOAT, COUNTS[0], None)
        for _, error in started.outcomes(on_rank_multiply, GATHER, FLOAT, COUNTS[0], "peer"):
            assert error[0] == "UnsupportedProblemError"


def test_there_must_be_a_group():
    a = torch.ones(2, 2, device=DEVICE)
    with pytest.raises(dxgemm.errors.RankError, match="init_process_group"):
        dxd.all_gather_gemm(a, a)
