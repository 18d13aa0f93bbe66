"""Hand-written GEMM kernels in numba-cuda: a ladder of one technique per file, and others.

     1  naive             one thread per element; a warp takes neighbouring rows
     2  coalesced         one thread per element; a warp takes neighbouring columns
     3  shared_tile       a tile of each operand in shared memory per block
     4  thread_tile_1d    a column of elements per thread
     5  thread_tile_2d    a tile of elements per thread, in registers
     6  vectorized        16-byte accesses
     7  conflict_free     shared memory padded or swizzled against bank conflicts
     8  warp_tile         a tile of elements per warp
     9  double_buffer     the next tile fetched into registers meanwhile
    10  async_copy        cp.async in several stages
    11  ping_pong         fragments read one k ahead
    12  tuned             16 x 8 elements per thread, clusters that split k
    13  tensor_core       float64 by mma.sync; tensor_core_tf32: float32 as TF32
    14  wgmma             Hopper's TMA and warpgroup multiplication

`ladder` holds the rungs that are there to be read, `kernels` the kernels of production, `frames`
the common text of their families, and `parts` the functions that all share.

A kernel file defines `Config`, `make_kernel(config, dtype, *variant)` and `KERNEL`, the record by
which it is known (`parts.kernel`). It imports the standard library, numpy, numba and its neighbours
here, nothing else of dxgemm. All kernels take the same parameters: sizes and strides are run-time
arguments, counted in elements, so that one build serves every shape.
"""

if __name__ != "dxgemm.handwritten":
    raise ImportError(
        f"import this package as dxgemm.handwritten, not as {__name__}: a second copy would "
        "compile every kernel again."
    )

from dxgemm.handwritten.parts.sources import keep_sources

ROOMS = ("parts", "frames", "ladder", "kernels")  # imports point to those before

keep_sources(f"{folder}/{room}" for folder in __path__ for room in ROOMS)
