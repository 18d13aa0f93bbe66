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

from __future__ import annotations

from typing import Any

from cases import Case, grid, own, torch, torch_call, xp
from fused import BASELINES, FusedCase, baselines_of, fused, plain
from groups import GROUP_RIVALS, GroupedCase, own_groups
from measuring import CUBLAS, OWN, Found, Row, bench

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
