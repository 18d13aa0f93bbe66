"""GPU time of layers of float8: groups by offsets, and epilogues whose result is float8 again.

Operands have scales of rows, or of blocks. Groups are compared with `torch._scaled_grouped_mm`,
which takes scales of rows, and with `torch._scaled_mm` for each group in turn, whose host then has
to know the sizes. Epilogues are bias and gelu_tanh, with one scale of the result (`scale_out`), or
with a scale of each row that another kernel finds (`quantise_rows`). Their rival is
`torch._scaled_mm` with the bias, and operations of torch on its result in bfloat16; `vs_plain` is
the time of the product without an epilogue, stored in bfloat16, over the row's.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from bench_fp8 import DTYPE, TN, Float8Case, k_major, own, to_dtype
from cases import SMOKE, Call, Case, Operands, grid, normal, torch, xp
from measuring import OWN, bench

import dxgemm
from dxgemm.epilogues import bias, gelu_tanh
from dxgemm.errors import UnsupportedProblemError
from dxgemm.handwritten.parts.operands import FLOAT8_LARGEST, LEAST_LARGEST
from dxgemm.reductions import quantise_rows

MOST, RESULT_SCALE = FLOAT8_LARGEST[DTYPE], 2.0**-3
PLAIN, RIVAL, GROUPED, IN_TURN = "plain", "torch", "torch._scaled_grouped_mm", "torch._scaled_mm"
SHAPES = [
    (2048, 5120, 5120), (4096, 4096, 4096), (4096, 14336, 4096), (8192, 8192, 2048),
    (1536, 18944, 3584), (8192, 1280, 8192),
]  # fmt: skip
ENDS = ["bias | gelu_tanh", "bias | gelu_tanh | quantise_rows"]
# Experts of mixtures: their number, rows, n and k.
EXPERTS = [(8, 8192, 4096, 7168), (8, 8192, 7168, 2048), (64, 8192, 1536, 5120)]
EXPERTS += [(32, 2048, 4096, 4096)]


@dataclass(frozen=True)
class LayerCase(Float8Case):
    """A product of float8 whose result is float8 again, by `epilogue`."""

    epilogue: str = ENDS[0]

    @property
    def is_dynamic(self) -> bool:
        """True if each row of the result has a scale of its own."""
        return "quantise_rows" in self.epilogue

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        x = super().operands(rng, is_exact)
        x.v = to_dtype(normal(rng, (self.n,), "float32"), "float32")
        x.eights = to_dtype(xp.zeros((self.m, self.n), "float32"), DTYPE)
        x.of_rows = to_dtype(xp.zeros((self.m, 1), "float32"), "float32")
        return x

    def expected(self, x: Operands) -> Any:
        """The layer in float64, before it is rounded to float8."""
        value = self.product(x.a, x.b, x.x, x.y) + to_dtype(x.v, "float64")
        inside = 0.7978845608028654 * (value + 0.044715 * value * value * value)
        return 0.5 * value * (1 + (np if SMOKE else torch()).tanh(inside))

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        """All but `plain`: bfloat16, then e4m3 rounds to four bits, or to units of 2**-9."""
        call()
        if name != PLAIN:
            scale = to_dtype(x.of_rows, "float64") if self.is_dynamic else 1 / RESULT_SCALE
            found, most = to_dtype(x.eights, "float64") * scale, MOST * scale
            wanted = (np.clip if SMOKE else torch().clamp)(expected, -most, most)
            limit = (2.0**-4 + 2.0**-8) * abs(wanted) + 2.0**-8 * scale
            self.require((abs(found - wanted) <= limit).all(), name)
        return {}


def own_layer(case: Any, x: Operands) -> Call:
    options, functions = {"scale_a": x.x, "scale_b": x.y}, bias(x.v) | gelu_tanh
    if case.is_dynamic:
        end = quantise_rows(DTYPE, out=(x.eights, x.of_rows))
        return dxgemm.plan(x.a, x.b, epilogue=functions | end, **options)
    options["scale_out"] = RESULT_SCALE
    return dxgemm.plan(x.a, x.b, out=x.eights, epilogue=functions, **options)


def torch_layer(case: Any, x: Operands) -> Call:
    scaled_mm, gelu = torch()._scaled_mm, torch().nn.functional.gelu
    b, added = k_major(x.b.T, case.n, case.k).T, x.v.bfloat16()

    def call() -> Any:
        hidden = scaled_mm(x.a, b, x.x, x.y, bias=added, out_dtype=torch().bfloat16)
        hidden = gelu(hidden, approximate="tanh")
        if case.is_dynamic:
            x.of_rows.copy_(hidden.abs().amax(1, keepdim=True).float().clamp(LEAST_LARGEST) / MOST)
            scaled = hidden / x.of_rows
        else:
            scaled = hidden * RESULT_SCALE
        return x.eights.copy_(scaled.clamp(-MOST, MOST))

    return call


def own_groups(case: Case, x: Operands) -> Call:
    scales = {"scale_a": x.x, "scale_b": x.y}
    return dxgemm.plan_grouped(x.a, x.b, out=x.out, offsets=x.ends, **scales)


def torch_grouped(case: Any, x: Operands) -> Call:
    multiply, scales = torch()._scaled_grouped_mm, (x.x[:, 0].contiguous(), x.y[:, 0].contiguous())
    if case.scales == "block":
        raise UnsupportedProblemError("torch._scaled_grouped_mm takes scales of rows")
    options = {"offs": x.ends, "out_dtype": torch().bfloat16, "use_fast_accum": False}
    return lambda: multiply(x.a, x.b, *scales, **options)


def torch_in_turn(case: Any, x: Operands) -> Call:
    multiply, options = torch()._scaled_mm, {"out_dtype": torch().bfloat16, "use_fast_accum": False}
    calls = [
        (x.a[part], x.b[group], x.x[part].T.contiguous().T, x.y[group], x.out[part])
        for part, group in case.parts()
    ]

    def call() -> Any:
        for *given, out in calls:
            multiply(*given, out=out, **options)
        return x.out

    return call


def uneven(groups: int, total: int) -> tuple[int, ...]:
    """Sizes of groups, multiples of 16 as the rivals take them, from a half to 1.5 of the mean."""
    shares = np.random.default_rng(0).uniform(0.5, 1.5, groups)
    sizes = (shares / shares.sum() * total / 16).astype(int) * 16
    sizes[-1] += total - sizes.sum()
    return tuple(sizes.tolist())


LAYERS = grid(LayerCase, of=TN, scales="row", epilogue=ENDS, size=SHAPES)
OF = [{"m": m, "n": n, "k": k, "sizes": uneven(groups, m)} for groups, m, n, k in EXPERTS]
GROUPS = [
    Float8Case(**TN, scales=scales, **sizes)  # type: ignore[arg-type]
    for scales in ("row", "block")
    for sizes in OF
]
bench_fp8_layers = bench(
    LAYERS,
    {OWN: own_layer},
    {PLAIN: own, RIVAL: torch_layer},
    rivals=(RIVAL,),
    vs={"vs_plain": PLAIN},
    budget_s=0.2,
)
bench_fp8_groups = bench(
    GROUPS,
    {OWN: own_groups},
    {IN_TURN: torch_in_turn, GROUPED: torch_grouped},
    more=lambda row, *_: {"groups": len(row.case.sizes)},
    rivals=(GROUPED, IN_TURN),
    budget_s=0.2,
)
