"""Print predicted times of sharded products as a table in Markdown.

python -m dxgemm.distributed --gpu H100 --ranks 8
python -m dxgemm.distributed --gpu H100 --ranks 16 --network
"""

from __future__ import annotations

import argparse

from dxgemm.distributed.model import NETWORK, NVLINK, explain
from dxgemm.distributed.schedule import GATHER, PLAIN, SCATTER

SIZES = [
    ("bfloat16", 8192, 8192, 8192),
    ("bfloat16", 4096, 4096, 4096),
    ("bfloat16", 16, 8192, 8192),
    ("float64", 4096, 4096, 4096),
    ("float64", 16384, 4096, 1024),
]
HEADER = ["product", "m x n x k", "gemm", "moves", "plain", "chosen", "method", "x plain"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", help="name of a card; default: the first GPU")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--network", action="store_true", help="each rank on a host of its own")
    arguments = parser.parse_args()
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * 2}{'---:|' * 4}---|---:|")
    link = NETWORK if arguments.network else NVLINK
    for operation in (GATHER, SCATTER):
        for dtype, m, n, k in SIZES:
            choice = explain(
                operation, m, n, k, dtype, ranks=arguments.ranks, gpu=arguments.gpu, link=link
            )
            problem, times = choice.problem, choice.predicted_us
            plain_us, chosen_us = times[PLAIN], times[choice.method]
            figures = [problem.gemm_us, problem.move_us, plain_us, chosen_us]
            cells = [f"`{operation}` {dtype}", f"{m} x {n} x {k}"]
            cells += [*(f"{us:.0f}" for us in figures), choice.method]
            print(f"| {' | '.join(cells)} | {plain_us / chosen_us:.2f} |")


if __name__ == "__main__":
    main()
