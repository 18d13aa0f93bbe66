"""Hooks in torch: the kernels of its products are overridden in its dispatcher, or passed by.

The override is below autograd (`torch.library`): a mode over Python's functions would miss products
that torch calls itself, such as those of a backward pass, and a mode over all operators would slow
down those that are no products. Python's functions of plain matrices are replaced as well: a call
of one needs no dispatcher, on its way here or to torch's own kernel.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial, wraps
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.jit._builtins import _register_builtin

from dxgemm import api
from dxgemm.drop_in import routing
from dxgemm.drop_in.routing import Hook, Replaced, current
from dxgemm.errors import DxgemmError, ShapeError
from dxgemm.gpu.status import simulator_enabled
from dxgemm.runtime.arrays import Unusable, find_library

OPERATORS = ("mm", "bmm", "mv", "addmm", "addmv", "baddbmm")
# Functions of Python for two matrices or batches, and the operator that they call for plain ones.
DIRECT = (
    (torch, "mm", "mm"), (torch, "matmul", "mm"), (torch, "bmm", "bmm"),
    (torch.Tensor, "mm", "mm"), (torch.Tensor, "matmul", "mm"), (torch.Tensor, "bmm", "bmm"),
    (torch.Tensor, "__matmul__", "mm"),
)  # fmt: skip
_DEVICE = "CPU" if simulator_enabled() else "CUDA"
_NAMES = {getattr(torch, name): name for name in routing.DTYPES}
_INVARIANT_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class _State:
    """torch's record of the overrides, and the open contexts of `batch_invariant`."""

    library: Any = None
    invariant = 0
    replaced = Replaced()


def install() -> None:
    """Override the kernels of the GPU; on the simulator, CPU tensors stand for those of a GPU."""
    functions = _functions()
    _State.library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        for name, (kernel, direct) in functions.items():
            _State.library.impl(name, kernel, _DEVICE)
            for owner, attribute, function in direct:
                _State.replaced.put(owner, attribute, function)


@cache
def _functions() -> dict[str, tuple[Callable[..., Any], list[tuple[Any, str, Any]]]]:
    """Find the kernel that overrides each operator, and the functions that replace Python's."""
    functions, is_watched = {}, _make_is_watched()
    # torch's kernels are called for plain tensors of its device, whatever else a call had to pass.
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _DEVICE))
    for name in OPERATORS:
        theirs = partial(torch.library.get_kernel(f"aten::{name}", _DEVICE).call_boxed, keys)
        hook = Hook(f"torch.{name}", _own(name), theirs, _stream, _dtype)
        direct = [
            (owner, attribute, _direct(getattr(owner, attribute), hook, is_watched))
            for owner, attribute, of in DIRECT
            if of == name
        ]
        for owner, attribute, function in direct:
            if owner is torch:  # for torch.jit.script, by the function's id: it is kept
                _register_builtin(function, f"aten::{attribute}")
        functions[name] = _hooked(hook), direct
    return functions


def uninstall() -> None:
    """Give torch its kernels and functions back."""
    _State.replaced.put_back()
    _State.library._destroy()
    _State.library = None


@contextmanager
def batch_invariant() -> Iterator[None]:
    """Compute torch's own products on the GPU by batch-invariant kernels of dxgemm.

    Inside the context, in all threads of the process, row i of a product has the same bits however
    many rows and matrices there are ([semantics](semantics.md#batch-invariance)). It holds for
    `torch.mm`, `bmm`, `addmm`, `baddbmm`, `mv` and `addmv`, and for what torch computes by them:
    `matmul`, `@`, `einsum`, `torch.nn.functional.linear`, and the gradients that are computed
    inside the context.

    Notes:
        float32, float64, float16 and bfloat16, in eager mode; `torch.compile` calls kernels of its
        own. Other dtypes, CPU tensors, and calls with `out=`, are torch's as before. A first call
        builds or loads its kernel, and is refused under CUDA-graph capture. Contexts can be nested,
        and come before those of `dxgemm.patch`, by whose hooks they work.
    """
    routing.install()
    with routing.Hooks.lock, routing.Hooks.changing:
        _State.invariant += 1
    try:
        yield
    finally:
        with routing.Hooks.lock, routing.Hooks.changing:
            _State.invariant -= 1
        routing.uninstall()


def _stream(a: torch.Tensor, *others: Any) -> int:
    return 0 if a.device.type == "cpu" else torch.cuda.current_stream(a.device).cuda_stream


def _dtype(arguments: Any, _: Any) -> str:
    dtype = arguments[-1].dtype
    return _NAMES.get(dtype) or str(dtype)


def _hooked(hook: Hook) -> Callable[..., torch.Tensor]:
    name = hook.name
    is_batch = "bmm" in name
    ndims = (3, 3) if is_batch else (2, 1) if "mv" in name else (2, 2)

    def product(*operands: torch.Tensor, **factors: Any) -> torch.Tensor:
        a, b = operands[-2:]
        a_shape, b_shape = a.shape, b.shape
        if (len(a_shape), len(b_shape)) != ndims or (is_batch and a_shape[0] != b_shape[0]):
            return hook.theirs(*operands, **factors)  # refuses what `gemm` broadcasts
        if _State.invariant:
            if operands[-1].dtype not in _INVARIANT_DTYPES:
                return hook.theirs(*operands, **factors)
            try:
                return hook.own(*operands, **factors, batch_invariant=True)
            except DxgemmError as error:
                error.name_call(hook.name)
                raise
        patch = current()
        if patch is None:
            return hook.theirs(*operands, **factors)
        # In one piece: each step of a loop would take as long as a field.
        layout: tuple[Any, ...] = (
            name, a_shape, a.stride(), a.dtype, b_shape, b.stride(), b.dtype
        )  # fmt: skip
        if len(operands) > 2 or factors:
            addend = operands[0]
            layout += addend.shape, addend.stride(), addend.dtype, *factors.items()
        return patch.compute(hook, layout, operands, factors)

    return product


def _direct(
    theirs: Callable[..., Any], hook: Hook, is_watched: Callable[[], bool]
) -> Callable[..., Any]:
    """Function that takes plain matrices past the dispatcher, and leaves all else to torch."""
    ndim = 3 if hook.name == "torch.bmm" else 2
    library, kinds = find_library("a", torch.empty(0)), (torch.Tensor, torch.nn.Parameter)
    is_compiling = torch.compiler.is_compiling

    def takes(*keys: Any) -> bool:
        """True for memory of the GPU whose values are those of the tensors, of one batch."""
        return all(
            type(key) is not Unusable and len(key[0]) == ndim
            and key[3].type == _DEVICE.lower() and not key[5] and key[0][:-2] == keys[0][0][:-2]
            for key in keys
        )  # fmt: skip

    hook = hook._replace(own=api.gemm, takes=takes, elsewhere=theirs)

    @wraps(theirs)
    def product(*operands: Any, **options: Any) -> Any:
        if len(operands) != 2 or options or is_compiling() or is_watched():
            return theirs(*operands, **options)
        a, b = operands
        patch = current()
        if (
            patch is None or type(a) not in kinds or type(b) not in kinds
            or a.requires_grad or b.requires_grad
        ):  # fmt: skip
            return theirs(a, b)
        return patch.multiply(hook, library, a, b)

    return product


def _make_is_watched() -> Callable[[], bool]:
    """Function that tells whether anything is active that looks at torch's calls."""
    c, functorch = torch._C, torch._C._functorch
    in_function_mode, is_autocast = c._is_torch_function_mode_enabled, c._is_any_autocast_enabled
    dispatch_modes, trace = c._len_torch_dispatch_stack, c._get_tracing_state
    transform = functorch.peek_interpreter_stack

    def is_watched() -> bool:
        return (
            dispatch_modes() > 0 or in_function_mode() or is_autocast()
            or forward_ad._current_level >= 0
            or transform() is not None or trace() is not None or _State.invariant > 0
        )  # fmt: skip

    return is_watched


def _levels() -> int:
    """Open levels of forward mode, counted from 0; -1 for none."""
    return getattr(forward_ad, "_current_level", 0)


def _own(name: str) -> Callable[..., torch.Tensor]:
    """Function that computes an operator by `gemm`."""
    is_vector, adds = name in ("mv", "addmv"), name.startswith(("add", "badd"))

    def compute(
        *operands: torch.Tensor, beta: Any = int(adds), alpha: Any = 1, **options: Any
    ) -> torch.Tensor:
        *addends, a, b = operands
        c = out = None
        cols = () if is_vector else b.shape[-1:]
        for addend in addends:
            try:
                c = addend.expand((*a.shape[:-1], *cols))
            except RuntimeError as error:  # of shapes that torch refuses in its own words
                raise ShapeError(f"gemm: {error}") from error
            c = c[:, None] if is_vector else c
            out = a.new_empty(c.shape)
        if is_vector:
            b = b[:, None]
        # Below autograd, operands still say that they need gradients or have tangents.
        if _levels() < 0 and not any(x.requires_grad for x in operands):
            result = api.gemm(a, b, c, alpha, beta, out=out, **options)
        else:
            with torch.no_grad(), forward_ad._set_fwd_grad_enabled(False):
                result = api.gemm(a, b, c, alpha, beta, out=out, **options)
        return result[:, 0] if is_vector else result

    return compute
