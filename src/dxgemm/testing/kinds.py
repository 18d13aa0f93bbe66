"""The kinds of arithmetic a GEMM is asked for, and what NumPy lacks to test them: bfloat16."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import numpy as np


@dataclass(frozen=True)
class Kind:
    """What goes in, what comes out, and what is permitted in between.

    Attributes:
        dtype: of a and b.
        out_dtype: of c and the result.
        precision: what `gemm` takes.
    """

    dtype: str
    out_dtype: str
    precision: str | None = None

    @property
    def scalar_dtype(self) -> str:
        """The dtype of sums, alpha and beta."""
        return {"float64": "float64", "int8": "int32"}.get(self.dtype, "float32")

    @property
    def is_integer(self) -> bool:
        """Whether sums wrap around instead of being rounded, and alpha and beta are integers."""
        return self.scalar_dtype == "int32"

    @property
    def arithmetic(self) -> str:
        """What results have to be as right as: float64 remains that, by whatever products."""
        return self.precision if self.precision and self.dtype == "float32" else self.dtype

    @property
    def factors(self) -> tuple[float, float]:
        """An alpha and a beta that are neither 0 nor 1."""
        return (-3, 7) if self.is_integer else (0.7, 1.3)

    @property
    def is_reduced(self) -> bool:
        """Whether kernels compute it on tensor cores only, and may insist on aligned operands."""
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

# Those of floating-point numbers, with NaN, infinities and rounding.
FLOAT_KINDS = tuple(name for name, kind in KINDS.items() if not kind.is_integer)


@dataclass(frozen=True)
class Limits:
    """Properties of a floating-point dtype.

    Attributes:
        eps: its spacing at 1.
        max: its largest finite value.
        tiny: its smallest normal value, 2**minexp.
        smallest_subnormal: its smallest positive value.
    """

    eps: float
    max: float
    tiny: float
    smallest_subnormal: float
    minexp: int


def numpy_dtype(name: str) -> np.dtype:
    """The dtype of a name; bfloat16 comes from ml_dtypes."""
    return np.dtype(import_module("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def limits(dtype: np.dtype | str) -> Limits:
    """The limits of a dtype, bfloat16 included."""
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
