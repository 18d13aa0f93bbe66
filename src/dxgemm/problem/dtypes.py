"""Dtypes and precisions, and which of them go together."""

from __future__ import annotations

# Complex dtypes, which only `gemm` and its kin take, and those of their parts.
from dxgemm.handwritten.parts.complex_product import COMPLEX_PARTS as COMPLEX_PARTS  # re-exported

OPERAND_DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int32")

# Bytes of an element; a reduction's results may be int64, and a block mask has bytes.
ITEM_SIZES = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int8": 1, "int32": 4, "int64": 8,
    "bool": 1, "uint8": 1, "complex64": 8, "complex128": 16,
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

# That of complex dtypes, besides those of their parts: three real products in the place of four.
THREE_PRODUCTS = "3m"

# In float64 "emulated" may name the number of moduli as well: "emulated14".
EMULATED = "emulated"

MODULI_COUNTS = range(2, 21)


def result_dtypes(dtype: str) -> tuple[str, ...]:
    """Dtypes of c and out, complex ones among them; a new result has the first."""
    return RESULT_DTYPES.get(dtype, (dtype,))


def slice_dtype(dtype: str) -> str:
    """Dtype of the sums of split-K slices, in a workspace."""
    return dtype if dtype in COMPLEX_PARTS else scalar_dtype(dtype)


def step_flops(dtype: str) -> int:
    """Operations for each m, n and k: complex numbers have four products of parts."""
    return 8 if dtype in COMPLEX_PARTS else 2


def scalar_dtype(dtype: str) -> str:
    """Dtype of the accumulator, alpha and beta, by the dtype of a and b."""
    return {"int8": "int32", "float64": "float64", "complex128": "float64"}.get(dtype, "float32")
