"""What shortens numba's builds changes no kernel, and is gone after a build."""

import gc

import pytest

from dxgemm.compiler import quick_numba
from dxgemm.compiler.quick_numba import collector_paused


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_collector_is_paused_and_then_as_before(is_enabled):
    before = gc.isenabled()
    try:
        gc.enable() if is_enabled else gc.disable()
        with pytest.raises(ZeroDivisionError), collector_paused():
            assert not gc.isenabled()
            raise ZeroDivisionError
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable() if before else gc.disable()


def test_calls_of_numbers_are_resolved_once():
    types = pytest.importorskip("numba").types
    resolved = []

    def resolve(function, context, arguments, named):
        resolved.append(arguments)
        return len(resolved)

    resolving_once = quick_numba._resolving_once(resolve)

    def call(*arguments, function="add", context="CUDA", **named):
        return resolving_once(function, context, arguments, named)

    int32, three, pair = types.int32, types.literal(3), types.UniTuple(types.float32, 2)
    different = [
        lambda: call(int32, int32),
        lambda: call(int32, three),
        lambda: call(int32, int32, function="mul"),
        lambda: call(int32, int32, context="CPU"),
        lambda: call(types.Tuple(()), pair),
        lambda: call(types.Tuple((int32, pair)), pair),
        lambda: call(types.NumberClass(int32), types.CPointer(int32)),
    ]
    assert [one() for one in different] == [1, 2, 3, 4, 5, 6, 7]
    assert [one() for one in different] == [1, 2, 3, 4, 5, 6, 7]
    # Other types, in tuples too, and arguments by name are resolved each time.
    text = types.unicode_type
    for other in (lambda: call(text), lambda: call(types.Tuple((text,)))):
        assert other() != other()
    assert call(int32, b=int32) != call(int32, b=int32)


REPLACED = """
from importlib import import_module
from operator import attrgetter
from dxgemm.compiler import quick_numba
import numba.cuda

def values():
    return [attrgetter(path)(import_module(module)) for module, path in quick_numba._REPLACEMENTS]

originals = values()
quick_numba._REPLACEMENTS["numba.cuda", "gone.elsewhere"] = None
quick_numba._REPLACEMENTS["numba.cuda.gone", "elsewhere"] = None
try:
    with quick_numba.short_builds():
        del quick_numba._REPLACEMENTS["numba.cuda", "gone.elsewhere"]
        del quick_numba._REPLACEMENTS["numba.cuda.gone", "elsewhere"]
        assert not any(new is old for new, old in zip(values(), originals, strict=True))
        raise ZeroDivisionError
except ZeroDivisionError:
    assert values() == originals and len(originals) == 7
"""


def test_numba_is_then_as_before(run_python):
    pytest.importorskip("numba")
    run_python(REPLACED)


COMPILE_TWICE = """
import contextlib, re, sys
from dxgemm import epilogues
from dxgemm.lower.ahead import kernel_specs
from dxgemm.compiler import build
from dxgemm.problem.fusion import Fusion
from dataclasses import replace
spec = kernel_specs(("float32",), ("thread_tile_1d",), "sm_90a")[-1]
spec = replace(spec, epilogue=Fusion((epilogues.gelu,), ()))
texts = []
for shorten in (build.short_builds, contextlib.nullcontext):
    build.short_builds = shorten
    build._ptx_of_family.cache_clear()
    texts.append(re.sub(r"_ZN\\w+|_smem_\\d+|//.*", "", build.compile_kernel(spec, "sm_90a").ptx))
    assert "scipy.linalg" not in sys.modules or shorten is contextlib.nullcontext
assert len(texts[0]) > 1000 and texts[0] == texts[1]
"""


@pytest.mark.long_build
def test_a_kernel_has_the_same_ptx(run_python):
    run_python(COMPILE_TWICE)
