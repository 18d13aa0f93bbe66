"""Call frames of XLA's foreign function interface, as `ctypes` reads them.

Source: xla/ffi/api/c_api.h, API version 0.1. Later versions add fields at the ends of structures,
which this does not read.
"""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
    sizeof,
    string_at,
)
from typing import Any, ClassVar, NamedTuple

API_VERSION = 0, 1
DTYPES = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64",
    6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64",
    10: "float16", 11: "float32", 12: "float64", 16: "bfloat16",
}  # fmt: skip
INTERNAL = 13  # error code of what a handler finds wrong
METADATA = 1  # type of the extension by which XLA asks about a handler


class _Sized(Structure):
    """Beginning of most structures; the fields of a subclass follow these."""

    _fields_: ClassVar[Any] = (("struct_size", c_size_t), ("extension", c_void_p))


class _Extension(Structure):
    _fields_ = (("struct_size", c_size_t), ("type", c_int), ("next", c_void_p))


class _Version(_Sized):
    _fields_ = (("major", c_int), ("minor", c_int))


class _Metadata(Structure):
    _fields_ = (("struct_size", c_size_t), ("version", _Version), ("traits", c_uint32))


class _MetadataExtension(Structure):
    _fields_ = (("base", _Extension), ("metadata", POINTER(_Metadata)))


class _ErrorArguments(_Sized):
    _fields_ = (("message", c_char_p), ("code", c_int))


class _StreamArguments(_Sized):
    _fields_ = (("context", c_void_p), ("stream", c_void_p))


class _OrdinalArguments(_Sized):
    _fields_ = (("context", c_void_p), ("ordinal", c_int32))


class _Api(_Sized):
    _fields_ = (
        ("version", _Version),
        ("internal", c_void_p),
        ("create_error", CFUNCTYPE(c_void_p, POINTER(_ErrorArguments))),
        ("before_stream", c_void_p * 3),
        ("get_stream", CFUNCTYPE(c_void_p, POINTER(_StreamArguments))),
        ("before_ordinal", c_void_p * 12),
        ("get_ordinal", CFUNCTYPE(c_void_p, POINTER(_OrdinalArguments))),
    )


class _Buffer(_Sized):
    _fields_ = (("dtype", c_int), ("data", c_void_p), ("rank", c_int64), ("dims", POINTER(c_int64)))


class _Buffers(_Sized):
    _fields_ = (("size", c_int64), ("types", c_void_p), ("items", POINTER(POINTER(_Buffer))))


class _Span(Structure):
    _fields_ = (("start", c_void_p), ("size", c_size_t))


class _Attributes(_Sized):
    _fields_ = (
        ("size", c_int64), ("types", c_void_p), ("names", POINTER(POINTER(_Span))),
        ("items", POINTER(POINTER(_Span))),
    )  # fmt: skip


class _CallFrame(Structure):
    _fields_ = (
        ("struct_size", c_size_t), ("extension", POINTER(_MetadataExtension)),
        ("api", POINTER(_Api)), ("context", c_void_p), ("stage", c_int), ("operands", _Buffers),
        ("results", _Buffers), ("attributes", _Attributes),
    )  # fmt: skip


class Array(NamedTuple):
    """Contiguous array of a call: its address, shape and dtype."""

    pointer: int
    shape: tuple[int, ...]
    dtype: str


class CallFrame:
    """Call of a handler that has one attribute, a text."""

    def __init__(self, address: int) -> None:
        self._frame = _CallFrame.from_address(address)

    def answer_query(self) -> bool:
        """Tell XLA the version, if it only asks about the handler.

        There are no traits: a command buffer would replay the call, but the first call of a shape
        may build a kernel, which capture forbids.
        """
        if not self._frame.extension or self._frame.extension.contents.base.type != METADATA:
            return False
        metadata = self._frame.extension.contents.metadata.contents
        metadata.version.major, metadata.version.minor = API_VERSION
        metadata.traits = 0
        return True

    @property
    def operands(self) -> list[Array]:
        return _arrays(self._frame.operands)

    @property
    def results(self) -> list[Array]:
        return _arrays(self._frame.results)

    @property
    def text(self) -> bytes:
        """The attribute."""
        span = self._frame.attributes.items[0].contents
        return string_at(span.start, span.size)

    @property
    def stream(self) -> int:
        """Handle of the stream that XLA launches on."""
        asked = _StreamArguments(sizeof(_StreamArguments), None, self._frame.context, None)
        self._frame.api.contents.get_stream(byref(asked))
        return asked.stream or 0

    @property
    def ordinal(self) -> int:
        """Ordinal of the GPU, among those that the process sees."""
        asked = _OrdinalArguments(sizeof(_OrdinalArguments), None, self._frame.context, 0)
        self._frame.api.contents.get_ordinal(byref(asked))
        return asked.ordinal

    def error(self, message: str) -> int | None:
        """An error for the handler to return."""
        about = _ErrorArguments(sizeof(_ErrorArguments), None, message.encode(), INTERNAL)
        return self._frame.api.contents.create_error(byref(about))


def _arrays(buffers: _Buffers) -> list[Array]:
    found = (buffers.items[place].contents for place in range(buffers.size))
    return [
        Array(each.data or 0, tuple(each.dims[: each.rank]), DTYPES.get(each.dtype, "unknown"))
        for each in found
    ]


# A handler: (address of a call frame) -> address of an error, or None.
HANDLER = CFUNCTYPE(c_void_p, c_void_p)
