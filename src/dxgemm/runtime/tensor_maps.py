"""Tensor maps: kernel parameters that describe an operand to TMA."""

from __future__ import annotations

from ctypes import string_at
from functools import cache, lru_cache
from typing import Any

from dxgemm.errors import LaunchError
from dxgemm.handwritten.parts.tensor_map import TensorMap
from dxgemm.runtime.device import current_device, driver_api

TENSOR_MAP_BYTES = 128
MOST_POINTERS = 64  # pairs of addresses for which a launch keeps the encoded maps


class TensorMaps:
    """Tensor maps of one launch, encoded once for each pair of addresses.

    The encoded maps are parameters by value: a launch in a CUDA graph keeps its own, and no device
    memory is needed.
    """

    def __init__(self, maps: tuple[TensorMap | bytes | None, ...], ordinal: int) -> None:
        """Take the maps: None is an operand that is not read, bytes are passed on as they are."""
        self.maps = maps
        self._ordinal = ordinal
        self.size = sum(len(m) if isinstance(m, bytes) else TENSOR_MAP_BYTES for m in maps)
        self.encode = lru_cache(MOST_POINTERS)(self._encode)

    def _encode(self, a: int, b: int) -> bytes:
        """Encode all maps, one after the other, for operands at these addresses."""
        addresses = {"a": a, "b": b}
        with current_device(self._ordinal):
            encoded = [
                tensor_map
                if isinstance(tensor_map, bytes)
                else encode(addresses[tensor_map.operand], tensor_map)
                if tensor_map
                else bytes(TENSOR_MAP_BYTES)
                for tensor_map in self.maps
            ]
        return b"".join(encoded)


def encode(address: int, tensor_map: TensorMap) -> bytes:
    """Encode a tensor map as the 128 bytes that TMA reads; elements beyond its sizes read as zero.

    A box has 16, 32, 64 or 128 bytes along the innermost dimension, in the swizzle as wide as they
    are; 16 bytes in none.

    Raises:
        LaunchError: the driver refused the map.
    """
    driver = driver_api()
    element, box, modes = _box_of(tensor_map.element, tensor_map.box)
    error, encoded = driver.cuTensorMapEncodeTiled(
        element,
        len(tensor_map.sizes),
        address,
        [driver.cuuint64_t(size) for size in tensor_map.sizes],
        [driver.cuuint64_t(stride) for stride in tensor_map.stride_bytes],
        box,
        [driver.cuuint32_t(1)] * len(tensor_map.sizes),
        *modes,
    )
    if error:
        raise LaunchError(
            f"gemm: the driver refused {tensor_map} at address {address:#x}: {error.name}."
        )
    return string_at(encoded.getPtr(), TENSOR_MAP_BYTES)


@cache
def _box_of(element: str, box: tuple[int, ...]) -> tuple[Any, list[Any], tuple[Any, ...]]:
    """The driver's type of elements, extents of a box, and modes of its copies."""
    driver = driver_api()
    kind, item_bytes = _elements()[element]
    modes = (
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        _swizzles()[box[0] * item_bytes],
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return kind, [driver.cuuint32_t(extent) for extent in box], modes


@cache
def _elements() -> dict[str, tuple[Any, int]]:
    """The driver's name of each type of element, and its bytes."""
    kinds = driver_api().CUtensorMapDataType
    return {
        "float16": (kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2),
        "bfloat16": (kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2),
        "int8": (kinds.CU_TENSOR_MAP_DATA_TYPE_UINT8, 1),
        "float32": (kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4),
        "tfloat32": (kinds.CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 4),
    }


@cache
def _swizzles() -> dict[int, Any]:
    """The driver's name of the swizzle of rows of as many bytes."""
    swizzles = driver_api().CUtensorMapSwizzle
    return {
        16: swizzles.CU_TENSOR_MAP_SWIZZLE_NONE,
        32: swizzles.CU_TENSOR_MAP_SWIZZLE_32B,
        64: swizzles.CU_TENSOR_MAP_SWIZZLE_64B,
        128: swizzles.CU_TENSOR_MAP_SWIZZLE_128B,
    }
