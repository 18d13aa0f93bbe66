"""Facts about a function that its bytecode tells: what it names, how it ends, what it passes on."""

from __future__ import annotations

import dis
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")
ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
# Instructions that no kernel has, and what they do.
_UNFIT = {
    "RAISE_VARARGS": "raises an exception",
    "IMPORT_NAME": "imports a module",
    "STORE_GLOBAL": "assigns to a global",
    "DELETE_GLOBAL": "deletes a global",
}
_LOADS = ("LOAD_CONST", "LOAD_DEREF", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_SMALL_INT")


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
            return frozenset(ends), _UNFIT[name]
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


def calls_taking(code: CodeType, variable: str) -> list[tuple[str, int]] | None:
    """Find the calls to which a function passes a local variable, if it does nothing else with it.

    Returns:
        For each one, the global or closure variable that is called, and the place among the
        arguments; None if the function may do anything else with the variable.
    """
    steps = list(dis.get_instructions(code))
    found = []
    for at, step in enumerate(steps):
        for place, name in enumerate(_named_by(step)):
            if name != variable:
                continue
            end = next(i for i in range(at, len(steps)) if not steps[i].opname.startswith(_LOADS))
            called, count = _called_at(steps, end), steps[end].arg
            # Arguments from this one on; fewer if it is one of a call further on.
            following = sum(len(_named_by(load)) for load in steps[at:end]) - place
            if called is None or count is None or following > count or called in code.co_cellvars:
                return None
            found.append((called, count - following))
    return found


def variables_passed(code: CodeType, methods: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Find calls of methods that are passed a local variable, in a place of their arguments.

    Args:
        methods: the place, by the name of the method.

    Yields:
        The global or closure variable whose method is called, and the local variable.
    """
    steps = list(dis.get_instructions(code))
    for at, step in enumerate(steps):
        if step.opname not in ATTRIBUTES or step.argval not in methods:
            continue
        stack: list[Any] = []  # names of variables; None for any other value
        for load in steps[at + 1 :]:
            if load.opname in ("PRECALL", "CALL") and load.arg == len(stack):
                if variable := stack[methods[step.argval]]:
                    yield steps[at - 1].argval, variable
                break
            if load.opname.startswith("LOAD_FAST"):
                stack += _named_by(load)
            elif load.opname not in ("CACHE", "PUSH_NULL"):
                size = len(stack) + dis.stack_effect(load.opcode, load.arg, jump=False)
                is_pushed = load.opname.startswith("LOAD_") and load.opname not in ATTRIBUTES
                kept = len(stack) if is_pushed else min(len(stack), size) - 1
                stack = stack[:kept] + [None] * (size - kept)


def _named_by(step: dis.Instruction) -> tuple[Any, ...]:
    """Variables that an instruction names: it may be of two."""
    return step.argval if step.opname.count("_FAST") > 1 else (step.argval,)


def _called_at(steps: list[dis.Instruction], end: int) -> str | None:
    """Name of the global or closure variable that an instruction calls; None for anything else."""
    if steps[end].opname not in ("CALL", "PRECALL"):
        return None
    count, depth, start = steps[end].arg or 0, 0, end
    while depth < count and not steps[start].is_jump_target:  # to where the first argument begins
        start -= 1
        depth += dis.stack_effect(steps[start].opcode, steps[start].arg, jump=False)
    if depth != count or steps[start].is_jump_target:
        return None
    before, head = steps[start - 2 : start]
    if head.opname == "LOAD_GLOBAL" and dis.stack_effect(head.opcode, head.arg) > 1:  # and NULL
        return head.argval
    pair = {before.opname: before.argval, head.opname: head.argval}
    return pair["LOAD_DEREF"] if pair.keys() == {"PUSH_NULL", "LOAD_DEREF"} else None
