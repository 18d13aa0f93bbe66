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
        a: (m, k) or (batch, m, k), float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2,
            complex64, complex128, bool, or integers of 8 to 64 bits, any strides. An array of CuPy,
            NumPy, torch or numba, or any object with `__dlpack__` or `__cuda_array_interface__`.
        b: (k, n) or (batch, k, n), dtype of a, or the other one of float8, or of integers up to 32
            bits the one of the other sign; or a `PreparedOperand` from `dxgemm.prepare`.
        c: (m, n) or (batch, m, n), updated in place; with beta 0, the default, it is overwritten
            and never read. (`dxgemm.torch.gemm` and `dxgemm.jax.gemm` only read their c, and add
            it by default.) Its dtype is that of a; float16 and bfloat16 also allow float32.
            float8 requires bfloat16, which a new result has, float16 or float32, or with beta 0
            float8.
            Integers of 8 and 16 bits require 32 or 64 bits, those of 32 bits allow 64, and bool
            allows int32. None allocates the result in a's library, in int32 for integers of 8 and
            16 bits and else in a's dtype. Operands that are only read are broadcast over the batch
            if they are 2-D or have a batch of one.
        alpha, beta: numbers on the host: real ones, for integers such that fit the result, for
            complex operands complex ones too.
        out: (m, n) or (batch, m, n), dtype of c. It receives the result instead of c, which is then
            only read, and may be read-only or broadcast. With an epilogue that takes pairs of
            columns it is (m, n / 2) or (batch, m, n / 2), and c needs it.
        epilogue: functions applied to each element before it is written, in the same kernel: see
            `dxgemm.epilogue`. Of complex sums it may make real numbers, which need out if there is
            c. With beta 0 it may convert the int32 sums of integers of 8 and 16 bits to float32,
            float16 or bfloat16, and those of the same, float16 and bfloat16 to int8 (rounded to
            nearest, ties to even, and clamped; NaN becomes 0), and of 16-bit floats to float8
            (saturated; NaN stays NaN): out has that dtype. Other integers take reductions alone, of
            results in int32 or int64. It may end in a reduction, or be one alone: see
            `dxgemm.reductions`. Then c is only read, and the matrix is stored only if out is
            passed.
        inner: function in the place of the multiply-add: see `dxgemm.inner` and `dxgemm.inners`.
            alpha and beta are for functions that sum. With other ways of adding, alpha is 1, and
            beta is 0, or 1 to add c in the same way. For real operands, without a precision.
        implementation: None to choose among dxgemm's own kernels. A name, (name, config), or
            (name, config, slices), where config may be its text and slices is the number of split-K
            slices, selects exactly that kernel.
        precision: None for the dtype's own arithmetic. "tf32", for float32 only, permits products
            of inputs rounded to TF32's eleven significant bits; sums stay float32. "emulated", for
            float32, splits each number into two float16 parts and sums the products of the parts
            in float32; each product is within 2**-20 |A| |B| of the exact one. For float64,
            "emulated" rounds the operands to integers and multiplies these exactly by int8
            residues (Ozaki scheme II), with as many moduli as keep 53 bits; "emulated14" uses
            fourteen. A validity check on the GPU finds operands for which the bound on the error,
            which `explain` states, does not hold; these are multiplied in the dtype's own
            arithmetic. "fast", for float8, permits sums of all products in the tensor core, which
            keeps about 14 bits of them; else it sums 128 products, and float32 their sums. "3m",
            for complex dtypes only, permits three real products in the place of four: the smaller
            of the result's two parts keeps fewer digits. What is permitted is computed where it is
            predicted to be quicker; with a named kernel, always.
        batch_invariant: True gives each row of the result the same bits, however many rows and
            matrices there are. It excludes reductions, split-K with a workspace, "cublas", and the
            emulated kernels, which check the values of all rows together.
        mask: block mask of the result, bool or uint8, C-contiguous, where a and b are, of shape
            (ceil(m / 128), ceil(n / 128)), or with 64 in place of 128. Blocks of the result with 0
            there are neither computed nor written; they keep their bits, and are not set in a new
            array. All matrices of a batch share it. Kernels read it, in the order of the stream.
            It excludes reductions, epilogues of pairs, batch_invariant and emulated precision.
        conjugate: "a", "b" or "ab" to multiply the conjugates of these operands; they are not
            copied for it. Lazy conjugates of torch, `x.conj()`, are taken as such anyway.
        triangular: triangles of a and of b: "lower", "upper", "unit lower", "unit upper", or None
            for a full operand; such as ("lower", None). The product is that of `numpy.tril(a)` or
            `numpy.triu(a)`: the other elements count as 0, and whatever is there, NaN included,
            never shows. Of a "unit" operand the diagonal counts as ones, and is not used either.
            Matrices need not be square. It excludes inner.
        scale_a, scale_b: scales of float8 operands, by which their elements count as multiplied.
            Numbers, which alpha is multiplied by; or float32 arrays where the operands are: of one
            element; (m,) or (m, 1) for rows of a, (n,) or (1, n) for columns of b; or, both of
            them, for blocks of 128 k: (m, ceil(k / 128)) or (ceil(m / 128), ceil(k / 128)) for a,
            (ceil(k / 128), n) or (ceil(k / 128), ceil(n / 128)) for b. With a batch, matrices of
            scales may be one for each matrix. Arrays may have any strides. With c, arrays come in
            pairs.
        scale_out: scale of a result of float8, a number or a float32 array of one element: what the
            epilogue makes is multiplied by it before it is rounded.
        modulus: number from 2 to 2**31 - 1 modulo which a result of integers is taken: it is in
            [0, modulus). Operands, alpha, beta and c are any integers, negative ones included. The
            result's dtype is as without it. It excludes epilogues but for a reduction alone, masks
            and inner functions.
        stream: where to launch; None for the current stream of the library of out, c or a. With a
            stream given, the caller orders it against other streams.

    Returns:
        out, or c, or the new array; with a reduction, the results of the reduction.

    Raises:
        DxgemmError: a subclass that is also a TypeError, ValueError, RuntimeError or ImportError,
            before anything is launched or written; see `dxgemm.errors`.
        LaunchError: the driver refused the launch or a copy, or the stream is under capture and
            the kernel is not loaded yet.

    Notes:
        beta == 0 never reads c. alpha == 0 never reads a and b. k == 0 gives beta * c, or the
        identity of `inner`. alpha == 0 with beta == 1 in place leaves every bit of c. Empty results
        launch nothing.
        float16 and bfloat16 are multiplied, summed and scaled by alpha and beta in float32; the
        result is rounded once. Integers are multiplied, summed and scaled exactly, modulo 2**n for
        a result of n bits; of bool, it is stored whether a sum is not 0.
        Complex matrices are multiplied as they lie; or, such as with a precision, as real ones of
        twice the columns and the k, by the kernels of float32 and float64, after a copy of b in a
        workspace of twice its bytes. They take no mask.
        Of a triangular operand, kernels multiply the part of k that a tile needs: half of it, or of
        two triangles a third or a sixth. They read it where it lies (`wgmma`), or a copy in a
        workspace, with zeros beside its diagonal. Products with these zeros are skipped or not:
        where the other operand has NaN or infinities, rows and columns that meet it as 0 * NaN may
        be NaN or not.
        Asynchronous for device operands: the host is never synchronised. Operands of several
        libraries are ordered against each other by events. NumPy operands are copied to the GPU and
        the result back; such a call returns when the result has arrived.
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

    Of complex matrices C = alpha * A @ A.conj().T + beta * C, which is Hermitian.

    With b, C = alpha * (A @ B.T + B @ A.T) + beta * C, in little more than the time of one of the
    two products.

    Args:
        a: (n, k) or (batch, n, k), as `gemm` takes it.
        b: of the shape and dtype of a; None for a itself, once. Not with complex matrices, of which
            there is one, no batch.
        c: (n, n) or (batch, n, n), updated in place; None allocates the result in a's library. Each
            element is read where it is written, so that the result is symmetric if c is.
        alpha, beta: as `gemm` takes them, but real ones.
        transpose: True for A.T @ A (A.conj().T @ A), or A.T @ B + B.T @ A, for (k, n) or a batch.
        triangle: "both" writes the whole result, with equal bits on both sides of the diagonal.
            "lower" and "upper" read and write this triangle of c and out alone, with the diagonal;
            the other one keeps its bits, and is not set in a new array.
        out: (n, n) or (batch, n, n). It receives the result instead of c.
        epilogue: functions applied to each element that is written, as `gemm` has them; each of the
            two elements that share a sum gets its own row and column. No reductions, and none that
            takes pairs of columns.
        inner: as `gemm` takes it, declared symmetric and without b.
        scale_a: scales of float8, without b: a number, or with beta 0 an array of one element or
            of the rows of the left operand: a, or with transpose a.T. The right one has the same.
        implementation, precision, modulus, stream: as `gemm` takes them. A named kernel that cannot
            compute half the tiles computes all of them, and another one writes the triangles.

    Returns:
        out, or c, or the new array.

    Raises:
        DxgemmError: any error of `gemm`, before anything is launched or written.
        ShapeError: the triangle is unknown, or b's matrices have another shape.
        UnsupportedProblemError: the epilogue makes no square matrix of the result, or b with a
            modulus, or a batch or b of complex matrices, is wanted.

    Notes:
        Tiles on one side of the diagonal are computed, and stored on both. Where computing all of
        them is quicker, as for small results, that is done. `gemm(a, a.T)` of one matrix does the
        same by itself if beta is 0, there is no epilogue and no implementation is named, for arrays
        that begin at the same address; its two triangles may differ in their last bits where it
        computes both. With b, one product is left in a workspace, and another kernel adds both
        sides of its diagonal. A Hermitian result is made of two such real products; imaginary parts
        on its diagonal are 0, whatever those of c are.
    """
    try:
        symmetry = _symmetry(b, triangle, transpose)
        other = a if b is None else b
        if scale_a is not None:
            target = c if out is None else out
            alpha, epilogue = with_symmetric_scale(
                a, b, target, alpha, beta, epilogue, scale_a, transpose
            )
        arithmetic = precision if modulus is None else with_modulus(modulus, precision)
        options = epilogue, inner, implementation, arithmetic, False, None, "", None, stream
        return run(prepare(a, other, c, alpha, beta, out, options, symmetry))
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
            dimension is left out of the result. Matrices and outputs have the shape of the result.
            Leading dimensions of arrays that are read broadcast to those of the result. Reductions
            are for a and b of two or three dimensions.
        alpha, inner, implementation, precision, batch_invariant, conjugate, triangular, modulus,
            stream: as `gemm` takes them. Vectors are not triangular.

    Returns:
        out, or a new array (..., m, n), without m where a is a vector and without n where b is: for
        two vectors a number, in NumPy's case a scalar.

    Raises:
        DxgemmError: any error of `gemm`, before anything is launched or written.

    Notes:
        Nothing is copied. One launch computes all matrices of a batch whose dimensions lie evenly
        in a, b, the result and the epilogue's arrays, as those of contiguous arrays do. Otherwise
        there is a launch for each index of the dimensions that do not.
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
