"""A kernel of the caller's with the digest of all that it does."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from importlib.util import MAGIC_NUMBER
from types import FunctionType
from typing import Any

from dxgemm.epilogues.bytecode import variables_passed
from dxgemm.epilogues.function import check_plain
from dxgemm.epilogues.kinds import KERNEL
from dxgemm.epilogues.literals import compiled_function, record
from dxgemm.epilogues.reads import (
    Description,
    KeyedModule,
    Read,
    Source,
    are_outdated,
    cell_value,
)

# Places of the operand that is multiplied by what a tile keeps.
_BESIDE_KEPT = {"fetch_for_kept": 0, "multiply_kept": 1, "product_of_kept": 1}


@dataclass(frozen=True)
class UserKernel:
    """A copy of a function, which compilers get, and what it was made from.

    Attributes:
        name: name of the function.
        recorded: the copy.
        digest: sha256 of what it does, as hexadecimal text.
        reads, sources: the variables and functions that were copied.
        modules: tiles that it reads.
        beside_kept: tiles that keep columns, and places of the arguments of the kernel that are
            multiplied by these.
    """

    name: str
    recorded: FunctionType
    digest: str
    reads: tuple[Read, ...]
    sources: tuple[Source, ...]
    modules: tuple[KeyedModule, ...]
    beside_kept: tuple[tuple[Any, int], ...]

    @property
    def function(self) -> FunctionType:
        """The function that was copied."""
        source = self.sources[0]
        return source[0]

    @property
    def is_current(self) -> bool:
        """True if nothing that was copied has changed since."""
        is_same = all(read.current() is read.value for read in self.reads)
        return is_same and not are_outdated(self.sources)

    def make(self) -> FunctionType:
        """Make a function for a compiler, with device functions that none has seen."""
        from numba import cuda

        from dxgemm.handwritten.frames.block_tile import ELEMENTARY

        made: dict[int, Any] = {}

        def other(value: Any) -> Any:
            if isinstance(value, KeyedModule):
                return made.setdefault(id(value), value.anew())
            return value

        # Inlined, for one call in a kernel makes ptxas wait for each wgmma by itself.
        inlined = cuda.jit(device=True, forceinline=True)
        return compiled_function(self.recorded, lambda number: number, inlined, ELEMENTARY, other)


MOST_KERNELS = 256  # that are kept; others are recorded again
_kernels: dict[FunctionType, UserKernel] = {}  # the last ones recorded at the end


def kernel_of(kernel: Any) -> UserKernel:
    """Kernel of a function or of what `numba.cuda.jit` made of it, as its code is now.

    Raises:
        EpilogueError: it is no function, or depends on something that could change while a
            compiled kernel stays the same.
    """
    function = getattr(kernel, "py_func", kernel)
    check_plain(function, KERNEL)
    known = _kernels.get(function)
    if known is None or not known.is_current:
        _kernels.pop(function, None)
        known = _kernels[function] = _record(function)
        for oldest in list(_kernels)[:-MOST_KERNELS]:
            _kernels.pop(oldest, None)
    return known


def _record(function: FunctionType) -> UserKernel:
    name = KERNEL + function.__name__
    recorded, reads, sources = record(function, name)
    described = MAGIC_NUMBER, Description(name).function(recorded)
    digest = sha256(repr(described).encode()).hexdigest()
    modules = tuple(read.value for read in reads if isinstance(read.value, KeyedModule))
    code, cells = recorded.__code__, recorded.__closure__ or ()
    arguments = code.co_varnames[: code.co_argcount]
    scope = recorded.__globals__ | dict(zip(code.co_freevars, map(cell_value, cells)))
    beside_kept = tuple(
        (scope[tile], arguments.index(variable))
        for tile, variable in variables_passed(code, _BESIDE_KEPT)
        if scope.get(tile) in modules and variable in arguments
    )
    return UserKernel(function.__name__, recorded, digest, reads, sources, modules, beside_kept)
