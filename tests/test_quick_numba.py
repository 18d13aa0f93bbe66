"""What shortens numba's builds changes no kernel, and is gone after a build."""

from __future__ import annotations

import gc

import pytest

from dxgemm.compiler.quick_numba import calls_resolved_once, collector_paused


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


def test_calls_of_numbers_are_resolved_once(monkeypatch):
    types = pytest.importorskip("numba").types
    resolved = []

    def resolve(function, context, arguments, named):
        resolved.append(arguments)
        return len(resolved)

    def call(*arguments, function="add", context="CUDA", **named):
        return types.BaseFunction.get_call_type(function, context, arguments, named)

    monkeypatch.setattr(types.BaseFunction, "get_call_type", resolve)
    int32, three, pair = types.int32, types.literal(3), types.UniTuple(types.float32, 2)
    different = [
        lambda: call(int32, int32),
        lambda: call(int32, three),
        lambda: call(int32, int32, function="mul"),
        lambda: call(int32, int32, context="CPU"),
        lambda: call(pair, pair),
    ]
    with pytest.raises(ZeroDivisionError), calls_resolved_once():
        assert [one() for one in different] == [1, 2, 3, 4, 5]
        assert [one() for one in different] == [1, 2, 3, 4, 5]
        # Pointers, and arguments by name, are resolved each time.
        pointer = types.CPointer(types.float32)
        assert [call(pointer), call(pointer), call(int32, b=int32), call(int32, b=int32)] == [
            *(6, 7, 8, 9)
        ]
        raise ZeroDivisionError
    assert [call(int32, int32), call(int32, int32)] == [10, 11]


COMPILE_TWICE = """
import contextlib, re
from dxgemm.choice.registry import kernel_specs
from dxgemm.compiler import build
spec = kernel_specs(("float32",), ("coalesced",), "sm_90a")[0]
texts = []
for shorten in (build.calls_resolved_once, contextlib.nullcontext):
    build.calls_resolved_once = shorten
    build._ptx_of_family.cache_clear()
    texts.append(re.sub(r"_ZN\\w+|//.*", "", build.compile_kernel(spec, "sm_90a").ptx))
assert len(texts[0]) > 1000 and texts[0] == texts[1]
"""


def test_a_kernel_has_the_same_ptx(run_python):
    run_python(COMPILE_TWICE)
