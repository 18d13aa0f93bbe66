"""Gram matrix and RBF kernel of handwritten digits, each in one call that computes half of it.

    python examples/gram.py gram.svg

computes in float32 and float64, of scikit-learn's digits x_i,

    x_i . x_j    and    exp(-gamma |x_i - x_j|^2)

the second by an epilogue on the elements of the first. Both matrices are symmetric bit for bit, and
are checked against NumPy. Kernel ridge regression on the RBF kernel classifies the digits that it
was not fitted to. Plotted are the RBF kernel, with the digits in order, and, on a GPU, the time of
the call by the number of digits, with and without knowledge of the symmetry. Without a GPU, a few
digits run on numba's simulator and nothing is timed.

Needs the extra `examples`, and on a GPU `cu13` or `cu12`.

Saunders, Gammerman and Vovk, "Ridge Regression Learning Algorithm in Dual Variables", ICML 1998.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from timing import CLOCK, IS_SIMULATED, IS_TIMED, call_us, fetch, print_table, send, time_text

import dxgemm
from dxgemm.epilogues import ColumnVector, RowVector, Scalar

CLASSES, PIXELS, LARGEST_PIXEL = 10, 64, 16.0
GAMMA, RIDGE = 0.05, 0.1
DTYPES = ("float32", "float64")
COUNTS = (256, 1024, 1797, 4096, 8192)
SIMULATED_COUNTS = (40,)  # digits that the simulator is given


@dxgemm.epilogue
def rbf(value, row, col, gamma: Scalar, row_norms: ColumnVector, col_norms: RowVector):
    """exp(-gamma |x - y|^2), from x . y and the squared norms of x and y."""
    return math.exp(-gamma * ((row_norms + col_norms) - 2.0 * value))


@dataclass(frozen=True)
class Measurement:
    """Times of the RBF kernel of so many digits; None without a GPU.

    Attributes:
        dtype: dtype of the digits.
        count: number of digits.
        symmetric_us: time of a call that computes half the matrix.
        whole_us: time of a call that computes all of it.
    """

    dtype: str
    count: int
    symmetric_us: float | None
    whole_us: float | None


def kernel_call(points: Any) -> Callable[[], Any]:
    """Make a function that computes the RBF kernel of points, (count, features)."""
    norms = (points * points).sum(axis=1)
    return lambda: dxgemm.gemm_symmetric(points, epilogue=rbf(GAMMA, norms, norms))


def whole_call(points: Any) -> Callable[[], Any]:
    """Make a function that computes the same by `gemm`, which sees two different matrices."""
    norms, others = (points * points).sum(axis=1), points.copy()
    return lambda: dxgemm.gemm(points, others.T, epilogue=rbf(GAMMA, norms, norms))


def check(found: np.ndarray, expected: np.ndarray, limit: float) -> None:
    """Check that a matrix is symmetric bit for bit, and close to NumPy's.

    Raises:
        ArithmeticError: it is not.
    """
    is_symmetric = found.tobytes() == np.ascontiguousarray(found.T).tobytes()
    if not (is_symmetric and np.all(np.abs(found - expected) <= limit)):
        raise ArithmeticError("A matrix is not symmetric, or differs from NumPy's.")


def measure(images: np.ndarray, count: int, dtype: str) -> tuple[Measurement, np.ndarray]:
    """Compute, check and time both matrices of so many digits, repeated if there are too few.

    Returns:
        The times, and the RBF kernel.

    Raises:
        ArithmeticError: a matrix is wrong.
    """
    points = np.resize(images, (count, PIXELS)).astype(dtype)
    sent = send(points)
    gram = points.astype(float) @ points.T.astype(float)
    norms = np.diag(gram)
    rounding = 2 * PIXELS * np.finfo(dtype).eps * norms.max()
    check(fetch(dxgemm.gemm_symmetric(sent)), gram, rounding)
    kernel = fetch(kernel_call(sent)())
    distances = norms[:, np.newaxis] + norms - 2.0 * gram
    check(kernel, np.exp(-GAMMA * distances), 4 * GAMMA * rounding + 8 * np.finfo(dtype).eps)
    if not IS_TIMED:
        return Measurement(dtype, count, None, None), kernel
    times = (call_us(make(sent)) for make in (kernel_call, whole_call))
    return Measurement(dtype, count, *times), kernel


def classify(kernel: np.ndarray, labels: np.ndarray) -> float:
    """Share of every third digit that the others classify right, by kernel ridge regression."""
    is_test = np.arange(len(labels)) % 3 == 0
    fitted = kernel[~is_test][:, ~is_test].astype(float) + RIDGE * np.eye(np.sum(~is_test))
    weights = np.linalg.solve(fitted, np.eye(CLASSES)[labels[~is_test]])
    scores = kernel[is_test][:, ~is_test] @ weights
    return float(np.mean(scores.argmax(axis=1) == labels[is_test]))


def draw(measurements: Sequence[Measurement], kernel: np.ndarray, path: Path) -> None:
    """The RBF kernel, and the times by the number of digits."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    picture, times = figure.subplots(1, 2)
    figure.colorbar(picture.imshow(kernel, interpolation="nearest"), ax=picture)
    picture.set(title="RBF kernel of the digits, in order of their labels", xticks=[], yticks=[])
    for color, dtype in zip(("tab:blue", "tab:orange"), DTYPES, strict=True):
        own = [m for m in measurements if m.dtype == dtype and m.symmetric_us is not None]
        counts = [measured.count for measured in own]
        if own:
            symmetric, whole = [m.symmetric_us for m in own], [m.whole_us for m in own]
            times.plot(counts, symmetric, "o-", color=color, label=f"{dtype}, gemm_symmetric")
            times.plot(counts, whole, "s--", color=color, label=f"{dtype}, gemm")
    times.set(title="Time of the RBF kernel", xlabel="digits")
    if times.lines:
        times.set(ylabel="microseconds", xscale="log", yscale="log")
        times.legend()
    else:
        times.set(xticks=[], yticks=[])
        times.text(0.5, 0.5, "not timed: no GPU", ha="center", transform=times.transAxes)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plot", type=Path, help="file for the plot, such as gram.svg or gram.png")
    parser.add_argument("--counts", type=int, nargs="+", metavar="COUNT")
    options = parser.parse_args()
    counts = options.counts or (SIMULATED_COUNTS if IS_SIMULATED else COUNTS)

    images, labels = load_digits(return_X_y=True)
    images /= LARGEST_PIXEL
    measurements = [measure(images, count, dtype)[0] for dtype in DTYPES for count in counts]
    print_table(
        ("dtype", ">digits", ">gemm_symmetric", ">gemm"),
        [
            (measured.dtype, measured.count, time_text(measured.symmetric_us),
             time_text(measured.whole_us))
            for measured in measurements
        ],
    )  # fmt: skip
    print(CLOCK)
    count = min(max(counts), len(images))
    order = np.argsort(labels[:count], kind="stable")
    for dtype in DTYPES:
        _, kernel = measure(images[order], count, dtype)
        by_place = np.argsort(order)
        right = classify(kernel[by_place][:, by_place], labels[:count])
        print(f"Kernel ridge regression in {dtype}: {right:.1%} of {-(-count // 3)} digits right.")
    print("Every matrix is symmetric bit for bit, and agrees with NumPy's.")
    draw(measurements, kernel, options.plot)
    print(f"Plotted to {options.plot}.")


if __name__ == "__main__":
    main()
