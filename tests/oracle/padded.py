"""Single arrays of a library between guard pads."""

import numpy as np

from oracle.buffers import Arena
from oracle.layouts import LAYOUTS
from oracle.libraries import NumpyLibrary


class Padded:
    """Operand whose guard pads are checked whenever its values are read back."""

    def __init__(self, library: NumpyLibrary, values: np.ndarray, layout: str = "row") -> None:
        self._library = library
        self._arena = Arena(values.dtype.name)
        self._slot = self._arena.place("operand", values.shape, LAYOUTS[layout], values)
        self._before = self._arena.fill()
        self._sent = library.send(self._before)
        self.array = library.view(self._sent, self._slot)  # the array to pass to gemm

    def fetch(self) -> np.ndarray:
        """Returns the values as they are now, after asserting that all guards are as they were."""
        after = self._library.fetch(self._sent)
        damage = self._arena.damage(self._before, after, [self._slot])
        assert damage is None, damage
        return self._slot.view(after)

    def assert_unchanged(self) -> None:
        """Asserts that neither the operand nor a guard differs in any bit from the beginning."""
        damage = self._arena.damage(self._before, self._library.fetch(self._sent), [])
        assert damage is None, damage
