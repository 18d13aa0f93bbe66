"""Resources of a kernel, read from its cubin.

A cubin is an ELF file. Its `.nv.info` section is a list of attributes: a format byte, an attribute
byte and two bytes of size. For the attributes read here, the index of a function's symbol and a
number follow.
Source: `cuobjdump -elf` prints the attributes by name. The numbers equal those that ptxas -v prints
for the same kernels, with and without spills, for CUDA 12.9, 13.0 and 13.1.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from io import BytesIO

from dxgemm.errors import BuildError

_SIZED_FORMAT = 0x04  # a size and that many bytes follow; other formats are four bytes in all
_MIN_STACK_SIZE = 0x12
_REGISTER_COUNT = 0x2F


@dataclass(frozen=True)
class Resources:
    """Registers, and bytes of stack (local memory), per thread."""

    registers: int
    stack_bytes: int


def read_resources(cubin: bytes, entry: str) -> Resources:
    """Read the resources of one kernel of a cubin.

    Args:
        cubin: the whole file.
        entry: the kernel's symbol.

    Raises:
        BuildError: the cubin does not have them.
    """
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    found = {}
    try:
        elf = ELFFile(BytesIO(cubin))
        symbols = elf.get_section_by_name(".symtab").iter_symbols()
        index = next(index for index, symbol in enumerate(symbols) if symbol.name == entry)
        for code, symbol, value in _attributes(elf.get_section_by_name(".nv.info").data()):
            if symbol == index:
                found[code] = value
        return Resources(found[_REGISTER_COUNT], found[_MIN_STACK_SIZE])
    except (ELFError, AttributeError, StopIteration, KeyError) as error:
        raise BuildError(f"the cubin does not say how many registers {entry} uses") from error


def entry_name(cubin: bytes) -> str:
    """Symbol of the only kernel in a cubin.

    Raises:
        BuildError: there are several, or none.
    """
    from elftools.elf.elffile import ELFFile

    sections = (section.name for section in ELFFile(BytesIO(cubin)).iter_sections())
    entries = [name.removeprefix(".text.") for name in sections if name.startswith(".text.")]
    if len(entries) != 1:
        raise BuildError(f"a cubin holds {len(entries)} functions instead of one: {entries}")
    return entries[0]


def _attributes(data: bytes) -> list[tuple[int, int, int]]:
    """List (attribute, symbol index, value) of all attributes of that form."""
    found, position = [], 0
    while position < len(data):
        form, code, size = struct.unpack_from("<BBH", data, position)
        position += 4
        if form == _SIZED_FORMAT:
            if size == 8:
                found.append((code, *struct.unpack_from("<II", data, position)))
            position += size
    return found
