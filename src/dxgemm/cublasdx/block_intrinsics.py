"""Block products as numba intrinsics: one multiplies, one stores sums from registers.

As in `intrinsics`, the storage in the calling thread's frame is gone once the linker has inlined
everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba.cuda import types
from numba.cuda.cgutils import alloca_once, get_or_insert_function, pack_array
from numba.cuda.extending import intrinsic
from numba.cuda.typing import signature

from dxgemm.cublasdx.intrinsics import GLOBAL, struct_of, struct_type
from dxgemm.cublasdx.mathdx import BlockFunctions

_byte, _int32, _int64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_pointer, _void = _byte.as_pointer(), ir.VoidType()


class BlockIntrinsics(NamedTuple):
    """Intrinsics that a kernel calls; `make_block_intrinsics` describes each."""

    multiply_matrices: Any
    store_sums: Any


def make_block_intrinsics(
    functions: BlockFunctions, element: Any, b_start: int, pairs: Sequence[tuple[int, int]]
) -> BlockIntrinsics:
    """Make the intrinsics for one build of device functions.

    Args:
        functions: the device functions.
        element: numba's type of a, b and the sums.
        b_start: offset of b in the block's shared memory, in bytes; a comes first.
        pairs: pairs of a thread's sums that are expected to be neighbours in a row, the first in an
            even column. If they are not, sums are stored one by one.
    """
    count = functions.fragment_size
    sums = types.UniTuple(element, count)
    if sorted(index for pair in pairs for index in pair) != list(range(count)):
        raise ValueError(f"{pairs} are not the {count} sums of a thread, each once")

    def call(builder: Any, name: str, *arguments: Any) -> None:
        kind = ir.FunctionType(_void, [argument.type for argument in arguments])
        function = get_or_insert_function(builder.module, kind, functions.symbols[name])
        builder.call(function, arguments)

    def tensor(builder: Any, pointer: Any) -> Any:
        return struct_of(builder, struct_type("struct.libmathdx_tensor_0s_0s", _pointer), pointer)

    def rows(builder: Any, address: Any, stride: Any) -> Any:
        """Struct of a matrix in global memory."""
        strides = ir.ArrayType(_int64, 1)
        struct = struct_type("struct.libmathdx_tensor_0s_1s", _pointer, strides)
        pointer = builder.inttoptr(address, _byte.as_pointer(GLOBAL))
        pointer = builder.addrspacecast(pointer, _pointer)
        return struct_of(builder, struct, pointer, struct_of(builder, strides, stride))

    @intrinsic
    def multiply_matrices(typing_context, smem, a, a_stride, b, b_stride):
        """Multiply a and b; return the elements of the product that the thread has.

        Args:
            smem: shared memory of a and b, an array.
            a, b: byte addresses of the first elements.
            a_stride, b_stride: elements from one row to the next.
        """

        def generate(context, builder, sig, args):
            smem, a, a_stride, b, b_stride = args
            shared = context.make_array(sig.args[0])(context, builder, smem).data
            shared = builder.bitcast(shared, _byte.as_pointer(shared.type.addrspace))
            if shared.type != _pointer:
                shared = builder.addrspacecast(shared, _pointer)
            a_smem = tensor(builder, shared)
            b_smem = tensor(builder, builder.gep(shared, [_int32(b_start)]))
            fragment = alloca_once(builder, ir.ArrayType(_byte, functions.fragment.size))
            fragment.align = functions.fragment.alignment
            kind = context.get_value_type(element)
            elements = builder.bitcast(fragment, kind.as_pointer())
            places = [builder.gep(elements, [_int32(i)]) for i in range(count)]
            call(builder, "copy_a", rows(builder, a, a_stride), a_smem)
            call(builder, "copy_b", rows(builder, b, b_stride), b_smem)
            for place in places:
                builder.store(kind(0.0), place)
            call(builder, "wait")
            registers = tensor(builder, builder.bitcast(fragment, _pointer))
            call(builder, "execute", a_smem, b_smem, registers)
            return pack_array(builder, [builder.load(place) for place in places])

        return signature(sums, smem, *(types.int64,) * 4), generate

    def place(builder: Any, index: int) -> list[Any]:
        """Row and column of one of the thread's sums: a register and a constant after linking."""
        storage = [alloca_once(builder, _int32) for _ in range(3)]
        builder.store(_int32(index), storage[0])
        call(builder, "coordinates", *storage)
        return [builder.load(coordinate) for coordinate in storage[1:]]

    def are_neighbours(builder: Any, places: Sequence[Any]) -> Any:
        """True if all pairs are neighbours in a row: a constant after linking."""
        answer = ir.Constant(ir.IntType(1), 1)
        for left, right in pairs:
            (row, col), (next_row, next_col) = places[left], places[right]
            for found, expected in (
                (next_row, row),
                (builder.sub(next_col, col), _int32(1)),
                (builder.and_(col, _int32(1)), _int32(0)),
            ):
                answer = builder.and_(answer, builder.icmp_signed("==", found, expected))
        return answer

    @intrinsic
    def store_sums(typing_context, acc, alpha, beta, c, c_stride, out, out_stride):
        """Store out = alpha acc + beta c; c is read only if beta is not 0.

        Two neighbours are stored at a time if the thread's sums and the rows of c and out permit.

        Args:
            acc: the result of `multiply_matrices`.
            alpha, beta: the factors.
            c, out: byte addresses of the first elements.
            c_stride, out_stride: elements from one row to the next.
        """

        def generate(context, builder, sig, args):
            acc, alpha, beta, c, c_stride, out, out_stride = args
            kind = context.get_value_type(element)
            item_bytes = context.get_abi_sizeof(kind)
            places = [place(builder, i) for i in range(count)]
            reads_c = builder.fcmp_unordered("!=", beta, kind(0.0))

            def bytes_of(elements: Any) -> Any:
                return builder.mul(elements, _int64(item_bytes))

            def first_of(matrix: Any, stride: Any) -> Any:
                """Address of the thread's first element."""
                row, col = (builder.sext(index, _int64) for index in places[0])
                return builder.add(matrix, bytes_of(builder.add(builder.mul(row, stride), col)))

            def at(first: Any, stride: Any, index: int, accessed: Any) -> Any:
                """Address of another element, a constant distance from the first."""
                row, col = (
                    bytes_of(builder.sext(builder.sub(there, here), _int64))
                    for there, here in zip(places[index], places[0], strict=True)
                )
                address = builder.add(builder.add(first, builder.mul(row, stride)), col)
                return builder.inttoptr(address, accessed.as_pointer(GLOBAL))

            def store(groups: Sequence[tuple[int, ...]]) -> None:
                """Store each group of sums with one access; all loads of c precede the stores."""
                width = len(groups[0])
                accessed = ir.VectorType(kind, width)
                alignment = width * item_bytes

                def put(group: tuple[int, ...], old: Any = None) -> None:
                    stored = ir.Constant(accessed, ir.Undefined)
                    for i, index in enumerate(group):
                        value = builder.fmul(alpha, builder.extract_value(acc, index))
                        if old is not None:
                            added = builder.extract_element(old, _int32(i))
                            value = builder.fma(beta, added, value)
                        stored = builder.insert_element(stored, value, _int32(i))
                    target = at(out_first, out_stride, group[0], accessed)
                    builder.store(stored, target, align=alignment)

                with builder.if_else(reads_c) as (adds, replaces):
                    with adds:
                        sources = [at(c_first, c_stride, group[0], accessed) for group in groups]
                        old = [builder.load(source, align=alignment) for source in sources]
                        for group, values in zip(groups, old, strict=True):
                            put(group, values)
                    with replaces:
                        for group in groups:
                            put(group)

            out_first, c_first = first_of(out, out_stride), first_of(c, c_stride)
            # The OR of all addresses is a multiple of two elements only if each of them is.
            starts = builder.or_(out, bytes_of(out_stride))
            of_c = builder.or_(c, bytes_of(c_stride))
            starts = builder.or_(starts, builder.select(reads_c, of_c, _int64(0)))
            odd = builder.and_(starts, _int64(2 * item_bytes - 1))
            are_aligned = builder.icmp_signed("==", odd, _int64(0))
            in_pairs = builder.and_(are_neighbours(builder, places), are_aligned)
            with builder.if_else(in_pairs) as (paired, single):
                with paired:
                    store(pairs)
                with single:
                    store([(i,) for i in range(count)])
            return context.get_dummy_value()

        arguments = (sums, element, element, *(types.int64,) * 4)
        return signature(types.void, *arguments), generate

    return BlockIntrinsics(multiply_matrices, store_sums)
