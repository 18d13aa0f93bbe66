"""Groups of products in one array, as dxgemm computes them and as torch does.

Rivals are torch._grouped_mm, where it takes the dtype, and torch.mm for each group, whose sizes the
host then has to know. All are checked exactly on small integers, on which they are timed, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from comparison import SMOKE, Case, Timer, sets_of_operands, take_turns, to_dtype, xp
from fused_comparison import AUTOMATIC, torch

import dxgemm
from dxgemm import errors
from dxgemm.tuning.sampling import calls_in_sample

Call = Callable[[], object]


@dataclass(frozen=True)
class GroupedCase:
    """Products of groups: rows of a shared out ("m"), or k, as in the gradient of the weights.

    Attributes:
        sizes: number of rows of each group.
        n, k: sizes of each matrix of weights, (k, n).
        shared: "m": (total, k) @ (groups, k, n); "k": (k, total) @ (total, n), a matrix a group.
    """

    dtype: str
    sizes: tuple[int, ...]
    n: int
    k: int
    shared: str = "m"

    def __str__(self) -> str:
        size = f"{len(self.sizes)}x{max(self.sizes)}"
        return f"{self.dtype}-{self.shared}-{size}x{self.n}x{self.k}"

    @property
    def total(self) -> int:
        return sum(self.sizes)

    def as_one(self) -> Case:
        """The product of as many operations, for a row's figures."""
        m, k = (self.total, self.k) if self.shared == "m" else (self.k, self.total)
        return Case(self.dtype, m, self.n, k)

    @property
    def bytes_moved(self) -> int:
        """Each operand read once, each result written once."""
        items = self.total * (self.k + self.n) + len(self.sizes) * self.k * self.n
        return 2 * items


@dataclass
class Operands:
    """a, b, the ends of the groups, and the result."""

    a: Any
    b: Any
    ends: Any
    out: Any


def measure(case: GroupedCase, timer: Timer, budget_s: float) -> dict[str, list[float]]:
    """Check every call, then time those that pass, interleaved; seconds a call, by name."""
    makers: dict[str, Callable[[GroupedCase, Operands], Call]] = {AUTOMATIC: own_call}
    if not SMOKE:
        makers |= {"torch._grouped_mm": grouped_mm_call, "torch.mm": mm_calls}
    rng = xp.random.default_rng(0)
    sets = [make_operands(case, rng)]
    calls: dict[str, list[Call]] = {}
    for name, make in makers.items():
        try:
            call = make(case, sets[0])
            is_right = is_exact(case, call, sets[0])
        except (errors.MissingPackageError, NotImplementedError, RuntimeError):
            if name == AUTOMATIC:
                raise
            continue
        assert is_right, f"{name} gives a wrong result for {case}"
        calls[name] = [call]
    call_s = {name: timer(of_name) for name, of_name in calls.items()}
    count = max(map(calls_in_sample, call_s.values()))
    sets += [make_operands(case, rng) for _ in range(sets_of_operands(case, count) - 1)]
    for name in calls:
        calls[name] += [makers[name](case, others) for others in sets[1:]]
    return take_turns(calls, call_s, timer, budget_s)


def make_operands(case: GroupedCase, rng: Any) -> Operands:
    """Operands of small integers, whose sums are exact and small enough for results of 8 bits."""

    def signs(*shape: int) -> Any:
        values = rng.integers(-1, 2, shape).astype("float32")
        return to_dtype(values, case.dtype)

    ends = xp.asarray(np.cumsum(case.sizes, dtype=np.int32))
    groups = len(case.sizes)
    if case.shared == "m":
        a, b, shape = signs(case.total, case.k), signs(groups, case.k, case.n), (case.total, case.n)
    else:
        a, b = signs(case.total, case.k).T, signs(case.total, case.n)
        shape = (groups, case.k, case.n)
    out = to_dtype(xp.zeros(shape, "float32"), case.dtype)
    return Operands(a, b, ends, out)


def is_exact(case: GroupedCase, call: Call, operands: Operands) -> bool:
    """Tell whether every element is the exact sum, rounded to nearest."""
    operands.out[...] = math.nan
    result = call()
    for group, (first, end) in enumerate(pairwise([0, *np.cumsum(case.sizes).tolist()])):
        rows = slice(first, end)
        if case.shared == "m":
            a, b, out = operands.a[rows], operands.b[group], result[rows]
        else:
            a, b, out = operands.a[:, rows], operands.b[rows], result[group]
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

    def call() -> Any:
        return like(operands.out, multiply(a, b, offs=ends))

    return call


def mm_calls(case: GroupedCase, operands: Operands) -> Call:
    """torch.mm of each group in turn, into out."""
    a, b, _, out = tensors(operands)
    multiply, products = torch().mm, []
    for group, (first, end) in enumerate(pairwise([0, *np.cumsum(case.sizes).tolist()])):
        rows = slice(first, end)
        if case.shared == "m":
            products.append((a[rows], b[group], out[rows]))
        else:
            products.append((a[:, rows], b[rows], out[group]))

    def call() -> Any:
        for x, y, z in products:
            multiply(x, y, out=z)
        return operands.out

    return call


def like(array: Any, tensor: Any) -> Any:
    """The tensor, as an array of the same library as another."""
    return tensor if isinstance(array, torch().Tensor) else xp.from_dlpack(tensor)
