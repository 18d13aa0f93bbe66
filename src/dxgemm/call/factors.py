"""Alpha and beta: what numbers they may be, and what kernels take for them."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from dxgemm.call.route import LARGEST, Route, scalar_range
from dxgemm.errors import ScalarError, shown
from dxgemm.problem.problem import Problem

EXACT_INTEGERS = 2.0**53  # below which float64 holds all of them


def real_number(name: str, value: Any) -> float | int:
    """Convert a real number that Python or NumPy holds on the host; long integers stay exact."""
    # `int` first: the abstract class takes a microsecond to say the same.
    is_real = type(value) is int or isinstance(value, numbers.Real)
    if not is_real or isinstance(value, bool | np.bool_):
        raise ScalarError(
            f"gemm: {name} is {shown(value)} ({type(value).__name__}); it must be a real number, "
            "held by Python or NumPy on the host."
        )
    try:
        converted = float(value)
    except OverflowError:
        converted = math.inf
    except Exception as error:
        raise ScalarError(f"gemm: {name} is {shown(value)}, and no float: {error}") from error
    if math.isinf(converted) and value != converted:
        raise ScalarError(f"gemm: {name} is {shown(value)}, which overflows float64.")
    if abs(converted) >= EXACT_INTEGERS and isinstance(value, numbers.Integral):
        return int(value)
    return converted


def number(name: str, value: Any) -> float | complex:
    """Convert a number, which is complex if its type is: routes of real operands refuse it."""
    if type(value) is int or isinstance(value, numbers.Real):  # see `real_number`
        return real_number(name, value)
    return complex(value) if isinstance(value, numbers.Complex) else real_number(name, value)


def refuse_overflow(name: str, value: float | complex, dtype: str) -> None:
    """Refuse a finite number, a part of which is beyond the dtype of sums."""
    for part in (value.real, value.imag):
        if math.isfinite(part) and abs(part) > LARGEST[dtype]:
            raise ScalarError(f"gemm: <{name}> is {value}, which overflows {dtype}.")


def complex_factor(name: str, value: float | complex, route: Route) -> float | complex:
    """Check both parts of alpha or beta; a number without an imaginary part becomes real."""
    if type(value) is not complex:
        check_fit(name, value.real, route)
        return value
    form = route.complex_form
    if form is None:
        real_number(f"<{name}>", value)  # refuses it
    elif value.imag != 0 and form.problem.triangle:
        raise ScalarError(f"gemm: <{name}> is {value}, but a Hermitian result takes real factors.")
    check_fit(name, value.real, route)
    check_fit(name, value.imag, route)
    return value if value.imag != 0 else value.real


def kernel_factors(route: Route, alpha: float, beta: float) -> tuple[float, float]:
    """Check alpha and beta against the route's sums, and convert them to what the kernel takes.

    If k is 0, alpha becomes 0, NaN included.
    """
    check_fits(alpha, beta, route)
    if route.takes_integers:
        alpha, beta = integer("alpha", alpha, route), integer("beta", beta, route)
    return (0 if route.resolved.problem.k == 0 else alpha), beta


def check_fits(alpha: float, beta: float, route: Route) -> None:
    """Refuse factors beyond the dtype of the route's sums."""
    check_fit("alpha", alpha, route)
    check_fit("beta", beta, route)


def check_fit(name: str, value: float, route: Route) -> None:
    """Refuse a number beyond the dtype of the route's sums."""
    if route.least_scalar <= value <= route.largest_scalar:
        return
    if route.takes_integers:
        raise _no_integer(name, value, route.resolved.problem)
    refuse_overflow(name, value, route.resolved.problem.scalar_dtype)


def integer(name: str, value: float, route: Route) -> int:
    """Convert alpha or beta of integers; int64 stands for uint64, and residues for a modulus."""
    if type(value) is float and not value.is_integer():
        raise _no_integer(name, value, route.resolved.problem)
    whole, modulus = int(value), route.resolved.problem.modulus
    if modulus:
        return whole % modulus
    return whole - 2**64 if whole >= 2**63 else whole


def refuse_no_integer(name: str, value: float, problem: Problem) -> None:
    """Refuse a factor of integers that is no integer, or does not fit the result."""
    least, largest = scalar_range(problem)
    if not (least <= value <= largest and math.isfinite(value) and value == int(value)):
        raise _no_integer(name, value, problem)


def _no_integer(name: str, value: float, problem: Problem) -> ScalarError:
    least, largest = scalar_range(problem)
    scaled, limits = f"as {problem.out_dtype}", f" from {least} to {largest}"
    if problem.modulus:
        scaled, limits = f"modulo {problem.modulus}", ""
    return ScalarError(
        f"gemm: <{name}> is {value}, but {problem.dtype} products are summed and scaled "
        f"{scaled}; pass an integer{limits}, or operands of a floating-point dtype."
    )
