"""A tensor-parallel MLP, and a block update of an LU factorisation, on the GPUs of one host.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py times.png

computes on the GPUs together, each of which has its shards alone,

    hidden = gelu(X @ w1)        X sharded by rows, w1 by columns: all_gather_gemm
    Y = hidden @ w2              w2 sharded by rows, Y too: gemm_reduce_scatter

in bfloat16, forward and backward, and in float64 the trailing matrix of a blocked LU factorisation,
C - L @ U, where L is sharded by rows, and U and C are by columns. The update's subtraction is an
epilogue of the product. Each result is checked against one GPU that has everything. Then each
product is timed against its bound, the longer one of its arithmetic and its moves alone, and the
times are plotted if matplotlib is there.

Without GPUs it runs over gloo on numba's simulator, at tiny sizes, and times nothing.

Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019; Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
Models", 2022, for shards of rows between the two products.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.functional import gelu

import dxgemm
from dxgemm.distributed import all_gather_gemm, gemm_reduce_scatter
from dxgemm.epilogues import Matrix

ON_GPU = not dxgemm.simulate(unless_gpu=True)
DEVICE = "cuda" if ON_GPU else "cpu"
TOKENS, WIDTH, HIDDEN = (8192, 4096, 16384) if ON_GPU else (8, 4, 8)
ROWS, BLOCK = (16384, 1024) if ON_GPU else (8, 2)
TIMED = [1024, 2048, 4096, 8192]  # m, n and k of the products in the plot


@dxgemm.epilogue
def subtracted_from(value, row, col, matrix: Matrix):
    """matrix[row, col] - value: the update of a trailing matrix."""
    return matrix - value


def random(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Random matrix, the same on every rank."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=DEVICE, dtype=torch.float32).to(dtype)


def shard(whole: torch.Tensor, dim: int) -> torch.Tensor:
    """This rank's part of a matrix."""
    return whole.chunk(dist.get_world_size(), dim)[dist.get_rank()].contiguous()


def compare(name: str, found: torch.Tensor, expected: torch.Tensor, allowed: float) -> None:
    """Print the largest difference over the largest element, of all ranks.

    Raises:
        ArithmeticError: it is larger than what rounding explains.
    """
    found, expected = found.detach().double(), expected.detach().double()
    error = (found - expected).abs().max() / expected.abs().max()
    dist.all_reduce(error, dist.ReduceOp.MAX)
    if not dist.get_rank():
        print(f"  {name:<20} differs by {float(error):.1e} of the largest element")
    if not error <= allowed:
        raise ArithmeticError(f"{name} differs from that of one GPU by {float(error):.1e}.")


def check_mlp() -> None:
    """Compare a forward and a backward pass with those of one GPU."""
    dtype = torch.bfloat16
    x = random(TOKENS, WIDTH, dtype=dtype, seed=0)
    w1 = random(WIDTH, HIDDEN, dtype=dtype, seed=1) / WIDTH**0.5
    w2 = random(HIDDEN, WIDTH, dtype=dtype, seed=2) / HIDDEN**0.5
    slope = random(TOKENS, WIDTH, dtype=dtype, seed=3)

    parts = [shard(x, 0), shard(w1, 1), shard(w2, 0)]
    own_x, own_w1, own_w2 = (part.requires_grad_() for part in parts)
    hidden = gelu(all_gather_gemm(own_x, own_w1))
    y = gemm_reduce_scatter(hidden, own_w2)
    y.backward(shard(slope, 0))

    x, w1, w2 = (whole.float().requires_grad_() for whole in (x, w1, w2))
    expected = gelu(x @ w1) @ w2
    expected.backward(slope.float())
    compare("Y", y, shard(expected, 0), 2e-2)
    compare("gradient of X", own_x.grad, shard(x.grad, 0), 2e-2)
    compare("gradient of w1", own_w1.grad, shard(w1.grad, 1), 2e-2)
    compare("gradient of w2", own_w2.grad, shard(w2.grad, 0), 2e-2)


def check_update() -> None:
    """Compare a trailing matrix with that of one GPU."""
    dtype = torch.float64
    lower = random(ROWS, BLOCK, dtype=dtype, seed=0)
    upper = random(BLOCK, ROWS // 4, dtype=dtype, seed=1)
    trailing = random(ROWS, ROWS // 4, dtype=dtype, seed=2)
    own = shard(trailing, 1)
    updated = all_gather_gemm(shard(lower, 0), shard(upper, 1), epilogue=subtracted_from(own))
    compare("trailing matrix", updated, shard(trailing - lower @ upper, 1), 1e-13)


def time_us(compute: Callable[[], object]) -> float:
    """Median time of a call in microseconds, of the slowest rank."""
    samples = []
    for _ in range(12):
        dist.barrier()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(2_000_000)  # until the calls are enqueued
        start.record()
        for _ in range(5):
            compute()
        end.record()
        torch.cuda.synchronize()
        samples.append(1e3 * start.elapsed_time(end) / 5)
    slowest = torch.tensor(statistics.median(samples[2:]), device=DEVICE)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


def time_products(dtype: torch.dtype, size: int) -> dict[str, tuple[float, float]]:
    """Time of each product of (size, size) matrices, and its bound, in microseconds."""
    whole = random(size, size, dtype=dtype, seed=0)
    rows, columns = shard(whole, 0), shard(whole, 1)
    gathered, kept = torch.empty_like(whole), torch.empty_like(rows)
    moves = {
        "all_gather_gemm": partial(dist.all_gather_into_tensor, gathered, rows),
        "gemm_reduce_scatter": partial(dist.reduce_scatter_tensor, kept, whole),
    }
    gemms = {
        "all_gather_gemm": partial(dxgemm.gemm, whole, columns),
        "gemm_reduce_scatter": partial(dxgemm.gemm, columns, rows),
    }
    products = {
        "all_gather_gemm": partial(all_gather_gemm, rows, columns),
        "gemm_reduce_scatter": partial(gemm_reduce_scatter, columns, rows),
    }
    times = {}
    for name, compute in products.items():
        bound_us = max(time_us(gemms[name]), time_us(moves[name]))
        times[name] = time_us(compute), bound_us
        if not dist.get_rank():
            label = f"{name}, {str(dtype)[6:]}, {size}"
            print(f"  {label:<36}  {times[name][0]:8.1f} us, bound {bound_us:8.1f}")
    return times


def draw(times: dict[torch.dtype, list[dict[str, tuple[float, float]]]], path: str) -> None:
    """Plot the times and their bounds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, (dtype, by_size) in zip(figure.subplots(1, len(times)), times.items()):
        for color, name in zip(("tab:blue", "tab:orange"), by_size[0]):
            took, bounds = zip(*(found[name] for found in by_size))
            axes.plot(TIMED, took, "o-", color=color, label=name)
            axes.plot(TIMED, bounds, "--", color=color, label=f"{name}, bound")
        axes.set(xscale="log", yscale="log", xlabel="m, n, k", ylabel="microseconds")
        axes.set_title(f"{str(dtype)[6:]}, {dist.get_world_size()} GPUs")
        axes.legend()
    figure.savefig(path, dpi=80)


def main() -> None:
    rank = int(os.environ["LOCAL_RANK"])
    if ON_GPU:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    else:
        dist.init_process_group("gloo")
    is_first = not dist.get_rank()
    if is_first:
        print(f"{dist.get_world_size()} ranks, against one")
    check_mlp()
    check_update()
    if ON_GPU:
        times = {
            dtype: [time_products(dtype, size) for size in TIMED]
            for dtype in (torch.bfloat16, torch.float64)
        }
        if is_first and len(sys.argv) > 1:
            try:
                draw(times, sys.argv[1])
            except ImportError:
                print("no plot: matplotlib is missing")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
