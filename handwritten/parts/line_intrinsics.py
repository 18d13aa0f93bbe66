"""Intrinsics of `line_tiles` and `batch_lines`: matrices for `mma.sync`, accesses by predicate.

Source: PTX ISA, "ldmatrix", "prmt", "shf".
"""

from __future__ import annotations

import itertools

from llvmlite import ir
from numba.cuda import types
from numba.cuda.cgutils import pack_array
from numba.cuda.extending import intrinsic
from numba.cuda.typing import signature

from dxgemm.handwritten.parts.intrinsics import computed, inline_ptx, literal, statement, unpack

_WORDS = 4  # of a chunk
_int32 = ir.IntType(32)


@intrinsic
def load_matrices(typing_context, is_transposed, address, offset):
    """Four matrices of 8 lines of 16 bytes; each lane gives the address of a line."""
    suffix = ".trans" if literal(is_transposed) else ""
    text = (
        f"ldmatrix.sync.aligned.m8n8.x4{suffix}.shared.b16 "
        f"{{$0, $1, $2, $3}}, [$4+{literal(offset)}];"
    )
    result = types.UniTuple(types.int32, 4)

    def generate(context, builder, sig, args):
        registers = ir.LiteralStructType([_int32] * 4)
        loaded = inline_ptx(builder, registers, text, "=r,=r,=r,=r,r", [args[1]])
        return pack_array(builder, unpack(builder, loaded, 4))

    return signature(result, is_transposed, types.int32, offset), generate


@intrinsic
def load_item(typing_context, item_bytes, address, is_inside):
    """The bits of an element in global memory; 0, and no access, if it is outside."""
    kind = {1: "u8", 2: "u16", 4: "u32"}[literal(item_bytes)]
    text = (
        "{ .reg .pred inside; setp.ne.s32 inside, $2, 0; mov.u32 $0, 0; "
        f"@inside ld.global.nc.{kind} $0, [$1]; }}"
    )

    def generate(context, builder, sig, args):
        function = ir.FunctionType(_int32, [args[1].type, _int32])
        return builder.call(ir.InlineAsm(function, text, "=&r,l,r", False), list(args[1:]))

    return signature(types.int32, item_bytes, types.int64, types.int32), generate


@intrinsic
def copy_async_if(typing_context, size, is_cached, target, offset, source, count, is_wanted):
    """`copy_async_part` where is_wanted, without a branch; 16 bytes go through L1 if is_cached."""
    way = "ca" if literal(is_cached) or literal(size) < 16 else "cg"
    text = (
        "{ .reg .pred wanted; setp.ne.s32 wanted, $3, 0; @wanted "
        f"cp.async.{way}.shared.global [$0+{literal(offset)}], [$1], {literal(size)}, $2; }}"
    )
    address = types.int32, offset, types.int64
    result = signature(types.void, size, is_cached, *address, types.int32, types.int32)
    return result, statement(text, "r,l,r,r", 2, 4, 5, 6)


@intrinsic
def store_chunk_if(typing_context, target, offset, words, is_wanted):
    """Store four words to 16 bytes of shared memory where is_wanted, without a branch."""
    text = (
        "{ .reg .pred wanted; setp.ne.s32 wanted, $5, 0; "
        f"@wanted st.shared.v4.b32 [$0+{literal(offset)}], {{$1, $2, $3, $4}}; }}"
    )
    result = signature(types.void, types.int32, offset, words, types.int32)
    return result, statement(text, "r,r,r,r,r,r", 0, 2, 3)


@intrinsic
def store_word_if(typing_context, address, offset, word, is_wanted):
    """Store a word to global memory where is_wanted, without a branch."""
    text = (
        "{ .reg .pred wanted; setp.ne.s32 wanted, $2, 0; "
        f"@wanted st.global.b32 [$0+{literal(offset)}], $1; }}"
    )
    result = signature(types.void, types.int64, offset, types.int32, types.int32)
    return result, statement(text, "l,r,r", 0, 2, 3)


@computed(types.int32, types.int32, types.int32, types.int32)
def permute_bytes(builder, first, second, selector):
    """Four of the eight bytes of two words, each named by four bits of the selector."""
    function = ir.FunctionType(_int32, [_int32] * 3)
    permutation = ir.InlineAsm(function, "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", False)
    return builder.call(permutation, [first, second, selector])


@intrinsic
def transpose_bytes(typing_context, words):
    """Four words of the bytes 0 to 3 of four words, in their order."""

    def generate(context, builder, sig, args):
        function = ir.FunctionType(_int32, [_int32] * 3)
        text = "prmt.b32 $0, $1, $2, $3;"
        permutation = ir.InlineAsm(function, text, "=r,r,r,r", False)

        def permute(selector, first, second):
            return builder.call(permutation, [first, second, _int32(selector)])

        values = unpack(builder, args[0], 4)
        low = [permute(0x5140, *values[i : i + 2]) for i in (0, 2)]  # bytes 0 and 1 of a pair
        high = [permute(0x7362, *values[i : i + 2]) for i in (0, 2)]
        turned = [permute(s, *pairs) for pairs in (low, high) for s in (0x5410, 0x7632)]
        return pack_array(builder, turned)

    return signature(words, words), generate


@intrinsic
def shift_words(typing_context, words, shift):
    """Words 0 to 3 of eight, after these are shifted by so many bytes, 0 to 15, to the front."""
    result = types.UniTuple(types.int32, _WORDS)

    def generate(context, builder, sig, args):
        values = unpack(builder, args[0], 2 * _WORDS)
        for words_on in (2, 1):
            bit = builder.and_(args[1], _int32(4 * words_on))
            is_on = builder.icmp_unsigned("!=", bit, _int32(0))
            pairs = zip(values, values[words_on:], strict=False)
            values = [builder.select(is_on, later, value) for value, later in pairs]
        bits = builder.shl(builder.and_(args[1], _int32(3)), _int32(3))
        function = ir.FunctionType(_int32, [_int32] * 3)
        funnel = ir.InlineAsm(function, "shf.r.wrap.b32 $0, $1, $2, $3;", "=r,r,r,r", False)
        pairs = itertools.pairwise(values)
        return pack_array(builder, [builder.call(funnel, [*pair, bits]) for pair in pairs])

    return signature(result, words, types.int32), generate
