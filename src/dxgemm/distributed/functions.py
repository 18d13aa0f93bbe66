"""The functions of `dxgemm.distributed`."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import torch

from dxgemm.distributed.calls import Call
from dxgemm.distributed.gradients import compute_with_gradients
from dxgemm.distributed.schedule import GATHER, METHODS, REDUCE, SCATTER
from dxgemm.epilogues import BoundEpilogue, Epilogue
from dxgemm.epilogues.chain import bound_epilogue
from dxgemm.errors import (
    DxgemmError,
    SettingError,
    ShapeError,
    UnsupportedProblemError,
    named_in_errors,
    shown,
)
from dxgemm.torch.operands import check_tensor

TIMEOUT_S = 300.0


@named_in_errors("all_gather_gemm")
def all_gather_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    group: Any = None,
    rows: Sequence[int] | None = None,
    out: torch.Tensor | None = None,
    epilogue: Epilogue | BoundEpilogue | None = None,
    method: str | None = None,
    timeout: float = TIMEOUT_S,
) -> torch.Tensor:
    """C = epilogue(A @ b), where A is the rows of all ranks one below the other.

    Args:
        a: (m_r, k), this rank's rows of A, float64, float32, float16, bfloat16, complex64 or
            complex128, any strides. Ranks may have different numbers of rows, or none.
        b: (k, n), dtype of a, any strides. Its values and n may differ between the ranks, as the
            columns of a sharded matrix do.
        group: process group of torch, with NCCL for CUDA tensors or gloo for CPU tensors; None for
            the default one.
        rows: row counts of all ranks; None for those of their shards.
        out: (m, n), dtype and device of a; None for a new tensor.
        epilogue: as `dxgemm.gemm` takes it, of C. Reductions and pairs of columns are not taken.
        method: None to choose; "plain", "chunked" or "peer" for exactly that.
        timeout: seconds that a rank waits for the others.

    Returns:
        out, or a new tensor (m, n): the whole product of A and this rank's b.

    Raises:
        DxgemmError: the arguments of a rank are wrong, or those of the ranks do not fit together:
            the same error on all ranks, before anything is transferred.
        RankError: the call failed on another rank, or an earlier one did; a rank did not come in
            time or has ended; or there is no process group.

    Notes:
        All ranks must call it, in the same order. Runs on torch's current stream and does not wait
        for the GPU. The hosts wait for each other: a call returns once all ranks have launched it.
        A rank on which it fails may repeat it with equal operands, within 10 seconds and `timeout`.
        Results are bit-equal over repeats. Differentiable in backward mode without an epilogue:
        gradients are those of the sum of all ranks' losses.
    """
    return _product(GATHER, a, b, group, rows, out, epilogue, method, timeout)


@named_in_errors("gemm_reduce_scatter")
def gemm_reduce_scatter(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    group: Any = None,
    rows: Sequence[int] | None = None,
    out: torch.Tensor | None = None,
    epilogue: Epilogue | BoundEpilogue | None = None,
    method: str | None = None,
    timeout: float = TIMEOUT_S,
) -> torch.Tensor:
    """C = epilogue(sum of a @ b over the ranks), of which each rank keeps its rows.

    Args:
        a: (m, k_r), this rank's columns of A, dtypes as in `all_gather_gemm`.
        b: (k_r, n), this rank's rows of B. Ranks may have different k_r, or none.
        rows: number of rows that each rank keeps, m in all; None for shares as `torch.chunk` makes
            them.
        out: (rows[rank], n), dtype and device of a; None for a new tensor.
        epilogue: as in `all_gather_gemm`, applied to this rank's rows once all are summed. Its
            operands have the shape of these rows, whose row indices begin at 0.
        group, method, timeout: as in `all_gather_gemm`.

    Returns:
        out, or a new tensor (rows[rank], n).

    Raises:
        DxgemmError, RankError: as in `all_gather_gemm`.

    Notes:
        As in `all_gather_gemm`. Partial sums are rounded to the dtype of a. Those of other ranks
        are added in the order of the ranks, and their sum is rounded; this rank's own is added to
        it last. NCCL, by "plain", adds in an order of its own.
    """
    return _product(SCATTER, a, b, group, rows, out, epilogue, method, timeout)


@named_in_errors("gemm_all_reduce")
def gemm_all_reduce(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    group: Any = None,
    out: torch.Tensor | None = None,
    epilogue: Epilogue | BoundEpilogue | None = None,
    method: str | None = None,
    timeout: float = TIMEOUT_S,
) -> torch.Tensor:
    """C = epilogue(sum of a @ b over the ranks), whole on each rank.

    Args:
        a: (m, k_r), this rank's columns of A, dtypes as in `all_gather_gemm`.
        b: (k_r, n), this rank's rows of B.
        out: (m, n), dtype and device of a; None for a new tensor. After an error it may hold this
            rank's partial sums.
        epilogue: as in `all_gather_gemm`, applied once all are summed.
        group, method, timeout: as in `all_gather_gemm`.

    Returns:
        out, or a new tensor (m, n), with the same sums on all ranks.

    Raises:
        DxgemmError, RankError: as in `all_gather_gemm`.
        UnsupportedProblemError: a gradient is needed, which this function does not have.

    Notes:
        As in `all_gather_gemm`.
    """
    return _product(REDUCE, a, b, group, None, out, epilogue, method, timeout)


def _product(
    operation: str, a: torch.Tensor, b: torch.Tensor, group: Any, *options: Any
) -> torch.Tensor:
    """Compute one of the operations, or tell all ranks that the arguments of this one are wrong."""
    try:
        call = _call(operation, a, b, *options)
    except DxgemmError as error:
        call = Call(operation, a, b, error=error)
    return compute_with_gradients(group, call)


def _call(operation: str, a: torch.Tensor, b: torch.Tensor, *options: Any) -> Call:
    """Make a call of arguments that have the right types."""
    rows, out, epilogue, method, timeout = options
    if not isinstance(timeout, (int, float)) or not timeout > 0:
        raise SettingError(f"{operation}: timeout is {shown(timeout)}; pass seconds above 0.")
    if method is not None and not isinstance(method, str):
        raise UnsupportedProblemError(
            f"{operation}: method is {shown(method)}; pass one of {', '.join(METHODS)}, or None."
        )
    chain = None if epilogue is None else bound_epilogue(epilogue)
    check_tensor(f"{operation}: a", a)
    check_tensor(f"{operation}: b", b)
    if out is not None:
        check_tensor(f"{operation}: out", out)
    values = () if chain is None else chain.values
    for label, value in zip(() if chain is None else chain.labels, values):
        if label:
            check_tensor(f"{operation}: {label}", value)
    try:
        counts = None if rows is None else tuple(map(index, rows))
    except TypeError:
        raise ShapeError(f"{operation}: rows is {shown(rows)}; pass integers.") from None
    needs = (False, False, False)
    if torch.is_grad_enabled():
        in_chain = any(isinstance(x, torch.Tensor) and x.requires_grad for x in values)
        needs = a.requires_grad, b.requires_grad, in_chain
    return Call(operation, a, b, counts, out, chain, method, timeout, needs)
