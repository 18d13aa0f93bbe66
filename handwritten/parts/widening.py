"""Elements narrower than their sums: float16 and bfloat16 to float32 and back; sums to bool.

Kernels see float16 and bfloat16 as 16 bits. NaN stays NaN, subnormals are kept, and values are
rounded to nearest, ties to even. So are float32 that an epilogue turns into int8; beyond -128 and
127 these are clamped, and NaN is 0.
Source: IEEE 754, "Roundings to nearest"; bfloat16 is the upper half of float32. PTX ISA, "cvt".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import config as _config

from dxgemm.handwritten.parts.operands import HALVES

BFLOAT16_NAN = 0x7FFF

if _config.ENABLE_CUDASIM:

    def _widen_float16(bits: Any) -> Any:
        return np.float32(np.uint16(bits).view(np.float16))

    def _widen_bfloat16(bits: Any) -> Any:
        return np.uint32(int(bits) << 16).view(np.float32)

    def _narrow_float16(value: Any) -> Any:
        return np.float16(value).view(np.uint16)

    def _narrow_bfloat16(value: Any) -> Any:
        if np.isnan(value):
            return np.uint16(BFLOAT16_NAN)
        bits = int(np.float32(value).view(np.uint32))
        return np.uint16((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)

    def _narrow_int8(value: Any) -> Any:
        return np.int8(0 if np.isnan(value) else np.clip(np.rint(value), -128, 127))

    def _is_nonzero(value: Any) -> Any:
        return np.uint8(value != 0)

    def view_as(scalar: Any, pointer: Any) -> Any:
        return pointer

else:
    from llvmlite import ir
    from numba import cuda
    from numba.cuda import types
    from numba.cuda.extending import intrinsic
    from numba.cuda.typing import signature

    from dxgemm.handwritten.parts.intrinsics import inline_ptx

    _float, _half = ir.FloatType(), ir.HalfType()
    _int8, _int16, _int32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)

    @cuda.jit(device=True, forceinline=True)
    def _is_nonzero(value):
        return np.uint8(value != 0)

    @intrinsic
    def _widen_float16(typing_context, bits):
        def generate(context, builder, sig, args):
            return builder.fpext(builder.bitcast(args[0], _half), _float)

        return signature(types.float32, types.uint16), generate

    @intrinsic
    def _widen_bfloat16(typing_context, bits):
        def generate(context, builder, sig, args):
            upper = builder.shl(builder.zext(args[0], _int32), _int32(16))
            return builder.bitcast(upper, _float)

        return signature(types.float32, types.uint16), generate

    @intrinsic
    def _narrow_float16(typing_context, value):
        def generate(context, builder, sig, args):
            return builder.bitcast(builder.fptrunc(args[0], _half), _int16)

        return signature(types.uint16, types.float32), generate

    @intrinsic
    def _narrow_bfloat16(typing_context, value):
        def generate(context, builder, sig, args):
            bits = builder.bitcast(args[0], _int32)
            is_odd = builder.and_(builder.lshr(bits, _int32(16)), _int32(1))
            rounded = builder.add(builder.add(bits, _int32(0x7FFF)), is_odd)
            upper = builder.trunc(builder.lshr(rounded, _int32(16)), _int16)
            is_nan = builder.fcmp_unordered("uno", args[0], args[0])
            return builder.select(is_nan, _int16(BFLOAT16_NAN), upper)

        return signature(types.uint16, types.float32), generate

    @intrinsic
    def _narrow_int8(typing_context, value):
        def generate(context, builder, sig, args):
            text = (
                "{ .reg .s32 whole; cvt.rni.s32.f32 whole, $1; "
                "max.s32 whole, whole, -128; min.s32 $0, whole, 127; }"
            )
            return builder.trunc(inline_ptx(builder, _int32, text, "=r,f", list(args)), _int8)

        return signature(types.int8, types.float32), generate

    @intrinsic
    def view_as(typing_context, scalar, pointer):
        """An operand as the elements it holds, whatever its pointer's type says."""
        element = scalar.instance_type

        def generate(context, builder, sig, args):
            return builder.bitcast(args[1], context.get_value_type(element).as_pointer())

        return signature(types.CPointer(element), scalar, pointer), generate


# By dtype: an element to the type of its sums, and a sum to an element.
WIDEN = {"float16": _widen_float16, "bfloat16": _widen_bfloat16}
NARROW = {
    "float16": _narrow_float16,
    "bfloat16": _narrow_bfloat16,
    "int8": _narrow_int8,
    "bool": _is_nonzero,
}


def stored_type(dtype: str) -> Any:
    """Type of the elements that kernels see: uint16 for half precision, uint8 for bool."""
    if dtype in HALVES:
        return np.uint16
    return np.uint8 if dtype == "bool" else np.dtype(dtype).type
