"""Configs that cannot be are refused; an SM holds the blocks that registers are spared for."""

import re
from dataclasses import replace

import pytest

from dxgemm.cublasdx import pipeline, pipeline_tma
from dxgemm.handwritten.kernels import (
    complex_batch,
    complex_tensor_core,
    complex_tile,
    half_batch,
    small_batch,
    tensor_batch,
)
from dxgemm.handwritten.ladder import (
    conflict_free,
    double_buffer,
    thread_tile_1d,
    vectorized,
    warp_tile,
)

HOLDING = (small_batch, tensor_batch, complex_batch, half_batch, complex_tensor_core)
CONFIGS_AND_DTYPES = [
    (config, dtype)
    for file in HOLDING
    for config in file.KERNEL.configs
    for dtype in file.KERNEL.dtypes
    if config.takes(dtype)
]


@pytest.mark.parametrize("config, dtype", CONFIGS_AND_DTYPES, ids=str)
def test_a_multiprocessor_holds_the_blocks_that_registers_are_spared_for(config, dtype):
    blocks = config.min_blocks(dtype)
    assert config.threads >= 32 and blocks * config.threads <= 1024
    assert blocks * (config.smem_bytes(dtype) + 1024) <= 228 << 10
    tile_bytes = config.tile_bytes(dtype) if hasattr(config, "tile_bytes") else 16
    assert config.smem_bytes(dtype) % 16 == tile_bytes % 16 == 0


SMALL = small_batch.Config(tile_m=8, tile_n=8, tile_k=8, thread_m=2, thread_n=4, matrices=16)
COMPLEX = complex_batch.Config(8, 8, 8, thread_m=2, thread_n=2, matrices=16, parts=2)
TENSOR = tensor_batch.Config(tile_m=32, tile_n=32, tile_k=32, warp_m=16, warp_n=16)
HALF = half_batch.Config(16, 16, 16, warp_m=16, warp_n=16, matrices=4)
CORE = complex_tensor_core.Config(32, 32, 8, warp_m=16, warp_n=16, stages=4)
PIPELINE = pipeline.KERNEL.configs[0]
EVEN = {"tile_m": 128, "tile_n": 128, "tile_k": 4, "thread_m": 8, "thread_n": 8}


def changed(config, **changes):
    return lambda: replace(config, **changes)


def tile(*numbers):
    return lambda: complex_tile.Config(*numbers)


@pytest.mark.parametrize(
    "make, message",
    [
        (changed(SMALL, thread_m=3), "thread tiles must fill the tile"),
        (changed(SMALL, thread_n=2), "vectors of 4"),
        (changed(SMALL, tile_k=6), "vectors of 4"),
        (changed(SMALL, matrices=1000), "1 to 1024 threads"),
        (changed(COMPLEX, thread_m=3), "thread tiles must fill the tile"),
        (changed(COMPLEX, thread_n=1), "vectors of 2"),
        (changed(COMPLEX, parts=3), "vectors of 2"),
        (changed(TENSOR, warp_m=24), "warp tiles must fill the tile"),
        (changed(TENSOR, warp_n=8), "an instruction computes 8 x 16"),
        (changed(TENSOR, parts=3), "instructions of 8"),
        (changed(TENSOR, matrices=16), "32 to 1024 threads"),
        (changed(HALF, warp_m=32), "warp tiles must fill the tile"),
        (changed(HALF, warp_n=8), "an instruction computes 16 x 16 x 16"),
        (changed(HALF, tile_k=24), "an instruction computes 16 x 16 x 16"),
        (changed(HALF, matrices=40), "32 to 1024 threads"),
        (changed(CORE, tile_m=48), "a power of two"),
        (changed(CORE, warp_m=64), "warp tiles must fill"),
        (changed(CORE, warp_m=4), "instructions compute 8 x 8"),
        (changed(CORE, stages=1), "2 or more"),
        (changed(CORE, tile_k=4), "permuted by 8"),
        (changed(CORE, tile_m=512), "cannot share"),
        (changed(CORE, split_k=16), "at most 8 blocks"),
        (tile(128, 128, 8, 6, 8, 4), "must fill the tile"),
        (tile(64, 64, 8, 8, 2, 4), "columns in fours"),
        (tile(64, 64, 8, 8, 4, 1), "two stages"),
        (tile(64, 32, 8, 4, 4, 4, 8), "share out the rows of a thread"),
        (changed(PIPELINE, tile_m=80), "multiples of 32"),
        (changed(PIPELINE, tile_k=24), "power of two"),
        (changed(PIPELINE, stages=1), "2 or more"),
        (changed(PIPELINE, stages=12), "bytes of shared memory"),
        (changed(PIPELINE, split_k=16), "at most 8 blocks"),
        (lambda: pipeline_tma.Config(128, 256, threads=256, stages=2), "too few stages"),
        (lambda: thread_tile_1d.Config(tile=64, tile_k=4, thread_m=8), "whole rows"),
        (lambda: vectorized.Config(**EVEN), "vectors of 4 must be shared evenly by 256"),
        (lambda: conflict_free.Config(**EVEN, layout="padded"), "shared evenly by 256"),
        (lambda: warp_tile.Config(**EVEN), "vectors of 4 must be shared evenly by 256"),
        (lambda: double_buffer.Config(**EVEN), "vectors of 4 must be shared evenly by 256"),
    ],
)
def test_a_config_that_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
