"""GPU time of many small products: batches in one array, lists of arrays, mixed sizes.

The automatic choice (for lists `plan_grouped`) is interleaved with cuBLAS, batched or in turn,
and torch; `vs_cublas` is the time of the quicker of these over a row's.
"""

from dataclasses import dataclass
from typing import Any

import cases
import numpy as np
from cases import Call, Case, Operands, Size, as_tensor, own, same, torch_call, xp
from measuring import CUBLAS, OWN, Found, Row, bench

import dxgemm
from dxgemm.errors import MissingPackageError
from dxgemm.problem.dtypes import ITEM_SIZES


@dataclass(frozen=True)
class BatchedCase(Case):
    """Batch of matrices of equal sizes, or of different ones, of which m, n and k are None.

    Attributes:
        sizes: m, n and k of each problem, which repeat until there are `batch`.
        way: "strided" or "broadcast" (b is one matrix) for a batch in one array, "list" for a list
            of arrays.
    """

    sizes: tuple[Size, ...] = ()
    way: str = "strided"

    def __str__(self) -> str:
        shapes = "_".join("x".join(map(str, size)) for size in self.sizes)
        return f"{self.dtype}-{self.way}-{self.batch}x{shapes}"

    def tiny(self) -> Any:
        sizes = ((4, 4, 4), (5, 3, 2))[: 2 if self.way == "list" else 1]
        return batched_case(self.dtype, 3, *sizes, way=self.way)

    @property
    def problems(self) -> list[Size]:
        return [self.sizes[index % len(self.sizes)] for index in range(self.batch)]

    @property
    def flops(self) -> int:
        return sum(2 * m * n * k for m, n, k in self.problems)

    @property
    def bytes_moved(self) -> int:
        """Each operand read once, each result written once."""
        of_b = [k * n for _, n, k in self.problems][: 1 if self.way == "broadcast" else None]
        return ITEM_SIZES[self.dtype] * sum(of_b + [m * (k + n) for m, n, k in self.problems])

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        """Arrays, or lists of them."""
        if self.way == "list":
            single = [Case(self.dtype, *size).operands(rng, is_exact) for size in self.problems]
            return Operands(**{name: [vars(x)[name] for x in single] for name in ("a", "b", "out")})
        x = super().operands(rng, is_exact)
        if self.way == "broadcast":
            x.b = x.b[0].copy()
        return x

    def expected(self, x: Operands) -> Any:
        return [Case.expected(self, one) for one in self.products(x)]

    def products(self, x: Operands) -> list[Operands]:
        """The arrays of each array of products."""
        if self.way != "list":
            return [x]
        return [Operands(a=a, b=b, out=out) for a, b, out in zip(x.a, x.b, x.out, strict=True)]

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        outs = [one.out for one in self.products(x)]
        for out in outs:
            self.spoil(out)
        call()
        self.require(all(map(same, outs, expected)), name)
        return {}


def batched_case(dtype: str, batch: int, *sizes: Size, way: str = "strided") -> BatchedCase:
    m, n, k = sizes[0] if len(sizes) == 1 else (None, None, None)
    return BatchedCase(dtype, m, n, k, batch=batch, sizes=sizes, way=way)


def own_batch(case: BatchedCase, x: Operands) -> Call:
    if case.way == "list":
        return dxgemm.plan_grouped(x.a, x.b, out=x.out)
    return own()(case, x)


def cublas_batch(case: BatchedCase, x: Operands) -> Call:
    """cublas<t>gemmStridedBatched; of lists of equal shapes gemmBatched, else a call for each."""
    cases.gpu_only()
    if case.way == "list" and len(case.sizes) == 1:
        return pointer_batch(case, x)
    plans = [own("cublas")(case, one) for one in case.products(x)]
    return plans[0] if len(plans) == 1 else lambda: [plan() for plan in plans]


def pointer_batch(case: BatchedCase, x: Operands) -> Call:
    """cublas<t>gemmBatched on row-major matrices: out.T = b.T @ a.T, column-major."""
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cublas

    ((m, n, k),) = case.sizes
    gemm = {"float32": cublas.sgemmBatched, "float64": cublas.dgemmBatched}[case.dtype]
    tables = [xp.array([array.data.ptr for array in of], "uint64") for of in (x.b, x.a, x.out)]
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


def torch_batch(case: BatchedCase, x: Operands) -> Call:
    if case.way == "list":
        raise MissingPackageError("torch.bmm takes no lists")
    b = as_tensor(x.b).expand(case.batch, -1, -1)
    return torch_call(case, Operands(a=x.a, b=b, out=x.out))


SIZES = (4, 8, 16, 32, 48, 64, 96, 128)
BATCHES = (100, 1000, 10_000, 100_000)
LISTS: list[tuple[int, Any]] = [
    (1000, ((4, 4, 4),)),
    (1000, ((32, 32, 32),)),
    (300, ((4, 4, 4), (16, 16, 16), (64, 64, 64), (128, 128, 128), (32, 8, 100))),
    (300, ((17, 33, 65), (5, 100, 31), (127, 63, 9))),
]
CASES = []
for dtype in ("float32", "float64"):
    CASES += [batched_case(dtype, batch, (n, n, n)) for n in SIZES for batch in BATCHES]
    CASES += [batched_case(dtype, 1000, (32, 32, 32), way="broadcast")]
    CASES += [batched_case(dtype, batch, *sizes, way="list") for batch, sizes in LISTS]


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    choice = getattr(found[name].explanation, "choice", None)
    is_named = name == OWN and row.case.way != "list"
    kernel = f"{choice.implementation} {choice.config}" if choice and is_named else None
    return {"implementation": name, "config": kernel}


bench_batched = bench(
    CASES,
    {OWN: own_batch, CUBLAS: cublas_batch, "torch": torch_batch},
    more=describe,
    cublas=(CUBLAS, "torch"),
    budget_s=1.0,
)
