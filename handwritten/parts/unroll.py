"""Rewriting of kernels before numba compiles them: one source text is compiled for many configs.

Loops. NVVM does not unroll the loop over a tile's k, because its body is too long. A rolled loop
counts and compares on every step, and its counter cannot index registers. `static_range` unrolls
the loop in the source, like `#pragma unroll`:

    for kk in static_range(tile_k):
        if kk < tile_k - 1:
            a_next = load_shared(scalar, 4, a_address, (kk + 1) * row_bytes)

Casts. numba computes integers in 64 bits; most of a kernel needs 32. An annotation on a name or a
parameter casts every value assigned to it, there and later: `left: int32 = k`, then
`left -= tile_k`.

Steps. A function inside a kernel that takes no arguments and returns nothing, such as `fetch`, is
inlined at its calls.

Functions. A loop counter may index a tuple of device functions: `readers[i](extra[i])`.

Operands. A `gemm_kernel` takes a, b, c and out, each with `data`, `batch`, `row` and `col`: a
pointer and the strides between its matrices, rows and columns, in elements. The launched kernel has
one parameter for each of these. As an argument, such as in `store(c, out)`, an operand is an
`Operand`.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple, TypeGuard

static_range = range


class Operand(NamedTuple):
    """A matrix, or a batch of them: a pointer, and strides in elements."""

    data: Any
    batch: Any
    row: Any
    col: Any


_OPERANDS = ("a", "b", "c", "out")
_STRIDES = tuple(f"stride_{field}" for field in Operand._fields[1:])
_OWN = (*_OPERANDS, "alpha", "beta", "m", "n", "k", "batch", "extra")
# The order is that of `dxgemm.compiler.PARAMETERS`: parameters that change between calls are first.
_FLAT = (
    *(f"{operand}_gmem" for operand in _OPERANDS),
    *_OWN[4:10],
    *(f"{operand}_{stride}" for operand in _OPERANDS for stride in _STRIDES),
    "extra",
)
_FOLDED = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Name, ast.Subscript, ast.Attribute)
_CASTS = ("int32", "int64", "float32")
_SHARED = (ast.expr_context, ast.operator, int, str)  # parts of nodes that copies share


def gemm_kernel(function: Callable[..., None]) -> Callable[..., None]:
    """Make a kernel: expand its operands into single parameters and apply `unroll`.

    Args:
        function: takes (a, b, c, out, alpha, beta, m, n, k, batch, extra).

    Raises:
        NameError: a variable of the kernel has the name of an operand's parameter, such as
            out_stride_row.
    """
    return _rewritten(function, is_kernel=True)


def unroll(function: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a device function with its `static_range` loops unrolled and its annotations as casts.

    Values known when the function is made become literals: numbers, strings and tuples of its
    closure, loop counters, and expressions of these. An `if` on such a value keeps only the branch
    that is taken.

    Args:
        function: a function defined by `def`, whose source is available.

    Raises:
        NameError: the bounds of a static_range are not known when the function is made.
    """
    return _rewritten(function)


def device(function: Callable[..., Any]) -> Any:
    """A device function, compiled into the kernel that calls it, with `unroll` applied."""
    from dxgemm.handwritten.parts.intrinsics import device_function

    return device_function(unroll(function))


_sources: dict[int, tuple[CodeType, str]] = {}  # by the id of the code object, which is kept alive


def _source(function: Callable[..., Any]) -> str:
    """Source of a function, read once for all functions that share its code object."""
    code = function.__code__
    if id(code) not in _sources:
        _sources[id(code)] = code, textwrap.dedent(inspect.getsource(function))
    return _sources[id(code)][1]


def _rewritten(function: Callable[..., Any], is_kernel: bool = False) -> Callable[..., Any]:
    (definition,) = ast.parse(_source(function)).body
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    known = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    _inline_steps(definition)
    casts = _cast_names(definition)
    if casts:
        import numba

        known |= {name: getattr(numba, name) for name in casts}
    if is_kernel:
        arguments = definition.args.args
        assert tuple(argument.arg for argument in arguments) == _OWN, function.__qualname__
        taken = _assigned(definition) & (set(_FLAT) - set(_OWN))
        if taken:
            raise NameError(f"{function.__qualname__}: {sorted(taken)} name parameters of operands")
        definition.args.args = [ast.copy_location(ast.arg(name), arguments[0]) for name in _FLAT]
        definition = _Operands().visit(definition)
        known["Operand"] = Operand
    variable = {argument.arg for argument in definition.args.args} | _assigned(definition)
    constants = {name: value for name, value in known.items() if name not in variable}
    # Functions in tuples get names of their own, because tuples of functions are experimental in
    # numba.
    functions = {
        f"{name}[{index}]": entry
        for name, entries in constants.items()
        if isinstance(entries, tuple)
        for index, entry in enumerate(entries)
        if callable(entry)
    }
    unrolled = _Unroller(constants | functions).visit(definition)
    # Line numbers stay those of the file, so that numba's errors point to the kernel's source.
    ast.increment_lineno(unrolled, function.__code__.co_firstlineno - 1)
    module = ast.fix_missing_locations(ast.Module([unrolled], []))
    namespace = known | functions
    exec(compile(module, function.__code__.co_filename, "exec"), namespace)
    return namespace[function.__name__]


def _assigned(definition: ast.FunctionDef) -> set[str]:
    """Names that are assigned to anywhere in a function."""
    names = (node for node in ast.walk(definition) if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def _inline_steps(definition: ast.FunctionDef) -> None:
    """Inline functions without parameters at their calls."""
    steps = {
        node.name: [line for line in node.body if not isinstance(line, ast.Nonlocal)]
        for node in definition.body
        if isinstance(node, ast.FunctionDef)
    }

    class Inliner(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> Any:
            call = node.value
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
                return node
            if call.func.id not in steps:
                return node
            return [self.visit(_copied(line)) for line in steps[call.func.id]]

    if steps:
        body = [line for line in definition.body if not isinstance(line, ast.FunctionDef)]
        definition.body = body
        Inliner().visit(definition)


def _cast_names(definition: ast.FunctionDef) -> set[str]:
    """Cast values assigned to annotated names; return the names of the casts."""
    types = {
        node.target.id: node.annotation.id
        for node in ast.walk(definition)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.annotation, ast.Name)
    }
    parameters = {
        argument.arg: argument.annotation.id
        for argument in definition.args.args
        if isinstance(argument.annotation, ast.Name)
    }
    types |= parameters

    def cast(node: ast.expr, name: str) -> ast.expr:
        function = ast.Name(types[name], ast.Load())
        return ast.copy_location(ast.Call(function, [node], []), node)

    class Caster(ast.NodeTransformer):
        def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
            assert isinstance(node.target, ast.Name) and node.value is not None
            value = cast(node.value, node.target.id)
            return ast.copy_location(ast.Assign([node.target], value), node)

        def visit_Assign(self, node: ast.Assign) -> Any:
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id in types:
                    node.value = cast(node.value, target.id)
                elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    for place, name in enumerate(target.elts):
                        if isinstance(name, ast.Name) and name.id in types:
                            node.value.elts[place] = cast(node.value.elts[place], name.id)
            return node

        def visit_AugAssign(self, node: ast.AugAssign) -> Any:
            name = node.target.id if isinstance(node.target, ast.Name) else ""
            if name not in types:
                return node
            loaded = ast.copy_location(ast.Name(name, ast.Load()), node)
            total = ast.copy_location(ast.BinOp(loaded, node.op, node.value), node)
            return ast.copy_location(ast.Assign([node.target], cast(total, name)), node)

    if types:
        assert set(types.values()) <= set(_CASTS), types
        Caster().visit(definition)
        for name in reversed(parameters):
            given = ast.copy_location(ast.Name(name, ast.Load()), definition)
            target = ast.copy_location(ast.Name(name, ast.Store()), definition)
            cast_it = ast.copy_location(ast.Assign([target], cast(given, name)), definition)
            definition.body.insert(0, cast_it)
    return set(types.values())


class _Operands(ast.NodeTransformer):
    """Replace `a.row` by a parameter, and a bare `a` by an `Operand` of its four parameters."""

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        if not (isinstance(node.value, ast.Name) and node.value.id in _OPERANDS):
            return self.generic_visit(node)
        return ast.copy_location(_parameter(node.value.id, node.attr, node.ctx), node)

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id not in _OPERANDS:
            return node
        assert isinstance(node.ctx, ast.Load), f"{node.id} is an operand"
        fields: list[ast.expr] = [_parameter(node.id, field) for field in Operand._fields]
        call = ast.Call(ast.Name("Operand", ast.Load()), fields, [])
        return ast.copy_location(call, node)


def _parameter(operand: str, field: str, context: ast.expr_context | None = None) -> ast.expr:
    name = "gmem" if field == "data" else f"stride_{field}"
    return ast.Name(f"{operand}_{name}", context or ast.Load())


class _Unroller(ast.NodeTransformer):
    def __init__(self, constants: dict[str, Any]) -> None:
        self._constants = constants

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, _FOLDED) and not isinstance(getattr(node, "ctx", None), ast.Store):
            is_known, value = self._value(node)
            if is_known and _is_literal(value):
                return ast.copy_location(_literal(value), node)
        return super().visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and isinstance(node.slice, ast.Constant):
            name = f"{node.value.id}[{node.slice.value!r}]"
            if name in self._constants:
                return ast.copy_location(ast.Name(name, node.ctx), node)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        """Drop the parts of a condition that are known and do not decide it."""
        self.generic_visit(node)
        neutral = isinstance(node.op, ast.And)
        values = [v for v in node.values if not (_is_known(v) and bool(v.value) is neutral)]
        if not values or _is_known(values[0]):
            return values[0] if values else ast.copy_location(ast.Constant(neutral), node)
        node.values = values
        return node if len(values) > 1 else values[0]

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
                return True, False  # regardless of the other parts
        if not self._is_computable(node):
            return False, None
        if isinstance(node, ast.Name):
            return True, self._constants[node.id]
        return True, eval(_expression(node), {}, self._constants)

    def _is_computable(self, node: ast.AST) -> bool:
        """True if an expression has no calls, and only names of literals."""
        if isinstance(node, ast.Name):
            return _is_literal(self._constants.get(node.id, self._constants))
        if isinstance(node, ast.Call):
            return False
        parts = (part for value in vars(node).values() for part in _nodes(value))
        return all(map(self._is_computable, parts))


def _is_known(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant)


def _is_literal(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_literal, value))
    return value is None or isinstance(value, int | float | str)


def _literal(value: Any) -> ast.expr:
    if isinstance(value, int) and value >= 0:
        return ast.Constant(value)
    return ast.parse(repr(value), mode="eval").body


def _expression(node: Any) -> Any:
    return compile(ast.Expression(node), "<static_range>", "eval")


def _nodes(value: Any) -> list[ast.AST]:
    """Nodes in an attribute of a node: one node, a list of nodes, or none."""
    if isinstance(value, ast.AST):
        return [value]
    return [item for item in value if isinstance(item, ast.AST)] if isinstance(value, list) else []


def _copied(value: Any) -> Any:
    """Deep copy of a node, with line numbers; other values are returned unchanged."""
    if isinstance(value, list):
        return [_copied(item) for item in value]
    if not isinstance(value, ast.AST):
        return value
    copied = type(value)()
    fields = vars(copied)
    for name, part in vars(value).items():
        fields[name] = part if isinstance(part, _SHARED) else _copied(part)
    return copied
