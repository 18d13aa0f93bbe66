"""Epilogues ready to use, each an ordinary `@epilogue` function.

Literals are floats: an integer would promote a float32 value to float64. Bounds are written as
comparisons, never as `max` or `min`, because the comparison then decides what becomes of NaN.
"""

from __future__ import annotations

import math

import numpy as np

from dxgemm.epilogues.elementary import fast_tanh, logistic, times_normal_cdf
from dxgemm.epilogues.elementary import gelu_tanh as gelu_by_tanh
from dxgemm.epilogues.elementary import tanh as hyperbolic_tangent
from dxgemm.epilogues.function import epilogue
from dxgemm.epilogues.kinds import (
    ColumnVector,
    Integer,
    Matrix,
    Probability,
    RowVector,
    Scalar,
)
from dxgemm.epilogues.philox import philox_4x32

SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
GELU_TANH_CUBE = 0.044715 * SQRT_2_OVER_PI
# Below these, gelu_tanh and silu are 0 in every dtype; minus infinity times 0 would be NaN.
GELU_TANH_VANISHES = -40.0
SILU_VANISHES = -1000.0
UNIT = 2.0**-24  # the distance of two random numbers: all are exact in float32
UNUSED_BITS = np.uint32(8)
ZERO = np.uint32(0)
WORD_BITS = 32
WORD_MASK = 0xFFFFFFFF


@epilogue
def bias(value, row, col, vector: RowVector):
    """value + vector[col]: one number per column of the result.

    The bias of `torch.nn.Linear`, whose output features are the columns.
    """
    return value + vector


@epilogue
def bias_column(value, row, col, vector: ColumnVector):
    """value + vector[row]: one number per row of the result.

    The bias of `CUBLASLT_EPILOGUE_BIAS`, whose vector is as long as the result has rows.
    """
    return value + vector


@epilogue
def relu(value, row, col):
    """max(value, 0): NaN stays NaN, as in torch; -0.0 becomes 0.0, as in `numpy.maximum`.

    Nair and Hinton, "Rectified linear units improve restricted Boltzmann machines", ICML 2010.
    """
    return value if value > 0.0 or value != value else 0.0


@epilogue
def leaky_relu(value, row, col, slope: Scalar = 0.01):
    """value where it is positive, else slope * value; NaN stays NaN.

    Maas, Hannun and Ng, "Rectifier nonlinearities improve neural network acoustic models", ICML
    2013; the default slope is torch's.
    """
    return value if value > 0.0 else slope * value


@epilogue
def gelu(value, row, col):
    """value * Phi(value) = 0.5 * value * (1 + erf(value / sqrt(2))); -0.0 at minus infinity.

    Hendrycks and Gimpel, "Gaussian error linear units (GELUs)", arXiv:1606.08415.
    """
    return times_normal_cdf(value)


@epilogue
def gelu_tanh(value, row, col):
    """0.5 * value * (1 + tanh(sqrt(2 / pi) * (value + 0.044715 * value**3))).

    It is -0.0 at minus infinity.

    The approximation of Hendrycks and Gimpel, "Gaussian error linear units (GELUs)",
    arXiv:1606.08415, section 2.
    """
    return gelu_by_tanh(value)


@epilogue
def fast_gelu_tanh(value, row, col):
    """`gelu_tanh` by one instruction for tanh: off by up to 2**-12 of value; 0 at minus infinity.

    cuBLASLt's fused GELU has errors of this size.
    """
    bounded = GELU_TANH_VANISHES if value < GELU_TANH_VANISHES else value
    half = 0.5 * bounded
    return half + half * fast_tanh(
        bounded * (SQRT_2_OVER_PI + GELU_TANH_CUBE * (bounded * bounded))
    )


@epilogue
def sigmoid(value, row, col):
    """1 / (1 + exp(-value)), which does not overflow; NaN stays NaN."""
    return logistic(value)


@epilogue
def silu(value, row, col):
    """value / (1 + exp(-value)); -0.0 at minus infinity.

    Elfwing, Uchibe and Doya, "Sigmoid-weighted linear units for neural network function
    approximation in reinforcement learning", Neural Networks 107, 2018.
    """
    bounded = SILU_VANISHES if value < SILU_VANISHES else value
    return bounded * logistic(bounded)


@epilogue
def fast_silu(value, row, col):
    """`silu` by one instruction for tanh: off by up to 2**-12 of value; 0 at minus infinity."""
    half = 0.5 * (SILU_VANISHES if value < SILU_VANISHES else value)
    return half + half * fast_tanh(half)


@epilogue(pairs=True)
def swiglu(gate, up, row, col):
    """silu(gate) * up, with the gate in column 2 * col and up in column 2 * col + 1.

    Shazeer, "GLU variants improve transformer", arXiv:2002.05202.
    """
    return silu(gate, row, col) * up


@epilogue(pairs=True)
def fast_swiglu(gate, up, row, col):
    """fast_silu(gate) * up, with the gate in column 2 * col and up in column 2 * col + 1."""
    return fast_silu(gate, row, col) * up


@epilogue(pairs=True)
def geglu(gate, up, row, col):
    """gelu(gate) * up, with the gate in column 2 * col and up in column 2 * col + 1.

    Shazeer, "GLU variants improve transformer", arXiv:2002.05202.
    """
    return gelu(gate, row, col) * up


@epilogue
def tanh(value, row, col):
    """tanh(value)."""
    return hyperbolic_tangent(value)


@epilogue
def clamp(value, row, col, low: Scalar, high: Scalar):
    """min(max(value, low), high), as `torch.clamp`: NaN stays NaN, and low > high gives high.

    A bound that is NaN bounds nothing.
    """
    raised = low if value < low else value
    return high if raised > high else raised


@epilogue(real=True)
def magnitude(value, row, col):
    """abs(value): of a complex value a real number, which overflows only if it is too large."""
    return math.hypot(value.real, value.imag)


@epilogue(real=True)
def squared_magnitude(value, row, col):
    """value.real**2 + value.imag**2: the power of a signal, a probability of an amplitude."""
    return value.real * value.real + value.imag * value.imag


@epilogue(real=True)
def phase(value, row, col):
    """atan2(value.imag, value.real): the angle of a complex value, from -pi to pi."""
    return math.atan2(value.imag, value.real)


@epilogue
def residual(value, row, col, matrix: Matrix):
    """value + matrix[row, col]: a skip connection.

    He, Zhang, Ren and Sun, "Deep residual learning for image recognition", CVPR 2016.
    """
    return value + matrix


@epilogue
def scale(value, row, col, factor: Scalar):
    """factor * value."""
    return factor * value


@epilogue
def scale_rows(value, row, col, factors: ColumnVector):
    """factors[row] * value: each row by its own factor."""
    return factors * value


@epilogue
def scale_columns(value, row, col, factors: RowVector):
    """factors[col] * value: each column by its own factor."""
    return factors * value


@epilogue
def dequantise(value, row, col, row_scales: ColumnVector, column_scales: RowVector):
    """float32(value) * row_scales[row] * column_scales[col], for the int32 sums of int8 products.

    Dettmers, Lewis, Belkada and Zettlemoyer, "LLM.int8(): 8-bit matrix multiplication for
    transformers at scale", NeurIPS 2022, section 2: vector-wise quantisation.
    """
    return np.float32(value) * row_scales * column_scales


@epilogue(outputs=("kept",))
def keep(value, row, col):
    """value, which is also stored in `kept`, as it is at this place of the chain.

    `bias(v) | keep(kept=array) | gelu` keeps what the derivative of gelu will need.
    """
    return value, value


@epilogue
def dropout(value, row, col, probability: Probability, seed: Integer):
    """0 with the given probability, else value / (1 - probability).

    The random number of an element depends on its row, its column and the seed alone: every kernel,
    and every matrix of a batch, drops the same elements. It is u = w >> 8, in units of 2**-24, of
    the first word w of Philox4x32-7 with the counter (row, col, 0, 0) and the seed as the key; the
    element is dropped where u < probability. A dropped element is 0 even if value is NaN.

    Srivastava, Hinton, Krizhevsky, Sutskever and Salakhutdinov, "Dropout: a simple way to prevent
    neural networks from overfitting", JMLR 15, 2014.
    """
    word = philox_4x32(
        np.uint32(np.int64(row) & WORD_MASK),
        np.uint32(np.int64(col) & WORD_MASK),
        ZERO,
        ZERO,
        np.uint32(seed & WORD_MASK),
        np.uint32((seed >> WORD_BITS) & WORD_MASK),
    )[0]
    uniform = np.float32(np.uint32(word >> UNUSED_BITS)) * UNIT
    # Divided once, not for each element.
    factor = 1.0 / (1.0 - probability)
    return 0.0 if uniform < probability else value * factor
