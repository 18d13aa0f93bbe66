"""Problems that wgmma can compute, and the tensor maps with which TMA reads their operands."""

from __future__ import annotations

from typing import Any, NamedTuple

from dxgemm.handwritten.parts.k_ranges import UNIT, exchanged
from dxgemm.handwritten.parts.kernel import tiles_of
from dxgemm.handwritten.parts.operands import ITEM_BYTES, exchanged_dtype
from dxgemm.handwritten.parts.tensor_map import MOST_ELEMENTS, TensorMap, operand_of
from dxgemm.handwritten.parts.wgmma_ring import ROW_BYTES

LEAST_TILE = 64  # least rows and columns of a tile
TENSOR_MAPS = ("a_tensor_map", "b_tensor_map")  # parameters that follow those of every kernel


def stage_k(dtype: str) -> int:
    """k per stage."""
    return ROW_BYTES // ITEM_BYTES[dtype]


def supports_sizes(problem: Any, products: int = 1) -> str | None:
    """Reason why 32-bit indices do not reach all tiles of a problem; None if they do.

    Args:
        problem: the problem.
        products: products per matrix, see `place`.
    """
    tiles = problem.batch * products * -(-problem.m // LEAST_TILE) * -(-problem.n // LEAST_TILE)
    if max(problem.m, problem.n, problem.k, tiles) > MOST_ELEMENTS:
        return f"its 32-bit indices count to {MOST_ELEMENTS} along m, n, k, and over the tiles"
    return None


def supports_tma(problem: Any) -> str | None:
    """Reason why TMA cannot read a problem's operands, in boxes for tiles; None if it can."""
    reason = supports_sizes(problem)
    if reason is not None or problem.k == 0:
        return reason
    return operand_of(problem, "a").refusal() or operand_of(problem, "b").refusal()


def supports(problem: Any) -> str | None:
    """Reason why wgmma or TMA cannot take a problem; None if they can."""
    if problem.dtype == "float32" and problem.precision != "tf32":
        return "wgmma has no float32; precision='tf32' permits TF32"
    reason = supports_tma(problem)
    if reason is not None or problem.k == 0:
        return reason
    across = [name for name in "ab" if operand_of(problem, name).innermost == "mn"]
    if ITEM_BYTES[problem.dtype] == 1 and across:
        return f"wgmma of bytes needs {' and '.join(across)} contiguous along k"
    if problem.dtype == "float32":
        if len(across) == 2:
            return "tf32 wgmma needs a or b contiguous along k"
        if problem.triangle and across:
            return "operands in registers leave none for a second store"
    return None


def variant(config: Any, problem: Any) -> tuple[str, ...]:
    """Layouts of a and b, "k" (K-major) or "mn"; the result's dtype; triangle; "sliced"; k_ranges.

    Trailing items are left out if they have their defaults: the operands' dtype, no triangle, k not
    sliced, full operands. In their places are "clears" and `Problem.clears` for operands with other
    elements beside their diagonals.
    """
    lies = _innermost(problem)
    if problem.clears:
        return *lies, problem.out_dtype, "", "clears", problem.clears
    if problem.k_ranges:
        return *lies, problem.out_dtype, "", "", problem.k_ranges
    if problem.slices > 1:
        return *lies, problem.out_dtype, problem.triangle, "sliced"
    if problem.triangle:
        return *lies, problem.out_dtype, problem.triangle
    return lies if problem.out_dtype == problem.dtype else (*lies, problem.out_dtype)


def block_count(config: Any, problem: Any) -> int:
    """Tiles of the results, which the persistent blocks share."""
    pair_m, pair_n = config.pair
    tile = config.tile_m * pair_m, config.tile_n * pair_n
    if is_exchanged(config, problem.dtype, *_innermost(problem), problem.triangle):
        tile = tile[::-1]
    blocks: int = problem.batch * tiles_of(problem, *tile) * config.cluster
    return blocks


def tensor_maps(config: Any, problem: Any) -> tuple[TensorMap | None, ...]:
    """Tensor maps of a and b, with the boxes that the producer copies; None if nothing is read."""
    if problem.k == 0:
        return None, None
    row_items = stage_k(problem.dtype)
    element = "tfloat32" if problem.dtype == "float32" else problem.dtype
    element = "int8" if ITEM_BYTES[problem.dtype] == 1 else element
    # The extent of a tile, and the number of blocks that share it: each fetches some of its rows.
    pair_m, pair_n = config.pair
    extents = [(config.tile_m, pair_n), (config.tile_n, pair_m)]
    if is_exchanged(config, problem.dtype, *_innermost(problem), problem.triangle):
        extents.reverse()
    maps = []
    for name, (extent, blocks) in zip(("a", "b"), extents, strict=True):
        operand = operand_of(problem, name)
        along_k = operand.innermost == "k"
        box = (extent // blocks, row_items) if along_k else (row_items, row_items // blocks)
        maps.append(operand.tensor_map(element, *box))
    return tuple(maps)


def packed_map(
    name: str, element: str, inner: int, rows: int, matrices: int, row_items: int, box_rows: int
) -> TensorMap:
    """Tensor map of an operand in a workspace: rows of `inner` items, `row_items` apart."""
    item_bytes = {"int8": 1, "tfloat32": 4}.get(element, 2)
    row_bytes = row_items * item_bytes
    return TensorMap(
        operand=name,
        element=element,
        sizes=(inner, rows, matrices),
        stride_bytes=(row_bytes, rows * row_bytes),
        box=(ROW_BYTES // item_bytes, box_rows, 1),
    )


def _innermost(problem: Any) -> tuple[str, str]:
    """Layouts of a and b: "k" or "mn"; "k" for operands that are not read."""
    if problem.k == 0:
        return "k", "k"
    return operand_of(problem, "a").innermost or "k", operand_of(problem, "b").innermost or "k"


def is_exchanged(
    config: Any, dtype: str, a_innermost: str, b_innermost: str, stored: str = ""
) -> bool:
    """True if out.T = b.T @ a.T is computed: tf32 wgmma cannot read an MN-major b.

    A config may request it too, but not for the triangle of a symmetric result.
    """
    return (dtype == "float32" and b_innermost == "mn") or (config.is_turned and not stored)


class Orientation(NamedTuple):
    """Operands as they are multiplied: a and b, or b.T and a.T for the transposed result.

    Fields: whether the latter; the dtype, that of the left operand first; whether the left and the
    right operand are MN-major; parameters of their tensor maps; their `k_ranges`; their triangles
    as `Problem.clears` has them.
    """

    is_exchanged: bool
    dtype: str
    left_across: bool
    right_across: bool
    maps: tuple[str, ...]
    ranges: str
    clears: str


def orient(
    config: Any, dtype: str, a_innermost: str, b_innermost: str, stored: str, ranges: str,
    slicing: str = "",
) -> Orientation:  # fmt: skip
    """Orient the operands of a kernel, whose variant this is."""
    across, maps = (a_innermost == "mn", b_innermost == "mn"), TENSOR_MAPS
    is_turned = is_exchanged(config, dtype, a_innermost, b_innermost, stored)
    if is_turned:
        dtype, ranges = exchanged_dtype(dtype), exchanged(ranges)
        across, maps = across[::-1], maps[::-1]
    clears = ranges if slicing == "clears" else ""
    return Orientation(is_turned, dtype, *across, maps, ranges.replace(UNIT, ""), clears)
