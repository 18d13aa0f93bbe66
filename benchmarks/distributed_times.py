"""Time sharded products on the GPUs of one host, against NCCL with cuBLAS and torch's async-TP.

    torchrun --nproc-per-node 2 benchmarks/distributed_times.py               # files the suite
    torchrun --nproc-per-node 2 benchmarks/distributed_times.py --methods     # each method, no file

The sizes of a case are those of the whole product. In an all-gather, columns of B are shared out
among the ranks as rows of A are; in a reduce-scatter, k is. A row has these times, each the longest
of all ranks: `us`, the automatic choice; `gemm_us`, one rank's arithmetic alone, the quicker one of
dxgemm and cuBLAS; `comm_us`, NCCL's collective alone; `nccl_us`, that collective and cuBLAS;
`async_tp_us`, torch's overlapped product. `vs_rival` is the shorter of the last two over `us`. They
are times of the GPUs, whose streams are held until all calls are enqueued. Times of a host for a
call before it returns are `host_us`, `nccl_host_us` and `async_tp_host_us`. Times of one call on an
idle stream, until the GPU is done, are `idle_us`, `nccl_idle_us` and `async_tp_idle_us`.

Every result is checked before it is timed: by integers, whose sums are exact but for the rounding
of partial sums to half precision.
"""

import datetime
import os
import statistics
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import pytest_benchmark
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory
from provenance import commit_info, machine_info
from pytest_benchmark.plugin import pytest_benchmark_generate_machine_info
from result_files import result_text, save

import dxgemm
from dxgemm import distributed as dxd
from dxgemm.distributed.schedule import GATHER, METHODS, REDUCE, SCATTER, even_rows, shards_of
from dxgemm.errors import DxgemmError, WrongResultError
from dxgemm.tuning.sampling import interleave

SAMPLE_S, ROUNDS, HOST_CALLS, IDLE_ROUNDS = 4e-3, 11, 20, 31
SETS = 2  # of operands, which calls take in turn
SIZES = {
    "bfloat16": [(8192, 8192, 8192), (4096, 4096, 4096), (2048, 8192, 8192), (16, 8192, 8192)],
    "float64": [(4096, 4096, 4096), (16384, 4096, 1024)],
    "float32": [(4096, 4096, 4096), (16, 8192, 8192)],
    "float16": [(8192, 8192, 8192), (8190, 4096, 4096)],
}
UNCHECKED, NEEDED = ("dxgemm", "cublas", "comm_us"), ("us", "nccl_us")
# Names of the fields of the time of a host, and of one call on an idle stream.
HOST = {"us": "host_us", "nccl_us": "nccl_host_us", "async_tp_us": "async_tp_host_us"}
IDLE = {"us": "idle_us", "nccl_us": "nccl_idle_us", "async_tp_us": "async_tp_idle_us"}


class Case(NamedTuple):
    operation: str
    dtype: str
    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.operation}-{self.dtype}-{self.m}x{self.n}x{self.k}"


class Shards(NamedTuple):
    """One rank's operands, and what they are shards of."""

    a: torch.Tensor
    b: torch.Tensor
    whole_a: torch.Tensor
    whole_b: torch.Tensor


Compute = Callable[[Shards], Any]
Variants = dict[str, Compute]
CASES = [
    Case(operation, dtype, *size)
    for dtype, sizes in SIZES.items()
    for size in sizes
    for operation in (GATHER, SCATTER)
]


def own_part(total: int) -> slice:
    """This rank's share of rows, columns or k."""
    return slice(*shards_of(even_rows(total, dist.get_world_size()))[dist.get_rank()])


def make_shards(case: Case, is_exact: bool, seed: int) -> Shards:
    """Make whole matrices, the same on all ranks, and cut this rank's operands out of them."""
    generator = torch.Generator("cuda").manual_seed(seed)
    options = {"generator": generator, "device": "cuda"}
    dtype = getattr(torch, case.dtype)

    def matrix(*shape: int) -> torch.Tensor:
        if is_exact:
            return torch.randint(-1, 2, shape, **options).to(dtype)
        return torch.randn(shape, dtype=dtype, **options)

    whole_a, whole_b = matrix(case.m, case.k), matrix(case.k, case.n)
    if case.operation == GATHER:
        a, b = whole_a[own_part(case.m)], whole_b[:, own_part(case.n)].contiguous()
    else:
        a, b = whole_a[:, own_part(case.k)].contiguous(), whole_b[own_part(case.k)]
    return Shards(a, b, whole_a, whole_b)


def check(case: Case, compute: Compute, shards: Shards) -> None:
    """Raise if the result on integers is wrong."""
    wide = torch.float64 if case.dtype == "float64" else torch.float32
    left, right = shards.whole_a, shards.b if case.operation == GATHER else shards.whole_b
    if case.operation == SCATTER:
        left = left[own_part(case.m)]
    expected, found = left.to(wide) @ right.to(wide), compute(shards).to(wide)
    rounded, allowed = expected.to(shards.a.dtype).to(wide), 0.0
    if shards.a.dtype.itemsize == 2 and case.operation != GATHER:
        allowed = 4 * torch.finfo(shards.a.dtype).eps * float(expected.abs().max())
    wrong = torch.tensor(float((found - rounded).abs().max() > allowed), device="cuda")
    dist.all_reduce(wrong)
    if wrong:
        raise WrongResultError(f"{case}: a wrong result.")


def list_variants(case: Case, with_methods: bool) -> Variants:
    """List what is timed: name -> function of one set of operands."""
    name = dist.group.WORLD.group_name
    options = {"dtype": getattr(torch, case.dtype), "device": "cuda"}
    gathered = torch.empty((case.m, case.k), **options)
    kept = torch.empty((even_rows(case.m, dist.get_world_size())[0], case.n), **options)
    partial = torch.empty((case.m, case.n), **options)
    multiply, fused = getattr(dxd, case.operation), torch.ops.symm_mem

    def nccl(shards: Shards) -> torch.Tensor:
        if case.operation == GATHER:
            dist.all_gather_into_tensor(gathered, shards.a)
            return torch.matmul(gathered, shards.b)
        out = torch.matmul(shards.a, shards.b)
        if case.operation == REDUCE:
            dist.all_reduce(out)
            return out
        own = torch.empty_like(kept)
        dist.reduce_scatter_tensor(own, out)
        return own

    def left(shards: Shards) -> torch.Tensor:
        return shards.whole_a if case.operation == GATHER else shards.a

    moves: dict[str, Variants] = {
        GATHER: {
            "comm_us": lambda x: dist.all_gather_into_tensor(gathered, x.a),
            "async_tp_us": lambda x: fused.fused_all_gather_matmul(x.a, [x.b], 0, name)[1][0],
        },
        REDUCE: {"comm_us": lambda x: dist.all_reduce(partial)},
        SCATTER: {
            "comm_us": lambda x: dist.reduce_scatter_tensor(kept, partial),
            "async_tp_us": lambda x: fused.fused_matmul_reduce_scatter(x.a, x.b, "sum", 0, name),
        },
    }
    return {
        "us": lambda x: multiply(x.a, x.b, method=None),
        "dxgemm": lambda x: dxgemm.gemm(left(x), x.b),
        "cublas": lambda x: torch.matmul(left(x), x.b),
        "nccl_us": nccl,
        **moves[case.operation],
        **{
            method: lambda x, method=method: multiply(x.a, x.b, method=method)
            for method in (METHODS if with_methods else ())
        },
    }


def time_variants(
    case: Case, variants: Variants
) -> tuple[dict[str, list[float]], dict[str, float], dict[str, float]]:
    """Sample the variants in turn: seconds per call on GPUs, on idle streams, and on hosts.

    They are those of the slowest rank. The ranks meet before each sample. For the first times a
    kernel then holds each stream until all calls are enqueued.
    """
    sets = [make_shards(case, False, 1 + seed) for seed in range(SETS)]
    meeting, on_host_s = torch.zeros(1, device="cuda"), {}

    def meet(is_idle: bool) -> None:
        torch.cuda.synchronize()
        dist.all_reduce(meeting)
        if is_idle:
            torch.cuda.synchronize()

    def enqueue(compute: Compute, calls: int) -> list[float]:
        """Times before the first call and after each."""
        clock = [time.perf_counter()]
        for call in range(calls):
            compute(sets[call % SETS])
            clock.append(time.perf_counter())
        return clock

    def until_done(compute: Compute, calls: int) -> tuple[float, float]:
        """Median time of a call on its host, and mean time until the GPU is done."""
        meet(is_idle=True)
        clock = enqueue(compute, calls)
        torch.cuda.synchronize()
        device_s = (time.perf_counter() - clock[0]) / calls
        return statistics.median(end - begin for begin, end in pairwise(clock)), device_s

    def sampler(name: str, compute: Compute) -> Callable[[], float]:
        enqueue(compute, 2)
        longest = torch.tensor(until_done(compute, HOST_CALLS), device="cuda")
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        host_s, device_s = longest.tolist()
        on_host_s[name] = host_s
        calls = min(20, max(2, int(SAMPLE_S / device_s)))
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def take_sample() -> float:
            meet(is_idle=False)
            torch.cuda._sleep(int(2e9 * (1.5 * host_s * calls + 2e-4)))
            start.record()
            enqueue(compute, calls)
            end.record()
            torch.cuda.synchronize()
            return 1e-3 * start.elapsed_time(end) / calls

        return take_sample

    def of_slowest(samplers: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
        samples = interleave(samplers, rounds)
        found = torch.tensor(list(samples.values()), device="cuda", dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return dict(zip(samples, found.tolist()))

    samples = of_slowest({name: sampler(name, run) for name, run in variants.items()}, ROUNDS)
    one_call = {name: lambda run=run: until_done(run, 1)[1] for name, run in variants.items()}
    idle = of_slowest(one_call, IDLE_ROUNDS)
    return samples, {name: statistics.median(of) for name, of in idle.items()}, on_host_s


def usable(case: Case, variants: Variants) -> Variants:
    """Keep the variants that can compute the case, once their results were checked."""
    shards, kept = make_shards(case, True, 0), {}
    for name, compute in variants.items():
        try:
            if name not in UNCHECKED:
                check(case, compute, shards)
            kept[name] = compute
        except (DxgemmError, RuntimeError) as error:
            is_wrong = isinstance(error, WrongResultError)
            if name in NEEDED or (is_wrong and name != "async_tp_us"):
                raise
            if not dist.get_rank() and not is_wrong:
                print(f"{case}: {name}: {str(error).splitlines()[0]:.200}", file=sys.stderr)
    return kept


def measure(case: Case, with_methods: bool) -> dict[str, Any]:
    """Make the row of a case, as pytest-benchmark's JSON has it."""
    variants = usable(case, list_variants(case, with_methods))
    samples_s, idle_s, on_host_s = time_variants(case, variants)
    own, ranks = samples_s["us"], dist.get_world_size()
    times = {name: 1e6 * statistics.median(taken) for name, taken in samples_s.items()}
    gemm_us = min(times.pop("dxgemm"), times.pop("cublas"))
    rivals = {name: times[f"{name}_us"] for name in ("nccl", "async_tp") if f"{name}_us" in times}
    choice = dxd.explain(case.operation, case.m, case.n, case.k, case.dtype, ranks=ranks)
    others = {
        field: 1e6 * seconds[name] if name in seconds else None
        for fields, seconds in ((HOST, on_host_s), (IDLE, idle_s))
        for name, field in fields.items()
    }
    extra_info = {
        **case._asdict(),
        "async_tp_us": None,
        **times,
        **others,
        "gemm_us": gemm_us,
        "vs_rival": min(rivals.values()) / times["us"],
        "rival": min(rivals, key=lambda name: rivals[name]),
        "vs_bound": max(gemm_us, times["comm_us"]) / times["us"],
        "ranks": ranks,
        "method": choice.method,
        "chunks": choice.chunks,
        "predicted_us": choice.predicted_us[choice.method],
    }
    if not dist.get_rank():
        shown = (f"{k} {f'{v:.4g}' if isinstance(v, float) else v}" for k, v in extra_info.items())
        print("  ".join(shown), flush=True)
    stats = {"max": max(own), "median": statistics.median(own), "min": min(own), "rounds": len(own)}
    return {"fullname": f"distributed_times.py::{case}", "extra_info": extra_info, "stats": stats}


def main() -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write; default: results/<gpu>/")
    parser.add_argument("--methods", action="store_true", help="time each method, file nothing")
    parser.add_argument("--only", default="", help="cases whose names contain this, file nothing")
    parser.add_argument("--seconds", type=float, default=170.0, help="begin no case after these")
    arguments = parser.parse_args()
    begin = time.monotonic()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("nccl", device_id=device)
    cases, rows = [case for case in CASES if arguments.only in str(case)], []
    for case in cases:
        elapsed = torch.tensor(time.monotonic() - begin, device="cuda")
        dist.all_reduce(elapsed, dist.ReduceOp.MAX)
        if elapsed > arguments.seconds:
            break
        rows.append(measure(case, arguments.methods))
        torch.cuda.empty_cache()
    is_first = not dist.get_rank()
    dist.destroy_process_group()
    if is_first and rows:
        ratios = [row["extra_info"]["vs_rival"] for row in rows]
        mean = statistics.geometric_mean(ratios)
        print(f"vs_rival: geometric mean {mean:.3f}, least {min(ratios):.3f}, {len(rows)} cases")
        results = {  # as pytest-benchmark's JSON has it
            "machine_info": machine_info(pytest_benchmark_generate_machine_info()),
            "commit_info": commit_info(),
            "datetime": datetime.datetime.now(datetime.UTC).isoformat(),
            "version": pytest_benchmark.__version__,
            "benchmarks": rows,
        }
        if arguments.json:
            arguments.json.write_text(result_text(results))
        elif len(rows) == len(CASES) and not arguments.methods:
            print(save("distributed", results))
    return 0 if len(rows) == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
