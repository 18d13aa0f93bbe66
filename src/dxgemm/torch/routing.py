"""The routing of torch's own products, inside a context, to batch-invariant kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dxgemm.drop_in import torch_hooks


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
    with torch_hooks.batch_invariant():
        yield
