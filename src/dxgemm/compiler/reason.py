"""Extraction of the reason from numba's error messages."""

from __future__ import annotations

import re
from pathlib import Path

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
OVERTURE = re.compile(r"Failed in \w+ mode pipeline \(step: .*\)|")
# Lines after numba's reason: the compiler pass, and the candidates that it tried.
SEQUEL = re.compile(r"During: |There (are|is) \d+ candidate")
PLACE = re.compile(r'File "(?P<file>[^<].*)", line \d+:')
PACKAGE = Path(__file__).resolve().parents[1]
OWN = (PACKAGE, (PACKAGE / "handwritten").resolve())


def numba_reason(message: str) -> str:
    """Reason in an error message of numba, with the source line if it is not dxgemm's own."""
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
