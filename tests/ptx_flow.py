"""Which loads of C a compiled kernel can reach, read off its PTX."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dxgemm.compiler import PARAMETERS

_NAMES = [name for name, _ in PARAMETERS]


def c_loads(ptx: str, *, beta_is_zero: bool | None = None) -> int:
    """Counts the loads through the pointer to C that are reachable from the entry.

    Args:
        ptx: one kernel.
        beta_is_zero: follows only the matching side of branches on beta == 0; None follows both.
    """
    lines = [line.strip() for line in ptx[ptx.index("{") :].splitlines()]
    labels = {line[:-1]: index for index, line in enumerate(lines) if line.endswith(":")}
    of_c = _derived_from(lines, _NAMES.index("c_gmem"))
    tests = _tests_of_beta(lines)
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
        if predicate in tests and beta_is_zero is not None:
            taken = (tests[predicate] == beta_is_zero) != bool(negated)
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


def _tests_of_beta(lines: list[str]) -> dict[str, bool]:
    """Predicates that compare beta with zero: whether each is true if beta == 0."""
    beta = _derived_from(lines, _NAMES.index("beta"))
    return {
        predicate: comparison == "eq"
        for predicate, comparison, operands in _comparisons(lines)
        if beta.intersection(operands) and any(re.fullmatch(r"0|0[fd]0+", o) for o in operands)
    }


def _comparisons(lines: list[str]) -> Iterator[tuple[str, str, list[str]]]:
    for line in lines:
        match = re.match(r"setp\.(eq|ne|neu)\.[fs]\d+\s+(%p\d+), (\S+), (\S+);", line)
        if match:
            yield match[2], match[1], [match[3], match[4]]
