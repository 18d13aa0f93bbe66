"""G1: all small shapes, four transpositions, all roles of alpha and beta, padded rows."""

import pytest
from oracle.cases import SMALL_EXTENTS, small_groups
from oracle.kinds import KINDS


@pytest.mark.parametrize("m", SMALL_EXTENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_small_shapes(contract, kind, m):
    contract(small_groups(kind, m), thin=True)


def test_there_are_7776_small_cases():
    groups = [group for m in SMALL_EXTENTS for group in small_groups("float32", m)]
    assert len({case for group in groups for case in group}) == 7776
