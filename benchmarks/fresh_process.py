"""One step of dxgemm's start, timed in the process that was started for it.

    python fresh_process.py SETUP STEP CHECK

The arguments are Python code. Prints a JSON object: the seconds of the step, what it set
`returned` to, and the compiler modules and libraries it brought into the process; or, under
"unavailable", why it cannot be taken here. What the setup brought counts neither as time nor as
loaded.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

COMPILER_MODULES = frozenset({"numba", "nvmath"})
COMPILER_LIBRARY = re.compile(r"lib(?:nvrtc|nvvm|nvJitLink|mathdx|llvmlite)\b[^/\s]*")


def loaded_compilers() -> set[str]:
    """Compiler modules imported and compiler libraries mapped by this process so far."""
    maps = Path("/proc/self/maps").read_text()
    return (COMPILER_MODULES & sys.modules.keys()) | set(COMPILER_LIBRARY.findall(maps))


def main() -> None:
    setup, step, check = sys.argv[1:]
    names: dict[str, Any] = {"returned": None, "unavailable": None}
    exec(setup, names)
    before = loaded_compilers()
    start = time.perf_counter()
    exec(step, names)
    seconds = time.perf_counter() - start
    loaded = sorted(loaded_compilers() - before)
    exec(check, names)
    found = {name: names[name] for name in ("returned", "unavailable")}
    print(json.dumps({"seconds": seconds, "loaded": loaded, **found}))


if __name__ == "__main__":
    main()
