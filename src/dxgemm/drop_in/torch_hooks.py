"""Hooks in torch: the kernels of its products, which are overridden in torch's dispatcher.

The override is below autograd (`torch.library`): a mode over Python's functions would miss products
that torch calls itself, such as those of a backward pass, and a mode over all operators would slow
down those that are no products.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import forward_ad

from dxgemm import api
from dxgemm.drop_in import routing
from dxgemm.drop_in.routing import Hook, current
from dxgemm.errors import DxgemmError
from dxgemm.gpu.status import simulator_enabled

OPERATORS = ("mm", "bmm", "mv", "addmm", "addmv", "baddbmm")
_NAMES = {getattr(torch, name): name for name in routing.DTYPES}
_INVARIANT_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class _State:
    """torch's record of the overrides, and the open contexts of `batch_invariant`."""

    library: Any = None
    invariant = 0


def install() -> None:
    """Override the kernels of the GPU; on the simulator, CPU tensors stand for those of a GPU."""
    device = "CPU" if simulator_enabled() else "CUDA"
    kernels = {name: torch.library.get_kernel(f"aten::{name}", device) for name in OPERATORS}
    _State.library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        for name, kernel in kernels.items():
            hook = Hook(f"torch.{name}", _own(name), kernel.call_boxed, _stream, _dtype)
            _State.library.impl(name, _hooked(hook), device, with_keyset=True)


def uninstall() -> None:
    """Give torch its kernels back."""
    _State.library._destroy()
    _State.library = None


@contextmanager
def batch_invariant() -> Iterator[None]:
    """Compute products by batch-invariant kernels, in all threads, whatever patches are open."""
    routing.install()
    with routing.Hooks.lock, routing.Hooks.changing:
        _State.invariant += 1
    try:
        yield
    finally:
        with routing.Hooks.lock, routing.Hooks.changing:
            _State.invariant -= 1
        routing.uninstall()


def _stream(_: Any, a: torch.Tensor, *others: Any) -> int:
    return 0 if a.device.type == "cpu" else torch.cuda.current_stream(a.device).cuda_stream


def _dtype(arguments: Any, _: Any) -> str:
    dtype = arguments[-1].dtype
    return _NAMES.get(dtype) or str(dtype)


def _hooked(hook: Hook) -> Callable[..., torch.Tensor]:
    name = hook.name

    def product(keyset: Any, *operands: torch.Tensor, **factors: Any) -> torch.Tensor:
        if _State.invariant:
            if operands[-1].dtype not in _INVARIANT_DTYPES:
                return hook.theirs(keyset, *operands, **factors)
            try:
                return hook.own(keyset, *operands, **factors, batch_invariant=True)
            except DxgemmError as error:
                error.name_call(hook.name)
                raise
        patch = current()
        if patch is None:
            return hook.theirs(keyset, *operands, **factors)
        a, b = operands[-2:]
        # In one piece: each step of a loop would take as long as a field.
        layout: tuple[Any, ...] = (
            name, a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype
        )  # fmt: skip
        if len(operands) > 2 or factors:
            addend = operands[0]
            layout += addend.shape, addend.stride(), addend.dtype, *factors.items()
        return patch.compute(hook, layout, (keyset, *operands), factors)

    return product


def _levels() -> int:
    """Open levels of forward mode, counted from 0; -1 for none."""
    return getattr(forward_ad, "_current_level", 0)


def _own(name: str) -> Callable[..., torch.Tensor]:
    """Function that computes an operator by `gemm`."""
    is_vector = name in ("mv", "addmv")

    def add(
        _: Any, addend: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *,
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

    def multiply(_: Any, a: torch.Tensor, b: torch.Tensor, **options: Any) -> torch.Tensor:
        if is_vector:
            b = b[:, None]
        # Below autograd, operands still say that they need gradients or have tangents.
        if _levels() < 0 and not (a.requires_grad or b.requires_grad):
            result = api.gemm(a, b, **options)
        else:
            with torch.no_grad(), forward_ad._set_fwd_grad_enabled(False):
                result = api.gemm(a, b, **options)
        return result[:, 0] if is_vector else result

    return multiply if name in ("mm", "bmm", "mv") else add
