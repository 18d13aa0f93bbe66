"""GPU time of tiles in a user's kernel: a product against `gemm`, a chain against two calls.

A kernel that does nothing but store its tiles runs beside `gemm` with the tile's config, or for
tiles by wgmma with that which it chooses; its time over the tile's is `vs_gemm`. The chain is
gelu(x @ w1) @ w2 in one kernel (examples/fused_mlp.py); `vs_two_calls` is the time of two calls of
`gemm`, the first with gelu as its epilogue, over the chain's.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

import rivals  # noqa: F401  # which makes the examples importable
from cases import SMOKE, Call, Case, Operands, own, to_dtype, widened, xp
from measuring import Found, Row, bench, fastest, fields, ratio
from numba import cuda

import dxgemm
from dxgemm.device.tile import KERNELS
from dxgemm.errors import WrongResultError
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.runtime.device import device_facts

EXAMPLE = import_module("fused_mlp")  # of a folder that rivals.py adds to the path
CASE_S = 0.1  # of timing a case, unless fewest rounds take longer
TILE, IN_TURN, GEMM = "tile", "tiles in turn", "gemm"
CHAINS = ("chain 64x128 wgmma", "chain 128x128 wgmma", "chain 128x256 wgmma")
CALLS = "two calls"
TOLERANCE = {2: 1e-2, 4: 1e-5}  # of a result's norm, by the bytes of an element


@dataclass(frozen=True)
class TileCase(Case):
    """A product by tiles of so many rows and columns."""

    tile_m: int = 8
    tile_n: int = 32
    instruction: str | None = None

    def __str__(self) -> str:
        name = f"-{self.instruction}" if self.instruction else ""
        return f"{super().__str__()}-{self.tile_m}x{self.tile_n}{name}"


@cache
def make_product(case: TileCase) -> Any:
    """The tile of a case, and a kernel that stores it."""
    a, b, _ = case.arrangement.split("_")
    tile = dxgemm.device.tile(
        case.dtype, case.tile_m, case.tile_n, a=a, b=b, out=case.out_dtype,
        instruction=case.instruction,
    )  # fmt: skip

    @cuda.jit
    def product(a, b, out):
        row, col = tile.origin(a.shape[0], b.shape[1])
        acc = tile.accumulator()
        tile.product(acc, a, b, row, col)
        tile.store(acc, out, row, col)

    return tile, product


def tile_call(case: TileCase, x: Operands) -> Call:
    tile, product = make_product(replace(case, m=0, n=0, k=0))
    return into(x.out, tile.plan(product, tile.blocks(case.m, case.n), x.a, x.b, x.out))


def into(out: Any, queue: Call) -> Call:
    def call() -> Any:
        queue()
        return out

    return call


@cache
def make_in_turn(case: TileCase) -> Any:
    """The same for blocks that compute several tiles, and fetch the next one while they store."""
    tile, _ = make_product(case)

    @cuda.jit
    def in_turn(a, b, tiles, out):
        m, n = a.shape[0], b.shape[1]
        acc = tile.accumulator()
        row, col = tile.origin(m, n)
        tile.fetch(a, b, row, col)
        for index in range(cuda.blockIdx.x, tiles, cuda.gridDim.x):
            tile.multiply(acc, a, b, row, col)
            old_row, old_col = row, col
            if index + cuda.gridDim.x < tiles:
                row, col = tile.origin_of(index + cuda.gridDim.x, m, n)
                tile.fetch(a, b, row, col)
            tile.store(acc, out, old_row, old_col)

    return tile, in_turn


def in_turn_call(case: TileCase, x: Operands) -> Call:
    tile, in_turn = make_in_turn(replace(case, m=0, n=0, k=0))
    tiles = tile.blocks(case.m, case.n)
    grid = min(tiles, tile.min_blocks * device_facts(0).sm_count)
    return into(x.out, tile.plan(in_turn, grid, x.a, x.b, tiles, x.out))


def gemm_call(case: TileCase, x: Operands) -> dxgemm.Plan:
    """`gemm` by the config of the tile; by its own choice if no kernel has that."""
    if case.instruction:
        return own()(case, x)
    tile, _ = make_product(replace(case, m=0, n=0, k=0))
    name = KERNELS[case.dtype].rpartition(".")[2]
    return own((name, tile.config))(case, x)


def describe_tile(row: Row, name: str, found: Found) -> dict[str, Any]:
    return fields(row, name, found, vs_gemm=ratio(found, GEMM, name))


def tile_rows() -> list[Row]:
    if SMOKE:
        case = TileCase("float32", 9, 5, 3)
        return [Row(case, {TILE: tile_call, GEMM: gemm_call}, [TILE])]
    kinds: list[tuple[Any, ...]] = [
        ("float32", "row_row_row", 128, 128), ("float32", "row_col_row", 128, 64),
        ("float64", "row_row_row", 64, 128), ("float16", "row_row_row", 128, 128),
        ("bfloat16", "row_col_row", 64, 128), ("bfloat16", "row_row_row", 128, 128, "wgmma"),
        ("bfloat16", "row_row_row", 128, 256, "wgmma"),
        ("bfloat16", "row_col_row", 128, 256, "wgmma"),
    ]  # fmt: skip
    rows = []
    for dtype, arrangement, *tile in kinds:
        for size in ((4096, 4096, 4096), (1000, 1003, 517)):
            names = ("tile_m", "tile_n", "instruction")
            case = TileCase(dtype, *size, arrangement, **dict(zip(names, tile, strict=False)))
            tiles = (
                {TILE: tile_call, IN_TURN: in_turn_call} if case.instruction else {TILE: tile_call}
            )
            rows.append(Row(case, tiles | {GEMM: gemm_call}, [*tiles]))
    return rows


@dataclass(frozen=True)
class ChainCase:
    """gelu(x @ w1) @ w2, whose matrices have so many rows and, in this order, columns."""

    dtype: str
    m: int
    k: int
    k1: int
    n: int

    def __str__(self) -> str:
        return f"{self.dtype}-{self.m}x{self.k}x{self.k1}x{self.n}"

    @property
    def flops(self) -> int:
        return 2 * self.m * self.k1 * (self.k + self.n)

    @property
    def bytes_moved(self) -> int:
        """x, w1 and w2 read once, the result written once."""
        elements = self.m * (self.k + self.n) + self.k1 * (self.k + self.n)
        return ITEM_SIZES[self.dtype] * elements

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        sizes = {"x": (self.m, self.k), "w1": (self.k, self.k1), "w2": (self.k1, self.n)}
        drawn = {
            name: to_dtype(rng.standard_normal(size, dtype="float32") / 8, self.dtype)
            for name, size in sizes.items()
        }
        new = {"hidden": (self.m, self.k1), "out": (self.m, self.n)}
        zeros = {name: to_dtype(xp.zeros(size, "f4"), self.dtype) for name, size in new.items()}
        return Operands(**drawn, **zeros)

    def expected(self, x: Operands) -> Any:
        return EXAMPLE.gelu_on_arrays(widened(x.x) @ widened(x.w1), xp) @ widened(x.w2)

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        x.out[...] = 0
        call()
        error = xp.linalg.norm(widened(x.out) - expected)
        if not error <= TOLERANCE[ITEM_SIZES[self.dtype]] * xp.linalg.norm(expected):
            raise WrongResultError(f"{name} gives a wrong result for {self}")
        return {}


def chain_call(name: str) -> Any:
    _, extents, *instruction = name.split(" ")
    m, n = map(int, extents.split("x"))
    options = {"instruction": instruction[0]} if instruction else {}

    def make(case: ChainCase, x: Operands) -> Call:
        tile, mlp = EXAMPLE.make_mlp(case.dtype, m, n, case.k1, **options)
        call: Call = tile.plan(mlp, -(-case.m // tile.m), x.x, x.w1, x.w2, x.out)
        return call

    return make


def two_calls(case: ChainCase, x: Operands) -> Call:
    call: Call = EXAMPLE.plan_two_calls(x.x, x.w1, x.w2, x.hidden, x.out)
    return call


def describe_chain(row: Row, name: str, found: Found) -> dict[str, Any]:
    seconds = found[name].seconds
    return asdict(row.case) | {
        "implementation": name,
        "is_fastest": fastest(found, [each for each in row.variants if each != CALLS]) == name,
        "gpu_us": 1e6 * seconds,
        "tflops": 1e-12 * row.case.flops / seconds,
        "vs_two_calls": ratio(found, CALLS, name),
    }


def chain_rows() -> list[Row]:
    if SMOKE:
        names, cases = ["chain 8x32"], [ChainCase("float32", 9, 5, 3, 4)]
    else:
        names = [*CHAINS]
        cases = [
            ChainCase("bfloat16", 16384, width, k1, width)
            for k1 in (128, 256)
            for width in (64, 128, 256, 512)
        ]
    variants = {name: chain_call(name) for name in names} | {CALLS: two_calls}
    return [Row(case, variants, names) for case in cases]


bench_tile = bench(tile_rows(), describe_tile, budget_s=CASE_S)
bench_chain = bench(chain_rows(), describe_chain, budget_s=CASE_S)
