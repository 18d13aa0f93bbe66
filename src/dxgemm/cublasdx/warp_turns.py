"""Turns of warps at the float64 tensor cores, set in the control bits of a finished cubin.

Every instruction of a cubin encodes how many cycles its warp waits after it, and whether the warp
then gives up its turn. A DMMA takes 16 cycles. nvJitLink 13.0 makes the warp wait for 15 of them at
once, which requires that it gives up its turn. nvJitLink 13.1 never does: the warp waits for 11
cycles, and for the others after an instruction that does nothing. If the warps of two blocks share
a tensor core, that costs a tenth of the speed. Here the long wait is restored. The results, the
total wait of a warp and its barriers stay the same.
Source: Jia et al., "Dissecting the NVIDIA Volta GPU architecture via microbenchmarking" (2018), for
the places of the bits; DeepSeek's DeepGEMM sets the same ones in its FP8 kernels.
"""

from __future__ import annotations

import struct
from io import BytesIO

_OPCODE, _DMMA = 0xFFF, 0x23F
_IDLE = (0x0000_003F_3F3F_F290, 0x0FFF_E03F)  # @!UPT UIADD3 URZ, URZ, URZ, URZ, but for the bits

# Bits of the upper half of an instruction: cycles to wait, whether the turn is kept, and which
# operands stay cached for the warp's next instruction, unless another warp comes in between.
_WAIT, _KEEP, _REUSE = 0xF << 41, 1 << 45, 0xF << 58
_CONTROL = ((1 << 21) - 1) << 41
LONGEST_WAIT = 15
HOPPER = 90  # other GPUs were not measured


def take_turns(cubin: bytes) -> bytes:
    """Rewrite a cubin for Hopper so that warps give up their turns while they wait for a DMMA."""
    from elftools.elf.elffile import ELFFile

    elf = ELFFile(BytesIO(cubin))
    # The compute capability, times ten: the lowest byte, and from CUDA 13 on the second one.
    if HOPPER not in (elf["e_flags"] & 0xFF, elf["e_flags"] >> 8 & 0xFF):
        return cubin
    code = bytearray(cubin)
    for section in elf.iter_sections():
        if section.name.startswith(".text."):
            start = section["sh_offset"]
            halves = struct.unpack_from(f"<{section['sh_size'] // 8}Q", code, start)
            lower, upper = halves[::2], list(halves[1::2])
            if any(half & _OPCODE == _DMMA for half in lower):
                _lengthen_waits(lower, upper)
                mixed = (half for pair in zip(lower, upper, strict=True) for half in pair)
                struct.pack_into(f"<{len(halves)}Q", code, start, *mixed)
    return bytes(code)


def _lengthen_waits(lower: tuple[int, ...], upper: list[int]) -> None:
    """Move cycles from the instructions that do nothing to the one before them."""
    for index, half in enumerate(lower):
        if half & _OPCODE == _DMMA:
            upper[index] &= ~_REUSE
    index = 0
    while index < len(lower):
        end = index + 1
        while end < len(lower) and _is_idle(lower[end], upper[end]):
            end += 1
        idle = end - index - 1
        if idle:
            cycles = sum(_wait(half) for half in upper[index:end])
            first = min(LONGEST_WAIT, cycles - idle)
            upper[index] = upper[index] & ~(_WAIT | _KEEP | _REUSE) | first << 41
            for other in range(index + 1, end):
                # The rest of the wait, less one cycle for each idle instruction that follows.
                cycles -= _wait(upper[other - 1])
                left = min(_wait(upper[other]), cycles - (end - other - 1))
                upper[other] = upper[other] & ~_WAIT | left << 41
        index = end


def _is_idle(lower: int, upper: int) -> bool:
    return (lower, upper & ~_CONTROL) == _IDLE


def _wait(upper: int) -> int:
    return (upper & _WAIT) >> 41
