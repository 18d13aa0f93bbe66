"""Cases of many products at once: batches, lists of arrays, and groups in one array."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import cases
import numpy as np
from cases import Call, Case, Operands, Size, as_tensor, own, same, to_dtype, torch_call, xp
from oracle import inputs

import dxgemm
from dxgemm.errors import MissingPackageError, UnsupportedProblemError
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
        return f"{Case.__str__(replace(self, sizes=()))}-{len(self.sizes)}_groups"

    def tiny(self) -> Any:
        m, k = (5, 4) if self.shared == "m" else (4, 5)
        return replace(self, m=m, n=5, k=k, sizes=(3, 0, 2))

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        a, b, out = super().shapes
        groups = len(self.sizes)
        return [a, (groups, *b), out] if self.shared == "m" else [a, b, (groups, *out)]

    @property
    def exact_fills(self) -> tuple[Any, Any]:
        return inputs.signs, inputs.signs

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        """a, b, the ends of the groups, and the result."""
        x = super().operands(rng, is_exact)
        x.ends = xp.asarray(np.cumsum(self.sizes, dtype=np.int32))
        return x

    def products(self, x: Operands) -> list[Operands]:
        """The operands and the result of each group, as views."""
        pairs = pairwise([0, *np.cumsum(self.sizes).tolist()])
        parts = [(group, slice(*pair)) for group, pair in enumerate(pairs)]
        if self.shared == "m":
            return [Operands(a=x.a[part], b=x.b[g], out=x.out[part]) for g, part in parts]
        return [Operands(a=x.a[:, part], b=x.b[part], out=x.out[g]) for g, part in parts]

    def expected(self, x: Operands) -> Any:
        result = to_dtype(xp.zeros(self.shapes[2], "float32"), self.dtype)
        for one in self.products(Operands(a=x.a, b=x.b, out=result)):
            one.out[...] = super().expected(one)
        return result


def own_groups(case: GroupedCase, x: Operands) -> Call:
    return dxgemm.plan_grouped(x.a, x.b, out=x.out, offsets=x.ends)


def torch_grouped_mm(case: GroupedCase, x: Operands) -> Call:
    """torch._grouped_mm, which allocates its result, and in float16 reads offsets on the host."""
    if case.dtype != "bfloat16":
        raise UnsupportedProblemError("torch._grouped_mm is compared in bfloat16")
    a, b, ends = map(as_tensor, (x.a, x.b, x.ends))
    multiply = cases.torch()._grouped_mm
    try:
        multiply(a, b, offs=ends)
    except RuntimeError as error:
        raise UnsupportedProblemError(str(error)) from error
    return lambda: multiply(a, b, offs=ends)


def torch_mm(case: GroupedCase, x: Operands) -> Call:
    """torch.mm of each group in turn, into out; the host then has to know the sizes."""
    tensors = Operands(a=as_tensor(x.a), b=as_tensor(x.b), out=as_tensor(x.out))
    calls = [torch_call(case, one) for one in case.products(tensors)]
    return cases.returning(x.out, lambda: [call() for call in calls])


GROUP_RIVALS = {"torch.mm": torch_mm, "torch._grouped_mm": torch_grouped_mm}
