"""A kernel's declaration of itself, and the base of its configs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar


class Reductions(Enum):
    """Reductions of the result that a kernel computes itself."""

    NONE = "none"
    OF_ROWS = "along rows, the matrix unstored"
    ALL = "along rows and columns"


class BaseConfig:
    """Base of the frozen dataclass that a kernel is compiled for.

    A subclass has `threads`, the threads of a block, and `accumulator_bytes(dtype)` of a thread.
    """

    least_threads: ClassVar[int] = 1
    dynamic_smem: ClassVar[bool] = False  # whether a launch asks for the shared memory

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

    @property
    def only_shape(self) -> tuple[int, int, int] | None:
        """(m, n, k), where it is made for one."""
        return None

    @property
    def least_sizes(self) -> dict[str, int]:
        """Sizes "m", "n" and "k" below which its loads are slow."""
        return {}

    @property
    def cluster(self) -> int:
        """Blocks of a thread-block cluster."""
        return 1

    @property
    def launch_registers(self) -> int:
        """Registers of a thread that warpgroups share out among themselves; else 0."""
        return 0

    def smem_bytes(self, dtype: str) -> int:
        """Shared memory of a block."""
        return 0

    def min_blocks(self, dtype: str) -> int:
        """Minimum resident blocks per SM (`__launch_bounds__`); 0 leaves it to shared memory."""
        return 0

    def min_blocks_fused(self, dtype: str) -> int:
        """The same where an epilogue takes registers."""
        return self.min_blocks(dtype)


def any_problem(problem: Any) -> None:
    """Support every problem."""


def no_variant(config: Any, problem: Any) -> tuple[str, ...]:
    """Compile one kernel for all layouts."""
    return ()


def tile_of(config: Any, problem: Any) -> tuple[int, int]:
    """Rows and columns of a block's tile of the result."""
    return config.tile_m, config.tile_n


def block_a_tile(config: Any, problem: Any) -> int:
    """Blocks to launch: one a tile of the result, or a cluster, row by row, matrix after matrix."""
    tiles: int = -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n)
    return problem.batch * tiles * config.cluster


def no_maps(config: Any, problem: Any) -> tuple[Any, ...]:
    """Launch without tensor maps."""
    return ()


@dataclass(frozen=True)
class Kernel:
    """One kernel file: what it computes, where, and how it is made and launched.

    Attributes:
        make_kernel: (config, dtype, *variant, epilogue) -> the Python function to compile.
        configs: to choose from, largest tile first.
        simulator_configs: tiny ones; empty where numba's simulator lacks an instruction.
        dtypes: of a and b.
        minimum_arch: ten times the least compute capability.
        only_arch: ten times the only one that has its instructions.
        supports: (problem) -> None, or the reason why it cannot compute it.
        variant: (config, problem) -> what is compiled in beyond the dtype, such as layouts.
        block_count: (config, problem) -> blocks to launch; tiles, if persistent.
        tile_count: (config, problem) -> tiles of the result, where that is not `block_count`.
        result_tile: (config, problem) -> rows and columns of a block's tile.
        tensor_maps: (config, problem) -> one for each of `tensor_map_names`.
        tensor_map_names: parameters after those of every kernel.
        is_persistent: each SM has one block at most, which computes tile after tile.
        reductions: that it computes of the result.
        slices_k: it computes sums of slices of k, for `add_slices`.
        accuracy: (problem) -> what of the operands it multiplies, and the bound on the error.
        device_functions: (config, dtype, *variant, arch) -> functions to link with.
        descriptor: of the same, what they are made for.
        finish_cubin: (cubin) -> cubin, after linking.
        parameter_block_bytes: of a last parameter that numba cannot express.
    """

    make_kernel: Callable[..., Callable[..., None]]
    configs: tuple[Any, ...]
    simulator_configs: tuple[Any, ...] = ()
    dtypes: tuple[str, ...] = ("float32", "float64")
    minimum_arch: int = 0
    only_arch: int | None = None
    supports: Callable[[Any], str | None] = any_problem
    variant: Callable[[Any, Any], tuple[str, ...]] = no_variant
    block_count: Callable[[Any, Any], int] = block_a_tile
    tile_count: Callable[[Any, Any], int] | None = None
    result_tile: Callable[[Any, Any], tuple[int, int]] = tile_of
    tensor_maps: Callable[..., tuple[Any, ...]] = no_maps
    tensor_map_names: tuple[str, ...] = ()
    is_persistent: bool = False
    reductions: Reductions = Reductions.NONE
    slices_k: bool = False
    accuracy: Callable[[Any], str | None] = any_problem
    device_functions: Callable[..., Any] | None = None
    descriptor: Callable[..., Any] | None = None
    finish_cubin: Callable[[bytes], bytes] = bytes
    parameter_block_bytes: int = 0

    def grid(self, config: Any, problem: Any, sm_count: int) -> int:
        """Blocks to launch on a GPU: `block_count`, or at most one an SM if persistent."""
        blocks = self.block_count(config, problem)
        return min(blocks, sm_count) if self.is_persistent else blocks
