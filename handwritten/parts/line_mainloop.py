"""The `load` and the `multiply` of the frame `ring`, over tiles of lines, for `mma.sync`.

A stage is a tile of each part of a, then one of each part of b; see `line_tiles`. Copies go
straight to shared memory, or through registers: then a tile is read while the one before is
multiplied, and written once that is half done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dxgemm.handwritten.parts.fragment import make_warp_corner
from dxgemm.handwritten.parts.line_tiles import LINE_BYTES, STEPS, LineTile, make_line_tile
from dxgemm.handwritten.parts.operands import ITEM_BYTES
from dxgemm.handwritten.parts.ring import Load, Multiply
from dxgemm.handwritten.parts.unroll import Operand


class Span(NamedTuple):
    """What a thread's copies of one operand have in common; addresses and steps are in bytes.

    Fields: its first chunk in the first stage; steps along x and k in global memory, and from part
    to part; x left, and the first chunk's k in a tile; where the matrix begins and ends.
    """

    target: Any
    x_step: Any
    k_step: Any
    tile_step: Any
    part_step: Any
    x_left: Any
    k: Any
    begin: Any
    end: Any


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


def make_load(
    config: Any, dtype: str, lines: tuple[LineTile, LineTile],
    operands_of: Callable[..., Any] | None = None,
) -> Load:  # fmt: skip
    """Copies of lines: straight to shared memory in the first step, through registers later.

    The copies are those of a, those of b, and k left from the next stage on.

    Args:
        operands_of: device function: (work, tile, a, b, m, n, k) -> a, b, m, n and k of the
            tile's problem; None for those of the kernel.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import unroll

    left, right = lines
    tile_k, b_start = stage_k(dtype), config.parts * config.tile_m * LINE_BYTES
    # What goes through registers is read when most stages after it are on their way already.
    behind, finds_operands = (config.stages - 2) * tile_k, operands_of is not None
    begin_a, start_a, put_a = _make_copies(left, config.tile_m, ITEM_BYTES[dtype], config.parts)
    begin_b, start_b, put_b = _make_copies(right, config.tile_n, ITEM_BYTES[dtype], config.parts)

    def begin(smem, thread, work, tile, a, b, m, n, k):
        if finds_operands:
            a, b, m, n, k = operands_of(work, tile, a, b, m, n, k)
        b_columns = Operand(b.data, b.batch, b.col, b.row)
        b_smem: int32 = smem + b_start
        k_left: int32 = tile.end_k - tile.first_k
        return (
            begin_a(smem, thread, a, tile.a_matrix, tile.row, m, tile.first_k, k, k_left),
            begin_b(b_smem, thread, b_columns, tile.b_matrix, tile.col, n, tile.first_k, k, k_left),
            k_left,
        )  # fmt: skip

    def start(copies, write, then):
        a_copies, b_copies, k_left = copies
        return (
            start_a(a_copies, write, k_left), start_b(b_copies, write, k_left),
            int32(k_left - tile_k),
        )  # fmt: skip

    def put_left(copies, write, then):
        a_copies, b_copies, k_left = copies
        return put_a(a_copies, then, int32(k_left + behind)), b_copies, k_left

    def put_right(copies, write, then):
        a_copies, b_copies, k_left = copies
        return a_copies, put_b(b_copies, then, int32(k_left + behind)), k_left

    steps = [start] + [put_left] * (not left.is_async) + [put_right] * (not right.is_async)
    return Load(device_function(unroll(begin)), tuple(device_function(unroll(f)) for f in steps))


def _make_copies(line: LineTile, extent: int, item_bytes: int, parts: int) -> tuple[Any, ...]:
    """The device functions of one operand: begin, start and put.

    All return the operand's copies: their `Span`, where the next tile begins, and the chunks on
    their way through registers. start has the next tile copied straight to shared memory, put
    writes the chunks and reads the next ones.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function, global_address
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    tile_k, tile_bytes = LINE_BYTES // item_bytes, extent * LINE_BYTES
    is_async, first_chunk, place, start_chunks, load_chunks, put_chunks, *_ = line

    def load(span, source, k_left):
        chunks = ()
        if not is_async:
            chunks = load_chunks(
                source, span.x_step, span.k_step, span.x_left, int32(k_left - span.k), span.begin,
                span.end,
            )  # fmt: skip
            source += span.tile_step
        return span, source, chunks

    load = device_function(unroll(load))

    def begin(smem, thread, operand, matrix, x, x_count, first_k, k, k_left):
        chunk_x, chunk_k = first_chunk(thread)
        x_step, k_step = operand.row * item_bytes, operand.col * item_bytes
        first = global_address(operand.data) + parts * matrix * operand.batch * item_bytes
        source = first + ((x + chunk_x) * x_step + (first_k + chunk_k) * k_step)
        end = first + ((x_count - 1) * max(x_step, 0) + (k - 1) * max(k_step, 0) + item_bytes)
        first += (x_count - 1) * min(x_step, 0) + (k - 1) * min(k_step, 0)
        x_left: int32 = min(x_count - x, extent) - chunk_x
        target: int32 = smem + place(chunk_x, chunk_k)
        part_step = operand.batch * item_bytes
        span = Span(target, x_step, k_step, tile_k * k_step, part_step, x_left, chunk_k, first, end)
        return load(span, source, k_left)

    def start(copies, stage, k_left):
        span, source, chunks = copies
        if is_async:
            for part in static_range(parts):
                start_chunks(
                    int32(span.target + stage + part * tile_bytes), source + part * span.part_step,
                    span.x_step, span.k_step, span.x_left, int32(k_left - span.k),
                )  # fmt: skip
            source += span.tile_step
        return span, source, chunks

    def put(copies, stage, k_left):
        span, source, chunks = copies
        put_chunks(int32(span.target + stage), chunks)
        return load(span, source, k_left)

    return tuple(device_function(unroll(function)) for function in (begin, start, put))


def make_multiply(
    config: Any, dtype: str, lines: tuple[LineTile, LineTile],
    add: tuple[Callable[..., Any], ...] | None = None, kept: int = 0,
) -> Multiply:  # fmt: skip
    """Fragments of a warp's tile by `ldmatrix`: those of all parts of a, then those of b.

    Args:
        add: by step: device function: (sums, fragments) -> sums; None for their product.
        kept: registers of the sums besides those of the tile.
    """
    from numba import float32, int32

    from dxgemm.handwritten.parts.intrinsics import device_function, zeros
    from dxgemm.handwritten.parts.mma import mma_tile
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    (left, right), parts = lines, config.parts
    a_bytes, b_bytes = config.tile_m * LINE_BYTES, config.tile_n * LINE_BYTES
    a_place, a_lane, read_a = left.place, left.lane, left.read
    b_place, b_lane, read_b = right.place, right.lane, right.read
    a_count, b_count = len(left.xor[0]), len(right.xor[0])
    b_start, sums = parts * a_bytes, config.warp_m * config.warp_n // 32 + kept
    scalar, corner = int32 if dtype == "int8" else float32, make_warp_corner(config)

    def begin(smem, thread):
        lane: int32 = thread % 32
        row, col = corner(thread)
        a_x, a_k = a_lane(lane)
        b_x, b_k = b_lane(lane)
        a_from: int32 = smem + a_place(int32(row + a_x), a_k)
        b_from: int32 = smem + b_start + b_place(int32(col + b_x), b_k)
        return (a_from, b_from), zeros(scalar, sums)

    def add_product(sums, fragments):
        return mma_tile(dtype, sums, fragments[0], fragments[1])

    def reader(step: int) -> Callable[..., Any]:
        a_xor, a_add, b_xor, b_add = (x[step] for x in (left.xor, left.add, right.xor, right.add))

        def read(source, stage):
            a_from, b_from = source
            a_frag, b_frag = (), ()
            for part in static_range(parts):
                for i in static_range(a_count):
                    address = int32((a_from ^ a_xor[i]) + stage)
                    a_frag = a_frag + read_a(address, a_add[i] + part * a_bytes)
            for part in static_range(parts):
                for j in static_range(b_count):
                    address = int32((b_from ^ b_xor[j]) + stage)
                    b_frag = b_frag + read_b(address, b_add[j] + part * b_bytes)
            return a_frag, b_frag

        return device_function(unroll(read))

    add = add or (device_function(unroll(add_product)),) * STEPS
    return Multiply(device_function(unroll(begin)), tuple(map(reader, range(STEPS))), add)
