"""GPU time of layers of float8: groups by offsets, and epilogues whose result is float8 again.

Operands have scales of rows, or of blocks. Groups are compared with `torch._scaled_grouped_mm`,
which takes scales of rows, and with `torch._scaled_mm` for each group in turn, whose host then has
to know the sizes. Epilogues are bias and gelu_tanh, with one scale of the result (`scale_out`), or
with a scale of each row that another kernel finds (`quantise_rows`). Their rival is
`torch._scaled_mm` with the bias, and operations of torch on its result in bfloat16; `vs_plain` is
the time of the product without an epilogue, stored in bfloat16, over the row's.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from bench_fp8 import BLOCK, DTYPE, TN, Float8Case, k_major, repeated, to_dtype
from cases import SMOKE, Call, Case, Operands, normal, stored, xp
from measuring import OWN, Found, Row, Variants, bench, fastest, fields, ratio
from oracle import inputs
from rivals import torch

import dxgemm
from dxgemm.epilogues import bias, gelu_tanh
from dxgemm.handwritten.parts.operands import FLOAT8_LARGEST, LEAST_LARGEST
from dxgemm.reductions import quantise_rows

CASE_S = 0.2  # of timing a case, unless fewest rounds take longer
RESULT_SCALE = 2.0**-3
PLAIN, RIVAL, GROUPED, IN_TURN = "plain", "torch", "torch._scaled_grouped_mm", "torch._scaled_mm"
SHAPES = (
    (2048, 5120, 5120), (4096, 4096, 4096), (4096, 14336, 4096), (8192, 8192, 2048),
    (1536, 18944, 3584), (8192, 1280, 8192),
)  # fmt: skip
# Experts of mixtures: their number, rows, n and k.
EXPERTS = (
    (8, 8192, 4096, 7168),
    (8, 8192, 7168, 2048),
    (64, 8192, 1536, 5120),
    (32, 2048, 4096, 4096),
)


@dataclass(frozen=True)
class LayerCase(Float8Case):
    """A product of float8 whose result is float8 again, by `epilogue`."""

    epilogue: str = "bias | gelu_tanh"

    def __str__(self) -> str:
        return f"{super().__str__()}-{self.epilogue}"

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
        left, right = (to_dtype(v, "float64") for v in (x.a, x.b))
        of_a, of_b, v = (to_dtype(v, "float64") for v in (x.x, x.y, x.v))
        value = (left * of_a) @ (right * of_b) + v
        inside = 0.7978845608028654 * (value + 0.044715 * value * value * value)
        return 0.5 * value * (1 + (np if SMOKE else torch()).tanh(inside))

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        """All but `plain`: bfloat16, then e4m3 rounds to four bits, or to units of 2**-9."""
        call()
        if name != PLAIN:
            scale = to_dtype(x.of_rows, "float64") if self.is_dynamic else 1 / RESULT_SCALE
            found, most = to_dtype(x.eights, "float64") * scale, FLOAT8_LARGEST[DTYPE] * scale
            wanted = (np.clip if SMOKE else torch().clamp)(expected, -most, most)
            if not (
                abs(found - wanted) <= (2.0**-4 + 2.0**-8) * abs(wanted) + 2.0**-8 * scale
            ).all():
                self.fail(name)
        return {}


@dataclass(frozen=True)
class ExpertsCase(Float8Case):
    """Groups of rows of a (m, k), with a matrix of b (groups, k, n) each."""

    sizes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{super().__str__()}-{len(self.sizes)}_groups"

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        fill = inputs.integers if is_exact else normal
        groups, blocks = len(self.sizes), -(-self.k // BLOCK)
        wide = -(-self.n // BLOCK) if self.scales == "block" else self.n
        a = to_dtype(stored(fill(rng, (self.m, self.k), "float32"), "row"), DTYPE)
        b = to_dtype(stored(fill(rng, (groups, self.k, self.n), "float32"), "col"), DTYPE)
        shapes = ((blocks, self.m), (groups, wide, blocks))
        if self.scales == "row":
            shapes = ((1, self.m), (groups, wide, 1))
        x, y = (
            to_dtype(2.0 ** rng.integers(-2, 3, shape).astype("float32"), "float32")
            for shape in shapes
        )
        out = to_dtype(xp.zeros((self.m, self.n), "float32"), "bfloat16")
        ends = np.cumsum(self.sizes, dtype=np.int32)
        ends = ends if SMOKE else torch().from_numpy(ends).cuda()
        return Operands(a=a, b=b, out=out, x=x.T, y=y.swapaxes(1, 2), ends=ends)

    def parts(self) -> list[slice]:
        return [slice(*pair) for pair in pairwise([0, *np.cumsum(self.sizes).tolist()])]

    def expected(self, x: Operands) -> Any:
        result = to_dtype(xp.zeros((self.m, self.n), "float32"), "bfloat16")
        for group, part in enumerate(self.parts()):
            left, right = to_dtype(x.a[part], "float64"), to_dtype(x.b[group], "float64")
            of_a, of_b = to_dtype(x.x[part], "float64"), to_dtype(x.y[group], "float64")
            if self.scales == "block":
                of_a = repeated(of_a, 1)[:, : self.k]
                of_b = repeated(repeated(of_b, 0), 1)[: self.k, : self.n]
            result[part] = to_dtype((left * of_a) @ (right * of_b), "bfloat16")
        return result


def own_layer(case: Case, x: Operands) -> Call:
    options = {"scale_a": x.x, "scale_b": x.y}
    functions = bias(x.v) | gelu_tanh
    if case.is_dynamic:
        end = quantise_rows(DTYPE, out=(x.eights, x.of_rows))
        return dxgemm.plan(x.a, x.b, epilogue=functions | end, **options)
    return dxgemm.plan(
        x.a, x.b, out=x.eights, epilogue=functions, scale_out=RESULT_SCALE, **options
    )  # fmt: skip


def plain(case: Case, x: Operands) -> Call:
    return dxgemm.plan(x.a, x.b, out=x.out, scale_a=x.x, scale_b=x.y)


def torch_layer(case: Case, x: Operands) -> Call:
    scaled_mm, gelu = torch()._scaled_mm, torch().nn.functional.gelu  # type: ignore[attr-defined]
    b, added, most = k_major(x.b.T, case.n, case.k).T, x.v.bfloat16(), FLOAT8_LARGEST[DTYPE]

    def call() -> Any:
        hidden = scaled_mm(x.a, b, x.x, x.y, bias=added, out_dtype=torch().bfloat16)
        hidden = gelu(hidden, approximate="tanh")
        if case.is_dynamic:
            x.of_rows.copy_(hidden.abs().amax(1, keepdim=True).float().clamp(LEAST_LARGEST) / most)
            scaled = hidden / x.of_rows
        else:
            scaled = hidden * RESULT_SCALE
        x.eights.copy_(scaled.clamp(-most, most))
        return x.eights

    return call


def own_groups(case: Case, x: Operands) -> Call:
    return dxgemm.plan_grouped(
        x.a, x.b, out=x.out, offsets=x.ends, scale_a=x.x, scale_b=x.y
    )  # fmt: skip


def torch_grouped(case: Case, x: Operands) -> Call:
    multiply, of_a, of_b = (
        torch()._scaled_grouped_mm,
        x.x[:, 0].contiguous(),
        x.y[:, 0].contiguous(),
    )
    return lambda: multiply(
        x.a, x.b, of_a, of_b, offs=x.ends, out_dtype=torch().bfloat16, use_fast_accum=False
    )  # fmt: skip


def torch_in_turn(case: ExpertsCase, x: Operands) -> Call:
    multiply, bfloat16 = torch()._scaled_mm, torch().bfloat16
    calls = [
        (x.a[part], x.b[group], x.x[part].T.contiguous().T, x.y[group], x.out[part])
        for group, part in enumerate(case.parts())
    ]

    def call() -> Any:
        for a, b, of_a, of_b, out in calls:
            multiply(a, b, of_a, of_b, out_dtype=bfloat16, use_fast_accum=False, out=out)
        return x.out

    return call


def variants_of(case: Float8Case) -> Variants:
    if isinstance(case, LayerCase):
        own: Variants = {OWN: own_layer, PLAIN: plain}
        return own if SMOKE else {**own, RIVAL: torch_layer}
    if SMOKE:
        return {OWN: own_groups}
    rivals = {GROUPED: torch_grouped} if case.scales == "row" else {}
    return {OWN: own_groups, IN_TURN: torch_in_turn, **rivals}


def uneven(groups: int, total: int) -> tuple[int, ...]:
    """Sizes of groups, multiples of 16 as the rivals take them, from a half to 1.5 of the mean."""
    shares = np.random.default_rng(0).uniform(0.5, 1.5, groups)
    sizes = (shares / shares.sum() * total / 16).astype(int) * 16
    sizes[-1] += total - sizes.sum()
    return tuple(sizes.tolist())


def list_cases() -> list[Float8Case]:
    ends = ("bias | gelu_tanh", "bias | gelu_tanh | quantise_rows")
    if SMOKE:
        layers = [LayerCase(DTYPE, 6, 5, 20, TN, scales="row", epilogue=text) for text in ends]
        return [*layers, ExpertsCase(DTYPE, 6, 5, 132, TN, scales="block", sizes=(2, 0, 4))]
    layers = [
        LayerCase(DTYPE, *shape, TN, scales="row", epilogue=text)
        for text in ends
        for shape in SHAPES
    ]
    return layers + [
        ExpertsCase(DTYPE, m, n, k, TN, scales=scales, sizes=uneven(groups, m))
        for scales in ("row", "block")
        for groups, m, n, k in EXPERTS
    ]


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    rival = fastest(found, (RIVAL, GROUPED, IN_TURN))
    more = {"layout": row.case.arrangement, "rival": rival, "vs_rival": ratio(found, rival, name)}
    more |= {"vs_plain": ratio(found, PLAIN, name)}
    if isinstance(row.case, ExpertsCase):
        more |= {"groups": len(row.case.sizes), "sizes": list(row.case.sizes)}
    return fields(row, name, found, **more)


bench_fp8_layers = bench(
    [Row(case, variants_of(case), [OWN]) for case in list_cases()], describe, budget_s=CASE_S
)
