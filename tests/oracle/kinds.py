"""Kinds of arithmetic of a GEMM, and bfloat16 for their tests, which NumPy lacks."""

from dataclasses import dataclass
from importlib import import_module

import numpy as np


@dataclass(frozen=True)
class Kind:
    """Kind of arithmetic: the dtypes of operands and result, and the precision between them."""

    dtype: str  # dtype of a and b
    out_dtype: str  # dtype of c and the result
    precision: str | None = None  # precision as `gemm` takes it

    @property
    def scalar_dtype(self) -> str:
        """Dtype of the accumulator, alpha and beta."""
        return {"float64": "float64", "int8": "int32"}.get(self.dtype, "float32")

    @property
    def is_integer(self) -> bool:
        """True if sums wrap around instead of being rounded, and alpha and beta are integers."""
        return self.scalar_dtype == "int32"

    @property
    def arithmetic(self) -> str:
        """Arithmetic whose accuracy results must have; emulated float64 counts as float64."""
        return self.precision if self.precision and self.dtype == "float32" else self.dtype

    @property
    def factors(self) -> tuple[float, float]:
        """Values of alpha and beta that are neither 0 nor 1."""
        return (-3, 7) if self.is_integer else (0.7, 1.3)

    @property
    def is_reduced(self) -> bool:
        """True if kernels may compute it on tensor cores only, and require aligned operands."""
        return self.dtype not in ("float32", "float64") or self.precision is not None


KINDS = {
    "float32": Kind("float32", "float32"),
    "float64": Kind("float64", "float64"),
    "tf32": Kind("float32", "float32", "tf32"),
    "emulated": Kind("float32", "float32", "emulated"),
    "emulated_float64": Kind("float64", "float64", "emulated"),
    "float16": Kind("float16", "float16"),
    "float16_to_float32": Kind("float16", "float32"),
    "bfloat16": Kind("bfloat16", "bfloat16"),
    "bfloat16_to_float32": Kind("bfloat16", "float32"),
    "int8": Kind("int8", "int32"),
}

# Kinds of floating-point numbers, with NaN, infinities and rounding.
FLOAT_KINDS = tuple(name for name, kind in KINDS.items() if not kind.is_integer)


@dataclass(frozen=True)
class Limits:
    """Limits of a floating-point dtype."""

    eps: float  # spacing at 1
    max: float  # largest finite value
    tiny: float  # smallest normal value, 2**minexp
    smallest_subnormal: float  # smallest positive value
    minexp: int  # exponent of the smallest normal value


def numpy_dtype(name: str) -> np.dtype:
    """NumPy dtype of a name; bfloat16 comes from ml_dtypes."""
    return np.dtype(import_module("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def limits(dtype: np.dtype | str) -> Limits:
    """Limits of a dtype, bfloat16 included."""
    dtype = numpy_dtype(dtype) if isinstance(dtype, str) else dtype
    finfo = import_module("ml_dtypes").finfo if dtype.name == "bfloat16" else np.finfo
    info = finfo(dtype)
    return Limits(
        float(info.eps),
        float(info.max),
        float(info.smallest_normal),
        float(info.smallest_subnormal),
        int(info.minexp),
    )


def round_to_dtype(values: np.ndarray, dtype: np.dtype | str) -> np.ndarray:
    """Rounds wide values to a dtype as a kernel does: bfloat16 by way of float32.

    Integers wrap around.
    """
    dtype = numpy_dtype(dtype) if isinstance(dtype, str) else dtype
    with np.errstate(all="ignore"):
        if dtype.name == "bfloat16":
            values = values.astype(np.float32)
        return values.astype(dtype)
