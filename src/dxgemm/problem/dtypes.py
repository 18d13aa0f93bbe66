"""The dtypes and precisions there are, and which go together."""

from __future__ import annotations

OPERAND_DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int32")

# Bytes of an element; a reduction's results may be int64.
ITEM_SIZES = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int8": 1, "int32": 4, "int64": 8
}  # fmt: skip

# What c and out may be, by the dtype of a and b; the first is that of a new result.
RESULT_DTYPES = {
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "float32": ("float32",),
    "float64": ("float64",),
    "int8": ("int32",),
}

# What an epilogue may make of int32 sums besides.
DEQUANTISED_DTYPES = ("float32", "float16", "bfloat16")

# What `precision=` may permit instead of a dtype's own arithmetic, by dtype.
PRECISIONS = {"float32": ("tf32", "emulated"), "float64": ("emulated",)}

# In float64 "emulated" may name the number of moduli as well: "emulated14".
EMULATED = "emulated"

MODULI_COUNTS = range(2, 21)


def scalar_dtype(dtype: str) -> str:
    """The dtype of sums, alpha and beta, by the dtype of a and b."""
    return {"float64": "float64", "int8": "int32"}.get(dtype, "float32")
