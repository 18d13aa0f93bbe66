"""float32 products in several precisions on the same operands: how wrong each is, and its time.

Errors are of elements, against the product in float64, in units of 2**-23 |A| |B|: of the last
place of a float32 as large as the sum of the magnitudes of all terms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from comparison import SMOKE, Case, Timer, sets_of_operands, take_turns, xp

import dxgemm
from dxgemm.tuning.sampling import calls_in_sample

OWN = None if SMOKE else "split_wgmma"  # the simulator has no kernel for parts
UNIT = 2.0**-23
MOST_ERROR = 8.0  # the bound of precision="split"
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
    """What one way gave.

    Attributes:
        implementation, config: that computed it.
        max_error, rms_error: over all elements, in `UNIT`.
        is_native: whether float32 answered in place of parts.
        samples_s: seconds a call.
        refusal: why there is none of this.
    """

    implementation: str = ""
    config: str | None = None
    max_error: float = 0.0
    rms_error: float = 0.0
    is_native: bool = False
    samples_s: list[float] = field(default_factory=list)
    refusal: str | None = None


def measure(case: PrecisionCase, ways: Mapping[str, Any], timer: Timer) -> dict[str, Measurement]:
    """The error of each way on the same operands, then their times, interleaved.

    Args:
        ways: by name, (a, b, out) -> a call; it may say by `explain()` what it computes with.
    """
    rng = xp.random.default_rng(0)
    sets = [_operands(case, rng)]
    measured: dict[str, Measurement] = {}
    calls: dict[str, list[Call]] = {}
    for name, make in ways.items():
        measured[name] = result = Measurement()
        try:
            call = make(*sets[0])
        except dxgemm.errors.DxgemmError as error:
            result.refusal = str(error)
            continue
        calls[name] = [call]
        _run_once(call, sets[0], result)
    call_s = {name: timer(of_name) for name, of_name in calls.items()}
    count = max(map(calls_in_sample, call_s.values()), default=1)
    sets += [_operands(case, rng) for _ in range(sets_of_operands(case, count) - 1)]
    for name in calls:
        calls[name] += [ways[name](*operands) for operands in sets[1:]]
    for name, samples_s in take_turns(calls, call_s, timer, LONGEST_S).items():
        measured[name].samples_s = samples_s
    return measured


def _run_once(call: Any, operands: tuple[Any, Any, Any], result: Measurement) -> None:
    """Fill in what one call says, and how wrong its result is."""
    a, b, out = operands
    before = dxgemm.split_fallbacks()
    call()
    result.is_native = dxgemm.split_fallbacks() != before
    explanation = call.explain()
    result.implementation = explanation.implementation
    result.config = None if explanation.config is None else str(explanation.config)
    size = xp.matmul(abs(a).astype("float64"), abs(b).astype("float64"))
    error = abs(out - xp.matmul(a.astype("float64"), b.astype("float64"))) / (size * UNIT)
    result.max_error = float(error.max())
    result.rms_error = float((error**2).mean() ** 0.5)


def _operands(case: PrecisionCase, rng: Any) -> tuple[Any, Any, Any]:
    a, b = DATA[case.data](rng, case.m, case.n, case.k)
    return a, b, xp.zeros((case.m, case.n), "float32")


def plan(**options: Any) -> Callable[[Any, Any, Any], dxgemm.Plan]:
    """A way: a plan with these options."""
    return lambda a, b, out: dxgemm.plan(a, b, out=out, **options)


def plan_prepared(a: Any, b: Any, out: Any) -> dxgemm.Plan:
    """A way: b has been split before."""
    return dxgemm.plan(a, dxgemm.prepare(b), out=out, implementation=OWN)


ERROR_WAYS = {
    "cublas": plan(implementation="cublas"),
    "float32": plan(),
    "split": plan(precision="split", implementation=OWN),
    "tf32": plan(precision="tf32"),
}
TIMED_WAYS = {**ERROR_WAYS, "split, b prepared": plan_prepared}


def normal(rng: Any, *shape: int) -> Any:
    return rng.standard_normal(shape, dtype="float32")


def uniform(rng: Any, *shape: int) -> Any:
    return rng.random(shape, dtype="float32")


def powers(rng: Any, *shape: int) -> Any:
    """Powers of two over so many binades."""
    return xp.exp2(BINADES * (uniform(rng, *shape) - 0.5)).astype("float32")


def normal_pair(rng: Any, m: int, n: int, k: int) -> Operands:
    return normal(rng, m, k), normal(rng, k, n)


def uniform_pair(rng: Any, m: int, n: int, k: int) -> Operands:
    return uniform(rng, m, k), uniform(rng, k, n)


def scaled_lines(rng: Any, m: int, n: int, k: int) -> Operands:
    a, b = normal_pair(rng, m, n, k)
    return a * powers(rng, m, 1), b * powers(rng, 1, n)


def scaled_elements(rng: Any, m: int, n: int, k: int) -> Operands:
    a, b = normal_pair(rng, m, n, k)
    return a * powers(rng, m, k), b * powers(rng, k, n)


def cancelling(rng: Any, m: int, n: int, k: int) -> Operands:
    """Neighbouring terms that are opposite, but for a millionth."""
    a, b = normal_pair(rng, m, n, k)
    a[:, 1::2] = a[:, : k - 1 : 2]
    b[1::2] = -b[: k - 1 : 2] * (1 + 1e-6 * normal(rng, k // 2, n))
    return a, b


def hilbert(rng: Any, m: int, n: int, k: int) -> Operands:
    """1 / (i + j + 1), with signs that alternate along k."""
    i, j, col = xp.arange(m)[:, None], xp.arange(k), xp.arange(n)
    b = (1 - 2 * (j % 2))[:, None] / (j[:, None] + col + 1.0)
    return (1 / (i + j + 1.0)).astype("float32"), b.astype("float32")


DATA = {
    "normal": normal_pair,
    "uniform(0, 1)": uniform_pair,
    "rows over 60 binades": scaled_lines,
    "elements over 60 binades": scaled_elements,
    "cancelling": cancelling,
    "Hilbert": hilbert,
}
