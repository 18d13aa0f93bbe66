"""A kernel that cannot be built is replaced by the next candidate, with a warning and a reason."""

import numpy as np
import pytest

import dxgemm
from dxgemm import errors
from dxgemm.call import bind
from dxgemm.call.asked import Asked
from dxgemm.call.resolve import resolve
from dxgemm.call.route import clear_routes
from dxgemm.choice.selection import rank
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.layout import Layout
from dxgemm.runtime.device import device_facts


@pytest.fixture
def no_build(monkeypatch):
    """Refuses to build the implementations named."""
    lowered = bind.lower_candidate

    def forbid(*names):
        def refuse(problem, candidate, device):
            name = candidate.implementation.name
            if name in names:
                raise errors.BuildError(f"no {name} today")
            return lowered(problem, candidate, device)

        monkeypatch.setattr(bind, "lower_candidate", refuse)
        clear_routes()

    yield forbid
    clear_routes()


def test_the_next_candidate_takes_its_place(no_build, home):
    a, b = (home.send(np.arange(9, dtype=np.float32).reshape(3, 3)) for _ in range(2))
    first = dxgemm.explain(a, b).implementation
    no_build(first)
    with pytest.warns(RuntimeWarning, match=rf" takes the place of {first} .*: no {first} today"):
        plan = dxgemm.plan(a, b)
    np.testing.assert_array_equal(home.fetch(plan()), home.fetch(a) @ home.fetch(b))
    explained = plan.explain()
    assert explained.implementation != first
    assert f"no {first} today" in explained.choice.rejected[first]


def test_no_candidate_left_is_an_error_with_every_reason(no_build, home):
    a = home.send(np.ones((2, 2), np.float32))
    no_build(*(implementation.name for implementation in dxgemm.implementations()))
    with pytest.raises(errors.BuildError, match="today") as caught:
        dxgemm.gemm(a, a)
    candidates = rank(contiguous_problem("float32", 2, 2, 2), device_facts(0)).candidates
    names = [candidate.implementation.name for candidate in candidates]
    assert len(names) > 1 and all(f"no {name} today" in str(caught.value) for name in names)


def test_a_name_is_never_replaced(no_build, home):
    a = home.send(np.ones((2, 2), np.float32))
    no_build("coalesced")
    with pytest.raises(errors.BuildError, match="no coalesced today"):
        dxgemm.gemm(a, a, implementation="coalesced")


@pytest.mark.skipif(not simulator_enabled(), reason="the simulator is off")
def test_the_simulator_refuses_arrays_on_a_gpu():
    layout = Layout((2, 2), (8, 4), "float32", 0, read_only=False)
    with pytest.raises(errors.DeviceMismatchError, match="NUMBA_ENABLE_CUDASIM"):
        resolve(Asked({"a": layout, "b": layout}, False, True))
