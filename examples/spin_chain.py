"""Quantum dynamics of a chain of spins, by complex products: the Ising model after a quench.

    python examples/spin_chain.py chain.svg

All spins point up, and a field across them is switched on. Of L spins the Hamiltonian H is a matrix
of 2**L rows, and the state after a time t is U(t) = exp(-i H t) times the first one. U of a short
time is a Taylor polynomial by Horner's rule, whose step

    T = 1 - (i t / j) H T

is one call with a complex alpha, where the identity rides on beta. Squaring it leads to longer
times: U(2 t) = U(t) U(t). That U is unitary is one more call: the conjugate of its transpose, times
U, without a copy of either. A step of the state leaves the state and, in the same kernel, squares
its amplitudes to probabilities.

The magnetisation over time is checked against NumPy, which diagonalises H. Plotted are both and, on
a GPU, the time of a product by the number of spins: dxgemm's in the dtype's own arithmetic, by
three products and emulated, and CuPy's. Without a GPU, a short chain runs on numba's simulator and
nothing is timed.

Needs the extra `examples`, and on a GPU `cu13` or `cu12`.

P. Pfeuty, "The one-dimensional Ising model with a transverse field", 1970.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from timing import CLOCK, IS_SIMULATED, IS_TIMED, call_us, fetch, print_table, send, time_text

import dxgemm
from dxgemm.epilogues import keep, squared_magnitude

COUPLING, FIELD = 1.0, 0.8  # of neighbours, and across the chain
STEP, STEPS = 0.1, 40  # of time
SQUARINGS, DEGREE = 5, 10  # of the propagator of a step
DTYPES = ("complex64", "complex128")
PRECISIONS = (None, "3m", "emulated")
SPINS, SIMULATED_SPINS = (9, 10, 11), (3,)
# Errors of the magnetisation over the dtype's rounding, after all steps.
MOST_ROUNDINGS = 2**14


@dataclass(frozen=True)
class Measurement:
    """Microseconds of a product of propagators; empty without a GPU.

    Attributes:
        dtype, spins: dtype, and number of spins.
        by_name: time of each precision of dxgemm, and of "cupy".
    """

    dtype: str
    spins: int
    by_name: dict[str, float]


def spin_signs(spins: int) -> np.ndarray:
    """1 or -1 for each spin in each state of the chain, (states, spins)."""
    states = np.arange(2**spins)[:, None]
    return 1 - 2 * (states >> np.arange(spins) & 1)


def hamiltonian(spins: int) -> np.ndarray:
    """H of an open chain, (states, states): neighbours along the field's axis, and the field."""
    signs = spin_signs(spins)
    found = np.diag(-COUPLING * (signs[:, 1:] * signs[:, :-1]).sum(axis=1).astype(float))
    for spin in range(spins):
        states = np.arange(2**spins)
        found[states, states ^ (1 << spin)] -= FIELD
    return found


def exact_magnetisation(energy: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Mean spin after each step, by the eigenvectors of H."""
    energies, vectors = np.linalg.eigh(energy)
    phases = np.exp(-1j * np.outer(np.arange(STEPS + 1) * STEP, energies))
    states = (phases * vectors[0]) @ vectors.T
    return (np.abs(states) ** 2) @ signs.mean(axis=1)


def propagator(energy: Any, identity: Any) -> Any:
    """U of one step: a Taylor polynomial of a short time, squared several times."""
    short, current = STEP / 2**SQUARINGS, identity
    for power in range(DEGREE, 0, -1):
        current = dxgemm.gemm(
            energy, current, identity, -1j * short / power, 1.0, out=energy.copy()
        )
    for _ in range(SQUARINGS):
        current = dxgemm.gemm(current, current)
    return current


def magnetisation(step: Any, signs: np.ndarray) -> np.ndarray:
    """Mean spin after each step of the chain whose spins all point up at first."""
    state = fetch(step)[:, :1] * 0
    state[0] = 1
    current, found = send(state), [np.abs(state) ** 2]
    for _ in range(STEPS):
        following = current.copy()
        probabilities = dxgemm.gemm(
            step, current, epilogue=keep(kept=following) | squared_magnitude
        )
        current = following
        found.append(fetch(probabilities))
    return np.array([signs.mean(axis=1) @ likely[:, 0] for likely in found])


def measure(spins: int, dtype: str) -> tuple[Measurement, np.ndarray, np.ndarray]:
    """Propagate a chain, check it, and time the products; and both magnetisations.

    Raises:
        ArithmeticError: the propagator is not unitary, or the result is not NumPy's.
    """
    matrix, signs = hamiltonian(spins), spin_signs(spins)
    energy, identity = send(matrix.astype(dtype)), send(np.eye(len(matrix), dtype=dtype))
    step = propagator(energy, identity)
    allowed = MOST_ROUNDINGS * np.finfo(dtype).eps
    product = fetch(dxgemm.gemm(step.T, step, conjugate="a"))
    if not np.abs(product - np.eye(len(matrix))).max() <= allowed:
        raise ArithmeticError(f"The propagator in {dtype} is not unitary.")
    found, exact = magnetisation(step, signs), exact_magnetisation(matrix, signs)
    error = np.abs(found - exact).max()
    if not error <= allowed:
        raise ArithmeticError(f"The magnetisation in {dtype} differs from NumPy's by {error:.2g}.")
    times: dict[str, float] = {}
    if IS_TIMED:
        calls: dict[str, Callable[[], Any]] = {
            str(precision): partial(dxgemm.gemm, step, step, out=energy, precision=precision)
            for precision in PRECISIONS
        }
        calls["cupy"] = partial(step.__class__.dot, step, step, out=energy)
        times = {name: call_us(call) for name, call in calls.items()}
    return Measurement(dtype, spins, times), found, exact


def draw(
    measurements: Sequence[Measurement], found: np.ndarray, exact: np.ndarray, path: Path
) -> None:
    """The magnetisation over time, and the times by number of spins."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    spins, times = figure.subplots(1, 2)
    clock = np.arange(STEPS + 1) * STEP
    spins.plot(clock, exact, color="0.7", linewidth=5, label="NumPy, by eigenvectors")
    spins.plot(clock, found, "o", color="tab:blue", markersize=3, label="dxgemm, by products")
    spins.set(title="Magnetisation after the quench", xlabel="time", ylabel="mean spin")
    spins.legend()
    for color, dtype in zip(("tab:blue", "tab:orange"), DTYPES, strict=True):
        own = [m for m in measurements if m.dtype == dtype and m.by_name]
        styles = zip(own[0].by_name if own else (), ("o-", "^-", "v-", "s--"), strict=False)
        for name, style in styles:
            label = f"{dtype}, {name if name != 'None' else 'own arithmetic'}"
            values = [m.by_name[name] for m in own]
            times.plot([m.spins for m in own], values, style, color=color, label=label)
    times.set(title="Time of a product of propagators", xlabel="spins")
    if times.lines:
        times.set(
            ylabel="microseconds", yscale="log", xticks=sorted({m.spins for m in measurements})
        )
        times.legend(fontsize="small")
    else:
        times.set(xticks=[], yticks=[])
        times.text(0.5, 0.5, "not timed: no GPU", ha="center", transform=times.transAxes)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plot", type=Path, help="file for the plot, such as chain.svg or chain.png")
    parser.add_argument("--spins", type=int, nargs="+", metavar="SPINS")
    options = parser.parse_args()
    chains = options.spins or (SIMULATED_SPINS if IS_SIMULATED else SPINS)

    results = [measure(spins, dtype) for dtype in DTYPES for spins in chains]
    measurements = [measured for measured, _, _ in results]
    names = (*map(str, PRECISIONS), "cupy")
    print_table(
        ("dtype", ">spins", *[f">{'dxgemm' if name == 'None' else name}" for name in names]),
        [
            (m.dtype, m.spins, *[time_text(m.by_name.get(name)) for name in names])
            for m in measurements
        ],
    )
    print(CLOCK)
    print("Every propagator is unitary, and every magnetisation agrees with NumPy's.")
    _, found, exact = results[-1]
    draw(measurements, found, exact, options.plot)
    print(f"Plotted to {options.plot}.")


if __name__ == "__main__":
    main()
