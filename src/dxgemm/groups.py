"""Public functions of groups of products: `gemm_grouped` and its plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dxgemm.call.group import Group, GroupedPlan
from dxgemm.call.scales import with_group_scales
from dxgemm.errors import MissingOperandError, UnsupportedProblemError, named_in_errors
from dxgemm.problem.arguments import Number, with_arguments_of, with_modulus
from dxgemm.runtime.capture import first_call


@named_in_errors("gemm_grouped")
def gemm_grouped(
    a: Any,
    b: Any,
    c: Any = None,
    alpha: Number | Sequence[Number] = 1.0,
    beta: Number | Sequence[Number] = 0.0,
    *,
    out: Any = None,
    offsets: Any = None,
    rows: Any = None,
    out_rows: Any = None,
    epilogue: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
    scale_out: Any = None,
    modulus: int | None = None,
    stream: Any = None,
) -> Any:
    """C[i] = alpha[i] * A[i] @ B[i] + beta[i] * C[i] for problems of any sizes, in one launch.

    The problems are lists of arrays, or the parts of one array that `offsets` tells apart.

    Args:
        a: a list or tuple; each array (m, k), any strides, of any library that `gemm` takes, all
            float32, float64, float16, bfloat16 or float8; without offsets also complex64,
            complex128, bool or integers. Sizes may differ from problem to problem.
        b: list of the same length; each array (k, n) for the k of its a.
        c: list of the same length; each array (m, n), all in the dtype of a or, after half
            precision, all float32; after integers and bool, all in one that `gemm` allows. Updated
            in place; None to allocate each result in the library of its a, as `gemm` does.
        alpha, beta: numbers on the host as `gemm` takes them, one for all problems or one for each.
        out: list of the same length; each array receives its result instead of c, which is then
            only read.
        offsets: (groups,), int32 or int64, where the operands are: the last index of each problem
            plus one, as in torch's grouped product. Then a, b, c and out are one array each, alpha
            and beta one number each, and offsets share out one dimension: rows, for a (total, k),
            b (groups, k, n) and a result (total, n); columns, for (groups, m, k), (k, total) and
            (m, total); or the inner one, for (m, total), (total, n) and (groups, m, n).
        rows: (total,), int32 or int64, where the operands are, with groups of rows: a has any
            number of rows, and row i of the result is made of row rows[i] of a. Indices outside of
            a count as the nearest row. The GPU copies the rows into a workspace first.
        out_rows: (total,), int32 or int64, where the operands are, with groups of rows: row i of
            the result is stored in row out_rows[i] of out, which has any number of rows and must be
            given. Other rows of out stay as they are; indices outside of out store nothing; where
            an index repeats, elements of any of its rows stay. c is read at row i. The GPU computes
            the result in a workspace first.
        epilogue: with offsets, functions applied to the result, as `gemm` has them but for
            reductions. Arrays belong to the whole result. A row vector may be (groups, n) with
            groups of rows; with groups of the inner dimension, any array may be that of a batch.
        scale_a, scale_b, scale_out: as `gemm` takes them, one for all problems, or a list of one
            for each. With offsets, scales of the rows (columns) that are shared out are those of
            all of them, in the order of `rows` if there are indices, and blocks of 128 k are of
            single ones; scales of the other operand may be (groups, ...), a matrix for each.
        modulus: as `gemm` takes it, for lists.
        stream: where to launch; None for the current stream of the library of the first result.

    Returns:
        The list of out, or of c, or of the new arrays; an empty one for empty lists. With offsets
        out, or c, or the new array.

    Raises:
        DxgemmError: any error of `gemm`, with the problem's index, before anything is launched or
            written.
        LaunchError: the driver refused the launch or a copy, or the stream is under capture.

    Notes:
        Each problem follows the rules of `gemm`: beta == 0 never reads c, alpha == 0 never reads a
        and b, k == 0 gives beta * c. Empty problems are skipped.
        No result may share elements with another result, or with an operand of any problem; results
        are computed in no order. Operands that are only read may be the same.
        The table of the problems is built on the host at each call and uploaded on the stream; the
        host does not wait. `plan_grouped` builds and uploads the table once.
        Problems run one after the other if an operand is in host memory, in complex dtypes, of
        integers and of float8, on the simulator, and on GPUs before Ampere.
        With offsets the table is made on the device: the host reads nothing, does not wait, and the
        call can be captured in a CUDA graph. Offsets must not decrease. Of the result, what lies
        beyond the last one stays as it is. Wrong offsets give wrong results, but nothing outside of
        the arrays is read or written. They need Ampere or later, or operands in host memory; those
        of float8 need Hopper, and groups of rows or columns.
        Epilogues need half precision on Hopper, groups of rows or of the inner dimension, k > 0,
        and operands as TMA takes them; or operands in host memory. Otherwise an
        `UnsupportedProblemError` gives the reason.
    """
    group = _group(
        a, b, c, alpha, beta, out=out, offsets=offsets, rows=rows, out_rows=out_rows,
        epilogue=epilogue, scale_a=scale_a, scale_b=scale_b, scale_out=scale_out, modulus=modulus,
        stream=stream,
    )  # fmt: skip
    group.run()
    return group.finished()


@named_in_errors("plan_grouped")
@with_arguments_of(gemm_grouped)
def plan_grouped(*operands: Any, **options: Any) -> GroupedPlan:
    """Make a `GroupedPlan` for `gemm_grouped`: choose and build its kernel, but run nothing.

    Arguments and errors are those of `gemm_grouped`. With lists, the call waits for the upload of
    the table. Offsets are read whenever the plan is called.
    """
    return GroupedPlan(_group(*operands, **options))


def _group(
    a: Any, b: Any, c: Any = None, alpha: Any = 1.0, beta: Any = 0.0, *,
    stream: Any = None, out: Any = None, offsets: Any = None, modulus: Any = None,
    **by_offsets: Any,
) -> Group:  # fmt: skip
    """Group of `gemm_grouped`; `by_offsets` are the options that go with offsets alone."""
    with first_call:
        if offsets is not None:
            from dxgemm.call.group_offsets import GroupByOffsets  # a sixth of `import dxgemm`
        else:
            from dxgemm.call.grouped import GroupOfLists
    scales = tuple(by_offsets.pop(f"scale_{name}", None) for name in ("a", "b", "out"))
    arithmetic = None if modulus is None else with_modulus(modulus, None)
    if offsets is not None:
        if arithmetic is not None:
            raise UnsupportedProblemError(
                "gemm_grouped: groups with offsets are computed in floating point; leave out "
                "modulus=, or pass lists."
            )
        if any(scale is not None for scale in scales):
            written = c if out is None else out
            factors = alpha, beta, by_offsets.get("epilogue")
            alpha, by_offsets["epilogue"] = with_group_scales(
                (a, b, written), by_offsets.get("rows"), *factors, scales
            )
        return GroupByOffsets(a, b, c, alpha, beta, out, stream, offsets, **by_offsets)
    for name, option in by_offsets.items():
        if option is not None:
            raise MissingOperandError(f"gemm_grouped: {name}= goes with groups by offsets= alone.")
    return GroupOfLists(a, b, c, alpha, beta, out, stream, arithmetic, scales)
