"""Shortest walks, nearest digits and a text from telephone keys, without a multiplication.

    python examples/inner_functions.py walks.svg

computes in float32 and float64, each by `dxgemm.gemm(inner=)` and checked against the plain
algorithm,

- the shortest walk between any two points of a terrain, matplotlib's elevations around the
  Jacksboro fault, by squares of the matrix of walks in min-plus; against SciPy's;
- the nearest of scikit-learn's digits in L1, the distances never stored; against NumPy's;
- the letters of a text of which only the telephone keys are known, each of three or four letters,
  by Viterbi's algorithm: a step for all lines is one product in max-plus with an epilogue; against
  the algorithm in NumPy.

Plotted are the terrain, the point from which all others are reached soonest, and the longest of
all shortest walks. Without a GPU, a few points and lines run on numba's simulator.

Needs the extra `examples`, and on a GPU `cu13` or `cu12`.

W. Tobler, "Three Presentations on Geographical Analysis and Modeling", 1993, for the speed of a
walk by its slope. A. Viterbi, "Error Bounds for Convolutional Codes and an Asymptotically Optimum
Decoding Algorithm", 1967.
"""

from __future__ import annotations

import argparse
import string
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import cbook
from matplotlib.figure import Figure
from scipy.sparse.csgraph import shortest_path
from sklearn.datasets import load_digits
from timing import IS_SIMULATED, call_us, fetch, print_table, send, time_text

import dxgemm
from dxgemm import inners, reductions
from dxgemm.epilogues import residual

DTYPES = ("float32", "float64")
ROW_METRES, COL_METRES = 92.6, 74.3  # between neighbouring elevations
STRIDE, SIMULATED_STRIDE = 8, 110  # elevations from one point of the graph to the next
NEIGHBOURS = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
LETTERS = string.ascii_lowercase + " "
KEYS = np.array([int(key) for key in "22233344455566677778889999"] + [1])  # of each letter
LINE = 40
RARELY = 0.02  # times that a pair of letters is counted which the text does not have
PER_NAT = 64  # log-probabilities are multiples of 1 / 64, of which all sums are exact


def terrain() -> np.ndarray:
    """Elevations in metres, (344, 403)."""
    with cbook.get_sample_data("jacksboro_fault_dem.npz") as data:
        elevations: np.ndarray = data["elevation"].astype(float)
    return elevations


def walking_hours(heights: np.ndarray, stride: int) -> np.ndarray:
    """Hours from each point to its eight neighbours, (points, points); infinity to all others."""
    rows, cols = heights.shape
    index = np.arange(rows * cols).reshape(rows, cols)
    hours = np.full((rows * cols, rows * cols), np.inf)
    np.fill_diagonal(hours, 0.0)
    for down, right in NEIGHBOURS:
        here = np.s_[max(0, -down) : rows - max(0, down), max(0, -right) : cols - max(0, right)]
        there = np.s_[max(0, down) : rows + min(0, down), max(0, right) : cols + min(0, right)]
        metres = stride * np.hypot(down * ROW_METRES, right * COL_METRES)
        slope = (heights[there] - heights[here]) / metres
        hours[index[here], index[there]] = metres / 6000 * np.exp(3.5 * np.abs(slope + 0.05))
    return hours


def all_shortest(hours: Any) -> Any:
    """Hours of the shortest walks between all pairs of points; 2**s edges after s squares."""
    for _ in range(int(np.ceil(np.log2(len(hours))))):
        hours = dxgemm.gemm(hours, hours, inner=inners.min_plus)
    return hours


def walk(hours: np.ndarray, shortest: np.ndarray, start: int, end: int) -> list[int]:
    """Points of the shortest walk, found from its length: each edge leads nearer to the end."""
    points = [start]
    while points[-1] != end:
        here = points[-1]
        onward = hours[here] + shortest[:, end]
        onward[here] = np.inf
        points.append(int(onward.argmin()))
    return points


def nearest_digits(images: np.ndarray, labels: np.ndarray, dtype: str) -> tuple[float, Any]:
    """Share of every third digit whose nearest other one has its label; the call to time."""
    is_query = np.arange(len(images)) % 3 == 0
    points, queries = images[~is_query].astype(dtype), images[is_query].astype(dtype)
    sent = send(queries), send(points)
    nearest = reductions.argmin(1)

    def call() -> Any:
        return dxgemm.gemm(sent[0], sent[1].T, inner=inners.l1, epilogue=nearest)

    found = fetch(call())
    expected = [int(np.abs(points - query).sum(axis=1).argmin()) for query in queries]
    if not np.array_equal(found, expected):
        raise ArithmeticError("A nearest digit differs from NumPy's.")
    return float(np.mean(labels[~is_query][found] == labels[is_query])), call


def text_lines(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Lines of a text as indices of letters, and (27, 27) scores of a letter after a letter."""
    text = "".join(letter for letter in load_digits().DESCR.lower() if letter in LETTERS)
    indices = np.array([LETTERS.index(letter) for letter in " ".join(text.split())])
    counts = np.full((len(LETTERS), len(LETTERS)), RARELY)
    np.add.at(counts, (indices[:-1], indices[1:]), 1.0)
    logarithms = np.log(counts / counts.sum(axis=1, keepdims=True))
    return indices[: count * LINE].reshape(-1, LINE), np.rint(PER_NAT * logarithms) / PER_NAT


def decode(keys: np.ndarray, bigrams: np.ndarray, dtype: str, step: Any) -> np.ndarray:
    """Most probable letters of each line by Viterbi's algorithm.

    Args:
        keys: (lines, letters), the key of each letter.
        bigrams: (27, 27), score of a letter after a letter.
        step: (scores of each line's last letter, bigrams, scores of the next letter by its key) ->
            the best score of each next letter.
    """
    seen = np.where(keys[..., np.newaxis] == KEYS, 0.0, -np.inf).astype(dtype)
    bigrams = bigrams.astype(dtype)
    best = [seen[:, 0]]
    for place in range(1, keys.shape[1]):
        best.append(step(best[-1], bigrams, np.ascontiguousarray(seen[:, place])))
    letters = [best[-1].argmax(axis=1)]
    for before in best[-2::-1]:
        letters.append((before + bigrams[:, letters[-1]].T).argmax(axis=1))
    return np.array(letters[::-1]).T


def product_step(before: np.ndarray, bigrams: np.ndarray, seen: np.ndarray) -> np.ndarray:
    sent = (send(array) for array in (before, bigrams))
    found: np.ndarray = fetch(
        dxgemm.gemm(*sent, inner=inners.max_plus, epilogue=residual(send(seen)))
    )
    return found


def plain_step(before: np.ndarray, bigrams: np.ndarray, seen: np.ndarray) -> np.ndarray:
    best: np.ndarray = (before[:, :, np.newaxis] + bigrams).max(axis=1)
    return best + seen


def draw(elevations: np.ndarray, stride: int, walks: dict[str, Any], path: Path) -> None:
    """The terrain, the most central point, and the longest of the shortest walks."""
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    axes = figure.subplots()
    shown = axes.imshow(elevations[::2, ::2], cmap="gist_earth", vmin=200, vmax=1100,
                        extent=(0, elevations.shape[1], elevations.shape[0], 0))  # fmt: skip
    figure.colorbar(shown, ax=axes, label="metres above the sea", shrink=0.8)
    cols = len(range(0, elevations.shape[1], stride))
    places = np.array(walks["longest"])
    axes.plot(places % cols * stride, places // cols * stride, "-", color="crimson", linewidth=2,
              label=f"longest of all shortest walks: {walks['hours']:.1f} hours")  # fmt: skip
    axes.plot(walks["centre"] % cols * stride, walks["centre"] // cols * stride, "w*",
              markersize=14, markeredgecolor="black",
              label=f"within {walks['radius']:.1f} hours of everywhere")  # fmt: skip
    axes.set(xticks=[], yticks=[], title=f"Shortest walks between {walks['points']} points")
    axes.legend(loc="lower right")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plot", type=Path, help="file for the plot, such as walks.svg")
    parser.add_argument("--stride", type=int, help="elevations from point to point")
    options = parser.parse_args()
    stride = options.stride or (SIMULATED_STRIDE if IS_SIMULATED else STRIDE)
    elevations = terrain()
    hours = walking_hours(elevations[::stride, ::stride], stride)
    images, labels = load_digits(return_X_y=True)
    images, labels = (x[: 24 if IS_SIMULATED else None] for x in (images, labels))
    lines, bigrams = text_lines(2 if IS_SIMULATED else 30)
    lines = lines[:, : 8 if IS_SIMULATED else None]
    exact = shortest_path(hours)
    plain = decode(KEYS[lines], bigrams, "float64", plain_step)
    rows = []
    for dtype in DTYPES:
        edges = send(hours.astype(dtype))
        shortest = fetch(all_shortest(edges))
        if not np.allclose(shortest, exact, rtol=16 * np.finfo(dtype).eps):
            raise ArithmeticError("A shortest walk differs from SciPy's.")
        right, call = nearest_digits(images, labels, dtype)
        decoded = decode(KEYS[lines], bigrams, dtype, product_step)
        if not np.array_equal(decoded, plain):
            raise ArithmeticError("A decoded letter differs from that of the plain algorithm.")
        timed = [call_us(each) for each in (lambda edges=edges: all_shortest(edges), call)]
        rows += [(dtype, f"shortest walks between {len(hours)} points", time_text(timed[0])),
                 (dtype, f"nearest of {len(images)} digits, {right:.1%} right",
                  time_text(timed[1]))]  # fmt: skip
    print_table(("dtype", "product", ">time"), rows)
    print(f"Letters found from their keys: {np.mean(plain == lines):.1%}, such as")
    print("", *("".join(LETTERS[i] for i in line) for line in plain[:2]), sep="\n  ")
    print("Every walk agrees with SciPy's, every digit and letter with NumPy's.")
    farthest = exact.max(axis=1)
    ends = np.unravel_index(exact.argmax(), exact.shape)
    walks = {
        "points": len(hours), "longest": walk(hours, exact, int(ends[0]), int(ends[1])),
        "hours": exact.max(), "centre": int(farthest.argmin()), "radius": farthest.min(),
    }  # fmt: skip
    draw(elevations, stride, walks, options.plot)
    print(f"Plotted to {options.plot}.")


if __name__ == "__main__":
    main()
