"""A network on handwritten digits in float8 beside bfloat16: how many digits each gets right.

    python examples/float8_mlp.py float8_mlp.svg

runs, for scikit-learn's digits,

    hidden = gelu(images @ w1 + b1)
    scores = hidden @ w2 + b2

in bfloat16, and in both formats of float8: weights have a scale per column, images and hidden
layers one per row, and the kernel of the first product leaves the hidden layer in float8 for the
second. On a GPU it also trains such a network, with products of float8 and gradients in bfloat16 or
float8, beside one of bfloat16. Without a GPU, a few digits run on numba's simulator.

Needs the extra `examples`, and on a GPU `cu13` or `cu12` and `torch`, whose arrays are of float8.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from matplotlib.figure import Figure
from mlp import CLASSES, HIDDEN, Network, fit, hidden_layer, largest_sums
from sklearn.datasets import load_digits
from timing import print_table

import dxgemm
from dxgemm.epilogues import bias, gelu
from dxgemm.reductions import quantise_rows

# Formats, with the largest error of an element in rounding.
FORMATS = {"bfloat16": 2.0**-9, "float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3}
ROUNDINGS = 5  # of images, weights and the hidden layer, which gelu may enlarge a little
EPOCHS, BATCH = 30, 128


def send(array: np.ndarray) -> Any:
    """An array where kernels read it: torch's on a GPU, since CuPy has no float8."""
    if dxgemm.simulate(unless_gpu=True):
        return array
    import torch

    bits = torch.from_numpy(np.ascontiguousarray(array).view(f"u{array.itemsize}").copy())
    return bits.cuda().view(getattr(torch, str(array.dtype)))


def fetch(array: Any) -> np.ndarray:
    is_host = isinstance(array, np.ndarray)
    return np.asarray(array if is_host else array.float().cpu().numpy(), float)


def columns_of(weights: np.ndarray, dtype: str) -> tuple[Any, Any]:
    """A matrix of weights in float8, and a scale for each of its columns."""
    values, scales = quantise_rows(dtype).on_host(np.float32(weights.T))
    return send(values).T, send(scales).T


def scores_of(images: np.ndarray, network: Network, dtype: str) -> np.ndarray:
    """Scores of a batch in one of `FORMATS`."""
    b1, b2 = (send(np.float32(vector)) for vector in (network.b1, network.b2))
    out = send(np.zeros((len(images), CLASSES), np.float32))
    if dtype == "bfloat16":
        x, w1, w2 = (send(m.astype(ml_dtypes.bfloat16)) for m in (images, network.w1, network.w2))
        hidden = dxgemm.gemm(x, w1, epilogue=bias(b1) | gelu)
        return fetch(dxgemm.gemm(hidden, w2, out=out, epilogue=bias(b2)))
    x, of_x = map(send, quantise_rows(dtype).on_host(np.float32(images)))
    w1, of_w1 = columns_of(network.w1, dtype)
    w2, of_w2 = columns_of(network.w2, dtype)
    layer = bias(b1) | gelu | quantise_rows(dtype)
    hidden, of_hidden = dxgemm.gemm(x, w1, scale_a=of_x, scale_b=of_w1, epilogue=layer)
    scales = {"scale_a": of_hidden, "scale_b": of_w2}
    return fetch(dxgemm.gemm(hidden, w2, out=out, epilogue=bias(b2), **scales))


def check(scores: np.ndarray, images: np.ndarray, network: Network, dtype: str) -> float:
    """Largest difference from NumPy's scores in float64, over the largest score.

    Raises:
        ArithmeticError: a score is further from NumPy's than rounding explains.
    """
    exact = hidden_layer(images, network) @ network.w2 + network.b2
    difference = np.abs(scores - exact)
    if np.any(difference > ROUNDINGS * FORMATS[dtype] * largest_sums(images, network)):
        raise ArithmeticError(f"{dtype} scores differ from NumPy's by more than rounding explains.")
    return float(difference.max() / np.abs(exact).max())


def train(images: np.ndarray, labels: np.ndarray, is_test: np.ndarray) -> dict[str, list[float]]:
    """Share of the test digits that networks get right after each epoch, by arithmetic."""
    import torch

    import dxgemm.torch as dxt

    x, y = torch.tensor(images, dtype=torch.float32).cuda(), torch.tensor(labels).cuda()
    test = torch.tensor(is_test).cuda()
    layers: dict[str, Any] = {
        "bfloat16": dxt.Linear,
        "float8, gradients in bfloat16": dxt.Float8Linear,
        "float8, gradients in e5m2": lambda *sizes: dxt.Float8Linear(
            *sizes, gradients=torch.float8_e5m2
        ),
    }
    curves: dict[str, list[float]] = {}
    for name, layer in layers.items():
        torch.manual_seed(0)
        first, second = layer(images.shape[1], HIDDEN), layer(HIDDEN, CLASSES)
        network = torch.nn.Sequential(first, torch.nn.GELU(), second).cuda()
        optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
        curves[name] = []
        for _ in range(EPOCHS):
            for rows in torch.randperm(int((~test).sum())).cuda().split(BATCH):
                with torch.autocast("cuda", torch.bfloat16, enabled=name == "bfloat16"):
                    scores = network(x[~test][rows])
                torch.nn.functional.cross_entropy(scores.float(), y[~test][rows]).backward()
                optimizer.step()
                optimizer.zero_grad()
            with torch.no_grad():
                right = network(x[test]).argmax(1) == y[test]
            curves[name].append(float(right.float().mean()))
    return curves


def draw(rows: list[tuple[str, float, float]], curves: dict[str, list[float]], path: Path) -> None:
    """Digits that are right by format, and by epoch of training."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    formats, training = figure.subplots(1, 2)
    formats.bar([name for name, _, _ in rows], [100 * right for _, right, _ in rows], width=0.5)
    formats.set(title="A fitted network, run in each format", ylabel="% of digits right")
    formats.set_ylim(bottom=max(0.0, 100 * min(right for _, right, _ in rows) - 5), top=100)
    training.set(title="Training", xlabel="epoch")
    for name, curve in curves.items():
        training.plot(range(1, len(curve) + 1), [100 * right for right in curve], label=name)
    if curves:
        training.set_ylim(bottom=80, top=100)
        training.legend()
    else:
        training.set(xticks=[], yticks=[])
        training.text(0.5, 0.5, "not trained: no GPU", ha="center", transform=training.transAxes)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plot", type=Path, help="file for the plot, such as float8_mlp.svg")
    parser.add_argument("--digits", type=int, help="number of test digits; all by default")
    options = parser.parse_args()
    is_simulated = dxgemm.simulate(unless_gpu=True)
    images, labels = load_digits(return_X_y=True)
    images = images / 16.0  # exact in every format
    is_test = np.arange(len(images)) % 3 == 0
    network = fit(images[~is_test], labels[~is_test])
    count = options.digits or (8 if is_simulated else None)
    few, few_labels = images[is_test][:count], labels[is_test][:count]
    exact = hidden_layer(few, network) @ network.w2 + network.b2
    rows = [("float64", float(np.mean(exact.argmax(1) == few_labels)), 0.0)]
    for dtype in FORMATS:
        scores = scores_of(few, network, dtype)
        right = float(np.mean(scores.argmax(1) == few_labels))
        rows.append((dtype, right, check(scores, few, network, dtype)))
    print_table(
        ("format", ">right", ">difference from NumPy"),
        [(name, f"{right:.1%}", f"{error:.1e}") for name, right, error in rows],
    )
    print("Every score agrees with NumPy's within the rounding of its format.")
    curves = {} if is_simulated else train(images, labels, is_test)
    for name, curve in curves.items():
        print(f"Trained in {name}: {curve[-1]:.1%} of the test digits right.")
    draw(rows, curves, options.plot)
    print(f"Plotted to {options.plot}.")


if __name__ == "__main__":
    main()
