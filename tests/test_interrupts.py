"""Calls in signal handlers and finalizers, which interrupt another call of their thread."""

import pytest

# The program ends itself where it would wait forever. A handler that runs after the timer was
# stopped must not set it again: Python dies of a signal at its exit.
PROGRAM = """
import faulthandler, gc, signal, sys
import numpy as np
faulthandler.dump_traceback_later(120, exit=True)
import dxgemm
from dxgemm import errors

ones, results, refusals = np.ones((9, 5), np.float32), [], []
interrupting = sys.argv[1] == "signal"
other = np.ones((5, 9), np.float32)
dxgemm.gemm(other, ones)

def call(*_):
    try:
        results.append(dxgemm.gemm(other, ones))
    except errors.DxgemmError as error:
        refusals.append(error)
    if interrupting:
        signal.setitimer(signal.ITIMER_REAL, 0.002 * (1 + len(results + refusals) % 5))

class Cyclic:
    def __init__(self):
        self.itself = self
    __del__ = call

signal.signal(signal.SIGALRM, call)
gc.set_threshold(50)  # collects often, in the middle of a call
call()
calls = 0
while calls < 8 or (len(results + refusals) < 3 and calls < 1000):  # a call may be quick
    calls += 1
    if sys.argv[1] == "finalizer":
        Cyclic()
    assert (dxgemm.gemm(ones, other) == 5).all()
interrupting = False
signal.setitimer(signal.ITIMER_REAL, 0)
assert len(results + refusals) > 2, "nothing was interrupted"
assert all((result == 9).all() for result in results)
assert (dxgemm.gemm(other, ones) == 9).all()
"""


@pytest.mark.parametrize("kind", ["signal", "finalizer"])
def test_a_simulated_call_may_be_interrupted_by_another(run_python, kind):
    run_python(PROGRAM, kind, NUMBA_ENABLE_CUDASIM="1")


# A call at each import of a first call: by then, a signal may come.
FIRST_USE = """
import sys
import numpy as np, dxgemm

ones, refusals, is_interrupting = np.ones((3, 3), np.float32), [], False
calls = {
    "gemm": lambda: dxgemm.gemm(ones, ones),
    "matmul": lambda: dxgemm.matmul(ones[None, None], ones)[0, 0],
    "gemm_symmetric": lambda: dxgemm.gemm_symmetric(ones),
    "gemm_grouped": lambda: dxgemm.gemm_grouped([ones], [ones])[0],
    "plan": lambda: dxgemm.plan(ones, ones)(),
}
homes = {name: dxgemm._HOMES.get(name, "api") for name in calls}
home = homes[sys.argv[1]]  # a call of another one imports what it needs itself

class Interrupts:
    def find_spec(self, name, path, target=None):
        global is_interrupting
        if is_interrupting or name == f"dxgemm.{home}":
            return
        is_interrupting = True
        for called, call in calls.items():
            if homes[called] != home:
                continue
            try:
                assert (call() == 3).all()
            except dxgemm.errors.LaunchError as error:
                assert str(error).startswith(f"{called}: a signal handler or finalizer"), error
                refusals.append(name)
        is_interrupting = False

sys.meta_path.insert(0, Interrupts())
assert (calls[sys.argv[1]]() == 3).all()
assert "dxgemm.call.prepare" in refusals and "dxgemm.runtime.turn_taking" in refusals, refusals
is_interrupting = True
for call in calls.values():
    assert (call() == 3).all()
"""


@pytest.mark.parametrize("call", ["gemm", "gemm_grouped"])
def test_a_first_use_may_be_interrupted_by_another(run_python, call):
    run_python(FIRST_USE, call, NUMBA_ENABLE_CUDASIM="1")


ON_A_GPU = """
import faulthandler, gc, signal, sys, time
faulthandler.dump_traceback_later(120, exit=True)
import cupy, dxgemm
from dxgemm.choice.registry import find_implementation

a, out, other = cupy.ones((64, 64), "f4"), cupy.empty((64, 64), "f4"), cupy.empty((64, 64), "f4")
config = find_implementation("tuned").configs("float32")[-1]
kinds = [{}, {"implementation": ("tuned", config, 2)}, {"precision": "emulated"}]
plans = [dxgemm.plan(a, a, out, **options) for options in kinds]
calls, interrupting = 0, sys.argv[1] == "signal"

def call(*_):
    global calls
    calls += 1
    options = kinds[calls % len(kinds)]
    dxgemm.gemm(a, a, out=other, **options)
    plans[calls % len(plans)]()
    if interrupting:
        signal.setitimer(signal.ITIMER_REAL, 0.0003)

class Cyclic:
    def __init__(self):
        self.itself = self
    __del__ = call

signal.signal(signal.SIGALRM, call)
gc.set_threshold(20)
for options in kinds:
    dxgemm.gemm(a, a, out=out, **options)
call()
end = time.monotonic() + 2
while time.monotonic() < end:
    for options, plan in zip(kinds, plans):
        if sys.argv[1] == "finalizer":
            Cyclic()
        dxgemm.gemm(a, a, out=out, **options)
        plan()
interrupting = False
signal.setitimer(signal.ITIMER_REAL, 0)
cupy.cuda.Device().synchronize()
assert calls > 100, calls
assert (out == 64).all() and (other == 64).all()
"""


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["signal", "finalizer"])
def test_a_call_may_be_interrupted_by_another(cupy, run_python, kind):
    run_python(ON_A_GPU, kind)
