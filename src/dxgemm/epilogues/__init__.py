"""Epilogues: functions of the result's elements, fused into the kernel; your own, or ready to use.

    e = bias(vector) | gelu | residual(matrix)     # applied from left to right
    dxgemm.gemm(a, b, epilogue=e)

`dxgemm.epilogue` makes an epilogue of a Python function, whose operands are annotated as `Scalar`,
`Integer`, `RowVector`, `ColumnVector` or `Matrix`.
"""

from dxgemm.epilogues.catalogue import (
    bias,
    bias_column,
    clamp,
    dequantise,
    dropout,
    fast_gelu_tanh,
    fast_silu,
    fast_swiglu,
    geglu,
    gelu,
    gelu_tanh,
    keep,
    leaky_relu,
    magnitude,
    phase,
    relu,
    residual,
    scale,
    scale_columns,
    scale_rows,
    sigmoid,
    silu,
    squared_magnitude,
    swiglu,
    tanh,
)
from dxgemm.epilogues.chain import BoundEpilogue
from dxgemm.epilogues.elementary import (
    fast_tanh,
    logistic,
    normal_cdf,
    pair_max,
    pair_min,
    pair_sum,
)
from dxgemm.epilogues.function import Epilogue, epilogue
from dxgemm.epilogues.inner_function import Inner, inner
from dxgemm.epilogues.kinds import (
    ColumnVector,
    Integer,
    Matrix,
    Parameter,
    RowVector,
    Scalar,
)
from dxgemm.epilogues.reduction import Reduction

__all__ = [
    "BoundEpilogue",
    "ColumnVector",
    "Epilogue",
    "Inner",
    "Integer",
    "Matrix",
    "Parameter",
    "Reduction",
    "RowVector",
    "Scalar",
    "bias",
    "bias_column",
    "clamp",
    "dequantise",
    "dropout",
    "epilogue",
    "fast_gelu_tanh",
    "fast_silu",
    "fast_swiglu",
    "fast_tanh",
    "geglu",
    "gelu",
    "gelu_tanh",
    "inner",
    "keep",
    "leaky_relu",
    "logistic",
    "magnitude",
    "normal_cdf",
    "pair_max",
    "pair_min",
    "pair_sum",
    "phase",
    "relu",
    "residual",
    "scale",
    "scale_columns",
    "scale_rows",
    "sigmoid",
    "silu",
    "squared_magnitude",
    "swiglu",
    "tanh",
]


def __dir__() -> list[str]:
    return __all__
