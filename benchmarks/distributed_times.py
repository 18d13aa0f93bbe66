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

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory
from provenance import commit_info, machine_info
from result_files import result_text, save

import dxgemm
from dxgemm import distributed as dxd
from dxgemm.distributed.schedule import GATHER, METHODS, REDUCE, SCATTER, even_rows, shards_of
from dxgemm.errors import DxgemmError, WrongResultError
from dxgemm.tuning.sampling import interleave

SAMPLE_S, ROUNDS = 4e-3, 11
HOST_CALLS = 20
IDLE_ROUNDS = 31
SETS = 2  # of operands, which calls take in turn
SIZES = {
    "bfloat16": [(8192, 8192, 8192), (4096, 4096, 4096), (2048, 8192, 8192), (16, 8192, 8192)],
    "float64": [(4096, 4096, 4096), (16384, 4096, 1024)],
    "float32": [(4096, 4096, 4096), (16, 8192, 8192)],
    "float16": [(8192, 8192, 8192), (8190, 4096, 4096)],
}


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


def list_cases() -> list[Case]:
    return [
        Case(operation, dtype, *size)
        for dtype, sizes in SIZES.items()
        for size in sizes
        for operation in (GATHER, SCATTER)
    ]


def make_shards(case: Case, is_exact: bool, seed: int) -> Shards:
    """Make whole matrices, the same on all ranks, and cut this rank's operands out of them."""
    generator = torch.Generator("cuda").manual_seed(seed)
    dtype = getattr(torch, case.dtype)

    def matrix(rows: int, cols: int) -> torch.Tensor:
        if is_exact:
            values = torch.randint(-1, 2, (rows, cols), generator=generator, device="cuda")
            return values.to(dtype)
        return torch.randn((rows, cols), generator=generator, device="cuda", dtype=dtype)

    whole_a, whole_b = matrix(case.m, case.k), matrix(case.k, case.n)
    rank, size = dist.get_rank(), dist.get_world_size()
    if case.operation == GATHER:
        rows = shards_of(even_rows(case.m, size))[rank]
        columns = shards_of(even_rows(case.n, size))[rank]
        a, b = whole_a[slice(*rows)], whole_b[:, slice(*columns)].contiguous()
    else:
        part = slice(*shards_of(even_rows(case.k, size))[rank])
        a, b = whole_a[:, part].contiguous(), whole_b[part]
    return Shards(a, b, whole_a, whole_b)


def check(case: Case, compute: Callable[[Shards], torch.Tensor], shards: Shards) -> None:
    """Raise if the result on integers is wrong."""
    wide = torch.float64 if case.dtype == "float64" else torch.float32
    if case.operation == GATHER:
        expected = shards.whole_a.to(wide) @ shards.b.to(wide)
    elif case.operation == REDUCE:
        expected = shards.whole_a.to(wide) @ shards.whole_b.to(wide)
    else:
        rows = shards_of(even_rows(case.m, dist.get_world_size()))[dist.get_rank()]
        expected = shards.whole_a[slice(*rows)].to(wide) @ shards.whole_b.to(wide)
    found = compute(shards).to(wide)
    rounded = expected.to(shards.a.dtype).to(wide)
    is_half = shards.a.dtype.itemsize == 2
    allowed = 0.0
    if is_half and case.operation != GATHER:
        allowed = 4 * torch.finfo(shards.a.dtype).eps * float(expected.abs().max())
    wrong = torch.tensor(float((found - rounded).abs().max() > allowed), device="cuda")
    dist.all_reduce(wrong)
    if wrong:
        raise WrongResultError(f"{case}: a wrong result.")


def list_variants(case: Case, with_methods: bool) -> dict[str, Callable[[Shards], Any]]:
    """List what is timed: name -> function of one set of operands."""
    size, name = dist.get_world_size(), dist.group.WORLD.group_name
    options = {"dtype": getattr(torch, case.dtype), "device": "cuda"}
    gathered = torch.empty((case.m, case.k), **options)
    kept = torch.empty((even_rows(case.m, size)[0], case.n), **options)
    partial = torch.empty((case.m, case.n), **options)
    multiply = getattr(dxd, case.operation)
    fused = torch.ops.symm_mem

    def nccl_gather(shards: Shards) -> torch.Tensor:
        dist.all_gather_into_tensor(gathered, shards.a)
        return torch.matmul(gathered, shards.b)

    def nccl_scatter(shards: Shards) -> torch.Tensor:
        out = torch.empty_like(kept)
        dist.reduce_scatter_tensor(out, torch.matmul(shards.a, shards.b))
        return out

    def nccl_reduce(shards: Shards) -> torch.Tensor:
        out = torch.matmul(shards.a, shards.b)
        dist.all_reduce(out)
        return out

    def left(shards: Shards) -> torch.Tensor:
        return shards.whole_a if case.operation == GATHER else shards.a

    variants = {
        "us": lambda x: multiply(x.a, x.b, method=None),
        "dxgemm": lambda x: dxgemm.gemm(left(x), x.b),
        "cublas": lambda x: torch.matmul(left(x), x.b),
    }
    if case.operation == GATHER:
        variants |= {
            "comm_us": lambda x: dist.all_gather_into_tensor(gathered, x.a),
            "nccl_us": nccl_gather,
            "async_tp_us": lambda x: fused.fused_all_gather_matmul(x.a, [x.b], 0, name)[1][0],
        }
    elif case.operation == REDUCE:
        variants |= {"comm_us": lambda x: dist.all_reduce(partial), "nccl_us": nccl_reduce}
    else:
        variants |= {
            "comm_us": lambda x: dist.reduce_scatter_tensor(kept, partial),
            "nccl_us": nccl_scatter,
            "async_tp_us": lambda x: fused.fused_matmul_reduce_scatter(x.a, x.b, "sum", 0, name),
        }
    methods = METHODS if with_methods else ()
    return variants | {
        method: lambda x, method=method: multiply(x.a, x.b, method=method) for method in methods
    }


def time_variants(
    case: Case, variants: dict[str, Callable[[Shards], Any]]
) -> tuple[dict[str, list[float]], dict[str, list[float]], dict[str, float]]:
    """Sample the variants in turn: seconds per call on GPUs, on idle streams, and on hosts.

    They are those of the slowest rank. The ranks meet before each sample. For the first times a
    kernel then holds each stream until all calls are enqueued.
    """
    sets = [make_shards(case, False, 1 + seed) for seed in range(SETS)]
    meeting = torch.zeros(1, device="cuda")

    def enqueue(compute: Callable[[Shards], Any], calls: int) -> None:
        for call in range(calls):
            compute(sets[call % SETS])

    def host_and_device_s(compute: Callable[[Shards], Any]) -> tuple[float, float]:
        """Median time of a call on its host, and mean time until the GPU is done."""
        torch.cuda.synchronize()
        dist.all_reduce(meeting)
        torch.cuda.synchronize()
        clock = [time.perf_counter()]
        for call in range(HOST_CALLS):
            compute(sets[call % SETS])
            clock.append(time.perf_counter())
        torch.cuda.synchronize()
        device_s = (time.perf_counter() - clock[0]) / HOST_CALLS
        host_s = statistics.median(end - begin for begin, end in pairwise(clock))
        longest = torch.tensor([host_s, device_s], device="cuda")
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        return float(longest[0]), float(longest[1])

    def sampler(name: str, compute: Callable[[Shards], Any]) -> Callable[[], float]:
        enqueue(compute, 2)
        host_s, device_s = host_and_device_s(compute)
        on_host_s[name] = host_s
        calls = min(20, max(2, int(SAMPLE_S / device_s)))
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def take_sample() -> float:
            torch.cuda.synchronize()
            dist.all_reduce(meeting)
            torch.cuda._sleep(int(2e9 * (1.5 * host_s * calls + 2e-4)))
            start.record()
            enqueue(compute, calls)
            end.record()
            torch.cuda.synchronize()
            return 1e-3 * start.elapsed_time(end) / calls

        return take_sample

    def idle_sampler(compute: Callable[[Shards], Any]) -> Callable[[], float]:
        def take_sample() -> float:
            torch.cuda.synchronize()
            dist.all_reduce(meeting)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            compute(sets[0])
            torch.cuda.synchronize()
            return time.perf_counter() - begin

        return take_sample

    def of_slowest(samplers: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
        samples = interleave(samplers, rounds)
        found = torch.tensor(list(samples.values()), device="cuda", dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return dict(zip(samples, found.tolist()))

    on_host_s: dict[str, float] = {}
    samples = of_slowest({name: sampler(name, run) for name, run in variants.items()}, ROUNDS)
    idle = of_slowest({name: idle_sampler(run) for name, run in variants.items()}, IDLE_ROUNDS)
    return samples, idle, on_host_s


def usable(case: Case, variants: dict[str, Callable[[Shards], Any]]) -> dict[str, Any]:
    """Keep the variants that can compute the case, once their results were checked."""
    shards = make_shards(case, True, 0)
    kept = {}
    for name, compute in variants.items():
        try:
            if name not in ("dxgemm", "cublas", "comm_us"):
                check(case, compute, shards)
            kept[name] = compute
        except WrongResultError:
            if name != "async_tp_us":
                raise
        except (DxgemmError, RuntimeError) as error:
            if name in ("us", "nccl_us"):
                raise
            if not dist.get_rank():
                print(f"{case}: {name}: {str(error).splitlines()[0]:.200}", file=sys.stderr)
    return kept


def measure(case: Case, with_methods: bool) -> dict[str, Any]:
    """Make the row of a case, as pytest-benchmark's JSON has it."""
    variants = usable(case, list_variants(case, with_methods))
    samples_s, idle_s, on_host_s = time_variants(case, variants)
    idle_us = {name: 1e6 * statistics.median(taken) for name, taken in idle_s.items()}
    host_us = {name: 1e6 * seconds for name, seconds in on_host_s.items()}
    times = {name: 1e6 * statistics.median(taken) for name, taken in samples_s.items()}
    gemm_us = min(times.pop("dxgemm"), times.pop("cublas"))
    rivals = {"nccl": times["nccl_us"], "async_tp": times.get("async_tp_us", float("inf"))}
    choice = dxd.explain(
        case.operation, case.m, case.n, case.k, case.dtype, ranks=dist.get_world_size()
    )
    own = samples_s["us"]
    return {
        "fullname": f"distributed_times.py::{case}",
        "extra_info": {
            **case._asdict(),
            "async_tp_us": None,
            **times,
            "host_us": host_us["us"],
            "nccl_host_us": host_us["nccl_us"],
            "async_tp_host_us": host_us.get("async_tp_us"),
            "idle_us": idle_us["us"],
            "nccl_idle_us": idle_us["nccl_us"],
            "async_tp_idle_us": idle_us.get("async_tp_us"),
            "gemm_us": gemm_us,
            "vs_rival": min(rivals.values()) / times["us"],
            "rival": min(rivals, key=lambda name: rivals[name]),
            "vs_bound": max(gemm_us, times["comm_us"]) / times["us"],
            "ranks": dist.get_world_size(),
            "method": choice.method,
            "chunks": choice.chunks,
            "predicted_us": choice.predicted_us[choice.method],
        },
        "stats": {
            "max": max(own),
            "median": statistics.median(own),
            "min": min(own),
            "rounds": len(own),
        },
    }


def print_row(row: dict[str, Any]) -> None:
    info = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row["extra_info"].items()}
    print("  ".join(f"{name} {value}" for name, value in info.items()), flush=True)


def results_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The suite, as pytest-benchmark's JSON has it."""
    import pytest_benchmark
    from pytest_benchmark.plugin import pytest_benchmark_generate_machine_info

    return {
        "machine_info": machine_info(pytest_benchmark_generate_machine_info()),
        "commit_info": commit_info(),
        "datetime": datetime.datetime.now(datetime.UTC).isoformat(),
        "version": pytest_benchmark.__version__,
        "benchmarks": rows,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file to write; default: results/<gpu>/")
    parser.add_argument("--methods", action="store_true", help="time each method, file nothing")
    parser.add_argument("--only", default="", help="cases whose names contain this, file nothing")
    parser.add_argument("--seconds", type=float, default=170.0, help="begin no case after these")
    arguments = parser.parse_args()
    begin = time.monotonic()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("nccl", device_id=device)
    cases = [case for case in list_cases() if arguments.only in str(case)]
    rows = []
    for case in cases:
        elapsed = torch.tensor(time.monotonic() - begin, device="cuda")
        dist.all_reduce(elapsed, dist.ReduceOp.MAX)
        if elapsed > arguments.seconds:
            break
        rows.append(measure(case, arguments.methods))
        if not dist.get_rank():
            print_row(rows[-1])
        torch.cuda.empty_cache()
    is_first = not dist.get_rank()
    dist.destroy_process_group()
    if is_first and rows:
        ratios = [row["extra_info"]["vs_rival"] for row in rows]
        mean = statistics.geometric_mean(ratios)
        print(f"vs_rival: geometric mean {mean:.3f}, least {min(ratios):.3f}, {len(rows)} cases")
        if arguments.json:
            arguments.json.write_text(result_text(results_of(rows)))
        elif len(rows) == len(list_cases()) and not arguments.methods:
            print(save("distributed", results_of(rows)))
    return 0 if len(rows) == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
