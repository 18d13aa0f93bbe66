"""Asynchronous copies of 16 bytes through L1, for data that several blocks of an SM read.

Other copies of 16 bytes go around it (`copy_async`). A matrix that is the same for a whole batch
lies in a few slices of L2: a thousand blocks that fetch it from there at once wait for each other.
Source: PTX ISA, "cp.async", cache operators .ca and .cg.
"""

from __future__ import annotations

from numba.core import config as _config

if _config.ENABLE_CUDASIM:
    from dxgemm.handwritten.parts import simulated_memory

    copy_async_cached = simulated_memory.copy_async
    copy_async_part_cached = simulated_memory.copy_async_part
else:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.extending import intrinsic
    from numba.cuda.typing import signature

    from dxgemm.handwritten.parts.intrinsics import inline_ptx, literal

    @intrinsic
    def copy_async_cached(typing_context, size, target, target_offset, source):
        """Start copying `size` bytes (4, 8 or 16) from global to shared memory, through L1."""
        count, start = literal(size), literal(target_offset)

        def generate(context, builder, sig, args):
            text = f"cp.async.ca.shared.global [$0+{start}], [$1], {count};"
            inline_ptx(builder, ir.VoidType(), text, "r,l,~{memory}", [args[1], args[3]])
            return context.get_dummy_value()

        return signature(types.void, size, types.int32, target_offset, types.int64), generate

    @intrinsic
    def copy_async_part_cached(typing_context, size, target, target_offset, source, count):
        """`intrinsics.copy_async_part`, through L1."""
        full, start = literal(size), literal(target_offset)

        def generate(context, builder, sig, args):
            text = f"cp.async.ca.shared.global [$0+{start}], [$1], {full}, $2;"
            operands = [args[1], args[3], args[4]]
            inline_ptx(builder, ir.VoidType(), text, "r,l,r,~{memory}", operands)
            return context.get_dummy_value()

        result = signature(types.void, size, types.int32, target_offset, types.int64, types.int32)
        return result, generate
