"""float32 products by wgmma: each operand is a sum of short parts, whose products are summed.

Idea: grown from `wgmma`. x * s = hi + lo / 2**12, hi and lo in float16, with s the power of two
that brings the largest element of its row of a (column of b) into [2**14, 2**15); `decompose` makes
them. hi keeps the upper 11 bits, lo the next 12 but for a rounding. Of the four products, lo @ lo
is too small to matter; three wgmmas per step give a @ b. Sums of tensor cores are truncated, not
rounded, which is a bias that grows with their number: so after a few steps they are added to the
sum of a section of k by true float32 additions, and the next sum begins anew. lo @ hi and hi @ lo
have sums of their own, or they would be truncated where hi @ hi is. Sections are added to a total:
its rounding errors grow with the number of sections, theirs with the length of one. The three sums
of a thread are more registers than all threads can have, so the producer leaves it most of its own.
The total is scaled back, exactly, before alpha, c and the epilogue see it. Of a symmetric result,
half the tiles are computed (`triangle`).
Layout: a (m, k) and b (k, n) as `decompose` leaves them, K-major or MN-major, any batch; c and out
(m, n), any strides. In the last parameter, after the epilogue's operands: the factors that scale
rows and columns back, and the flag of validity_check.
Constraints: m, n and k are free. If the flag is not 0, the kernel computes nothing and leaves the
product to `native_fallback`.
Source: H. Ootomo and R. Yokota, "Recovering single precision accuracy from Tensor Cores while
surpassing the FP32 theoretical peak performance", arXiv 2203.03341.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dxgemm.handwritten.frames.tma import make_tma_kernel
from dxgemm.handwritten.parts import emulated_mainloop, emulation, kernel, wgmma_layouts
from dxgemm.handwritten.parts.configs import WgmmaConfig
from dxgemm.handwritten.parts.place import make_place
from dxgemm.handwritten.parts.scale_back import make_scale_back
from dxgemm.handwritten.parts.store import make_store
from dxgemm.handwritten.parts.wgmma_ring import make_load

PRODUCER_REGISTERS, CONSUMER_REGISTERS = 40, 232  # with two consumers


@dataclass(frozen=True)
class Config(WgmmaConfig):
    """A `WgmmaConfig` with a promotion every `promote` steps of wgmma.

    A step is 16 k of float16, and a section is `section` k. If `promote` exceeds the steps of a
    stage, sums are promoted to the total itself.
    """

    promote: int = 1
    section: int = 512
    parts: int = 2

    gives_registers = True

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        yield from emulated_mainloop.complaints(self)

    @property
    def chunk_sizes(self) -> tuple[int, ...]:
        return super().chunk_sizes[-1:]

    @property
    def shared_registers(self) -> tuple[int, int]:
        """Registers of the producer and of two consumers, to whom it leaves most of its own."""
        return (PRODUCER_REGISTERS, CONSUMER_REGISTERS) if self.consumers == 2 else (0, 0)

    def accumulator_bytes(self, dtype: str) -> int:
        """Bytes of two of a thread's three sums; the producer leaves registers for the third."""
        return 2 * self.tile_n // 2 * 4

    def __str__(self) -> str:
        return f"{super().__str__()} promote {self.promote} section {self.section}"


def supports(problem: Any) -> str | None:
    """Reason why the kernel cannot compute a problem; None if it can."""
    if problem.precision != "emulated":
        return "it multiplies parts of float32: pass precision='emulated' to permit it"
    return wgmma_layouts.supports_sizes(problem)


def accuracy(problem: Any) -> str:
    """Statement of the kept bits of the operands, and of the bound on the error."""
    return "two float16 parts a number; error at most 2**-20 |A| |B| before it is summed"


def tensor_maps(
    config: Config, problem: Any, scheme_name: str, a_innermost: str, b_innermost: str,
    stored: str = "",
) -> tuple[Any, ...]:  # fmt: skip
    """The maps of the parts of a and b, with the boxes that the producer asks for."""
    scheme, maps = emulation.SCHEMES[scheme_name], []
    for name, innermost, along, tile in (
        ("a", a_innermost, problem.m, config.tile_m),
        ("b", b_innermost, problem.n, config.tile_n),
    ):
        matrices = problem.batch if getattr(problem, name).batch else 1
        layout = emulation.parts_layout(scheme, innermost, along, problem.k)
        maps.append(
            wgmma_layouts.packed_map(
                name, scheme.element, layout.inner, layout.rows, matrices * scheme.parts,
                layout.row_items, tile if innermost == "k" else scheme.stage_k,
            )
        )  # fmt: skip
    return tuple(maps)


def make_kernel(
    config: Config, dtype: str, scheme_name: str, a_innermost: str, b_innermost: str,
    stored: str = "", epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config and one layout, as a Python function to compile.

    Args:
        scheme_name: a key of `emulation.SCHEMES`.
        a_innermost, b_innermost: layout of the parts: "k" (K-major) or "mn" (MN-major).
        stored: triangles of a symmetric result that are written; "" for another result.
        epilogue: a `Fusion`, whose operands end with the buffers of row factors,
            column factors and the flag of validity_check.
    """
    scheme = emulation.SCHEMES[scheme_name]
    tile_k, flag = scheme.stage_k, len(epilogue.operands) - 1
    a_across, b_across = a_innermost == "mn", b_innermost == "mn"
    is_fused = epilogue.stages or epilogue.reduction is not None
    return make_tma_kernel(
        config,
        tile_k,
        make_place(config, tile_k, stored, flag=flag),
        make_load(config, tile_k, a_across, b_across, wgmma_layouts.TENSOR_MAPS, scheme.parts),
        emulated_mainloop.make_multiply(config, scheme, a_across, b_across),
        make_store(
            config, "float32", stored=stored, epilogue=epilogue if is_fused else None,
            commutes=False, prepare=make_scale_back(config.tile_n, flag - 2),
        ),
    )  # fmt: skip


KERNEL = kernel.Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(tile_m=128, tile_n=128),
        Config(tile_m=128, tile_n=64),
        Config(tile_m=64, tile_n=64),
    ),
    dtypes=("float32",),
    only_arch=90,
    supports=supports,
    tensor_maps=tensor_maps,
    tensor_map_names=wgmma_layouts.TENSOR_MAPS,
    is_persistent=True,
    reductions=kernel.Reductions.OF_ROWS,
    accuracy=accuracy,
    takes_triangles=True,
    commutes=kernel.never,  # the parts of a are multiplied in another order than those of b
)
