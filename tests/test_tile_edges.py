"""G2: sizes one below, at and one above each tile of each config, in all storage orders."""

import pytest
from oracle.cases import tile_edge_groups
from oracle.kinds import KINDS

import dxgemm

UNTILED_K = 4


TILED = [
    pytest.param(implementation, config, id=f"{implementation.name}-{config}".replace(" ", "_"))
    for implementation in dxgemm.implementations()
    for config in implementation.configs()
    if config is not None
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("implementation, config", TILED)
def test_sizes_around_the_tile(contract, implementation, config, kind):
    if config not in implementation.configs(KINDS[kind].dtype):
        pytest.skip(f"{config} is not for {kind}")
    tile_k = getattr(config, "tile_k", UNTILED_K)
    if callable(tile_k):
        tile_k = tile_k(KINDS[kind].dtype)
    contract(tile_edge_groups(kind, config.tile_m, config.tile_n, tile_k), config=config, thin=True)
