"""The problems that a GPU is tuned on."""

from __future__ import annotations

import random
from collections.abc import Container, Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

from dxgemm._errors import ShapeError
from dxgemm._speeds import THIN

SMALLEST, LARGEST = THIN, 16384
SMALLEST_IN_BATCH, LARGEST_IN_BATCH = 4, 128
FEWEST_MATRICES, MOST_MATRICES = 16, 2**17
# Of so many problems of a dtype one is a batch, and one thin.
IN_TURN = 5
ALIGNED = 16  # elements: rows of every dtype begin at multiples of 16 bytes then
MOST_ELEMENTS = 2**28  # of a matrix
MOST_IN_BATCH = 2**26  # of all matrices of a batch


class Shape(NamedTuple):
    """Of one product, or of each of a batch: a is (m, k), b is (k, n)."""

    dtype: str
    m: int
    n: int
    k: int
    batch: int = 1

    def __str__(self) -> str:
        times = f"{self.batch} of " if self.batch > 1 else ""
        return f"{self.dtype} {times}{self.m} x {self.n} x {self.k}"


def shapes_to_tune(dtypes: tuple[str, ...], seed: int) -> Iterator[Shape]:
    """Without end: single products, with batches and thin ones among them."""
    usual, batches = log_uniform_shapes(dtypes, seed), log_uniform_batches(dtypes, seed)
    thin = log_uniform_thin_shapes(dtypes, seed)
    while True:
        yield from islice(usual, (IN_TURN - 2) * len(dtypes))
        yield from islice(batches, len(dtypes))
        yield from islice(thin, len(dtypes))


def unmeasured(
    shapes: Iterable[Shape], known: Container[Shape], most: int
) -> Iterator[list[Shape]]:
    """Those that are not known, so many at a time, in their order."""
    unknown = (shape for shape in shapes if shape not in known)
    while batch := list(islice(unknown, most)):
        yield batch


def log_uniform_shapes(dtypes: tuple[str, ...], seed: int) -> Iterator[Shape]:
    """Without end: m, n and k between SMALLEST and LARGEST, as many between 16 and 32 as between
    8192 and 16384. Every other one is a multiple of ALIGNED in all three; dtypes take turns.
    """
    return _single_products(dtypes, seed, SMALLEST, LARGEST)


def log_uniform_thin_shapes(dtypes: tuple[str, ...], seed: int) -> Iterator[Shape]:
    """Without end: m, n and k between 1 and LARGEST, one of them at least below THIN; dtypes take
    turns. Of every other one the extents that are not thin are multiples of ALIGNED.
    """
    return _single_products(dtypes, seed, 1, THIN - 1)


def _single_products(
    dtypes: tuple[str, ...], seed: int, least: int, most_of_least: int
) -> Iterator[Shape]:
    """Of extents from least to LARGEST, the smallest of them no more than most_of_least."""
    numbers = random.Random(seed)
    for index in count():
        is_aligned = index // len(dtypes) % 2 == 0
        while True:
            sizes = [_log_uniform(numbers, least, LARGEST) for _ in range(3)]
            if is_aligned:
                sizes = [s if s < THIN else round(s / ALIGNED) * ALIGNED for s in sizes]
            m, n, k = sizes
            if min(sizes) <= most_of_least and max(m * n, m * k, k * n) <= MOST_ELEMENTS:
                break
        yield Shape(dtypes[index % len(dtypes)], m, n, k)


def log_uniform_batches(dtypes: tuple[str, ...], seed: int) -> Iterator[Shape]:
    """The same of batches: extents from SMALLEST_IN_BATCH to LARGEST_IN_BATCH, in every other one
    m = n = k and a multiple of SMALLEST_IN_BATCH; FEWEST_MATRICES to MOST_MATRICES of them.
    """
    numbers = random.Random(seed)
    for index in count():
        is_square = index // len(dtypes) % 2 == 0
        while True:
            m, n, k = (_log_uniform(numbers, SMALLEST_IN_BATCH, LARGEST_IN_BATCH) for _ in range(3))
            if is_square:
                m = n = k = round(m / SMALLEST_IN_BATCH) * SMALLEST_IN_BATCH
            batch = _log_uniform(numbers, FEWEST_MATRICES, MOST_MATRICES)
            if batch * max(m * n, m * k, k * n) <= MOST_IN_BATCH:
                break
        yield Shape(dtypes[index % len(dtypes)], m, n, k, batch)


def _log_uniform(numbers: random.Random, least: int, most: int) -> int:
    return round(least * (most / least) ** numbers.random())


def read_shapes(path: Path, dtypes: tuple[str, ...]) -> list[Shape]:
    """From a text file with m, n and k on each line, for every dtype; `#` begins a comment.

    A fourth number is that of the matrices of a batch.

    Raises:
        ShapeError: a line is not three or four positive integers.
    """
    shapes = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        try:
            m, n, k, batch = map(int, words if len(words) == 4 else [*words, "1"])
        except ValueError:
            m = n = k = batch = 0
        if min(m, n, k, batch) < 1:
            raise ShapeError(
                f"{path}:{number}: {line.strip()!r} is not m, n and k, or these and a batch."
            )
        shapes += [Shape(dtype, m, n, k, batch) for dtype in dtypes]
    return shapes
