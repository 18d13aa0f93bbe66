"""The occupancy calculation against NVIDIA's calculator, and its words."""

import pytest

from dxgemm.gpu.occupancy import SmLimits, occupancy, sm_limits

HOPPER = sm_limits("sm_90a")


@pytest.mark.parametrize(
    ("threads", "registers", "smem_bytes", "blocks", "limiters"),
    [
        (128, 32, 0, 16, ("threads", "registers")),
        (32, 32, 0, 32, ("blocks",)),
        (256, 33, 0, 6, ("registers",)),  # 40 registers after rounding: 51 warps, so 48
        (256, 128, 33 * 1024, 2, ("registers",)),
        (256, 64, 64 * 1024, 3, ("shared memory",)),
        (256, 64, 75 * 1024, 3, ("shared memory",)),  # 3 * (75 + 1) KiB is all there is
        (256, 64, 75 * 1024 + 1, 2, ("shared memory",)),
        (1024, 32, 0, 2, ("threads", "registers")),
        (256, 255, 227 * 1024, 1, ("registers", "shared memory")),
        (48, 32, 0, 32, ("threads", "blocks", "registers")),  # two warps, one half empty
        (96, 168, 0, 4, ("registers",)),  # 12 of 12.19 warps: they come in fours
        (1024, 96, 0, 0, ("registers",)),  # cannot be launched
    ],
)
def test_blocks_on_a_hopper_sm(threads, registers, smem_bytes, blocks, limiters):
    result = occupancy(HOPPER, threads, registers, smem_bytes)
    assert result.blocks == blocks
    assert result.limiters == limiters


def test_occupancy_is_warps_over_warps():
    result = occupancy(HOPPER, threads=256, registers=128, smem_bytes=16384)
    assert (result.resident_warps, result.most_warps, result.fraction) == (16, 64, 0.25)
    assert result.registers_of_warp == 4096
    assert result.smem_bytes_of_block == 16384 + 1024


def test_other_architectures_have_limits_of_their_own():
    assert sm_limits("sm_89").threads == 1536
    assert sm_limits("sm_90") == HOPPER
    assert sm_limits("sm_75").reserved_smem_bytes == 0
    assert sm_limits("sm_42") is None
    assert sm_limits("hopper") is None


def test_unused_shared_memory_limits_nothing():
    limits = SmLimits(threads=2048, blocks=32, smem_bytes=1)
    assert occupancy(limits, 64, 16, 0).blocks == 32
