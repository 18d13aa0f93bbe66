"""GPU time of tiles in a user's kernel: a product against `gemm`, a chain against two calls.

A kernel that does nothing but store its tiles runs beside `gemm` with the tile's config, or for
tiles by wgmma with that which it chooses; its time over the tile's is `vs_gemm`. The chain is
gelu(x @ w1) @ w2 in one kernel (examples/fused_mlp.py); `vs_two_calls` is the time of two calls of
`gemm`, the first with gelu as its epilogue, over the chain's.
"""

from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

from cases import Call, Case, Operands, agree, grid, normal, own, returning, to_dtype, widened, xp
from measuring import Found, Row, bench, fastest
from numba import cuda

import dxgemm
from dxgemm.device.tile import KERNELS
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.runtime.device import device_facts

EXAMPLE = import_module("fused_mlp")  # of a folder that cases.py adds to the path
TILE, IN_TURN, GEMM, CALLS = "tile", "tiles in turn", "gemm", "two calls"
CHAINS = ("chain 64x128 wgmma", "chain 128x128 wgmma", "chain 128x256 wgmma")
TILES = [
    ("float32", "row_row_row", 128, 128), ("float32", "row_col_row", 128, 64),
    ("float64", "row_row_row", 64, 128), ("float16", "row_row_row", 128, 128),
    ("bfloat16", "row_col_row", 64, 128), ("bfloat16", "row_row_row", 128, 128, "wgmma"),
    ("bfloat16", "row_row_row", 128, 256, "wgmma"), ("bfloat16", "row_col_row", 128, 256, "wgmma"),
]  # fmt: skip


@dataclass(frozen=True)
class TileCase(Case):
    """A product by tiles of so many rows and columns."""

    tile_m: int = 8
    tile_n: int = 32
    instruction: str | None = None

    def tiny(self) -> Any:
        return TileCase(self.dtype, 9, 5, 3, self.arrangement)


@cache
def make_product(case: TileCase, is_in_turn: bool) -> Any:
    """The tile of a case, and a kernel that stores it.

    In turn, blocks compute several tiles, and fetch the next one while they store.
    """
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

    return tile, in_turn if is_in_turn else product


def tile_call(case: TileCase, x: Operands) -> Call:
    tile, product = make_product(replace(case, m=0, n=0, k=0), False)
    plan = tile.plan(product, tile.blocks(case.m, case.n), x.a, x.b, x.out)
    return returning(x.out, plan)


def in_turn_call(case: TileCase, x: Operands) -> Call:
    tile, in_turn = make_product(replace(case, m=0, n=0, k=0), True)
    tiles = tile.blocks(case.m, case.n)
    grid = min(tiles, tile.min_blocks * device_facts(0).sm_count)
    return returning(x.out, tile.plan(in_turn, grid, x.a, x.b, tiles, x.out))


def gemm_call(case: TileCase, x: Operands) -> dxgemm.Plan:
    """`gemm` by the config of the tile; by its own choice if no kernel has that."""
    if case.instruction:
        return own()(case, x)
    tile, _ = make_product(replace(case, m=0, n=0, k=0), False)
    return own((KERNELS[case.dtype].rpartition(".")[2], tile.config))(case, x)


def tiles(case: TileCase) -> dict[str, Any]:
    return {TILE: tile_call, **({IN_TURN: in_turn_call} if case.instruction else {})}


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

    def tiny(self) -> Any:
        return ChainCase("float32", 9, 5, 3, 4)

    @property
    def flops(self) -> int:
        return 2 * self.m * self.k1 * (self.k + self.n)

    @property
    def bytes_moved(self) -> int:
        """x, w1 and w2 read once, the result written once."""
        return ITEM_SIZES[self.dtype] * (self.m + self.k1) * (self.k + self.n)

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        sizes = {"x": (self.m, self.k), "w1": (self.k, self.k1), "w2": (self.k1, self.n)}
        sizes |= {"hidden": (self.m, self.k1), "out": (self.m, self.n)}
        drawn = {name: normal(rng, size, "float32") / 8 for name, size in sizes.items()}
        return Operands(**{name: to_dtype(array, self.dtype) for name, array in drawn.items()})

    def expected(self, x: Operands) -> Any:
        return EXAMPLE.gelu_on_arrays(widened(x.x) @ widened(x.w1), xp) @ widened(x.w2)

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        x.out[...] = 0
        call()
        Case.require(self, agree(x.out, expected, self.dtype), name)  # type: ignore[arg-type]
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


def chains(case: ChainCase) -> dict[str, Any]:
    return {name: chain_call(name) for name in (CHAINS if case.m > 9 else ["chain 8x32"])}


def two_calls(case: ChainCase, x: Operands) -> Call:
    call: Call = EXAMPLE.plan_two_calls(x.x, x.w1, x.w2, x.hidden, x.out)
    return call


def describe_chain(row: Row, name: str, found: Found) -> dict[str, Any]:
    return {"implementation": name, "is_fastest": fastest(found, row.variants) == name}


FIELDS = ("dtype", "arrangement", "tile_m", "tile_n", "instruction")
KINDS = [dict(zip(FIELDS, kind)) for kind in TILES]
WIDTHS = [(k1, width) for k1 in (128, 256) for width in (64, 128, 256, 512)]
bench_tile = bench(
    grid(TileCase, of=KINDS, size=[4096, (1000, 1003, 517)]),
    tiles,
    {GEMM: gemm_call},
    vs={"vs_gemm": GEMM},
    budget_s=0.1,
)
bench_chain = bench(
    [ChainCase("bfloat16", 16384, width, k1, width) for k1, width in WIDTHS],
    chains,
    {CALLS: two_calls},
    describe_chain,
    vs={"vs_two_calls": CALLS},
    budget_s=0.1,
)
