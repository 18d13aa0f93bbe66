"""Half precision of problems that share out the rows of a, in one launch, on Hopper's `wgmma`.

Idea: `wgmma`, whose blocks find their tiles in a table as those of `grouped` do. The problems are
one after the other along m, so one tensor map serves all of them: a tile begins at any row. Rows of
the next problem are fetched too after the last one of a problem; their sums are not stored. The
producer searches the table, and leaves what it found for the consumers, who never wait for it.
Layout: a (total, k), b (problems, k, n), c and out (total, n), as `wgmma` takes them. The table is
that of group_table.py; its end, an empty problem, says how many tiles there are.
Constraints: those of `wgmma`; k is not 0. a is K-major: a problem may begin at any row, but TMA
reads from multiples of 16 bytes on.
Source: as `wgmma` and `grouped`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.frames.tma import make_tma_kernel
from dxgemm.handwritten.parts import wgmma_layouts
from dxgemm.handwritten.parts.configs import WgmmaConfig as Config
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.place import make_place
from dxgemm.handwritten.parts.store import make_store
from dxgemm.handwritten.parts.wgmma_mainloop import make_multiply
from dxgemm.handwritten.parts.wgmma_ring import make_load

# Configs, with the fraction of its peak that an SM reaches: an estimate, after those of `wgmma`.
SHARES = {
    Config(tile_m=128, tile_n=256): 0.75,
    Config(tile_m=128, tile_n=192): 0.71,
    Config(tile_m=128, tile_n=128): 0.62,
    Config(tile_m=64, tile_n=64): 0.28,
}


def supports(problem: Any) -> str | None:
    """Reason why TMA cannot read rows of a from any one on; None if it can."""
    reason = wgmma_layouts.supports(problem)
    if reason is None and wgmma_layouts.variant(None, problem)[0] != "k":
        reason = "TMA cannot begin at any row of an MN-major a"
    return reason


def make_kernel(
    config: Config, dtype: str, a_innermost: str, b_innermost: str, out_dtype: str | None = None,
    epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config and one layout, as a Python function to compile.

    Its last parameter holds the operands of the epilogue, then the table.
    """
    across = a_innermost == "mn", b_innermost == "mn"
    multiply = make_multiply(config, dtype, *across)
    table = len(epilogue.stage_operands)
    return make_group_kernel(config, dtype, across, out_dtype or dtype, epilogue, table, multiply)


def make_group_kernel(
    config: Any, dtype: str, across: tuple[bool, bool], out_dtype: str, epilogue: Any, table: int,
    multiply: Callable[..., Any], takes_tile: bool = False,
) -> Callable[..., None]:  # fmt: skip
    """The kernel with a main loop of any kind.

    Args:
        across: True for an MN-major a, and b.
        table: index of the table in the last parameter.
        multiply, takes_tile: as `make_tma_kernel` takes them.
    """
    tile_k, fused = wgmma_layouts.stage_k(dtype), epilogue if epilogue and epilogue.stages else None
    return make_tma_kernel(
        config,
        tile_k,
        make_place(config, tile_k, shared="m", table=table),
        make_load(config, tile_k, *across, wgmma_layouts.TENSOR_MAPS),
        multiply,
        make_store(config, out_dtype, epilogue=fused),
        takes_tile=takes_tile,
    )


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=tuple(SHARES),
    dtypes=("float16", "bfloat16"),
    only_arch=90,
    supports=supports,
    variant=wgmma_layouts.variant,
    tensor_maps=wgmma_layouts.tensor_maps,
    tensor_map_names=wgmma_layouts.TENSOR_MAPS,
    is_persistent=True,
    takes_pairs=True,
)
