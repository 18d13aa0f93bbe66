"""The ring of stages of the frame `ring`, and the copies to it: the `load` of that frame.

A stage is a tile of each part of a, then one of each part of b. Copies go straight to shared
memory, or through registers: then a tile is read while the one before is multiplied, and written
once that is half done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dxgemm.handwritten.parts.unroll import Operand


class Load(NamedTuple):
    """Device functions of all threads, which copy stage after stage.

    A thread's next copies are, of a and of b, the address that it copies from and the chunks on
    their way through registers; then the k left from the next stage on.

    Attributes:
        fill: (smem, thread, work, tile, a, b, m, n, k) -> the `Span`s of a and b, and the next
            copies, once all stages but one are on their way.
        start: for a, then for b: (spans, copies, stage) -> the next copies, once these to the stage
            at an offset have started.
        put: for each operand that goes through registers: (spans, copies, stage) -> the next
            copies, once the chunks are written to the stage, which is read next.
    """

    fill: Callable[..., Any]
    start: tuple[Callable[..., Any], Callable[..., Any]]
    put: tuple[Callable[..., Any], ...]


class Span(NamedTuple):
    """What a thread's copies of one operand have in common; addresses and steps are in bytes.

    Fields: its first chunk in the first stage; steps in global memory along x and k, to the next
    tile and the next part; x left, and the first chunk's k in a tile; where the matrix begins and
    ends.
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


def make_load(
    config: Any, tile_k: int, item_bytes: int, tiles: tuple[Any, Any],
    operands_of: Callable[..., Any] | None = None,
) -> Load:  # fmt: skip
    """Copies of lines or chunks, straight to shared memory or through registers.

    Args:
        config: has `stages` and `parts`, matrices of a batch whose sum is an operand.
        tiles: of a and b, each with the device functions of a `LineTile` up to `put`.
        operands_of: device function: (work, tile, a, b, m, n, k) -> a, b, m, n and k of the
            tile's problem; None for those of the kernel.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import commit_copies, device_function
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    stages, parts, finds_operands = config.stages, config.parts, operands_of is not None
    a_bytes, b_bytes = (parts * x * tile_k * item_bytes for x in (config.tile_m, config.tile_n))
    stage_bytes = a_bytes + b_bytes
    # What goes through registers is read when most stages after it are on their way already.
    behind = (stages - 2) * tile_k
    begin_a, start_a, put_a = _make_copies(tiles[0], config.tile_m, tile_k, item_bytes, parts)
    begin_b, start_b, put_b = _make_copies(tiles[1], config.tile_n, tile_k, item_bytes, parts)

    def start_left(spans, copies, stage):
        a_copies, b_copies, k_left = copies
        return start_a(spans[0], a_copies, stage, k_left), b_copies, k_left

    def start_right(spans, copies, stage):
        a_copies, b_copies, k_left = copies
        return a_copies, start_b(spans[1], b_copies, stage, k_left), int32(k_left - tile_k)

    def put_left(spans, copies, stage):
        a_copies, b_copies, k_left = copies
        return put_a(spans[0], a_copies, stage, int32(k_left + behind)), b_copies, k_left

    def put_right(spans, copies, stage):
        a_copies, b_copies, k_left = copies
        return a_copies, put_b(spans[1], b_copies, stage, int32(k_left + behind)), k_left

    start = device_function(unroll(start_left)), device_function(unroll(start_right))
    puts = ((put_left, tiles[0]), (put_right, tiles[1]))
    put = tuple(device_function(unroll(f)) for f, tile in puts if not tile.is_async)
    count = len(put)

    def fill(smem, thread, work, tile, a, b, m, n, k):
        if finds_operands:
            a, b, m, n, k = operands_of(work, tile, a, b, m, n, k)
        b_columns = Operand(b.data, b.batch, b.col, b.row)
        b_smem: int32 = smem + a_bytes
        k_left: int32 = tile.end_k - tile.first_k
        first_k = tile.first_k
        a_span, a_copies = begin_a(smem, thread, a, tile.a_matrix, tile.row, m, first_k, k, k_left)
        b_span, b_copies = begin_b(
            b_smem, thread, b_columns, tile.b_matrix, tile.col, n, first_k, k, k_left
        )
        spans, copies = (a_span, b_span), (a_copies, b_copies, k_left)
        for stage in range(stages - 1):
            for operand in static_range(2):
                copies = start[operand](spans, copies, int32(stage * stage_bytes))
            commit_copies()
        for operand in static_range(count):
            copies = put[operand](spans, copies, 0)
        return spans, copies

    return Load(device_function(unroll(fill)), start, put)


def _make_copies(
    tile: Any, extent: int, tile_k: int, item_bytes: int, parts: int
) -> tuple[Any, ...]:
    """The device functions of one operand: begin, start and put.

    begin returns the `Span` and the next copies, the others the next copies. start has a tile
    copied straight to shared memory, put writes the chunks and reads the next ones.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function, global_address
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    tile_bytes = extent * tile_k * item_bytes
    is_async, first_chunk, place, start_chunks, load_chunks, put_chunks, *_ = tile

    def load(span, source, k_left):
        chunks = ()
        if not is_async:
            chunks = load_chunks(
                source, span.x_step, span.k_step, span.x_left, int32(k_left - span.k), span.begin,
                span.end,
            )  # fmt: skip
            source += span.tile_step
        return source, chunks

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
        return span, load(span, source, k_left)

    def start(span, copies, stage, k_left):
        source, chunks = copies
        if is_async:
            for part in static_range(parts):
                start_chunks(
                    int32(span.target + stage + part * tile_bytes), source + part * span.part_step,
                    span.x_step, span.k_step, span.x_left, int32(k_left - span.k),
                )  # fmt: skip
            source += span.tile_step
        return source, chunks

    def put(span, copies, stage, k_left):
        source, chunks = copies
        put_chunks(int32(span.target + stage), chunks)
        return load(span, source, k_left)

    made = [device_function(unroll(function)) for function in (begin, start)]
    return (*made, None if is_async else device_function(unroll(put)))
