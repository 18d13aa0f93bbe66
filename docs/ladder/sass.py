"""Print the machine code (SASS) of a rung. It needs no GPU.

    python docs/ladder/sass.py vectorized
    python docs/ladder/sass.py tuned --dtype float64 --arch sm_80

The disassembler, nvdisasm, is in the CUDA toolkit and in the package nvidia-cuda-nvdisasm.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dxgemm.cli.rungs import SHOWN_SIZE, Arithmetic, find_config, find_rung
from dxgemm.compiler import obtain_kernel


def find_nvdisasm() -> str:
    """Path of nvdisasm: on PATH, or in the package.

    Raises:
        SystemExit: there is none.
    """
    packaged = (path for folder in sys.path for path in Path(folder).glob("nvidia/*/bin/nvdisasm"))
    found = shutil.which("nvdisasm") or next(packaged, None)
    if found is None:
        raise SystemExit("there is no nvdisasm: pip install nvidia-cuda-nvdisasm")
    return str(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rung")
    parser.add_argument("--config", help="such as '64x64x8 thread 8x4'; default: the first")
    parser.add_argument("--dtype", type=Arithmetic, default=Arithmetic.float32)
    parser.add_argument("--arch", default="sm_90a")
    given = parser.parse_args()
    rung = find_rung(given.rung, given.dtype)
    config = find_config(rung, given.config, given.dtype)
    spec = rung.spec_for(config, given.dtype.problem(SHOWN_SIZE))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(obtain_kernel(spec, given.arch).cubin)
        file.flush()
        subprocess.run([find_nvdisasm(), "-c", file.name], check=True)


if __name__ == "__main__":
    main()
