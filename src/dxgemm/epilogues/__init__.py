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
from dxgemm.epilogues.chain import BoundEpilogue, bound_epilogue, joined_shape
from dxgemm.epilogues.elementary import fast_tanh, logistic, normal_cdf
from dxgemm.epilogues.function import Epilogue, epilogue, find_epilogue, refreshed
from dxgemm.epilogues.inner_function import Inner, inner
from dxgemm.epilogues.kinds import (
    ColumnVector,
    Integer,
    Matrix,
    Parameter,
    RowVector,
    Scalar,
    fits,
    fitting_shapes,
)
from dxgemm.epilogues.reads import reads_parameter
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
    "bound_epilogue",
    "clamp",
    "dequantise",
    "dropout",
    "epilogue",
    "fast_gelu_tanh",
    "fast_silu",
    "fast_swiglu",
    "fast_tanh",
    "find_epilogue",
    "fits",
    "fitting_shapes",
    "geglu",
    "gelu",
    "gelu_tanh",
    "inner",
    "joined_shape",
    "keep",
    "leaky_relu",
    "logistic",
    "magnitude",
    "normal_cdf",
    "phase",
    "reads_parameter",
    "refreshed",
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
