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
from dxgemm.drop_in.routing import Hook, Replaced, current, multiply
from dxgemm.errors import DxgemmError
from dxgemm.gpu.status import simulator_enabled

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
    functions, can_pass = {}, _make_can_pass()
    # torch's kernels are called for plain tensors of its device, whatever else a call had to pass.
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _DEVICE))
    for name in OPERATORS:
        theirs = partial(torch.library.get_kernel(f"aten::{name}", _DEVICE).call_boxed, keys)
        hook = Hook(f"torch.{name}", _own(name), theirs, _stream, _dtype)
        direct = [
            (owner, attribute, _direct(getattr(owner, attribute), hook, can_pass))
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

    def product(*operands: torch.Tensor, **factors: Any) -> torch.Tensor:
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
        a, b = operands[-2:]
        # In one piece: each step of a loop would take as long as a field.
        layout: tuple[Any, ...] = (
            name, a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype
        )  # fmt: skip
        if len(operands) > 2 or factors:
            addend = operands[0]
            layout += addend.shape, addend.stride(), addend.dtype, *factors.items()
        return patch.compute(hook, layout, operands, factors)

    return product


def _direct(
    theirs: Callable[..., Any], hook: Hook, can_pass: Callable[..., bool]
) -> Callable[..., Any]:
    """Function that takes plain matrices past the dispatcher, and leaves all else to torch."""
    name, ndim = hook.name, 3 if hook.name == "torch.bmm" else 2
    hook = hook._replace(own=multiply)
    is_compiling = torch.compiler.is_compiling

    @wraps(theirs)
    def product(*operands: Any, **options: Any) -> Any:
        if len(operands) != 2 or options or is_compiling() or not can_pass(*operands):
            return theirs(*operands, **options)
        a, b = operands
        a_shape, b_shape = a.shape, b.shape
        if not len(a_shape) == ndim == len(b_shape):
            return theirs(a, b)
        patch = current()
        if patch is None:
            return hook.theirs(a, b)
        layout = name, a_shape, a.stride(), a.dtype, b_shape, b.stride(), b.dtype
        return patch.compute(hook, layout, operands, {})

    return product


def _make_can_pass() -> Callable[[Any, Any], bool]:
    """Make the test whether two operands can pass the dispatcher: it is one call, as it is timed.

    It is true for tensors in memory of the GPU as they say, without gradients, while nothing is
    active that looks at torch's calls.
    """
    c, functorch = torch._C, torch._C._functorch
    in_function_mode, is_autocast = c._is_torch_function_mode_enabled, c._is_any_autocast_enabled
    dispatch_modes, trace = c._len_torch_dispatch_stack, c._get_tracing_state
    transform = functorch.peek_interpreter_stack
    plain, strided = (torch.Tensor, torch.nn.Parameter), torch.strided
    on_gpu = getattr(torch.Tensor, f"is_{_DEVICE.lower()}").__get__

    def can_pass(a: Any, b: Any) -> bool:
        return (
            type(a) in plain and type(b) in plain and on_gpu(a) and on_gpu(b)
            and a.layout is b.layout is strided and not (
                a.requires_grad or a.is_nested or a.is_neg() or a._is_zerotensor()
                or b.requires_grad or b.is_nested or b.is_neg() or b._is_zerotensor()
                or dispatch_modes() > 0 or in_function_mode() or is_autocast()
                or forward_ad._current_level >= 0
                or transform() is not None or trace() is not None or _State.invariant > 0
            )
        )  # fmt: skip

    return can_pass


def _levels() -> int:
    """Open levels of forward mode, counted from 0; -1 for none."""
    return getattr(forward_ad, "_current_level", 0)


def _own(name: str) -> Callable[..., torch.Tensor]:
    """Function that computes an operator by `gemm`."""
    is_vector = name in ("mv", "addmv")

    def add(
        addend: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *,
        beta: Any = 1, alpha: Any = 1, **options: Any,
    ) -> torch.Tensor:  # fmt: skip
        if is_vector:
            addend, b = addend.expand(a.shape[:1])[:, None], b[:, None]
        out = a.new_empty((*a.shape[:-1], b.shape[-1]))
        c = addend.expand(out.shape)
        if _levels() < 0 and not (addend.requires_grad or a.requires_grad or b.requires_grad):
            result = api.gemm(a, b, c, alpha, beta, out=out, **options)
        else:
            with torch.no_grad(), forward_ad._set_fwd_grad_enabled(False):
                result = api.gemm(a, b, c, alpha, beta, out=out, **options)
        return result[:, 0] if is_vector else result

    def product(a: torch.Tensor, b: torch.Tensor, **options: Any) -> torch.Tensor:
        if is_vector:
            b = b[:, None]
        # Below autograd, operands still say that they need gradients or have tangents.
        if _levels() < 0 and not (a.requires_grad or b.requires_grad):
            result = api.gemm(a, b, **options)
        else:
            with torch.no_grad(), forward_ad._set_fwd_grad_enabled(False):
                result = api.gemm(a, b, **options)
        return result[:, 0] if is_vector else result

    return product if name in ("mm", "bmm", "mv") else add
