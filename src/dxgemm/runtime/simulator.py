"""Launches on numba's CUDA simulator, on host memory, with every access bounds-checked."""

from __future__ import annotations

import ctypes
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from dxgemm.compiler import PARAMETERS, KernelSpec
from dxgemm.compiler.locks import lock_across_forks
from dxgemm.errors import LaunchError, MissingPackageError
from dxgemm.handwritten.parts.block_scales import BLOCK_K
from dxgemm.handwritten.parts.operands import FLOAT8_KINDS
from dxgemm.problem.dtypes import factor_dtypes
from dxgemm.problem.fusion import Fusion
from dxgemm.problem.kernel_arguments import Arguments, Call, Extents, KernelArguments
from dxgemm.problem.layout import Strides, offset_range
from dxgemm.runtime.capture import first_call
from dxgemm.runtime.launch import CALL_PARAMETERS, kernel_arguments

# The simulator keeps the running kernel in a global: one launch at a time in a process.
_lock = lock_across_forks()
MOST_KERNELS = 256  # kernels that are kept


@lru_cache(MOST_KERNELS)
def _made_kernel(
    module: str, config: Any, dtype: str, variant: tuple[str, ...], epilogue: Fusion | None
) -> Any:
    """Kernel for the simulator, cached: unrolling its loops takes longer than a small launch."""
    from numba import cuda

    return cuda.jit(
        import_module(module).KERNEL.make_kernel(config, dtype, *variant, epilogue=epilogue)
    )


class Pointer:
    """Pointer to an operand, indexed in elements as in C, but within bounds."""

    def __init__(self, address: int, dtype: str, first: int, count: int) -> None:
        self._first = first
        item_size = np.dtype(dtype).itemsize
        data = (ctypes.c_char * (count * item_size)).from_address(address + first * item_size)
        self._elements = np.frombuffer(memoryview(data), dtype)
        self.dtype = self._elements.dtype

    def _position(self, index: int) -> int:
        position = int(index) - self._first
        if not 0 <= position < len(self._elements):
            raise IndexError(
                f"kernel reads or writes element {index} of an operand that spans elements "
                f"{self._first} to {self._first + len(self._elements) - 1}"
            )
        return position

    def __getitem__(self, index: int) -> Any:
        return self._elements[self._position(index)]

    def __setitem__(self, index: int, value: Any) -> None:
        self._elements[self._position(index)] = value


class SimulatedLaunch:
    """Counterpart of `KernelLaunch`; pointers are addresses in host memory."""

    def __init__(self, spec: KernelSpec, problem: Arguments, blocks: int) -> None:
        if find_spec("numba") is None:
            raise MissingPackageError(
                "the simulator is numba's, which is not installed; pip install 'dxgemm[simulator]'."
            )
        self._spec = spec
        self._problem = problem
        self._blocks = blocks

    def __call__(self, call: Call, stream: int) -> None:
        a, b, c, out, alpha, beta, *operands = call
        problem, dtype = self._problem, self._spec.dtype
        config, variant = self._spec.config, self._spec.variant
        with first_call:  # numba may be half imported
            kernel = _made_kernel(self._spec.module, config, dtype, variant, problem.epilogue)
        extents = self._extents()
        scalar = np.dtype(problem.scalar_dtype).type
        a_dtype, b_dtype = factor_dtypes(dtype)
        fixed = (name for name, _ in PARAMETERS[CALL_PARAMETERS:])
        arguments: dict[str, Any] = {
            **dict(zip(fixed, kernel_arguments(problem), strict=True)),
            "alpha": scalar(alpha),
            "beta": scalar(beta),
            "a_gmem": _pointer(a, a_dtype, *extents["a"]),
            "b_gmem": _pointer(b, b_dtype, *extents["b"]),
            "c_gmem": _pointer(c, problem.c_dtype, *extents["c"]),
            "out_gmem": _pointer(out, problem.out_dtype, *extents["out"]),
        }
        smem_bytes = config.smem_bytes(dtype) if config.dynamic_smem else 0
        values = (*(arguments[name] for name, _ in PARAMETERS), self._epilogue_arguments(operands))
        run_simulated(kernel, self._blocks, config.threads, smem_bytes, values)

    def _extents(self) -> Extents:
        """Strides and sizes of the operands, in elements of the kernel's dtype."""
        problem = self._problem
        batch, m, n, k = problem.batch, problem.m, problem.n, problem.k
        return {
            "a": (problem.a, (batch, m, k)),
            "b": (problem.b, (batch, k, n)),
            "c": (problem.c, (batch if problem.reads_c else 0, m, n)),
            "out": (problem.out, (batch, m, problem.result_columns)),
            **(problem.extents if isinstance(problem, KernelArguments) else {}),
        }

    def fixed(self, call: Call) -> Callable[[int], None]:
        return lambda stream: self(call, stream)

    def _epilogue_arguments(self, operands: list[Any]) -> tuple[Any, ...]:
        """Epilogue arguments as the kernel takes them."""
        problem, left = self._problem, iter(operands)
        arguments: list[Any] = []
        epilogue = problem.epilogue
        wide = len(epilogue.wide_operands) if epilogue else 0
        for place, operand in enumerate(epilogue.operands if epilogue else ()):
            value = next(left)
            if operand.kind == "number":
                arguments.append(np.dtype(operand.dtype).type(value))
                continue
            if operand.kind == "buffer":
                size = next(left)
                arguments.append((Pointer(value, _element(operand.dtype), 0, size), size))
                continue
            strides = Strides(next(left), next(left), next(left))
            columns = problem.n if place < wide else problem.result_columns
            sizes = problem.batch, problem.m, columns
            if operand.kind == "blocks":
                is_last = epilogue is not None and place == len(epilogue.operands) - 1
                is_of_b = is_last is not (epilogue is not None and epilogue.is_transposed)
                along = problem.n if is_of_b else problem.m
                sizes = problem.batch, -(-along // operand.block), -(-problem.k // BLOCK_K)
            arguments.append((_pointer(value, operand.dtype, strides, sizes), *strides))
        return tuple(arguments)


def run_simulated(
    kernel: Any, grid: Any, threads: int, smem_bytes: int, arguments: tuple[Any, ...]
) -> None:
    """Run a kernel of `cuda.jit`, whose threads take turns, with checked integers.

    Raises:
        LaunchError: a simulated kernel is running in this thread.
    """
    with first_call:  # numba may be half imported
        from dxgemm.handwritten.parts.simulated_integers import casts_are_checked
        from dxgemm.runtime.turn_taking import INTERRUPTED, TurnTakingThread, threads_take_turns
    if isinstance(threading.current_thread(), TurnTakingThread):
        raise LaunchError(INTERRUPTED)  # would wait for the thread that waits for this one
    with _lock, threads_take_turns(), casts_are_checked(), warnings.catch_warnings():
        # NaN, infinity and sums of int8 that wrap around are data here, as on a GPU. errstate
        # would not reach the threads.
        warnings.simplefilter("ignore", RuntimeWarning)
        kernel[grid, threads, 0, smem_bytes](*arguments)


@contextmanager
def blocks_reported(report: Callable[[int, int], None]) -> Iterator[None]:
    """Report (blocks done, blocks in all) of the kernels that run meanwhile, in any thread."""
    from dxgemm.runtime.turn_taking import TurnTakingBlock

    TurnTakingBlock.report = staticmethod(report)
    try:
        yield
    finally:
        TurnTakingBlock.report = None


def _pointer(address: int, dtype: str, strides: tuple[int, ...], sizes: tuple[int, ...]) -> Pointer:
    if 0 in sizes:
        return Pointer(address, _element(dtype), 0, 0)
    first, last = offset_range(sizes, strides)
    return Pointer(address, _element(dtype), first, last - first + 1)


def _element(dtype: str) -> str:
    """Element type that compiled kernels see: narrow floats and bool as their bits."""
    bits = {"float16": "uint16", "bfloat16": "uint16", "bool": "uint8"}
    return (bits | dict.fromkeys(FLOAT8_KINDS, "uint8")).get(dtype, dtype)
