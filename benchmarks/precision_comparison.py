"""Products in several precisions on the same operands: how wrong each is, and its time.

Errors are of elements, in units of the last place of a number as large as the sum of the magnitudes
of all terms: of 2**-23 |A| |B| in float32, of 2**-52 |A| |B| in float64. All elements of a float32
product are compared with the product in float64; of one in float64 some, with a sum of two float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from comparison import SMOKE, Case, Timer, sets_of_operands, take_turns, xp

import dxgemm
from dxgemm.choice.emulation_parts import SERIES
from dxgemm.handwritten.parts.moduli import LOST_BITS, moduli_count, operand_bits
from dxgemm.problem.define import contiguous_problem
from dxgemm.tuning.sampling import calls_in_sample

UNITS = {"float32": 2.0**-23, "float64": 2.0**-52}
COMPARED_LINES = 32  # rows and columns of a float64 product, evenly spread
HALVING = 2.0**27 + 1
BINADES = 60
LONGEST_S = 1.0  # of timing a case

Call = Callable[[], object]
Operands = tuple[Any, Any]


@dataclass(frozen=True)
class PrecisionCase(Case):
    """A problem, and the operands it is computed of."""

    data: str = "normal"

    def __str__(self) -> str:
        return f"{super().__str__()}-{self.data}"


@dataclass
class Measurement:
    """Measurement of one precision.

    Attributes:
        implementation, config: the implementation and the config that computed it.
        max_error, rms_error: errors over the elements that are compared, in `UNITS`.
        is_native: True if the validity check failed, so that the native kernel answered.
        samples_s: seconds per call, one a sample.
        refusal: reason why nothing was measured.
    """

    implementation: str = ""
    config: str | None = None
    max_error: float = 0.0
    rms_error: float = 0.0
    is_native: bool = False
    samples_s: list[float] = field(default_factory=list)
    refusal: str | None = None


@dataclass(frozen=True)
class Exact:
    """Elements of a product, as upper + lower, and the unit of the error of each."""

    rows: slice
    cols: slice
    upper: Any
    lower: Any
    unit: Any

    def errors(self, out: Any) -> Any:
        return abs((out[self.rows, self.cols] - self.upper) - self.lower) / self.unit


def exact_product(a: Any, b: Any) -> Exact:
    """Reference a @ b: float64 for all of float32, twofold float64 for some lines of float64."""
    rows = cols = slice(None)
    dtype = str(a.dtype)
    if dtype == "float64":
        rows, cols = (slice(None, None, max(n // COMPARED_LINES, 1)) for n in (len(a), b.shape[1]))
    x, y = a[rows].astype("float64"), b[:, cols].astype("float64")
    upper, lower = (xp.matmul(x, y), 0.0) if dtype == "float32" else twofold_product(x, y)
    return Exact(rows, cols, upper, lower, xp.matmul(abs(x), abs(y)) * UNITS[dtype])


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
        lower[..., : count - kept] += lower[..., kept:] + (
            (first - (total - added)) + (second - added)
        )
        upper[..., : count - kept] = total
        upper, lower = upper[..., :kept], lower[..., :kept]
    return upper[..., 0], lower[..., 0]


def _halves(x: Any) -> tuple[Any, Any]:
    """The upper 26 bits of float64, and the rest."""
    scaled = HALVING * x
    upper = scaled - (scaled - x)
    return upper, x - upper


def most_error(case: PrecisionCase, variant: str, is_native: bool) -> float:
    """Bound of a variant on the error of an element, in `UNITS`.

    Args:
        is_native: True if the validity check failed, so that the native kernel answered.
    """
    if variant == "tf32":  # two operands with 11 bits, and sums that are cut off
        return 2.0**13 + case.k
    if is_native or not variant.startswith("emulated"):
        return case.k / 2 + 1  # Higham, "Accuracy and Stability of Numerical Algorithms", 3.5
    if case.dtype == "float32":
        return 8.0
    precision = variant.partition(",")[0]
    problem = contiguous_problem("float64", case.m, case.n, case.k, precision=precision)
    bits = operand_bits(moduli_count(problem), case.k)
    return 2.0 ** (LOST_BITS - bits) / UNITS["float64"] + 0.5


def measure(
    case: PrecisionCase, variants: Mapping[str, Any], timer: Timer
) -> dict[str, Measurement]:
    """The error of each variant on the same operands, then their times, interleaved.

    Args:
        variants: by name, (a, b, out) -> a call; it may say by `explain()` what it computes with.
    """
    rng = xp.random.default_rng(0)
    sets = [_operands(case, rng)]
    exact = exact_product(*sets[0][:2])
    measured: dict[str, Measurement] = {}
    calls: dict[str, list[Call]] = {}
    for name, make in variants.items():
        measured[name] = result = Measurement()
        try:
            call = make(*sets[0])
        except dxgemm.errors.DxgemmError as error:
            result.refusal = str(error)
            continue
        calls[name] = [call]
        _run_once(call, sets[0][2], exact, result)
    call_s = {name: timer(of_name) for name, of_name in calls.items()}
    count = max(map(calls_in_sample, call_s.values()), default=1)
    sets += [_operands(case, rng) for _ in range(sets_of_operands(case, count) - 1)]
    for name in calls:
        calls[name] += [variants[name](*operands) for operands in sets[1:]]
    for name, samples_s in take_turns(calls, call_s, timer, LONGEST_S).items():
        measured[name].samples_s = samples_s
    return measured


def _run_once(call: Any, out: Any, exact: Exact, result: Measurement) -> None:
    """Fill in what one call says, and how wrong what it writes to `out` is."""
    before = dxgemm.emulation_fallbacks()
    call()
    result.is_native = dxgemm.emulation_fallbacks() != before
    explanation = call.explain()
    result.implementation = explanation.choice.implementation
    result.config = None if explanation.choice.config is None else str(explanation.choice.config)
    error = exact.errors(out)
    result.max_error = float(error.max())
    result.rms_error = float((error**2).mean() ** 0.5)


def _operands(case: PrecisionCase, rng: Any) -> tuple[Any, Any, Any]:
    a, b = DATA[case.data](rng, case.dtype, case.m, case.n, case.k)
    return a, b, xp.zeros((case.m, case.n), case.dtype)


def plan(**options: Any) -> Callable[[Any, Any, Any], dxgemm.Plan]:
    """Variant: a plan with these options."""
    return lambda a, b, out: dxgemm.plan(a, b, out=out, **options)


def plan_emulated(precision: str = "emulated") -> Callable[[Any, Any, Any], dxgemm.Plan]:
    """Variant: emulated, even where the choice would be another."""
    return lambda a, b, out: dxgemm.plan(
        a, b, out=out, precision=precision, implementation=_multiplier_of_parts(a)
    )


def plan_prepared(a: Any, b: Any, out: Any) -> dxgemm.Plan:
    """Variant: emulated, with b prepared."""
    prepared = dxgemm.prepare(b)
    return dxgemm.plan(a, prepared, out=out, implementation=_multiplier_of_parts(a))


def _multiplier_of_parts(a: Any) -> str | None:
    return None if SMOKE else SERIES[str(a.dtype)]  # the simulator has none


ERROR_VARIANTS = {
    "float32": {
        "cublas": plan(implementation="cublas"),
        "float32": plan(),
        "emulated": plan_emulated(),
        "tf32": plan(precision="tf32"),
    },
    "float64": {
        "cublas": plan(implementation="cublas"),
        "float64": plan(),
        "emulated": plan_emulated(),
        "emulated14": plan_emulated("emulated14"),
        "emulated13": plan_emulated("emulated13"),
    },
}
TIMED_VARIANTS = {
    "float32": {**ERROR_VARIANTS["float32"], "emulated, b prepared": plan_prepared},
    "float64": {
        **ERROR_VARIANTS["float64"],
        "emulated15": plan_emulated("emulated15"),
        "emulated17": plan_emulated("emulated17"),
        "emulated, b prepared": plan_prepared,
    },
}


def normal(rng: Any, dtype: str, *shape: int) -> Any:
    return rng.standard_normal(shape, dtype=dtype)


def uniform(rng: Any, dtype: str, *shape: int) -> Any:
    return rng.random(shape, dtype=dtype)


def powers(rng: Any, dtype: str, *shape: int) -> Any:
    """Powers of two over so many binades."""
    return xp.exp2(BINADES * (uniform(rng, dtype, *shape) - 0.5)).astype(dtype)


def normal_pair(rng: Any, dtype: str, m: int, n: int, k: int) -> Operands:
    return normal(rng, dtype, m, k), normal(rng, dtype, k, n)


def uniform_pair(rng: Any, dtype: str, m: int, n: int, k: int) -> Operands:
    return uniform(rng, dtype, m, k), uniform(rng, dtype, k, n)


def scaled_lines(rng: Any, dtype: str, m: int, n: int, k: int) -> Operands:
    a, b = normal_pair(rng, dtype, m, n, k)
    return a * powers(rng, dtype, m, 1), b * powers(rng, dtype, 1, n)


def scaled_elements(rng: Any, dtype: str, m: int, n: int, k: int) -> Operands:
    a, b = normal_pair(rng, dtype, m, n, k)
    return a * powers(rng, dtype, m, k), b * powers(rng, dtype, k, n)


def cancelling(rng: Any, dtype: str, m: int, n: int, k: int) -> Operands:
    """Neighbouring terms that are opposite, but for a millionth."""
    a, b = normal_pair(rng, dtype, m, n, k)
    a[:, 1::2] = a[:, : k - 1 : 2]
    b[1::2] = -b[: k - 1 : 2] * (1 + 1e-6 * normal(rng, dtype, k // 2, n))
    return a, b


def hilbert(rng: Any, dtype: str, m: int, n: int, k: int) -> Operands:
    """1 / (i + j + 1), with signs that alternate along k."""
    i, j, col = xp.arange(m)[:, None], xp.arange(k), xp.arange(n)
    b = (1 - 2 * (j % 2))[:, None] / (j[:, None] + col + 1.0)
    return (1 / (i + j + 1.0)).astype(dtype), b.astype(dtype)


DATA = {
    "normal": normal_pair,
    "uniform(0, 1)": uniform_pair,
    "rows over 60 binades": scaled_lines,
    "elements over 60 binades": scaled_elements,
    "cancelling": cancelling,
    "Hilbert": hilbert,
}
