"""Batches of small matrices of compiled-in sizes, each multiplied by one block with cuBLASDx.

Idea: the design of cuBLASDx for small matrices. A block copies a and b to shared memory whole,
multiplies them there, and stores its sums straight from registers; while it waits for its copies or
stores, the other block of the SM multiplies. Of the sizes that were tried (docs/cublasdx.md), only
at 96 x 96 x 96 in float32 no handwritten kernel is as fast.
Layout: a (m, k), b (k, n), c and out (m, n), any batch; all are row-major.
Constraints: m, n and k are those of the config, there is no epilogue, and rows of a and b begin at
multiples of 16 bytes. cuBLASDx decides which elements of the result a thread has: the kernel asks
for the place of each, and stores two at a time if they are the neighbours that the config expects,
else one by one. The places are constants after linking, so that no branch is left.
Source: cuBLASDx 0.6 documentation, "Tensor API"; mathdx.py for the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dxgemm.cublasdx.function_store import obtain_block_functions
from dxgemm.cublasdx.mathdx import BlockDescriptor, BlockFunctions
from dxgemm.errors import BuildError
from dxgemm.handwritten.parts.kernel import BaseConfig, Kernel
from dxgemm.handwritten.parts.operands import operand_mode


@dataclass(frozen=True)
class Config(BaseConfig):
    """Config for matrices of tile_m x tile_n x tile_k, one per block.

    Attributes:
        dtype: dtype that the config is for.
        tile_m, tile_n, tile_k: m, n and k.
        threads: threads per block.
        thread_m: expected number of rows that a thread has elements of. Its sums are numbered down
            the rows; two sums that follow each other in a row are neighbours in the result.
        blocks_per_sm: minimum resident blocks per SM (`__launch_bounds__`).
    """

    dtype: str
    tile_m: int
    tile_n: int
    tile_k: int
    threads: int
    thread_m: int
    blocks_per_sm: int

    dynamic_smem: ClassVar[bool] = True

    def complaints(self) -> Iterator[str]:
        if self.threads % 32 or not 32 <= self.threads <= 1024:
            yield "a block has 32 to 1024 threads in whole warps"
        if self.tile_m * self.tile_n % (2 * self.threads * self.thread_m):
            yield "threads must share out the result evenly, in pairs"
        room = 228 * 1024 // self.blocks_per_sm - 1024
        if self.smem_bytes(self.dtype) > room:
            yield (
                f"{self.smem_bytes(self.dtype)} bytes of shared memory, and "
                f"{self.blocks_per_sm} blocks leave {room}"
            )

    @property
    def only_shape(self) -> tuple[int, int, int]:
        """Sizes m, n and k, which are compiled in."""
        return self.tile_m, self.tile_n, self.tile_k

    @property
    def fragment_size(self) -> int:
        """Elements of the result per thread."""
        return self.tile_m * self.tile_n // self.threads

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Pairs of a thread's sums, by number, that are neighbours in a row."""
        columns = range(0, self.fragment_size, 2 * self.thread_m)
        lefts = (col + row for row in range(self.thread_m) for col in columns)
        return tuple((left, left + self.thread_m) for left in lefts)

    def min_blocks(self, dtype: str) -> int:
        return self.blocks_per_sm

    def a_bytes(self, dtype: str) -> int:
        """Bytes of a in shared memory; b follows it."""
        return self.tile_m * self.tile_k * np.dtype(dtype).itemsize

    def b_bytes(self, dtype: str) -> int:
        return self.tile_k * self.tile_n * np.dtype(dtype).itemsize

    def smem_bytes(self, dtype: str) -> int:
        return self.a_bytes(dtype) + self.b_bytes(dtype)

    def accumulator_bytes(self, dtype: str) -> int:
        if dtype != self.dtype:
            return 2**31  # it is no config of that dtype
        return self.fragment_size * np.dtype(dtype).itemsize

    def __str__(self) -> str:
        return f"{self.tile_m}x{self.tile_n}x{self.tile_k} threads {self.threads}"


def supports(problem: Any) -> str | None:
    """Reason why the kernel, whose sizes and layouts are compiled in, cannot compute a problem."""
    shapes = [config.only_shape for config in KERNEL.configs]
    if (problem.m, problem.n, problem.k) not in shapes:
        listed = ", ".join("{} x {} x {}".format(*shape) for shape in shapes)
        given = f"{problem.m} x {problem.n} x {problem.k}"
        return f"its size is compiled in, m x n x k = {listed}, not {given}"
    if problem.epilogue is not None:
        return "it fuses no epilogue"
    for name in ("a", "b"):
        if operand_mode(problem, name) != "row16":
            return (
                f"it copies 16 bytes of a row at a time; elements of {name} do not lie along its "
                "rows, or these do not begin at multiples of 16 bytes"
            )
    for name in ("c", "out") if problem.reads_c else ("out",):
        if getattr(problem, name).col != 1:
            return f"it stores rows; elements of {name} do not lie along its rows"
    return None


def block_count(config: Config, problem: Any) -> int:
    """Blocks to launch: one per matrix."""
    blocks: int = problem.batch
    return blocks


def descriptor(config: Config, dtype: str, arch: str) -> BlockDescriptor:
    """Descriptor of the device functions of a kernel."""
    return BlockDescriptor(*config.only_shape, threads=config.threads, dtype=dtype, arch=arch)


def device_functions(config: Config, dtype: str, arch: str) -> BlockFunctions:
    """Device functions of a kernel, from disk or built."""
    functions = obtain_block_functions(descriptor(config, dtype, arch))
    found = functions.a_smem.size, functions.b_smem.size, functions.fragment_size
    expected = config.a_bytes(dtype), config.b_bytes(dtype), config.fragment_size
    # With as many sums as elements, threads have each element once and none outside.
    if found != expected:
        raise BuildError(
            f"cuBLASDx wants {found[0]} and {found[1]} bytes of shared memory and {found[2]} sums "
            f"a thread for {config}, {dtype}; {expected[0]}, {expected[1]} and {expected[2]} were "
            "expected."
        )
    return functions


def make_kernel(
    config: Config, dtype: str, *, functions: BlockFunctions, epilogue: Any = None
) -> Callable[..., None]:
    """Make the kernel of one config, as a Python function to compile and link."""
    from numba import cuda, int64, types

    from dxgemm.cublasdx.block_intrinsics import make_block_intrinsics
    from dxgemm.handwritten.parts.intrinsics import global_address

    item_bytes = np.dtype(dtype).itemsize
    multiply_matrices, store_sums = make_block_intrinsics(
        functions, getattr(types, dtype), config.a_bytes(dtype), config.pairs
    )

    def block_kernel(
        a_gmem, b_gmem, c_gmem, out_gmem, alpha, beta, m, n, k, batch,
        a_stride_batch, a_stride_m, a_stride_k, b_stride_batch, b_stride_k, b_stride_n,
        c_stride_batch, c_stride_m, c_stride_n, out_stride_batch, out_stride_m, out_stride_n,
        extra,
    ):  # fmt: skip
        smem = cuda.shared.array(0, np.uint8, alignment=1024)
        matrix = int64(cuda.blockIdx.x)
        acc = multiply_matrices(
            smem,
            global_address(a_gmem) + matrix * a_stride_batch * item_bytes, a_stride_m,
            global_address(b_gmem) + matrix * b_stride_batch * item_bytes, b_stride_k,
        )  # fmt: skip
        store_sums(
            acc, alpha, beta,
            global_address(c_gmem) + matrix * c_stride_batch * item_bytes, c_stride_m,
            global_address(out_gmem) + matrix * out_stride_batch * item_bytes, out_stride_m,
        )  # fmt: skip

    return block_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(Config("float32", 96, 96, 96, threads=256, thread_m=6, blocks_per_sm=2),),
    dtypes=("float32",),
    minimum_arch=80,
    supports=supports,
    block_count=block_count,
    device_functions=device_functions,
    descriptor=descriptor,
)
