"""Products of torch's `DTensor`, by the sharded product that their placements ask for."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

import dxgemm.torch
from dxgemm import errors
from dxgemm.distributed.functions import (
    TIMEOUT_S,
    all_gather_gemm,
    gemm_all_reduce,
    gemm_reduce_scatter,
)
from dxgemm.distributed.schedule import METHODS, even_rows
from dxgemm.problem.arguments import check_name

# Placements of the result, by those of a and b; the first one is the default.
RESULTS: dict[tuple[Placement, Placement], tuple[Placement, ...]] = {
    (Shard(0), Shard(1)): (Shard(1),),
    (Shard(1), Shard(0)): (Shard(0), Replicate()),
    (Shard(0), Replicate()): (Shard(0),),
    (Replicate(), Shard(1)): (Shard(1),),
    (Replicate(), Replicate()): (Replicate(),),
}


@errors.named_in_errors("dxgemm.distributed.gemm")
def gemm(
    a: DTensor,
    b: DTensor,
    *,
    placement: Any = None,
    method: str | None = None,
    timeout: float = TIMEOUT_S,
) -> DTensor:
    """C = A @ B for tensors that are sharded over a mesh of one dimension.

    | a | b | product | result |
    |---|---|---|---|
    | Shard(0) | Shard(1) | `all_gather_gemm` | Shard(1) |
    | Shard(1) | Shard(0) | `gemm_reduce_scatter` | Shard(0) |
    | Shard(1) | Shard(0) | `gemm_all_reduce`, for `placement=Replicate()` | Replicate() |
    | Shard(0) | Replicate() | of each rank alone | Shard(0) |
    | Replicate() | Shard(1) | of each rank alone | Shard(1) |
    | Replicate() | Replicate() | of each rank alone | Replicate() |

    Args:
        a, b: (m, k) and (k, n), of one mesh, sharded as by `distribute_tensor`.
        placement: placement of the result; None for the first in the table.
        method, timeout: as in `all_gather_gemm`.

    Returns:
        A new DTensor (m, n).

    Raises:
        RankError: the mesh's group was destroyed.
        UnsupportedProblemError: no product of the table has these placements, or the mesh has more
            dimensions.
        DxgemmError: as in `all_gather_gemm`.

    Notes:
        Differentiable as `all_gather_gemm` and `gemm_reduce_scatter` are.
    """
    for name, operand in (("a", a), ("b", b)):
        if not isinstance(operand, DTensor):
            raise errors.ArrayTypeError(
                f"gemm: {name} is a {type(operand).__name__}; pass a DTensor."
            )
    mesh = a.device_mesh
    if mesh != b.device_mesh or mesh.ndim != 1:
        raise errors.UnsupportedProblemError(
            f"gemm: a is on {mesh}, b on {b.device_mesh}; pass one mesh of one dimension."
        )
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise errors.ShapeError(
            f"gemm: a is {tuple(a.shape)}, b is {tuple(b.shape)}; they must be (m, k) and (k, n)."
        )
    if not isinstance(placement, Placement | None):
        raise errors.UnsupportedProblemError(
            f"gemm: placement is {errors.shown(placement)}; pass Shard(0) or Replicate(), or None."
        )
    if method is not None:
        check_name("method", method, METHODS, errors.UnsupportedProblemError)
    (placed_a,), (placed_b,) = a.placements, b.placements
    local_a, local_b = a.to_local(), b.to_local()
    try:
        group = mesh.get_group()
    except Exception as error:
        raise errors.RankError(
            f"gemm: {mesh} has no process group ({error}), as after destroy_process_group; make "
            "the tensors anew, on a mesh of a living group."
        ) from None
    options: dict[str, Any] = {"group": group, "method": method, "timeout": timeout}
    pair = placed_a, placed_b
    (m, n), ranks = (a.shape[0], b.shape[1]), mesh.size()
    found = RESULTS.get(pair, (None,))
    made = found[0] if placement is None else placement
    if made is None or made not in found:
        raise errors.UnsupportedProblemError(
            f"gemm: no product of {placed_a} and {placed_b} is {placement or 'known'}; "
            "redistribute one of them."
        )
    if pair == (Shard(0), Shard(1)):
        local = all_gather_gemm(local_a, local_b, rows=even_rows(m, ranks), **options)
    elif pair != (Shard(1), Shard(0)):
        local = dxgemm.torch.gemm(local_a, local_b)
    elif made.is_shard():
        local = gemm_reduce_scatter(local_a, local_b, rows=even_rows(m, ranks), **options)
    else:
        local = gemm_all_reduce(local_a, local_b, **options)
    return DTensor.from_local(
        local, mesh, [made], run_check=False, shape=torch.Size((m, n)), stride=(n, 1)
    )
