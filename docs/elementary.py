"""Fit the polynomials of handwritten/parts/elementary.py.

    python docs/elementary.py            # rewrite them
    python docs/elementary.py --check    # exit 1 if they are others

Where all arguments matter alike, it is the interpolant at the zeros of a Chebyshev polynomial: no
polynomial of its degree is closer by more than a small factor. Else it is fitted by least squares,
again and again, with more weight where the error was large. All with 50 digits or more, rounded
once. Needs mpmath.
Sources: L. N. Trefethen, "Approximation Theory and Approximation Practice", 2013, chapters 2 and
16; J. R. Rice and K. H. Usow, "The Lawson algorithm and extensions", Mathematics of Computation 22,
1968.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
from mpmath import mpf

FILE = Path(__file__).parents[1] / "handwritten" / "parts" / "elementary.py"
BEGIN, END = "# fit:begin\n", "# fit:end\n"
LAWSON_STEPS = 4
NORMAL_ROOT_END = 8.3  # Phi(-8.3) is less than half a unit in the last place of 1
NORMAL_LOG_END = 13.0  # Phi(-13) is below the least normal float32


def interpolant(function: Callable[[Any], Any], terms: int) -> list[Any]:
    """Coefficients of 1, u, u**2, ... of the polynomial that meets a function of u in [-1, 1]."""
    nodes = [mpmath.cospi(mpf(2 * i + 1) / (2 * terms)) for i in range(terms)]
    values = [function(node) for node in nodes]
    previous, chebyshev = [mpf(0)] * terms, [mpf(1)] + [mpf(0)] * (terms - 1)
    coefficients = [mpf(0)] * terms
    for degree in range(terms):
        weights = [mpmath.polyval(chebyshev[::-1], node) for node in nodes]
        factor = mpmath.fdot(values, weights) * (2 if degree else 1) / terms
        coefficients = [c + factor * t for c, t in zip(coefficients, chebyshev, strict=True)]
        shifted = [mpf(0), *chebyshev[:-1]]
        following = [(2 if degree else 1) * s - p for s, p in zip(shifted, previous, strict=True)]
        previous, chebyshev = chebyshev, following
    return coefficients


def expm1_rest() -> list[Any]:
    """(exp(r) - 1 - r) / r**2 for |r| up to ln(2) / 2, the highest power first."""
    end = mpmath.log(2) / 2 * mpf("1.001")  # what rounding to an integer may leave

    def function(u: Any) -> Any:
        r = end * u
        return (mpmath.expm1(r) - r) / r**2 if r else mpf(1) / 2

    coefficients = interpolant(function, terms=10)
    return [c / end**power for power, c in enumerate(coefficients)][::-1]


def normal_tail(shift: float, end: float, terms: int) -> str:
    """The text of a `NormalTail`."""
    first, last = 1 / mpf(shift), 1 / (mpf(shift) + end)
    # Rounded to what float32 holds, and only then is the polynomial fitted.
    scale = round(float(2 / (first - last)) * 1024) / 1024
    offset = round(float(-(first + last) / (first - last)) * 1024) / 1024

    def function(u: Any) -> Any:
        y = (u - offset) / scale
        x = 1 / y - shift
        return mpmath.ncdf(-x) * mpmath.exp(x * x / 2) / y

    coefficients = interpolant(function, terms)[::-1]
    return f"""NormalTail(
    shift={shift!r},
    scale={scale!r},
    offset={offset!r},
    end={end!r},
    coefficients={listed(coefficients, "    ")},
)"""


def least_squares(end: float, terms: int, function: Callable[[Any], Any], lost: Any) -> list[Any]:
    """Coefficients of a polynomial that meets a function of x up to an end.

    The highest power is first. `lost(x)` is the weight of errors at x; the largest weighted error
    is made small.
    """
    count = 4 * terms
    points = [end * (1 - mpmath.cospi((i + mpf(1) / 2) / count)) / 2 for i in range(count)]
    wanted, factors = [function(x) for x in points], [lost(x) for x in points]
    emphasis = [mpf(1)] * count
    for _ in range(LAWSON_STEPS):
        scales = [f * mpmath.sqrt(e) for f, e in zip(factors, emphasis, strict=True)]
        rows = [
            [scale * x**i for i in range(terms)] for scale, x in zip(scales, points, strict=True)
        ]
        values = [scale * value for scale, value in zip(scales, wanted, strict=True)]
        coefficients = list(mpmath.lu_solve(mpmath.matrix(rows), mpmath.matrix(values)))[::-1]
        errors = [
            abs(factor * (mpmath.polyval(coefficients, x) - value))
            for factor, x, value in zip(factors, points, wanted, strict=True)
        ]
        emphasis = [e * error for e, error in zip(emphasis, errors, strict=True)]
        emphasis = [e * count / mpmath.fsum(emphasis) for e in emphasis]
    return coefficients


def normal_root(end: float, terms: int) -> list[Any]:
    """(Phi(-x)**(1/4) - (1/2)**(1/4)) / x for x up to an end, the highest power first."""

    def root(x: Any) -> Any:
        return mpmath.ncdf(-x) ** mpf("0.25")

    def wanted(x: Any) -> Any:
        return (root(x) - mpf("0.5") ** mpf("0.25")) / x

    # Of what the polynomial is off, Phi(-x) is off by as many times more.
    return least_squares(end, terms, wanted, lambda x: 4 * root(x) ** 3 * x)


def normal_log(end: float, terms: int) -> list[Any]:
    """log2(Phi(-x)) for x up to an end, the highest power first."""
    # Near the end float32 rounds more, so less is left to the polynomial.
    return least_squares(
        end, terms, lambda x: mpmath.log(mpmath.ncdf(-x), 2), lambda x: 2 + x * x / 16
    )


def listed(coefficients: list[Any], indent: str = "") -> str:
    """The text of a tuple, a number a line."""
    lines = "".join(f"{indent}    {float(c)!r},\n" for c in coefficients)
    return f"(\n{lines}{indent})"


def fitted() -> str:
    with mpmath.workdps(100):  # equations in powers of x are ill-conditioned
        root = normal_root(NORMAL_ROOT_END, terms=24)
        log = normal_log(NORMAL_LOG_END, terms=10)
    with mpmath.workdps(50):
        return f"""# (exp(r) - 1 - r) / r**2 for |r| up to ln(2) / 2, the highest power first.
EXPM1_REST = {listed(expm1_rest())}
NORMAL_TAIL_FLOAT32 = {normal_tail(shift=2.0, end=15.0, terms=11)}
NORMAL_TAIL_FLOAT64 = {normal_tail(shift=4.0, end=39.0, terms=24)}
# log2(Phi(-x)) for x up to the end, the highest power first, for results of 11 bits or fewer.
NORMAL_LOG_END = {NORMAL_LOG_END}
NORMAL_LOG = {listed(log)}
# (Phi(-x)**(1/4) - (1/2)**(1/4)) / x for x up to the end, the highest power first.
NORMAL_ROOT_END = {NORMAL_ROOT_END}
NORMAL_ROOT = {listed(root)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if needed")
    is_check = parser.parse_args().check
    source = FILE.read_text()
    before, _, rest = source.partition(BEGIN)
    _, _, after = rest.partition(END)
    updated = f"{before}{BEGIN}{fitted()}{END}{after}"
    if is_check:
        sys.exit(f"{FILE}: the polynomials are others" if updated != source else 0)
    FILE.write_text(updated)


if __name__ == "__main__":
    main()
