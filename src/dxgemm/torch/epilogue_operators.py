"""The operator `gemm_epilogue` of torch: a product with a chain of epilogues, and its gradients.

An operator takes no objects. The chain is passed as text, the keys of its stages, and as the
tensors and the numbers that are bound to them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, reduce
from typing import Any

import torch

import dxgemm
from dxgemm import epilogues, errors
from dxgemm.epilogues import BoundEpilogue, Epilogue, Parameter
from dxgemm.epilogues.chain import joined_shape
from dxgemm.epilogues.function import refreshed
from dxgemm.epilogues.kinds import fits, fitting_shapes
from dxgemm.torch.derivatives import (
    IDENTITY,
    bind,
    find_derivatives,
    find_stages,
    keep_for_graphs,
    places_read,
    share_out,
)
from dxgemm.torch.operands import as_matrix, check_devices, check_tensor
from dxgemm.torch.product_operators import empty_product, product_gradients, save_product


def compute_with_epilogue(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None,
    alpha: float,
    beta: float,
    chain: BoundEpilogue,
    batch_invariant: bool,
    lead: tuple[int, ...] | None = None,
) -> torch.Tensor:
    """epilogue(alpha * a @ b + beta * c), a new tensor.

    Args:
        lead: dimensions that were flattened to the rows of a, and are flattened in the epilogue's
            matrices and column vectors too; None for none.

    Raises:
        UnsupportedProblemError: the chain has outputs, pairs or a reduction, or there is no
            derivative that a gradient needs.
    """
    is_taken = not any(stage.outputs or stage.takes_pairs for stage in chain.stages)
    if chain.reduction is not None or not is_taken:
        raise errors.UnsupportedProblemError(
            f"epilogue {chain!r} has outputs, pairs of columns or a reduction, which the "
            "operators of torch do not take; call dxgemm.gemm."
        )
    entries = [entry for stage in chain.stages for entry in stage.parameters]
    operands, numbers = [], []
    for entry, value in zip(entries, chain.values, strict=True):
        if entry.is_number:
            numbers.append(value)
            continue
        check_tensor(f"epilogue {entry.epilogue}: {entry.name}", value)
        if lead is not None and entry.kind == "matrix" and value.shape[:-1] == lead:
            value = as_matrix(value)
        if lead is not None and entry.kind == "column" and value.shape == lead:
            value = value.reshape(-1)
        operands.append(value)
    keys = "\n".join(stage.key for stage in chain.stages)
    if torch.compiler.is_compiling():
        keep_for_graphs(keys)
    kept = []
    if torch.is_grad_enabled():
        is_needed = any(x is not None and x.requires_grad for x in (a, b, c))
        needed = tuple(operand.requires_grad for operand in operands)
        kept = list(_places_to_keep(keys, is_needed, needed))
    return fused_operator(a, b, c, alpha, beta, keys, operands, numbers, kept, batch_invariant)[0]


@torch.compiler.assume_constant_result
def _places_to_keep(keys: str, is_needed: bool, needed: tuple[bool, ...]) -> tuple[int, ...]:
    """Find the places of a chain whose values a backward pass reads, but for the result."""
    stages = find_stages(keys)
    places = places_read(find_derivatives(stages, is_needed, needed))
    return tuple(place for place in places if place < len(stages))


def _list_arrays(stages: Sequence[Epilogue]) -> list[tuple[int, Parameter]]:
    """List the vectors and matrices of a chain, with the places of their stages."""
    return [
        (place, entry)
        for place, stage in enumerate(stages)
        for entry in stage.parameters
        if not entry.is_number
    ]


@cache
def _keep_at(place: int) -> Epilogue:
    """Make a stage like `epilogues.keep`, with an output of its own name."""
    output = replace(epilogues.keep.outputs[0], name=f"kept_{place}")
    return Epilogue(epilogues.keep.function, (), (output,))


@torch.library.custom_op("dxgemm::gemm_epilogue", mutates_args=())
def fused_operator(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None,
    alpha: float,
    beta: float,
    keys: str,
    operands: list[torch.Tensor],
    numbers: list[int | float | bool],
    kept: list[int],
    batch_invariant: bool,  # with a default, gradients of lists would not match their operands
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Compute the result, and return the values at the places of `kept` beside it."""
    out, values = _empty_fused(a, b, c, alpha, beta, keys, operands, numbers, kept, batch_invariant)
    stages = bind(find_stages(keys), operands, numbers)
    for place, value in sorted(zip(kept, values), key=operator.itemgetter(0), reverse=True):
        stages.insert(place, _keep_at(place)(**{f"kept_{place}": value}))
    dxgemm.gemm(
        a,
        b,
        None if c is None else c.expand(out.shape),
        alpha,
        0.0 if c is None else beta,
        out=out,
        epilogue=reduce(operator.or_, stages),
        batch_invariant=batch_invariant,
    )
    return out, values


@fused_operator.register_fake
def _empty_fused(*inputs: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Check shapes and devices, and allocate the results."""
    a, b, c, _, _, keys, operands, _, kept, _ = inputs
    out = empty_product(a, b, c)
    m, n = out.shape[-2:]
    batch = out.shape[0] if out.ndim == 3 else 1
    for (_, entry), operand in zip(_list_arrays(find_stages(keys)), operands, strict=True):
        label = f"epilogue {entry.epilogue}: {entry.name}"
        check_devices("gemm", {"a": a, label: operand})
        if not fits(entry, operand.shape, m, n, batch):
            raise errors.ShapeError(
                f"gemm: {label} is {tuple(operand.shape)}, but {entry.meaning} for a result of "
                f"{tuple(out.shape)} has shape {fitting_shapes(entry, m, n, batch)}."
            )
    return out, [torch.empty_like(out) for _ in kept]


def _save_fused(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Save a and b, and of the chain's operands and values those that are read."""
    *product, keys, operands, ctx.numbers, ctx.kept, batch_invariant = inputs
    ctx.stages = stages = find_stages(keys)  # the caller may drop them before the backward pass
    # In forward, ctx.needs_input_grad has no list for the operands, as it has in backward.
    needed = [operand.requires_grad for operand in operands]
    ctx.derivatives = find_derivatives(stages, any(ctx.needs_input_grad[:3]), needed)
    ctx.places = places_read(ctx.derivatives)
    values = {**dict(zip(ctx.kept, output[1])), len(stages): output[0]}
    if not values.keys() >= set(ctx.places):
        raise errors.UnsupportedProblemError(
            f"dxgemm::gemm_epilogue keeps values at {ctx.kept}, and derivatives read {ctx.places}; "
            "call dxgemm.torch.gemm, or linear."
        )
    ctx.dtype = output[0].dtype
    ctx.like = [(operand.shape, operand.dtype) for operand in operands]
    reading = {place for (place, _), entry in ctx.derivatives.items() if entry is not IDENTITY}
    arrays = zip(_list_arrays(stages), operands)
    read = [operand if place in reading else None for (place, _), operand in arrays]
    save_product(ctx, *product, batch_invariant, *read, *(values[place] for place in ctx.places))
    ctx.set_materialize_grads(False)


def _fused_backward(
    ctx: Any, grad: torch.Tensor | None, grads_kept: list[torch.Tensor | None]
) -> tuple[Any, ...]:
    """Gradients of a, b, c and of the chain's operands, from the last stage to the first.

    `grads_kept`, the gradients of the values that were kept, are passed for second derivatives
    only.
    """
    stages = ctx.stages
    _, _, *saved = ctx.saved_tensors
    shares = share_out(stages, saved, ctx.numbers)
    values = dict(zip(ctx.places, saved[len(ctx.like) :]))
    of_kept = dict(zip(ctx.kept, grads_kept))

    def compute(place: int, name: str | None) -> torch.Tensor | None:
        derivative = ctx.derivatives.get((place, name))
        if grad is None or derivative is None:
            return None
        value = None if derivative.reads is None else values[place + derivative.reads]
        found = derivative.compute(grad, value, *shares[place])
        return found.reshape(grad.shape)  # vectors with a batch of one add a dimension

    arrays = list(zip(_list_arrays(stages), ctx.like))
    of_operands: list[torch.Tensor | None] = [None] * len(arrays)
    for place in reversed(range(len(stages))):
        for index, ((at, entry), (shape, dtype)) in enumerate(arrays):
            if at == place and (found := compute(place, entry.name)) is not None:
                broadcast = _broadcast_shape(entry, shape)[-found.ndim :]
                of_operands[index] = found.sum_to_size(broadcast).reshape(shape).to(dtype)
        found = compute(place, None)
        if found is not None:  # operands of other dtypes widen it
            found = found.to(ctx.dtype)
        given = [term for term in (found, of_kept.get(place)) if term is not None]
        grad = reduce(operator.add, given) if given else None
    of_product = (None, None, None) if grad is None else product_gradients(ctx, grad)
    # An empty list counts as one of tensors, which has a list of gradients.
    of_numbers: list[Any] | None = None if ctx.numbers else []
    of_places: list[Any] | None = None if ctx.kept else []
    return *of_product, None, None, None, of_operands, of_numbers, of_places, None


def _broadcast_shape(entry: Parameter, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape in which a vector broadcasts to the result."""
    if entry.kind == "row":
        return *shape[:-1], 1, shape[-1]
    return (*shape, 1) if entry.kind == "column" else shape


fused_operator.register_autograd(_fused_backward, setup_context=_save_fused)


# In a graph chains are joined without what is for kernels; the operator binds them anew.
@torch.compiler.substitute_in_graph(refreshed)
def _leave_stage(stage: Epilogue) -> Epilogue:
    return stage


@torch.compiler.substitute_in_graph(joined_shape)
def _leave_shape(left: BoundEpilogue, right: BoundEpilogue) -> BoundEpilogue | None:
    return None
