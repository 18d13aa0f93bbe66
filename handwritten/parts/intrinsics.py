"""Intrinsics for a fast GEMM: vector accesses, asynchronous copies, register tuples.

numba-cuda lacks them. Each intrinsic is one or a few instructions, inlined where the kernel calls
it. Arguments that the instruction encodes (widths, byte offsets) must be literals; `unroll` makes
them so. A register tuple is a numba UniTuple: it never has an address, so it stays in registers.

Memory is addressed in two ways:
    by an array or pointer and an index in elements: LLVM may reorder and combine these accesses;
    by a byte address in a register and a literal offset, as the instruction encodes them.

numba's simulator runs the first kind (and the register tuples) as plain Python, and the second kind
on `simulated_memory`.
Source: PTX ISA, "Data Movement and Conversion Instructions" and "cp.async"; the CUDA C++
Programming Guide, "Distributed Shared Memory", for the cluster.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numba.core import config as _config


class ReturnError(Exception):
    """An epilogue's function returns no valid result; `stage` is its index in the chain."""

    def __init__(self, stage: int, fault: str) -> None:
        super().__init__(f"stage {stage}: {fault}")
        self.stage, self.fault = stage, fault


if _config.ENABLE_CUDASIM:
    from numba.cuda.simulator.kernel import _get_kernel_context

    from dxgemm.handwritten.parts import simulated_integers, simulated_memory

    class _RunningKernel:
        """The `cuda` of the running kernel, which the simulator gives to kernels alone."""

        def __getattr__(self, name: str) -> Any:
            return getattr(_get_kernel_context(), name)

    cuda: Any = _RunningKernel()
    below_2_31 = simulated_integers.below_2_31
    commit_copies = simulated_memory.commit_copies
    copy_async = copy_async_cached = simulated_memory.copy_async
    copy_async_part = copy_async_part_cached = simulated_memory.copy_async_part
    global_address = simulated_memory.global_address
    load_global = simulated_memory.load_global
    load_shared = simulated_memory.load_shared
    load_vectors = simulated_memory.load_vectors
    low_word = simulated_integers.low_word
    prefetch_line = simulated_memory.prefetch_line
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

    def wait_earlier_kernel() -> None:
        """No effect: the simulator runs one kernel after the other."""

    def sync_block() -> None:
        threading.current_thread().syncthreads()  # type: ignore[attr-defined]

    # A cluster has one block here.
    cluster_sync = sync_block
    load_cluster = load_shared

    def cluster_address(address: Any, rank: Any) -> Any:
        return address

    def rounded(value: Any) -> Any:
        """Function that casts to the type of `value`; sums of int8 wrap around."""
        return low_word if isinstance(value, simulated_integers.Int32) else type(value)

    def scaled(alpha: Any, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(scaled(alpha, one) for one in value)
        return rounded(value)(alpha * value)

    multiplied = scaled

    def plus_scaled(total: Any, beta: Any, value: Any) -> Any:
        if isinstance(total, tuple):
            return tuple(plus_scaled(x, beta, y) for x, y in zip(total, value, strict=True))
        return rounded(total)(total + beta * value)

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
        scales = scale if isinstance(scale, tuple) else (scale,)
        repeated = scales * (len(acc) // len(scales))
        return tuple(x + z * y for x, y, z in zip(total, acc, repeated, strict=True))

else:
    from llvmlite import ir
    from numba import cuda, int32  # type: ignore[no-redef]
    from numba.cuda import types
    from numba.cuda.cgutils import pack_array
    from numba.cuda.core.errors import RequireLiteralValue
    from numba.cuda.core.targetconfig import ConfigStack
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
        """Inline a function into the kernels that call it; the simulator calls it unchanged."""
        return cuda.jit(device=True, forceinline=True)(function)

    @intrinsic
    def wait_earlier_kernel(typing_context):
        """Wait until the kernel launched before this one has ended, and its results are visible.

        Only one with `begins_early` can begin before that, from Hopper on.
        """

        def generate(context, builder, sig, args):
            if ConfigStack().top().compute_capability < (9, 0):
                return context.get_dummy_value()
            return statement("griddepcontrol.wait;")(context, builder, sig, args)

        return signature(types.void), generate

    @device_function
    def sync_block():
        """The barrier of a block, for device functions that the simulator runs too."""
        cuda.syncthreads()

    # The low 32 bits of an integer, as an int32. In the simulator only this cast may cut bits off.
    low_word = int32

    @device_function
    def below_2_31(value):
        """Mask a value of 0 to 2**31 - 1: the bound lets the compiler emit 32-bit divisions."""
        return value & 0x7FFFFFFF

    def literal(value: Any) -> Any:
        """Value of an argument that must be known at compile time."""
        if not isinstance(value, types.Literal):
            raise RequireLiteralValue(value)
        return value.literal_value

    def inline_ptx(
        builder: Any, result: Any, text: str, constraints: str, arguments: list[Any]
    ) -> Any:
        """Emit one volatile PTX statement; `result` is the LLVM type of its result."""
        function = ir.FunctionType(result, [argument.type for argument in arguments])
        return builder.call(ir.InlineAsm(function, text, constraints, True), arguments)

    def unpack(builder: Any, aggregate: Any, count: int) -> list[Any]:
        return [builder.extract_value(aggregate, i) for i in range(count)]

    def statement(text: str, constraints: str = "", *places: int) -> Any:
        """Generator of a PTX statement of the arguments at these indices, or tuples' registers.

        No access to memory moves across it.
        """
        clobbering = f"{constraints},~{{memory}}".lstrip(",")

        def generate(context, builder, sig, args):
            operands = []
            for place in places:
                kind, value = sig.args[place], args[place]
                is_tuple = isinstance(kind, types.UniTuple)
                operands += unpack(builder, value, kind.count) if is_tuple else [value]
            inline_ptx(builder, _void, text, clobbering, operands)
            return context.get_dummy_value()

        return generate

    def _intrinsic_of(result: Any, generate: Any) -> Any:
        """Intrinsic of a signature that is the same for all calls, of up to four arguments."""
        typed = result, generate
        typings = (
            lambda typing_context: typed,
            lambda typing_context, a: typed,
            lambda typing_context, a, b: typed,
            lambda typing_context, a, b, c: typed,
        )
        return intrinsic(typings[len(result.args)])

    def instruction(text: str, constraints: str = "", *kinds: Any) -> Any:
        """An intrinsic without a result, with one argument per kind."""
        generate = statement(text, constraints, *range(len(kinds)))
        return _intrinsic_of(signature(types.void, *kinds), generate)

    def computed(result: Any, *kinds: Any) -> Any:
        """Make an intrinsic of a function of the builder and of values of these types."""
        return lambda function: _intrinsic_of(
            signature(result, *kinds),
            lambda context, builder, sig, args: function(builder, *args),
        )

    def _element(kind: Any) -> Any:
        """Type of a number, or of the registers of a tuple."""
        return kind.dtype if isinstance(kind, types.UniTuple) else kind

    def _for_each(builder: Any, kind: Any, function: Any, *values: Any) -> Any:
        """Apply a function to numbers, or to each register of tuples."""
        if not isinstance(kind, types.UniTuple):
            return function(*values)
        columns = (unpack(builder, value, kind.count) for value in values)
        return pack_array(builder, [function(*row) for row in zip(*columns, strict=True)])

    def _data_pointer(context: Any, builder: Any, kind: Any, value: Any) -> Any:
        """Typed pointer to a shared array, in its own address space, or from a raw pointer."""
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
        """Load `width` elements from `array[index]` on, in one access of up to 16 bytes.

        The address must be a multiple of the size of the access.
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

        The compiler may then move loads ahead of earlier stores, so that many are in flight.
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
        """Store the elements of a register tuple from `array[index]` on, in one access."""
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
        """Return the tuple; the kernel does not compile unless it has `count` elements."""
        if not isinstance(values, types.BaseTuple) or len(values) != literal(count):
            return None
        return signature(values, count, values), lambda context, builder, sig, args: args[1]

    @intrinsic
    def given(typing_context, stage, reals, value):
        """Return the value; the kernel does not compile if it, or an element of it, may be None.

        It does not compile either if a complex element has its bit set in `reals`.
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
        """Quotient of two int32 that are not negative.

        numba's own // divides in 64 bits, in a subroutine. The compiler does not know that its
        result is the same in all threads of a block, even if the operands are. Code that depends on
        the result, such as the main loop, is then compiled for threads that may diverge. In a
        kernel that calls anything, ptxas also makes wgmmas wait for each other.
        """

        def generate(context, builder, sig, args):
            return builder.udiv(*args)

        return signature(types.int32, types.int32, types.int32), generate

    @intrinsic
    def scaled(typing_context, alpha, value):
        """alpha * value, of one type, always rounded; of each register if value is a tuple.

        The compiler may fuse a plain product with an addition that follows, or not. An element
        could then have different bits in different kernels.
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
        """alpha times each register of a tuple; additions may be fused with these products."""

        def generate(context, builder, sig, args):
            is_integer = isinstance(values.dtype, types.Integer)
            multiply = builder.mul if is_integer else builder.fmul
            return _for_each(builder, values, lambda value: multiply(args[0], value), args[1])

        return signature(values, values.dtype, values), generate

    @intrinsic
    def plus_scaled(typing_context, total, beta, value):
        """total + beta * value, of one type, rounded once; of each register if they are tuples."""
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
        """Complex number of two parts, built without arithmetic on them."""
        result = types.complex64 if re == types.float32 else types.complex128

        def generate(context, builder, sig, args):
            number = context.make_complex(builder, sig.return_type)
            number.real, number.imag = args
            return number._getvalue()

        return signature(result, re, im), generate

    @intrinsic
    def opaque(typing_context, value):
        """Return the integer, hiding its value from the compiler.

        The compiler then evaluates an expression of it where it is used, and does not hoist it out
        of a loop, where it would occupy registers.
        """

        def generate(context, builder, sig, args):
            (argument,) = args
            kind = "l" if argument.type.width == 64 else "r"
            text = f"mov.b{argument.type.width} $0, $1;"
            return inline_ptx(builder, argument.type, text, f"={kind},{kind}", [argument])

        return signature(value, value), generate

    @intrinsic
    def outer_product(typing_context, acc, a_frag, b_frag):
        """acc[i * len(b_frag) + j] + a_frag[i] * b_frag[j], each a fused multiply-add of floats.

        Every other row runs backwards: consecutive instructions then share an operand, which need
        not be read from the register file twice.
        """
        rows, cols = a_frag.count, b_frag.count
        assert acc.count == rows * cols
        is_integer = isinstance(acc.dtype, types.Integer)

        def generate(context, builder, sig, args):
            def add(a, b, addend):
                if is_integer:
                    return builder.add(builder.mul(a, b), addend)
                return builder.fma(a, b, addend)

            total = unpack(builder, args[0], rows * cols)
            a, b = unpack(builder, args[1], rows), unpack(builder, args[2], cols)
            for i in range(rows):
                for j in range(cols) if i % 2 == 0 else reversed(range(cols)):
                    total[i * cols + j] = add(a[i], b[j], total[i * cols + j])
            return pack_array(builder, total)

        return signature(acc, acc, a_frag, b_frag), generate

    @intrinsic
    def add_scaled(typing_context, total, acc, scale):
        """total + scale * acc for each register of two tuples, rounded once.

        Several scales are repeated.
        """
        count, is_one = total.count, not isinstance(scale, types.UniTuple)

        def generate(context, builder, sig, args):
            totals, addends = unpack(builder, args[0], count), unpack(builder, args[1], count)
            scales = [args[2]] if is_one else unpack(builder, args[2], scale.count)
            terms = zip(addends, scales * (count // len(scales)), totals, strict=True)
            return pack_array(builder, [builder.fma(*term) for term in terms])

        return signature(total, total, acc, total.dtype if is_one else scale), generate

    @computed(types.int32, types.float32)
    def float_bits(builder, value):
        """Bits of a float32, as an int32."""
        return builder.bitcast(value, _int32)

    @computed(types.float32, types.int32)
    def bits_float(builder, bits):
        """float32 with these bits."""
        return builder.bitcast(bits, ir.FloatType())

    @computed(types.int32, types.float64)
    def upper_bits(builder, value):
        """Upper 32 bits of a float64: sign, exponent and the leading bits of the mantissa."""
        return builder.trunc(builder.lshr(builder.bitcast(value, _int64), _int64(32)), _int32)

    @computed(types.float64, types.int32)
    def upper_bits_double(builder, bits):
        """float64 with these upper 32 bits; the lower ones are 0."""
        bits = builder.shl(builder.zext(bits, _int64), _int64(32))
        return builder.bitcast(bits, ir.DoubleType())

    @computed(types.int32, types.uint32, types.int32, types.int32)
    def dot_bytes(builder, data, weights, total):
        """total plus the products of data's four unsigned bytes with weights' four signed bytes."""
        function = ir.FunctionType(_int32, [_int32] * 3)
        dot = ir.InlineAsm(function, "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", False)
        return builder.call(dot, [data, weights, total])

    # add_global(pointer, value) adds atomically to an int32 in global memory.
    add_global = instruction(
        "red.global.add.s32 [$0], $1;", "l,r", types.CPointer(types.int32), types.int32
    )

    @intrinsic
    def shared_address(typing_context, array):
        """Byte address of a shared array in the shared address space."""

        def generate(context, builder, sig, args):
            pointer = _data_pointer(context, builder, sig.args[0], args[0])
            return builder.ptrtoint(pointer, _int32)

        return signature(types.int32, array), generate

    @intrinsic
    def global_address(typing_context, pointer):
        """Byte address of an operand in the global address space."""

        def generate(context, builder, sig, args):
            typed = _data_pointer(context, builder, sig.args[0], args[0])
            return builder.ptrtoint(typed, _int64)

        return signature(types.int64, pointer), generate

    def _load_registers(
        context: Any, builder: Any, element: Any, count: int, where: tuple[str, str, Any, int]
    ) -> list[Any]:
        """Load a vector; `where` is its space, its address's constraint, the address, an offset."""
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
            vector, names = f".v{count}" if count > 1 else "", (f"${i + 1}" for i in range(count))
            text = f"st.{space}{vector}.{ptx_type} [$0+{start}], {{{', '.join(names)}}};"
            constraints = ",".join([address_constraint] + [constraint] * count)
            return signature(types.void, address, offset, values), statement(
                text, constraints, 0, 2
            )

        return store

    # load(scalar, width, address, offset) returns `width` registers from address + offset, in
    # bytes. store(address, offset, values) stores registers there. An access has up to 16 bytes and
    # is aligned to its size.
    load_shared, store_shared = _make_load("shared", "r"), _make_store("shared", "r")
    load_global, store_global = _make_load("global", "l"), _make_store("global", "l")
    load_cluster = _make_load("shared::cluster", "r")
    store_cluster = _make_store("shared::cluster", "r")

    @intrinsic
    def load_vectors(typing_context, scalar, width, address, offset, step, count):
        """Load `count` vectors, `step` bytes apart in shared memory, as one register tuple."""
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

    def _make_copies(is_cached: bool) -> tuple[Any, Any]:
        def text_of(size: Any, offset: Any) -> str:
            cache = "ca" if is_cached or literal(size) < 16 else "cg"
            target = f"[$0+{literal(offset)}]"
            return f"cp.async.{cache}.shared.global {target}, [$1], {literal(size)}"

        @intrinsic
        def copy(typing_context, size, target, target_offset, source):
            text = f"{text_of(size, target_offset)};"
            result = signature(types.void, size, types.int32, target_offset, types.int64)
            return result, statement(text, "r,l", 1, 3)

        @intrinsic
        def copy_part(typing_context, size, target, target_offset, source, count):
            text, address = f"{text_of(size, target_offset)}, $2;", (types.int32, target_offset)
            result = signature(types.void, size, *address, types.int64, types.int32)
            return result, statement(text, "r,l,r", 1, 3, 4)

        return copy, copy_part

    # copy_async(size, target, target_offset, source) starts copying `size` bytes (4, 8 or 16) from
    # global to shared memory. Copies of 16 bytes bypass L1, which would only duplicate the contents
    # of shared memory. copy_async_part(..., count) copies `count` bytes (0 to `size`); the rest of
    # `size` is zero-filled. With a count of 0 nothing is read. With a count in between, the bytes
    # after `count` are not used, but the access still covers `size` bytes: compute-sanitizer
    # requires all of them to be inside the operand.
    copy_async, copy_async_part = _make_copies(is_cached=False)
    # The same through L1, for what several blocks of an SM read: a matrix that is the same for a
    # whole batch is in a few slices of L2, where a thousand blocks would wait for each other.
    copy_async_cached, copy_async_part_cached = _make_copies(is_cached=True)

    # prefetch_line(address) prefetches the line of this global address into the L2 cache.
    prefetch_line = instruction("prefetch.global.L2 [$0];", "l", types.int64)

    # commit_copies() makes the copies since the last commit a group; groups complete in order.
    commit_copies = instruction("cp.async.commit_group;")

    @intrinsic
    def wait_copies(typing_context, pending):
        """Wait until at most `pending` of this thread's groups of copies are incomplete."""
        text = f"cp.async.wait_group {literal(pending)};"
        return signature(types.void, pending), statement(text)

    # A barrier for all threads of a thread-block cluster that also orders their memory accesses.
    cluster_sync = instruction("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;")
    # Its two halves, for warps that may have diverged: work between them overlaps the wait.
    cluster_arrive = instruction("barrier.cluster.arrive.release;")
    cluster_wait = instruction("barrier.cluster.wait.acquire;")

    @computed(types.int32, types.int32, types.int32)
    def cluster_address(builder, address, rank):
        """Address of the same offset in the shared memory of another block of the cluster."""
        text = "mapa.shared::cluster.u32 $0, $1, $2;"
        return inline_ptx(builder, _int32, text, "=r,r,r", [address, rank])
