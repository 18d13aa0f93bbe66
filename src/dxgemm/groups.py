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

    The problems are lists of arrays, or the parts of one array that `offsets` separates.

    Args:
        a: a list or tuple of arrays (m, k), any strides, of any library that `gemm` takes, of one
            dtype: float32, float64, float16, bfloat16 or float8; without offsets also complex64,
            complex128, bool or integers. Sizes may differ from problem to problem.
        b: list of the same length; each array (k, n) for the k of its a.
        c: list of the same length; each array (m, n), all of one dtype that `gemm` allows. Updated
            in place; None to allocate each result in the library of its a.
        alpha, beta: numbers on the host as `gemm` takes them, one for all problems or one for each.
        out: list of the same length; each array receives its result instead of c, which is then
            only read.
        offsets: (groups,), int32 or int64, on the device of the operands: the last index of each
            problem plus one. Then a, b, c and out are one array each, alpha and beta one number
            each, and offsets divide one dimension: rows, for a (total, k), b (groups, k, n) and a
            result (total, n); columns, for (groups, m, k), (k, total) and (m, total); or the inner
            one, for (m, total), (total, n) and (groups, m, n).
        rows: (total,), int32 or int64, with groups of rows: row i of the result is made of row
            rows[i] of a, which has any number of rows. Indices out of range are clamped.
        out_rows: (total,), int32 or int64, with groups of rows: row i of the result is stored in
            row out_rows[i] of out, which has any number of rows; c is read at row i. Other rows of
            out keep their values, and indices out of range store nothing. Of rows with one index,
            any may be stored.
        epilogue: with offsets, functions as `gemm` takes them, without reductions. Arrays belong to
            the whole result. A row vector may be (groups, n) with groups of rows; with groups of
            the inner dimension, any array may be that of a batch.
        scale_a, scale_b, scale_out: as `gemm` takes them, one for all problems, or a list of one
            for each. With offsets, scales of the divided rows (columns) are those of all of them,
            in the order of `rows`, and the other operand may have (groups, ...), a matrix for each.
        modulus: as `gemm` takes it, for lists.
        stream: where to launch; None for the current stream of the library of the first result.

    Returns:
        The list of out, or of c, or of the new arrays; an empty one for empty lists. With offsets
        out, or c, or the new array.

    Raises:
        DxgemmError: any error of `gemm`, with the problem's index, before anything is launched or
            written.
        LaunchError: the driver refused the launch or a copy, or the stream is under capture.
        UnsupportedProblemError: an epilogue, or a GPU before Ampere, for which the page "Batches
            and groups" has no kernel.

    Notes:
        Each problem follows the rules of `gemm`. Empty problems are skipped. No result may share
        elements with another result, or with an operand of any problem.
        The host builds the table of the problems in each call; `plan_grouped` builds it once.
        Problems run one after the other if an operand is in host memory, for complex dtypes,
        integers and float8, on the simulator, and on GPUs before Ampere.
        With offsets the GPU makes the table: the host reads nothing and does not wait, and a CUDA
        graph can capture the call. Offsets must not decrease; wrong ones give wrong results, but no
        access out of bounds. Rows of the result beyond the last offset keep their values.
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
