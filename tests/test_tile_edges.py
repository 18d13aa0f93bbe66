"""G2: sizes one below, at and one above each tile of each config, in all storage orders."""

from __future__ import annotations

import pytest

import dxgemm
from dxgemm.testing.cases import DTYPES, tile_edge_groups

UNTILED_K = 4


TILED = [
    pytest.param(implementation, config, id=f"{implementation.name}-{config}".replace(" ", "_"))
    for implementation in dxgemm.implementations()
    for config in implementation.configs()
    if config is not None
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("implementation, config", TILED)
def test_sizes_around_the_tile(contract, config, dtype):
    tile_k = getattr(config, "tile_k", UNTILED_K)
    contract(
        tile_edge_groups(dtype, config.tile_m, config.tile_n, tile_k), config=config, thin=True
    )
