"""dxgemm as operators of PyTorch: differentiable, and opaque to `torch.compile`.

    import dxgemm.torch
    y = dxgemm.torch.linear(x, weight, bias, activation="gelu")    # one kernel
    c = dxgemm.torch.gemm(a, b, c, alpha=0.5)
    with dxgemm.torch.batch_invariant():
        y = model(x)                                               # torch's own products

The operators are `torch.ops.dxgemm.linear`, `linear_keep`, `gemm`, `matmul` and `gemm_grouped`.
Each computes a new tensor and never returns one that shares memory with an operand.
"""

from __future__ import annotations

import math
import operator
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any, NamedTuple

import dxgemm
from dxgemm import epilogues, errors
from dxgemm.gpu.status import simulator_enabled

try:
    import torch
    from torch.autograd.forward_ad import unpack_dual
except ImportError as error:
    raise errors.MissingPackageError(
        f"dxgemm.torch needs torch ({error}); pip install 'dxgemm[torch]'."
    ) from error

__all__ = ["Linear", "batch_invariant", "gemm", "gemm_grouped", "linear", "matmul"]

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class Activation(NamedTuple):
    """Fused activation with its derivative.

    Attributes:
        epilogue: the epilogue that computes it.
        backward: (gradient of the output, x) -> gradient of the input.
        reads_output: True if x is the activation's output; False if it is its input.
    """

    epilogue: epilogues.Epilogue
    backward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    reads_output: bool


def _relu_backward(grad: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.threshold_backward(grad, output, 0.0)


def _gelu_tanh_backward(grad: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.gelu_backward(grad, pre, approximate="tanh")


def _silu_backward(grad: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    if not torch.is_grad_enabled():
        return torch.ops.aten.silu_backward(grad, pre)
    sigmoid = torch.sigmoid(pre)  # torch has no derivative of silu_backward
    return grad * sigmoid * (1.0 + pre * (1.0 - sigmoid))


ACTIVATIONS = {
    "relu": Activation(epilogues.relu, _relu_backward, reads_output=True),
    "gelu": Activation(epilogues.gelu, torch.ops.aten.gelu_backward, reads_output=False),
    "gelu_tanh": Activation(epilogues.gelu_tanh, _gelu_tanh_backward, reads_output=False),
    "silu": Activation(epilogues.silu, _silu_backward, reads_output=False),
    "sigmoid": Activation(epilogues.sigmoid, torch.ops.aten.sigmoid_backward, reads_output=True),
    "tanh": Activation(epilogues.tanh, torch.ops.aten.tanh_backward, reads_output=True),
}


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    *,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """activation(x @ weight.T + bias), as `torch.nn.functional.linear`, in one kernel.

    Args:
        x: (..., k), float32, float64, float16 or bfloat16.
        weight: (n, k), dtype of x, any strides.
        bias: (n,), dtype of x; None for none.
        activation: None, "relu", "gelu" (with erf), "gelu_tanh", "silu", "sigmoid" or "tanh".
        batch_invariant: True gives each row of the result, and of the gradient of x, the same
            bits, however many rows x has.

    Returns:
        A new tensor (..., n), contiguous, dtype of x.

    Raises:
        ArrayTypeError, DtypeError, DeviceMismatchError, ShapeError: an operand is no tensor, or
            does not fit the others.
        UnsupportedProblemError: an operand has a tangent of forward-mode differentiation.
        ValueError: there is no such activation.
        DxgemmError: any error that `dxgemm.gemm` raises.

    Notes:
        Runs on torch's current stream and does not synchronise. Differentiable in backward mode,
        also twice; dxgemm computes those products too. The derivatives of gelu, gelu_tanh and silu
        need the activation's input, which the kernel stores if a gradient is needed. Under
        `torch.autocast` operands are cast like those of `torch.nn.functional.linear`.
    """
    x, weight = _operand("linear: x", x), _operand("linear: weight", weight)
    if bias is not None:
        bias = _operand("linear: bias", bias)
    if activation is not None and not _activation(activation).reads_output:
        operands = [operand for operand in (x, weight, bias) if operand is not None]
        if torch.is_grad_enabled() and any(operand.requires_grad for operand in operands):
            return _linear_keep(x, weight, bias, activation, batch_invariant)[0]
    return _linear(x, weight, bias, activation, batch_invariant)


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    *,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """alpha * a @ b + beta * c, like `torch.addmm` and `torch.baddbmm`.

    Args:
        a: (m, k) or (batch, m, k), float32, float64, float16 or bfloat16, any strides.
        b: (k, n) or (batch, k, n), dtype of a. A batch of one, or a 2-D operand, is broadcast over
            the batch.
        c: dtype of a, with a shape that broadcasts to the shape of a @ b; None for none.
        alpha, beta: real numbers. beta is ignored if there is no c.
        batch_invariant: as `dxgemm.gemm` takes it; it holds for the gradients too.

    Returns:
        A new tensor (m, n) or (batch, m, n), contiguous, dtype of a.

    Raises:
        ArrayTypeError, DtypeError, DeviceMismatchError, ShapeError: an operand is no tensor, or
            does not fit the others.
        ScalarError: alpha or beta is a tensor, or overflows the accumulator's dtype.
        UnsupportedProblemError: an operand has a tangent of forward-mode differentiation.
        DxgemmError: any error that `dxgemm.gemm` raises.

    Notes:
        beta == 0 never reads c, alpha == 0 never reads a and b. Streams, gradients and autocast
        work as in `linear`. There is no gradient with respect to alpha and beta.
    """
    a, b = _operand("gemm: a", a), _operand("gemm: b", b)
    if c is not None:
        c = _operand("gemm: c", c)
    _refuse_tensor("gemm: alpha", alpha)
    _refuse_tensor("gemm: beta", beta)
    return _gemm(a, b, c, alpha, beta, batch_invariant)


def matmul(
    a: torch.Tensor, b: torch.Tensor, alpha: float = 1.0, *, batch_invariant: bool = False
) -> torch.Tensor:
    """alpha * a @ b, for tensors of the dimensions that `torch.matmul` takes.

    Args:
        a: (..., m, k), or a vector (k,), float32, float64, float16 or bfloat16, any strides.
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
    a, b = _operand("matmul: a", a), _operand("matmul: b", b)
    _refuse_tensor("matmul: alpha", alpha)
    return _matmul(a, b, alpha, batch_invariant)


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
    a, b = _operand("gemm_grouped: a", a), _operand("gemm_grouped: b", b)
    if not isinstance(offsets, torch.Tensor):
        raise errors.ArrayTypeError(
            f"gemm_grouped: offsets is a {type(offsets).__name__}; pass a tensor."
        )
    return _gemm_grouped(a, b, offsets)


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
        builds or loads its kernel, and is refused under CUDA-graph capture. Contexts can be nested.
        The products are overridden in torch's dispatcher (`torch.library`), below autograd: a mode
        over Python's functions would miss products that torch calls itself, such as those of a
        backward pass, and a mode over all operators would slow down those that are no products.
    """
    with _routing.lock:
        _routing.depth += 1
        if _routing.depth == 1:
            _routing.library = torch.library.Library("aten", "IMPL")
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Warning only once for all operators")
                for name, route in ROUTES.items():
                    # On the simulator, CPU tensors stand for those of a GPU.
                    _routing.library.impl(name, route, "CPU" if simulator_enabled() else "CUDA")
    try:
        yield
    finally:
        with _routing.lock:
            _routing.depth -= 1
            if _routing.depth == 0:
                _routing.library._destroy()
                _routing.library = None


class Linear(torch.nn.Linear):
    """`torch.nn.Linear` with a fused activation: `linear` of its weight and bias.

    Args:
        in_features, out_features, bias, device, dtype: as `torch.nn.Linear` takes them.
        activation, batch_invariant: as `linear` takes them.

    Raises:
        ValueError: there is no such activation.
    """

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
            _activation(activation)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation = activation
        self.batch_invariant = batch_invariant

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return linear(
            input, self.weight, self.bias, self.activation, batch_invariant=self.batch_invariant
        )

    def extra_repr(self) -> str:
        text = f"{super().extra_repr()}, activation={self.activation!r}"
        return f"{text}, batch_invariant=True" if self.batch_invariant else text


def _operand(label: str, operand: Any) -> torch.Tensor:
    """Cast a tensor to the dtype of `torch.autocast`, unless it is float64.

    `torch.library.register_autocast` cannot do this: it fixes one dtype at registration.
    """
    if not isinstance(operand, torch.Tensor):
        raise errors.ArrayTypeError(f"{label} is a {type(operand).__name__}; pass a tensor.")
    if unpack_dual(operand).tangent is not None:  # an operator would drop it without a word
        raise errors.UnsupportedProblemError(
            f"{label} has a tangent; there are no derivatives in forward mode, use backward mode."
        )
    device = operand.device.type
    is_cast = operand.is_floating_point() and operand.dtype != torch.float64
    if is_cast and device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
        return operand.to(torch.get_autocast_dtype(device))
    return operand


def _refuse_tensor(label: str, number: Any) -> None:
    if isinstance(number, torch.Tensor):
        name = label.split()[-1]
        raise errors.ScalarError(f"{label} is a tensor; pass a number: {name}.item().")


def _activation(name: str) -> Activation:
    if name not in ACTIVATIONS:
        known = ", ".join(map(repr, ACTIVATIONS))
        raise ValueError(f"linear: activation is {name!r}; pass {known}, or None.")
    return ACTIVATIONS[name]


def _check(call: str, **operands: torch.Tensor | None) -> None:
    """Raise unless the operands have one dtype, of `DTYPES`, and are on one device."""
    given = {name: operand for name, operand in operands.items() if operand is not None}
    dtypes = {operand.dtype for operand in given.values()}
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        listed = ", ".join(f"{name} is {operand.dtype}" for name, operand in given.items())
        known = ", ".join(map(str, DTYPES))
        raise errors.DtypeError(f"{call}: {listed}; convert them to one of {known}.")
    if len({operand.device for operand in given.values()}) > 1:
        listed = ", ".join(f"{name} is on {operand.device}" for name, operand in given.items())
        raise errors.DeviceMismatchError(f"{call}: {listed}; move them to one device.")


def _shapes(**operands: torch.Tensor) -> str:
    return ", ".join(f"{name} is {tuple(operand.shape)}" for name, operand in operands.items())


def _matrix(tensor: torch.Tensor) -> torch.Tensor:
    """Reshape (..., k) to (rows, k)."""
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


def _empty_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """Check the operands of `linear` and allocate its result."""
    _check("linear", x=x, weight=weight, bias=bias)
    if activation is not None:
        _activation(activation)
    if x.ndim == 0 or weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        listed = _shapes(x=x, weight=weight)
        raise errors.ShapeError(f"linear: {listed}; x must be (..., k) and weight (n, k).")
    n = weight.shape[0]
    if bias is not None and bias.shape != (n,):
        listed = _shapes(x=x, weight=weight, bias=bias)
        raise errors.ShapeError(f"linear: {listed}; bias must be ({n},).")
    return x.new_empty((*x.shape[:-1], n))


def _compute_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    batch_invariant: bool,
    out: torch.Tensor,
    pre: torch.Tensor | None = None,
) -> None:
    """out = activation(pre), pre = x @ weight.T + bias; pre is stored if it is given."""
    stages: list[Any] = []
    if bias is not None:
        stages.append(epilogues.bias(bias))
    if pre is not None:
        stages.append(epilogues.keep(kept=_matrix(pre)))
    if activation is not None:
        stages.append(ACTIVATIONS[activation].epilogue)
    epilogue = reduce(operator.or_, stages) if stages else None
    dxgemm.gemm(
        _matrix(x), weight.T, out=_matrix(out), epilogue=epilogue, batch_invariant=batch_invariant
    )


@torch.library.custom_op("dxgemm::linear", mutates_args=())
def _linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    batch_invariant: bool = False,
) -> torch.Tensor:
    out = _empty_linear(x, weight, bias, activation)
    _compute_linear(x, weight, bias, activation, batch_invariant, out)
    return out


@torch.library.custom_op("dxgemm::linear_keep", mutates_args=())
def _linear_keep(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the result, and return the activation's input beside it."""
    out = _empty_linear(x, weight, bias, activation)
    pre = torch.empty_like(out)
    _compute_linear(x, weight, bias, activation, batch_invariant, out, pre)
    return out, pre


@_linear_keep.register_fake
def _fake_linear_keep(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    out = _empty_linear(x, weight, bias, activation)
    return out, torch.empty_like(out)


def _save_linear(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Save the tensors that `_linear_backward` needs, for both operators."""
    x, weight, _, activation, ctx.batch_invariant = inputs
    out, pre = output if isinstance(output, tuple) else (output, None)
    kept = None
    if activation is not None:
        kept = out if ACTIVATIONS[activation].reads_output else pre
        if kept is None:
            raise errors.UnsupportedProblemError(
                f"dxgemm::linear does not keep what the derivative of {activation} needs; call "
                "dxgemm.torch.linear, or dxgemm::linear_keep."
            )
    needs_x, needs_weight, *_ = ctx.needs_input_grad
    ctx.activation = activation
    ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None, kept)
    ctx.set_materialize_grads(False)


def _linear_backward(
    ctx: Any, grad: torch.Tensor | None, grad_pre: torch.Tensor | None = None
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of x, weight and bias.

    `grad_pre`, the gradient of the activation's input, is passed for second derivatives only.
    """
    x, weight, kept = ctx.saved_tensors
    if grad is not None and ctx.activation is not None:
        grad = ACTIVATIONS[ctx.activation].backward(grad, kept)
    grads = [given for given in (grad, grad_pre) if given is not None]
    if not grads:
        return None, None, None, None, None
    grad = reduce(operator.add, grads)
    needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
    rows = _matrix(grad)
    grad_x = grad_weight = grad_bias = None
    if needs_x:
        grad_x = _gemm(rows, weight, None, 1.0, 0.0, ctx.batch_invariant)
        grad_x = grad_x.reshape(*grad.shape[:-1], weight.shape[1])
    if needs_weight:
        grad_weight = _gemm(rows.T, _matrix(x), None, 1.0, 0.0, ctx.batch_invariant)
    if needs_bias:
        grad_bias = rows.sum(0)
    return grad_x, grad_weight, grad_bias, None, None


_linear.register_fake(_empty_linear)
_linear.register_autograd(_linear_backward, setup_context=_save_linear)
_linear_keep.register_autograd(_linear_backward, setup_context=_save_linear)


def _empty_product(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None,
    alpha: float,
    beta: float,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """Check the operands of `gemm` and allocate its result."""
    _check("gemm", a=a, b=b, c=c)
    if not {a.ndim, b.ndim} <= {2, 3} or a.shape[-1] != b.shape[-2]:
        raise errors.ShapeError(
            f"gemm: {_shapes(a=a, b=b)}; they must be (m, k) and (k, n), or batches of them."
        )
    try:
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError:
        raise errors.ShapeError(
            f"gemm: {_shapes(a=a, b=b)}; their batches must be equal, or 1 to be broadcast."
        ) from None
    shape = (*batch, a.shape[-2], b.shape[-1])
    if c is not None and not _broadcasts_to(c.shape, shape):
        raise errors.ShapeError(
            f"gemm: {_shapes(a=a, b=b, c=c)}; c must broadcast to {tuple(shape)}."
        )
    return a.new_empty(shape)


def _broadcasts_to(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    return len(shape) <= len(wanted) and all(size in (1, other) for size, other in pairs)


@torch.library.custom_op("dxgemm::gemm", mutates_args=())
def _gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None,
    alpha: float,
    beta: float,
    batch_invariant: bool = False,
) -> torch.Tensor:
    out = _empty_product(a, b, c, alpha, beta)
    if c is None:
        dxgemm.gemm(a, b, alpha=alpha, out=out, batch_invariant=batch_invariant)
    else:
        dxgemm.gemm(
            a, b, c.expand(out.shape), alpha, beta, out=out, batch_invariant=batch_invariant
        )
    return out


def _save_gemm(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, c, ctx.alpha, ctx.beta, ctx.batch_invariant = inputs
    ctx.shapes = a.shape, b.shape, None if c is None else c.shape
    needs_a, needs_b, *_ = ctx.needs_input_grad
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None)


def _gemm_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Gradients of a, b and c, summed where they were broadcast."""
    a, b = ctx.saved_tensors
    a_shape, b_shape, c_shape = ctx.shapes
    needs_a, needs_b, needs_c, *_ = ctx.needs_input_grad
    grad_a = grad_b = grad_c = None
    if needs_a:
        grad_a = _gemm(grad, b.mT, None, ctx.alpha, 0.0, ctx.batch_invariant).sum_to_size(a_shape)
    if needs_b:
        grad_b = _gemm(a.mT, grad, None, ctx.alpha, 0.0, ctx.batch_invariant).sum_to_size(b_shape)
    if needs_c:
        grad_c = ctx.beta * grad.sum_to_size(c_shape)
    return grad_a, grad_b, grad_c, None, None, None


_gemm.register_fake(_empty_product)
_gemm.register_autograd(_gemm_backward, setup_context=_save_gemm)


def _empty_matmul(
    a: torch.Tensor, b: torch.Tensor, alpha: float = 1.0, batch_invariant: bool = False
) -> torch.Tensor:
    """Check the operands of `matmul` and allocate its result."""
    _check("matmul", a=a, b=b)
    if not (a.ndim and b.ndim) or a.shape[-1] != b.shape[-2:][0]:
        raise errors.ShapeError(
            f"matmul: {_shapes(a=a, b=b)}; they must be (..., m, k) or (k,), and (..., k, n) or "
            "(k,)."
        )
    try:
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError:
        raise errors.ShapeError(
            f"matmul: {_shapes(a=a, b=b)}; but for the last two, dimensions must be equal, or 1 to "
            "be broadcast."
        ) from None
    cols = b.shape[-1:] if b.ndim > 1 else ()
    return a.new_empty((*batch, *a.shape[-2:-1], *cols))


@torch.library.custom_op("dxgemm::matmul", mutates_args=())
def _matmul(
    a: torch.Tensor, b: torch.Tensor, alpha: float = 1.0, batch_invariant: bool = False
) -> torch.Tensor:
    out = result = _empty_matmul(a, b)
    if a.ndim > 2 and b.ndim < 3 and a.is_contiguous():
        # One product of all rows reads b once, where one of each matrix would read it again.
        a = _matrix(a)
        result = out.view(len(a), *b.shape[1:])
    dxgemm.matmul(a, b, out=result, alpha=alpha, batch_invariant=batch_invariant)
    return out


def _save_matmul(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, ctx.alpha, ctx.batch_invariant = inputs
    ctx.shapes = a.shape, b.shape
    needs_a, needs_b, *_ = ctx.needs_input_grad
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None)


def _matmul_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Gradients of a and b, summed where they were broadcast; vectors are matrices meanwhile."""
    a, b = ctx.saved_tensors
    a_shape, b_shape = ctx.shapes
    needs_a, needs_b, *_ = ctx.needs_input_grad
    if len(b_shape) == 1:
        grad, b = grad.unsqueeze(-1), None if b is None else b.unsqueeze(-1)
    if len(a_shape) == 1:
        grad, a = grad.unsqueeze(-2), None if a is None else a.unsqueeze(-2)
    grad_a = grad_b = None
    if needs_a:
        grad_a = _matmul(grad, b.mT, ctx.alpha, ctx.batch_invariant)
        grad_a = grad_a.sum_to_size(a_shape if len(a_shape) > 1 else (1, *a_shape))
        grad_a = grad_a.reshape(a_shape)
    if needs_b:
        if len(b_shape) < 3:  # the product itself sums over the batch
            a, grad = _matrix(a), _matrix(grad)
        grad_b = _matmul(a.mT, grad, ctx.alpha, ctx.batch_invariant)
        grad_b = grad_b.sum_to_size(b_shape if len(b_shape) > 1 else (*b_shape, 1))
        grad_b = grad_b.reshape(b_shape)
    return grad_a, grad_b, None, None


_matmul.register_fake(_empty_matmul)
_matmul.register_autograd(_matmul_backward, setup_context=_save_matmul)


def _empty_group(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Check the operands of `gemm_grouped` and allocate its result."""
    _check("gemm_grouped", a=a, b=b)
    dimensions = a.ndim, b.ndim
    if dimensions not in ((2, 3), (3, 2), (2, 2)) or a.shape[-1] != b.shape[-2]:
        raise errors.ShapeError(
            f"gemm_grouped: {_shapes(a=a, b=b)}; they must be (total, k) and (groups, k, n), "
            "(groups, m, k) and (k, total), or (m, total) and (total, n)."
        )
    groups = offsets.shape[:1] if dimensions == (2, 2) else ()
    return a.new_empty((*groups, a.shape[-2], b.shape[-1]))


@torch.library.custom_op("dxgemm::gemm_grouped", mutates_args=())
def _gemm_grouped(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    out = _empty_group(a, b, offsets).zero_()
    dxgemm.gemm_grouped(a, b, out=out, offsets=offsets)
    return out


def _save_group(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, offsets = inputs
    needs_a, needs_b, *_ = ctx.needs_input_grad
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None, offsets)


def _group_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Gradients of a and b: what was shared out by the offsets is so again."""
    a, b, offsets = ctx.saved_tensors
    needs_a, needs_b, *_ = ctx.needs_input_grad
    grad_a = _gemm_grouped(grad, b.mT, offsets) if needs_a else None
    grad_b = _gemm_grouped(a.mT, grad, offsets) if needs_b else None
    return grad_a, grad_b, None


_gemm_grouped.register_fake(_empty_group)
_gemm_grouped.register_autograd(_group_backward, setup_context=_save_group)


class _Routing:
    """State of `batch_invariant`: contexts that are open, and torch's record of the overrides."""

    lock = threading.Lock()
    depth = 0
    library: Any = None


_routing = _Routing()


def _invariant(
    name: str,
    c: torch.Tensor | None,
    a: torch.Tensor,
    b: torch.Tensor,
    alpha: Any = 1.0,
    beta: Any = 0.0,
) -> torch.Tensor:
    """alpha * a @ b + beta * c by a batch-invariant kernel; by torch's for other dtypes."""
    out = a.new_empty((*a.shape[:-1], b.shape[-1]))
    if a.dtype not in DTYPES:
        operator_of_torch = getattr(torch, name)  # with out=, which is not overridden
        if c is None:
            return operator_of_torch(a, b, out=out)
        return operator_of_torch(c, a, b, beta=beta, alpha=alpha, out=out)
    if c is not None:
        c = c.expand(out.shape)
    with torch.no_grad():  # below autograd, where operands still say that they need gradients
        return dxgemm.gemm(a, b, c, alpha, beta, out=out, batch_invariant=True)


ROUTES: dict[str, Callable[..., torch.Tensor]] = {
    "mm": lambda a, b: _invariant("mm", None, a, b),
    "bmm": lambda a, b: _invariant("bmm", None, a, b),
    "mv": lambda a, b: _invariant("mm", None, a, b[:, None])[:, 0],
    "addmm": lambda c, a, b, *, beta=1, alpha=1: _invariant("addmm", c, a, b, alpha, beta),
    "addmv": lambda c, a, b, *, beta=1, alpha=1: _invariant(
        "addmm", c.expand(a.shape[:1])[:, None], a, b[:, None], alpha, beta
    )[:, 0],
    "baddbmm": lambda c, a, b, *, beta=1, alpha=1: _invariant("baddbmm", c, a, b, alpha, beta),
}
