"""GPU time of products by an inner function, against the instructions they need, and torch.

`vs_bound` is the time of a product's instructions alone, two per pair of elements, over that of the
product. `vs_cdist` and `vs_compiled` are the times of `torch.cdist` and of the compiled broadcast
form over it. That is compiled for any shape of a dtype, anew for offsets of 64 bits and for another
order of b, and left out if a kernel takes longer than `COMPILE_S`. With the inner function `l1` the
nearest column is also found in the same kernel; `vs_plain` is the time of the product over that.
int16 is computed two at a time; `vs_float32` is the time of the same product in float32 over it.
Rivals run after all else: their calls of up to 0.1 s at full power lower the GPU's clock for more
than their own samples. Results must be exact on small integers.
"""

import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from cases import SMOKE, Call, Case, Operands, as_tensor, grid, same, to_dtype, torch, widened, xp
from measuring import OWN, Found, Row, bench, measure
from oracle import inputs

import dxgemm
from dxgemm import inners, reductions
from dxgemm.errors import UnsupportedProblemError
from dxgemm.runtime.device import device_facts

COMPILE_S = 30  # of torch.compile, for one kernel
CHECKED = 64  # rows and columns of a result
# 10**12 pairs a second at which the two instructions of a function were measured to issue in
# float32, on the 132 SMs of an H100; in float64 half of it.
ISSUED = {"l1": 15.2, "chebyshev": 14.2, "squared_euclidean": 15.2, "min_plus": 14.0}
ISSUED |= dict.fromkeys(("min_plus_int16", "max_plus_int16"), 32.8)
MEASURED_SMS = 132
NEAREST, CDIST, COMPILED, FLOAT32 = "argmin", "torch.cdist", "torch.compile", "float32"
SIZES = [1024, 4096, (4096, 4096, 128), (20000, 2000, 64), (1000, 1003, 517)]

# What broadcast points give in a library; and the p of torch.cdist. Each is a function of its own:
# of one, torch.compile makes eight kernels, and then runs it as it is, with all pairs in memory.
FORMS: dict[str, tuple[Callable[[Any, Any, Any], Any], float | None]] = {
    "l1": (lambda library, x, y: library.sum(abs(x - y), -1), 1.0),
    "chebyshev": (lambda library, x, y: library.amax(abs(x - y), -1), float("inf")),
    "squared_euclidean": (lambda library, x, y: library.sum((x - y) ** 2, -1), None),
    "min_plus": (lambda library, x, y: library.amin(x + y, -1), None),
    "min_plus_int16": (lambda library, x, y: library.amin(x + y, -1), None),
    "max_plus_int16": (lambda library, x, y: library.amax(x + y, -1), None),
}
RIVALLED = ("l1", "chebyshev", "min_plus")  # functions that torch computes too
FEW = ["l1", "min_plus"]  # functions that are measured beyond float32 and `SIZES`


@dataclass(frozen=True)
class InnerCase(Case):
    """Points in the rows of a and in the columns of b, and an inner function of `FORMS`."""

    inner: str = ""

    def tiny(self) -> Any:
        return replace(super().tiny(), k=4)  # pairs of int16

    @property
    def exact_fills(self) -> tuple[Any, Any]:
        return inputs.integers, inputs.integers

    def expected(self, x: Operands) -> Any:
        """The first rows and columns of the result."""
        few = x.a[..., :CHECKED, :], x.b[..., :CHECKED].swapaxes(-1, -2)
        form, points = FORMS[self.inner][0], broadcast(*map(widened, few))
        return widened(to_dtype(form(xp, *points), self.out_dtype))

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        if name == NEAREST:
            is_right = same(call(), x.out.argmin(-1))  # of what the plain product, checked, left
        else:
            self.spoil(x.out)
            is_right = same(widened(call()[..., :CHECKED, :CHECKED]), expected)
        self.require(is_right, name)
        return {}


def broadcast(x: Any, y: Any) -> tuple[Any, Any]:
    """Points (..., m, k) and (..., n, k), each against all of the other."""
    return x[..., :, None, :], y[..., None, :, :]


def points(x: Operands) -> tuple[Any, Any]:
    return as_tensor(x.a), as_tensor(x.b).swapaxes(-1, -2)


def own(case: InnerCase, x: Operands) -> Call:
    a, b = x.a, x.b
    if case.dtype == "int16":  # pairs of neighbours along k
        a, b = a.view("int32"), b.T.view("int32").T
    return dxgemm.plan(a, b, inner=getattr(inners, case.inner), out=x.out)


def in_float32(case: InnerCase, x: Operands) -> Call:
    inner = getattr(inners, case.inner.removesuffix("_int16"))
    a, b, out = (array.astype("float32") for array in (x.a, x.b, x.out))
    return dxgemm.plan(a, b, inner=inner, out=out)


def nearest(case: InnerCase, x: Operands) -> Call:
    nearest_column = reductions.argmin(1)
    return dxgemm.plan(x.a, x.b, inner=getattr(inners, case.inner), epilogue=nearest_column)


def cdist(case: InnerCase, x: Operands) -> Call:
    a, b = points(x)
    return lambda: torch().cdist(a, b, p=FORMS[case.inner][1])


def compiled(case: InnerCase, x: Operands) -> Call:
    a, b = broadcast(*points(x))
    # A case for which torch.compile makes the same kernel, with offsets of 32 or 64 bits.
    size = (4096, 4095, 257) if case.m * case.n * case.k >= 2**31 else (300, 200, 37)
    call = compiled_form(InnerCase(case.dtype, *size, case.arrangement, inner=case.inner))
    if isinstance(call, str):
        raise UnsupportedProblemError(call)
    return lambda: call(torch(), a, b)


@cache
def compiled_form(case: InnerCase) -> Any:
    """The broadcast form, compiled for a case; or the reason why it cannot be timed."""

    def interrupt(*_: Any) -> None:
        raise TimeoutError(f"it takes longer than {COMPILE_S} s")

    # With the whole graph, what is not compiled is an error.
    call = torch().compile(FORMS[case.inner][0], dynamic=True, fullgraph=True)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(COMPILE_S)
    try:
        call(torch(), *broadcast(*points(case.operands(xp.random.default_rng(0)))))
        torch().cuda.synchronize()
    except Exception as error:  # of whatever type: the compiler wraps the interruption in its own
        return f"torch.compile: {str(error).splitlines()[0]}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return call


def others(case: InnerCase) -> dict[str, Any]:
    if case.dtype == "int16":
        return {FLOAT32: in_float32}
    found: dict[str, Any] = {NEAREST: nearest} if case.inner == "l1" else {}
    if case.dtype != "float32" or case.batch > 1 or case.inner not in RIVALLED:
        return found
    return found | {COMPILED: compiled} | ({CDIST: cdist} if FORMS[case.inner][1] else {})


def measured(row: Row) -> Found:
    """Own kernels first, then torch's."""
    own = {name: make for name, make in row.timed.items() if name not in (CDIST, COMPILED)}
    rivals = {name: make for name, make in row.timed.items() if name not in own}
    found = measure(row.case, own, 0.1)
    return found | (measure(row.case, rivals, 0.1, longest_s=0.25) if rivals else {})


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    case, seconds = row.case, found[name].seconds
    pairs = case.batch * case.m * case.n * case.k
    rate = ISSUED[case.inner] / (2 if case.dtype == "float64" else 1)
    bound_s = 1e-12 * pairs / (rate * device_facts(0).sm_count / MEASURED_SMS)
    times = {"tpairs_per_s": 1e-12 * pairs / seconds}
    if NEAREST in found and found[NEAREST].samples_s:
        times["vs_plain"] = seconds / found[NEAREST].seconds
    is_bounded = not SMOKE and not case.dtype.startswith("complex")
    return {**times, "vs_bound": bound_s / seconds} if is_bounded else times


COLUMNS = {"arrangement": "row_col_row"}
FURTHER = [{"dtype": "float64", "size": size, **COLUMNS} for size in SIZES]
FURTHER += [{"dtype": "float32", "size": 4096}, {"size": (64, 64, 65536), **COLUMNS}]
FURTHER += [{"size": (500, 500, 500, 64), **COLUMNS}, {"size": (32, 32, 32, 4096)}]
FURTHER += [{"dtype": "float16", "size": SIZES[2], **COLUMNS}]
FURTHER += [{"dtype": "int32", "size": SIZES[1], **COLUMNS}]
CASES = grid(InnerCase, inner=[*RIVALLED, "squared_euclidean"], dtype="float32", size=SIZES,
             of=COLUMNS)  # fmt: skip
INT16 = [name for name in FORMS if name.endswith("int16")]
CASES += grid(InnerCase, inner=INT16, dtype="int16", size=SIZES[:4], of=COLUMNS)
CASES += grid(InnerCase, inner=["squared_euclidean"], dtype="complex64", size=[1024])
for inner in FEW:
    for kind in FURTHER:
        of = {"dtype": "float32", **kind}
        CASES += grid(InnerCase, inner=inner, size=[of.pop("size")], of=of)
bench_inner = bench(
    CASES,
    {OWN: own},
    others,
    describe,
    measuring=measured,
    vs={"vs_cdist": CDIST, "vs_compiled": COMPILED, "vs_float32": FLOAT32},
)
