"""The problems that a GPU is tuned on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

from dxgemm._errors import ShapeError

SMALLEST, LARGEST = 16, 16384
ALIGNED = 16  # elements: rows of every dtype begin at multiples of 16 bytes then
MOST_ELEMENTS = 2**28  # of a matrix


class Shape(NamedTuple):
    """Of one product: a is (m, k), b is (k, n)."""

    dtype: str
    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.dtype} {self.m} x {self.n} x {self.k}"


def log_uniform_shapes(dtypes: tuple[str, ...], seed: int) -> Iterator[Shape]:
    """Without end: m, n and k between SMALLEST and LARGEST, as many between 16 and 32 as between
    8192 and 16384. Every other one is a multiple of ALIGNED in all three; dtypes take turns.
    """
    numbers = random.Random(seed)
    for index in count():
        is_aligned = index // len(dtypes) % 2 == 0
        while True:
            sizes = [round(SMALLEST * (LARGEST / SMALLEST) ** numbers.random()) for _ in range(3)]
            if is_aligned:
                sizes = [round(size / ALIGNED) * ALIGNED for size in sizes]
            m, n, k = sizes
            if max(m * n, m * k, k * n) <= MOST_ELEMENTS:
                break
        yield Shape(dtypes[index % len(dtypes)], m, n, k)


def read_shapes(path: Path, dtypes: tuple[str, ...]) -> list[Shape]:
    """From a text file with m, n and k on each line, for every dtype; `#` begins a comment.

    Raises:
        ShapeError: a line is not three positive integers.
    """
    shapes = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        try:
            m, n, k = map(int, words)
        except ValueError:
            m = n = k = 0
        if min(m, n, k) < 1:
            raise ShapeError(f"{path}:{number}: {line.strip()!r} is not m, n and k.")
        shapes += [Shape(dtype, m, n, k) for dtype in dtypes]
    return shapes
