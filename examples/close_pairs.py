"""A reduction that no epilogue expresses: the list of all pairs of rows that are alike.

    python examples/close_pairs.py --rows 20000 --columns 256

Rows are unit vectors, some of them near copies of others. A kernel with a tile of `dxgemm.device`
multiplies them by each other and appends the pairs whose cosine is above a limit to a list, through
an atomic counter: its length depends on the data, and the cosines, 1.6 GB of them, are never
stored. It needs half of the tiles alone, those above the diagonal. The same by `gemm` and CuPy
stores the cosines and searches them. Both lists are compared, on the simulator with NumPy's.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from timing import CLOCK, IS_SIMULATED, call_us, fetch, print_table, send, time_text, xp

# numba comes after timing, which enables its simulator where there is no GPU
# isort: split
from numba import cuda

import dxgemm

ROWS, COLUMNS, COPIES = (16, 9, 5) if IS_SIMULATED else (20000, 256, 500)
LIMIT, NOISE = 0.9, 0.01
EXTENTS = (8, 32) if IS_SIMULATED else (128, 128)

tile = dxgemm.device.tile("float32", *EXTENTS, a="row", b="col")


@cuda.jit
def find_pairs(x, limit, count, pairs):
    """Append the pairs of different rows whose product is above a limit, each once."""
    row, col = tile.origin(x.shape[0], x.shape[0])
    if row >= col + tile.n:
        return  # below the diagonal
    acc = tile.accumulator()
    tile.product(acc, x, x.T, row, col)
    for i in range(tile.per_thread):
        r, c = tile.position(i)
        first, second = row + r, col + c
        if first < second and second < x.shape[0] and acc[i] > limit:
            slot = cuda.atomic.add(count, 0, 1)
            if slot < pairs.shape[0]:
                pairs[slot, 0] = first
                pairs[slot, 1] = second


def unit_rows(rows: int, columns: int, copies: int) -> np.ndarray:
    """Random directions, of which the last ones are near copies of the first ones."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, columns))
    x[-copies:] = x[:copies] + NOISE * rng.standard_normal((copies, columns))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype("float32")


def measure(rows: int, columns: int, copies: int) -> list[tuple[str, ...]]:
    """Rows of the table.

    Raises:
        ArithmeticError: the lists differ.
    """
    x = send(unit_rows(rows, columns, copies))
    count, pairs = xp.zeros(1, "int32"), xp.zeros((16 * copies, 2), "int32")
    launch = tile.plan(find_pairs, tile.blocks(rows, rows), x, LIMIT, count, pairs)
    cosines = xp.zeros((rows, rows), "float32")
    product = dxgemm.plan(x, x.T, out=cosines)

    def by_tiles() -> None:
        count[...] = 0
        launch()

    def by_search() -> Any:
        product()
        return xp.argwhere(xp.triu(cosines > LIMIT, 1))

    by_tiles()
    expected = fetch(by_search())
    found = fetch(pairs)[: int(count[0])]
    found = found[np.lexsort(found.T[::-1])]
    if not np.array_equal(found, expected):
        raise ArithmeticError(f"{len(found)} pairs were found, not {len(expected)}")
    print(f"{len(found)} pairs of {rows} rows have a cosine above {LIMIT}; both lists agree.")
    calls = {"one kernel": by_tiles, "gemm and a search": by_search}
    return [(name, time_text(call_us(call))) for name, call in calls.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, default in (("rows", ROWS), ("columns", COLUMNS), ("copies", COPIES)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    print_table(("float32", ">a call"), measure(options.rows, options.columns, options.copies))
    print(CLOCK)


if __name__ == "__main__":
    main()
