"""G6: any strides of any operand, any base pointer, batches and their broadcasting."""

from __future__ import annotations

import pytest

import dxgemm
from dxgemm.gpu.status import simulator_enabled
from dxgemm.testing.buffers import Arena
from dxgemm.testing.cases import Case, layout_groups, plain_layouts
from dxgemm.testing.kinds import KINDS
from dxgemm.testing.layouts import LAYOUTS

SIZES = [(5, 3, 4)] if simulator_enabled() else [(5, 3, 4), (65, 33, 47), (130, 257, 96)]
# The simulator runs the same Python for float64 as for float32.
PLACED = [kind for kind in KINDS if kind != "float64"] if simulator_enabled() else [*KINDS]

BATCHES = [
    (3, 3, 3),
    (3, None, 3),
    (None, 3, 3),
    (3, 1, 3),
    (1, 3, 3),
    (1, 1, 1),
    (1, None, 1),
    (None, None, 3),
    (0, 0, 0),
    (0, None, 0),
]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
@pytest.mark.parametrize("kind", PLACED)
def test_every_layout_of_every_operand(contract, kind, size):
    contract(layout_groups(kind, *size, tuple(LAYOUTS)))


@pytest.mark.parametrize("kind", PLACED)
def test_batches_broadcast(contract, kind):
    layouts = [plain_layouts(kind), ("col+1", "row+1", "row+1"), ("row", "col", "col_reversed")]
    factors = KINDS[kind].factors
    groups = (
        tuple(Case(kind, *SIZES[-1], names, *factors, batch=batch) for names in layouts)
        for batch in BATCHES
    )
    contract(groups)


@pytest.mark.parametrize("name", LAYOUTS)
def test_no_layout_is_copied(home, name):
    m, n, k = SIZES[0]
    arena = Arena("float32")
    slots = [arena.place("", shape, LAYOUTS[name], None) for shape in ((m, k), (k, n))]
    sent = home.send(arena.fill())
    assert dxgemm.explain(*(home.view(sent, slot) for slot in slots)).copied == ()
