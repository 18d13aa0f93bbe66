"""cuBLASDx pipelines of Hopper: TMA loads tiles, wgmma multiplies them.

Idea: `pipeline` with TMA for the loads. TMA finds a matrix by its tensor map and fills with zeros
outside of it, so that edges of m, n and k cost nothing. A kernel cannot use a tensor map that it
makes itself. So the pipeline object comes from the host, as the kernel's last parameter: by value,
so that nothing is allocated, launches in flight do not share it and a CUDA graph keeps its own.
Layout: a (m, k), b (k, n), any batch, row- or column-major; c and out (m, n), any strides, in the
dtype of a and b or in float32; in int32 where those are int8.
Constraints: compute capability 9.0; bases and strides at multiples of 16 bytes, for TMA; K-major
operands for int8 and for float32, which is multiplied as TF32, for wgmma.
Source: cuBLASDx 0.6 documentation, "Pipelining"; PTX ISA, "Tensors"; the layout of the pipeline
object was read from the output of its CREATE function.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dxgemm.cublasdx.function_store import obtain_fitting_functions
from dxgemm.cublasdx.mathdx import ITEM_BYTES, Descriptor, DeviceFunctions
from dxgemm.cublasdx.result_tile import USUAL_BAND_M
from dxgemm.errors import BuildError
from dxgemm.handwritten.parts.kernel import BaseConfig, Kernel, never
from dxgemm.handwritten.parts.tensor_map import MOST_ELEMENTS, TensorMap, operand_of
from dxgemm.handwritten.parts.tile_store import row_bytes, tile_bytes

HALF = ("float16", "bfloat16")
PARAMETER_BLOCK_BYTES = 576
K_MAJOR = ("row", "col")  # orders of a and b if both are K-major
ROW_BYTES = 128  # depth of a stage along k, in bytes
LINES = 8  # lines of an MN-major operand in one copy
BARRIER_BYTES = 16  # bytes of a stage beside its tiles
_ELEMENTS = {"float32": "tfloat32"}  # element types of tensor maps that differ from the dtype


@dataclass(frozen=True)
class Config(BaseConfig):
    """Config of a block's tile; a stage is 128 bytes of k deep.

    Attributes:
        tile_m, tile_n: extents of the block's tile.
        threads: threads per block.
        stages: k tiles in shared memory.
        blocks_per_sm: minimum resident blocks per SM (`__launch_bounds__`).
        band_m: threadblock swizzle: rows of tiles per band, whose tiles share operands in L2.
    """

    tile_m: int
    tile_n: int
    threads: int
    stages: int
    blocks_per_sm: int = 1
    band_m: int = USUAL_BAND_M

    dynamic_smem: ClassVar[bool] = True

    def complaints(self) -> Iterator[str]:
        if self.threads % 128:
            yield "wgmma takes whole warpgroups of 128 threads"
        if self.stages < 2:
            yield "one stage is copied while another is read: 2 or more"
        if self.smem_bytes("float16") > 227 * 1024:
            yield f"{self.smem_bytes('float16')} bytes of shared memory"
        # Late arrivals write to the barriers after the stages: the result must not reach them.
        if tile_bytes(self.tile_m, self.tile_n, "float32") > self.stages * self.stage_bytes:
            yield "too few stages to hold the tile of the result"

    def min_blocks(self, dtype: str) -> int:
        return self.blocks_per_sm

    def tile_k(self, dtype: str) -> int:
        return ROW_BYTES // ITEM_BYTES[dtype]

    @property
    def stage_bytes(self) -> int:
        """Bytes of the tiles of a and b in a stage."""
        return (self.tile_m + self.tile_n) * ROW_BYTES

    def smem_bytes(self, dtype: str) -> int:
        """Bytes of all stages and barriers; the tile of the result later replaces stages."""
        return self.stages * (self.stage_bytes + BARRIER_BYTES)

    def accumulator_bytes(self, dtype: str) -> int:
        return self.tile_m * self.tile_n // self.threads * 4

    def __str__(self) -> str:
        band = f" band {self.band_m}" if self.band_m != USUAL_BAND_M else ""
        return f"{self.tile_m}x{self.tile_n} threads {self.threads} stages {self.stages}{band}"


def supports(problem: Any) -> str | None:
    """Reason why TMA or wgmma cannot compute a problem; None if they can."""
    if problem.dtype == "float32" and problem.precision != "tf32":
        return "wgmma has no float32; precision='tf32' permits TF32"
    if max(problem.m, problem.n, problem.k) > MOST_ELEMENTS:
        return f"its 32-bit indices count to {MOST_ELEMENTS} along m, n and k"
    if problem.k == 0:
        return None
    reason: str | None = operand_of(problem, "a").refusal() or operand_of(problem, "b").refusal()
    if reason is None and problem.dtype not in HALF and _directions(problem) != K_MAJOR:
        reason = f"wgmma of {problem.arithmetic} wants a and b contiguous along k"
    return reason


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Orders of a and b, and the dtype of the result if it differs from theirs."""
    directions = _directions(problem)
    if problem.out_dtype == problem.dtype:
        return directions
    return (*directions, problem.out_dtype)


def _directions(problem: Any) -> tuple[str, str]:
    """Orders of a and b, "row" or "col"; operands that are not read count as K-major."""
    if problem.k == 0:
        return K_MAJOR
    a, b = operand_of(problem, "a"), operand_of(problem, "b")
    return "row" if a.innermost == "k" else "col", "col" if b.innermost == "k" else "row"


def tensor_maps(config: Config, problem: Any) -> tuple[TensorMap | bytes, ...]:
    """Pipeline object: the tensor maps of a and b, each with the extents of the matrices."""
    if problem.k == 0:
        return (bytes(PARAMETER_BLOCK_BYTES),)
    parts: list[TensorMap | bytes] = []
    # The pipeline fills all its stages; copies that it does not wait for would overwrite the tile
    # of the result. So k is extended to fill the stages: TMA returns zeros beyond its end.
    depth = max(problem.k, config.stages * config.tile_k(problem.dtype))
    extents = {"a": (problem.m, depth), "b": (depth, problem.n)}
    for name, tile in (("a", config.tile_m), ("b", config.tile_n)):
        operand = operand_of(problem, name)
        tile_k = config.tile_k(problem.dtype)
        # One copy loads a whole tile if it is K-major, or as narrow as the swizzle. Otherwise it
        # loads 128 bytes of 8 lines.
        is_whole = operand.innermost == "k" or tile == tile_k
        box = (tile, tile_k) if is_whole else (tile_k, LINES)
        tensor_map = operand.tensor_map(_ELEMENTS.get(problem.dtype, problem.dtype), *box)
        shape = (*extents[name], tensor_map.sizes[2])
        parts += [tensor_map, bytes(64) + struct.pack("<3i", *shape) + bytes(52)]
    return (*parts, bytes(64))


def descriptor(
    config: Config, dtype: str, a_direction: str, b_direction: str, *out_dtype: str, arch: str
) -> Descriptor:
    """Descriptor of the device functions of a kernel; several kernels may share one."""
    return Descriptor(
        tile_m=config.tile_m,
        tile_n=config.tile_n,
        tile_k=config.tile_k(dtype),
        threads=config.threads,
        stages=config.stages,
        dtype="tf32" if dtype == "float32" else dtype,
        accumulator="int32" if dtype == "int8" else "float32",
        a_arrangement=a_direction,
        b_arrangement=b_direction,
        alignment=16,
        arch=arch,
        batched=True,
        streaming=True,
    )


def device_functions(config: Config, dtype: str, *variant: str, arch: str) -> DeviceFunctions:
    """Device functions of a kernel, from disk or built."""
    what = descriptor(config, dtype, *variant, arch=arch)
    functions = obtain_fitting_functions(what, config.smem_bytes(dtype))
    if functions.device_pipeline.size != PARAMETER_BLOCK_BYTES:
        raise BuildError(
            f"cuBLASDx's pipeline object takes {functions.device_pipeline.size} bytes; the layout "
            f"of {PARAMETER_BLOCK_BYTES} bytes is known."
        )
    return functions


def make_kernel(
    config: Config,
    dtype: str,
    a_direction: str,
    b_direction: str,
    out_dtype: str | None = None,
    *,
    functions: DeviceFunctions,
    epilogue: Any = None,
) -> Callable[..., None]:
    """Make the kernel of one config and variant, as a Python function to compile and link."""
    from numba import cuda, int32, types

    from dxgemm.cublasdx.intrinsics import make_intrinsics
    from dxgemm.cublasdx.result_tile import make_find_tile, make_store_result
    from dxgemm.handwritten.parts.intrinsics import shared_address, zeros
    from dxgemm.handwritten.parts.unroll import gemm_kernel

    tile_m, tile_n = config.tile_m, config.tile_n
    sums = "int32" if dtype == "int8" else "float32"
    scalar, elements = np.dtype(sums).type, functions.fragment_size
    smem_row_bytes = row_bytes(tile_n, sums)
    element = getattr(types, sums)
    _, multiply_boxes, _, put_tile, _ = make_intrinsics(functions, element, sums)
    find_tile = make_find_tile(tile_m, tile_n, config.band_m)
    store_result = make_store_result(config, sums, out_dtype or dtype, epilogue)

    def pipeline_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        smem = cuda.shared.array(0, np.uint8, alignment=1024)

        # This block's tile of the result.
        matrix, row_tile, col_tile = find_tile(int32(cuda.blockIdx.x), m, n, batch)

        # Main loop, in cuBLASDx.
        acc = zeros(scalar, elements)
        if k > 0:
            a_matrix = matrix if a.batch != 0 else int32(0)
            b_matrix = matrix if b.batch != 0 else int32(0)
            acc = multiply_boxes(smem, row_tile, col_tile, a_matrix, b_matrix)

        # Epilogue: the tile goes through shared memory, whose rows are stored 16 bytes at a time.
        cuda.syncthreads()
        tile_smem = shared_address(smem)
        put_tile(tile_smem, smem_row_bytes, acc, alpha, int32(0), int32(0))
        cuda.syncthreads()
        tile_row, tile_col = row_tile * tile_m, col_tile * tile_n
        store_result(tile_smem, int32(0), matrix, tile_row, tile_col, m, n, beta, c, out, extra)

    return gemm_kernel(pipeline_kernel)


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(128, 256, threads=256, stages=4),
        Config(128, 128, threads=128, stages=3, blocks_per_sm=2),
        Config(128, 128, threads=256, stages=4),
        Config(128, 64, threads=128, stages=4, blocks_per_sm=2),
        Config(128, 64, threads=256, stages=8),
    ),
    dtypes=("float16", "bfloat16", "float32", "int8"),
    only_arch=90,
    supports=supports,
    variant=variant,
    tensor_maps=tensor_maps,
    copies_operands=True,
    device_functions=device_functions,
    descriptor=descriptor,
    commutes=never,  # nothing is known of the order in which the library adds
    parameter_block_bytes=PARAMETER_BLOCK_BYTES,
)
