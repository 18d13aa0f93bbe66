"""Nearest neighbours and k-means on handwritten digits: distances and their minima in one call.

    python examples/knn.py knn.svg

takes, in float32 and float64, of the squared distances between scikit-learn's digits

    |query|^2 - 2 query . point + |point|^2

only what is wanted, row by row: the eight nearest points, which classify a query by their labels,
or the nearest one, for the centres of k-means. All indices are checked against NumPy. Plotted are
the accuracy by the number of neighbours, the descent of k-means and, on a GPU, how long finding the
nearest point takes: in one call, and as a matrix of distances that CuPy searches. Without a GPU, a
few digits run on numba's simulator and nothing is timed.

Needs the extra `examples`, and on a GPU `cu13` or `cu12`.

Cover and Hart, "Nearest neighbor pattern classification", IEEE Transactions on Information Theory
13, 1967; Lloyd, "Least squares quantization in PCM", the same 28, 1982.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import dxgemm
from dxgemm import reductions
from dxgemm.cli.device import enable_simulator_without_gpu
from dxgemm.cli.output import print_table
from dxgemm.cli.timing import call_us, clock_name, fetch, send, time_text, uses_cupy
from dxgemm.epilogues import bias, bias_column
from dxgemm.gpu.status import simulator_enabled

NEIGHBOURS, CLASSES = 8, 10
DTYPES = ("float32", "float64")
QUERIES = (16, 64, 256, 1024, 4096, 16384, 65536)
ITERATIONS = 20
# What the simulator is given.
SIMULATED_QUERIES = (4, 8, 16)
SIMULATED_DIGITS, SIMULATED_ITERATIONS = 60, 4


@dataclass(frozen=True)
class Measurement:
    """Measurement of one number of queries.

    Attributes:
        dtype: dtype of queries and points.
        queries: number of queries.
        accuracies: share of digits classified right by 1, 2, ... `NEIGHBOURS` neighbours.
        fused_us: time to find the nearest points in one call; None without a GPU.
        separate_us: time of a call for the distances and CuPy's argmin; None without a GPU.
    """

    dtype: str
    queries: int
    accuracies: tuple[float, ...]
    fused_us: float | None
    separate_us: float | None


def norms_added(queries: Any, points: Any) -> Any:
    """Epilogue that turns -2 * queries @ points.T into squared distances."""
    return bias((points * points).sum(axis=1)) | bias_column((queries * queries).sum(axis=1))


def neighbours(queries: Any, points: Any, count: int) -> Any:
    """Find the points nearest to each query, and return their indices, nearest first.

    Args:
        queries: (queries, features).
        points: (points, features).

    Returns:
        (queries, count), int64.
    """
    epilogue = norms_added(queries, points) | reductions.smallest(count, axis=1)
    return dxgemm.gemm(queries, points.T, alpha=-2.0, epilogue=epilogue).indices


def nearest(queries: Any, points: Any) -> Any:
    """Find the point nearest to each query, and return its index: (queries,), int64."""
    epilogue = norms_added(queries, points) | reductions.argmin(axis=1)
    return dxgemm.gemm(queries, points.T, alpha=-2.0, epilogue=epilogue)


def planned_nearest(queries: Any, points: Any) -> dxgemm.Plan:
    """Plan `nearest`: choose and build its kernel now; a call then stores indices only."""
    epilogue = norms_added(queries, points) | reductions.argmin(axis=1)
    return dxgemm.plan(queries, points.T, alpha=-2.0, epilogue=epilogue)


def separate_nearest(queries: Any, points: Any) -> Callable[[], Any]:
    """Make a function that stores the distances, and finds each row's smallest with CuPy."""
    import cupy

    distances = dxgemm.plan(queries, points.T, alpha=-2.0, epilogue=norms_added(queries, points))
    indices = cupy.empty(len(queries), cupy.int64)
    return lambda: cupy.argmin(distances(), axis=1, out=indices)


def squared_distances(queries: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Squared distances (queries, points), by NumPy in float64."""
    queries, points = queries.astype(float), points.astype(float)
    norms = np.sum(queries**2, axis=1)[:, np.newaxis] + np.sum(points**2, axis=1)
    return norms - 2.0 * queries @ points.T


def check(indices: np.ndarray, distances: np.ndarray, limit: float) -> None:
    """Compare neighbours by their distances: those of other points may be as small.

    Args:
        indices: (queries, count), nearest first.
        distances: (queries, points), NumPy's.
        limit: largest allowed difference from the squared distance of the neighbour NumPy finds.

    Raises:
        ArithmeticError: a neighbour is further away, or the same as another one.
    """
    count = indices.shape[1]
    found = np.take_along_axis(distances, indices, axis=1)
    expected = np.sort(distances, axis=1)[:, :count]
    are_distinct = np.all(np.diff(np.sort(indices, axis=1), axis=1) > 0)
    if not (are_distinct and np.all(np.abs(found - expected) <= limit)):
        raise ArithmeticError("Nearest neighbours differ from NumPy's.")


def rounding_limit(queries: np.ndarray, points: np.ndarray, dtype: str) -> float:
    """Bound on the excess of a found squared distance over the smallest, due to rounding.

    The magnitudes of the terms of a squared distance add up to at most twice the sum of the largest
    squared norms. Two distances are compared, each with its own error.
    """
    norms = sum(np.max(np.sum(rows.astype(float) ** 2, axis=1)) for rows in (queries, points))
    terms = queries.shape[1] + 3
    return float(2 * terms * np.finfo(dtype).eps * 2 * norms)


def classify(neighbour_labels: np.ndarray) -> np.ndarray:
    """Label that most neighbours have, (queries, count) to (queries,); the least if several do."""
    votes = np.sum(np.eye(CLASSES, dtype=int)[neighbour_labels], axis=1)
    return votes.argmax(axis=1)


def measure(
    images: np.ndarray, labels: np.ndarray, is_test: np.ndarray, queries: int, dtype: str
) -> Measurement:
    """Classify test digits by the others, check their neighbours, and time them on a GPU.

    Raises:
        ArithmeticError: neighbours differ from NumPy's.
    """
    points, tests = images[~is_test].astype(dtype), images[is_test].astype(dtype)
    chosen = np.arange(queries) % len(tests)
    sent, sent_points = send(tests[chosen]), send(points)
    indices = fetch(neighbours(sent, sent_points, NEIGHBOURS))
    distances = squared_distances(tests, points)
    limit = rounding_limit(tests, points, dtype)
    for first in range(0, queries, len(tests)):  # bounds NumPy's memory
        some = slice(first, first + len(tests))
        check(indices[some], distances[chosen[some]], limit)

    found, expected = labels[~is_test][indices], labels[is_test][chosen]
    accuracies = tuple(
        float(np.mean(classify(found[:, :count]) == expected)) for count in range(1, NEIGHBOURS + 1)
    )
    fused_us = separate_us = None
    if uses_cupy():
        fused_us = call_us(planned_nearest(sent, sent_points))
        separate_us = call_us(separate_nearest(sent, sent_points))
    return Measurement(dtype, queries, accuracies, fused_us, separate_us)


def k_means(images: np.ndarray, iterations: int, dtype: str) -> list[float]:
    """The inertia by iteration: the sum of squared distances from each image to its centre.

    Raises:
        ArithmeticError: an image was given a centre that is not the nearest.
    """
    centres = images[:CLASSES]
    sent = send(images.astype(dtype))
    inertias: list[float] = []
    for _ in range(iterations):
        rounded = centres.astype(dtype)
        indices = fetch(nearest(sent, send(rounded)))
        limit = rounding_limit(images, rounded, dtype)
        check(indices[:, np.newaxis], squared_distances(images, rounded), limit)
        inertias.append(float(np.sum((images - centres[indices]) ** 2)))
        centres = np.stack(
            [
                images[indices == centre].mean(axis=0) if centre in indices else centres[centre]
                for centre in range(CLASSES)
            ]
        )
    return inertias


def draw(measurements: Sequence[Measurement], inertias: dict[str, list[float]], path: Path) -> None:
    """Accuracy by neighbours, time by queries, inertia by iteration."""
    figure = Figure(figsize=(14, 4), layout="constrained")
    accuracy, times, descent = figure.subplots(1, 3)
    for color, dtype, mark in zip(("tab:blue", "tab:orange"), DTYPES, ("o-", "s--"), strict=True):
        own = [measured for measured in measurements if measured.dtype == dtype]
        counts = range(1, NEIGHBOURS + 1)
        accuracy.plot(counts, own[-1].accuracies, mark, color=color, label=dtype)
        descent.plot(inertias[dtype], mark, color=color, label=dtype)
        if own[0].fused_us is not None:
            queries = [m.queries for m in own]
            for label, style, microseconds in (
                ("one call", "o-", [m.fused_us for m in own]),
                ("distances, then CuPy", "s--", [m.separate_us for m in own]),
            ):
                times.plot(queries, microseconds, style, color=color, label=f"{dtype}, {label}")
    accuracy.set(title="Share of digits classified right", xlabel="neighbours")
    accuracy.legend()
    descent.set(title="k-means: inertia", xlabel="iteration")
    descent.legend()
    times.set(title="Time to find the nearest point", xlabel="queries")
    if times.lines:
        times.set(ylabel="microseconds", xscale="log", yscale="log")
        times.legend()
    else:
        times.set(xticks=[], yticks=[])
        times.text(0.5, 0.5, "not timed: no GPU", ha="center", transform=times.transAxes)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plot", type=Path, help="file for the plot, such as knn.svg or knn.png")
    parser.add_argument("--queries", type=int, nargs="+", metavar="COUNT")
    options = parser.parse_args()
    enable_simulator_without_gpu()
    is_simulated = simulator_enabled()
    queries = options.queries or (SIMULATED_QUERIES if is_simulated else QUERIES)
    iterations = SIMULATED_ITERATIONS if is_simulated else ITERATIONS

    images, labels = load_digits(return_X_y=True)
    if is_simulated:
        images, labels = images[:SIMULATED_DIGITS], labels[:SIMULATED_DIGITS]
    is_test = np.arange(len(images)) % 3 == 0
    measurements = [
        measure(images, labels, is_test, count, dtype) for dtype in DTYPES for count in queries
    ]
    print_table(
        ("dtype", ">queries", ">right by 1", f">right by {NEIGHBOURS}", ">one call", ">separate"),
        [
            (
                measured.dtype,
                measured.queries,
                f"{measured.accuracies[0]:.1%}",
                f"{measured.accuracies[-1]:.1%}",
                time_text(measured.fused_us),
                time_text(measured.separate_us),
            )
            for measured in measurements
        ],
    )
    print(f"Times: {clock_name()}." if uses_cupy() else "Not timed: no GPU with CuPy.")
    inertias = {dtype: k_means(images, iterations, dtype) for dtype in DTYPES}
    for dtype, descent in inertias.items():
        print(f"k-means in {dtype}: inertia {descent[0]:.0f}, then {descent[-1]:.0f}.")
    print("Every neighbour is as near as NumPy's, within the rounding errors of distances.")
    draw(measurements, inertias, options.plot)
    print(f"Plotted to {options.plot}.")


if __name__ == "__main__":
    main()
