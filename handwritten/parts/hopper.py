"""Instructions that only Hopper has: barriers that count bytes, bulk tensor copies (TMA), wgmma.

Each intrinsic is one PTX instruction, with the moves that it needs. Shared memory is addressed in
bytes, and so are barriers, which are eight bytes each. Arguments that the instruction encodes
(`kind`, `count`, `pending` and the like) must be literals.

    barrier      init_barrier, end_barrier, publish_barriers, publish_shared, expect_bytes, arrive,
                 arrive_at, wait_barrier, sync_warpgroup, sync_threads, meet_cluster
    TMA          tensor_map, prefetch_tensor_map, copy_box, multicast_box
                 write_tensor_map, limit_tensor_map, publish_tensor_maps, acquire_tensor_map
    wgmma        begin_wgmma, wgmma, wgmma_of_two, wgmma_anew, commit_wgmma, wait_wgmma,
                 wait_wgmma_of
    registers    limit_registers
    numbers      pack_pair, unpack_pair: two 16-bit floats as one register
                 pack_quad: four bytes as one register; store_byte: stores the first of them
    matrices     store_columns

Source: PTX ISA, "mbarrier", "cp.async.bulk.tensor", "tensormap.replace", "Asynchronous Warpgroup
Level Matrix Instructions".
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.cgutils import pack_array
from numba.cuda.core.targetconfig import ConfigStack
from numba.cuda.extending import intrinsic
from numba.cuda.typing import signature

from dxgemm.handwritten.parts.intrinsics import (
    inline_ptx,
    instruction,
    literal,
    statement,
    unpack,
)
from dxgemm.handwritten.parts.operands import FLOAT8_KINDS
from dxgemm.handwritten.parts.widening import float8_bits

_int32, _int64, _float = ir.IntType(32), ir.IntType(64), ir.FloatType()
_MEMORY = "~{memory}"  # keeps LLVM from moving accesses to memory across the instruction


# init_barrier(barrier, arrivals): each phase of the barrier completes after `arrivals` arrivals and
# after all bytes expected in the phase.
init_barrier = instruction(
    "mbarrier.init.shared::cta.b64 [$0], $1;", "r,r", types.int32, types.int32
)
# end_barrier(barrier): makes its memory ordinary again, or that of another barrier.
end_barrier = instruction("mbarrier.inval.shared::cta.b64 [$0];", "r", types.int32)
# publish_barriers(): makes barriers just initialised visible to TMA.
publish_barriers = instruction("fence.mbarrier_init.release.cluster;")
# publish_shared(): makes this thread's writes to shared memory visible to wgmma and TMA.
publish_shared = instruction("fence.proxy.async.shared::cta;")
# sync_warpgroup(number): wait for the 128 threads that use this named barrier, 1 to 15.
sync_warpgroup = instruction("barrier.sync $0, 128;", "r", types.int32)
# sync_threads(number, count): the same for so many threads, a multiple of 32.
sync_threads = instruction("barrier.sync $0, $1;", "r,r", types.int32, types.int32)
# meet_cluster(): wait for all threads of the cluster. It does not order memory accesses: with that,
# each block would wait about a microsecond for its writes to reach L2.
meet_cluster = instruction("barrier.cluster.arrive.relaxed; barrier.cluster.wait;")
# expect_bytes(barrier, count): arrive, and make the phase wait for `count` bytes from TMA.
expect_bytes = instruction(
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "r,r", types.int32, types.int32
)
arrive = instruction("mbarrier.arrive.shared::cta.b64 _, [$0];", "r", types.int32)
# arrive_at(barrier): arrive at a barrier of another block, given its address in the cluster.
arrive_at = instruction("mbarrier.arrive.shared::cluster.b64 _, [$0];", "r", types.int32)
# wait_barrier(barrier, parity): wait until the phase of this parity (0, 1, 0, ...) is complete. For
# a fresh barrier the phase before the first one, of parity 1, counts as complete.
wait_barrier = instruction(
    "{ .reg .pred complete; WAIT: mbarrier.try_wait.parity.shared::cta.b64 complete, [$0], $1; "
    "@complete bra DONE; bra WAIT; DONE: }",
    "r,r",
    types.int32,
    types.int32,
)

# TMA reads the map for a copy: prefetching it saves that latency once.
prefetch_tensor_map = instruction("prefetch.tensormap [$0];", "l", types.int64)


@intrinsic
def tensor_map(typing_context, name):
    """Address of the tensor map in the kernel parameter of this name.

    numba has no parameters of this kind: the build adds them to the kernel's PTX.
    """
    symbol = literal(name)

    def generate(context, builder, sig, args):
        text = f"{{ .reg .b64 address; mov.b64 address, {symbol}; cvta.param.u64 $0, address; }}"
        return inline_ptx(builder, _int64, text, "=l", [])

    return signature(types.int64, name), generate


@intrinsic
def write_tensor_map(typing_context, target, source):
    """Copy a tensor map from a kernel parameter to global memory, aligned to 128 bytes."""
    moves = " ".join(
        f"ld.v2.b64 {{low, high}}, [$1+{at}]; st.global.v2.b64 [$0+{at}], {{low, high}};"
        for at in range(0, 128, 16)
    )
    copy = statement(f"{{ .reg .b64 low, high; {moves} }}", "l,l", 0, 1)
    return signature(types.void, types.int64, types.int64), copy


@intrinsic
def limit_tensor_map(typing_context, target, index, size):
    """Set the size of a tensor map in global memory to `size` elements along one dimension."""
    field = f"tensormap.replace.tile.global_dim.global.b1024.b32 [$0], {literal(index)}, $1;"
    return signature(types.void, types.int64, index, types.int32), statement(field, "l,r", 0, 2)


# publish_tensor_maps(): makes tensor maps that this thread wrote to global memory visible to TMA,
# after an acquire_tensor_map().
publish_tensor_maps = instruction("fence.proxy.tensormap::generic.release.gpu;")
acquire_tensor_map = instruction(
    "fence.proxy.tensormap::generic.acquire.gpu [$0], 128;", "l", types.int64
)


def _copy_box(coordinates: Any, blocks: int) -> Any:
    """Argument types and generator of `copy_box` to the blocks of a mask; 0 is this block alone."""
    count = coordinates.count
    names = ", ".join(f"${3 + i}" for i in range(count))
    form, mask = (".multicast::cluster", ", blocks") if blocks else ("", "")
    text = (
        f"{{ .reg .b16 blocks; mov.b16 blocks, {blocks}; "
        f"cp.async.bulk.tensor.{count}d.shared::cluster.global.mbarrier::complete_tx::bytes{form} "
        f"[$0], [$1, {{{names}}}], [$2]{mask}; }}"
    )
    arguments = types.int32, types.int64, types.int32, types.UniTuple(types.int32, count)
    return arguments, statement(text, "r,l,r" + ",r" * count, *range(4))


@intrinsic
def copy_box(typing_context, target, source, barrier, coordinates):
    """Start copying the box at these coordinates, innermost first, from `source` to `target`.

    source is the address of a tensor map, target a byte address in shared memory. Elements outside
    the tensor are zero-filled. The barrier counts all bytes of the box, the zeros too.
    """
    arguments, generate = _copy_box(coordinates, 0)
    return signature(types.void, *arguments), generate


@intrinsic
def multicast_box(typing_context, target, source, barrier, coordinates, blocks):
    """`copy_box` to those blocks of the cluster whose bit is set in `blocks` (a literal).

    The box arrives at the same address in each block, and the barrier at the same address in each
    block counts its bytes.
    """
    arguments, generate = _copy_box(coordinates, literal(blocks))
    return signature(types.void, *arguments, blocks), generate


# begin_wgmma(): needed before the first wgmma, and after ordinary instructions wrote its registers.
begin_wgmma = instruction("wgmma.fence.sync.aligned;")
# commit_wgmma(): makes the wgmmas since the last commit a group; groups complete in order.
commit_wgmma = instruction("wgmma.commit_group.sync.aligned;")


def _register(registers: Any) -> tuple[str, Any]:
    """The constraint and the LLVM type of each register of a tuple."""
    return ("r", _int32) if registers.dtype == types.int32 else ("f", _float)


def _registers_of(a: Any) -> int:
    """Number of registers of a left operand; 0 for a descriptor."""
    return a.count if isinstance(a, types.UniTuple) else 0


def _wgmma(
    kind: str,
    highs: tuple[int, int],
    acc_type: Any,
    a_count: int,
    transposes: tuple[Any, ...],
    adds: bool = True,
) -> Any:
    """The generator of wgmma for args (acc, a, b); a is a descriptor or `a_count` registers.

    highs are the upper halves of the descriptors of a and b. Without `adds`, the sum starts from
    zero, and acc is not used.
    """
    count = acc_type.count
    first = 2 * count if adds else count  # operands are numbered: results, sums tied to them, a, b
    is_integer, factors = "8" in kind, kind if "." in kind else f"{kind}.{kind}"
    is_byte = is_integer or kind.startswith("e")
    depth = 32 if is_byte else {"tf32": 8}.get(kind, 16)
    # Operands are not negated; 16-bit operands may be transposed.
    flags = "" if is_integer else ", 1, 1"
    if not is_byte and kind != "tf32":
        flags += "".join(f", {int(literal(flag))}" for flag in transposes)
    acc_names = ", ".join(f"${i}" for i in range(count))
    a_names = [f"${first + i}" for i in range(max(a_count, 1))]
    a_name = f"{{{', '.join(a_names)}}}" if a_count else "a"
    make_a = "" if a_count else f"mov.b64 a, {{{a_names[0]}, {highs[0]}}};"
    text = (
        f"{{ .reg .b64 a, b; {make_a} mov.b64 b, {{${first + len(a_names)}, {highs[1]}}}; "
        f"wgmma.mma_async.sync.aligned.m64n{2 * count}k{depth}."
        f"{'s32' if is_integer else 'f32'}.{factors} "
        f"{{{acc_names}}}, {a_name}, b, {int(adds)}{flags}; }}"
    )
    constraint, register = _register(acc_type)
    constraints = [f"={constraint}"] * count + [str(i) for i in range(first - count)]
    constraints += ["r"] * (len(a_names) + 1)

    def generate(context, builder, acc, a, b):
        registers = unpack(builder, acc, count) if adds else []
        values = unpack(builder, a, a_count) if a_count else [a]
        registers += [builder.bitcast(value, _int32) for value in values]
        result = inline_ptx(
            builder,
            ir.LiteralStructType([register] * count),
            text,
            ",".join(constraints),
            [*registers, b],
        )
        return pack_array(builder, unpack(builder, result, count))

    return generate


@intrinsic
def wgmma(typing_context, kind, high, acc, a, b, a_is_transposed, b_is_transposed):
    """acc + a @ b over one step of k, by a warpgroup of 128 threads; ready after a wait.

    `kind` is "f16", "bf16", "tf32", "e4m3", "e5m2", or "s8", "u8", whose sums are int32, or two
    names of bytes with a point between. a is 64 x depth and b is depth x n, both in shared
    memory, with a depth of 32 bytes. Each is given by the low half of its descriptor, and
    `high` is the upper half of both; see `descriptor_halves`. Operands are K-major, or MN-major
    if transposed, which tf32 and bytes do not support. acc holds n / 2 elements per thread: element
    4 * j + 2 * h + e is in row 16 * warp + lane // 4 + 8 * h and column 8 * j + lane % 4 * 2 + e.
    a may be four registers per thread instead, which are read until the wait. Bytes j of register
    2 * i + h are in row 16 * warp + lane // 4 + 8 * h, at byte 16 * i + lane % 4 * 4 + j of k.
    """
    transposes = (a_is_transposed, b_is_transposed)[_registers_of(a) > 0 :]
    multiply = _wgmma(literal(kind), (literal(high),) * 2, acc, _registers_of(a), transposes)

    def generate(context, builder, sig, args):
        return multiply(context, builder, args[2], args[3], args[4])

    flags = (a_is_transposed, b_is_transposed)
    return signature(acc, kind, high, acc, a, types.int32, *flags), generate


@intrinsic
def wgmma_anew(typing_context, kind, high, count, a, b, a_is_transposed, b_is_transposed):
    """`wgmma` of which the `count` sums, of float32, are new ones."""
    sums, registers = types.UniTuple(types.float32, literal(count)), _registers_of(a)
    transposes = (a_is_transposed, b_is_transposed)[registers > 0 :]
    multiply = _wgmma(literal(kind), (literal(high),) * 2, sums, registers, transposes, adds=False)

    def generate(context, builder, sig, args):
        return multiply(context, builder, None, args[3], args[4])

    flags = (a_is_transposed, b_is_transposed)
    return signature(sums, kind, high, count, a, types.int32, *flags), generate


@intrinsic
def store_columns(typing_context, address, offset, values):
    """Write four 8 x 8 matrices of 16-bit elements to shared memory, column by column.

    Each register holds two neighbours of a row, as an mma leaves them. Each lane gives the address
    of 16 bytes: lane 8 * i + j gives that of column j of matrix i.
    """
    text = (
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 "
        f"[$0+{literal(offset)}], {{$1, $2, $3, $4}};"
    )
    return signature(types.void, types.int32, offset, values), statement(text, "r,r,r,r,r", 0, 2)


@intrinsic
def wgmma_of_two(typing_context, kind, a_high, b_high, acc, a, b, a_is_transposed, b_is_transposed):
    """`wgmma` with a different swizzle per operand: each has its own upper descriptor half."""
    flags = (a_is_transposed, b_is_transposed)
    multiply = _wgmma(literal(kind), (literal(a_high), literal(b_high)), acc, 0, flags)

    def generate(context, builder, sig, args):
        return multiply(context, builder, args[3], args[4], args[5])

    return signature(acc, kind, a_high, b_high, acc, types.int32, types.int32, *flags), generate


def descriptor_halves(
    leading_bytes: int, stride_bytes: int, row_bytes: int = 128
) -> tuple[int, int]:
    """Halves of wgmma's 64-bit descriptor of a matrix in shared memory, without its address.

    The matrix consists of rows of 128, 64 or 32 bytes in TMA's swizzle of that size, or of rows of
    16 bytes without a swizzle. Eight rows form a group, which starts at a multiple of its size.
    `stride_bytes` is the distance from one group to the next. A transposed operand wider than such
    a row continues `leading_bytes` further on; with rows of 16 bytes, `leading_bytes` is its
    distance from one group to the next instead.

    Returns:
        The low half and the upper half. address // 16 must be added to the low half (only its
        lowest 14 bits: in a cluster, the bits above hold the block's rank).
    """
    swizzle = {16: 0, 128: 1, 64: 2, 32: 3}[row_bytes] << 30
    return leading_bytes // 16 << 16, swizzle | stride_bytes // 16


@intrinsic
def wait_wgmma(typing_context, pending):
    """Wait until at most `pending` groups of wgmmas are incomplete."""
    text = f"wgmma.wait_group.sync.aligned {literal(pending)};"
    return signature(types.void, pending), statement(text)


@intrinsic
def wait_wgmma_of(typing_context, pending, registers):
    """`wait_wgmma` for wgmmas that write or read these registers; use the registers it returns.

    The result keeps the compiler from reading sums too early, and from reusing the registers of an
    `a` while they are still being multiplied.
    """
    groups, count = literal(pending), registers.count
    constraint, register = _register(registers)

    def generate(context, builder, sig, args):
        constraints = [f"={constraint}"] * count + [str(i) for i in range(count)] + [_MEMORY]
        result = inline_ptx(
            builder,
            ir.LiteralStructType([register] * count),
            f"wgmma.wait_group.sync.aligned {groups};",
            ",".join(constraints),
            unpack(builder, args[1], count),
        )
        return pack_array(builder, unpack(builder, result, count))

    return signature(registers, pending, registers), generate


@intrinsic
def limit_registers(typing_context, action, count):
    """Set the number of registers per thread of a warpgroup, a multiple of 8.

    action is "dec" or "inc"; "inc" waits until other warpgroups of the block have freed enough.
    """
    text = f"setmaxnreg.{literal(action)}.sync.aligned.u32 {literal(count)};"
    return signature(types.void, action, count), statement(text)


@intrinsic
def pack_pair(typing_context, kind, low, high):
    """Two float32, rounded to "f16" or "bf16", as one register; `low` is first in memory.

    Or saturated to "e4m3" or "e5m2", as the lower half of a register.
    """
    name = literal(kind)
    text = f"cvt.rn.{name}x2.f32 $0, $2, $1;"
    if name in FLOAT8_KINDS.values():
        text = (
            f"{{ .reg .b16 pair; cvt.rn.satfinite.{name}x2.f32 pair, $2, $1; "
            "cvt.u32.u16 $0, pair; }"
        )

    def generate(context, builder, sig, args):
        if name in FLOAT8_KINDS.values() and ConfigStack().top().compute_capability < (8, 9):
            low, high = (float8_bits(builder, name, value) for value in args[1:])
            return builder.or_(low, builder.shl(high, _int32(8)))
        return inline_ptx(builder, _int32, text, "=r,f,f", list(args[1:]))

    return signature(types.int32, kind, types.float32, types.float32), generate


@intrinsic
def pack_quad(typing_context, kind, first, second, third, fourth):
    """Four float32 as "s8", "e4m3" or "e5m2" in one register; `first` is first in memory.

    The numbers are rounded to nearest, ties to even, and clamped; NaN becomes 0 as int8.
    """
    name = literal(kind)
    rounded = " ".join(f"cvt.rni.s32.f32 whole{i}, ${i + 1};" for i in range(4))
    text = (
        f"{{ .reg .s32 whole<4>; .reg .b32 upper; {rounded} "
        "cvt.pack.sat.s8.s32.b32 upper, whole3, whole2, 0; "
        "cvt.pack.sat.s8.s32.b32 $0, whole1, whole0, upper; }"
    )
    if name != "s8":
        convert = f"cvt.rn.satfinite.{name}x2.f32"
        text = (
            f"{{ .reg .b16 lower, upper; {convert} lower, $2, $1; {convert} upper, $4, $3; "
            "mov.b32 $0, {lower, upper}; }"
        )

    def generate(context, builder, sig, args):
        if name == "s8" or ConfigStack().top().compute_capability >= (8, 9):
            return inline_ptx(builder, _int32, text, "=r,f,f,f,f", list(args[1:]))
        word = _int32(0)
        for i, value in enumerate(args[1:]):
            code = float8_bits(builder, name, value)
            word = builder.or_(word, builder.shl(code, _int32(8 * i)))
        return word

    return signature(types.int32, kind, *[types.float32] * 4), generate


# store_byte(address, word): store the lowest byte to global memory.
store_byte = instruction("st.global.b8 [$0], $1;", "l,r", types.int64, types.int32)


@intrinsic
def unpack_pair(typing_context, kind, pair):
    """The two 16-bit floats of a register as float32, in memory order."""
    convert = {
        "f16": "cvt.f32.f16 $0, low; cvt.f32.f16 $1, high;",
        # A bfloat16 is the upper half of a float32.
        "bf16": "mov.b32 $0, {zero, low}; mov.b32 $1, {zero, high};",
    }[literal(kind)]
    text = f"{{ .reg .b16 low, high, zero; mov.b16 zero, 0; mov.b32 {{low, high}}, $2; {convert} }}"

    def generate(context, builder, sig, args):
        pair_type = ir.LiteralStructType([_float] * 2)
        result = inline_ptx(builder, pair_type, text, "=f,=f,r", [args[1]])
        return pack_array(builder, unpack(builder, result, 2))

    return signature(types.UniTuple(types.float32, 2), kind, types.int32), generate
