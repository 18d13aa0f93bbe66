"""Facts about a function that its bytecode tells: what it names and how it ends."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType

GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")
ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
# Instructions that no kernel has, and what they do.
_UNFIT = {
    "RAISE_VARARGS": "raises an exception",
    "IMPORT_NAME": "imports a module",
    "STORE_GLOBAL": "assigns to a global",
    "DELETE_GLOBAL": "deletes a global",
}


def nested(code: CodeType) -> Iterator[CodeType]:
    """Code of a function, and of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)


@lru_cache(maxsize=1024)
def names_read(code: CodeType, opcodes: tuple[str, ...]) -> frozenset[str]:
    """Names that such instructions of a function read, nested functions included."""
    return frozenset(
        instruction.argval
        for part in nested(code)
        for instruction in dis.get_instructions(part)
        if instruction.opname in opcodes
    )


@lru_cache(maxsize=1024)
def ends_of(code: CodeType) -> tuple[frozenset[str], str]:
    """How a function returns, "value" and "none", and what it does that a kernel cannot."""
    instructions = list(dis.get_instructions(code))
    at = {instruction.offset: index for index, instruction in enumerate(instructions)}
    ends: set[str] = set()
    for index, instruction in enumerate(instructions):
        name, value = instruction.opname, instruction.argval
        if name in _UNFIT:
            return frozenset(ends), f"{_UNFIT[name]}"
        if name in ("STORE_DEREF", "DELETE_DEREF") and value in code.co_freevars:
            return frozenset(ends), f"assigns to the closure variable {value}"
        if name == "RETURN_VALUE" and not _loads_none(instructions[index - 1]):
            ends.add("value")
        if name == "RETURN_CONST":
            ends.add("none" if value is None else "value")
        if _loads_none(instruction):
            following = instructions[index + 1]
            while following.opname.startswith("JUMP") and "_IF_" not in following.opname:
                following = instructions[at[following.argval]]
            if following.opname == "RETURN_VALUE":
                ends.add("none")
    return frozenset(ends), ""


def _loads_none(instruction: dis.Instruction) -> bool:
    return instruction.opname == "LOAD_CONST" and instruction.argval is None
