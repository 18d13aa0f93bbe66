"""One step of dxgemm's start, timed in the process that was started for it.

    python fresh_process.py import "from dxgemm import gemm"
    python fresh_process.py gemm --library cupy --dtype float32 --implementation coalesced
    python fresh_process.py kernel --implementation pipeline --dtype float64 --arch sm_90a
    python fresh_process.py kernel --implementation pipeline ... --epilogue relu
    python fresh_process.py build --dtype float32 --arch sm_90a
    python fresh_process.py nvmath.device --dtype float64

Prints a JSON object: the seconds of the step, what it returned, and the compiler modules and
libraries it brought into the process; or, under "unavailable", why nvmath.device cannot take the
step. What was there before counts neither as time nor as loaded: NumPy; for `gemm` and
`nvmath.device` the operands and, unless they are NumPy's, CuPy or torch and a CUDA context.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

COMPILER_MODULES = frozenset({"numba", "nvmath"})
COMPILER_LIBRARY = re.compile(r"lib(?:nvrtc|nvvm|nvJitLink|mathdx|llvmlite)\b[^/\s]*")


class Unavailable(Exception):
    """Another library cannot take the step here."""


def loaded_compilers() -> set[str]:
    """Compiler modules imported and compiler libraries mapped by this process so far."""
    maps = Path("/proc/self/maps").read_text()
    return (COMPILER_MODULES & sys.modules.keys()) | set(COMPILER_LIBRARY.findall(maps))


def prepare_import(statement: str) -> Callable[[], object]:
    return lambda: exec(statement)


def prepare_gemm(
    library: str, dtype: str, implementation: str | None, size: int
) -> tuple[Callable[[], object], Callable[[], None]]:
    rng = np.random.default_rng(0)
    # Sums of products of such integers are exact.
    a, b, out = (rng.integers(-3, 4, (size, size)).astype(dtype) for _ in range(3))
    expected = a @ b
    wait, fetch = (lambda: None), (lambda: out)
    if library == "cupy":
        import cupy

        a, b, out = cupy.asarray(a), cupy.asarray(b), cupy.asarray(out)
        wait, fetch = cupy.cuda.Device().synchronize, out.get
    elif library == "torch":
        import torch

        a, b, out = (torch.from_numpy(array).cuda() for array in (a, b, out))
        wait, fetch = torch.cuda.synchronize, out.cpu
    wait()

    def step() -> None:
        import dxgemm

        dxgemm.gemm(a, b, out=out, implementation=implementation)
        wait()

    def check() -> None:
        np.testing.assert_array_equal(fetch(), expected)

    return step, check


def prepare_kernel(
    implementation: str, dtype: str, arch: str, epilogue: str | None
) -> Callable[[], object]:
    from dxgemm import epilogues
    from dxgemm.choice.registry import find_implementation
    from dxgemm.compiler import obtain_kernel
    from dxgemm.lower.ahead import common_specs
    from dxgemm.problem.fusion import Fusion

    spec = common_specs(find_implementation(implementation), (dtype,))[0]
    if epilogue:
        stages = (getattr(epilogues, epilogue),)
        spec = replace(spec, epilogue=Fusion(stages, ()))

    def step() -> str:
        obtain_kernel(spec, arch)
        return str(spec)

    return step


def prepare_build(dtype: str, arch: str | None, implementation: str | None) -> Callable[[], object]:
    import dxgemm

    def step() -> int:
        implementations = (implementation,) if implementation else None
        return len(dxgemm.build(arch=arch, dtypes=(dtype,), implementations=implementations))

    return step


def prepare_nvmath_device(dtype: str, size: int) -> Callable[[], object]:
    import cupy

    # Before the clock starts: dxgemm's own packages, so that what counts is nvmath's.
    from rivals import nvmath_device_call

    from dxgemm import errors

    a, b, out = (cupy.ones((size, size), dtype) for _ in range(3))
    cupy.cuda.Device().synchronize()

    def step() -> None:
        try:
            nvmath_device_call(None, SimpleNamespace(a=a, b=b, out=out))()
        except errors.MissingPackageError as error:
            raise Unavailable(error) from error
        cupy.cuda.Device().synchronize()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=("import", "gemm", "kernel", "build", "nvmath.device"))
    parser.add_argument("statement", nargs="?", default="import dxgemm")
    parser.add_argument("--library", choices=("cupy", "torch", "numpy"), default="cupy")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--implementation")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--arch")
    parser.add_argument("--epilogue", help="of a kernel: one without operands, by its name")
    given = parser.parse_args()
    check = None
    if given.step == "import":
        step = prepare_import(given.statement)
    elif given.step == "gemm":
        step, check = prepare_gemm(given.library, given.dtype, given.implementation, given.size)
    elif given.step == "kernel":
        step = prepare_kernel(given.implementation, given.dtype, given.arch, given.epilogue)
    elif given.step == "build":
        step = prepare_build(given.dtype, given.arch, given.implementation)
    else:
        step = prepare_nvmath_device(given.dtype, given.size)

    before = loaded_compilers()
    start = time.perf_counter()
    try:
        returned = step()
    except Unavailable as reason:
        print(json.dumps({"unavailable": str(reason)}))
        return
    seconds = time.perf_counter() - start
    loaded = sorted(loaded_compilers() - before)
    if check:
        check()
    print(json.dumps({"seconds": seconds, "returned": returned, "loaded": loaded}))


if __name__ == "__main__":
    main()
