"""Many small problems at once, as dxgemm computes them and as cuBLAS does.

A case is one batch in three arrays, or lists of arrays. What it is compared with: CuPy's binding of
cublas<t>gemmStridedBatched (`cublas`) and torch.bmm (`torch`) for the former; for lists of equal
shapes cublas<t>gemmBatched, for others a call of cuBLAS for each problem (`cublas`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from comparison import (
    SMOKE,
    Timer,
    sets_of_operands,
    take_turns,
    xp,
)

import dxgemm
from dxgemm import errors
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.tuning.sampling import MOST_CALLS, calls_in_sample

OWN = "automatic"
RIVALS = ("cublas", "torch")
LONGEST_S = 1.0  # of timing a case

Call = Callable[[], object]


@dataclass(frozen=True)
class BatchedCase:
    """Batch of matrices of equal sizes, or of different ones.

    Attributes:
        layout: "strided" or "broadcast" (b is one matrix) for a batch in one array, "list" for a
            list of arrays.
        sizes: m, n and k of each problem, which repeat until there are `batch`.
    """

    dtype: str
    batch: int
    sizes: tuple[tuple[int, int, int], ...]
    layout: str = "strided"

    def __str__(self) -> str:
        shapes = "_".join("x".join(map(str, size)) for size in self.sizes)
        return f"{self.dtype}-{self.layout}-{self.batch}x{shapes}"

    @property
    def problems(self) -> list[tuple[int, int, int]]:
        return [self.sizes[index % len(self.sizes)] for index in range(self.batch)]

    @property
    def flops(self) -> int:
        return sum(2 * m * n * k for m, n, k in self.problems)

    @property
    def bytes_moved(self) -> int:
        """Each operand read once, each result written once."""
        elements = sum(m * k + m * n for m, n, k in self.problems)
        if self.layout == "broadcast":
            (_, n, k) = self.sizes[0]
            elements += k * n
        else:
            elements += sum(k * n for _, n, k in self.problems)
        return elements * ITEM_SIZES[self.dtype]


@dataclass
class Measurement:
    """Times of a case, by the name of the call.

    Attributes:
        samples_s: seconds a call.
        config: config of the kernel that was chosen.
        wrong: names of the calls whose results were not exact.
        refusals: reasons why other calls were not timed, by name.
    """

    samples_s: dict[str, list[float]] = field(default_factory=dict)
    config: str | None = None
    wrong: list[str] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)


def measure(case: BatchedCase, timer: Timer) -> Measurement:
    """Check every call on small integers, then time those that pass, interleaved."""
    result = Measurement()
    makers: dict[str, Callable[..., Call]] = {OWN: own_call}
    if not SMOKE:
        makers |= {"cublas": cublas_call, "torch": torch_call}
    rng = xp.random.default_rng(0)
    sets = [operands(case, rng)]
    calls: dict[str, list[Call]] = {}
    for name, make in makers.items():
        try:
            call = make(case, *sets[0])
        except (errors.DxgemmError, NotImplementedError) as error:
            result.refusals[name] = str(error)
            continue
        if is_exact(call, *sets[0]):
            calls[name] = [call]
        else:
            result.wrong.append(name)
    if OWN in calls and case.layout != "list":
        explanation = calls[OWN][0].explain()  # type: ignore[attr-defined]
        result.config = f"{explanation.choice.implementation} {explanation.choice.config}"
    call_s = {name: timer(of_name) for name, of_name in calls.items()}
    count = max(map(calls_in_sample, call_s.values()), default=1)
    sets += [operands(case, rng) for _ in range(sets_of_operands(case, min(count, MOST_CALLS)) - 1)]
    for name in calls:
        calls[name] += [makers[name](case, *others) for others in sets[1:]]
    result.samples_s = take_turns(calls, call_s, timer, LONGEST_S)
    return result


def operands(case: BatchedCase, rng: Any) -> tuple[Any, Any, Any]:
    """a, b and out: small integers, whose sums are exact; each an array, or a list of them."""

    def integers(*shape: int) -> Any:
        return rng.integers(-3, 4, shape).astype(case.dtype)

    if case.layout == "list":
        a = [integers(m, k) for m, _, k in case.problems]
        b = [integers(k, n) for _, n, k in case.problems]
        return a, b, [xp.empty((m, n), case.dtype) for m, n, _ in case.problems]
    ((m, n, k),) = case.sizes
    b = integers(k, n) if case.layout == "broadcast" else integers(case.batch, k, n)
    return integers(case.batch, m, k), b, xp.empty((case.batch, m, n), case.dtype)


def is_exact(call: Call, a: Any, b: Any, out: Any) -> bool:
    """Tells whether a call gives every element exactly."""
    if not isinstance(out, list):
        a, b, out = [a], [b], [out]
    for result in out:
        result[...] = math.nan
    call()
    return all(bool((z == xp.matmul(x, y)).all()) for x, y, z in zip(a, b, out, strict=True))


def own_call(case: BatchedCase, a: Any, b: Any, out: Any) -> Call:
    if case.layout == "list":
        return dxgemm.plan_grouped(a, b, out=out)
    return dxgemm.plan(a, b, out=out)


def cublas_call(case: BatchedCase, a: Any, b: Any, out: Any) -> Call:
    if case.layout != "list":
        return dxgemm.plan(a, b, out=out, implementation="cublas")
    if len(case.sizes) == 1:
        return pointer_batch(case, a, b, out)
    plans = [
        dxgemm.plan(x, y, out=z, implementation="cublas") for x, y, z in zip(a, b, out, strict=True)
    ]

    def run_all() -> None:
        for plan in plans:
            plan()

    return run_all


def pointer_batch(
    case: BatchedCase, a: Sequence[Any], b: Sequence[Any], out: Sequence[Any]
) -> Call:
    """cublas<t>gemmBatched on row-major matrices: out.T = b.T @ a.T, column-major."""
    import numpy as np
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cublas

    ((m, n, k),) = case.sizes
    gemm = {"float32": cublas.sgemmBatched, "float64": cublas.dgemmBatched}[case.dtype]
    tables = [xp.array([array.data.ptr for array in of_all], "uint64") for of_all in (b, a, out)]
    scalars = np.array([1, 0], case.dtype)
    one = scalars.ctypes.data
    b_table, a_table, out_table = (table.data.ptr for table in tables)
    plain = cublas.CUBLAS_OP_N

    def run(_keep_alive: Any = (tables, scalars)) -> None:
        gemm(
            device.get_cublas_handle(), plain, plain, n, m, k, one, b_table, n, a_table, k,
            one + scalars.itemsize, out_table, n, case.batch,
        )  # fmt: skip

    return run


def torch_call(case: BatchedCase, a: Any, b: Any, out: Any) -> Call:
    if case.layout == "list":
        raise NotImplementedError("torch.bmm takes no lists")
    try:
        import torch
    except ImportError:
        raise NotImplementedError("torch is not installed") from None
    first, second, target = (torch.from_dlpack(array) for array in (a, b, out))
    if case.layout == "broadcast":
        second = second.expand(case.batch, -1, -1)
    return lambda: torch.bmm(first, second, out=target)
