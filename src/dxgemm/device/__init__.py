"""Tiles of products inside kernels of your own: `tile` makes one, for a `@cuda.jit` function."""

from dxgemm.device.tile import Tile, tile

__all__ = ["Tile", "tile"]


def __dir__() -> list[str]:
    return __all__
