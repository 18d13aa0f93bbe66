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

from functools import partial
from itertools import product
from typing import Any

from cases import SMOKE, Case, own
from fused import FusedCase, baselines_of, fused, plain
from groups import GROUP_RIVALS, GroupedCase, own_groups
from measuring import CUBLAS, OWN, Found, Row, Variants, bench, fastest, fields, ratio
from rivals import torch_call

CASE_S = 0.2  # of timing a case, unless fewest rounds take longer
DTYPES = ("float16", "bfloat16")
PLAIN = "plain"

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
BATCHES = [
    (10_000, 8), (4000, 16), (4000, 31), (2000, 32), (1000, 63), (1000, 64), (344, 100),
    (300, 128), (300, 131),
]  # fmt: skip
FUSED = [
    (4096, 4096, 4096), (8192, 8192, 1024), (2048, 8192, 2048), (512, 4096, 4096),
    (16384, 4096, 1024), (1576, 3072, 768), (8192, 3584, 512), (3072, 12288, 768),
    (2048, 17408, 5120),
]  # fmt: skip
CHAINS = ("bias | relu", "bias | gelu_tanh", "bias | fast_gelu_tanh")


def list_cases() -> dict[str, list[Case]]:
    """The cases of each family without an epilogue."""
    if SMOKE:
        case = Case("float16", 6, 5, 3)
        return {"odd": [case], "plain": [Case("float16", 8, 8, 8, "col_row_row")]}
    by_family: dict[str, list[Case]] = {}
    for dtype in DTYPES:
        odd = [Case(dtype, *shape) for shape in ODD]
        arranged = product(ODD_ARRANGED, ARRANGEMENTS[1:])
        odd += [Case(dtype, *shape, order) for shape, order in arranged]
        shapes = [(n, n, n) for n in SQUARES] + LAYERS
        orders = ARRANGEMENTS if dtype == "bfloat16" else ARRANGEMENTS[:2]
        plain = [Case(dtype, *shape, order) for shape, order in product(shapes, orders)]
        if dtype == "bfloat16":
            plain += [Case(dtype, *shape, order) for shape, order in product(TILED, orders)]
            others = product(FURTHER + UNSEEN, orders[:2])
            plain += [Case(dtype, *shape, order) for shape, order in others]
        batch = [Case(dtype, n, n, n, batch=count) for count, n in BATCHES]
        for family, cases in (("odd", odd), ("plain", plain), ("batch", batch)):
            by_family.setdefault(family, []).extend(cases)
    return by_family


def list_fused_cases() -> list[FusedCase]:
    if SMOKE:
        return [FusedCase("float16", 6, 5, 3, epilogue=CHAINS[0])]
    return [FusedCase(t, *shape, epilogue=c) for t in DTYPES for shape in FUSED for c in CHAINS]


def list_grouped_cases() -> list[GroupedCase]:
    if SMOKE:
        return [GroupedCase("float16", 5, 5, 4, sizes=(3, 0, 2))]
    experts: list[tuple[tuple[int, ...], int, int]] = [
        ((4096,) * 8, 4096, 7168),
        ((2048,) * 8, 14336, 4096),
        ((900, 3500, 0, 2100, 64, 5000, 1300, 520), 4096, 4096),
        ((16,) * 64, 2048, 1408),
        ((128,) * 64, 1408, 2048),
        ((1024,) * 32, 1536, 4096),
    ]
    cases = []
    for dtype in DTYPES:
        cases += [GroupedCase(dtype, sum(sizes), n, k, sizes=sizes) for sizes, n, k in experts]
        sizes, n, k = experts[0]
        shape = k, n, sum(sizes)
        # Gradients multiply by activations transposed.
        cases.append(GroupedCase(dtype, *shape, "col_row_row", shared="k", sizes=sizes))
    return cases


def row(case: Case, variants: Variants, rivals: Variants, **facts: Any) -> Row:
    return Row(case, variants if SMOKE else {**variants, **rivals}, [OWN], facts)


def describe(row: Row, name: str, found: Found, **facts: Any) -> dict[str, Any]:
    rival = fastest(found, found.keys() - {OWN, PLAIN})
    extra = fields(row, name, found, rival=rival, vs_rival=ratio(found, rival, name), **facts)
    return extra | ({"vs_plain": ratio(found, PLAIN, name)} if PLAIN in found else {})


bench_product = bench(
    [
        row(case, {OWN: own()}, {CUBLAS: own(CUBLAS), "torch": torch_call}, family=family)
        for family, cases in list_cases().items()
        for case in cases
    ],
    describe,
    budget_s=CASE_S,
)
bench_epilogue = bench(
    [row(case, {OWN: fused(), PLAIN: plain()}, baselines_of(case)) for case in list_fused_cases()],
    partial(describe, family="epilogue"),
    budget_s=CASE_S,
)
bench_grouped = bench(
    [row(case, {OWN: own_groups}, GROUP_RIVALS) for case in list_grouped_cases()],
    partial(describe, family="grouped"),
    budget_s=CASE_S,
)
