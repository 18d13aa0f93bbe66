"""The `multiply` of the frame `ring` over tiles of lines (`line_tiles`), by Hopper's `wgmma`.

A tile of lines is what TMA would leave there: lines of 128 bytes whose chunks are permuted by XOR,
in panels of 64 lines if they are MN-major. So `cp.async` feeds `wgmma`, whose operands may then be
at any address, without tensor maps. Each warpgroup computes 64 rows. A stage is multiplied while
the next ones are copied. A block that is alone on its SM lets an instruction run on into the next
stage, and copies to the stage that it reads an iteration later; several blocks fill each other's
gaps.
Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", "fence.proxy.async".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dxgemm.handwritten.parts.configs import SMEM_BYTES_PER_BLOCK, LineConfig
from dxgemm.handwritten.parts.ring import Load
from dxgemm.handwritten.parts.unroll import device, static_range
from dxgemm.handwritten.parts.wgmma_mainloop import KINDS
from dxgemm.handwritten.parts.wgmma_ring import (
    ROW_BYTES,
    STEPS,
    SWIZZLE_ROWS,
    WARPGROUP,
    WARPGROUP_ROWS,
)


@dataclass(frozen=True)
class WarpgroupConfig(LineConfig):
    """Block tile tile_m x tile_n by `wgmma`: 64 rows per warpgroup, 16 per warp.

    Attributes:
        stages: tiles of a and b in shared memory.
        pending: stages whose instructions may run on while the next one's are issued: 0 or 1.
    """

    tile_m: int
    tile_n: int
    stages: int
    pending: int = 0

    warp_m = 16

    @property
    def warp_n(self) -> int:  # type: ignore[override]
        return self.tile_n

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.tile_m % WARPGROUP_ROWS or self.stages < 2 + self.pending:
            yield f"tiles have multiples of {WARPGROUP_ROWS} rows, rings a stage that is copied"

    def accumulator_bytes(self, dtype: str) -> int:
        return self.tile_n * 2

    @property
    def chunks_at(self) -> int:
        """Offset of the warps' parts of a result: in the last stage, which is filled last."""
        return (self.stages - 1) * self.stage_bytes

    @property
    def barriers_at(self) -> int:
        """Offset of two barriers per stage, behind the ring."""
        return self.stages * self.stage_bytes

    def smem_bytes(self, dtype: str) -> int:
        return self.barriers_at + 16 * self.stages

    def beside(self, smem_bytes: int) -> WarpgroupConfig:
        """The same with as many stages as leave so many bytes, which are aligned as stages are."""
        room = SMEM_BYTES_PER_BLOCK - smem_bytes - SWIZZLE_ROWS * ROW_BYTES
        fitting = min(self.stages, room // self.stage_bytes)
        return replace(self, stages=max(2 + self.pending, fitting))

    def min_blocks(self, dtype: str) -> int:
        """Minimum resident blocks per SM: as many as the stages and 128 registers allow."""
        return max(1, min(2 * 256 // self.threads, SMEM_BYTES_PER_BLOCK // self.smem_bytes(dtype)))

    def __str__(self) -> str:
        return f"{self.tile_m}x{self.tile_n} wgmma stages {self.stages}"


WARPGROUP_CONFIGS = (
    WarpgroupConfig(128, 128, stages=3),
    WarpgroupConfig(64, 128, stages=3),
    WarpgroupConfig(128, 256, stages=4, pending=1),
    WarpgroupConfig(64, 64, stages=4),
)


class Stages(NamedTuple):
    """A ring of stages, and the wgmmas of one.

    Attributes:
        b_start, stage_bytes: offset of b in a stage, from one to the next, in bytes.
        begin: device function: (smem, thread) -> descriptors of a and b in the first stage.
        multiply_stage: device function: (acc, descriptors, offset of a, offset of b) -> acc, once
            a group of wgmmas is under way.
    """

    b_start: int
    stage_bytes: int
    begin: Callable[..., Any]
    multiply_stage: Callable[..., Any]


def make_stages(
    config: WarpgroupConfig, dtype: str, layouts: tuple[str, str], kept_a: int | None
) -> Stages:
    from numba import int32

    from dxgemm.handwritten.parts import hopper

    kind, (a_across, b_across) = KINDS[dtype], (layout.startswith("x") for layout in layouts)
    a_bytes = config.tile_m * ROW_BYTES
    a_start, b_start = (0, a_bytes) if kept_a is None else (kept_a, 0)
    strip_bytes = WARPGROUP_ROWS * ROW_BYTES  # of a warpgroup's rows, which is also a panel
    # Addresses in descriptors are in units of 16 bytes.
    a_step = (strip_bytes if a_across else ROW_BYTES) // STEPS // 16
    b_step = (strip_bytes if b_across else ROW_BYTES) // STEPS // 16
    low, high = hopper.descriptor_halves(strip_bytes, SWIZZLE_ROWS * ROW_BYTES)

    @device
    def begin(smem, thread):
        group: int32 = thread // WARPGROUP
        a_desc: int32 = low + (smem + a_start + group * strip_bytes) // 16
        b_desc: int32 = low + (smem + b_start) // 16
        return a_desc, b_desc

    @device
    def multiply_stage(acc, descriptors, a_offset, b_offset):
        a_at: int32 = descriptors[0] + a_offset // 16
        b_at: int32 = descriptors[1] + b_offset // 16
        hopper.begin_wgmma()
        for step in static_range(STEPS):
            a_part: int32 = a_at + step * a_step
            b_part: int32 = b_at + step * b_step
            acc = hopper.wgmma(kind, high, acc, a_part, b_part, a_across, b_across)
        hopper.commit_wgmma()
        return acc

    return Stages(b_start, b_start + config.tile_n * ROW_BYTES, begin, multiply_stage)


def make_multiply(
    config: WarpgroupConfig,
    dtype: str,
    layouts: tuple[str, str],
    load: Load,
    kept_a: int | None = None,
) -> Callable[..., Any]:
    """The device function of the frame `ring`.

    Args:
        layouts: of a and b in `line_tiles`.
        kept_a: see `line_mainloop.make_multiply`.
    """
    from numba import float32, int32

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.intrinsics import commit_copies, cuda, wait_copies, zeros

    copies_a, stages, tile_k = kept_a is None, config.stages, config.tile_k
    _, stage_bytes, begin, multiply_stage = make_stages(config, dtype, layouts, kept_a)
    ring_bytes, a_bytes = stages * stage_bytes, config.tile_m * ROW_BYTES
    (start_a, start_b), pending = load.start, config.pending
    sums_count = config.tile_n // 2

    @device
    def multiply(smem, thread, filled, k_tiles):
        (a_span, b_span), (a_copies, b_copies), k_left = filled
        descriptors = begin(smem, thread)
        write: int32 = ring_bytes - stage_bytes
        read: int32 = 0
        a_read: int32 = 0
        acc = zeros(float32, sums_count)
        for turn in range(k_tiles):
            wait_copies(stages - 2 - pending)
            hopper.publish_shared()
            cuda.syncthreads()
            acc = multiply_stage(acc, descriptors, read if copies_a else a_read, read)
            read += stage_bytes
            if read == ring_bytes:
                read = 0
            a_read += a_bytes
            if turn >= pending:  # into a stage that all had read before the barrier
                if copies_a:
                    a_copies = start_a(a_span, a_copies, write, k_left)
                b_copies = start_b(b_span, b_copies, write, k_left)
                k_left = int32(k_left - tile_k)
                commit_copies()
                write += stage_bytes
                if write == ring_bytes:
                    write = 0
            hopper.wait_wgmma(pending)
        return hopper.wait_wgmma_of(0, acc)

    return multiply
