"""The `multiply` of the frame `ring` over tiles of lines (`line_tiles`), by `mma.sync`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.fragment import make_warp_corner
from dxgemm.handwritten.parts.line_tiles import LINE_BYTES, STEPS, LineTile, make_line_tile
from dxgemm.handwritten.parts.operands import BYTES, ITEM_BYTES
from dxgemm.handwritten.parts.ring import Load


def stage_k(dtype: str) -> int:
    """k of a stage: one line."""
    return LINE_BYTES // ITEM_BYTES[dtype]


def make_line_tiles(config: Any, dtype: str, *layouts: str) -> tuple[LineTile, LineTile]:
    """The tiles of a and b, in layouts of `line_tiles`."""
    threads, item_bytes = config.threads, ITEM_BYTES[dtype]
    return (
        make_line_tile(layouts[0], "left", config.tile_m, config.warp_m, threads, item_bytes),
        make_line_tile(layouts[1], "right", config.tile_n, config.warp_n, threads, item_bytes),
    )


def make_fragments(line: LineTile, parts: int, tile_bytes: int) -> tuple[Callable[..., Any], ...]:
    """Device functions, one per step: (a lane's address in the first stage, stage) -> fragments.

    They are those of all parts, whose tiles are `tile_bytes` apart.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    load = line.read

    def of_step(xor: tuple[int, ...], add: tuple[int, ...]) -> Callable[..., Any]:
        count = len(xor)

        def read(address, stage):
            fragments = ()
            for part in static_range(parts):
                for i in static_range(count):
                    at = int32((address ^ xor[i]) + stage)
                    fragments = fragments + load(at, add[i] + part * tile_bytes)
            return fragments

        return device_function(unroll(read))

    return tuple(map(of_step, line.xor, line.add))


def make_multiply(
    config: Any, dtype: str, lines: tuple[LineTile, LineTile], load: Load,
    add: tuple[Callable[..., Any], ...] | None = None, kept: int = 0, kept_a: int | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """Each step multiplies fragments and has the next ones read, across the border of stages too.

    Args:
        add: by step of a stage: device function: (sums, fragments of all parts of a, those of b) ->
            sums; None for their product.
        kept: registers of the sums after those of the tile.
        kept_a: offset in shared memory of the tiles of an a that is not copied; None if it is.
    """
    from numba import float32, int32

    from dxgemm.handwritten.parts.intrinsics import (
        commit_copies,
        cuda,
        device_function,
        wait_copies,
        zeros,
    )
    from dxgemm.handwritten.parts.mma import mma_tile
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    (left, right), stages, copies_a = lines, config.stages, kept_a is None
    a_bytes, b_bytes = config.tile_m * LINE_BYTES, config.tile_n * LINE_BYTES
    a_start, b_start = (0, config.parts * a_bytes) if copies_a else (kept_a, 0)
    stage_bytes = b_start + config.parts * b_bytes
    ring_bytes = stages * stage_bytes
    a_place, a_lane, b_place, b_lane = left.place, left.lane, right.place, right.lane
    read_a = make_fragments(left, config.parts, a_bytes)
    read_b = make_fragments(right, config.parts, b_bytes)
    sums_count = config.warp_m * config.warp_n // 32 + kept
    scalar, corner = int32 if dtype in BYTES else float32, make_warp_corner(config)
    (start_a, start_b), (put_a, put_b) = load.start, load.put
    puts_a, puts_b = put_a is not None, put_b is not None
    tile_k, behind = stage_k(dtype), load.behind

    def add_product(sums, a_frag, b_frag):
        return mma_tile(dtype, sums, a_frag, b_frag)

    add = add or (device_function(unroll(add_product)),) * STEPS

    def multiply(smem, thread, filled, k_tiles):
        (a_span, b_span), (a_copies, b_copies), k_left = filled
        lane: int32 = thread % 32
        row, col = corner(thread)
        a_x, a_k = a_lane(lane)
        b_x, b_k = b_lane(lane)
        a_from: int32 = smem + a_start + a_place(int32(row + a_x), a_k)
        b_from: int32 = smem + b_start + b_place(int32(col + b_x), b_k)
        # The stage that is copied to, the one that is read, and the one to read then.
        write: int32 = ring_bytes - stage_bytes
        now: int32 = 0
        then: int32 = 0
        if not copies_a:  # of a, whose tiles follow one another
            a_now: int32 = 0
            a_end: int32 = k_tiles * a_bytes
        wait_copies(stages - 2)
        cuda.syncthreads()
        a_next, b_next = read_a[0](a_from, now), read_b[0](b_from, now)
        sums = zeros(scalar, sums_count)
        for _ in range(k_tiles):
            then += stage_bytes
            if then == ring_bytes:
                then = 0
            for step in static_range(STEPS):
                a_frag, b_frag = a_next, b_next
                if step == 0:  # every thread has left the stage that this overwrites
                    if copies_a:
                        a_copies = start_a(a_span, a_copies, write, k_left)
                    b_copies = start_b(b_span, b_copies, write, k_left)
                    k_left = int32(k_left - tile_k)
                    commit_copies()
                    write += stage_bytes
                    if write == ring_bytes:
                        write = 0
                if step == 1 and puts_a:
                    a_copies = put_a(a_span, a_copies, then, int32(k_left + behind))
                if step == 2 and puts_b:
                    b_copies = put_b(b_span, b_copies, then, int32(k_left + behind))
                if step == STEPS - 1:
                    wait_copies(stages - 2)
                    cuda.syncthreads()
                    now = then
                    if not copies_a:
                        a_now += a_bytes
                        if a_now == a_end:
                            a_now = 0
                a_next = read_a[(step + 1) % STEPS](a_from, now if copies_a else a_now)
                b_next = read_b[(step + 1) % STEPS](b_from, now)
                sums = add[step](sums, a_frag, b_frag)
        return sums

    return device_function(unroll(multiply))
