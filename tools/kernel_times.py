"""GPU times of named kernels, to compare two versions of the sources or of the toolkit in turn.

    PYTHONPATH=old/src python tools/kernel_times.py times old1.json      # then new1, old2, new2
    python tools/kernel_times.py ratios old1.json,old2.json new1.json,new2.json

Versions of the sources share a cache, since their kernels have other keys. Those of a toolkit need
a `DXGEMM_CACHE_DIR` each, built with it. Before each call the L2 cache is overwritten, and a kernel
that spins hides the host's time. Results are checked first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

ROUNDS, SPIN_CYCLES, L2_FLOATS = 25, 400_000, 64 << 20
SPIN = 'extern "C" __global__ void spin(long long n) { long long t = clock64(); while (clock64() - t < n); }'  # noqa: E501
Row = tuple[str, str, int, int, int, int, str]  # kernel, dtype, m, n, k, batch, orders of a and b


def rows() -> Iterator[Row]:
    for m, n, k in ((4096, 4096, 4096), (1000, 3000, 2000)):
        for orders in ("CC", "CF"):
            yield "tensor_tile", "float16", m, n, k, 1, orders
            yield "wgmma", "float16", m, n, k, 1, orders
            yield "tuned", "float32", m, n, k, 1, orders
            yield "tensor_core", "float64", m, n, k, 1, orders
    for m, n, k in ((4095, 4095, 4095), (999, 1001, 1003)):
        for orders in ("CC", "CF", "FC"):
            yield "shifted_tile", "float16", m, n, k, 1, orders
    for m, n, k in ((2048, 2048, 2048), (100, 100, 4000), (30, 1000, 3000)):
        for orders in ("CC", "FC"):
            yield "complex_tile", "complex64", m, n, k, 1, orders
            yield "complex_tensor_core", "complex128", m, n, k, 1, orders
    for n, batch in ((4, 100_000), (8, 50_000), (20, 10_000), (40, 5000), (64, 2000)):
        for orders in ("CC", "CF"):
            yield "small_batch", "float32", n, n, n, batch, orders
            yield "small_batch", "float64", n, n, n, batch, orders
            yield "complex_batch", "complex64", n, n, n, batch // 2, orders
    for n, batch in ((16, 20_000), (32, 8000), (64, 2000)):
        yield "half_batch", "float16", n, n, n, batch, "CC"
        yield "tensor_batch", "float64", n, n, n, batch, "CC"


def matrices(xp: Any, dtype: str, batch: int, rows: int, cols: int, order: str) -> Any:
    shape = (rows, cols) if order == "C" else (cols, rows)
    values = xp.random.standard_normal((batch, *shape) if batch > 1 else shape, dtype="float32")
    if dtype.startswith("complex"):
        values = values + 1j * xp.random.standard_normal(values.shape, dtype="float32")
    values = values.astype(dtype)
    return values if order == "C" else values.swapaxes(-1, -2)


def measure() -> dict[str, float | None]:
    import cupy as xp

    import dxgemm

    over_l2, spin = xp.zeros(L2_FLOATS, "float32"), xp.RawKernel(SPIN, "spin")

    def time_us(call: Callable[[], Any]) -> float:
        samples = []
        for _ in range(ROUNDS):
            over_l2.fill(0)
            spin((1,), (1,), (xp.int64(SPIN_CYCLES),))
            start, end = xp.cuda.Event(), xp.cuda.Event()
            start.record()
            call()
            end.record()
            end.synchronize()
            samples.append(1e3 * xp.cuda.get_elapsed_time(start, end))
        return median(samples)

    found: dict[str, float | None] = {}
    for kernel, dtype, m, n, k, batch, orders in rows():
        name = f"{kernel} {dtype} {batch}x{m}x{n}x{k} {orders}"
        a = matrices(xp, dtype, batch, m, k, orders[0])
        b = matrices(xp, dtype, batch, k, n, orders[1])
        try:
            plan = dxgemm.plan(a, b, implementation=kernel)
        except dxgemm.DxgemmError as error:
            print(f"{name}: {error}")
            found[name] = None
            continue
        wide = "complex128" if dtype.startswith("complex") else "float64"
        expected = xp.matmul(a.astype(wide), b.astype(wide))
        if float(abs(plan() - expected).max() / abs(expected).max()) > 0.02:
            raise SystemExit(f"{name}: wrong result")
        found[name] = time_us(plan)
    return found


def ratios(old: list[Path], new: list[Path]) -> None:
    """Print the least time of the new files over that of the old ones, the greatest first."""
    before, after = ([json.loads(path.read_text()) for path in paths] for paths in (old, new))
    found = {}
    for name in before[0]:
        times = [[run[name] for run in runs if run.get(name)] for runs in (before, after)]
        if all(times):
            found[name] = min(times[1]) / min(times[0]), min(times[0]), min(times[1])
    for name, (ratio, old_us, new_us) in sorted(found.items(), key=lambda entry: -entry[1][0]):
        print(f"{ratio:6.3f}  {old_us:9.1f}  {new_us:9.1f}  {name}")
    print(f"{geometric_mean(ratio for ratio, *_ in found.values()):6.3f}  geometric mean")


if __name__ == "__main__":
    command, *paths = sys.argv[1:]
    if command == "times":
        Path(paths[0]).write_text(json.dumps(measure()))
    else:
        ratios(*([Path(path) for path in group.split(",")] for group in paths))
