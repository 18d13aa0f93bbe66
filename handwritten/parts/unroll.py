"""`static_range`: loops that are unrolled before numba compiles the kernel, like `#pragma unroll`.

NVVM does not unroll the loop over a tile's k: its body is too long. Left rolled, the loop counts
and compares on every step, and registers cannot be told apart by its counter. So the loop is
unrolled in the kernel's source:

    for kk in static_range(tile_k):
        if kk < tile_k - 1:
            a_next = load_shared(scalar, 4, a_address, (kk + 1) * row_bytes)

`static_range` is plain `range`: numba's simulator runs the kernel as it is written.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

static_range = range

_FOLDED = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Name, ast.Subscript, ast.Attribute)


def unroll_static_loops(function: Callable[..., None]) -> Callable[..., None]:
    """A copy of a kernel or device function with its `static_range` loops written out.

    What is known when the function is made (numbers, strings and tuples of its closure, loop
    counters, and what is computed from these alone) becomes a literal, and an `if` on such a value
    keeps only the branch that is taken.

    Args:
        function: defined by `def`, with its source at hand.

    Raises:
        NameError: the bounds of a static_range are not known when the function is made.
    """
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    known = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    assigned = {argument.arg for argument in definition.args.args} | {
        node.id
        for node in ast.walk(definition)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    constants = {name: value for name, value in known.items() if name not in assigned}
    unrolled = _Unroller(constants).visit(definition)
    # Numbers of lines stay those of the file, so that numba's errors point to the kernel's source.
    ast.increment_lineno(unrolled, function.__code__.co_firstlineno - 1)
    module = ast.fix_missing_locations(ast.Module([unrolled], []))
    namespace = dict(known)
    exec(compile(module, function.__code__.co_filename, "exec"), namespace)
    return namespace[function.__name__]


class _Unroller(ast.NodeTransformer):
    def __init__(self, constants: dict[str, Any]) -> None:
        self._constants = constants

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, _FOLDED) and not isinstance(getattr(node, "ctx", None), ast.Store):
            is_known, value = self._value(node)
            if is_known and _is_literal(value):
                return ast.copy_location(_literal(value), node)
        return super().visit(node)

    def visit_For(self, node: ast.For) -> Any:
        loop = node.iter
        if not (
            isinstance(loop, ast.Call)
            and isinstance(loop.func, ast.Name)
            and loop.func.id == "static_range"
        ):
            return self.generic_visit(node)
        assert isinstance(node.target, ast.Name)
        bounds = [eval(_expression(bound), {}, self._constants) for bound in loop.args]
        statements = []
        for value in range(*bounds):
            inner = _Unroller(self._constants | {node.target.id: value})
            for statement in node.body:
                unrolled = inner.visit(_copied(statement))
                statements += unrolled if isinstance(unrolled, list) else [unrolled]
        return statements

    def visit_If(self, node: ast.If) -> Any:
        is_known, value = self._value(node.test)
        if not is_known:
            return self.generic_visit(node)
        statements = []
        for statement in node.body if value else node.orelse:
            visited = self.visit(statement)
            statements += visited if isinstance(visited, list) else [visited]
        return statements

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        is_known, value = self._value(node.test)
        if not is_known:
            return self.generic_visit(node)
        return self.visit(node.body if value else node.orelse)

    def _value(self, node: ast.AST) -> tuple[bool, Any]:
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            parts = [self._value(part) for part in node.values]
            if any(is_known and not value for is_known, value in parts):
                return True, False  # whatever the others are
        names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        calls = any(isinstance(inner, ast.Call) for inner in ast.walk(node))
        if calls or not all(
            _is_literal(self._constants.get(name, self._constants)) for name in names
        ):
            return False, None
        return True, eval(_expression(node), {}, self._constants)


def _is_literal(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_literal, value))
    return value is None or isinstance(value, int | float | str)


def _literal(value: Any) -> ast.expr:
    return ast.parse(repr(value), mode="eval").body


def _expression(node: ast.AST) -> Any:
    return compile(ast.Expression(_copied(node)), "<static_range>", "eval")


def _copied(node: Any) -> Any:
    copied = type(node)()
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            value = [_copied(item) if isinstance(item, ast.AST) else item for item in value]
        elif isinstance(value, ast.AST):
            value = _copied(value)
        setattr(copied, name, value)
    return ast.copy_location(copied, node) if hasattr(node, "lineno") else copied
