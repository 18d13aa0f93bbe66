"""GPU time of float16 and bfloat16, against the fastest of cuBLAS, cuBLASLt and torch.

Each row is the automatic choice. Its `family` says what is hard about the problem:

    odd         sizes that are no multiples of 8, large and thin ones
    plain       squares, and layers of transformers, in four layouts
    batch       many small matrices
    epilogue    a bias and an activation, which cuBLASLt fuses too
    grouped     products of a mixture of experts, by offsets on the device

`vs_rival` is the time of the fastest rival over that of the choice: torch and CuPy's cuBLAS, for
epilogues those of the suite `epilogue`, for groups torch._grouped_mm and a call of torch.mm for
each. Rivals that are not exact, which may add in half, are left out.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import cases
import numpy as np
from cases import (
    Call,
    Case,
    Operands,
    as_tensor,
    grid,
    own,
    to_dtype,
    torch,
    torch_call,
    xp,
)
from fused import BASELINES, FusedCase, baselines_of, fused, plain
from measuring import CUBLAS, OWN, Found, Row, bench
from oracle import inputs

import dxgemm
from dxgemm.errors import UnsupportedProblemError


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


CASE_S = 0.2  # of timing a case, unless fewest rounds take longer
PLAIN, TORCH = "plain", "torch"
ODD = [
    (999, 1001, 1003), (2187, 2187, 2187), (4095, 4095, 4095), (8191, 8193, 1001),
    (4096, 4097, 4096), (4096, 4096, 4097), (64, 50257, 768), (39300, 131, 131),
    (37, 4099, 4097), (4099, 37, 4097),
]  # fmt: skip
ODD_ARRANGED = [(2187, 2187, 2187), (4095, 4095, 4095), (37, 4099, 4097)]
SQUARES = [512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384]
LAYERS = [
    # Attention's projections and the MLP of models of 1 to 70 billion parameters, n x k, for
    # sequences of 512 to 16384 tokens.
    (512, 4096, 4096), (512, 14336, 4096), (1024, 1024, 4096), (2048, 2048, 8192),
    (2048, 8192, 2048), (2048, 5120, 5120), (4096, 6144, 4096), (4096, 28672, 4096),
    (4096, 4096, 14336), (8192, 10240, 8192), (8192, 8192, 1024), (16384, 4096, 1024),
]  # fmt: skip
# Shapes for which cuBLAS takes each of its tiles, by the names of its kernels.
TILED = [
    (2048, 17408, 5120), (4096, 14336, 4096), (8192, 1280, 8192), (16384, 512, 512),
    (4096, 4096, 1024), (2048, 4096, 11008), (1531, 18944, 3584), (1000, 128256, 4096),
    (1576, 3072, 768), (3328, 3328, 3328), (2304, 2304, 2304), (1280, 1280, 1280),
    (300, 6144, 4096), (512, 2560, 2560), (1576, 768, 3072), (1024, 1024, 4096),
    (256, 4096, 4096), (128, 8192, 8192), (50176, 64, 576),
]  # fmt: skip
# Shapes of other models; the last five have rows that begin at no cache line.
FURTHER = [
    (1152, 4608, 1536), (640, 5120, 2048), (4608, 2304, 2304), (7168, 2048, 1792),
    (2752, 2752, 5504), (900, 10240, 4096), (14000, 1536, 1024), (3584, 3584, 896),
    (1100, 4200, 3400), (5200, 2600, 1300), (840, 840, 8400), (9000, 712, 2008),
]  # fmt: skip
# Shapes that no table of speeds has seen; the last five have rows that begin at no cache line.
UNSEEN = [
    (1344, 3456, 2304), (2560, 1920, 3840), (704, 6400, 1280), (4224, 1664, 2816),
    (6016, 3008, 1504), (384, 9216, 3072), (11008, 1792, 1408), (1720, 2360, 4120),
    (3000, 5000, 1000), (2200, 2200, 5000), (560, 7000, 3000), (5000, 1000, 6000),
]  # fmt: skip
ARRANGEMENTS = ["row_row_row", "row_col_row", "col_row_row", "col_col_row"]
BATCHED = [
    (10_000, 8), (4000, 16), (4000, 31), (2000, 32), (1000, 63), (1000, 64), (344, 100),
    (300, 128), (300, 131),
]  # fmt: skip
BATCHES = [(n, n, n, count) for count, n in BATCHED]
FUSED = [
    (4096, 4096, 4096), (8192, 8192, 1024), (2048, 8192, 2048), (512, 4096, 4096),
    (16384, 4096, 1024), (1576, 3072, 768), (8192, 3584, 512), (3072, 12288, 768),
    (2048, 17408, 5120),
]  # fmt: skip
CHAINS = ("bias | relu", "bias | gelu_tanh", "bias | fast_gelu_tanh")


EXPERTS: list[tuple[tuple[int, ...], int, int]] = [
    ((4096,) * 8, 4096, 7168), ((2048,) * 8, 14336, 4096),
    ((900, 3500, 0, 2100, 64, 5000, 1300, 520), 4096, 4096), ((16,) * 64, 2048, 1408),
    ((128,) * 64, 1408, 2048), ((1024,) * 32, 1536, 4096),
]  # fmt: skip


FAMILIES: dict[str, list[Case]] = {"odd": [], "plain": [], "batch": []}
GROUPED_CASES = []
for dtype in ("float16", "bfloat16"):
    FAMILIES["odd"] += grid(dtype=dtype, size=ODD)
    FAMILIES["odd"] += grid(dtype=dtype, size=ODD_ARRANGED, arrangement=ARRANGEMENTS[1:])
    orders = ARRANGEMENTS if dtype == "bfloat16" else ARRANGEMENTS[:2]
    FAMILIES["plain"] += grid(dtype=dtype, size=SQUARES + LAYERS, arrangement=orders)
    FAMILIES["batch"] += grid(dtype=dtype, size=BATCHES)
    for sizes, n, k in EXPERTS:
        size = [(sum(sizes), n, k)]
        GROUPED_CASES += grid(GroupedCase, dtype=dtype, size=size, sizes=[sizes])
    gradient = {"arrangement": "col_row_row", "shared": "k"}  # times transposed activations
    sizes, n, k = EXPERTS[0]
    size = [(k, n, sum(sizes))]
    GROUPED_CASES += grid(GroupedCase, dtype=dtype, size=size, sizes=[sizes], of=gradient)
FAMILIES["plain"] += grid(dtype="bfloat16", size=TILED, arrangement=ARRANGEMENTS)
FAMILIES["plain"] += grid(dtype="bfloat16", size=FURTHER + UNSEEN, arrangement=ARRANGEMENTS[:2])
FUSED_CASES = grid(FusedCase, dtype=["float16", "bfloat16"], size=FUSED, epilogue=CHAINS)
FAMILY = {case: family for family, cases in FAMILIES.items() for case in cases}


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    """Names of torch's kernels, which tell cuBLAS's tiles, of some products."""
    case = row.case
    is_named = (case.m, case.n, case.k) in TILED and case.dtype == "bfloat16"
    if not is_named or case.arrangement != "row_col_row":
        return {}
    profiler = torch().profiler
    call = torch_call(case, case.operands(xp.random.default_rng(0)))
    call()
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as seen:
        call()
        torch().cuda.synchronize()
    return {"torch_kernels": [e.name for e in seen.events() if "CUDA" in str(e.device_type)]}


bench_product = bench(
    FAMILY,
    {OWN: own()},
    {CUBLAS: own(CUBLAS), TORCH: torch_call},
    describe,
    lambda case: {"family": FAMILY.get(case, "plain")},
    rivals=(CUBLAS, TORCH),
    budget_s=CASE_S,
)
bench_epilogue = bench(
    FUSED_CASES,
    {OWN: fused()},
    lambda case: {PLAIN: plain(), **baselines_of(case)},
    facts={"family": "epilogue"},
    rivals=tuple(BASELINES),
    vs={"vs_plain": PLAIN},
    budget_s=CASE_S,
)
bench_grouped = bench(
    GROUPED_CASES,
    {OWN: own_groups},
    GROUP_RIVALS,
    facts={"family": "grouped"},
    rivals=tuple(GROUP_RIVALS),
    budget_s=CASE_S,
)
