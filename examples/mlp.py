"""A two-layer network on handwritten digits: each layer one kernel, with bias and gelu inside.

    python examples/mlp.py mlp.svg

computes, in float32 and float64, for scikit-learn's digits

    hidden = gelu(images @ w1 + b1)
    scores = hidden @ w2 + b2

checks the scores against NumPy and SciPy, and plots how far apart they are and, on a GPU, how long
a batch takes: fused, and as the same products with bias and gelu in kernels of their own. Without a
GPU, a few digits run on numba's simulator and nothing is timed.

Needs the extra `examples`, and on a GPU `cu13` or `cu12`.

The first layer is random, the second the least-squares fit behind it: Huang, Zhu and Siew, "Extreme
learning machine: theory and applications", Neurocomputing 70, 2006.
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
from scipy.special import erf
from sklearn.datasets import load_digits
from timing import CLOCK, IS_SIMULATED, IS_TIMED, call_us, fetch, print_table, send, time_text

import dxgemm
from dxgemm.epilogues import bias, gelu

HIDDEN, CLASSES = 256, 10
RIDGE = 0.1
DTYPES = ("float32", "float64")
BATCH_SIZES = (16, 64, 256, 1024, 4096, 16384, 65536)
SIMULATED_BATCH_SIZES = (1, 2, 4, 8)

# What separate_forward has between its products.
BIAS_GELU = """
T shifted = value + vector;
result = T(0.5) * shifted * (T(1) + erf(T(0.70710678118654752) * shifted));
"""


@dataclass(frozen=True)
class Network:
    """w1 (pixels, hidden), b1 (hidden,), w2 (hidden, classes) and b2 (classes,)."""

    w1: Any
    b1: Any
    w2: Any
    b2: Any

    def map(self, function: Callable[[Any], Any]) -> Network:
        return Network(*map(function, (self.w1, self.b1, self.w2, self.b2)))


@dataclass(frozen=True)
class Measurement:
    """One batch; `error` is the largest difference from NumPy, over the largest score."""

    dtype: str
    batch_size: int
    correct: int
    error: float
    fused_us: float | None
    separate_us: float | None


def forward(images: Any, network: Network) -> Any:
    """The scores of a batch: (batch, pixels) to (batch, classes)."""
    hidden = dxgemm.gemm(images, network.w1, epilogue=bias(network.b1) | gelu)
    return dxgemm.gemm(hidden, network.w2, epilogue=bias(network.b2))


def planned_forward(images: Any, network: Network) -> Callable[[], Any]:
    """The same for one batch in memory, decided and built before: a call launches two kernels."""
    first = dxgemm.plan(images, network.w1, epilogue=bias(network.b1) | gelu)
    second = dxgemm.plan(first(), network.w2, epilogue=bias(network.b2))

    def run() -> Any:
        first()
        return second()

    return run


def separate_forward(images: Any, network: Network) -> Callable[[], Any]:
    """The same products, each followed by one CuPy kernel: four launches."""
    import cupy

    bias_gelu = cupy.ElementwiseKernel("T value, T vector", "T result", BIAS_GELU, "bias_gelu")
    first = dxgemm.plan(images, network.w1)
    hidden = cupy.empty_like(first())
    second = dxgemm.plan(hidden, network.w2)

    def run() -> Any:
        bias_gelu(first(), network.b1, hidden)
        scores = second()
        scores += network.b2
        return scores

    return run


def hidden_layer(images: np.ndarray, network: Network) -> np.ndarray:
    """gelu(images @ w1 + b1), by NumPy and SciPy."""
    shifted = images @ network.w1 + network.b1
    return 0.5 * shifted * (1.0 + erf(math.sqrt(0.5) * shifted))


def largest_sums(images: np.ndarray, network: Network) -> np.ndarray:
    """The scores if all terms were positive: rounding errors are in proportion to these."""
    positive = network.map(np.abs)
    return (np.abs(images) @ positive.w1 + positive.b1) @ positive.w2 + positive.b2


def fit(images: np.ndarray, labels: np.ndarray) -> Network:
    """A random first layer, and a second one by ridge regression on the labels."""
    pixels = images.shape[1]
    rng = np.random.default_rng(0)
    w1 = rng.normal(0.0, 1.0 / math.sqrt(pixels), (pixels, HIDDEN))
    first = Network(w1, rng.normal(0.0, 0.5, HIDDEN), None, None)
    hidden = np.column_stack([hidden_layer(images, first), np.ones(len(images))])
    gram = hidden.T @ hidden + RIDGE * np.eye(HIDDEN + 1)
    second = np.linalg.solve(gram, hidden.T @ np.eye(CLASSES)[labels])
    return Network(first.w1, first.b1, second[:-1], second[-1])


def measure(images: np.ndarray, labels: np.ndarray, network: Network, dtype: str) -> Measurement:
    """Run a batch in a dtype, check it, and time it where there is a GPU.

    Raises:
        ArithmeticError: a score is further from NumPy's than rounding explains.
    """
    images, network = images.astype(dtype), network.map(lambda array: array.astype(dtype))
    sent, sent_network = send(images), network.map(send)
    scores = fetch(forward(sent, sent_network))

    exact, exact_images = network.map(np.float64), images.astype(float)
    expected = hidden_layer(exact_images, exact) @ exact.w2 + exact.b2
    terms = images.shape[1] + HIDDEN
    limits = terms * np.finfo(dtype).eps * largest_sums(exact_images, exact)
    if not np.all(np.abs(scores - expected) <= limits):
        raise ArithmeticError(f"{dtype} scores of {len(images)} digits differ from NumPy's.")

    fused_us = separate_us = None
    if IS_TIMED:
        fused_us = call_us(planned_forward(sent, sent_network))
        separate_us = call_us(separate_forward(sent, sent_network))
    return Measurement(
        dtype,
        len(images),
        int(np.sum(scores.argmax(axis=1) == labels)),
        float(np.max(np.abs(scores - expected)) / np.max(np.abs(expected))),
        fused_us,
        separate_us,
    )


def draw(measurements: Sequence[Measurement], path: Path) -> None:
    """Agreement and time by batch size."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    agreement, times = figure.subplots(1, 2)
    for color, dtype in zip(("tab:blue", "tab:orange"), DTYPES, strict=True):
        own = [measured for measured in measurements if measured.dtype == dtype]
        sizes = [measured.batch_size for measured in own]
        agreement.plot(sizes, [m.error for m in own], "o-", color=color, label=dtype)
        agreement.axhline(np.finfo(dtype).eps, ls=":", color=color, label=f"{dtype} epsilon")
        if own[0].fused_us is not None:
            times.plot(sizes, [m.fused_us for m in own], "o-", color=color, label=f"{dtype}, fused")
            times.plot(
                sizes,
                [m.separate_us for m in own],
                "s--",
                color=color,
                label=f"{dtype}, separate kernels",
            )
    agreement.set(
        title="Difference from NumPy over the largest score", xlabel="batch size",
        xscale="log", yscale="log",
    )  # fmt: skip
    agreement.legend()
    times.set(title="Time of a forward pass", xlabel="batch size")
    if times.lines:
        times.set(ylabel="microseconds", xscale="log", yscale="log")
        times.legend()
    else:
        times.set(xticks=[], yticks=[])
        times.text(0.5, 0.5, "not timed: no GPU", ha="center", transform=times.transAxes)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plot", type=Path, help="file for the plot, such as mlp.svg or mlp.png")
    parser.add_argument("--batch-sizes", type=int, nargs="+", metavar="ROWS")
    options = parser.parse_args()
    default_sizes = SIMULATED_BATCH_SIZES if IS_SIMULATED else BATCH_SIZES
    batch_sizes = options.batch_sizes or default_sizes

    images, labels = load_digits(return_X_y=True)
    images = images / 16.0  # exact in every dtype
    is_test = np.arange(len(images)) % 3 == 0
    network = fit(images[~is_test], labels[~is_test])
    images, labels = images[is_test], labels[is_test]
    scores = hidden_layer(images, network) @ network.w2 + network.b2
    accuracy = np.mean(scores.argmax(axis=1) == labels)
    print(f"The network: {accuracy:.1%} of {len(labels)} test digits right, by NumPy in float64.")

    measurements = []
    for dtype in DTYPES:
        for batch_size in batch_sizes:
            chosen = np.arange(batch_size) % len(images)
            measurements.append(measure(images[chosen], labels[chosen], network, dtype))
    print_table(
        ("dtype", ">batch", ">right", ">difference from NumPy", ">fused", ">separate kernels"),
        [
            (
                measured.dtype,
                measured.batch_size,
                f"{measured.correct / measured.batch_size:.1%}",
                f"{measured.error:.1e}",
                time_text(measured.fused_us),
                time_text(measured.separate_us),
            )
            for measured in measurements
        ],
    )
    print(CLOCK)
    print("Every score agrees with NumPy's within the rounding errors of its sums.")
    draw(measurements, options.plot)
    print(f"Plotted to {options.plot}.")


if __name__ == "__main__":
    main()
