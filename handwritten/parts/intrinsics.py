"""Intrinsics for a fast GEMM: vector accesses, asynchronous copies, register tuples.

numba-cuda lacks them. Each intrinsic is one or a few instructions, written where the kernel calls
it. Arguments that are baked into the instruction (widths, byte offsets) must be literals; `unroll`
makes them so. A register tuple is a numba UniTuple: it never has an address, so it stays in
registers.

Two ways to name memory:
    an array or pointer and an index in elements, for loads and stores LLVM may reorder and combine;
    a byte address in a register and a literal offset, as the instruction encodes it.

numba's simulator runs the first kind (and the register tuples) as plain Python, the second one on
`simulated_memory`.
Source: PTX ISA, "Data Movement and Conversion Instructions" and "cp.async"; the CUDA C++
Programming Guide, "Distributed Shared Memory", for the cluster.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numba.core import config as _config


class ReturnError(Exception):
    """A function of an epilogue returns what is no result; `stage` is its index in the chain."""

    def __init__(self, stage: int, fault: str) -> None:
        super().__init__(f"stage {stage}: {fault}")
        self.stage, self.fault = stage, fault


if _config.ENABLE_CUDASIM:
    from numba.cuda.simulator.kernel import _get_kernel_context

    from dxgemm.handwritten.parts import simulated_integers, simulated_memory

    class _RunningKernel:
        """What `cuda` is inside a kernel: the simulator gives it to kernels alone."""

        def __getattr__(self, name: str) -> Any:
            return getattr(_get_kernel_context(), name)

    cuda: Any = _RunningKernel()
    below_2_31 = simulated_integers.below_2_31
    commit_copies = simulated_memory.commit_copies
    copy_async = simulated_memory.copy_async
    copy_async_part = simulated_memory.copy_async_part
    global_address = simulated_memory.global_address
    load_global = simulated_memory.load_global
    load_shared = simulated_memory.load_shared
    load_vectors = simulated_memory.load_vectors
    low_word = simulated_integers.low_word
    shared_address = simulated_memory.shared_address
    store_global = simulated_memory.store_global
    store_shared = simulated_memory.store_shared
    wait_copies = simulated_memory.wait_copies

    def device_function(function: Any) -> Any:
        return function

    def load_vector(scalar: Any, width: int, array: Any, index: Any) -> Any:
        return tuple(array[index + i] for i in range(width))

    read_vector = load_vector

    def store_vector(array: Any, index: Any, values: Any) -> None:
        for i, value in enumerate(values):
            array[index + i] = value

    def exactly(count: int, values: Any) -> Any:
        return values

    def given(stage: int, reals: int, value: Any) -> Any:
        return value

    def zeros(scalar: Any, count: int) -> Any:
        return (scalar(0),) * count

    def divide(dividend: Any, divisor: Any) -> Any:
        return simulated_integers.Int32(below_2_31(dividend) // below_2_31(divisor))

    def opaque(value: Any) -> Any:
        return value

    def sync_block() -> None:
        threading.current_thread().syncthreads()  # type: ignore[attr-defined]

    def _rounded(value: Any) -> Any:
        """The cast to the type of a value; sums of int8 wrap around."""
        return low_word if isinstance(value, simulated_integers.Int32) else type(value)

    def scaled(alpha: Any, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(scaled(alpha, one) for one in value)
        return _rounded(value)(alpha * value)

    multiplied = scaled

    def plus_scaled(total: Any, beta: Any, value: Any) -> Any:
        if isinstance(total, tuple):
            return tuple(plus_scaled(x, beta, y) for x, y in zip(total, value, strict=True))
        return _rounded(total)(total + beta * value)

    def complex_of(re: Any, im: Any) -> Any:
        return np.result_type(re, np.complex64).type(complex(re, im))

    def outer_product(acc: Any, a_frag: Any, b_frag: Any) -> Any:
        count = len(b_frag)
        return tuple(total + a_frag[i // count] * b_frag[i % count] for i, total in enumerate(acc))

    def float_bits(value: Any) -> Any:
        return np.float32(value).view(np.int32)

    def bits_float(bits: Any) -> Any:
        return np.int32(bits).view(np.float32)

    def upper_bits(value: Any) -> Any:
        return np.int32(np.float64(value).view(np.int64) >> 32)

    def upper_bits_double(bits: Any) -> Any:
        return (np.int64(bits) << 32).view(np.float64)

    def dot_bytes(data: Any, weights: Any, total: Any) -> Any:
        unsigned = np.uint32(data).tobytes()
        signed = np.frombuffer(np.int32(weights).tobytes(), np.int8)
        return np.int32(total + sum(x * int(y) for x, y in zip(unsigned, signed, strict=True)))

    def add_global(pointer: Any, value: Any) -> None:
        pointer[0] += value

    def add_scaled(total: Any, acc: Any, scale: Any) -> Any:
        return tuple(x + scale * y for x, y in zip(total, acc, strict=True))

else:
    from llvmlite import ir
    from numba import cuda, int32  # type: ignore[no-redef]
    from numba.cuda import types
    from numba.cuda.cgutils import pack_array
    from numba.cuda.core.errors import RequireLiteralValue
    from numba.cuda.extending import intrinsic
    from numba.cuda.typing import signature

    _int32, _int64 = ir.IntType(32), ir.IntType(64)
    _void = ir.VoidType()
    _GLOBAL, _SHARED = 1, 3  # LLVM's address spaces
    # PTX type and register constraint by numba type.
    _PTX_TYPES = {
        types.float32: ("f32", "f"),
        types.float64: ("f64", "d"),
        types.int32: ("b32", "r"),
        types.uint32: ("b32", "r"),
        types.uint16: ("b16", "h"),
        types.int64: ("b64", "l"),
    }

    def device_function(function: Any) -> Any:
        """Compiled into the kernel that calls it; the simulator calls it as it is."""
        return cuda.jit(device=True, forceinline=True)(function)

    @device_function
    def sync_block():
        """The barrier of a block, for device functions that the simulator runs too."""
        cuda.syncthreads()

    # The low 32 bits of an integer, as an int32. The simulator lets this cast alone cut bits off.
    low_word = int32

    @device_function
    def below_2_31(value):
        """The same number, which is not negative and below 2**31: divisions by it are short."""
        return value & 0x7FFFFFFF

    def literal(value: Any) -> Any:
        """The value of an argument that must be known when the kernel is compiled."""
        if not isinstance(value, types.Literal):
            raise RequireLiteralValue(value)
        return value.literal_value

    def inline_ptx(
        builder: Any, result: Any, text: str, constraints: str, arguments: list[Any]
    ) -> Any:
        """One volatile PTX statement; `result` is its LLVM type."""
        function = ir.FunctionType(result, [argument.type for argument in arguments])
        return builder.call(ir.InlineAsm(function, text, constraints, True), arguments)

    def unpack(builder: Any, aggregate: Any, count: int) -> list[Any]:
        return [builder.extract_value(aggregate, i) for i in range(count)]

    def _element(kind: Any) -> Any:
        """The type of a number, or of the registers of a tuple."""
        return kind.dtype if isinstance(kind, types.UniTuple) else kind

    def _for_each(builder: Any, kind: Any, function: Any, *values: Any) -> Any:
        """A function of numbers, or of the registers of tuples in turn."""
        if not isinstance(kind, types.UniTuple):
            return function(*values)
        columns = (unpack(builder, value, kind.count) for value in values)
        return pack_array(builder, [function(*row) for row in zip(*columns, strict=True)])

    def _data_pointer(context: Any, builder: Any, kind: Any, value: Any) -> Any:
        """The typed pointer of a shared array, in its own address space, or of a raw pointer."""
        if isinstance(kind, types.Array):
            pointer = context.make_array(kind)(context, builder, value).data
            space = _SHARED
        else:
            pointer, space = value, _GLOBAL
        return builder.addrspacecast(pointer, pointer.type.pointee.as_pointer(space))

    def _vector_pointer(
        context: Any, builder: Any, kind: Any, value: Any, index: Any, width: int
    ) -> Any:
        pointer = builder.gep(_data_pointer(context, builder, kind, value), [index])
        vector = ir.VectorType(pointer.type.pointee, width)
        return builder.bitcast(pointer, vector.as_pointer(pointer.type.addrspace)), vector

    @intrinsic
    def load_vector(typing_context, scalar, width, array, index):
        """`width` elements from `array[index]` on, in one access of up to 16 bytes.

        The address must be a multiple of its size.
        """
        count, element = literal(width), scalar.instance_type

        def generate(context, builder, sig, args):
            pointer, vector = _vector_pointer(
                context, builder, sig.args[2], args[2], args[3], count
            )
            size = context.get_abi_sizeof(vector.element) * count
            loaded = builder.load(pointer, align=size)
            return pack_array(
                builder, [builder.extract_element(loaded, _int32(i)) for i in range(count)]
            )

        return signature(types.UniTuple(element, count), scalar, width, array, index), generate

    @intrinsic
    def read_vector(typing_context, scalar, width, pointer, index):
        """`load_vector` from memory that no thread writes while the kernel runs.

        The compiler may then read ahead of earlier stores: many reads are on their way at a time.
        """
        count, element = literal(width), scalar.instance_type
        ptx_type, constraint = _PTX_TYPES[element]
        assert count in (1, 2, 4), "nvJitLink crashes on a vector of eight"

        def generate(context, builder, sig, args):
            register = context.get_value_type(element)
            address = builder.gep(args[2], [args[3]])
            names = [f"${i}" for i in range(count)]
            text = f"ld.global.nc.v{count}.{ptx_type} {{{', '.join(names)}}}, [${count}];"
            result = ir.LiteralStructType([register] * count)
            if count == 1:
                text, result = f"ld.global.nc.{ptx_type} $0, [$1];", register
            function = ir.FunctionType(result, [address.type])
            constraints = ",".join([f"={constraint}"] * count + ["l"])
            loaded = builder.call(ir.InlineAsm(function, text, constraints, False), [address])
            elements = [loaded] if count == 1 else unpack(builder, loaded, count)
            return pack_array(builder, elements)

        return signature(types.UniTuple(element, count), scalar, width, pointer, index), generate

    @intrinsic
    def store_vector(typing_context, array, index, values):
        """The elements of a register tuple to `array[index]` and on, in one access."""
        count = values.count

        def generate(context, builder, sig, args):
            pointer, vector = _vector_pointer(
                context, builder, sig.args[0], args[0], args[1], count
            )
            value = ir.Constant(vector, ir.Undefined)
            for i in range(count):
                value = builder.insert_element(value, builder.extract_value(args[2], i), _int32(i))
            size = context.get_abi_sizeof(vector.element) * count
            builder.store(value, pointer, align=size)
            return context.get_dummy_value()

        return signature(types.void, array, index, values), generate

    @intrinsic
    def exactly(typing_context, count, values):
        """The same tuple; the kernel does not compile if it has another number of elements."""
        if not isinstance(values, types.BaseTuple) or len(values) != literal(count):
            return None
        return signature(values, count, values), lambda context, builder, sig, args: args[1]

    @intrinsic
    def given(typing_context, stage, reals, value):
        """The same value; the kernel does not compile if it may be None, here or in a tuple.

        Nor does it if a part is complex whose bit in `reals` is 1.
        """
        parts = value.types if isinstance(value, types.BaseTuple) else (value,)
        for place, part in enumerate(parts):
            if isinstance(part, types.NoneType | types.Optional):
                raise ReturnError(literal(stage), "may return None; return a value on every path")
            if isinstance(part, types.Complex) and literal(reals) >> place & 1:
                fault = "returns a complex number, which is not real; return its real part"
                raise ReturnError(literal(stage), f"{fault} or magnitude")
        return signature(value, stage, reals, value), lambda context, builder, sig, args: args[2]

    @intrinsic
    def zeros(typing_context, scalar, count):
        """A register tuple of zeros."""
        result = types.UniTuple(scalar.instance_type, literal(count))

        def generate(context, builder, sig, args):
            return ir.Constant(context.get_value_type(result), None)

        return signature(result, scalar, count), generate

    @intrinsic
    def divide(typing_context, dividend, divisor):
        """The quotient of two int32, not negative.

        numba's own // divides in 64 bits. That is a subroutine, whose result the compiler does not
        know to be the same in all threads of a block, even if the operands are: what depends on
        it, such as the mainloop, is then compiled for threads that may diverge; and in a kernel
        that calls anything, ptxas makes wgmmas wait for each other.
        """

        def generate(context, builder, sig, args):
            return builder.udiv(*args)

        return signature(types.int32, types.int32, types.int32), generate

    @intrinsic
    def scaled(typing_context, alpha, value):
        """alpha * value, of one type, rounded by itself; of each register if value is a tuple.

        A plain product would be fused with an addition that follows, or not, as the compiler likes:
        one element could then have other bits in another kernel.
        """
        element = _element(value)

        def generate(context, builder, sig, args):
            def multiply(register):
                if isinstance(element, types.Integer):
                    return builder.mul(args[0], register)
                ptx_type, constraint = _PTX_TYPES[element]
                text, names = f"mul.rn.{ptx_type} $0, $1, $2;", ",".join([constraint] * 3)
                return inline_ptx(builder, register.type, text, f"={names}", [args[0], register])

            return _for_each(builder, value, multiply, args[1])

        return signature(value, element, value), generate

    @intrinsic
    def multiplied(typing_context, alpha, values):
        """alpha times each register of a tuple, by products that additions may be fused with."""

        def generate(context, builder, sig, args):
            is_integer = isinstance(values.dtype, types.Integer)
            multiply = builder.mul if is_integer else builder.fmul
            return _for_each(builder, values, lambda value: multiply(args[0], value), args[1])

        return signature(values, values.dtype, values), generate

    @intrinsic
    def plus_scaled(typing_context, total, beta, value):
        """total + beta * value, of one type, rounded once; of each register of two tuples."""
        element = _element(total)

        def generate(context, builder, sig, args):
            def add(addend, register):
                if isinstance(element, types.Integer):
                    return builder.add(addend, builder.mul(args[1], register))
                return builder.fma(args[1], register, addend)

            return _for_each(builder, total, add, args[0], args[2])

        return signature(total, total, element, total), generate

    @intrinsic
    def complex_of(typing_context, re, im):
        """The complex number of two parts, none of which is computed with."""
        result = types.complex64 if re == types.float32 else types.complex128

        def generate(context, builder, sig, args):
            number = context.make_complex(builder, sig.return_type)
            number.real, number.imag = args
            return number._getvalue()

        return signature(result, re, im), generate

    @intrinsic
    def opaque(typing_context, value):
        """The same integer, of which the compiler knows nothing.

        What is computed from it is computed where it is used, not ahead of a loop, where it would
        take registers.
        """

        def generate(context, builder, sig, args):
            (argument,) = args
            kind = "l" if argument.type.width == 64 else "r"
            text = f"mov.b{argument.type.width} $0, $1;"
            return inline_ptx(builder, argument.type, text, f"={kind},{kind}", [argument])

        return signature(value, value), generate

    @intrinsic
    def outer_product(typing_context, acc, a_frag, b_frag):
        """acc[i * len(b_frag) + j] + a_frag[i] * b_frag[j], each a fused multiply-add.

        Every other row runs backwards: neighbouring instructions then share an operand, which the
        register file need not deliver twice.
        """
        rows, cols = a_frag.count, b_frag.count
        assert acc.count == rows * cols

        def generate(context, builder, sig, args):
            total = unpack(builder, args[0], rows * cols)
            a, b = unpack(builder, args[1], rows), unpack(builder, args[2], cols)
            for i in range(rows):
                for j in range(cols) if i % 2 == 0 else reversed(range(cols)):
                    total[i * cols + j] = builder.fma(a[i], b[j], total[i * cols + j])
            return pack_array(builder, total)

        return signature(acc, acc, a_frag, b_frag), generate

    @intrinsic
    def add_scaled(typing_context, total, acc, scale):
        """total + scale * acc for each register of two tuples, rounded once."""
        count = total.count

        def generate(context, builder, sig, args):
            totals, addends = unpack(builder, args[0], count), unpack(builder, args[1], count)
            return pack_array(
                builder,
                [builder.fma(y, args[2], x) for x, y in zip(totals, addends, strict=True)],
            )

        return signature(total, total, acc, total.dtype), generate

    @intrinsic
    def float_bits(typing_context, value):
        """The bits of a float32."""

        def generate(context, builder, sig, args):
            return builder.bitcast(args[0], _int32)

        return signature(types.int32, types.float32), generate

    @intrinsic
    def bits_float(typing_context, bits):
        """The float32 of these bits."""

        def generate(context, builder, sig, args):
            return builder.bitcast(args[0], ir.FloatType())

        return signature(types.float32, types.int32), generate

    @intrinsic
    def upper_bits(typing_context, value):
        """The upper half of a float64's bits: sign, exponent and the first of the mantissa."""

        def generate(context, builder, sig, args):
            bits = builder.bitcast(args[0], _int64)
            return builder.trunc(builder.lshr(bits, _int64(32)), _int32)

        return signature(types.int32, types.float64), generate

    @intrinsic
    def upper_bits_double(typing_context, bits):
        """The float64 of these upper bits, the lower ones 0."""

        def generate(context, builder, sig, args):
            bits = builder.shl(builder.zext(args[0], _int64), _int64(32))
            return builder.bitcast(bits, ir.DoubleType())

        return signature(types.float64, types.int32), generate

    @intrinsic
    def dot_bytes(typing_context, data, weights, total):
        """total plus the products of four unsigned bytes, of data, and four signed, of weights."""

        def generate(context, builder, sig, args):
            function = ir.FunctionType(_int32, [_int32] * 3)
            text = "dp4a.u32.s32 $0, $1, $2, $3;"
            return builder.call(ir.InlineAsm(function, text, "=r,r,r,r", False), args)

        return signature(types.int32, types.uint32, types.int32, types.int32), generate

    @intrinsic
    def add_global(typing_context, pointer, value):
        """Add to an int32 in global memory, whatever other threads add at the time."""

        def generate(context, builder, sig, args):
            inline_ptx(builder, _void, "red.global.add.s32 [$0], $1;", "l,r,~{memory}", args)
            return context.get_dummy_value()

        return signature(types.void, types.CPointer(types.int32), types.int32), generate

    @intrinsic
    def shared_address(typing_context, array):
        """Byte address of a shared array, as instructions on shared memory take it."""

        def generate(context, builder, sig, args):
            pointer = _data_pointer(context, builder, sig.args[0], args[0])
            return builder.ptrtoint(pointer, _int32)

        return signature(types.int32, array), generate

    @intrinsic
    def global_address(typing_context, pointer):
        """Byte address of an operand, as instructions on global memory take it."""

        def generate(context, builder, sig, args):
            typed = _data_pointer(context, builder, sig.args[0], args[0])
            return builder.ptrtoint(typed, _int64)

        return signature(types.int64, pointer), generate

    def _load_registers(
        context: Any, builder: Any, element: Any, count: int, where: tuple[str, str, Any, int]
    ) -> list[Any]:
        """Load a vector; `where` is its space, the constraint of its address, this, an offset."""
        space, address_constraint, address, start = where
        ptx_type, constraint = _PTX_TYPES[element]
        register = context.get_value_type(element)
        if count == 1:
            text = f"ld.{space}.{ptx_type} $0, [$1+{start}];"
            constraints = f"={constraint},{address_constraint}"
            return [inline_ptx(builder, register, text, constraints, [address])]
        names = ", ".join(f"${i}" for i in range(count))
        text = f"ld.{space}.v{count}.{ptx_type} {{{names}}}, [${count}+{start}];"
        constraints = ",".join([f"={constraint}"] * count + [address_constraint])
        result = ir.LiteralStructType([register] * count)
        loaded = inline_ptx(builder, result, text, constraints, [address])
        return unpack(builder, loaded, count)

    def _make_load(space: str, address_constraint: str) -> Any:
        @intrinsic
        def load(typing_context, scalar, width, address, offset):
            count, start, element = literal(width), literal(offset), scalar.instance_type

            def generate(context, builder, sig, args):
                where = space, address_constraint, args[2], start
                return pack_array(builder, _load_registers(context, builder, element, count, where))

            result = types.UniTuple(element, count)
            return signature(result, scalar, width, address, offset), generate

        return load

    def _make_store(space: str, address_constraint: str) -> Any:
        @intrinsic
        def store(typing_context, address, offset, values):
            count, start = values.count, literal(offset)
            ptx_type, constraint = _PTX_TYPES[values.dtype]
            vector = f".v{count}" if count > 1 else ""

            def generate(context, builder, sig, args):
                names = ", ".join(f"${i + 1}" for i in range(count))
                inline_ptx(
                    builder,
                    _void,
                    f"st.{space}{vector}.{ptx_type} [$0+{start}], {{{names}}};",
                    ",".join([address_constraint] + [constraint] * count) + ",~{memory}",
                    [args[0], *unpack(builder, args[2], count)],
                )
                return context.get_dummy_value()

            return signature(types.void, address, offset, values), generate

        return store

    # load(scalar, width, address, offset) -> register tuple of `width`, from address + offset in
    # bytes; store(address, offset, values). Widths of up to 16 bytes, at a multiple of their size.
    load_shared, store_shared = _make_load("shared", "r"), _make_store("shared", "r")
    load_global, store_global = _make_load("global", "l"), _make_store("global", "l")
    load_cluster = _make_load("shared::cluster", "r")
    store_cluster = _make_store("shared::cluster", "r")

    @intrinsic
    def load_vectors(typing_context, scalar, width, address, offset, step, count):
        """`count` vectors from shared memory as one register tuple, `step` bytes apart."""
        vectors, between, start = literal(count), literal(step), literal(offset)
        number, element = literal(width), scalar.instance_type

        def generate(context, builder, sig, args):
            registers = []
            for i in range(vectors):
                where = "shared", "r", args[2], start + i * between
                registers += _load_registers(context, builder, element, number, where)
            return pack_array(builder, registers)

        result = types.UniTuple(element, number * vectors)
        return signature(result, scalar, width, address, offset, step, count), generate

    @intrinsic
    def copy_async(typing_context, size, target, target_offset, source):
        """Start copying `size` bytes (4, 8 or 16) from global to shared memory.

        16 bytes go around L1, which would only hold what shared memory is about to.
        """
        count, start = literal(size), literal(target_offset)

        def generate(context, builder, sig, args):
            text = f"cp.async.{'cg' if count == 16 else 'ca'}.shared.global [$0+{start}], [$1], "
            inline_ptx(builder, _void, f"{text}{count};", "r,l,~{memory}", [args[1], args[3]])
            return context.get_dummy_value()

        return signature(types.void, size, types.int32, target_offset, types.int64), generate

    @intrinsic
    def copy_async_part(typing_context, size, target, target_offset, source, count):
        """`copy_async` of `count` bytes (0 to `size`); the rest of `size` becomes zero.

        With a count of 0 nothing is read. With one between, what is behind `count` is not used, but
        the access still has all of `size`: compute-sanitizer wants it to lie in the operand.
        """
        full, start = literal(size), literal(target_offset)

        def generate(context, builder, sig, args):
            text = f"cp.async.{'cg' if full == 16 else 'ca'}.shared.global [$0+{start}], [$1], "
            operands = [args[1], args[3], args[4]]
            inline_ptx(builder, _void, f"{text}{full}, $2;", "r,l,r,~{memory}", operands)
            return context.get_dummy_value()

        result = signature(types.void, size, types.int32, target_offset, types.int64, types.int32)
        return result, generate

    def _make_statement(text: str) -> Any:
        @intrinsic
        def statement(typing_context):
            def generate(context, builder, sig, args):
                inline_ptx(builder, _void, text, "~{memory}", [])
                return context.get_dummy_value()

            return signature(types.void), generate

        return statement

    @intrinsic
    def prefetch_line(typing_context, address):
        """Ask the L2 cache for the line of this global address."""

        def generate(context, builder, sig, args):
            function = ir.FunctionType(ir.VoidType(), [_int64])
            prefetch = ir.InlineAsm(function, "prefetch.global.L2 [$0];", "l", True)
            builder.call(prefetch, args)
            return context.get_dummy_value()

        return signature(types.void, types.int64), generate

    # The copies started since the last commit become a group; groups complete in order.
    commit_copies = _make_statement("cp.async.commit_group;")

    @intrinsic
    def wait_copies(typing_context, pending):
        """Wait until at most `pending` of this thread's groups of copies are incomplete."""
        count = literal(pending)

        def generate(context, builder, sig, args):
            inline_ptx(builder, _void, f"cp.async.wait_group {count};", "~{memory}", [])
            return context.get_dummy_value()

        return signature(types.void, pending), generate

    # A barrier over all threads of a thread-block cluster, with the effect of one on memory.
    cluster_sync = _make_statement("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;")
    # Its halves, for warps that may be diverged: work between them need not wait for other blocks.
    cluster_arrive = _make_statement("barrier.cluster.arrive.release;")
    cluster_wait = _make_statement("barrier.cluster.wait.acquire;")

    @intrinsic
    def cluster_address(typing_context, address, rank):
        """The address of the same place in the shared memory of another block of the cluster."""

        def generate(context, builder, sig, args):
            return inline_ptx(
                builder, _int32, "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", list(args)
            )

        return signature(types.int32, types.int32, types.int32), generate
