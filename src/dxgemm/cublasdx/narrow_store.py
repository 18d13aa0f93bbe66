"""Store of a tile of sums as float16 or bfloat16: rounded once, 16 bytes of a row at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.tile_store import row_bytes

WIDTH = 8  # elements of 16 bytes


def make_narrow_store(config: Any, sums: str, dtype: str, epilogue: Any) -> Callable[..., Any]:
    """Make a device function that writes a tile of sums from shared memory in a narrower dtype.

    It takes the same arguments as that of `result_tile.make_store_result`.

    Args:
        config: config of the pipeline.
        sums: dtype of the tile, float32, or int32 with an epilogue, where c is not added.
        dtype: dtype of c and out.
        epilogue: epilogue as `dxgemm.handwritten.parts.epilogue` takes it.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.addend import make_plus_c
    from dxgemm.handwritten.parts.epilogue import make_finish
    from dxgemm.handwritten.parts.intrinsics import load_shared, store_vector
    from dxgemm.handwritten.parts.result import Origin, Result
    from dxgemm.handwritten.parts.tile_store import make_allows_vectors
    from dxgemm.handwritten.parts.unroll import Operand, static_range, unroll
    from dxgemm.handwritten.parts.widening import NARROW, stored_type, view_as

    tile_m, tile_n, threads = config.tile_m, config.tile_n, config.threads
    narrow, element_type = NARROW[dtype], stored_type(dtype)
    allows_vectors = make_allows_vectors(dtype)
    scalar = np.dtype(sums).type
    plus_vector, plus_one = make_plus_c(sums, dtype, width=WIDTH), make_plus_c(sums, dtype)
    smem_row_bytes = row_bytes(tile_n, sums)
    row_vectors = tile_n // WIDTH
    finish = make_finish(epilogue, sums, "float32")
    finish_vector = make_finish(epilogue, sums, "float32", WIDTH)

    def narrow_store(smem, rank, matrix, tile_row, tile_col, m, n, beta, c, out, extra):
        c_start, out_start = matrix * c.batch, matrix * out.batch
        out = Operand(view_as(element_type, out.data), out.batch, out.row, out.col)
        origin, result = Origin(matrix, c_start, out_start), Result(0, beta, c, out, m, n, 0, extra)
        is_vector = allows_vectors(origin, result)
        for vector in range(int32(cuda.threadIdx.x & 1023), tile_m * row_vectors, threads):
            smem_row, smem_vector = int32(vector // row_vectors), int32(vector % row_vectors)
            row, col = tile_row + smem_row, tile_col + smem_vector * WIDTH
            if row < m and col < n:
                address = int32(smem + smem_row * smem_row_bytes + smem_vector * (4 * WIDTH))
                values = load_shared(scalar, 4, address, 0) + load_shared(scalar, 4, address, 16)
                c_index = c_start + row * c.row + col * c.col
                out_index = out_start + row * out.row + col * out.col
                if is_vector and col + WIDTH <= n:
                    values = plus_vector(values, beta, c, c_index, 0)
                    values = finish_vector(values, matrix, row, col, extra)
                    bits = ()
                    for element in static_range(WIDTH):
                        bits = bits + (narrow(values[element]),)
                    store_vector(out.data, out_index, bits)
                else:
                    for element in static_range(WIDTH):
                        if col + element < n:
                            value = (values[element],)
                            value = plus_one(value, beta, c, c_index + element * c.col, 0)
                            value = finish(value[0], matrix, row, col + element, extra)
                            out.data[out_index + element * out.col] = narrow(value)

    return cuda.jit(device=True, forceinline=True)(unroll(narrow_store))
