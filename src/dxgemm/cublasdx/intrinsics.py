"""Device functions of a pipeline as numba intrinsics.

The functions take C structs by value and pointers to storage of their caller. One intrinsic
allocates the storage in the calling thread's frame, makes all calls and returns a tuple of
registers: once the linker has inlined everything, no storage is left in memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from numba.cuda import types
from numba.cuda.cgutils import alloca_once, get_or_insert_function, pack_array
from numba.cuda.extending import intrinsic
from numba.cuda.typing import signature

from dxgemm.compiler import PARAMETER_BLOCK
from dxgemm.cublasdx.mathdx import ITEM_BYTES, DeviceFunctions, Storage
from dxgemm.handwritten.parts.intrinsics import inline_ptx, literal

_byte, _int32, _int64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_pointer, _void = _byte.as_pointer(), ir.VoidType()
GLOBAL, SHARED = 1, 3  # LLVM's address spaces


def _widen_bfloat16(builder: Any, bits: Any) -> Any:
    upper = builder.shl(builder.zext(bits, _int32), _int32(16))
    return builder.bitcast(upper, ir.FloatType())


def _widen_float16(builder: Any, bits: Any) -> Any:
    return builder.fpext(builder.bitcast(bits, ir.HalfType()), ir.FloatType())


# The bits of an element of a or b to a value in the type of the sums, by dtype.
WIDEN = {
    "float16": _widen_float16,
    "bfloat16": _widen_bfloat16,
    "int8": lambda builder, bits: builder.sext(bits, _int32),
}


def struct_type(name: str, *members: Any) -> Any:
    """Make a named struct type: the linker recognises the library's structs by their names."""
    struct = ir.global_context.get_identified_type(name)
    if struct.is_opaque:
        struct.set_body(*members)
    return struct


def struct_of(builder: Any, struct: Any, *members: Any) -> Any:
    value = ir.Constant(struct, ir.Undefined)
    for index, member in enumerate(members):
        value = builder.insert_value(value, member, index)
    return value


@intrinsic
def meet_cluster(typing_context):
    """Barrier over all threads of a cluster, whose warps may be diverged.

    cuBLASDx leaves warps diverged if a thread has waited alone. Then `cluster_sync` of
    handwritten/parts/intrinsics.py, which is `.aligned`, is undefined.
    """

    def generate(context, builder, sig, args):
        text = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"
        inline_ptx(builder, _void, text, "~{memory}", [])
        return context.get_dummy_value()

    return signature(types.void), generate


class Intrinsics(NamedTuple):
    """Intrinsics that a kernel calls; `make_intrinsics` describes each."""

    multiply_tile: Any
    multiply_boxes: Any
    add_products: Any
    put_tile: Any
    add_tile: Any


def make_intrinsics(
    functions: DeviceFunctions, element: Any, dtype: str, start: int = 0
) -> Intrinsics:
    """Make the intrinsics for one build of device functions.

    Args:
        functions: the device functions.
        element: numba's type of the sums.
        dtype: dtype of a and b, for `add_products`.
        start: offset of the pipeline in the block's shared memory, in bytes.
    """
    calls = _Calls(functions, element)
    return Intrinsics(
        _make_multiply_tile(calls, start),
        _make_multiply_boxes(calls, start),
        _make_add_products(calls, dtype),
        _make_put(calls, adds=False),
        _make_put(calls, adds=True),
    )


class _Calls:
    """Calls of the device functions, and arithmetic on the thread's sums, as LLVM IR."""

    def __init__(self, functions: DeviceFunctions, element: Any) -> None:
        self.functions, self.element = functions, element
        self.count = functions.fragment_size
        self.sums = types.UniTuple(element, self.count)
        self._is_integer = isinstance(element, types.Integer)

    def frame(self, builder: Any, storage: Storage) -> Any:
        place = alloca_once(builder, ir.ArrayType(_byte, storage.size))
        place.align = storage.alignment
        return builder.bitcast(place, _pointer)

    def call(self, builder: Any, name: str, *arguments: Any) -> None:
        kind = ir.FunctionType(_void, [argument.type for argument in arguments])
        function = get_or_insert_function(builder.module, kind, self.functions.symbols[name])
        builder.call(function, arguments)

    def sums_of(
        self, context: Any, builder: Any, device: Any, array: Any, start: int, indices: Any
    ) -> Any:
        """Run a tile through the pipeline, and return the thread's sums."""
        kind, value = array
        shared = context.make_array(kind)(context, builder, value).data
        shared = builder.bitcast(shared, _byte.as_pointer(shared.type.addrspace))
        if shared.type != _pointer:
            shared = builder.addrspacecast(shared, _pointer)
        shared = builder.gep(shared, [_int32(start)])
        tile = object_at(builder, self.frame(builder, self.functions.tile_pipeline))
        tensor_kind = "struct.libmathdx_tensor_0s_0s"
        storage = self.frame(builder, self.functions.accumulator)
        accumulator = object_at(builder, storage, tensor_kind)
        registers = self.frame(builder, self.functions.fragment)
        fragment = object_at(builder, registers, tensor_kind)
        places = []
        for along in indices:
            place = alloca_once(builder, ir.ArrayType(_int32, len(along)))
            pointer = builder.bitcast(place, _int32.as_pointer())
            for i, index in enumerate(along):
                builder.store(index, builder.gep(pointer, [_int32(i)]))
            places.append(pointer)
        self.call(builder, "create_tile_pipeline", device, tile, shared, *places)
        self.call(builder, "create_accumulator", accumulator)
        self.call(builder, "execute", tile, accumulator)
        self.call(builder, "copy", accumulator, fragment)
        self.call(builder, "destroy", tile)
        elements = builder.bitcast(registers, context.get_value_type(self.element).as_pointer())
        addresses = (builder.gep(elements, [_int32(i)]) for i in range(self.count))
        return pack_array(builder, [builder.load(address) for address in addresses])

    def place(self, builder: Any, index: int) -> list[Any]:
        """Row and column of one of the thread's sums: a register and a constant after linking."""
        storage = [alloca_once(builder, _int32) for _ in range(3)]
        builder.store(_int32(index), storage[0])
        self.call(builder, "coordinates", *storage)
        return [builder.load(coordinate) for coordinate in storage[1:]]

    def multiplied(self, builder: Any, left: Any, right: Any) -> Any:
        return builder.mul(left, right) if self._is_integer else builder.fmul(left, right)

    def multiplied_and_added(self, builder: Any, left: Any, right: Any, added: Any) -> Any:
        if self._is_integer:
            return builder.add(builder.mul(left, right), added)
        return builder.fma(left, right, added)


def object_at(builder: Any, pointer: Any, kind: str = "struct.libmathdx_pipeline") -> Any:
    return struct_of(builder, struct_type(kind, _pointer), pointer)


def _tensor(builder: Any, address: Any, rows: Any, cols: Any, stride: Any) -> Any:
    shape, strides = ir.ArrayType(_int64, 2), ir.ArrayType(_int64, 1)
    struct = struct_type("struct.libmathdx_tensor_2s_1s", _pointer, shape, strides)
    pointer = builder.inttoptr(address, _pointer)
    extents = struct_of(builder, shape, rows, cols)
    return struct_of(builder, struct, pointer, extents, struct_of(builder, strides, stride))


def _make_multiply_tile(calls: _Calls, start: int) -> Any:
    @intrinsic
    def multiply_tile(typing_context, smem, k, a, a_rows, a_stride, b, b_cols, b_stride):
        """Multiply a tile of a and one of b over k; return the sums that the thread has.

        The pipeline is made here, for one tile.

        Args:
            smem: shared memory of the pipeline, an array.
            k: whole multiple of tile_k, at least as many as there are stages.
            a, b: byte addresses of the first elements.
            a_rows, b_cols: extents of the matrices from these elements on.
            a_stride, b_stride: elements from one row (or column) to the next.
        """

        def generate(context, builder, sig, args):
            smem, k, a, a_rows, a_stride, b, b_cols, b_stride = args
            device = object_at(builder, calls.frame(builder, calls.functions.device_pipeline))
            a_tensor = _tensor(builder, a, a_rows, k, a_stride)
            b_tensor = _tensor(builder, b, k, b_cols, b_stride)
            calls.call(builder, "create_device_pipeline", device, a_tensor, b_tensor)
            here = [[_int32(0)], [_int32(0)]]
            return calls.sums_of(context, builder, device, (sig.args[0], smem), start, here)

        return signature(calls.sums, smem, *(types.int64,) * 7), generate

    return multiply_tile


def _make_multiply_boxes(calls: _Calls, start: int) -> Any:
    @intrinsic
    def multiply_boxes(typing_context, smem, row_tile, col_tile, a_matrix, b_matrix):
        """Multiply like `multiply_tile`, with a pipeline from the host: the last parameter.

        Args:
            smem: shared memory of the pipeline, an array.
            row_tile, col_tile: row and column of the tile, in tiles.
            a_matrix, b_matrix: indices of the matrices in the batch.
        """

        def generate(context, builder, sig, args):
            smem, row_tile, col_tile, a_matrix, b_matrix = args
            text = f"{{ .reg .b64 t; mov.b64 t, {PARAMETER_BLOCK}; cvta.param.u64 $0, t; }}"
            address = inline_ptx(builder, _int64, text, "=l", [])
            device = object_at(builder, builder.inttoptr(address, _pointer))
            tile = [[row_tile, a_matrix], [col_tile, b_matrix]]
            return calls.sums_of(context, builder, device, (sig.args[0], smem), start, tile)

        return signature(calls.sums, smem, *(types.int32,) * 4), generate

    return multiply_boxes


def _make_add_products(calls: _Calls, dtype: str) -> Any:
    @intrinsic
    def add_products(typing_context, acc, a, a_stride, last_row, b, b_stride, last_col):
        """Add one column of a times one row of b to acc.

        Args:
            acc: the thread's sums.
            a, b: byte addresses of the first elements of the column and the row.
            a_stride, b_stride: bytes from one of their elements to the next.
            last_row, last_col: last indices that are read; sums beyond them are not stored.
        """

        def generate(context, builder, sig, args):
            acc, a, a_stride, last_row, b, b_stride, last_col = args
            kind = context.get_value_type(calls.element)
            bits = ir.IntType(8 * ITEM_BYTES[dtype])
            pointer = (bits if dtype in WIDEN else kind).as_pointer(GLOBAL)

            def loaded(base: Any, stride: Any, index: Any, last: Any) -> Any:
                index = builder.select(builder.icmp_signed("<", index, last), index, last)
                offset = builder.mul(builder.sext(index, _int64), stride)
                value = builder.load(builder.inttoptr(builder.add(base, offset), pointer))
                return WIDEN[dtype](builder, value) if dtype in WIDEN else value

            total = []
            for i in range(calls.count):
                row, col = calls.place(builder, i)
                a_value = loaded(a, a_stride, row, last_row)
                b_value = loaded(b, b_stride, col, last_col)
                before = builder.extract_value(acc, i)
                total.append(calls.multiplied_and_added(builder, a_value, b_value, before))
            return pack_array(builder, total)

        arguments = (types.int64, types.int64, types.int32)
        return signature(calls.sums, calls.sums, *arguments, *arguments), generate

    return add_products


def _make_put(calls: _Calls, adds: bool) -> Any:
    @intrinsic
    def put_tile(typing_context, smem, row_bytes, acc, alpha, skipped_rows, skipped_cols):
        """Store alpha times the thread's sums to shared memory, or add them to its contents.

        Args:
            smem: byte address of the tile's first element.
            row_bytes: bytes from one row to the next.
            acc, alpha: the sums and their factor.
            skipped_rows, skipped_cols: first rows and columns, which do not belong to the tile.
        """
        pitch = literal(row_bytes)

        def generate(context, builder, sig, args):
            smem, _, acc, alpha, skipped_rows, skipped_cols = args
            kind = context.get_value_type(calls.element)
            pointer = kind.as_pointer(SHARED)
            item_bytes = context.get_abi_sizeof(kind)

            def put(i: int, row: Any, col: Any) -> None:
                down, across = builder.mul(row, _int32(pitch)), builder.mul(col, _int32(item_bytes))
                address = builder.add(smem, builder.add(down, across))
                target = builder.inttoptr(address, pointer)
                value = builder.extract_value(acc, i)
                if adds:
                    before = builder.load(target)
                    value = calls.multiplied_and_added(builder, alpha, value, before)
                else:
                    value = calls.multiplied(builder, alpha, value)
                builder.store(value, target)

            def put_most() -> None:
                for i in range(calls.count):
                    row, col = calls.place(builder, i)
                    row, col = builder.sub(row, skipped_rows), builder.sub(col, skipped_cols)
                    either = builder.or_(row, col)  # negative if one of them is
                    with builder.if_then(builder.icmp_signed(">=", either, _int32(0))):
                        put(i, row, col)

            if adds:
                put_most()
                return context.get_dummy_value()
            skipped = builder.or_(skipped_rows, skipped_cols)
            with builder.if_else(builder.icmp_signed("==", skipped, _int32(0))) as (all, some):
                with all:
                    for i in range(calls.count):
                        put(i, *calls.place(builder, i))
                with some:
                    put_most()
            return context.get_dummy_value()

        arguments = (types.int32, row_bytes, calls.sums, calls.element, types.int32, types.int32)
        return signature(types.void, *arguments), generate

    return put_tile
