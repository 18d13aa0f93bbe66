"""Shorter builds with numba, which compiles the same code to the same PTX in half of the time.

An unrolled kernel has thousands of statements. For each addition and cast numba tries the overloads
of the function again, tens of them; for each variable it searches the block for assignments; and
the garbage collector looks through its objects again and again.
"""

from __future__ import annotations

import gc
import operator
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from inspect import iscode
from typing import Any


def _resolving_once(resolve: Any) -> Any:
    """Resolve a function once for the same types of numbers and pointers, and tuples of these."""
    from numba import types

    known: dict[Any, Any] = {}

    def is_plain(kind: Any) -> bool:
        if isinstance(kind, types.BaseTuple):
            return all(map(is_plain, kind.types))
        return isinstance(kind, types.Number | types.Boolean | types.NumberClass | types.CPointer)

    def get_call_type(function: Any, context: Any, arguments: Any, named: Any) -> Any:
        if named or not all(map(is_plain, arguments)):
            return resolve(function, context, arguments, named)
        key = (context, function, arguments)
        if key not in known:
            known[key] = resolve(function, context, arguments, named)
        return known[key]

    return get_call_type


def _counting_assignments(_: Any) -> Any:
    """Find the variables that one block alone assigns and reads, and assigns once, in one pass."""
    from numba.cuda.core import ir
    from numba.cuda.core.analysis import compute_use_defs, must_use_alloca

    def find_singly_assigned(lower: Any) -> None:
        blocks = lower.func_ir.blocks
        assignments = Counter(
            statement.target.name
            for block in blocks.values()
            for statement in block.find_insts(ir.assign_types)
        )
        # Variables in `usemap` are read in blocks that have not assigned them before.
        usemap = compute_use_defs(blocks).usemap
        shared = set(must_use_alloca(blocks)).union(*usemap.values())
        once = {name for name, count in assignments.items() if count == 1}
        lower._singly_assigned_vars = once - shared
        lower._blk_local_varmap = {}

    return find_singly_assigned


def _listing_quickly(list_variables: Any) -> Any:
    """List the variables of a statement's parts; most are a variable, or have none."""
    from numba.cuda.core import ir

    without = {ir.Loc, str, int, bool, type(None), type(operator.add)}

    def list_of(statement: Any, part: Any) -> Any:
        if type(part) is ir.Var:
            return [part]
        return [] if type(part) in without else list_variables(statement, part)

    return list_of


def _remembering_types(resolve: Any) -> Any:
    """Resolve the type of a function, or of another constant that is called, once."""
    known: dict[int, Any] = {}

    def resolve_value_type(context: Any, value: Any) -> Any:
        if not callable(value):
            return resolve(context, value)
        if id(value) not in known:
            known[id(value)] = value, resolve(context, value)  # kept, so that it keeps its id
        return known[id(value)][1]

    return resolve_value_type


def _only_with_closures(run_pass: Any) -> Any:
    """Look for closures to inline only where a function has any, or calls `reduce`."""

    def run_pass_if_needed(step: Any, state: Any) -> bool:
        code = state.func_id.code
        is_needed = any(map(iscode, code.co_consts)) or "reduce" in code.co_names
        return is_needed and run_pass(step, state)

    return run_pass_if_needed


def _without_array_expressions(define_pipelines: Any) -> Any:
    """Leave out the pass that fuses expressions of whole arrays: kernels have none."""
    from numba.cuda.core.typed_passes import NopythonRewrites

    def define(compiler: Any) -> Any:
        managers = define_pipelines(compiler)
        for manager in managers:
            manager.passes = [step for step in manager.passes if step[0] is not NopythonRewrites]
            manager.finalize()
        return managers

    return define


def _without_blas(_: Any) -> Any:
    """Do not import SciPy to find out whether numba could call its BLAS: on a GPU it cannot."""

    def ensure_blas() -> None:
        raise ImportError

    return ensure_blas


# What is replaced, by module and name, and the function that makes the replacement of it.
_REPLACEMENTS = {
    ("numba.core.types", "BaseFunction.get_call_type"): _resolving_once,
    ("numba.cuda.lowering", "Lower._find_singly_assigned_variable"): _counting_assignments,
    ("numba.cuda.core.ir", "Inst._rec_list_vars"): _listing_quickly,
    ("numba.cuda.target", "CUDATypingContext.resolve_value_type"): _remembering_types,
    ("numba.cuda.core.untyped_passes", "InlineClosureLikes.run_pass"): _only_with_closures,
    ("numba.cuda.compiler", "CUDACompiler.define_pipelines"): _without_array_expressions,
    ("numba.cuda.np.linalg", "ensure_blas"): _without_blas,
}


@contextmanager
def short_builds() -> Iterator[None]:
    """Replace what takes numba long by what does the same for kernels; other builds wait.

    A version of numba that has one of these elsewhere keeps it, and builds longer.
    """
    from numba.cuda.core.compiler_lock import global_compiler_lock

    with global_compiler_lock, ExitStack() as replaced:
        for (module, path), make in _REPLACEMENTS.items():
            with suppress(ImportError, AttributeError):
                owner: Any = import_module(module)
                *classes, name = path.split(".")
                for inner in classes:
                    owner = getattr(owner, inner)
                original = getattr(owner, name)
                setattr(owner, name, make(original))
                replaced.callback(setattr, owner, name, original)
        yield


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector; a build then takes a twentieth more memory."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
