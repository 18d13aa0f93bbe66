"""The main loop of `emulated_float32`: the products of all parts of a stage, promoted as they come.

A stage is a tile of each part of a, then one of each part of b, laid out as in `wgmma_mainloop`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dxgemm.handwritten.parts.wgmma_ring import (
    ROW_BYTES,
    STEPS,
    SWIZZLE_ROWS,
    WARPGROUP,
    WARPGROUP_ROWS,
)


def complaints(config: Any) -> Iterator[str]:
    """Constraints that the numbers of a `Config` of `emulated_float32` violate."""
    if config.tile_n not in (64, 128):
        yield "tile_n must be 64 or 128; three sums are kept"
    if STEPS % config.promote and config.promote % STEPS:
        yield f"promote must be 1, 2, or a multiple of {STEPS}"
    if config.section % 64:
        yield "section must be a multiple of 64, whole stages"


def make_multiply(config: Any, scheme: Any, a_across: bool, b_across: bool) -> Callable[..., Any]:
    """`wgmma_mainloop.make_multiply` for parts.

    Args:
        config: a `Config` of `emulated_float32`.
        scheme: a `Scheme` of `emulation`.
        a_across, b_across: True for MN-major operands.
    """
    if scheme.shift and config.promote > STEPS:
        raise ValueError(f"{config}: {scheme} promotes its small products once a stage")
    from numba import cuda, float32, int32

    from dxgemm.handwritten.parts.hopper import (
        arrive,
        begin_wgmma,
        commit_wgmma,
        descriptor_halves,
        wait_barrier,
        wait_wgmma,
        wait_wgmma_of,
        wgmma,
        wgmma_anew,
    )  # fmt: skip
    from dxgemm.handwritten.parts.intrinsics import add_scaled, zeros
    from dxgemm.handwritten.parts.unroll import static_range, unroll
    from dxgemm.handwritten.parts.wgmma_ring import make_after

    kind, parts, small = scheme.kind, scheme.parts, scheme.small_products
    tile_m, tile_n, stages = config.tile_m, config.tile_n, config.stages
    stage_bytes = config.stage_bytes
    a_bytes, b_bytes = tile_m * ROW_BYTES, tile_n * ROW_BYTES
    tile_k = scheme.stage_k
    panel_bytes = tile_k * ROW_BYTES
    # Descriptors count in 16 bytes.
    a_step = (panel_bytes if a_across else ROW_BYTES) // STEPS // 16
    b_step = (panel_bytes if b_across else ROW_BYTES) // STEPS // 16
    a_part, b_part, stage_step = a_bytes // 16, b_bytes // 16, stage_bytes // 16
    low, high = descriptor_halves(panel_bytes, SWIZZLE_ROWS * ROW_BYTES)
    acc_items = tile_n // 2
    section_stages = config.section // tile_k
    unit_steps = min(config.promote, STEPS)
    run_stages = 0 if config.promote <= STEPS else config.promote // STEPS
    products = (*small, (0, 0))
    # Terms of a stage that are summed before each promotion, and the factor of their sum.
    groups = tuple(
        _terms(((0, 0),) if scheme.shift else products, first, unit_steps)
        for first in range(0, STEPS, unit_steps)
    )
    scales = (1.0,) * len(groups)
    if scheme.shift:
        groups = (_terms(small, 0, STEPS), *groups)
        scales = (2.0**-scheme.shift, *scales)
    counts, last_group = tuple(map(len, groups)), len(groups) - 1
    stage_terms = _terms(products, 0, STEPS)
    stage_count = len(stage_terms)
    after = make_after(stages)

    @cuda.jit(device=True, forceinline=True)
    def descriptors(smem, thread):
        """Descriptors of the first parts of a and of b in the first stage."""
        a_desc = int32(low + (smem + thread // WARPGROUP * (WARPGROUP_ROWS * ROW_BYTES)) // 16)
        return a_desc, int32(low + (smem + parts * a_bytes) // 16)

    @cuda.jit(device=True, forceinline=True)
    def places(a_at, b_at, term):
        """Descriptors of a term, from those of the stage."""
        a_index, b_index, step = term
        a_of = int32(a_at + a_index * a_part + step * a_step)
        return a_of, int32(b_at + b_index * b_part + step * b_step)

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def multiply_units(smem, full, empty, thread, k_tiles, stage, parity, tile, result):
        """a @ b, in sections, promoted every few steps; the next stage and its parity.

        While a warpgroup promotes, the other one multiplies.
        """
        member: int32 = thread % WARPGROUP
        a_desc, b_desc = descriptors(smem, thread)
        total = zeros(float32, acc_items)
        while k_tiles > 0:
            left: int32 = min(k_tiles, section_stages)
            k_tiles = int32(k_tiles - left)
            section = zeros(float32, acc_items)
            while left > 0:
                wait_barrier(int32(full + 8 * stage), parity)
                a_at: int32 = a_desc + stage * stage_step
                b_at: int32 = b_desc + stage * stage_step
                for group in static_range(last_group + 1):
                    begin_wgmma()
                    for index in static_range(counts[group]):
                        a_of, b_of = places(a_at, b_at, groups[group][index])
                        if index == 0:
                            acc = wgmma_anew(kind, high, acc_items, a_of, b_of, a_across, b_across)
                        else:
                            acc = wgmma(kind, high, acc, a_of, b_of, a_across, b_across)
                    commit_wgmma()
                    acc = wait_wgmma_of(0, acc)
                    if group == last_group and member == 0:
                        arrive(int32(empty + 8 * stage))
                    section = add_scaled(section, acc, float32(scales[group]))
                stage, parity = after(stage, parity)
                left -= 1
            total = add_scaled(total, section, float32(1))
        return total, stage, parity

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def multiply_runs(smem, full, empty, thread, k_tiles, stage, parity, tile, result):
        """`multiply_units` without sections, promoted every few stages; all products in one sum."""
        member: int32 = thread % WARPGROUP
        a_desc, b_desc = descriptors(smem, thread)
        total = zeros(float32, acc_items)
        while k_tiles > 0:
            run: int32 = min(k_tiles, run_stages)
            k_tiles = int32(k_tiles - run)
            acc = zeros(float32, acc_items)
            previous, left = stage, run
            while left > 0:
                wait_barrier(int32(full + 8 * stage), parity)
                a_at: int32 = a_desc + stage * stage_step
                b_at: int32 = b_desc + stage * stage_step
                begin_wgmma()
                for index in static_range(stage_count):
                    a_of, b_of = places(a_at, b_at, stage_terms[index])
                    acc = wgmma(kind, high, acc, a_of, b_of, a_across, b_across)
                commit_wgmma()
                wait_wgmma(1)  # the k tile before is done, this one goes on
                if left < run and member == 0:
                    arrive(int32(empty + 8 * previous))
                previous, left = stage, int32(left - 1)
                stage, parity = after(stage, parity)
            acc = wait_wgmma_of(0, acc)
            if member == 0:
                arrive(int32(empty + 8 * previous))
            total = add_scaled(total, acc, float32(1))
        return total, stage, parity

    return multiply_units if run_stages == 0 else multiply_runs


def _terms(
    products: tuple[tuple[int, int], ...], first: int, count: int
) -> tuple[tuple[int, int, int], ...]:
    """(part of a, part of b, step) of products over so many steps from the first."""
    return tuple((a, b, step) for a, b in products for step in range(first, first + count))
