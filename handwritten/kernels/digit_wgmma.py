"""Integers modulo 2**32 by int8 wgmma: all products of their digits, in one set of sums.

Idea: grown from `wgmma`. The products of the digits of a and b (`digits`) follow one another along
k, those of the highest weight first. Where the weight falls, the sums in registers are multiplied
by 256, as in Horner's scheme; that they wrap around is what a result modulo 2**32 wants. So no sums
are stored and read again, as between products of their own.
Layout: digits of a (m, k) and of b (n, k) as `digits` leaves them, any batch; c and out (m, n), any
strides, in int32 or uint32. k counts the bytes of all products.
Constraints: those of `wgmma`; a digit of a row takes a multiple of 128 bytes.
Source: D. Knuth, "The Art of Computer Programming", 4.6.4, for Horner's scheme; as `wgmma`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from dxgemm.handwritten.frames.tma import make_tma_kernel
from dxgemm.handwritten.kernels import wgmma
from dxgemm.handwritten.parts import wgmma_layouts
from dxgemm.handwritten.parts.configs import WgmmaConfig
from dxgemm.handwritten.parts.digit_terms import Term, digits_of, terms_of
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.place import make_place
from dxgemm.handwritten.parts.store import make_store
from dxgemm.handwritten.parts.unroll import device, static_range
from dxgemm.handwritten.parts.wgmma_mainloop import make_add
from dxgemm.handwritten.parts.wgmma_ring import ROW_BYTES, Load, make_fetch_operand, make_load


def tensor_maps(config: WgmmaConfig, problem: Any, *variant: str) -> tuple[Any, ...]:
    """The maps of the digits of a and b, whose rows are one after the other."""
    maps = []
    for name, along, tile in (("a", problem.m, config.tile_m), ("b", problem.n, config.tile_n)):
        strides = getattr(problem, name)
        matrices = problem.batch if strides.batch else 1
        pitch = strides.row if name == "a" else strides.col
        maps.append(wgmma_layouts.packed_map(name, "int8", pitch, along, matrices, pitch, tile))
    return tuple(maps)


def make_digit_load(config: WgmmaConfig, terms: tuple[Term, ...], digits: int) -> Load:
    """The load of the boxes of digits whose product is at a k."""
    from numba import int32

    load = make_load(config, ROW_BYTES, False, False, wgmma_layouts.TENSOR_MAPS)
    fetch_a = make_fetch_operand(config.tile_m, ROW_BYTES, False)
    fetch_b = make_fetch_operand(config.tile_n, ROW_BYTES, False)
    a_bytes, count = config.tile_m * ROW_BYTES, len(terms)
    starts = tuple(sum(term.width for term in terms[:i]) for i in range(count))
    products = sum(term.width for term in terms)
    # From the k of a term's products to that of its digits.
    a_shifts = tuple(term.a - start for term, start in zip(terms, starts))
    b_shifts = tuple(digits - 1 - term.b - start for term, start in zip(terms, starts))

    @device
    def fetch(stage_smem, barrier, tile, depth, maps):
        step: int32 = tile.end_k // products
        a_depth: int32 = depth
        b_depth: int32 = depth
        for term in static_range(count):
            if depth >= starts[term] * step:
                a_depth = depth + a_shifts[term] * step
                b_depth = depth + b_shifts[term] * step
        b_smem: int32 = stage_smem + a_bytes
        fetch_a(stage_smem, barrier, tile.row, a_depth, maps[0], tile.a_matrix)
        fetch_b(b_smem, barrier, tile.col, b_depth, maps[1], tile.b_matrix)

    return load._replace(fetch=fetch)


def make_digit_multiply(config: WgmmaConfig, terms: tuple[Term, ...]) -> Callable[..., Any]:
    """The device function of the consumers that computes the sums of a tile, term by term."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import scaled, zeros

    adds = tuple(make_add(config, term.dtype, False, False) for term in terms)
    widths, count = tuple(term.width for term in terms), len(terms)
    items, products = config.strips * config.tile_n // 2, sum(widths)
    shifts = [first.shift - second.shift for first, second in pairwise(terms)]
    factors = (1, *(1 << shift for shift in shifts))  # of the sums, before each term

    @device
    def multiply(smem, full, empty, thread, k_tiles, stage, parity, tile, result):
        of_product: int32 = k_tiles // products
        acc = zeros(int32, items)
        for term in static_range(count):
            if factors[term] > 1:
                acc = scaled(int32(factors[term]), acc)
            own: int32 = of_product * widths[term]
            acc, stage, parity = adds[term](
                acc, smem, full, empty, thread, own, stage, parity, tile
            )
        return acc, stage, parity

    return multiply


def make_kernel(
    config: WgmmaConfig, dtype: str, integers: str, stored: str = "", epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile.

    Args:
        integers: dtype of the product of integers.
        stored: triangles of a symmetric result that are written; "" for another result.
    """
    terms = terms_of(integers)
    return make_tma_kernel(
        config,
        ROW_BYTES,
        make_place(config, ROW_BYTES, stored),
        make_digit_load(config, terms, digits_of(integers)),
        make_digit_multiply(config, terms),
        make_store(config, "int32", stored=stored, acc_dtype="int32"),
    )


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=tuple(config for config in wgmma.KERNEL.configs if config.takes("int8")),
    dtypes=("int8",),
    only_arch=90,
    block_count=wgmma_layouts.block_count,
    tensor_maps=tensor_maps,
    tensor_map_names=wgmma_layouts.TENSOR_MAPS,
    is_persistent=True,
)
