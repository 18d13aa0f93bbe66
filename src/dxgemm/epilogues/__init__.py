"""Functions of the result's elements, fused into the kernel: your own, and a catalogue.

    e = bias(vector) | gelu | residual(matrix)     # applied from left to right
    dxgemm.gemm(a, b, epilogue=e)

`dxgemm.epilogue` makes an epilogue of a Python function; the kinds of its operands are here.
"""

from dxgemm.epilogues.catalogue import (
    bias,
    bias_column,
    clamp,
    dequantise,
    dropout,
    gelu,
    gelu_tanh,
    keep,
    leaky_relu,
    relu,
    residual,
    scale,
    scale_columns,
    scale_rows,
    sigmoid,
    silu,
    tanh,
)
from dxgemm.epilogues.check import check_operands
from dxgemm.epilogues.elementary import logistic, normal_cdf
from dxgemm.epilogues.function import BoundEpilogue, Epilogue, Stage, bound_epilogue, epilogue
from dxgemm.epilogues.kinds import BoundOperand, ColumnVector, Integer, Matrix, RowVector, Scalar
from dxgemm.epilogues.literals import compiled_function
from dxgemm.epilogues.reduction import Reduction
from dxgemm.epilogues.stages import StageFunction

__all__ = [
    "BoundEpilogue",
    "BoundOperand",
    "ColumnVector",
    "Epilogue",
    "Integer",
    "Matrix",
    "Reduction",
    "RowVector",
    "Scalar",
    "Stage",
    "StageFunction",
    "bias",
    "bias_column",
    "bound_epilogue",
    "check_operands",
    "clamp",
    "compiled_function",
    "dequantise",
    "dropout",
    "epilogue",
    "gelu",
    "gelu_tanh",
    "keep",
    "leaky_relu",
    "logistic",
    "normal_cdf",
    "relu",
    "residual",
    "scale",
    "scale_columns",
    "scale_rows",
    "sigmoid",
    "silu",
    "tanh",
]
