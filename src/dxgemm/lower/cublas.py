"""Launches of cuBLAS, the baseline; `dxgemm.choice.cublas_limits` has the limits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.choice.cublas_limits import leading_dimension, operands_of
from dxgemm.errors import UnsupportedProblemError
from dxgemm.problem.dtypes import COMPLEX_PARTS
from dxgemm.problem.kernel_arguments import Call
from dxgemm.problem.problem import Problem
from dxgemm.runtime.capture import outside_capture
from dxgemm.runtime.device import current_device
from dxgemm.runtime.program import Step

_LETTERS = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}

# cudaDataType, as library_types.h numbers them.
_CUDA_DTYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14, "int8": 3, "int32": 10}


# CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION on top of the default mode, which CuPy lacks.
_DISALLOW_REDUCED_PRECISION_REDUCTION = 16


class CublasLaunch:
    """GEMM of cuBLAS bound to one problem, strided-batched for a batch.

    It calls cublasSgemm, cublasDgemm, cublasCgemm and cublasZgemm; for half precision and TF32,
    cublasGemmEx with a float32 accumulator; for int8, cublasGemmEx with an int32 accumulator.
    cuBLAS is column-major: it computes out.T = b.T @ a.T, which is the row-major `out`.
    """

    def __init__(self, problem: Problem, ordinal: int, conjugates: str = "") -> None:
        """Bind cuBLAS's function to a problem, real or complex.

        Args:
            problem: a problem that cuBLAS `supports`.
            ordinal: ordinal of the GPU.
            conjugates: names of the operands that are conjugated, which must be column-major.
        """
        from cupy import cuda
        from cupy_backends.cuda.libs import cublas

        self._get_current_stream = cuda.get_current_stream
        self._ordinal = ordinal
        self._problem = problem
        # One matrix takes the plain call, which has split-K and GEMV kernels the batched one lacks.
        name = "gemm" if problem.batch == 1 else "gemmStridedBatched"
        self._dtypes: list[tuple[int, ...]] = [(), ()]
        self._compute: tuple[int, ...] = ()
        if problem.dtype in _LETTERS and problem.precision != "tf32":
            name = _LETTERS[problem.dtype] + name
        else:
            name += "Ex"
            self._dtypes = [(_CUDA_DTYPES[d],) for d in (problem.dtype, problem.out_dtype)]
            compute = {
                "tf32": cublas.CUBLAS_COMPUTE_32F_FAST_TF32,
                "int8": cublas.CUBLAS_COMPUTE_32I,
            }.get(problem.arithmetic, cublas.CUBLAS_COMPUTE_32F)
            self._compute = (compute, cublas.CUBLAS_GEMM_DEFAULT)
        self._gemm = getattr(cublas, name)
        operands = []
        for operand, strides, rows, cols in operands_of(problem):
            is_row_major, leading = leading_dimension(strides, rows, cols) or (True, 1)
            operation = cublas.CUBLAS_OP_N if is_row_major else cublas.CUBLAS_OP_T
            if operand in conjugates:
                if is_row_major:
                    raise UnsupportedProblemError(
                        f"gemm: cuBLAS cannot conjugate a row-major {operand}; leave "
                        "implementation at None."
                    )
                operation = cublas.CUBLAS_OP_C
            operands.append((operation, leading))
        self._a, self._b = operands
        _, self._out = leading_dimension(problem.out, problem.m, problem.n, row_major=True) or (
            True,
            1,
        )

    def __call__(self, call: Call, stream: int) -> None:
        self.fixed(call)(stream)

    def fixed(self, call: Call) -> Callable[[int], None]:
        a, b, _, out, alpha, beta = call
        problem = self._problem
        if problem.dtype == "int8" and not {alpha, beta} <= {0, 1}:
            raise UnsupportedProblemError(
                f"gemm: cuBLAS multiplies int8 with alpha and beta of 0 or 1, not {alpha} and "
                f"{beta}; leave implementation at None."
            )
        is_complex = problem.dtype in COMPLEX_PARTS
        scalars = np.array([alpha, beta], problem.dtype if is_complex else problem.scalar_dtype)
        alpha_address = scalars.ctypes.data
        beta_address = alpha_address + scalars.itemsize
        dtype, out_dtype = self._dtypes
        a_operand, b_operand = [a, *dtype, self._a[1]], [b, *dtype, self._b[1]]
        out_operand = [out, *out_dtype, self._out]
        batch = []
        if problem.batch > 1:
            a_operand.append(problem.a.batch)
            b_operand.append(problem.b.batch)
            out_operand.append(problem.out.batch)
            batch.append(problem.batch)
        arguments = (
            self._b[0], self._a[0], problem.n, problem.m, problem.k,
            alpha_address, *b_operand, *a_operand, beta_address, *out_operand, *batch,
            *self._compute,
        )  # fmt: skip

        def launch(stream: int, _keep_alive: Any = scalars) -> None:
            with current_device(self._ordinal):
                handle = _handle(self._ordinal)
                if self._get_current_stream().ptr == stream:
                    self._gemm(handle, *arguments)
                    return
                # CuPy's binding launches on CuPy's current stream, whatever the handle's is.
                with _cupy_stream(stream):
                    self._gemm(handle, *arguments)

        return _with_refusals(launch, problem) if problem.dtype == "int8" else launch


def _with_refusals(launch: Callable[[int], None], problem: Problem) -> Callable[[int], None]:
    """Turn cuBLAS's refusal of an int8 shape, which it tells only when called, into an error."""
    from cupy_backends.cuda.libs.cublas import CUBLASError

    def launch_or_refuse(stream: int) -> None:
        try:
            launch(stream)
        except CUBLASError as error:
            if "NOT_SUPPORTED" not in str(error):
                raise
            raise UnsupportedProblemError(
                f"gemm: cuBLAS has no kernel for this int8 problem, m, n, k = {problem.m}, "
                f"{problem.n}, {problem.k}; leave implementation at None."
            ) from error

    return launch_or_refuse


_handles = threading.local()


def _handle(ordinal: int) -> Any:
    """Handle of cuBLAS for this thread and device, in host pointer mode.

    By default cuBLAS may use split-K and add the slices in half precision, which misses the right
    bfloat16 by tens of units in the last place.
    """
    from cupy_backends.cuda.libs import cublas

    handles: dict[Any, Any] = _handles.__dict__
    if ordinal not in handles:
        with outside_capture():  # it allocates
            handle = cublas.create()
        cublas.setMathMode(handle, _DISALLOW_REDUCED_PRECISION_REDUCTION)
        handles[ordinal] = handle
    return handles[ordinal]


class _RawStream:
    """Raw stream handle behind the protocol that CuPy accepts."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def _cupy_stream(handle: int) -> Any:
    """Context in which a stream is CuPy's current one."""
    from cupy import cuda

    return cuda.Stream.from_external(_RawStream(handle)) if handle else cuda.Stream.null


@dataclass(frozen=True)
class CublasStep(Step):
    """Launch of cuBLAS, with the names of the operands that are conjugated."""

    conjugates: str = ""

    def bind(self, arch: str, ordinal: int) -> CublasLaunch:
        assert isinstance(self.arguments, Problem)
        return CublasLaunch(self.arguments, ordinal, self.conjugates)
