"""Declaration of a kernel, and the base class of its configs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from dxgemm.handwritten.parts.triangle import tile_count

# Largest size that kernels index in 32 bits, with room for a tile beyond it; most blocks per grid.
MOST_INDEX, MOST_BLOCKS = 2**31 - 2**12, 2**31 - 1
# The registers of a thread hold 1020 bytes; an accumulator above this limit would spill.
MOST_ACCUMULATOR_BYTES = 576


class Reductions(Enum):
    """Reductions of the result that a kernel computes itself."""

    NONE = "none"
    OF_ROWS = "along rows, the matrix unstored"
    ALL = "along rows and columns"


class BaseConfig:
    """Base of the frozen dataclass that a kernel is compiled for.

    A subclass has `threads`, the threads per block, and `accumulator_bytes(dtype)`, the bytes of
    accumulators per thread.
    """

    least_threads: ClassVar[int] = 1
    dynamic_smem: ClassVar[bool] = False  # True if the launch allocates the shared memory
    begins_early: ClassVar[bool] = False  # True if it calls `wait_earlier_kernel` before it reads

    def __post_init__(self) -> None:
        for complaint in self.complaints():
            raise ValueError(f"{self}: {complaint}")
        threads: int = self.threads  # type: ignore[attr-defined]
        least = self.least_threads
        if not least <= threads <= 1024:
            raise ValueError(f"{self}: a block has {least} to 1024 threads, not {threads}")

    def complaints(self) -> Iterator[str]:
        """Constraints that the numbers violate."""
        yield from ()

    def takes(self, dtype: str) -> bool:
        """True if a kernel of this dtype can be made with the config."""
        accumulator_bytes: int = self.accumulator_bytes(dtype)  # type: ignore[attr-defined]
        return accumulator_bytes <= MOST_ACCUMULATOR_BYTES

    @property
    def takes_slices(self) -> bool:
        """True if `add_slices` may add the sums of slices of k; no cluster splits them further."""
        return getattr(self, "split_k", 1) == 1

    @property
    def least_sizes(self) -> dict[str, int]:
        """Smallest "m", "n" and "k" with fast loads; empty if there is no limit."""
        return {}

    @property
    def cluster(self) -> int:
        """Blocks per thread-block cluster."""
        return 1

    @property
    def pair(self) -> tuple[int, int]:
        """Tiles of a cluster along m and along n."""
        return 1, 1

    @property
    def launch_registers(self) -> int:
        """Registers per thread at launch, which warpgroups redistribute; 0 if they do not."""
        return 0

    def smem_bytes(self, dtype: str) -> int:
        """Shared memory per block, in bytes."""
        return 0

    def min_blocks(self, dtype: str) -> int:
        """Minimum resident blocks per SM (`__launch_bounds__`); 0 leaves it to shared memory."""
        return 0

    def min_blocks_fused(self, dtype: str) -> int:
        """`min_blocks` for a kernel with an epilogue, which needs registers too."""
        return self.min_blocks(dtype)


@dataclass(frozen=True)
class ThreadsConfig(BaseConfig):
    """Threads of a block."""

    threads: int

    def accumulator_bytes(self, dtype: str) -> int:
        return 64

    def __str__(self) -> str:
        return f"{self.threads} threads"


def any_problem(problem: Any) -> None:
    """Support every problem."""


def always(*problem: Any) -> bool:
    """Return True for every problem, and every config."""
    return True


def never(problem: Any) -> bool:
    """Return False for every problem."""
    return False


def no_variant(config: Any, problem: Any) -> tuple[str, ...]:
    """Compile one kernel for all layouts."""
    return ()


def tile_of(config: Any, problem: Any) -> tuple[int, int]:
    """Rows and columns of a block's tile of the result."""
    return config.tile_m, config.tile_n


def block_a_tile(config: Any, problem: Any) -> int:
    """Blocks to launch: one block, or one cluster, per tile of each matrix of the result."""
    return problem.batch * tiles_of(problem, config.tile_m, config.tile_n) * config.cluster


def one_block(config: Any, problem: Any) -> int:
    """Blocks to launch: one."""
    return 1


def tiles_of(problem: Any, tile_m: int, tile_n: int) -> int:
    """Tiles per matrix of the result; for a symmetric result, those that are computed."""
    if problem.triangle:
        return tile_count(problem.n, tile_m, tile_n)
    tiles: int = -(-problem.m // tile_m) * -(-problem.n // tile_n)
    return tiles


def no_maps(config: Any, problem: Any, *variant: str) -> tuple[Any, ...]:
    """Launch without tensor maps."""
    return ()


@dataclass(frozen=True)
class Kernel:
    """Record of one kernel file: the problems it computes, and how it is made and launched.

    Attributes:
        make_kernel: (config, dtype, *variant, epilogue) -> the Python function to compile.
        configs: configs to choose from.
        simulator_configs: tiny configs; empty if numba's simulator lacks an instruction.
        dtypes: dtypes of a and b that the kernel takes.
        minimum_arch: least compute capability, times ten.
        only_arch: the only compute capability with its instructions, times ten; None if several
            have them.
        supports: (problem) -> None, or the reason why the kernel cannot compute the problem.
        fits: (config, problem) -> False if the config cannot compute a problem that others can.
        variant: (config, problem) -> compile-time choices besides the dtype, such as layouts.
        block_count: (config, problem) -> blocks to launch; for a persistent kernel, tiles.
        tile_count: (config, problem) -> tiles of the result; None if `block_count` counts them.
        result_tile: (config, problem) -> rows and columns of a block's tile of the result.
        smaller_first: True if a config's tile_m runs along the smaller of m and n.
        tensor_maps: (config, problem, ...) -> tensor maps, one per name in `tensor_map_names`.
        tensor_map_names: names of the tensor maps' parameters, which follow those of every kernel.
        is_persistent: True if there is at most one block per SM, which computes tile after tile.
        copies_operands: True if the kernel reads 16 bytes at a time, from aligned copies if the
            operands are not aligned; `supports` and `variant` see the problem with the copies.
        reductions: reductions of the result that the kernel computes itself.
        takes_pairs: True if the kernel fuses an epilogue that takes pairs of columns.
        quantises: True if the kernel stores the values of an epilogue as int8, and float8.
        takes_block_scales: True if the kernel applies scales of blocks of a and b to its sums.
        widens: True if the kernel stores sums of integers in every dtype that gemm does.
        takes_modulus: True if the kernel can take them modulo a number: see `modular`.
        measured_as: (dtype) -> the dtype whose measured speeds it takes.
        takes_inner: True if the kernel can compute an inner function: see `inner`.
        takes_triangles: True if the kernel can compute half a symmetric result: see `triangle`.
        takes_k_ranges: True if the kernel skips the zeros of triangular operands: see `k_ranges`.
        clears_triangles: True if the kernel puts zeros beside the diagonals of operands itself: see
            `diagonal`.
        takes_masks: True if a block whose tile is dead in a block mask returns: see `block_mask`.
        commutes: (problem) -> True if a @ a.T has the same bits on both sides of its diagonal.
        order_of_sums: name shared by kernels that add the products of an element in the same order
            by the same instructions: all their configs without clusters give the same bits.
        slices_k: True if the kernel can leave sums of slices of k to `add_slices` (split-K).
        accuracy: (problem) -> None, or the precision kept of the operands, and an error bound.
        device_functions: (config, dtype, *variant, arch) -> external functions to link with.
        descriptor: (config, dtype, *variant, arch) -> key of the functions, before they are built.
        finish_cubin: (cubin) -> the cubin to launch, made from the linked one.
        parameter_block_bytes: size of a last parameter that numba cannot express; 0 for none.
    """

    make_kernel: Callable[..., Callable[..., None]]
    configs: tuple[Any, ...]
    simulator_configs: tuple[Any, ...] = ()
    dtypes: tuple[str, ...] = ("float32", "float64")
    minimum_arch: int = 0
    only_arch: int | None = None
    supports: Callable[[Any], str | None] = any_problem
    fits: Callable[[Any, Any], bool] = always
    variant: Callable[[Any, Any], tuple[str, ...]] = no_variant
    block_count: Callable[[Any, Any], int] = block_a_tile
    tile_count: Callable[[Any, Any], int] | None = None
    result_tile: Callable[[Any, Any], tuple[int, int]] = tile_of
    smaller_first: bool = False
    tensor_maps: Callable[..., tuple[Any, ...]] = no_maps
    tensor_map_names: tuple[str, ...] = ()
    is_persistent: bool = False
    copies_operands: bool = False
    reductions: Reductions = Reductions.NONE
    takes_pairs: bool = False
    quantises: bool = False
    takes_block_scales: bool = False
    widens: bool = False
    takes_modulus: bool = False
    measured_as: Callable[[str], str] = str
    takes_inner: bool = False
    takes_triangles: bool = False
    takes_k_ranges: bool = False
    clears_triangles: bool = False
    takes_masks: bool = False
    commutes: Callable[[Any], bool] = always
    order_of_sums: str = ""
    slices_k: bool = False
    accuracy: Callable[[Any], str | None] = any_problem
    device_functions: Callable[..., Any] | None = None
    descriptor: Callable[..., Any] | None = None
    finish_cubin: Callable[[bytes], bytes] = bytes
    parameter_block_bytes: int = 0

    def grid(self, config: Any, problem: Any, sm_count: int) -> int:
        """Blocks to launch on a GPU: `block_count`, or at most one per SM if persistent.

        With a block mask, which the host does not read, there is one block per tile, so that the
        GPU distributes the live tiles.
        """
        blocks = self.block_count(config, problem)
        is_persistent = self.is_persistent and not problem.mask_block
        return min(blocks, sm_count // config.cluster * config.cluster) if is_persistent else blocks
