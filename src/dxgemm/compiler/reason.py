"""Why numba could not compile a kernel, without numba's account of how it came upon that."""

from __future__ import annotations

import re
from pathlib import Path

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
OVERTURE = re.compile(r"Failed in \w+ mode pipeline \(step: .*\)|")
# What comes after numba's reason: its way there, and what it tried otherwise.
SEQUEL = re.compile(r"During: |There (are|is) \d+ candidate")
PLACE = re.compile(r'File "(?P<file>[^<].*)", line \d+:')
PACKAGE = Path(__file__).resolve().parents[1]
OWN = (PACKAGE, (PACKAGE / "handwritten").resolve())


def numba_reason(message: str) -> str:
    """numba's reason, and the line that it is about where that is none of dxgemm's own."""
    lines = ESCAPE.sub("", message).splitlines()
    reason = []
    for line in lines:
        if SEQUEL.match(line) or PLACE.match(line):
            break
        if not OVERTURE.fullmatch(line):
            reason.append(line)
    for index, line in enumerate(lines):
        place = PLACE.match(line)
        if place and not any(map(Path(place["file"]).resolve().is_relative_to, OWN)):
            quoted = lines[index:]
            reason += quoted[: quoted.index("")] if "" in quoted else quoted
            break
    return "\n".join(reason).strip() or message
