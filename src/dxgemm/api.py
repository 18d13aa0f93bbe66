"""Public functions of a product: `gemm`, `gemm_symmetric`, `matmul`, plans and explanations."""

from __future__ import annotations

from functools import partial
from typing import Any

from dxgemm.call.explain import explain_route
from dxgemm.call.explain import explain_shape as explain_shape  # re-exported
from dxgemm.call.explanation import Explanation
from dxgemm.call.matmul import multiply, refuse_vectors
from dxgemm.call.prepare import Bound, Options, Prepared, prepare, run
from dxgemm.call.route import Symmetry
from dxgemm.call.scales import with_scales, with_symmetric_scale
from dxgemm.errors import DxgemmError, ShapeError, named_in_errors
from dxgemm.handwritten.parts.triangle import TRIANGLES
from dxgemm.problem.arguments import (
    Conjugate,
    Kernel,
    Number,
    Precision,
    Triangle,
    Triangular,
    check_flag,
    check_name,
    with_arguments_of,
    with_modulus,
)
from dxgemm.runtime.exports import refuse_new_jax_array


def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    alpha: Number = 1.0,
    beta: Number = 0.0,
    *,
    out: Any = None,
    epilogue: Any = None,
    inner: Any = None,
    implementation: Kernel | None = None,
    precision: Precision | None = None,
    batch_invariant: bool = False,
    mask: Any = None,
    conjugate: Conjugate = "",
    triangular: tuple[Triangular | None, Triangular | None] | None = None,
    scale_a: Any = None,
    scale_b: Any = None,
    scale_out: Any = None,
    modulus: int | None = None,
    stream: Any = None,
) -> Any:
    """C = alpha * A @ B + beta * C, with an epilogue on each element before it is written.

    Args:
        a: (m, k) or (batch, m, k), any strides: an array of CuPy, NumPy, torch or numba, or any
            object with `__dlpack__` or `__cuda_array_interface__`. float16, bfloat16, float32,
            float64, float8_e4m3fn, float8_e5m2, complex64, complex128, bool, integers of 8 to 64
            bits.
        b: (k, n) or (batch, k, n), dtype of a, or the other float8, or integers of up to 32 bits of
            the other sign; or a `PreparedOperand`.
        c: (m, n) or (batch, m, n), updated in place; with beta 0, the default, overwritten and
            never read. (`dxgemm.torch.gemm` and `dxgemm.jax.gemm` only read their c, and add it by
            default.) Dtype of a; also float32 after half precision, int32 after bool, 64 bits after
            32. Integers of 8 and 16 bits require 32 or 64 bits, float8 requires bfloat16, float16,
            float32 or, with beta 0, float8. None allocates the result in a's library, in the first
            of these. Operands that are only read are broadcast over the batch.
        alpha, beta: numbers on the host: real, integers that fit an integer result, or complex.
        out: like c. It receives the result, and c is only read. It may have n / 2 columns: see
            `dxgemm.epilogue`.
        epilogue: functions of each element, applied in the kernel, with at most one reduction at
            the end: see `dxgemm.epilogue` and `dxgemm.reductions`. A reduced matrix is stored only
            if out is passed. Real results of complex sums need out. With beta 0, out may be
            float32, float16 or bfloat16 after integers of 8 and 16 bits, int8 after these and half
            precision (rounded to even, clamped; NaN becomes 0), float8 after 16-bit floats.
        inner: function in place of the multiply-add: see `dxgemm.inner`. If it does not sum, alpha
            is 1 and beta 0, or 1 to add c in the same way.
        implementation: None to choose among dxgemm's own kernels; a name, (name, config) or
            (name, config, split-K slices) for exactly that one.
        precision: what the call permits, where it is predicted to be faster: "tf32" for float32,
            "emulated" for float32 and float64, "emulated2" to "emulated20" (moduli) for float64,
            "fast" for float8 (sums of about 14 bits), "3m" for complex. The page Precision has the
            bounds. None for the dtype's own arithmetic.
        batch_invariant: True gives a row of the result the same bits for any number of rows and
            matrices. Without reductions, split-K with a workspace, "cublas", "emulated".
        mask: block mask, bool or uint8, C-contiguous, (ceil(m / 128), ceil(n / 128)), or with 64
            for 128. Blocks with 0 are neither computed nor written. All matrices of a batch share
            it. Without reductions, epilogues of pairs, batch_invariant, "emulated", complex dtypes.
        conjugate: "a", "b" or "ab": operands that are conjugated, without a copy. torch's lazy
            `x.conj()` is recognised without it.
        triangular: triangles of a and b, "lower", "upper", "unit lower", "unit upper" or None, such
            as ("lower", None). The rest counts as 0, whatever it holds. Without inner.
        scale_a, scale_b, scale_out: numbers, or float32 arrays, that float8 operands and results
            are multiplied by: one element; (m,) or (m, 1), and (n,) or (1, n); or both for blocks
            of 128 k, (m, ceil(k / 128)) or (ceil(m / 128), ceil(k / 128)) for a. The page FP8 has
            all shapes.
        modulus: from 2 to 2**31 - 1: the result of integers is in [0, modulus).
        stream: where to launch, ordered by the caller; None for the current stream of the library
            of out, c or a.

    Returns:
        out, or c, or the new array; with a reduction, the results of the reduction.

    Raises:
        DxgemmError: a subclass that is also a TypeError, ValueError, RuntimeError or ImportError,
            before anything is launched or written; see `dxgemm.errors`.
        LaunchError: the driver refused the launch or a copy.

    Notes:
        beta == 0 never reads c; alpha == 0 never reads a and b; k == 0 gives beta * c, or the
        identity of `inner`. Half precision is summed and scaled in float32 and rounded once,
        integers wrap modulo 2**n.
        The call returns at once for operands on the GPU. NumPy operands are copied to the GPU, and
        the call returns when the result is back. The page Semantics has all rules.
    """
    try:
        if scale_a is not None or scale_b is not None or scale_out is not None:
            operands, scales = (a, b, c if out is None else out), (scale_a, scale_b, scale_out)
            alpha, epilogue = with_scales(operands, alpha, beta, epilogue, inner, scales)
        arithmetic = precision if modulus is None else with_modulus(modulus, precision)
        options = (
            epilogue, inner, implementation, arithmetic, batch_invariant, mask, conjugate,
            triangular, stream,
        )  # fmt: skip
        return run(prepare(a, b, c, alpha, beta, out, options))
    except DxgemmError as error:
        error.name_call("gemm")
        raise


def gemm_symmetric(
    a: Any,
    c: Any = None,
    alpha: Number = 1.0,
    beta: Number = 0.0,
    *,
    b: Any = None,
    transpose: bool = False,
    triangle: Triangle = "both",
    out: Any = None,
    epilogue: Any = None,
    inner: Any = None,
    implementation: Kernel | None = None,
    precision: Precision | None = None,
    scale_a: Any = None,
    modulus: int | None = None,
    stream: Any = None,
) -> Any:
    """C = alpha * A @ A.T + beta * C, in little more than half the time of the product by `gemm`.

    The result of a complex matrix is Hermitian: C = alpha * A @ A.conj().T + beta * C. With b, it
    is C = alpha * (A @ B.T + B @ A.T) + beta * C, in little more than the time of one product.

    Args:
        a: (n, k) or (batch, n, k), as `gemm` takes it.
        b: of the shape and dtype of a; not for complex matrices, of which there is no batch either.
        c: (n, n) or (batch, n, n), updated in place; None allocates the result in a's library. Each
            element is read where it is written, so the result is symmetric if c is.
        alpha, beta: as `gemm` takes them, but real ones.
        transpose: True for A.T @ A (A.conj().T @ A), or A.T @ B + B.T @ A, of (k, n) or a batch.
        triangle: "both" writes the whole result, with equal bits on both sides of the diagonal.
            "lower" and "upper" read and write this triangle of c and out alone, with the diagonal;
            the other one keeps its bits, and is uninitialised in a new array.
        out: (n, n) or (batch, n, n). It receives the result instead of c.
        epilogue: functions of each element that is written, with its own row and column. No
            reductions or pairs of columns.
        inner: as `gemm` takes it, declared symmetric and without b.
        scale_a: scales of float8, without b: a number, or with beta 0 an array of one element or
            one per row of the left operand. The right operand has the same.
        implementation, precision, modulus, stream: as `gemm` takes them. A named kernel that cannot
            compute half the tiles computes all of them, and another one writes the triangles.

    Returns:
        out, or c, or the new array.

    Raises:
        DxgemmError: any error of `gemm`, before anything is launched or written.
        ShapeError: the triangle is unknown, or b's matrices have another shape.
        UnsupportedProblemError: the epilogue makes no square matrix, or b goes with a modulus or
            with complex matrices, or these are a batch.

    Notes:
        Tiles on one side of the diagonal are computed and stored on both sides, or all tiles where
        that is predicted to be faster. `gemm(a, a.T)` of one matrix does the same if beta is 0 and
        there is no epilogue and no named kernel. With b, one product goes to a workspace, and
        another kernel adds its transpose. The imaginary parts of a Hermitian result's diagonal are
        0, whatever those of c are.
    """
    try:
        operands = a, a if b is None else b, c, alpha, beta
        prepared = _prepared(
            _symmetry(b, triangle, transpose), False, *operands, out=out, epilogue=epilogue,
            inner=inner, implementation=implementation, precision=precision, scale_a=scale_a,
            modulus=modulus, stream=stream,
        )  # fmt: skip
        return run(prepared)
    except DxgemmError as error:
        error.name_call("gemm_symmetric")
        raise


def _symmetry(b: Any, triangle: Any, transpose: Any) -> Symmetry:
    check_name("triangle", triangle, TRIANGLES, ShapeError)
    return Symmetry(triangle, check_flag("transpose", transpose), adds_transpose=b is not None)


def matmul(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    alpha: Number = 1.0,
    epilogue: Any = None,
    inner: Any = None,
    implementation: Kernel | None = None,
    precision: Precision | None = None,
    batch_invariant: bool = False,
    conjugate: Conjugate = "",
    triangular: tuple[Triangular | None, Triangular | None] | None = None,
    modulus: int | None = None,
    stream: Any = None,
) -> Any:
    """alpha * A @ B, for arrays of the dimensions that `numpy.matmul` takes.

    Args:
        a: (..., m, k), or a vector (k,). Dtypes and libraries are those of `gemm`; vectors, and
            more than three dimensions, are for CuPy, NumPy and torch.
        b: (..., k, n), or a vector (k,), dtype of a. The leading dimensions of a and b broadcast
            against each other.
        out: the array to write, of the result's shape; None to allocate one in a's library.
        epilogue: as `gemm` takes it. Vectors are (..., n) and (..., m), with one element where the
            dimension is left out of the result; matrices and outputs have the result's shape.
            Leading dimensions of arrays that are read broadcast. Reductions are for a and b of two
            or three dimensions.
        alpha, inner, implementation, precision, batch_invariant, conjugate, triangular, modulus,
            stream: as `gemm` takes them. Vectors are not triangular.

    Returns:
        out, or a new array (..., m, n), without m where a is a vector and without n where b is: for
        two vectors a number, in NumPy's case a scalar.

    Raises:
        DxgemmError: any error of `gemm`, before anything is launched or written.

    Notes:
        Nothing is copied. Dimensions of a batch with common strides, as those of contiguous arrays,
        take one launch. Each index of the other dimensions takes a launch of its own.
    """
    multiply_matrices = partial(
        gemm, alpha=alpha, inner=inner, implementation=implementation, precision=precision,
        batch_invariant=batch_invariant, conjugate=conjugate, triangular=triangular,
        modulus=modulus, stream=stream,
    )  # fmt: skip
    try:
        if triangular is not None:
            refuse_vectors(triangular, a, b)
        return multiply(multiply_matrices, a, b, out, epilogue, stream)
    except DxgemmError as error:
        error.name_call("matmul")
        raise


def _prepared(
    symmetry: Symmetry | None, is_explained: bool, /,
    a: Any, b: Any, c: Any = None, alpha: Any = 1.0, beta: Any = 0.0, *,
    out: Any = None, modulus: Any = None, **options: Any,
) -> Prepared:  # fmt: skip
    scales = tuple(options.pop(f"scale_{name}", None) for name in ("a", "b", "out"))
    if any(scale is not None for scale in scales):
        target, given = c if out is None else out, options.pop("epilogue", None)
        if symmetry is not None:
            other = b if symmetry.adds_transpose else None
            scaled = a, other, target, alpha, beta, given, scales[0], symmetry.transpose
            alpha, options["epilogue"] = with_symmetric_scale(*scaled)
        else:
            call = (a, b, target), alpha, beta, given, options.get("inner"), scales
            alpha, options["epilogue"] = with_scales(*call)
    if modulus is not None:
        options["precision"] = with_modulus(modulus, options.get("precision"))
    operands = a, b, c, alpha, beta, out
    return Prepared(*prepare(*operands, Options(**options), symmetry, is_explained))


class Plan(Bound):
    """GEMM with its kernel chosen and built; call it to run it on the same arrays.

    The arrays' contents may change between calls, their memory may not. The kernel stays the same.
    With device operands a call allocates nothing and does not synchronise, so that it can be
    captured in a CUDA graph.
    """

    def __init__(self, prepared: Prepared, operands: tuple[Any, ...]) -> None:
        """Pack the arguments of a prepared call, and keep its operands alive."""
        super().__init__(prepared, operands)
        refuse_new_jax_array("plan", self.result)

    def __repr__(self) -> str:
        """Say what is computed, and by which kernel."""
        return f"<dxgemm.Plan: {self.explain().title}>"

    def explain(self) -> Explanation:
        """Explain which kernel was chosen, and why."""
        return explain_route(self.route)


@named_in_errors("plan")
@with_arguments_of(gemm)
def plan(*operands: Any, **options: Any) -> Plan:
    """Make a `Plan` for C = alpha * A @ B + beta * C: choose and build its kernel, but run nothing.

    Arguments and errors are those of `gemm`.
    """
    return Plan(_prepared(None, False, *operands, **options), (operands, options))


@named_in_errors("explain")
@with_arguments_of(gemm)
def explain(*operands: Any, **options: Any) -> Explanation:
    """Explain what `gemm` of the same arguments would do; nothing is launched or written."""
    return explain_route(_prepared(None, True, *operands, **options).route)


@named_in_errors("explain_symmetric")
@with_arguments_of(gemm_symmetric)
def explain_symmetric(
    a: Any,
    *operands: Any,
    b: Any = None,
    transpose: bool = False,
    triangle: Triangle = "both",
    **options: Any,
) -> Explanation:
    """Explain what `gemm_symmetric` of the same arguments would do; nothing is launched."""
    symmetry = _symmetry(b, triangle, transpose)
    other = a if b is None else b
    return explain_route(_prepared(symmetry, True, a, other, *operands, **options).route)
