"""Elements narrower than their sums: floats of 16 and 8 bits to float32 and back; sums to bool.

Kernels see float16 and bfloat16 as 16 bits, float8 as 8. NaN stays NaN, subnormals are kept, and
values are rounded to nearest, ties to even. float8 saturates: a value beyond its largest finite
number, infinity too, becomes that. So does int8, which an epilogue makes of float32; its NaN is 0.
Source: IEEE 754, "Roundings to nearest"; bfloat16 is the upper half of float32. PTX ISA, "cvt".
P. Micikevicius et al., "FP8 formats for deep learning", arXiv:2209.05433: e5m2 is the upper half of
float16, e4m3 has no infinities and one NaN.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.core import config as _config

from dxgemm.handwritten.parts.operands import FLOAT8_KINDS, HALVES

BFLOAT16_NAN = 0x7FFF
# e4m3 moved to float16's first exponent bits is its value, divided by this.
E4M3_BIAS, E4M3_NAN, SIGN = 256.0, 0x7F, 0x80
FLOAT8_NAN = 0x7F


class Float8(NamedTuple):
    """A format of 8 bits as float32 is rounded to it.

    Attributes:
        shift: bits of float32's mantissa beyond its own.
        bias: exponent bits of float32 less those of the same number, instead of its own.
        largest, least: bits of its largest and its least normal number in float32.
        magic: float32 whose last bit counts its subnormal numbers.
    """

    shift: int
    bias: int
    largest: int
    least: int
    magic: float


def _float32_bits(value: Any) -> int:
    return int(np.float32(value).view(np.uint32))


FLOAT8_FORMATS = {
    "e4m3": Float8(20, 120 << 3, _float32_bits(448), _float32_bits(2.0**-6), 2.0**14),
    "e5m2": Float8(21, 112 << 2, _float32_bits(57344), _float32_bits(2.0**-14), 2.0**7),
}

if _config.ENABLE_CUDASIM:

    def _widen_float16(bits: Any) -> Any:
        return np.float32(np.uint16(bits).view(np.float16))

    def _widen_bfloat16(bits: Any) -> Any:
        return np.uint32(int(bits) << 16).view(np.float32)

    def _widen_e5m2(bits: Any) -> Any:
        return _widen_float16(int(bits) << 8)

    def _widen_e4m3(bits: Any) -> Any:
        if bits & E4M3_NAN == E4M3_NAN:
            return np.float32(np.nan)
        half = (int(bits) & SIGN) << 8 | (int(bits) & E4M3_NAN) << 7
        return np.float32(_widen_float16(half) * E4M3_BIAS)

    def _narrow_float16(value: Any) -> Any:
        return np.float16(value).view(np.uint16)

    def _narrow_bfloat16(value: Any) -> Any:
        if np.isnan(value):
            return np.uint16(BFLOAT16_NAN)
        bits = int(np.float32(value).view(np.uint32))
        return np.uint16((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)

    def _make_narrow_float8(kind: str) -> Any:
        shift, bias, largest, least, magic = FLOAT8_FORMATS[kind]

        def narrow(value: Any) -> Any:
            if np.isnan(value):
                return np.uint8(FLOAT8_NAN)
            bits = _float32_bits(value)
            size = min(bits & 0x7FFFFFFF, largest)
            if size < least:
                absolute = np.uint32(size).view(np.float32)
                code = _float32_bits(absolute + np.float32(magic)) - _float32_bits(magic)
            else:
                code = (size + (1 << shift - 1) - 1 + (size >> shift & 1) >> shift) - bias
            return np.uint8(code | bits >> 24 & SIGN)

        return narrow

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
    from numba.cuda.core.targetconfig import ConfigStack
    from numba.cuda.extending import intrinsic
    from numba.cuda.typing import signature

    from dxgemm.handwritten.parts.intrinsics import computed, inline_ptx

    _float, _half = ir.FloatType(), ir.HalfType()
    _int8, _int16, _int32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)

    @cuda.jit(device=True, forceinline=True)
    def _is_nonzero(value):
        return np.uint8(value != 0)

    @computed(types.float32, types.uint16)
    def _widen_float16(builder, bits):
        return builder.fpext(builder.bitcast(bits, _half), _float)

    @computed(types.float32, types.uint16)
    def _widen_bfloat16(builder, bits):
        upper = builder.shl(builder.zext(bits, _int32), _int32(16))
        return builder.bitcast(upper, _float)

    @computed(types.float32, types.uint8)
    def _widen_e5m2(builder, bits):
        half = builder.shl(builder.zext(bits, _int16), _int16(8))
        return builder.fpext(builder.bitcast(half, _half), _float)

    @computed(types.float32, types.uint8)
    def _widen_e4m3(builder, bits):
        word = builder.zext(bits, _int16)
        size = builder.and_(word, _int16(E4M3_NAN))
        sign = builder.shl(builder.and_(word, _int16(SIGN)), _int16(8))
        half = builder.or_(sign, builder.shl(size, _int16(7)))
        value = builder.fpext(builder.bitcast(half, _half), _float)
        value = builder.fmul(value, ir.Constant(_float, E4M3_BIAS))
        is_nan = builder.icmp_unsigned("==", size, _int16(E4M3_NAN))
        return builder.select(is_nan, ir.Constant(_float, float("nan")), value)

    @computed(types.uint16, types.float32)
    def _narrow_float16(builder, value):
        return builder.bitcast(builder.fptrunc(value, _half), _int16)

    @computed(types.uint16, types.float32)
    def _narrow_bfloat16(builder, value):
        bits = builder.bitcast(value, _int32)
        is_odd = builder.and_(builder.lshr(bits, _int32(16)), _int32(1))
        rounded = builder.add(builder.add(bits, _int32(0x7FFF)), is_odd)
        upper = builder.trunc(builder.lshr(rounded, _int32(16)), _int16)
        is_nan = builder.fcmp_unordered("uno", value, value)
        return builder.select(is_nan, _int16(BFLOAT16_NAN), upper)

    def float8_bits(builder: Any, kind: str, value: Any) -> Any:
        """Code of a float32 in a format of 8 bits, as the low bits of an int32."""
        if ConfigStack().top().compute_capability >= (8, 9):
            text = (
                f"{{ .reg .b16 pair; cvt.rn.satfinite.{kind}x2.f32 pair, $1, $1; "
                "cvt.u32.u16 $0, pair; }"
            )
            return builder.and_(inline_ptx(builder, _int32, text, "=r,f", [value]), _int32(0xFF))
        shift, bias, largest, least, magic = FLOAT8_FORMATS[kind]
        bits = builder.bitcast(value, _int32)
        size = builder.and_(bits, _int32(0x7FFFFFFF))
        is_large = builder.icmp_unsigned(">", size, _int32(largest))
        size = builder.select(is_large, _int32(largest), size)
        is_odd = builder.and_(builder.lshr(size, _int32(shift)), _int32(1))
        rounded = builder.add(builder.add(size, _int32((1 << shift - 1) - 1)), is_odd)
        code = builder.sub(builder.lshr(rounded, _int32(shift)), _int32(bias))
        counted = builder.fadd(builder.bitcast(size, _float), ir.Constant(_float, magic))
        few = builder.sub(builder.bitcast(counted, _int32), _int32(_float32_bits(magic)))
        is_subnormal = builder.icmp_unsigned("<", size, _int32(least))
        code = builder.select(is_subnormal, few, code)
        sign = builder.and_(builder.lshr(bits, _int32(24)), _int32(SIGN))
        is_nan = builder.fcmp_unordered("uno", value, value)
        return builder.select(is_nan, _int32(FLOAT8_NAN), builder.or_(code, sign))

    def _make_narrow_float8(kind: str) -> Any:
        @computed(types.uint8, types.float32)
        def narrow(builder, value):
            return builder.trunc(float8_bits(builder, kind, value), _int8)

        return narrow

    @computed(types.int8, types.float32)
    def _narrow_int8(builder, value):
        text = (
            "{ .reg .s32 whole; cvt.rni.s32.f32 whole, $1; "
            "max.s32 whole, whole, -128; min.s32 $0, whole, 127; }"
        )
        return builder.trunc(inline_ptx(builder, _int32, text, "=r,f", [value]), _int8)

    @intrinsic
    def view_as(typing_context, scalar, pointer):
        """An operand as the elements it holds, whatever its pointer's type says."""
        element = scalar.instance_type

        def generate(context, builder, sig, args):
            return builder.bitcast(args[1], context.get_value_type(element).as_pointer())

        return signature(types.CPointer(element), scalar, pointer), generate


# By dtype: an element to the type of its sums, and a sum to an element.
WIDEN = {
    "float16": _widen_float16, "bfloat16": _widen_bfloat16,
    "float8_e4m3fn": _widen_e4m3, "float8_e5m2": _widen_e5m2,
}  # fmt: skip
NARROW = {
    "float16": _narrow_float16,
    "bfloat16": _narrow_bfloat16,
    "int8": _narrow_int8,
    "bool": _is_nonzero,
    **{dtype: _make_narrow_float8(kind) for dtype, kind in FLOAT8_KINDS.items()},
}


def stored_type(dtype: str) -> Any:
    """Type of the elements that kernels see: uint16 for half precision, uint8 for float8, bool."""
    if dtype in HALVES:
        return np.uint16
    return np.uint8 if dtype == "bool" or dtype in FLOAT8_KINDS else np.dtype(dtype).type
