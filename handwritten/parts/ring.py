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

    Attributes:
        fill: (smem, thread, work, tile, a, b, m, n, k) -> the `Span`s of a and b, the next
            `Copies` of both, and k left from the next stage on, once all stages but one are on
            their way.
        start: for a and for b: (span, copies, stage, k left) -> the next copies, once these to the
            stage at an offset have started.
        put: for a and for b, if they go through registers: (span, copies, stage, k left) -> the
            next copies, once the chunks are written to the stage, which is read next.
        behind: k from the stage that `put` reads to the one that is started.
    """

    fill: Callable[..., Any]
    start: tuple[Callable[..., Any] | None, Callable[..., Any]]
    put: tuple[Callable[..., Any] | None, Callable[..., Any] | None]
    behind: int


class Span(NamedTuple):
    """The constants of a thread's copies of one operand; addresses and steps are in bytes.

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


class Copies(NamedTuple):
    """A thread's next copies of one operand.

    Fields: the address that they begin at; the chunks before them that are on their way through
    registers.
    """

    source: Any
    chunks: Any


def make_load(
    config: Any, tile_k: int, item_bytes: int, tiles: tuple[Any, Any],
    operands_of: Callable[..., Any] | None = None,
) -> Load:  # fmt: skip
    """Copies of lines or chunks, straight to shared memory or through registers.

    Args:
        config: has `stages` and `parts`, matrices of a batch whose sum is an operand.
        tiles: of a and b, each with the device functions of a `LineTile` up to `put`; None for an
            a that is not copied, because it is kept in shared memory.
        operands_of: device function: (work, tile, a, b, m, n, k) -> a, b, m, n and k of the
            tile's problem; None for those of the kernel.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import commit_copies, device_function
    from dxgemm.handwritten.parts.unroll import unroll

    stages, parts, finds_operands = config.stages, config.parts, operands_of is not None
    a_bytes, b_bytes = (parts * x * tile_k * item_bytes for x in (config.tile_m, config.tile_n))
    copies_a = tiles[0] is not None
    if not copies_a:
        a_bytes, begin_a, start_a, put_a = 0, None, None, None
    else:
        begin_a, start_a, put_a = _make_copies(tiles[0], config.tile_m, tile_k, item_bytes, parts)
    stage_bytes, behind = a_bytes + b_bytes, (stages - 2) * tile_k
    begin_b, start_b, put_b = _make_copies(tiles[1], config.tile_n, tile_k, item_bytes, parts)
    puts_a, puts_b = put_a is not None, put_b is not None

    def fill(smem, thread, work, tile, a, b, m, n, k):
        if finds_operands:
            a, b, m, n, k = operands_of(work, tile, a, b, m, n, k)
        b_columns = Operand(b.data, b.batch, b.col, b.row)
        b_smem: int32 = smem + a_bytes
        a_span, a_copies = (), ()
        if copies_a:
            a_span, a_copies = begin_a(smem, thread, a, tile.a_matrix, tile.row, m, k, tile)
        b_span, b_copies = begin_b(b_smem, thread, b_columns, tile.b_matrix, tile.col, n, k, tile)
        k_left: int32 = tile.end_k - tile.first_k
        for stage in range(stages - 1):
            if copies_a:
                a_copies = start_a(a_span, a_copies, int32(stage * stage_bytes), k_left)
            b_copies = start_b(b_span, b_copies, int32(stage * stage_bytes), k_left)
            commit_copies()
            k_left -= tile_k
        if puts_a:
            a_copies = put_a(a_span, a_copies, 0, int32(k_left + behind))
        if puts_b:
            b_copies = put_b(b_span, b_copies, 0, int32(k_left + behind))
        return (a_span, b_span), (a_copies, b_copies), k_left

    return Load(device_function(unroll(fill)), (start_a, start_b), (put_a, put_b), behind)


def make_span(
    tile: Any, extent: int, tile_k: int, item_bytes: int, parts: int = 1
) -> Callable[..., Any]:
    """A device function: the `Span` of a thread's copies, and the address of its first chunk.

    It takes the shared memory of the first stage, the thread, the operand with x as its rows, the
    index of the matrix, the tile's first x, the x and k of the operand, and the first k.

    Args:
        tile: of the operand, as in `make_load`.
        extent: x of a tile.
        tile_k: k from a tile to the next one of the thread.
        parts: number of consecutive matrices whose sum is the operand.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function, global_address
    from dxgemm.handwritten.parts.unroll import unroll

    _, first_chunk, place, *_ = tile

    def find_span(smem, thread, operand, matrix, x, x_count, k, first_k):
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
        return span, source

    return device_function(unroll(find_span))


def _make_copies(
    tile: Any, extent: int, tile_k: int, item_bytes: int, parts: int
) -> tuple[Any, ...]:
    """The device functions of one operand: begin, which returns its `Span` too, start and put."""
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    tile_bytes = extent * tile_k * item_bytes
    is_async, _, _, start_chunks, load_chunks, put_chunks, *_ = tile
    find_span = make_span(tile, extent, tile_k, item_bytes, parts)

    def load(span, source, k_left):
        chunks = ()
        if not is_async:
            chunks = load_chunks(
                source, span.x_step, span.k_step, span.x_left, int32(k_left - span.k), span.begin,
                span.end,
            )  # fmt: skip
            source += span.tile_step
        return Copies(source, chunks)

    load = device_function(unroll(load))

    def begin(smem, thread, operand, matrix, x, x_count, k, tile):
        span, source = find_span(smem, thread, operand, matrix, x, x_count, k, tile.first_k)
        return span, load(span, source, int32(tile.end_k - tile.first_k))

    def start(span, copies, stage, k_left):
        if is_async:
            for part in static_range(parts):
                start_chunks(
                    int32(span.target + stage + part * tile_bytes),
                    copies.source + part * span.part_step, span.x_step, span.k_step, span.x_left,
                    int32(k_left - span.k),
                )  # fmt: skip
            copies = Copies(copies.source + span.tile_step, ())
        return copies

    def put(span, copies, stage, k_left):
        put_chunks(int32(span.target + stage), copies.chunks)
        return load(span, copies.source, k_left)

    made = [device_function(unroll(function)) for function in (begin, start)]
    return (*made, None if is_async else device_function(unroll(put)))
