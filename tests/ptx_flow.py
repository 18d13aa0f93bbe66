"""Loads of C that a compiled kernel can reach, read off its PTX."""

import re
from collections.abc import Iterator

from dxgemm.compiler import PARAMETERS

_NAMES = [name for name, _ in PARAMETERS]
BETA = (_NAMES.index("beta"),)
# Kernels of complex elements take the parts of beta as epilogue arguments.
COMPLEX_BETA = (len(_NAMES), len(_NAMES) + 1)


def c_loads(ptx: str, *, beta_is_zero: bool | None = None, beta: tuple[int, ...] = BETA) -> int:
    """Counts the loads through the pointer to C that are reachable from the entry."""
    lines = [line.strip() for line in ptx[ptx.index("{") :].splitlines()]
    labels = {line[:-1]: index for index, line in enumerate(lines) if line.endswith(":")}
    of_c = _derived_from(lines, _NAMES.index("c_gmem"))
    known = {} if beta_is_zero is None else _known_predicates(lines, beta_is_zero, beta)
    found = set()
    pending, seen = [0], set()
    while pending:
        index = pending.pop()
        if index in seen or index >= len(lines):
            continue
        seen.add(index)
        line = lines[index]
        load = re.search(r"\bld\.global\S*\s.*\[(%\w+)", line)
        if load and load[1] in of_c:
            found.add(index)
        branch = re.match(r"(?:@(!?)(%p\d+)\s+)?bra\S*\s+(\S+);", line)
        if branch is None:
            pending += [] if line.startswith("ret") else [index + 1]
            continue
        negated, predicate, label = branch.groups()
        taken = None if predicate else True
        if predicate in known:
            taken = known[predicate] != bool(negated)
        pending += [labels[label]] * (taken is not False) + [index + 1] * (taken is not True)
    return len(found)


def _derived_from(lines: list[str], parameter: int) -> set[str]:
    """Registers whose value depends on one kernel parameter, but not on memory."""
    derived: set[str] = set()
    count = -1
    while count < len(derived):
        count = len(derived)
        for line in lines:
            if line.startswith(("ld.global", "ld.shared")):
                continue
            target, *sources = re.findall(r"%\w+|_param_\d+(?!\d)", line) or [""]
            if f"_param_{parameter}" in sources or derived.intersection(sources):
                derived.add(target)
    return derived


def _known_predicates(
    lines: list[str], beta_is_zero: bool, parameters: tuple[int, ...]
) -> dict[str, bool]:
    """Predicates that follow from whether beta is zero, with their values."""
    beta = set().union(*(_derived_from(lines, parameter) for parameter in parameters))
    known = {
        predicate: (comparison == "eq") == beta_is_zero
        for predicate, comparison, operands in _comparisons(lines)
        if beta.intersection(operands) and any(re.fullmatch(r"0|0[fd]0+", o) for o in operands)
    }
    for line in lines:  # a predicate is computed before it is used
        match = re.match(r"(and|or|not)\.pred\s+(%p\d+), (%p\d+)(?:, (%p\d+))?;", line)
        if match is None:
            continue
        operation, target, *sources = match.groups()
        values = [known.get(source) for source in sources if source]
        if operation == "not":
            if values[0] is not None:
                known[target] = not values[0]
        elif (decisive := operation == "or") in values:
            known[target] = decisive
        elif None not in values:
            known[target] = not decisive
    return known


def _comparisons(lines: list[str]) -> Iterator[tuple[str, str, list[str]]]:
    for line in lines:
        match = re.match(r"setp\.(eq|ne|neu)\.[fs]\d+\s+(%p\d+), (\S+), (\S+);", line)
        if match:
            yield match[2], match[1], [match[3], match[4]]
