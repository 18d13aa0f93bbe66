"""Derivatives of epilogues: those of the catalogue, and those that `derivative` registers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

import dxgemm
from dxgemm import epilogues, errors
from dxgemm.epilogues import BoundEpilogue, Epilogue, Integer, Matrix, Scalar, dropout
from dxgemm.epilogues.function import find_epilogue
from dxgemm.epilogues.reads import reads_parameter
from dxgemm.torch.activations import ACTIVATIONS, Activation


class Derivative(NamedTuple):
    """Gradient of an epilogue's element, or of one of its operands before that is summed.

    Attributes:
        compute: (gradient of the result, value, *operands) -> gradient.
        reads: 0 if value is the epilogue's input, 1 if it is its output, None if it is not read.
    """

    compute: Callable[..., torch.Tensor]
    reads: int | None = None


@errors.named_in_errors("derivative")
def derivative(of: Epilogue, operand: str | None = None) -> Callable[[Any], Epilogue]:
    """Register the decorated function as a derivative of an epilogue.

        @dxgemm.epilogue
        def power(value, row, col, shift: RowVector):
            return (value + shift) ** 2

        @dxgemm.torch.derivative(power)
        @dxgemm.torch.derivative(power, "shift")
        def slope(value, row, col, shift: RowVector):
            return 2.0 * (value + shift)

    The function has the parameters of the epilogue. It is compiled into a kernel that multiplies
    it by the gradient of the result.

    Args:
        of: the epilogue, without operands.
        operand: name of the vector or matrix to which the derivative is; None for the element.

    Returns:
        The decorator, which makes an epilogue of the function.

    Raises:
        EpilogueError: the operators do not take the epilogue, it has no such operand, or the
            function has other parameters.
    """
    if not isinstance(of, Epilogue) or of.takes_pairs or of.outputs:
        raise errors.EpilogueError(
            f"derivative: of is {errors.shown(of)}; pass an epilogue without operands, that "
            "neither takes pairs nor has outputs."
        )
    names = [entry.name for entry in of.parameters if not entry.is_number]
    if operand is not None and (not isinstance(operand, str) or operand not in names):
        raise errors.EpilogueError(
            f"derivative: {of.name} has no vector or matrix {errors.shown(operand)}; it has "
            f"{', '.join(names) or 'none'}."
        )

    def register(function: Any) -> Epilogue:
        made = function if isinstance(function, Epilogue) else dxgemm.epilogue()(function)
        wanted, found = ([(p.name, p.kind) for p in e.operands] for e in (of, made))
        if found != wanted or made.takes_pairs:
            raise errors.EpilogueError(
                f"derivative: {made!r} must have the operands of {of!r}, of the same kinds."
            )
        reads = 0 if reads_parameter(made.recorded, 0) else None
        _derivatives(of)[operand] = Derivative(partial(_apply, made), reads)
        return made

    return register


def _apply(
    made: Epilogue, grad: torch.Tensor, value: torch.Tensor | None, *operands: Any
) -> torch.Tensor:
    entries = list(zip(made.parameters, operands, strict=True))
    tensors = [operand for entry, operand in entries if not entry.is_number]
    numbers = [operand for entry, operand in entries if entry.is_number]
    return apply_operator(grad, value, made.key, tensors, numbers)


@dxgemm.epilogue
def _times(value: Any, row: Any, col: Any, factor: Matrix) -> Any:
    return value * factor


@torch.library.custom_op("dxgemm::apply_epilogue", mutates_args=())
def apply_operator(
    grad: torch.Tensor,
    value: torch.Tensor | None,
    key: str,
    operands: list[torch.Tensor],
    numbers: list[int | float | bool],
) -> torch.Tensor:
    """Compute grad * epilogue(value, *operands), by a product without an inner dimension."""
    out = _empty_applied(grad)
    (bound,) = bind(find_stages(key), operands, numbers)
    a, b = grad.new_empty((*grad.shape[:-1], 0)), grad.new_empty((0, grad.shape[-1]))
    beta = 0.0 if value is None else 1.0
    dxgemm.gemm(a, b, value, beta=beta, out=out, epilogue=bound | _times(grad))
    return out


@apply_operator.register_fake
def _empty_applied(grad: torch.Tensor, *others: Any) -> torch.Tensor:
    return grad.new_empty(grad.shape)


def _save_applied(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, value, key, operands, ctx.numbers = inputs
    (ctx.stage,) = find_stages(key)  # the caller may drop it before the backward pass
    if any(x is not None and x.requires_grad for x in (value, *operands)):
        raise errors.UnsupportedProblemError(
            f"dxgemm.torch: {ctx.stage.name} is a derivative that has none itself; "
            "differentiate once, without create_graph=True."
        )
    ctx.save_for_backward(value, *operands)


def _applied_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    value, *operands = ctx.saved_tensors
    applied = apply_operator(grad, value, ctx.stage.key, operands, ctx.numbers)
    # An empty list counts as one of tensors, which has a list of gradients.
    return applied, None, None, [None] * len(operands), None if ctx.numbers else []


apply_operator.register_autograd(_applied_backward, setup_context=_save_applied)


def find_stages(keys: str) -> list[Epilogue]:
    """Find the epilogues of a chain, whose keys are the lines of a text."""
    return [find_epilogue(key) for key in keys.split("\n")]


# Epilogues of graphs, which have their keys alone: nothing tells how long a graph is used.
_in_graphs: dict[str, list[Epilogue]] = {}


@torch.compiler.assume_constant_result
def keep_for_graphs(keys: str) -> None:
    """Keep the epilogues of a chain, and with them their derivatives; or an inner function."""
    _in_graphs.setdefault(keys, find_stages(keys))


def share_out(
    stages: Sequence[Epilogue], operands: Iterable[Any], numbers: Iterable[Any]
) -> list[list[Any]]:
    """Share out tensors and numbers: a list for each stage, in the order of its parameters."""
    tensors, others = iter(operands), iter(numbers)
    return [
        [next(others if entry.is_number else tensors) for entry in stage.parameters]
        for stage in stages
    ]


def bind(
    stages: Sequence[Epilogue], operands: Iterable[Any], numbers: Iterable[Any]
) -> list[BoundEpilogue]:
    """Bind the tensors and numbers of a chain to its stages."""
    shares = share_out(stages, operands, numbers)
    return [stage(*share) for stage, share in zip(stages, shares, strict=True)]


def _derivatives(of: Epilogue) -> dict[str | None, Derivative]:
    """Derivatives of an epilogue, by the name of the operand; None for the element."""
    found: dict[str | None, Derivative] = of.shape.attached.setdefault("derivatives", {})
    return found


def find_derivatives(
    stages: Sequence[Epilogue], is_needed: bool, operands_needed: Iterable[bool]
) -> dict[tuple[int, str | None], Derivative]:
    """Find the derivatives that a backward pass through a chain needs.

    Args:
        stages: the chain.
        is_needed: True if the gradient of the first stage's element is needed.
        operands_needed: for each tensor that is bound to the chain, True if its gradient is.

    Returns:
        The derivatives, by the place of the stage and the name of the operand; None for the
        element, which comes after the operands.

    Raises:
        UnsupportedProblemError: there is no such derivative.
    """
    found, needed = {}, iter(operands_needed)
    for place, stage in enumerate(stages):
        arrays = [entry.name for entry in stage.parameters if not entry.is_number]
        names: list[str | None] = [name for name in arrays if next(needed)]
        if is_needed:
            names.append(None)
        is_needed = bool(names)
        for name in names:
            if name not in _derivatives(stage):
                arguments = stage.name if name is None else f"{stage.name}, {name!r}"
                raise errors.UnsupportedProblemError(
                    f"dxgemm.torch: epilogue {stage.name} has no derivative with respect to "
                    f"{name or 'its element'}; register one, @dxgemm.torch.derivative({arguments})"
                    ", or compute under torch.no_grad()."
                )
            found[place, name] = _derivatives(stage)[name]
    return found


def places_read(derivatives: dict[tuple[int, str | None], Derivative]) -> list[int]:
    """Places of a chain whose values are read: place i is before stage i."""
    reading = [(place, entry.reads) for (place, _), entry in derivatives.items()]
    return sorted({place + reads for place, reads in reading if reads is not None})


def _of_activation(activation: Activation) -> Derivative:
    backward = activation.backward
    return Derivative(lambda grad, value: backward(grad, value), int(activation.reads_output))


IDENTITY = Derivative(lambda grad, value, *operands: grad)
TIMES_VALUE = Derivative(lambda grad, value, *operands: grad * value, reads=0)
_CATALOGUE = (
    *((a.epilogue, None, _of_activation(a)) for a in ACTIVATIONS.values()),
    (epilogues.fast_gelu_tanh, None, _of_activation(ACTIVATIONS["gelu_tanh"])),
    (epilogues.fast_silu, None, _of_activation(ACTIVATIONS["silu"])),
    (epilogues.bias, None, IDENTITY),
    (epilogues.bias, "vector", IDENTITY),
    (epilogues.bias_column, None, IDENTITY),
    (epilogues.bias_column, "vector", IDENTITY),
    (epilogues.residual, None, IDENTITY),
    (epilogues.residual, "matrix", IDENTITY),
    (epilogues.scale, None, Derivative(lambda grad, value, factor: grad * factor)),
    (epilogues.scale_rows, None, Derivative(lambda grad, value, v: grad * v.unsqueeze(-1))),
    (epilogues.scale_rows, "factors", TIMES_VALUE),
    (epilogues.scale_columns, None, Derivative(lambda grad, value, v: grad * v.unsqueeze(-2))),
    (epilogues.scale_columns, "factors", TIMES_VALUE),
    (
        epilogues.leaky_relu,
        None,
        Derivative(lambda grad, value, slope: torch.where(value > 0.0, grad, slope * grad), 0),
    ),
    (
        epilogues.clamp,
        None,
        Derivative(lambda grad, value, low, high: grad * ((value >= low) & (value <= high)), 0),
    ),
)
for _stage, _name, _entry in _CATALOGUE:
    _derivatives(_stage)[_name] = _entry


@derivative(dropout)
def _dropout_slope(value: Any, row: Any, col: Any, probability: Scalar, seed: Integer) -> Any:
    return dropout(1.0, row, col, probability, seed)
