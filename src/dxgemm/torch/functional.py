"""Functions with the signatures of `torch.nn.functional`: a change of the import is enough."""

from __future__ import annotations

from typing import Any

import torch

from dxgemm.errors import SettingError, ShapeError, shown
from dxgemm.torch.operands import (
    as_flag,
    check_dtype,
    check_tensor,
    list_shapes,
    named_in_errors,
)
from dxgemm.torch.scaled_operators import RESULTS, scaled_operator

# Recipes by their names in `torch.nn.functional.ScalingType`: rows, and k, that share a scale.
RECIPES: dict[str, tuple[int, int]] = {
    "TensorWise": (0, 0), "RowWise": (1, 0), "BlockWise1x128": (1, 128),
    "BlockWise128x128": (128, 128),
}  # fmt: skip


@named_in_errors("functional.scaled_mm", a="mat_a", b="mat_b")
def scaled_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scale_a: Any,
    scale_recipe_a: Any,
    scale_b: Any,
    scale_recipe_b: Any,
    swizzle_a: Any = None,
    swizzle_b: Any = None,
    bias: torch.Tensor | None = None,
    output_dtype: torch.dtype | None = torch.bfloat16,
    contraction_dim: Any = (),
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """mat_a @ mat_b of float8 with scales, like `torch.nn.functional.scaled_mm`.

    Args:
        mat_a, mat_b: (m, k) and (k, n), float8_e4m3fn or float8_e5m2, any strides.
        scale_a, scale_b: float32 tensors, or lists of one, of the shape of their recipe.
        scale_recipe_a, scale_recipe_b: TensorWise, RowWise, BlockWise1x128 or BlockWise128x128 of
            `torch.nn.functional.ScalingType`, or lists of one.
        swizzle_a, swizzle_b: None, or NO_SWIZZLE.
        bias: (n,), float32, float16 or bfloat16; None for none.
        output_dtype: as `dxgemm.torch.scaled_mm` takes it as out_dtype.
        contraction_dim: empty, or (1, 0).
        use_fast_accum: as `dxgemm.torch.scaled_mm` takes it.

    Returns:
        A new tensor (m, n), contiguous.

    Raises:
        SettingError: a recipe, a swizzle or a contraction that float8 has not.
        ShapeError: a scale has not the shape of its recipe.
        DxgemmError: any error of `dxgemm.torch.scaled_mm`.
    """
    for name, operand in (("mat_a", mat_a), ("mat_b", mat_b)):
        check_tensor(name, operand)
    of_a = _scale("scale_a", scale_a, scale_recipe_a, swizzle_a, mat_a)
    of_b = _scale("scale_b", scale_b, scale_recipe_b, swizzle_b, mat_b.mT)
    is_listed = isinstance(contraction_dim, list | tuple)
    if not is_listed or tuple(contraction_dim) not in ((), (1, 0)):
        raise SettingError(
            f"contraction_dim is {shown(contraction_dim)}; leave it out, or pass (1, 0)."
        )
    if bias is not None:
        check_tensor("bias", bias)
    if output_dtype is not None:
        check_dtype("output_dtype", output_dtype, RESULTS)
    is_fast = as_flag("use_fast_accum", use_fast_accum)
    return scaled_operator(
        "scaled_mm", mat_a, mat_b, of_a, of_b, None, bias, None, output_dtype, is_fast
    )


def _name_of(value: Any) -> str:
    """Name of a member of an enumeration; of other values none."""
    try:
        name = value.name
    except Exception:
        return ""
    return name if isinstance(name, str) else ""


def _scale(name: str, scale: Any, recipe: Any, swizzle: Any, matrix: torch.Tensor) -> torch.Tensor:
    """The one scale of an operand, for whose rows it is."""
    scale, recipe, swizzle = (
        entry[0] if isinstance(entry, list | tuple) and len(entry) == 1 else entry
        for entry in (scale, recipe, swizzle)
    )
    check_tensor(name, scale)
    kind = recipe if isinstance(recipe, str) else _name_of(recipe)
    if kind not in RECIPES:
        known = ", ".join(RECIPES)
        raise SettingError(
            f"scale_recipe_{name[-1]} is {kind or shown(recipe)}; float8 takes one of {known}."
        )
    if swizzle is not None and _name_of(swizzle) != "NO_SWIZZLE":
        raise SettingError(f"swizzle_{name[-1]} is {shown(swizzle)}; scales of float8 have none.")
    rows, depth = RECIPES[kind]
    if matrix.ndim != 2:
        return scale  # refused later
    extents = [
        -(-size // block) if block else 1 for size, block in zip(matrix.shape, (rows, depth))
    ]
    wanted = tuple(extents if name == "scale_a" else extents[::-1])
    if tuple(scale.shape) != wanted and not (kind == "TensorWise" and scale.numel() == 1):
        raise ShapeError(f"{list_shapes(**{name: scale})}; by {kind} it must be {wanted}.")
    return scale
