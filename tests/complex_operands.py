"""Complex operands of tests: integers in any layout, and the rules of their products."""

from itertools import product
from typing import Any

import numpy as np

import dxgemm
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.dtypes import COMPLEX_PARTS

IS_SIMULATED = simulator_enabled()
DTYPES = tuple(COMPLEX_PARTS)
# alpha, beta, and what is conjugated.
CALLS = [(1, 0, ""), (2 - 1j, 0, "a"), (2, 3, "b"), (1j, 1 - 1j, "ab"), (1, 2j, ""), (0, 1j, "a")]
ORDERS = [*product("CFs", repeat=3)]  # of a, b and c


def integers(shape: Any, dtype: str, seed: int = 0) -> Any:
    rng = np.random.default_rng([seed, *shape])
    return (rng.integers(-3, 4, shape) + 1j * rng.integers(-3, 4, shape)).astype(dtype)


def normal(*shapes: Any, dtype: str) -> Any:
    """Arrays of random numbers."""
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(s) + 1j * rng.standard_normal(s)).astype(dtype) for s in shapes]


def conjugated(a: Any, b: Any, conjugate: str) -> Any:
    return a.conj() if "a" in conjugate else a, b.conj() if "b" in conjugate else b


def put(home: Any, array: Any, layout: str) -> Any:
    """An array on the device, "C", "F" or strided among elements of 9; and what holds it."""
    if layout == "C":
        sent = home.send(array.copy())
        return sent, sent
    if layout == "F":
        sent = home.send(np.ascontiguousarray(array.swapaxes(-1, -2)))
        return sent.swapaxes(-1, -2), sent
    *batch, m, n = array.shape
    inside = (..., slice(1, 2 * m, 2), slice(1, 3 * n, 3))
    around = np.full((*batch, 2 * m + 1, 3 * n + 1), 9, array.dtype)
    around[inside] = array
    sent = home.send(around)
    return sent[inside], sent


def assert_around(home: Any, holder: Any, layout: str, shape: Any) -> None:
    """Assert that nothing was written between the elements of a strided array."""
    if layout == "s":
        around = home.fetch(holder).copy()
        around[..., 1 : 2 * shape[-2] : 2, 1 : 3 * shape[-1] : 3] = 9
        assert (around == 9).all()


def check(
    home: Any, dtype: str, sizes: Any, layouts: Any, calls: Any = CALLS, implementation: Any = None,
    batch: int | None = 3, precision: str | None = None,
) -> None:  # fmt: skip
    """Check the products of integers, into c and beside it."""
    m, n, k = sizes
    lead = () if batch is None else (batch,)
    a, b = integers((*lead, m, k), dtype, 1), integers((*lead, k, n), dtype, 2)
    c = integers((*lead, m, n), dtype, 3)
    (a_sent, _), (b_sent, _) = put(home, a, layouts[0]), put(home, b, layouts[1])
    options = {"implementation": implementation, "precision": precision}
    for alpha, beta, conjugate in calls:
        left, right = conjugated(a, b, conjugate)
        exact = alpha * (left @ right) + beta * c
        options["conjugate"] = conjugate
        sent, holder = put(home, c, layouts[2])
        assert dxgemm.gemm(a_sent, b_sent, sent, alpha, beta, **options) is sent
        np.testing.assert_array_equal(home.fetch(sent), exact)
        assert_around(home, holder, layouts[2], c.shape)
        kept, _ = put(home, c, layouts[0])
        out, holder = put(home, np.full(c.shape, np.nan, dtype), layouts[2])
        dxgemm.gemm(a_sent, b_sent, kept, alpha, beta, out=out, **options)
        np.testing.assert_array_equal(home.fetch(out), exact)
        np.testing.assert_array_equal(home.fetch(kept), c)
        assert_around(home, holder, layouts[2], c.shape)
    np.testing.assert_array_equal(home.fetch(a_sent), a)
    np.testing.assert_array_equal(home.fetch(b_sent), b)


def check_special_values(
    home: Any, dtype: str, layouts: Any, beta: int = 0, lead: Any = (), **options: Any
) -> None:
    """Each component is a sum of products of components; c is NaN unless beta has it read."""
    a, b = integers((*lead, 6, 5), dtype, 1), integers((*lead, 5, 7), dtype, 2)
    a[..., 1, 2], a[..., 3, 0] = complex(np.inf, 1), complex(1, np.nan)
    b[..., 4, 3] = complex(2, -np.inf)
    c = np.full((*lead, 6, 7), complex(np.nan, np.nan), dtype)
    if beta:
        c = integers(c.shape, dtype, 3)
        c[..., 0, 0] = complex(np.inf, 1)
    left, right = conjugated(a, b, options.get("conjugate", ""))
    with np.errstate(invalid="ignore"):
        re = 2 * (left.real @ right.real - left.imag @ right.imag)
        im = 2 * (left.real @ right.imag + left.imag @ right.real)
    if beta:
        re, im = re + beta * c.real, im + beta * c.imag
    sent = [put(home, x, layout)[0] for x, layout in zip((a, b, c), layouts, strict=True)]
    found = home.fetch(dxgemm.gemm(*sent, 2, beta, **options))
    np.testing.assert_array_equal(found.real, re.astype(found.real.dtype))
    np.testing.assert_array_equal(found.imag, im.astype(found.imag.dtype))


def check_unread(home: Any, dtype: str, layout: str, shape: Any = (5, 5), **options: Any) -> None:
    """NaN in c with beta 0, and in a and b with alpha 0."""
    nan = np.full(shape, complex(np.nan, np.nan), dtype)
    a, b, c = (integers(shape, dtype, seed) for seed in range(3))
    broken, _ = put(home, nan, layout)
    dxgemm.gemm(put(home, a, layout)[0], home.send(b), broken, 1j, **options)
    np.testing.assert_array_equal(home.fetch(broken), 1j * (a @ b))
    sent, _ = put(home, c, layout)
    dxgemm.gemm(put(home, nan, layout)[0], home.send(nan), sent, 0, 2 - 1j, **options)
    np.testing.assert_array_equal(home.fetch(sent), (2 - 1j) * c)


def check_errors(home: Any, dtype: str, sizes: Any, lead: Any = (), **options: Any) -> None:
    """Each component against |A| |B| of the real form; by three products, against all of it."""
    m, n, k = sizes
    a, b = normal((*lead, m, k), (*lead, k, n), dtype=dtype)
    found = home.fetch(dxgemm.gemm(home.send(a), home.send(b), **options))
    exact = a.astype("clongdouble") @ b.astype("clongdouble")
    real = abs(a.real) @ abs(b.real) + abs(a.imag) @ abs(b.imag)
    imaginary = abs(a.real) @ abs(b.imag) + abs(a.imag) @ abs(b.real)
    if options.get("precision") == "3m":
        real = imaginary = (abs(a.real) + abs(a.imag)) @ (abs(b.real) + abs(b.imag))
    epsilon = np.finfo(COMPLEX_PARTS[dtype]).eps
    is_emulated = (dtype, options.get("precision")) == ("complex64", "emulated")
    bound = max(2.0**-20 if is_emulated else 2 * k * epsilon, 4 * epsilon)
    for part, scale in (("real", real), ("imag", imaginary)):
        assert (abs(getattr(found - exact, part)) <= bound * scale).all(), options


def check_rows(home: Any, dtype: str, sizes: Any, **options: Any) -> None:
    """Rows of a batch-invariant product have the same bits, whatever their number."""
    m, n, k = sizes
    a, b = normal((m, k), (k, n), dtype=dtype)
    options |= {"batch_invariant": True}
    whole = home.fetch(dxgemm.gemm(home.send(a), home.send(b), **options))
    for rows in (1, 2, m - 1):
        part = dxgemm.gemm(home.send(a[:rows]), home.send(b), **options)
        np.testing.assert_array_equal(home.fetch(part), whole[:rows])


def check_plan(home: Any, dtype: str, lead: Any = (), **options: Any) -> Any:
    """A plan reads its arrays anew; to the plan."""
    a, b = integers((*lead, 4, 3), dtype, 1), integers((*lead, 3, 5), dtype, 2)
    a_sent, out = home.send(a), home.send(np.zeros((*lead, 4, 5), dtype))
    plan = dxgemm.plan(a_sent, home.send(b), None, 1 + 1j, out=out, conjugate="a", **options)
    for seed in (3, 4):
        a = integers(a.shape, dtype, seed)
        a_sent[...] = home.send(a)
        np.testing.assert_array_equal(home.fetch(plan()), (1 + 1j) * (a.conj() @ b))
    return plan
