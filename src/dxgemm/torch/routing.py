"""The routing of torch's own products, inside a context, to batch-invariant kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import forward_ad

import dxgemm
from dxgemm.compiler.locks import Guard, lock_across_forks
from dxgemm.errors import LaunchError, named_in_errors
from dxgemm.gpu.status import simulator_enabled
from dxgemm.torch.operands import DTYPES


class _Routing:
    """State of `batch_invariant`: contexts that are open, and torch's record of the overrides."""

    lock = lock_across_forks()
    depth = 0
    library: Any = None


_routing = _Routing()


_changing = Guard(
    LaunchError,
    "batch_invariant: a signal handler or finalizer enters or leaves the context while its thread "
    "does so.",
)


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
        builds or loads its kernel, and is refused under CUDA-graph capture. Contexts can be nested.
        The products are overridden in torch's dispatcher (`torch.library`), below autograd: a mode
        over Python's functions would miss products that torch calls itself, such as those of a
        backward pass, and a mode over all operators would slow down those that are no products.
    """
    with _routing.lock, _changing:
        _routing.depth += 1
        if _routing.depth == 1:
            _routing.library = torch.library.Library("aten", "IMPL")
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Warning only once for all operators")
                for name, route in ROUTES.items():
                    # On the simulator, CPU tensors stand for those of a GPU.
                    _routing.library.impl(
                        name,
                        named_in_errors(f"torch.{name}")(route),
                        "CPU" if simulator_enabled() else "CUDA",
                    )
    try:
        yield
    finally:
        with _routing.lock, _changing:
            _routing.depth -= 1
            if _routing.depth == 0:
                _routing.library._destroy()
                _routing.library = None


def _invariant(
    name: str,
    c: torch.Tensor | None,
    a: torch.Tensor,
    b: torch.Tensor,
    alpha: Any = 1.0,
    beta: Any = 0.0,
) -> torch.Tensor:
    """alpha * a @ b + beta * c by a batch-invariant kernel; by torch's for other dtypes."""
    out = a.new_empty((*a.shape[:-1], b.shape[-1]))
    if a.dtype not in DTYPES:
        operator_of_torch = getattr(torch, name)  # with out=, which is not overridden
        if c is None:
            return operator_of_torch(a, b, out=out)
        return operator_of_torch(c, a, b, beta=beta, alpha=alpha, out=out)
    if c is not None:
        c = c.expand(out.shape)
    # Below autograd, operands still say that they need gradients or have tangents.
    with torch.no_grad(), forward_ad._set_fwd_grad_enabled(False):
        return dxgemm.gemm(a, b, c, alpha, beta, out=out, batch_invariant=True)


ROUTES: dict[str, Callable[..., torch.Tensor]] = {
    "mm": lambda a, b: _invariant("mm", None, a, b),
    "bmm": lambda a, b: _invariant("bmm", None, a, b),
    "mv": lambda a, b: _invariant("mm", None, a, b[:, None])[:, 0],
    "addmm": lambda c, a, b, *, beta=1, alpha=1: _invariant("addmm", c, a, b, alpha, beta),
    "addmv": lambda c, a, b, *, beta=1, alpha=1: _invariant(
        "addmm", c.expand(a.shape[:1])[:, None], a, b[:, None], alpha, beta
    )[:, 0],
    "baddbmm": lambda c, a, b, *, beta=1, alpha=1: _invariant("baddbmm", c, a, b, alpha, beta),
}
