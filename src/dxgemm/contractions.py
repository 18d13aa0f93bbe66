"""The public functions of contractions: `einsum`, `tensordot` and `explain_einsum`."""

from __future__ import annotations

from typing import Any

from dxgemm.call.contraction_plan import Contraction
from dxgemm.call.einsum import einsum_call, tensordot_call
from dxgemm.errors import DxgemmError, named_in_errors
from dxgemm.problem.arguments import Kernel, Number, Precision


def einsum(
    subscripts: str,
    *operands: Any,
    out: Any = None,
    alpha: Number = 1.0,
    beta: Number = 0.0,
    epilogue: Any = None,
    implementation: Kernel | None = None,
    precision: Precision | None = None,
    batch_invariant: bool = False,
) -> Any:
    """out = alpha * einsum(subscripts, *operands) + beta * out, with subscripts as NumPy has them.

    Args:
        subscripts: labels of the dimensions of each operand and of the result, such as
            "bij,bjk->bik", with "..." for dimensions that are broadcast. Without "->" the result
            has the labels that occur once, in alphabetical order.
        operands: arrays of one dtype that `gemm` takes, any strides. A label that one operand has
            twice runs along its diagonal.
        out: the array to write, of the result's shape; None to return a new one.
        alpha, beta: as `gemm` takes them; beta scales out.
        epilogue: as `gemm` takes it, without reductions or pairs, applied by the last product. Its
            rows are the labels of the result that the first operand has, its columns those of the
            second, its batch those of both. More than two operands end in a product of two, which
            `explain_einsum` shows: of these, the one whose labels come first has the rows.
        implementation, precision, batch_invariant: as `gemm` takes them, for each product.

    Returns:
        out, or an array in the library of the operands, for which strides are free: it may be a
        view with its dimensions in another order in memory.

    Raises:
        ShapeError: the subscripts do not fit the operands; in NumPy's words.
        DxgemmError: any error of `gemm`, before out is written.

    Notes:
        Two operands take one strided batched product, in place wherever their strides merge.
        Where they do not, operands are copied, or the product is launched several times, whichever
        is estimated to be quicker. Steps are planned once for each layout. Indices that one
        operand alone has are summed by a product with ones. More than two operands are contracted
        in the order that `numpy.einsum_path` finds. Sums of int8 are int32: they take one product.
    """
    try:
        call = einsum_call(subscripts, operands, out, epilogue, beta)
        return call.run(alpha, beta, epilogue, (implementation, precision, batch_invariant))
    except DxgemmError as error:
        error.name_call("einsum", c="out")
        raise


def tensordot(
    a: Any,
    b: Any,
    axes: Any = 2,
    *,
    out: Any = None,
    alpha: Number = 1.0,
    beta: Number = 0.0,
    epilogue: Any = None,
    implementation: Kernel | None = None,
    precision: Precision | None = None,
    batch_invariant: bool = False,
) -> Any:
    """out = alpha * tensordot(a, b, axes) + beta * out, with the axes of `numpy.tensordot`.

    Args:
        a, b: arrays of one dtype that `gemm` takes, any strides.
        axes: number of the last dimensions of a and the first of b that are summed; or the
            dimensions of a and those of b, as two lists or two numbers.
        out, alpha, beta, epilogue, implementation, precision, batch_invariant: as `einsum` takes
            them. The rows of the epilogue are the dimensions left of a, the columns those of b.

    Returns:
        out, or a new array, as `einsum` does.

    Raises:
        DxgemmError: any error of `einsum`.
    """
    try:
        call = tensordot_call(a, b, axes, out, epilogue, beta)
        return call.run(alpha, beta, epilogue, (implementation, precision, batch_invariant))
    except DxgemmError as error:
        error.name_call("tensordot", c="out")
        raise


@named_in_errors("explain_einsum")
def explain_einsum(
    subscripts: str, *operands: Any, out: Any = None, epilogue: Any = None
) -> Contraction:
    """Explain the steps of `einsum` of the same arguments: its products and copies."""
    return einsum_call(subscripts, operands, out, epilogue, 0.0).plan.contraction
