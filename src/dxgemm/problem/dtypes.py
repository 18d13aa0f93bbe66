"""Dtypes and precisions, and which of them go together."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

# Complex dtypes, which only `gemm` and its kin take, and those of their parts.
from dxgemm.handwritten.parts.complex_product import COMPLEX_PARTS as COMPLEX_PARTS  # re-exported
from dxgemm.handwritten.parts.operands import FLOAT8, FLOAT8_KINDS

INTEGER_BITS = {
    f"{sign}int{bits}": bits for bits in (8, 16, 32, 64) for sign in ("", "u")
}  # fmt: skip
# A product of a signed and an unsigned matrix has a dtype of two names, a's and b's.
MIXED_BITS = {
    f"{a} {b}": bits for bits in (8, 16, 32) for a, b in permutations((f"int{bits}", f"uint{bits}"))
}
# Bits of the operands of all products of integers.
PRODUCT_BITS = {"bool": 1} | INTEGER_BITS | MIXED_BITS

OPERAND_DTYPES = (
    "float16", "bfloat16", "float32", "float64", *FLOAT8_KINDS, "bool", *INTEGER_BITS
)  # fmt: skip

# Bytes of an element.
ITEM_SIZES = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
} | {name: -(-bits // 8) for name, bits in PRODUCT_BITS.items()}  # fmt: skip
ITEM_SIZES |= dict.fromkeys(FLOAT8, 1)

# Dtypes of c and out by the dtype of a and b, of kernels that are built ahead; a new result has the
# first.
RESULT_DTYPES = {
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "float32": ("float32",),
    "float64": ("float64",),
    "int8": ("int32",),
}

# The same by the dtype of a product of float8, whose kernels are built when they are needed. To
# results of float8, which are out, no c is added.
FLOAT8_RESULTS = dict.fromkeys(FLOAT8, ("bfloat16", "float16", "float32"))

_32_BITS, _64_BITS = ("int32", "uint32"), ("int64", "uint64")


def _integer_results(dtype: str, bits: int) -> tuple[str, ...]:
    """Dtypes that products of integers are stored in, modulo 2**bits; a new result has the first.

    Of 8 and 16 bits it is int32; of 32 and 64 bits the operands' own, or int64 if they differ.
    """
    if dtype == "bool":
        return "bool", "int32"
    if bits < 32:
        return _32_BITS + _64_BITS
    wider = _64_BITS if bits == 64 else _32_BITS + _64_BITS
    own = "int64" if dtype in MIXED_BITS else dtype
    return own, *(name for name in wider if name != own)


INTEGER_RESULTS = {name: _integer_results(name, bits) for name, bits in PRODUCT_BITS.items()}

# Further dtypes of out that an epilogue may turn sums into, by the dtype of a and b.
EPILOGUE_DTYPES = {
    "float16": ("int8", *FLOAT8_KINDS),
    "bfloat16": ("int8", *FLOAT8_KINDS),
    **dict.fromkeys(
        (name for name, bits in PRODUCT_BITS.items() if 8 <= bits <= 16),
        ("float32", "float16", "bfloat16", "int8"),
    ),
}

# Values of `precision=`, which permit another arithmetic than the dtype's own, by dtype.
FAST = "fast"  # sums of float8 that stay in the tensor core
PRECISIONS = {"float32": ("tf32", "emulated"), "float64": ("emulated",)}
PRECISIONS |= dict.fromkeys(FLOAT8, (FAST,))

# That of complex dtypes, besides those of their parts: three real products in the place of four.
THREE_PRODUCTS = "3m"

# In float64 "emulated" may name the number of moduli as well: "emulated14".
EMULATED = "emulated"

MODULI_COUNTS = range(2, 21)

MOST_MODULUS = 2**31 - 1


@dataclass(frozen=True)
class Modulus:
    """Number modulo which a product of integers is taken, where a call has its precision."""

    number: int


def dtype_name(dtype: Any) -> Any:
    """Name of a dtype of NumPy or torch; anything else as it is."""
    if isinstance(dtype, np.dtype | type):
        return np.dtype(dtype).name
    return str(dtype).removeprefix("torch.") if type(dtype).__module__ == "torch" else dtype


def product_dtype(a: str, b: str) -> str | None:
    """Dtype of a product of operands of two dtypes: theirs, or both names; None for neither."""
    if a == b:
        return a
    mixed = f"{a} {b}"
    return mixed if mixed in MIXED_BITS or mixed in FLOAT8 else None


def factor_dtypes(dtype: str) -> tuple[str, str]:
    """Dtypes of a and of b by that of their product."""
    a, _, b = dtype.partition(" ")
    return a, b or a


def result_dtypes(dtype: str) -> tuple[str, ...]:
    """Dtypes of c and out, complex ones among them; a new result has the first."""
    known = RESULT_DTYPES.get(dtype) or INTEGER_RESULTS.get(dtype) or FLOAT8_RESULTS.get(dtype)
    return known or (dtype,)


def slice_dtype(dtype: str, out_dtype: str) -> str:
    """Dtype of sums in a workspace, such as those of split-K slices: of integers, a signed one."""
    if dtype in PRODUCT_BITS:
        return "int64" if out_dtype in ("int64", "uint64") else "int32"
    return dtype if dtype in COMPLEX_PARTS else scalar_dtype(dtype)


def step_flops(dtype: str) -> int:
    """Operations for each m, n and k: complex numbers have four products of parts."""
    return 8 if dtype in COMPLEX_PARTS else 2


def scalar_dtype(dtype: str) -> str:
    """Dtype of alpha and beta, and of the accumulator of floats, by the dtype of a and b."""
    if dtype in PRODUCT_BITS:
        return "int64" if PRODUCT_BITS[dtype] > 16 else "int32"
    return "float64" if dtype in ("float64", "complex128") else "float32"


def unit_dtype(dtype: str) -> str:
    """Arithmetic of products outside tensor cores, a key of `DeviceFacts.peak_tflops`."""
    return "int32" if PRODUCT_BITS.get(dtype, 64) < 64 else scalar_dtype(dtype)
