"""The functions of `dxgemm.torch`, and the module `Linear`."""

from __future__ import annotations

from typing import Any

import torch

from dxgemm import epilogues
from dxgemm.epilogues import BoundEpilogue, Epilogue, Inner
from dxgemm.epilogues.chain import bound_epilogue
from dxgemm.errors import SettingError, UnsupportedProblemError
from dxgemm.problem.arguments import Triangular, check_flag, check_triangular
from dxgemm.torch.activations import find_activation
from dxgemm.torch.epilogue_operators import compute_with_epilogue
from dxgemm.torch.inner_operators import compute_inner
from dxgemm.torch.linear_operators import check_linear, linear_keep_operator, linear_operator
from dxgemm.torch.operands import (
    as_flag,
    as_matrix,
    as_number,
    cast_operand,
    check_dtype,
    check_tensor,
    named_in_errors,
)
from dxgemm.torch.product_operators import gemm_operator, grouped_operator, matmul_operator
from dxgemm.torch.scaled_operators import RESULTS, scaled_operator


@named_in_errors("linear", a="x", b="weight")
def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    *,
    epilogue: Epilogue | BoundEpilogue | None = None,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """epilogue(activation(x @ weight.T + bias)), like `torch.nn.functional.linear`, in one kernel.

    Args:
        x: (..., k), float32, float64, float16 or bfloat16.
        weight: (n, k), dtype of x, any strides.
        bias: (n,), dtype of x; None for none.
        activation: None, "relu", "gelu" (with erf), "gelu_tanh", "silu", "sigmoid" or "tanh".
        epilogue: as `gemm` takes it. Its matrices are (..., n), its column vectors (...).
        batch_invariant: True gives each row of the result, and of the gradient of x, the same
            bits, however many rows x has.

    Returns:
        A new tensor (..., n), contiguous, dtype of x.

    Raises:
        ArrayTypeError, DtypeError, DeviceMismatchError, ShapeError: an operand is no tensor, or
            does not fit the others.
        UnsupportedProblemError: an operand has a tangent of forward-mode differentiation, or the
            epilogue has no derivative that a gradient needs.
        EpilogueError: epilogue is none, or lacks operands.
        SettingError: there is no such activation.
        DxgemmError: any error that `dxgemm.gemm` raises.

    Notes:
        Runs on torch's current stream and does not synchronise. Differentiable in backward mode,
        also twice; dxgemm computes those products too. The derivatives of gelu, gelu_tanh and silu
        need the activation's input, which the kernel stores if a gradient is needed. Under
        `torch.autocast` operands are cast like those of `torch.nn.functional.linear`.
    """
    x, weight = cast_operand("x", x), cast_operand("weight", weight)
    if bias is not None:
        bias = cast_operand("bias", bias)
    batch_invariant = as_flag("batch_invariant", batch_invariant)
    if epilogue is not None:
        check_linear(x, weight, bias)
        chain = bound_epilogue(epilogue)
        if activation is not None:
            chain = find_activation(activation).epilogue | chain
        if bias is not None:
            chain = epilogues.bias(bias) | chain
        lead = x.shape[:-1]
        rows = compute_with_epilogue(
            as_matrix(x), weight.mT, None, 1.0, 0.0, chain, batch_invariant, lead
        )
        return rows.reshape(*lead, weight.shape[0])
    if activation is not None and not find_activation(activation).reads_output:
        operands = [operand for operand in (x, weight, bias) if operand is not None]
        if torch.is_grad_enabled() and any(operand.requires_grad for operand in operands):
            return linear_keep_operator(x, weight, bias, activation, batch_invariant)[0]
    return linear_operator(x, weight, bias, activation, batch_invariant)


@named_in_errors("gemm")
def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    *,
    epilogue: Epilogue | BoundEpilogue | None = None,
    inner: Inner | None = None,
    batch_invariant: bool = False,
    triangular: tuple[Triangular | None, Triangular | None] | None = None,
) -> torch.Tensor:
    """epilogue(alpha * a @ b + beta * c), like `torch.addmm` and `torch.baddbmm`.

    Args:
        a: (m, k) or (batch, m, k), float32, float64, float16, bfloat16, complex64 or complex128,
            any strides. Complex products take no epilogue.
        b: (k, n) or (batch, k, n), dtype of a. A batch of one, or a 2-D operand, is broadcast over
            the batch.
        c: dtype of a, with a shape that broadcasts to the shape of a @ b; None for none. It is only
            read, and with beta 1, the default, added as it is; `dxgemm.gemm` writes its c, so beta
            is 0 there.
        alpha, beta: real numbers. beta is ignored if there is no c.
        epilogue: an epilogue, or a chain of them, with tensors and numbers as its operands; None
            for none. Outputs, pairs of columns and reductions are not taken.
        inner: function in the place of the multiply-add: see `dxgemm.inner`. It goes with a and b
            alone. `inners.l1` and `inners.min_plus` are differentiable: by the sign of x - y, which
            is 0 for equal ones, and at the first smallest sum.
        batch_invariant: as `dxgemm.gemm` takes it; it holds for the gradients too.
        triangular: as `dxgemm.gemm` takes it, without an epilogue. What is not used of an operand
            has a gradient of 0.

    Returns:
        A new tensor (m, n) or (batch, m, n), contiguous, dtype of a.

    Raises:
        ArrayTypeError, DtypeError, DeviceMismatchError, ShapeError: an operand is no tensor, or
            does not fit the others.
        ScalarError: alpha or beta is a tensor, or overflows the accumulator's dtype.
        UnsupportedProblemError: an operand has a tangent of forward-mode differentiation, or the
            epilogue is of a kind that is not taken, or epilogue or inner has no derivative that a
            gradient needs.
        EpilogueError: epilogue is none, or lacks operands; or inner is none.
        SettingError: triangular is no pair of triangles, or inner is passed with another argument
            than a and b.
        DxgemmError: any error that `dxgemm.gemm` raises.

    Notes:
        beta == 0 never reads c, alpha == 0 never reads a and b. Streams, gradients and autocast
        work as in `linear`. There is no gradient with respect to alpha, beta and other numbers.
        Operands of the epilogue are not cast by autocast: kernels read other dtypes beside that of
        a (`dxgemm.epilogues`).
    """
    a, b = cast_operand("a", a), cast_operand("b", b)
    if c is not None:
        c = cast_operand("c", c)
    alpha, beta = as_number("alpha", alpha), as_number("beta", beta)
    batch_invariant = as_flag("batch_invariant", batch_invariant)
    if inner is not None:
        others = c, epilogue, triangular
        if any(other is not None for other in others) or alpha != 1.0 or batch_invariant:
            raise SettingError(
                "gemm: inner goes with a and b alone; leave out c, alpha, epilogue, triangular and "
                "batch_invariant, or call dxgemm.gemm."
            )
        return compute_inner(a, b, inner)
    if epilogue is not None:
        if triangular is not None:
            raise UnsupportedProblemError(
                "gemm: triangular= does not go with an epilogue here; apply it to the result."
            )
        chain = bound_epilogue(epilogue)
        return compute_with_epilogue(a, b, c, alpha, beta, chain, batch_invariant)
    triangles = () if triangular is None else (x or "" for x in check_triangular(triangular))
    return gemm_operator(a, b, c, alpha, beta, batch_invariant, *triangles)


@named_in_errors("matmul")
def matmul(
    a: torch.Tensor, b: torch.Tensor, alpha: float = 1.0, *, batch_invariant: bool = False
) -> torch.Tensor:
    """alpha * a @ b, for tensors of the dimensions that `torch.matmul` takes.

    Args:
        a: (..., m, k), or a vector (k,), float32, float64, float16, bfloat16, complex64 or
            complex128, any strides.
        b: (..., k, n), or a vector (k,), dtype of a. The leading dimensions of a and b broadcast
            against each other.
        alpha: a real number.
        batch_invariant: as `dxgemm.gemm` takes it; it holds for the gradients too.

    Returns:
        A new tensor (..., m, n), contiguous, dtype of a; without m where a is a vector and without
        n where b is.

    Raises:
        ArrayTypeError, DtypeError, DeviceMismatchError, ShapeError: an operand is no tensor, or
            does not fit the other.
        ScalarError: alpha is a tensor, or overflows the accumulator's dtype.
        UnsupportedProblemError: an operand has a tangent of forward-mode differentiation.
        DxgemmError: any error that `dxgemm.matmul` raises.

    Notes:
        Streams, gradients and autocast work as in `linear`. There is no gradient with respect to
        alpha.
    """
    a, b, alpha = cast_operand("a", a), cast_operand("b", b), as_number("alpha", alpha)
    return matmul_operator(a, b, alpha, as_flag("batch_invariant", batch_invariant))


@named_in_errors("gemm_grouped")
def gemm_grouped(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Products of the groups that offsets share out, in one launch, as torch's grouped product.

    Args:
        a, b: (total, k) and (groups, k, n), with groups of rows; (groups, m, k) and (k, total),
            with groups of columns; or (m, total) and (total, n), with groups of the inner
            dimension. float32, float64, float16 or bfloat16, any strides.
        offsets: (groups,), int32 or int64, on the device of a and b, which alone reads them: the
            last index of each group plus one. They must not decrease.

    Returns:
        A new tensor (total, n), (m, total) or (groups, m, n), contiguous, dtype of a. What belongs
        to no group is 0.

    Raises:
        ArrayTypeError, DtypeError, DeviceMismatchError, ShapeError: an operand is no tensor, or
            does not fit the others.
        UnsupportedProblemError: an operand has a tangent of forward-mode differentiation.
        DxgemmError: any error that `dxgemm.gemm_grouped` raises.

    Notes:
        Streams, gradients and autocast work as in `linear`. The gradients are groups by the same
        offsets.
    """
    a, b = cast_operand("a", a), cast_operand("b", b)
    check_tensor("offsets", offsets)
    return grouped_operator(a, b, offsets)


@named_in_errors("scaled_mm", a="input", b="mat2")
def scaled_mm(
    input: torch.Tensor,
    mat2: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """input @ mat2 of float8 with scales, like `torch._scaled_mm`, of any sizes and strides.

    Args:
        input: (m, k), float8_e4m3fn or float8_e5m2, any strides.
        mat2: (k, n), float8_e4m3fn or float8_e5m2, any strides.
        scale_a, scale_b: float32, as `dxgemm.gemm` takes them: of one element, (m, 1) and (1, n),
            or of blocks.
        bias: (n,), float32, float16 or bfloat16; None for none.
        scale_result: float32 of one element, for a result of float8; None for 1.
        out_dtype: bfloat16, float16, float32, float8_e4m3fn or float8_e5m2; None for that of input.
        use_fast_accum: True permits sums that stay in the tensor core (precision "fast").

    Returns:
        A new tensor (m, n), contiguous. float8 saturates.

    Raises:
        ArrayTypeError, DtypeError, DeviceMismatchError, ShapeError: an operand is no tensor, or
            does not fit the others.
        DxgemmError: any error that `dxgemm.gemm` raises.

    Notes:
        Runs on torch's current stream and does not synchronise. There is no gradient.
    """
    named = {"input": input, "mat2": mat2, "scale_a": scale_a, "scale_b": scale_b}
    for name, operand in (*named.items(), ("bias", bias), ("scale_result", scale_result)):
        if operand is not None or name in named:
            check_tensor(name, operand)
    use_fast_accum = as_flag("use_fast_accum", use_fast_accum)
    if out_dtype is not None:
        check_dtype("out_dtype", out_dtype, RESULTS)
    return scaled_operator(
        "scaled_mm", input, mat2, scale_a, scale_b, None, bias, scale_result, out_dtype,
        use_fast_accum,
    )  # fmt: skip


@named_in_errors("scaled_grouped_mm", a="input", b="mat2", offsets="offs")
def scaled_grouped_mm(
    input: torch.Tensor,
    mat2: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """Products of groups of float8 with scales, like `torch._scaled_grouped_mm`, of any strides.

    Args:
        input, mat2: (total, k) and (groups, k, n), with groups of rows; or (groups, m, k) and
            (k, total), with groups of columns; float8_e4m3fn or float8_e5m2. Without offs,
            (groups, m, k) and (groups, k, n).
        scale_a, scale_b: float32, (total,) and (groups, n); or (groups, m) and (total,); or as
            `dxgemm.gemm_grouped` takes them, those of blocks among them.
        offs: (groups,), int32 or int64: the last index of each group plus one.
        bias: as the epilogue `bias` takes it; None for none.
        scale_result: float32 of one element, for a result of float8; None for 1.
        out_dtype: as `scaled_mm` takes it; None for bfloat16.
        use_fast_accum: accepted; sums are promoted, which is as exact or more.

    Returns:
        A new tensor (total, n), (m, total) or (groups, m, n), contiguous. What belongs to no group
        is 0.

    Raises:
        ArrayTypeError, DtypeError, DeviceMismatchError, ShapeError: an operand is no tensor, or
            does not fit the others.
        DxgemmError: any error that `dxgemm.gemm_grouped` raises.

    Notes:
        Runs on torch's current stream and does not synchronise. There is no gradient.
    """
    named = {"input": input, "mat2": mat2, "scale_a": scale_a, "scale_b": scale_b}
    optional = {"offs": offs, "bias": bias, "scale_result": scale_result}
    for name, operand in (named | optional).items():
        if operand is not None or name in named:
            check_tensor(name, operand)
    as_flag("use_fast_accum", use_fast_accum)
    out_dtype = torch.bfloat16 if out_dtype is None else out_dtype
    check_dtype("out_dtype", out_dtype, RESULTS)
    return scaled_operator(
        "scaled_grouped_mm", input, mat2, scale_a, scale_b, offs, bias, scale_result, out_dtype,
        False,
    )  # fmt: skip


class Linear(torch.nn.Linear):
    """`torch.nn.Linear` with a fused activation: `linear` of its weight and bias.

    Args:
        in_features, out_features, bias, device, dtype: as `torch.nn.Linear` takes them.
        activation, batch_invariant: as `linear` takes them.

    Raises:
        SettingError: there is no such activation, or `torch.nn.Linear` refuses the arguments.
    """

    @named_in_errors("Linear")
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str | None = None,
        batch_invariant: bool = False,
    ) -> None:
        if activation is not None:
            find_activation(activation)
        check_flag("batch_invariant", batch_invariant)
        try:
            super().__init__(in_features, out_features, bias, device, dtype)
        except Exception as error:
            raise SettingError(f"torch.nn.Linear refuses the arguments: {error}") from error
        self.activation = activation
        self.batch_invariant = batch_invariant

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return linear(
            input, self.weight, self.bias, self.activation, batch_invariant=self.batch_invariant
        )

    def extra_repr(self) -> str:
        text = f"{super().extra_repr()}, activation={self.activation!r}"
        return f"{text}, batch_invariant=True" if self.batch_invariant else text
