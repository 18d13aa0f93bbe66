"""Groups of products in one array, as dxgemm computes them and as torch does.

Rivals are torch._grouped_mm, where it takes the dtype, and torch.mm for each group, whose sizes the
host then has to know. All are checked exactly on small integers, then timed on normal values, which
cost the power, and so the clocks, of data in use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from comparison import SMOKE, Case, Timer, sets_of_operands, take_turns, to_dtype, xp
from fused_comparison import AUTOMATIC, torch

import dxgemm
from dxgemm import errors
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.tuning.sampling import calls_in_sample

Call = Callable[[], object]
Maker = Callable[["GroupedCase", "Operands"], Call]


@dataclass(frozen=True)
class GroupedCase(Case):
    """Products of groups that share out m, the rows of a, or k, as in the gradient of weights.

    Attributes:
        shared: "m": (m, k) @ (groups, k, n); "k": (m, k) @ (k, n), with a result for each group.
        sizes: size of each group, along m or k; there m or k is their sum.
    """

    shared: str = "m"
    sizes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{super().__str__()}-{self.shared}-{len(self.sizes)}_groups"

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        a, b, out = super().shapes
        groups = len(self.sizes)
        return [a, (groups, *b), out] if self.shared == "m" else [a, b, (groups, *out)]

    @property
    def bytes_moved(self) -> int:
        """Each operand read once, each result written once."""
        return ITEM_SIZES[self.dtype] * sum(map(math.prod, self.shapes))


@dataclass
class Operands:
    """a, b, the ends of the groups, and the result."""

    a: Any
    b: Any
    ends: Any
    out: Any


def measure(case: GroupedCase, timer: Timer, budget_s: float) -> dict[str, list[float]]:
    """Check every call, then time those that pass, interleaved; seconds a call, by name."""
    makers: dict[str, Maker] = {AUTOMATIC: own_call}
    if not SMOKE:
        makers |= rivals(case.dtype)
    rng = xp.random.default_rng(0)
    call_s = first_times(case, makers, make_operands(case, rng), timer)
    count = max(map(calls_in_sample, call_s.values()))
    sets = sets_of_operands(case, count)
    operands = [make_operands(case, rng, normal) for _ in range(sets)]
    calls = {name: [makers[name](case, matrices) for matrices in operands] for name in call_s}
    return take_turns(calls, call_s, timer, budget_s)


def first_times(
    case: GroupedCase, makers: Mapping[str, Maker], operands: Operands, timer: Timer
) -> dict[str, float]:
    """Seconds of a call of those whose results are exact, by name; a rival may refuse a case."""
    call_s = {}
    for name, make in makers.items():
        try:
            call = make(case, operands)
            is_right = is_exact(case, call, operands)
        except (errors.MissingPackageError, NotImplementedError, RuntimeError):
            if name == AUTOMATIC:
                raise
            continue
        assert is_right, f"{name} gives a wrong result for {case}"
        call_s[name] = timer([call])
    return call_s


def rivals(dtype: str) -> dict[str, Maker]:
    """The rivals of a dtype. In float16 torch._grouped_mm reads the offsets on the host."""
    makers: dict[str, Maker] = {"torch.mm": mm_calls}
    return makers | {"torch._grouped_mm": grouped_mm_call} if dtype == "bfloat16" else makers


def signs(rng: Any, shape: tuple[int, ...]) -> Any:
    """-1, 0 and 1, whose sums are exact."""
    return rng.integers(-1, 2, shape).astype("float32")


def normal(rng: Any, shape: tuple[int, ...]) -> Any:
    return rng.standard_normal(shape, dtype="float32")


def make_operands(
    case: GroupedCase, rng: Any, fill: Callable[[Any, tuple[int, ...]], Any] = signs
) -> Operands:
    """Operands of values that `fill` draws; gradients multiply by activations transposed."""
    a, b, out = case.shapes
    first = fill(rng, a) if case.shared == "m" else fill(rng, a[::-1]).T
    ends = xp.asarray(np.cumsum(case.sizes, dtype=np.int32))
    result = to_dtype(xp.zeros(out, "float32"), case.dtype)
    return Operands(to_dtype(first, case.dtype), to_dtype(fill(rng, b), case.dtype), ends, result)


def products(case: GroupedCase, a: Any, b: Any, out: Any) -> list[tuple[Any, Any, Any]]:
    """The operands and the result of each group, as views."""
    views = []
    for group, (first, end) in enumerate(pairwise([0, *np.cumsum(case.sizes).tolist()])):
        part = slice(first, end)
        if case.shared == "m":
            views.append((a[part], b[group], out[part]))
        else:
            views.append((a[:, part], b[part], out[group]))
    return views


def is_exact(case: GroupedCase, call: Call, operands: Operands) -> bool:
    """Tell whether every element is the exact sum, rounded to nearest."""
    operands.out[...] = math.nan
    result = like(operands.out, call())
    for a, b, out in products(case, operands.a, operands.b, result):
        if case.dtype == "bfloat16":
            exact = (a.double() @ b.double()).to(out.dtype)
        else:
            exact = xp.matmul(a.astype("float64"), b.astype("float64")).astype(out.dtype)
        if not bool((out == exact).all()):
            return False
    return True


def own_call(case: GroupedCase, operands: Operands) -> Call:
    plan = dxgemm.plan_grouped(operands.a, operands.b, out=operands.out, offsets=operands.ends)

    def call() -> Any:
        plan()
        return operands.out

    return call


def tensors(operands: Operands) -> tuple[Any, Any, Any, Any]:
    arrays = operands.a, operands.b, operands.ends, operands.out
    as_tensor = torch().from_dlpack
    return tuple(x if isinstance(x, torch().Tensor) else as_tensor(x) for x in arrays)


def grouped_mm_call(case: GroupedCase, operands: Operands) -> Call:
    """torch._grouped_mm, which allocates its result."""
    a, b, ends, _ = tensors(operands)
    multiply = torch()._grouped_mm

    return lambda: multiply(a, b, offs=ends)


def mm_calls(case: GroupedCase, operands: Operands) -> Call:
    """torch.mm of each group in turn, into out."""
    a, b, _, out = tensors(operands)
    multiply, parts = torch().mm, products(case, a, b, out)

    def call() -> Any:
        for x, y, z in parts:
            multiply(x, y, out=z)
        return operands.out

    return call


def like(array: Any, result: Any) -> Any:
    """The result, as an array of the same library as another."""
    return result if isinstance(result, type(array)) else xp.from_dlpack(result)
