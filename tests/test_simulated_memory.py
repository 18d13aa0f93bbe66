"""Memory by byte addresses on the simulator: what is read and written, and what is refused."""

import numpy as np
import pytest

from dxgemm.gpu.status import simulator_enabled

if not simulator_enabled():
    pytest.skip("needs the simulator", allow_module_level=True)

from dxgemm.handwritten.parts import simulated_memory as memory
from dxgemm.runtime.simulator import Pointer


@pytest.fixture
def operand():
    """Complex elements, and the pointer to the second one: one lies before it, four from it on."""
    elements = np.arange(6).astype("complex64") * (1 + 2j)
    pointer = Pointer(elements.ctypes.data + 8, "complex64", -1, 6)
    return elements, memory.global_address(pointer)


def test_elements_are_parts_at_their_addresses(operand):
    elements, address = operand
    assert memory.load_global(np.float32, 2, address, 8) == (2, 4)
    assert memory.load_global(np.float32, 4, address, 16) == (3, 6, 4, 8)
    assert memory.load_global(np.float32, 2, address - 8, 0) == (0, 0)
    memory.store_global(address + 16, 8, (np.float32(7), np.float32(-1)))
    assert elements.tolist() == [0, 1 + 2j, 2 + 4j, 3 + 6j, 7 - 1j, 5 + 10j]


def test_copies_fill_up_with_zeros(operand):
    _, address = operand
    shared = np.full(8, 9, np.int32)
    start = memory.shared_address(shared)
    memory.copy_async(8, start, 0, address)
    memory.copy_async_part(16, start, 16, address + 16, 8)
    assert shared.view(np.float32)[:2].tolist() == [1, 2] and (shared[2:4] == 9).all()
    assert memory.load_shared(np.float32, 4, start, 16) == (3, 6, 0, 0)
    memory.store_shared(start, 8, (np.float32(5), np.float32(6)))
    assert memory.load_shared(np.float32, 2, start, 8) == (5, 6)
    memory.copy_async_part(8, start, 0, address + 1000, 0)  # nothing is read
    assert shared[0] == shared[1] == 0


def test_accesses_outside_and_at_odd_addresses_are_refused(operand):
    _, address = operand
    start = memory.shared_address(np.zeros(8, np.int32))
    for refused in (
        lambda: memory.load_global(np.float32, 4, address, 8),
        lambda: memory.load_global(np.float32, 1, address, 0),
        lambda: memory.load_global(np.float32, 2, address, 40),
        lambda: memory.load_global(np.float32, 2, address - 16, 0),
        lambda: memory.load_shared(np.float32, 4, start, 8),
        lambda: memory.load_shared(np.float32, 4, start, 32),
        lambda: memory.store_shared(start - 16, 0, (np.float32(0),) * 4),
        lambda: memory.copy_async(16, start, 0, address + 32),
    ):
        with pytest.raises(IndexError):
            refused()
