"""Dtypes and precisions, and which of them go together."""

from __future__ import annotations

OPERAND_DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int32")

# Bytes of an element; a reduction's results may be int64, and a block mask has bytes.
ITEM_SIZES = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int8": 1, "int32": 4, "int64": 8,
    "bool": 1, "uint8": 1,
}  # fmt: skip

# Dtypes of c and out by the dtype of a and b; a new result has the first.
RESULT_DTYPES = {
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "float32": ("float32",),
    "float64": ("float64",),
    "int8": ("int32",),
}

# Further dtypes of out that an epilogue may turn sums into, by the dtype of a and b.
EPILOGUE_DTYPES = {
    "float16": ("int8",),
    "bfloat16": ("int8",),
    "int8": ("float32", "float16", "bfloat16", "int8"),
}

# Values of `precision=`, which permit another arithmetic than the dtype's own, by dtype.
PRECISIONS = {"float32": ("tf32", "emulated"), "float64": ("emulated",)}

# In float64 "emulated" may name the number of moduli as well: "emulated14".
EMULATED = "emulated"

MODULI_COUNTS = range(2, 21)


def scalar_dtype(dtype: str) -> str:
    """Dtype of the accumulator, alpha and beta, by the dtype of a and b."""
    return {"float64": "float64", "int8": "int32"}.get(dtype, "float32")
