"""The loop of all suites: check each variant of a case, time those that pass, write rows.

A suite is a list of cases, with variants and what they are compared with by name. `bench` makes a
pytest-benchmark function of them. Each variant computes exact operands first, whose result must be
right, and is timed once. Those that pass are then sampled in turn on random operands. Consecutive
calls take different operands, and the L2 cache is overwritten before each sample. Time is that
between events on the GPU; of `Waiting` calls, which are on other streams, by the host's clock. What
a variant raises fails its own row and no other: a row whose rival fails says so in a warning. In
the simulator a few cases of each suite are computed, at tiny sizes.
"""

import math
import statistics
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache, lru_cache
from itertools import cycle, islice
from typing import Any

import pytest
from cases import SMOKE, Call, Case, xp

from dxgemm.errors import DxgemmError, WrongResultError
from dxgemm.tuning.sampling import calls_in_sample, interleave, sets_of_operands

OWN, CUBLAS = "automatic", "cublas"
L2_BYTES = 0 if SMOKE else xp.cuda.runtime.getDeviceProperties(0)["l2CacheSize"]
FEW = 4  # cases of a suite in the simulator
# Of all; at least, however long they take; of configs of which the best is sought.
MOST_ROUNDS, FEWEST_ROUNDS, CONFIG_ROUNDS = (1, 1, 1) if SMOKE else (21, 5, 3)
CLOSE = 1.05  # times the quickest config's time

Variants = Mapping[str, Callable[[Any, Any], Call]]  # (case, operands) -> call
Groups = Mapping[str, Variants]  # configs by the name of what they are configs of


@dataclass(frozen=True, eq=False)
class Row:
    """A line of a suite's table.

    Attributes:
        case: a `Case`, or what the suite's own measuring function takes for one.
        variants: what gets a benchmark of its own, by name; groups of it for `measure_best`.
        others: what is timed in turn with these.
        facts: more fields of their results.
    """

    case: Any
    variants: Any
    others: Any = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join(map(str, (*self.facts.values(), self.case)))

    @property
    def timed(self) -> Any:
        return {**self.variants, **self.others}


@dataclass
class Measured:
    """One variant of a case.

    Attributes:
        explanation: explanation of its plan; None for another library.
        call_s: seconds of the first call.
        refusal, wrong: why it was not timed; what is wrong with its result, or what it raised.
        facts: fields for its row, from the check.
        samples_s: seconds per call, one a sample.
        group: all configs in whose place this one stands, in `measure_best`.
    """

    explanation: Any = None
    call_s: float = math.inf
    refusal: str = ""
    wrong: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    samples_s: list[float] = field(default_factory=list)
    group: "list[Measured]" = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return statistics.median(self.samples_s)

    @property
    def fault(self) -> str:
        return self.refusal or self.wrong

    @contextmanager
    def keeping_faults(self) -> Iterator[None]:
        """Keep what is raised as a refusal, if dxgemm refuses, or as what is wrong."""
        try:
            yield
        except WrongResultError as error:
            self.wrong = str(error)
        except DxgemmError as error:
            self.refusal = str(error)
        except Exception:  # of whatever type: other libraries raise their own
            self.wrong = traceback.format_exc()


@dataclass(frozen=True)
class Waiting:
    """A call that returns once its result is there, of a library that runs on its own stream.

    No stream can be held until it is enqueued, and no event tells when it ends. So its sample is
    host time, from an idle GPU to its results, with the launch and the wait of each call.
    """

    call: Call

    def __call__(self) -> Any:
        return self.call()


Found = Mapping[str, Measured]
Describe = Callable[[Row, str, Found], Mapping[str, Any]]  # (row, name of a variant, all)


def measure(
    case: Case,
    variants: Variants,
    budget_s: float = math.inf,
    rounds: int = MOST_ROUNDS,
    slowest: float = math.inf,
    longest_s: float = math.inf,
) -> dict[str, Measured]:
    """Check every variant of a case, then time those that pass, interleaved.

    Args:
        budget_s: seconds for all rounds, unless that is less than FEWEST_ROUNDS.
        rounds: most rounds.
        slowest: a variant that takes so many times the fastest's time is left out.
        longest_s: a variant whose calls take longer is left out; cuBLAS never is.
    """
    found = first_times(case, variants)
    fastest_s = min(one.call_s for one in found.values())
    for name, one in found.items():
        is_long = min(longest_s, slowest * fastest_s) < one.call_s < math.inf
        if is_long and name != CUBLAS and not SMOKE:
            one.refusal = f"a call takes {one.call_s:.2g} s, the fastest {fastest_s:.2g} s"
    timed = {name: one for name, one in found.items() if not one.fault}
    counts = {name: calls_in_sample(one.call_s) for name, one in timed.items()}
    number = sets_of_operands(case.bytes_moved, L2_BYTES, max(counts.values(), default=1))
    rng = xp.random.default_rng(0)
    sets = [case.operands(rng) for _ in range(number)]
    samplers = {}
    for name, one in timed.items():
        with one.keeping_faults():
            calls = [variants[name](case, x) for x in sets]
            samplers[name] = sampler(one, calls, counts[name])
    round_s = sum(counts[name] * timed[name].call_s for name in samplers)
    if round_s * rounds > budget_s:
        rounds = min(rounds, max(FEWEST_ROUNDS, int(budget_s / round_s)))
    for name, samples_s in interleave(samplers, rounds).items():
        found[name].samples_s = [] if found[name].fault else samples_s
    return found


def sampler(one: Measured, calls: Sequence[Call], count: int) -> Callable[[], float]:
    """A function that takes a sample of calls in turn, until one raises."""
    in_turn = cycle(calls)

    def sample() -> float:
        if not one.fault:
            with one.keeping_faults():
                return seconds_per_call(list(islice(in_turn, count)))
        return math.inf

    return sample


def measure_best(row: Row, budget_s: float, longest_s: float = math.inf) -> Found:
    """The best config of each group of variants, by the name of the group.

    All configs run interleaved for a few rounds. The quickest of each group, and those that come
    close to it, then run interleaved for all rounds. A group that has a wrong config is wrong.
    """
    variants = {name: make for group in row.timed.values() for name, make in group.items()}
    first = measure(row.case, variants, rounds=CONFIG_ROUNDS, longest_s=longest_s)
    least_s = {name: min(one.samples_s, default=math.inf) for name, one in first.items()}
    close = {}
    for group in row.timed.values():
        limit_s = CLOSE * min(least_s[name] for name in group)
        close |= {name: group[name] for name in group if least_s[name] <= limit_s < math.inf}
    final = measure(row.case, close, budget_s)
    found = {}
    for key, group in row.timed.items():
        best, of_group = fastest(final, group), [first[name] for name in group]
        found[key] = replace(final[best] if best else of_group[0], group=of_group)
        found[key].wrong = ", ".join(one.wrong for one in of_group if one.wrong)
    return found


def first_times(case: Case, variants: Variants) -> dict[str, Measured]:
    """Check every variant on exact operands; time a call of those that are right."""
    found = {}
    exact = case.operands(xp.random.default_rng(1), is_exact=True)
    expected = case.expected(exact)
    for name, make in variants.items():
        one = found[name] = Measured()
        with one.keeping_faults():
            call = make(case, exact)
            one.facts = case.check(name, call, exact, expected)
            explain = getattr(call, "explain", None)
            one.explanation = explain and explain()
            one.call_s = seconds_per_call([call])
    return found


def seconds_per_call(calls: Sequence[Call]) -> float:
    """Time a batch of calls, all of which wait or none."""
    if not isinstance(calls[0], Waiting):
        return float(timer()(calls))
    if not SMOKE:
        timer().overwrite_l2()
        xp.cuda.Device().synchronize()
    return seconds_by_host(calls)


@cache
def timer() -> Any:
    """Timer of a batch of calls that do not wait: seconds per call."""
    if SMOKE:
        return seconds_by_host
    from dxgemm.tuning.timing import EventTimer

    return EventTimer(L2_BYTES)


def seconds_by_host(calls: Sequence[Call]) -> float:
    start = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - start) / len(calls)


def fastest(found: Found, names: Iterable[str]) -> str | None:
    """The name of the variant that took the least time; None if none was timed."""
    timed = [name for name in names if name in found and found[name].samples_s]
    return min(timed, key=lambda name: found[name].seconds, default=None)


def ratio(found: Found, other: str | None, name: str) -> float | None:
    """Time of another variant over that of a variant; None if it was not timed."""
    if other not in found or not found[other].samples_s:
        return None
    return found[other].seconds / found[name].seconds


def fields(row: Row, name: str, found: Found) -> dict[str, Any]:
    """The extra_info of one variant that every suite has."""
    one, case = found[name], row.case
    choice = getattr(one.explanation, "choice", None)
    return {
        "epilogue": "none",
        **asdict(case),
        "implementation": choice.implementation if choice else name,
        "config": str(choice.config) if choice and choice.config else None,
        "gpu_us": 1e6 * one.seconds,
        "tflops": 1e-12 * case.flops / one.seconds,
        "gbytes_per_s": 1e-9 * case.bytes_moved / one.seconds,
    }


def few(cases: Iterable[Any]) -> list[Any]:
    """Some of the cases, tiny ones, for the simulator; NumPy has no bfloat16."""
    tiny = {str(case): case for case in (getattr(c, "tiny", lambda c=c: c)() for c in cases)}
    found = [case for case in tiny.values() if getattr(case, "dtype", "") != "bfloat16"]
    return found[:: max(1, -(-len(found) // FEW))]


def bench(
    cases: Iterable[Any],
    variants: Any,
    others: Any = None,
    more: Describe = lambda *_: {},
    facts: Any = None,
    describe: Describe = fields,
    measuring: Callable[[Row], Found] | None = None,
    cublas: Sequence[str] = (CUBLAS,),
    rivals: Sequence[str] = (),
    vs: Mapping[str, str] | None = None,
    **limits: Any,
) -> Callable[..., None]:
    """Make the pytest-benchmark function that measures the rows of a suite.

    Args:
        cases: the case of each row.
        variants, others, facts: as `Row` has them, for all cases; or functions of a case.
        more: more fields of extra_info.
        describe: the fields that say what it is, and its time.
        measuring: measures a row; `measure` with the `limits` if it is not given.
        cublas: names of whose fastest the time over a variant's is its `vs_cublas`.
        rivals: the same for `vs_rival`; the fastest one's name is `rival`.
        vs: names of others by the field of the time over a variant's.
    """
    by_default = lambda row: measure(row.case, row.timed, **limits)  # noqa: E731
    one_at_a_time = lru_cache(maxsize=1)(measuring or by_default)

    def of(given: Any, case: Any) -> Any:
        return given(case) if callable(given) else given or {}

    cases = few(cases) if SMOKE else cases
    rows = [Row(case, of(variants, case), of(others, case), of(facts, case)) for case in cases]
    pairs = [(row, name) for row in rows for name in row.variants]
    is_single = len({name for _, name in pairs}) == 1
    ids = [str(row) if is_single else f"{row}-{name}" for row, name in pairs]

    @pytest.mark.benchmark(timer=replay_clock)
    @pytest.mark.parametrize(("row", "name"), pairs, ids=ids)
    def run(benchmark: Any, row: Row, name: str) -> None:
        if getattr(row.case, "dtype", None) == "bfloat16":
            pytest.importorskip("torch", reason="bfloat16 arrays are torch's")
        found = one_at_a_time(row)
        one = found[name]
        for other in found.keys() - row.variants.keys():
            if found[other].wrong:
                warnings.warn(f"{row}: {other} is left out: {found[other].wrong}", stacklevel=1)
        if one.wrong:
            pytest.fail(one.wrong, pytrace=False)
        if one.refusal:
            pytest.skip(one.refusal)
        benchmark.group, info = str(row.case), dict(describe(row, name, found))
        if describe is fields:
            info["vs_cublas"] = ratio(found, fastest(found, cublas), name)
        if rivals:
            info["rival"] = fastest(found, rivals)
            info["vs_rival"] = ratio(found, info["rival"], name)
        info |= {each: ratio(found, other, name) for each, other in (vs or {}).items()}
        benchmark.extra_info.update({**info, **one.facts, **row.facts, **more(row, name, found)})
        replay(benchmark, one.samples_s)

    return run


_replayed_s = 0.0


def replay_clock() -> float:
    """The timer that pytest-benchmark uses; it only moves by measured times."""
    return _replayed_s


def replay(benchmark: Any, samples_s: Sequence[float]) -> None:
    """Give pytest-benchmark one round for each sample, so that its statistics are of them."""
    remaining = iter(samples_s)

    def set_clock(seconds: float) -> None:
        global _replayed_s
        _replayed_s = seconds

    benchmark.pedantic(
        lambda: set_clock(next(remaining)), setup=lambda: set_clock(0.0), rounds=len(samples_s)
    )
