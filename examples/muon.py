"""Newton-Schulz iterations as the optimiser Muon takes them, symmetric products by half the work.

    python examples/muon.py muon.svg

Muon replaces the gradient of a layer by a matrix of the same singular vectors, whose singular
values are all near 1. It needs products alone: from X, the gradient over its norm, five times

    A = X X^T,    B = b A + c A A,    X = a X + B X

A and A A are symmetric: `gemm_symmetric` computes half of each, and what is added rides on beta.
The gradient is that of the middle layer of a network that sees scikit-learn's digits for the first
time. Each result is checked against NumPy. Plotted are the singular values after each iteration
and, on a GPU, the time of the five by the layer's width, and torch's if it is installed. Without a
GPU, a narrow layer runs on numba's simulator and nothing is timed.

Needs the extra `examples`, and on a GPU `cu13` or `cu12`.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024, for a, b and c.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from timing import CLOCK, IS_SIMULATED, IS_TIMED, call_us, fetch, print_table, send, time_text

import dxgemm

A, B, C = 3.4445, -4.7750, 2.0315
ITERATIONS = 5
CLASSES, PIXELS, LARGEST_PIXEL = 10, 64, 16.0
DTYPES = ("float16", "float32", "float64")
WIDTHS = (512, 1024, 2048, 4096)
SIMULATED_WIDTHS = (12,)
# Errors of the iterations, of matrices whose singular values are near 1, over the dtype's rounding.
MOST_ROUNDINGS = 64


@dataclass(frozen=True)
class Measurement:
    """Microseconds of all iterations; None without a GPU, or without torch.

    Attributes:
        dtype: dtype of the gradient.
        width: rows and columns of the layer.
        own_us, torch_us: by dxgemm and by torch.
    """

    dtype: str
    width: int
    own_us: float | None = None
    torch_us: float | None = None


def gradient(width: int) -> np.ndarray:
    """Gradient of the middle weights, (width, width), of a network of three layers on the digits.

    The layers are random, of 64, width and width inputs, with tanh between them; the loss is the
    cross entropy. The gradient comes over its Frobenius norm.
    """
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    sizes = ((PIXELS, width), (width, width), (width, CLASSES))
    first, middle, last = (rng.standard_normal(size) / np.sqrt(size[0]) for size in sizes)
    inputs = np.tanh(images / LARGEST_PIXEL @ first)
    outputs = np.tanh(inputs @ middle)
    scores = np.exp(outputs @ last)
    errors = scores / scores.sum(axis=1, keepdims=True) - np.eye(CLASSES)[labels]
    found = inputs.T @ (errors @ last.T * (1 - outputs**2))
    return found / np.linalg.norm(found)


def numpy_iterates(x: np.ndarray) -> list[np.ndarray]:
    """X before and after each iteration, by NumPy."""
    iterates = [x]
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = A * x + (B * gram + C * gram @ gram) @ x
        iterates.append(x)
    return iterates


def own_call(x: Any) -> Callable[[], Any]:
    """Make a function that iterates on an array (n, n), and returns another."""
    gram, polynomial, *buffers = (x.copy() for _ in range(4))

    def iterate() -> Any:
        current = x
        for iteration in range(ITERATIONS):
            dxgemm.gemm_symmetric(current, out=gram)
            dxgemm.gemm_symmetric(gram, gram, C, B, out=polynomial)
            target = buffers[iteration % 2]
            current = dxgemm.gemm(polynomial, current, current, 1.0, A, out=target)
        return current

    return iterate


def torch_call(x: Any) -> Callable[[], Any]:
    """Make a function that does the same by torch, on an array of the GPU."""
    import torch

    given = torch.from_dlpack(x)

    def iterate() -> Any:
        current = given
        for _ in range(ITERATIONS):
            gram = current @ current.T
            polynomial = torch.addmm(gram, gram, gram, beta=B, alpha=C)
            current = torch.addmm(current, polynomial, current, beta=A)
        return current

    return iterate


def measure(gradient: np.ndarray, dtype: str) -> Measurement:
    """Iterate on a gradient rounded to a dtype, check the result, and time it on a GPU.

    Raises:
        ArithmeticError: the result is not NumPy's.
    """
    rounded = gradient.astype(dtype)
    x = send(rounded)
    expected = numpy_iterates(rounded.astype(float))[-1]
    error = np.abs(fetch(own_call(x)()).astype(float) - expected).max()
    if not error <= MOST_ROUNDINGS * np.finfo(dtype).eps:
        raise ArithmeticError(f"The result in {dtype} differs from NumPy's by {error:.2g}.")
    width = len(gradient)
    if not IS_TIMED:
        return Measurement(dtype, width)
    torch_us = call_us(torch_call(x)) if find_spec("torch") else None
    return Measurement(dtype, width, call_us(own_call(x)), torch_us)


def draw(measurements: Sequence[Measurement], iterates: Sequence[np.ndarray], path: Path) -> None:
    """The singular values after each iteration, and the times by width."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    values, times = figure.subplots(1, 2)
    for number, x in enumerate(iterates):
        values.plot(np.linalg.svd(x, compute_uv=False), label=f"after {number}")
    values.set(
        title="Singular values of the gradient", xlabel="place", yscale="log", ylim=(1e-4, 3)
    )
    values.legend(title="iterations")
    for color, dtype in zip(("tab:blue", "tab:orange", "tab:green"), DTYPES, strict=True):
        own = [m for m in measurements if m.dtype == dtype and m.own_us is not None]
        widths = [measured.width for measured in own]
        if own:
            times.plot(widths, [m.own_us for m in own], "o-", color=color, label=f"{dtype}, dxgemm")
        if own and own[0].torch_us is not None:
            torch_us = [measured.torch_us for measured in own]
            times.plot(widths, torch_us, "s--", color=color, label=f"{dtype}, torch")
    times.set(title=f"Time of {ITERATIONS} iterations", xlabel="width of the layer")
    if times.lines:
        times.set(ylabel="microseconds", xscale="log", yscale="log")
        times.legend()
    else:
        times.set(xticks=[], yticks=[])
        times.text(0.5, 0.5, "not timed: no GPU", ha="center", transform=times.transAxes)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plot", type=Path, help="file for the plot, such as muon.svg or muon.png")
    parser.add_argument("--widths", type=int, nargs="+", metavar="WIDTH")
    options = parser.parse_args()
    widths = options.widths or (SIMULATED_WIDTHS if IS_SIMULATED else WIDTHS)

    gradients = {width: gradient(width) for width in widths}
    measurements = [measure(found, dtype) for dtype in DTYPES for found in gradients.values()]
    print_table(
        ("dtype", ">width", ">dxgemm", ">torch"),
        [(m.dtype, m.width, time_text(m.own_us), time_text(m.torch_us)) for m in measurements],
    )
    print(CLOCK)
    iterates = numpy_iterates(gradients[min(widths)])
    largest, median = np.quantile(np.linalg.svd(iterates[-1], compute_uv=False), (1.0, 0.5))
    print(f"Singular values then: median {median:.2f}, at most {largest:.2f}.")
    print("Every result agrees with NumPy's.")
    draw(measurements, iterates, options.plot)
    print(f"Plotted to {options.plot}.")


if __name__ == "__main__":
    main()
