"""Products by parts on tensor cores: time and error of each precision, on several kinds of data.

precision="emulated" is interleaved with cuBLAS and the automatic choice in the operands' dtype, in
float32 with "tf32" too, in float64 with several numbers of moduli. Errors are of elements, in units
of the last place of a number as large as the sum of the magnitudes of all terms: of 2**-23 |A| |B|
in float32, of 2**-52 |A| |B| in float64. All elements of a float32 product are compared with the
product in float64; of one in float64 some, with a sum of two float64.
"""

from dataclasses import dataclass, replace
from typing import Any

from cases import SMOKE, Call, Case, Operands, grid, normal, own, uniform, xp
from measuring import bench

import dxgemm
from dxgemm.choice.emulation_parts import SERIES
from dxgemm.errors import WrongResultError
from dxgemm.handwritten.parts.moduli import LOST_BITS, moduli_count, operand_bits
from dxgemm.problem.define import contiguous_problem

UNITS = {"float32": 2.0**-23, "float64": 2.0**-52}
COMPARED_LINES = 32  # rows and columns of a float64 product, evenly spread
HALVING = 2.0**27 + 1
BINADES = 60

Pair = tuple[Any, Any]


@dataclass(frozen=True)
class PrecisionCase(Case):
    """A problem, and the kind of data it is computed of."""

    data: str = "normal"

    def tiny(self) -> Any:
        return replace(self, m=5, n=6, k=8)

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        fill = uniform if self.data == "uniform(0, 1)" else normal
        shapes = (self.m, self.k), (self.k, self.n)
        a, b = (fill(rng, shape, self.dtype) for shape in shapes)
        if self.data in CHANGES:
            a, b = (array.astype(self.dtype) for array in CHANGES[self.data](rng, a, b))
        return Operands(a=a, b=b, out=xp.zeros((self.m, self.n), self.dtype))

    def expected(self, x: Operands) -> Any:
        """Rows and columns that are compared, their product as upper + lower, and units of errors.

        The reference is float64 for all of float32, twofold float64 for some lines of float64.
        """
        rows = cols = slice(None)
        if self.dtype == "float64":
            steps = (max(n // COMPARED_LINES, 1) for n in (self.m, self.n))
            rows, cols = (slice(None, None, step) for step in steps)
        a, b = x.a[rows].astype("float64"), x.b[:, cols].astype("float64")
        exact = (xp.matmul(a, b), 0.0) if self.dtype == "float32" else twofold_product(a, b)
        return (rows, cols), exact, xp.matmul(abs(a), abs(b)) * UNITS[self.dtype]

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        """Errors of a result, and whether a native kernel answered after the validity check."""
        before = dxgemm.emulation_fallbacks()
        self.spoil(x.out)
        call()
        is_native = dxgemm.emulation_fallbacks() != before
        lines, (upper, lower), unit = expected
        error = abs((x.out[lines] - upper) - lower) / unit
        max_error, rms_error = float(error.max()), float((error**2).mean() ** 0.5)
        if not max_error <= self.most_error(name, is_native):
            raise WrongResultError(f"{name} is wrong by {max_error:.3g} units for {self}")
        return {"is_native": is_native, "max_error": max_error, "rms_error": rms_error}

    def most_error(self, variant: str, is_native: bool) -> float:
        """Bound of a variant on the error of an element, in `UNITS`."""
        if variant == "tf32":  # two operands with 11 bits, and sums that are cut off
            return 2.0**13 + self.k
        if is_native or not variant.startswith("emulated"):
            return self.k / 2 + 1  # Higham, "Accuracy and Stability of Numerical Algorithms", 3.5
        if self.dtype == "float32":
            return 8.0
        precision = variant.partition(",")[0]
        problem = contiguous_problem("float64", self.m, self.n, self.k, precision=precision)
        bits = operand_bits(moduli_count(problem), self.k)
        return 2.0 ** (LOST_BITS - bits) / UNITS["float64"] + 0.5


def twofold_product(a: Any, b: Any) -> tuple[Any, Any]:
    """a @ b in float64 and what its rounding left, right to about 2**-100 |A| |B|.

    Products by halves, whose products are exact; sums, of two neighbours at a time, with their
    errors. Source: T. Dekker, "A floating-point technique for extending the available precision"
    (1971); D. Knuth, "The Art of Computer Programming", 4.2.2.
    """
    x, y = a[:, None, :], b.T[None]
    (x_upper, x_lower), (y_upper, y_lower) = _halves(x), _halves(y)
    upper = x * y
    lower = x_upper * y_upper - upper + x_upper * y_lower + x_lower * y_upper + x_lower * y_lower
    while (count := upper.shape[-1]) > 1:
        kept = (count + 1) // 2
        first, second = upper[..., : count - kept], upper[..., kept:]
        total = first + second
        added = total - first
        lost = (first - (total - added)) + (second - added)
        lower[..., : count - kept] += lower[..., kept:] + lost
        upper[..., : count - kept] = total
        upper, lower = upper[..., :kept], lower[..., :kept]
    return upper[..., 0], lower[..., 0]


def _halves(x: Any) -> tuple[Any, Any]:
    """The upper 26 bits of float64, and the rest."""
    scaled = HALVING * x
    upper = scaled - (scaled - x)
    return upper, x - upper


def multiplier_of_parts(case: Case) -> str | None:
    return None if SMOKE else SERIES[case.dtype]  # the simulator has none


def emulated(count: int | str = "") -> Any:
    """Variant: emulated, with so many moduli, even where the choice would be another."""
    return lambda case, x: own(multiplier_of_parts(case), precision=f"emulated{count}")(case, x)


def prepared(case: Case, x: Operands) -> dxgemm.Plan:
    """Variant: emulated, with b prepared."""
    b = dxgemm.prepare(x.b)
    return dxgemm.plan(x.a, b, out=x.out, implementation=multiplier_of_parts(case))


BOTH = {"cublas": own("cublas"), "emulated": emulated()}
ERROR_VARIANTS = {
    "float32": {**BOTH, "float32": own(), "tf32": own(precision="tf32")},
    "float64": {**BOTH, "float64": own(), **{f"emulated{n}": emulated(n) for n in (14, 13)}},
}
TIMED_VARIANTS = {
    dtype: {**of_dtype, "emulated, b prepared": prepared}
    for dtype, of_dtype in ERROR_VARIANTS.items()
}
TIMED_VARIANTS["float64"] |= {f"emulated{n}": emulated(n) for n in (15, 17)}


def powers(rng: Any, *shape: int) -> Any:
    """Powers of two over so many binades."""
    return xp.exp2(BINADES * (uniform(rng, shape, "float64") - 0.5))


def cancelling(rng: Any, a: Any, b: Any) -> Pair:
    """Neighbouring terms that are opposite, but for a millionth."""
    k = len(b)
    a[:, 1::2] = a[:, : k - 1 : 2]
    b[1::2] = -b[: k - 1 : 2] * (1 + 1e-6 * normal(rng, b[1::2].shape, str(b.dtype)))
    return a, b


def hilbert(rng: Any, a: Any, b: Any) -> Pair:
    """1 / (i + j + 1), with signs that alternate along k."""
    i, j, col = xp.arange(len(a))[:, None], xp.arange(len(b)), xp.arange(b.shape[1])
    return 1 / (i + j + 1.0), (1 - 2 * (j % 2))[:, None] / (j[:, None] + col + 1.0)


# What is made of normal operands.
CHANGES: dict[str, Any] = {
    "rows over 60 binades": lambda rng, a, b: (
        a * powers(rng, len(a), 1),
        b * powers(rng, 1, b.shape[1]),
    ),
    "elements over 60 binades": lambda rng, a, b: (
        a * powers(rng, *a.shape),
        b * powers(rng, *b.shape),
    ),
    "cancelling": cancelling,
    "Hilbert": hilbert,
}
DATA = ("normal", "uniform(0, 1)", *CHANGES)


SIZES = {"float32": [1024, 1536, 2048, 3000, 4096, 8192], "float64": [2048, 4096, 8192]}
REFUSED_SIZES, REFUSED = [1024, 2048, 4096], "elements over 60 binades"
DEPTHS = [(256, 256, k) for k in (64, 256, 1024, 4096, 16384, 65536)]

CASES = {}
for dtype, sizes in SIZES.items():
    timed = grid(PrecisionCase, dtype=dtype, size=[*sizes, (4096, 16384, 4096)])
    compared = grid(PrecisionCase, dtype=dtype, size=REFUSED_SIZES, data=[REFUSED])
    compared += grid(PrecisionCase, dtype=dtype, data=[*DATA], size=DEPTHS)
    CASES |= dict.fromkeys(timed, TIMED_VARIANTS[dtype])
    CASES |= dict.fromkeys(compared, ERROR_VARIANTS[dtype])

bench_precision = bench(
    CASES,
    lambda case: CASES.get(case, TIMED_VARIANTS[case.dtype]),
    more=lambda row, name, found: {"way": name},
    budget_s=1.0,
)
