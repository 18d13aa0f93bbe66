"""Faults: wrong results of GEMMs under construction, which the acceptance rule must reject."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from oracle.kinds import round_to_dtype

K_TILE = 8

TF32_BITS = 11

# Significant bits after a loss of precision, by arithmetic. Operands keep those of the next
# narrower type. Sums keep those of the operands, or TF32's for float32 and float32's for float64
# and int8.
NARROW_OPERANDS = {
    "bfloat16": 7,
    "float16": 8,
    "tf32": 8,
    "emulated": 11,
    "float32": 11,
    "float64": 24,
}
NARROW_SUMS = {
    "bfloat16": 8,
    "float16": 11,
    "tf32": 11,
    "emulated": 11,
    "float32": 11,
    "float64": 24,
    "int8": 24,
}


def round_to_bits(values: np.ndarray, bits: int) -> np.ndarray:
    """Rounds to `bits` significant bits, to nearest."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    rounded = np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits)
    return rounded.astype(values.dtype)


def cut_to_bits(values: np.ndarray, bits: int) -> np.ndarray:
    """Leaves off all but the first `bits` significant bits."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    return np.ldexp(np.trunc(np.ldexp(mantissa, bits)), exponent - bits).astype(values.dtype)


@dataclasses.dataclass(frozen=True)
class Call:
    """Arguments of one row-major gemm, with a right implementation to break."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    alpha: float
    beta: float
    precision: str | None = None

    @property
    def arithmetic(self) -> str:
        """Arithmetic of the call: the precision, or else the dtype; always float64 for float64."""
        dtype: str = self.a.dtype.name
        return self.precision if self.precision and dtype != "float64" else dtype

    @property
    def scalar(self) -> Any:
        """Type of the sums."""
        return {"float64": np.float64, "int8": np.int32}.get(self.a.dtype.name, np.float32)

    def result(self, sum_bits: int | None = None) -> np.ndarray:
        """Returns the right result: one rank-1 update after the other, in the type of sums."""
        a, b, c = (values.astype(self.scalar) for values in (self.a, self.b, self.c))
        if self.precision == "tf32":
            a, b = (round_to_bits(values, TF32_BITS) for values in (a, b))
        total = np.zeros(c.shape, self.scalar)
        for step in range(a.shape[1]):
            total += a[:, step, None] * b[None, step]
            if sum_bits is not None:
                total = round_to_bits(total, sum_bits)
        return round_to_dtype(
            self.scalar(self.alpha) * total + self.scalar(self.beta) * c, self.c.dtype
        )

    def result_with(self, **changed: Any) -> np.ndarray:
        """Returns the result of other arguments."""
        return dataclasses.replace(self, **changed).result()


Fault = Callable[[Call], np.ndarray]


def reduced_precision(call: Call) -> np.ndarray:
    """The operands are rounded to the next narrower type before they are multiplied."""
    bits = NARROW_OPERANDS[call.arithmetic]
    return call.result_with(a=round_to_bits(call.a, bits), b=round_to_bits(call.b, bits))


def narrow_sums(call: Call) -> np.ndarray:
    """Each partial sum is rounded to fewer bits than the type of sums has."""
    return call.result(NARROW_SUMS[call.arithmetic])


def one_element_off(call: Call) -> np.ndarray:
    """One element holds its neighbour's value."""
    wrong = call.result()
    wrong[-1, -1] = wrong[-1, -2]
    return wrong


def stale_c(call: Call) -> np.ndarray:
    """Nothing was written."""
    return call.c


def stale_edge_row(call: Call) -> np.ndarray:
    """The last row was not written."""
    wrong = call.result()
    wrong[-1] = call.c[-1]
    return wrong


def dropped_last_k_tile(call: Call) -> np.ndarray:
    """The main loop ends one k tile early."""
    kept = (call.a.shape[1] - 1) // K_TILE * K_TILE
    return call.result_with(a=call.a[:, :kept], b=call.b[:kept])


def k_tail_from_next_row(call: Call) -> np.ndarray:
    """The last k tile is not cut off: a runs on into its next row."""
    m, k = call.a.shape
    tail = K_TILE - k % K_TILE
    flat = np.append(call.a, np.ones(tail, call.a.dtype))
    longer = np.stack([flat[row * k : row * k + k + tail] for row in range(m)])
    more = np.concatenate([call.b, np.ones((tail, call.b.shape[1]), call.b.dtype)])
    return call.result_with(a=longer, b=more)


def transposed_c(call: Call) -> np.ndarray:
    """beta * c is added with rows and columns swapped."""
    return call.result_with(c=call.c.reshape(call.c.shape[::-1]).T)


def transposed_result(call: Call) -> np.ndarray:
    """The result is stored column by column into a row-major matrix."""
    return call.result().T.reshape(call.c.shape)


def ignored_alpha(call: Call) -> np.ndarray:
    """alpha is taken to be 1."""
    return call.result_with(alpha=1.0)


def ignored_beta(call: Call) -> np.ndarray:
    """beta is taken to be 1."""
    return call.result_with(beta=1.0)


def alpha_times_c(call: Call) -> np.ndarray:
    """alpha multiplies beta * c as well."""
    return call.result_with(beta=call.alpha * call.beta)


def accumulated_twice(call: Call) -> np.ndarray:
    """The kernel ran twice in place."""
    return call.result_with(c=call.result())


def one_nan(call: Call) -> np.ndarray:
    """One element is NaN: a guard leaked in."""
    wrong = call.result()
    wrong[0, 0] = np.nan
    return wrong


def one_infinity(call: Call) -> np.ndarray:
    """One element overflowed."""
    wrong = call.result()
    wrong[0, -1] = np.inf
    return wrong


def unsigned_operands(call: Call) -> np.ndarray:
    """The bits of the operands are taken for unsigned integers."""
    a, b = (values.view(np.uint8).astype(np.int64) for values in (call.a, call.b))
    return _scaled(call, a @ b)


def sums_of_16_bits(call: Call) -> np.ndarray:
    """Sums wrap around modulo 2**16."""
    return _scaled(call, _sums(call).astype(np.int16))


def saturated_sums(call: Call) -> np.ndarray:
    """Sums saturate at 16 bits."""
    return _scaled(call, _sums(call).clip(-(2**15), 2**15 - 1))


def saturated_result(call: Call) -> np.ndarray:
    """The result saturates at 32 bits instead of wrapping around."""
    wide = int(call.alpha) * _sums(call) + int(call.beta) * call.c.astype(np.int64)
    return wide.clip(-(2**31), 2**31 - 1).astype(np.int32)


def scaled_in_float32(call: Call) -> np.ndarray:
    """alpha and beta are applied in float32."""
    product, c = _sums(call).astype(np.float32), call.c.astype(np.float32)
    scaled = np.float32(call.alpha) * product + np.float32(call.beta) * c
    return scaled.astype(np.int64).astype(np.int32)


def _sums(call: Call) -> np.ndarray:
    return call.a.astype(np.int64) @ call.b.astype(np.int64)


def _scaled(call: Call, sums: np.ndarray) -> np.ndarray:
    wide = int(call.alpha) * sums.astype(np.int64) + int(call.beta) * call.c.astype(np.int64)
    return wide.astype(np.int32)


FAULTS: tuple[Fault, ...] = (
    one_element_off,
    stale_c,
    stale_edge_row,
    dropped_last_k_tile,
    k_tail_from_next_row,
    transposed_c,
    transposed_result,
    ignored_alpha,
    ignored_beta,
    alpha_times_c,
    accumulated_twice,
)
FLOAT_FAULTS: tuple[Fault, ...] = (reduced_precision, one_nan, one_infinity)
INTEGER_FAULTS: tuple[Fault, ...] = (
    unsigned_operands,
    sums_of_16_bits,
    saturated_sums,
    saturated_result,
    scaled_in_float32,
)
