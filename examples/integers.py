"""Exact integers: walks in a graph, a code that corrects erasures, and a quantised layer.

    python examples/integers.py

Walks: with A the adjacency matrix of a graph, A**k counts its walks of k steps, and the diagonal of
A**3 six times its triangles. Counts are int64, and exact.

Code: k symbols of a field of p elements are the coefficients of a polynomial, sent as its values at
n > k points (Reed and Solomon, 1960). Any k values give the symbols back. Both directions are
products modulo p, of all messages at once.

Layer: activations are uint8 with a scale and a zero point for each row, weights int8 with a scale
for each column. An epilogue makes floats of the int32 sums.

Each result is checked against Python's integers or NumPy. Without a GPU the sizes are small, and
numba's simulator computes them.
"""

from __future__ import annotations

import argparse

import numpy as np
from timing import IS_SIMULATED, fetch, send

import dxgemm
from dxgemm.epilogues import ColumnVector, RowVector

PRIME = 2**31 - 1
SIZE, SIMULATED_SIZE = 512, 12
STEPS, MOST_POINTS = 8, 48


@dxgemm.epilogue
def dequantised(
    value, row, col, scales: ColumnVector, zeros: ColumnVector, weights: RowVector, sums: RowVector
):
    """Real value of a sum: zeros are the rows' zero points, sums those of the weights' columns."""
    return scales * weights * (value - zeros * sums)


def count_walks(rng: np.random.Generator, size: int) -> str:
    """Count the triangles and the walks of a random graph in which a node has about six others."""
    chosen = np.triu(rng.random((size, size)) < 6 / size, 1)
    graph = (chosen | chosen.T).astype(np.int64)
    power = sent = send(graph)
    square = fetch(dxgemm.gemm_symmetric(sent))
    for _ in range(STEPS.bit_length() - 1):  # 2, 4, 8 steps
        power = dxgemm.gemm(power, power)
    walks = fetch(power)
    start = np.zeros(size, dtype=object)
    start[0] = 1
    for _ in range(STEPS):
        start = graph.astype(object) @ start
    if not (walks[:, 0] == start).all():
        raise ArithmeticError("The walks are not those of Python's integers.")
    triangles = int((square * graph).sum()) // 6
    return f"{triangles} triangles, {walks.sum()} walks of {STEPS} steps"


def inverse_modulo(matrix: np.ndarray, prime: int) -> np.ndarray:
    """Inverse of a matrix of Python's integers in the field of `prime` elements, by elimination."""
    size = len(matrix)
    rows = np.concatenate([matrix, np.eye(size, dtype=int).astype(object)], axis=1) % prime
    for i in range(size):
        pivot = next(row for row in range(i, size) if rows[row, i])
        rows[[i, pivot]] = rows[[pivot, i]]
        rows[i] = rows[i] * pow(int(rows[i, i]), -1, prime) % prime
        others = np.arange(size) != i
        rows[others] = (rows[others] - np.outer(rows[others, i], rows[i])) % prime
    return rows[:, size:]


def correct_erasures(rng: np.random.Generator, size: int) -> str:
    """Encode messages, lose every third value, and get the messages back."""
    points = min(size, MOST_POINTS)
    symbols = 2 * points // 3
    messages = rng.integers(0, PRIME, (size, symbols))
    powers = [[pow(point, i, PRIME) for point in range(1, points + 1)] for i in range(symbols)]
    code = np.array(powers, np.int64)
    sent = fetch(dxgemm.gemm(send(messages), send(code), modulus=PRIME))
    if not (sent[0] == messages[0].astype(object) @ code.astype(object) % PRIME).all():
        raise ArithmeticError("A code word is not that of Python's integers.")
    kept = np.flatnonzero(np.arange(points) % 3 != 2)[:symbols]
    decoder = inverse_modulo(code[:, kept].astype(object), PRIME).astype(np.int64)
    received = np.ascontiguousarray(sent[:, kept])
    found = fetch(dxgemm.gemm(send(received), send(decoder), modulus=PRIME))
    if not (found == messages).all():
        raise ArithmeticError("The messages did not come back.")
    return f"{size} messages of {symbols} symbols came back from {len(kept)} of {points} values"


def apply_layer(rng: np.random.Generator, size: int) -> str:
    """Multiply quantised activations by quantised weights, and compare with their real values."""
    x = rng.integers(0, 256, (size, size), dtype=np.uint8)
    weights = rng.integers(-128, 128, (size, size), dtype=np.int8)
    scales, weight_scales = (rng.uniform(0.01, 0.02, size).astype(np.float32) for _ in range(2))
    zeros = rng.integers(100, 156, size).astype(np.float32)
    sums = weights.sum(axis=0, dtype=np.int32).astype(np.float32)
    vectors = map(send, (scales, zeros, weight_scales, sums))
    out = send(np.zeros((size, size), np.float32))
    dxgemm.gemm(send(x), send(weights), out=out, epilogue=dequantised(*vectors))
    real = (x - zeros[:, np.newaxis].astype(float)) * scales[:, np.newaxis]
    expected = real @ (weights * weight_scales.astype(float))
    error = np.abs(fetch(out) - expected).max() / np.abs(expected).max()
    if error > 1e-6:
        raise ArithmeticError("The layer differs from NumPy's.")
    return f"largest error {error:.1e} of the largest value"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, help="nodes, messages and width of the layer")
    options = parser.parse_args()
    size = options.size or (SIMULATED_SIZE if IS_SIMULATED else SIZE)
    rng = np.random.default_rng(1)
    for name, run in (("walks", count_walks), ("code", correct_erasures), ("layer", apply_layer)):
        print(f"{name}: {run(rng, size)}")
    print("Every result agrees with Python's integers, or NumPy's.")


if __name__ == "__main__":
    main()
