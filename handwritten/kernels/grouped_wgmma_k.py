"""Half precision of groups that share out k, in one launch, on Hopper's `wgmma`.

Idea: `wgmma`, with a result for each group as for each member of a batch. The producer asks for
boxes between the ends of the tile's group, by tensor maps that `group_maps` made: what belongs to
the next group arrives as zeros. Results of empty groups are beta * c.
Layout: a (m, k), b (k, n), as `wgmma` takes them; c and out (groups, m, n). `table` is that of
group_maps.py.
Constraints: those of `wgmma`. Both operands are MN-major, as in the gradient of weights: a group
may begin at any k, but TMA reads from multiples of 16 bytes on.
Source: as `wgmma` and `group_maps`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.frames.tma import make_tma_kernel
from dxgemm.handwritten.kernels.grouped_wgmma import SHARES
from dxgemm.handwritten.parts import wgmma_layouts
from dxgemm.handwritten.parts.configs import WgmmaConfig as Config
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.place import make_place
from dxgemm.handwritten.parts.store import make_store
from dxgemm.handwritten.parts.wgmma_mainloop import make_multiply
from dxgemm.handwritten.parts.wgmma_ring import make_load


def supports(problem: Any) -> str | None:
    """Reason why TMA cannot read a and b from any k on; None if it can."""
    reason = wgmma_layouts.supports(problem)
    if reason is None and wgmma_layouts.variant(None, problem)[:2] != ("mn", "mn"):
        reason = "TMA cannot begin at any k of a K-major a or b"
    return reason


def make_kernel(
    config: Config, dtype: str, a_innermost: str, b_innermost: str, out_dtype: str | None = None,
    epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config and one layout, as a Python function to compile.

    Its last parameter holds the operands of the epilogue, then the table.
    """
    fused = epilogue if epilogue.stages else None
    return make_tma_kernel(
        config,
        config.tile_k,
        make_place(config, config.tile_k, shared="k", table=len(epilogue.stage_operands)),
        make_load(config, config.tile_k, True, True, None),
        make_multiply(config, dtype, a_across=True, b_across=True),
        make_store(config, out_dtype or dtype, epilogue=fused, skips_alpha=True),
    )


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=tuple(SHARES),
    dtypes=("float16", "bfloat16"),
    only_arch=90,
    supports=supports,
    variant=wgmma_layouts.variant,
    tensor_maps=wgmma_layouts.tensor_maps,
    is_persistent=True,
    takes_pairs=True,
)
