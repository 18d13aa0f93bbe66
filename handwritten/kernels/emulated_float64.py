"""float64 products by int8 wgmma: a product of residues for each of several moduli.

Idea: grown from `wgmma`. a and b are scaled to integers whose residues by pairwise coprime moduli
are int8 (`residues`). int32 sums of their products are exact; a sum's residue is that of the
integers' product, which `reconstruct` finds from all of them. The products by the moduli are the
matrices of a batch, one after the other. Only the store differs: it writes a byte per element. Of a
symmetric result, the tiles that meet the lower triangle are computed; `reconstruct` mirrors them.
Layout: a (moduli, m, k) and b (moduli, n, k) as `residues` leaves them, any batch; out
(batch, moduli, m, n), rows padded to 32 bytes. In the last parameter the flag of
validity_check and the number of moduli.
Constraints: k at most 2**17, or sums would not fit int32; m and n are free. If the flag is not 0,
the kernel computes nothing and leaves the product to `native_fallback`.
Source: `moduli`; PTX ISA, "wgmma.mma_async", for integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dxgemm.handwritten.frames.tma import make_tma_kernel
from dxgemm.handwritten.parts import moduli, residue_store, wgmma_layouts
from dxgemm.handwritten.parts.configs import WgmmaConfig
from dxgemm.handwritten.parts.kernel import Kernel, block_a_tile
from dxgemm.handwritten.parts.place import make_place
from dxgemm.handwritten.parts.wgmma_mainloop import make_multiply
from dxgemm.handwritten.parts.wgmma_ring import make_load


class Config(WgmmaConfig):
    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.tile_n not in (64, 128, 256):
            yield "tile_n must be 64, 128 or 256"

    @property
    def chunk_cols(self) -> int:
        """Columns of a warp's result that go through shared memory at a time."""
        return min(self.tile_n, 128)

    @property
    def chunk_sizes(self) -> tuple[int, ...]:
        return (residue_store.chunk_bytes(self.chunk_cols),)


def supports(problem: Any) -> str | None:
    """Reason why the kernel cannot compute a problem; None if it can."""
    if not (problem.precision or "").startswith("emulated"):
        return "it multiplies residues of rounded numbers: pass precision='emulated' to permit it"
    if problem.k > moduli.LONGEST_K:
        return f"its sums fit int32 for k up to {moduli.LONGEST_K}"
    if problem.k == 0:
        return None
    count = moduli.moduli_count(problem)
    if moduli.operand_bits(count, problem.k) < 1:
        return f"{count} moduli leave no bit of the operands where k is {problem.k}"
    return wgmma_layouts.supports_sizes(problem, count)


def accuracy(problem: Any) -> str:
    """Statement of the bits that are kept of the operands, and of the bound on the error."""
    count = moduli.moduli_count(problem)
    bits = moduli.operand_bits(count, problem.k)
    return (
        f"{count} moduli, {bits} bits below the largest of a row of a or column of b; "
        f"error at most 2**{moduli.LOST_BITS - bits} |A| |B|"
    )


def block_count(config: Config, problem: Any) -> int:
    """Tiles of the products by all moduli, which the persistent blocks share."""
    return block_a_tile(config, problem) * moduli.moduli_count(problem)


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Triangle of a symmetric result that is computed, for any that are written."""
    return ("lower",) if problem.triangle else ()


def tensor_maps(config: Config, problem: Any, *variant: str) -> tuple[Any, ...]:
    """The maps of the residues of a and b, with the boxes that the producer asks for."""
    maps, pitch = [], residue_store.row_bytes(problem.k)
    for name, along, tile in (("a", problem.m, config.tile_m), ("b", problem.n, config.tile_n)):
        matrices = problem.batch if getattr(problem, name).batch else 1
        matrices *= moduli.moduli_count(problem)
        maps.append(wgmma_layouts.packed_map(name, "int8", problem.k, along, matrices, pitch, tile))
    return tuple(maps)


def make_kernel(
    config: Config, dtype: str, stored: str = "", epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile.

    Args:
        stored: "lower" if a symmetric result needs the tiles of this triangle alone; else "".
        epilogue: a `Fusion` of two operands: the flag of validity_check, the number of moduli.
    """
    tile_k = wgmma_layouts.stage_k("int8")
    return make_tma_kernel(
        config,
        tile_k,
        make_place(config, tile_k, stored, flag=0, counter=1),
        make_load(config, tile_k, False, False, wgmma_layouts.TENSOR_MAPS),
        make_multiply(config, "int8", False, False),
        residue_store.make_store(config, config.chunk_cols),
    )


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(tile_m=128, tile_n=256),
        Config(tile_m=128, tile_n=128),
        Config(tile_m=64, tile_n=128),
    ),
    dtypes=("float64",),
    only_arch=90,
    supports=supports,
    variant=variant,
    block_count=block_count,
    tensor_maps=tensor_maps,
    tensor_map_names=wgmma_layouts.TENSOR_MAPS,
    is_persistent=True,
    accuracy=accuracy,
    takes_triangles=True,
)
