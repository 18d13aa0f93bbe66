"""Matrix multiplications of a warp: `mma.sync` on tensor cores, and the rounding they need.

One instruction multiplies 16 x 8 by 8 x 8 elements. Its operands are distributed over the registers
of the 32 lanes: with group = lane // 4 and member = lane % 4, a lane holds
    left   a0, a1: rows group and group + 8 in column member; a2, a3: those in column member + 4
    right  b0, b1: rows member and member + 4 of column group
    acc    c0, c1: columns 2 * member and 2 * member + 1 of row group; c2, c3: of row group + 8
Rows may be in any order if the result is stored in the same order; so may k, if both operands use
the same order. Half precision has pairs of k instead of single k: 16 x 16 by 16 x 8 elements, two
per register. Bytes have four k per register: 16 x 32 by 32 x 8.
Before Hopper, float64 takes four instructions of 8 x 4 by 4 x 8 elements. Their fragments are the
quarters of this one: groups of rows by halves of k.
Source: PTX ISA, "Matrix Fragments for mma.m16n8k8", types .f64 and .tf32, "mma.m16n8k16",
"mma.m16n8k32" (float8 from Ada on), and "Matrix Fragments for mma.m8n8k4", type .f64.
"""

from __future__ import annotations

from numba.core import config as _config

if _config.ENABLE_CUDASIM:
    from dxgemm.handwritten.parts import simulated_mma

    mma_tile, negated = simulated_mma.mma_tile, simulated_mma.negated
else:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.cgutils import pack_array
    from numba.cuda.core.targetconfig import ConfigStack
    from numba.cuda.extending import intrinsic
    from numba.cuda.typing import signature

    from dxgemm.handwritten.parts.intrinsics import literal, unpack
    from dxgemm.handwritten.parts.operands import FLOAT8, FLOAT8_KINDS

    # By kind: k per instruction, types of sums and operands, register constraint of operands.
    _INSTRUCTIONS = {
        "float64": (8, "f64.f64.f64.f64", "d"),
        "tf32": (8, "f32.tf32.tf32.f32", "r"),
        "float16": (16, "f32.f16.f16.f32", "r"),
        "bfloat16": (16, "f32.bf16.bf16.f32", "r"),
        "int8": (32, "s32.s8.s8.s32", "r"),
        "uint8": (32, "s32.u8.u8.s32", "r"),
        "int8 uint8": (32, "s32.s8.u8.s32", "r"),
        "uint8 int8": (32, "s32.u8.s8.s32", "r"),
    }
    for _dtype in FLOAT8:
        _factors = [FLOAT8_KINDS[factor] for factor in (_dtype.split(" ") * 2)[:2]]
        _INSTRUCTIONS[_dtype] = 32, f"f32.{'.'.join(_factors)}.f32", "r"
    # Quarters of a float64 instruction; those of the second half of k add to the first half's sums.
    _QUARTERS = " ".join(
        f"mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {registers};"
        for registers in (
            "{$0, $1}, {$4}, {$8}, {$10, $11}",
            "{$2, $3}, {$5}, {$8}, {$12, $13}",
            "{$0, $1}, {$6}, {$9}, {$0, $1}",
            "{$2, $3}, {$7}, {$9}, {$2, $3}",
        )
    )
    _CONSTRAINTS = {types.float64: "d", types.float32: "f", types.int32: "r"}

    @intrinsic
    def mma_tile(typing_context, kind, acc, left, right):
        """acc + left @ right of one warp, for fragments of several instructions' size.

        The fragments are flat register tuples: left holds a0 .. a3 for each 16 rows, right holds
        b0, b1 for each 8 columns, and acc holds c0 .. c3 for each pair of these, row by row.
        float64 is multiplied unchanged; TF32 are float32 that went through `round_to_tf32`;
        narrower types are packed into 32-bit registers.
        """
        rows, cols = left.count // 4, right.count // 2
        assert acc.count == rows * cols * 4
        depth, kinds, operand = _INSTRUCTIONS[literal(kind)]
        total = _CONSTRAINTS[acc.dtype]
        whole = (
            f"mma.sync.aligned.m16n8k{depth}.row.col.{kinds} "
            "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
        )
        inputs = [operand] * 6 + [total] * 4

        def generate(context, builder, sig, args):
            text, output = whole, f"={total}"
            if total == "d" and ConfigStack().top().compute_capability < (9, 0):
                text, output = _QUARTERS, "=&d"  # sums are written before all operands are read
            constraints = ",".join([output] * 4 + inputs)
            sums = unpack(builder, args[1], acc.count)
            a, b = unpack(builder, args[2], left.count), unpack(builder, args[3], right.count)
            register = sums[0].type
            result = ir.LiteralStructType([register] * 4)
            function = ir.FunctionType(result, [a[0].type] * 6 + [register] * 4)
            # Unlike `inline_ptx` it has no side effects, so LLVM may move it between the loads.
            instruction = ir.InlineAsm(function, text, constraints, False)
            for i in range(rows):
                # The columns run back and forth: consecutive instructions share an operand.
                for j in range(cols) if i % 2 == 0 else reversed(range(cols)):
                    operands = a[4 * i : 4 * i + 4] + b[2 * j : 2 * j + 2]
                    place = slice(4 * (i * cols + j), 4 * (i * cols + j) + 4)
                    product = builder.call(instruction, operands + sums[place])
                    sums[place] = unpack(builder, product, 4)
            return pack_array(builder, sums)

        return signature(acc, kind, acc, left, right), generate

    @intrinsic
    def negated(typing_context, value):
        """-value of a float64, by an integer instruction.

        The compiler would negate by an addition, in units that the tensor cores keep busy.
        """
        text = (
            "{.reg .b32 low, high; mov.b64 {low, high}, $1; xor.b32 high, high, 0x80000000; "
            "mov.b64 $0, {low, high};}"
        )

        def generate(context, builder, sig, args):
            function = ir.FunctionType(ir.DoubleType(), [ir.DoubleType()])
            return builder.call(ir.InlineAsm(function, text, "=d,d", False), args)

        return signature(types.float64, types.float64), generate

    @intrinsic
    def as_is(typing_context, values):
        """Return the values: replaces `round_to_tf32` for dtypes that are multiplied unrounded."""

        def generate(context, builder, sig, args):
            return args[0]

        return signature(values, values), generate

    @intrinsic
    def round_to_tf32(typing_context, values):
        """float32 rounded to the nearest TF32 (10 bits after the point), as bit patterns.

        Ties go away from zero. Without this rounding the tensor core truncates the bits, which
        doubles the error and biases it towards zero.
        """
        result = types.UniTuple(types.int32, values.count)

        def generate(context, builder, sig, args):
            function = ir.FunctionType(ir.IntType(32), [ir.FloatType()])
            rounding = ir.InlineAsm(function, "cvt.rna.tf32.f32 $0, $1;", "=r,f", False)
            rounded = [
                builder.call(rounding, [value]) for value in unpack(builder, args[0], values.count)
            ]
            return pack_array(builder, rounded)

        return signature(result, values), generate
