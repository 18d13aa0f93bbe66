"""Arrays of a user's kernel as operands of parts, and a thread's sums as an array of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numba.core import config as _config

from dxgemm.handwritten.parts.operands import HALVES
from dxgemm.handwritten.parts.unroll import Operand, device


class ArgumentError(Exception):
    """An array that a kernel passes to a tile is no matrix."""


class ArgumentDtypeError(ArgumentError):
    """It has another dtype than the tile."""


def map_name(number: int) -> str:
    """Name of the parameter that is the tensor map of an argument."""
    return f"tensor_map_{number}"


def _check(name: str, dtype: str, found: str, dimensions: int) -> None:
    """Refuse an array that is no matrix of a dtype, or of its bits if that has two bytes."""
    if dimensions != 2:
        raise ArgumentError(
            f"tile: {name} has {dimensions} dimension{'s' * (dimensions != 1)}, but is a matrix; "
            "index or slice it in the kernel."
        )
    if found != dtype and not (dtype in HALVES and found == "uint16"):
        raise ArgumentDtypeError(f"tile: {name} is {found}, but the tile takes {dtype} there.")


if _config.ENABLE_CUDASIM:
    import ctypes

    class _Elements:
        """Elements around the first one of an array, within the bounds of its memory."""

        def __init__(self, address: int, dtype: str, first: int, last: int) -> None:
            self.dtype, self._first = np.dtype(dtype), first
            size = (last - first + 1) * self.dtype.itemsize
            start = address + first * self.dtype.itemsize
            data = (ctypes.c_char * size).from_address(start)
            self._elements = np.frombuffer(memoryview(data), self.dtype)

        def _position(self, index: Any) -> int:
            position = int(index) - self._first
            if not 0 <= position < len(self._elements):
                raise IndexError(f"a tile reads or writes element {index} outside of an operand")
            return position

        def __getitem__(self, index: Any) -> Any:
            return self._elements[self._position(index)]

        def __setitem__(self, index: Any, value: Any) -> None:
            self._elements[self._position(index)] = value

    @lru_cache(256)  # one object for all threads: `simulated_memory` knows operands by identity
    def _elements_of(address: int, dtype: str, sizes: Any, strides: Any) -> _Elements:
        steps = [(size - 1) * stride for size, stride in zip(sizes, strides, strict=True)]
        first, last = sum(min(s, 0) for s in steps), sum(max(s, 0) for s in steps)
        return _Elements(address, dtype, first, first - 1 if 0 in sizes else last)

    def element_pointer(name: str, dtype: str, array: Any) -> Any:
        interface = array.__array_interface__
        found = np.dtype(array.dtype)
        _check(name, dtype, found.name, len(array.shape))
        strides = tuple(stride // found.itemsize for stride in array.strides)
        element = "uint16" if dtype in HALVES else dtype
        return _elements_of(interface["data"][0], element, tuple(array.shape), strides)

    def make_choice(orders: tuple[str, str], mapped: Any, others: Any) -> Callable[..., Any]:
        def choice(a: Any, b: Any, *place: Any) -> Any:
            found = tuple(getattr(array, "order", "") for array in (a, b))
            return (mapped if found == orders else others)(a, b, *place)

        return choice

    def tensor_map_of(array: Any) -> Any:
        return array.tensor_map

    def make_registers(dtype: str, count: int) -> Callable[..., Any]:
        return lambda: np.zeros(count, dtype)

    def put_registers(array: Any, values: Any) -> None:
        array[:] = values

    def take_registers(count: int, array: Any) -> Any:
        return tuple(array)

else:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.cgutils import alloca_once, pack_array
    from numba.cuda.extending import core_models, intrinsic
    from numba.cuda.models import register_model
    from numba.cuda.typing import signature

    from dxgemm.handwritten.parts.intrinsics import inline_ptx, literal, unpack

    _NAMES = {"__nv_bfloat16": "bfloat16"}

    class MappedArray(types.Array):  # type: ignore[misc]
        """Type of an argument that is a matrix of boxes of TMA; parts of it are plain arrays.

        Attributes:
            order: "row" if the elements of a row are neighbours in memory, "col" if those of a
                column are.
            parameter: name of the kernel's parameter that is its tensor map.
        """

        def __init__(self, element: Any, order: str, parameter: str) -> None:
            self.order, self.parameter = order, parameter
            super().__init__(element, 2, "A", name=f"mapped({element}, {order}, {parameter})")

        @property
        def key(self) -> Any:
            return *super().key, self.order, self.parameter

        @property
        def mangling_args(self) -> Any:
            name, parts = super().mangling_args
            return name, [*parts, self.order, self.parameter]

    register_model(MappedArray)(core_models.ArrayModel)

    def make_choice(orders: tuple[str, str], mapped: Any, others: Any) -> Callable[..., Any]:
        """A device function (a, b, row, col, k): `mapped` for arguments with maps, or `others`.

        It is decided by their types: the other function is not compiled.
        """

        @intrinsic
        def choice(typing_context, a, b, row, col, k):
            found = tuple(getattr(array, "order", "") for array in (a, b))
            function = typing_context.resolve_value_type(mapped if found == orders else others)
            kinds = a, b, row, col, k
            called = typing_context.resolve_function_type(function, kinds, {})

            def generate(context, builder, sig, args):
                code = context.get_function(function, called)
                for library in getattr(code, "libs", ()):
                    context.active_code_library.add_linking_library(library)
                return code(builder, args)

            return signature(called.return_type, *kinds), generate

        return choice

    @intrinsic
    def tensor_map_of(typing_context, array):
        """Address of the tensor map of an argument that has one."""
        symbol = array.parameter
        text = f"{{ .reg .b64 address; mov.b64 address, {symbol}; cvta.param.u64 $0, address; }}"

        def generate(context, builder, sig, args):
            return inline_ptx(builder, ir.IntType(64), text, "=l", [])

        return signature(types.int64, array), generate

    @intrinsic
    def element_pointer(typing_context, name, dtype, array):
        """Pointer to the first element of a matrix, or to its bits if it has two bytes."""
        expected = literal(dtype)
        if not isinstance(array, types.Array):
            raise ArgumentError(f"tile: {literal(name)} is {array}, not an array.")
        found = str(array.dtype)
        _check(literal(name), expected, _NAMES.get(found, found), array.ndim)
        element = types.uint16 if expected in HALVES else array.dtype

        def generate(context, builder, sig, args):
            data = context.make_array(array)(context, builder, args[2]).data
            return builder.bitcast(data, context.get_value_type(sig.return_type))

        return signature(types.CPointer(element), name, dtype, array), generate

    def make_registers(dtype: str, count: int) -> Callable[..., Any]:
        """An intrinsic: () -> an array of a thread.

        It is in registers where its indices are known to the compiler. It belongs to the caller: a
        device function cannot return an array of its own.
        """
        element = getattr(types, dtype)
        kind = types.Array(element, 1, "C")

        @intrinsic
        def accumulator(typing_context):
            def generate(context, builder, sig, args):
                item = context.get_value_type(element)
                place = alloca_once(builder, ir.ArrayType(item, count))
                item_bytes = context.get_constant(types.intp, context.get_abi_sizeof(item))
                items = context.get_constant(types.intp, count)
                array = context.make_array(kind)(context, builder)
                array.data = builder.bitcast(place, item.as_pointer())
                array.shape = pack_array(builder, [items])
                array.strides = pack_array(builder, [item_bytes])
                array.nitems, array.itemsize = items, item_bytes
                return array._getvalue()

            return signature(kind), generate

        return accumulator

    def _places(context: Any, builder: Any, kind: Any, array: Any, count: int) -> list[Any]:
        data = context.make_array(kind)(context, builder, array).data
        return [builder.gep(data, [ir.IntType(32)(i)]) for i in range(count)]

    @intrinsic
    def put_registers(typing_context, array, values):
        """Store a register tuple in an array of `make_registers`."""

        def generate(context, builder, sig, args):
            elements = unpack(builder, args[1], values.count)
            places = _places(context, builder, array, args[0], values.count)
            for place, element in zip(places, elements, strict=True):
                builder.store(element, place)
            return context.get_dummy_value()

        return signature(types.void, array, values), generate

    @intrinsic
    def take_registers(typing_context, count, array):
        """The elements of an array of `make_registers` as a register tuple."""
        number = literal(count)

        def generate(context, builder, sig, args):
            places = _places(context, builder, array, args[1], number)
            return pack_array(builder, [builder.load(place) for place in places])

        return signature(types.UniTuple(array.dtype, number), count, array), generate


def make_operand(name: str, dtype: str) -> Callable[..., Operand]:
    """A device function: (array) -> the `Operand` of a matrix, with strides in elements.

    Raises:
        ArgumentError: the array is no matrix of this dtype: when the kernel is typed, or runs on
            the simulator.
    """
    item_bytes = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize

    @device
    def operand(array):
        pointer = element_pointer(name, dtype, array)
        return Operand(
            pointer, 0, array.strides[0] // item_bytes, array.strides[1] // item_bytes
        )  # fmt: skip

    return operand
