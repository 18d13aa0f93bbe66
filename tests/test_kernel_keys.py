"""Keys of kernels: a kernel on disk is that of its key, whatever is rebound, replaced or edited.

A stand-in for the compiler calls the function that it is given with the value 1, and keeps the
result as the cubin. One process changes something between the decoration of an epilogue and its
use; another one, on the same cache, changes nothing.
"""

import enum
import functools
import gc
import importlib
import inspect
import json
import math
import sys
import weakref
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from counted_builds import ARCH, made_up_kernel
from counted_builds import spec as counted_spec

import dxgemm
from dxgemm import epilogues, errors, reductions
from dxgemm.call import route
from dxgemm.compiler import kernels, spec, worker
from dxgemm.epilogues import chain, function
from dxgemm.epilogues.function import find_epilogue
from dxgemm.handwritten.parts.sources import keep_sources, source_text

# A program that makes an epilogue of 5 * value, a change of it to 3 * value, and what the process
# of the change gets: the new factor, or an error.
CASES = {
    "own code": ("def f(value, row, col): return value * 5.0",
                 "e.function.__code__ = (lambda value, row, col: value * 3.0).__code__", 3),
    "code of a helper": ("""
def helper(x): return x * 5.0
def f(value, row, col): return helper(value)
""", "helper.__code__ = (lambda x: x * 3.0).__code__", 3),
    "code of a helper's helper": ("""
def inner(x): return x * 5.0
def outer(x): return inner(x)
def f(value, row, col): return outer(value)
""", "inner.__code__ = (lambda x: x * 3.0).__code__", 3),
    "code of a helper in a tuple": ("""
def helper(x): return x * 5.0
HELPERS = (helper, 1.0)
def f(value, row, col): return HELPERS[0](value)
""", "helper.__code__ = (lambda x: x * 3.0).__code__", 3),
    "code of an epilogue that is called": ("""
def helper(x): return x * 5.0
@dxgemm.epilogue
def called(value, row, col): return helper(value)
def f(value, row, col): return called(value, row, col)
""", "helper.__code__ = (lambda x: x * 3.0).__code__", 3),
    "code and a global at once": ("""
K = 5.0
def helper(x): return x * K
def f(value, row, col): return helper(value)
""", "K = 3.0; helper.__code__ = (lambda x: K * x).__code__", 3),
    "defaults of a helper": ("""
def helper(x, k=5.0): return x * k
def f(value, row, col): return helper(value)
""", "helper.__defaults__ = (3.0,)", 3),
    "keyword defaults of a helper": ("""
def helper(x, *, k=5.0): return x * k
def f(value, row, col): return helper(value)
""", "helper.__kwdefaults__ = {'k': 3.0}", 3),
    "a keyword default in place": ("""
def helper(x, *, k=5.0): return x * k
def f(value, row, col): return helper(value)
""", "helper.__kwdefaults__['k'] = 3.0", "k was 5.0"),
    "a global": ("K = 5.0\ndef f(value, row, col): return value * K", "K = 3.0", "K was 5.0"),
    "a global in a tuple": ("K = (5.0, 1)\ndef f(value, row, col): return value * K[0]",
                            "K = (3.0, 1)", "K was"),
    "a global of a helper": ("""
K = 5.0
def helper(x): return x * K
def f(value, row, col): return helper(value)
""", "K = 3.0", "K was 5.0"),
    "a global of a nested function": ("""
K = 5.0
def f(value, row, col): return (lambda x: x * K)(value)
""", "K = 3.0", "K was 5.0"),
    "a closure variable": ("""
def make():
    k = 5.0
    def f(value, row, col): return value * k
    def change():
        nonlocal k
        k = 3.0
    return f, change
f, change = make()
""", "change()", "k was 5.0"),
    "a helper": ("""
def helper(x): return x * 5.0
def f(value, row, col): return helper(value)
""", "def helper(x): return x * 3.0", "helper was"),
    "a name of a module": ("""
import config
from config import SCALE
def f(value, row, col): return value * SCALE
""", "config.SCALE = 3.0", 5),
    "a name among the builtins": ("""
import builtins
builtins.SCALE = 5.0
def f(value, row, col): return value * SCALE
""", "builtins.SCALE = 3.0", "SCALE was 5.0"),
    "a builtin": ("def f(value, row, col): return round(value) * 5.0",
                  "builtins.round = lambda x: x * 0.6", "round was"),
    "a number of a module": ("""
import math
math.SCALE = 5.0
def f(value, row, col): return value * math.SCALE
""", "math.SCALE = 3.0", "math.SCALE was 5.0"),
    "a number of a module in a module": ("""
import numpy as np
np.linalg.SCALE = 5.0
def f(value, row, col): return value * np.linalg.SCALE
""", "np.linalg.SCALE = 3.0", "numpy.linalg.SCALE was 5.0"),
    "a number of a module that a helper reads": ("""
import numpy as np
np.SCALE = np.float64(5.0)
def helper(x): return x * np.SCALE
def f(value, row, col): return helper(value)
""", "np.SCALE = np.float64(3.0)", "numpy.SCALE was"),
    "a function of a module": ("""
import math
def f(value, row, col): return value * math.perm(5, 1)
""", "math.perm = lambda n, k: 3", "math.perm was"),
    "a name that a module gets": ("""
import math
def f(value, row, col): return value * 5.0 if value > 0.0 else math.LATER
""", "math.LATER = 3.0", "math.LATER was undefined"),
    "a global of a device function": ("""
from numba import cuda
K = 5.0
@cuda.jit(device=True)
def helper(x): return x * K
def f(value, row, col): return helper(value)
""", "K = 3.0", "K was 5.0"),
    "code of a device function": ("""
from numba import cuda
@cuda.jit(device=True, inline="always")
def helper(x): return x * 5.0
def f(value, row, col): return helper(value)
""", "helper.py_func.__code__ = (lambda x: x * 3.0).__code__", 3),
    "a global of a device function, before": ("""
from numba import cuda
K = 3.0
@cuda.jit(device=True)
def helper(x): return x * K
def f(value, row, col): return helper(value)
obtained(dxgemm.epilogue(f))
K = 5.0
""", "pass", 5),
}  # fmt: skip

PROGRAM = """
import builtins, json, pickle, sys, types
import dxgemm
from dxgemm import errors
from dxgemm.choice.registry import find_implementation
from dxgemm.lower.ahead import common_specs
from dxgemm.compiler import kernels, obtain_kernel
from dxgemm.problem.fusion import Fusion
from dataclasses import replace
from counted_builds import made_up_kernel

sys.modules["config"] = types.ModuleType("config")
(plain, *_) = common_specs(find_implementation("coalesced"), ("float32",))

def compile_kernel(spec, arch):
    stage = pickle.loads(pickle.dumps(spec.epilogue.stages[0]))  # as a worker gets it
    assert stage.digest == spec.epilogue.stages[0].digest
    value = stage.make_function(float, lambda function: function, {})(1.0, 0, 0)
    return made_up_kernel(repr(float(value)).encode(), "coalesced", "", arch)

kernels.compile_kernel = compile_kernel

def obtained(epilogue):
    (stage,) = epilogue.bound.stages
    return of_stage(stage)

def of_stage(stage):
    kernel = obtain_kernel(replace(plain, epilogue=Fusion((stage,), ())), "sm_90a")
    return float(kernel.cubin)

results = {}
for name, (program, change, _) in json.loads(sys.argv[1]).items():
    sys.modules["config"].SCALE = 5.0
    scope = {"__name__": "program", "dxgemm": dxgemm, "obtained": obtained, "builtins": builtins}
    exec(program, scope)
    scope["e"] = dxgemm.epilogue(scope["f"])
    (bound,) = scope["e"].bound.stages
    if sys.argv[2] == "changed":
        exec(change, scope)
    results[name] = []
    for obtain, one in ((obtained, scope["e"]), (of_stage, bound)):
        try:
            results[name].append(obtain(one))
        except errors.EpilogueError as error:
            results[name].append(str(error))
print(json.dumps(results))
"""


def test_what_is_changed_between_decoration_and_use_reaches_no_other_process(run_python, tmp_path):
    def run(what):
        environment = {"DXGEMM_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parent)}
        return json.loads(run_python(PROGRAM, json.dumps(CASES), what, **environment))

    changed = run("changed")
    for name, (_, _, expected) in CASES.items():
        found, bound_before = changed[name]
        assert expected in found if isinstance(expected, str) else expected == found, (name, found)
        assert bound_before == 5.0 or "not the same object" in bound_before, (name, bound_before)
    assert run("unchanged") == {name: [5.0, 5.0] for name in CASES}


def test_an_epilogue_follows_code_that_is_replaced_and_what_was_bound_does_not():
    def helper(x):
        return x * 5.0

    @dxgemm.epilogue
    def fivefold(value, row, col):
        return helper(value)

    bound, (first,) = fivefold.bound, fivefold.bound.stages
    helper.__code__ = (lambda x: x * 3.0).__code__
    (second,) = fivefold.bound.stages
    helper.__code__ = (lambda x: x * 2.0).__code__
    (third,) = fivefold.bound.stages
    assert fivefold.bound.stages[0] is third, "it is made once"
    assert len({stage.digest for stage in (first, second, third)}) == 3
    value = np.ones((1, 1), np.float32)
    assert [one.on_host(value)[0] for one in (bound, fivefold.bound)] == [5, 2]


def with_options(signature=None, **options):
    from numba import cuda

    return cuda.jit(signature, **options)(lambda x: x)


@pytest.mark.parametrize("options", [{}, {"device": True, "fastmath": True}], ids=str)
def test_functions_of_numba_that_are_more_than_their_code_are_refused(options):
    helper = with_options(**options)
    with pytest.raises(errors.EpilogueError, match=r"made by cuda.jit with .*plain function"):
        dxgemm.epilogue(lambda value, row, col: helper(value))


SIGNED = """
from numba import cuda
import dxgemm
from dxgemm.compiler.build import _device_functions_for

for signature in ("float32(float32)", ["float32(float32)", "float64(float64)"]):
    with _device_functions_for((9, 0)):
        helper = cuda.jit(signature, device=True)(lambda x: x)
    try:
        dxgemm.epilogue(lambda value, row, col: helper(value))
    except dxgemm.errors.EpilogueError as error:
        print(error)
"""


def test_a_device_function_with_a_signature_is_refused(run_python):
    """The simulator keeps no signature."""
    for line in (lines := run_python(SIGNED).splitlines()):
        assert "made by cuda.jit with a signature" in line and "plain function" in line
    assert len(lines) == 2


COMPILED = """
import math
from dataclasses import replace
from numba import cuda
import dxgemm
from dxgemm.choice.registry import find_implementation
from dxgemm.compiler import compile_kernel
from dxgemm.lower.ahead import common_specs
from dxgemm.problem.fusion import Fusion

(plain, *_) = common_specs(find_implementation("coalesced"), ("float32",))
math.SCALE = 5.0
epilogues = [
    dxgemm.epilogue(lambda value, row, col: cuda.fma(value, math.SCALE, math.pi)),
    dxgemm.epilogue(lambda value, row, col: cuda.libdevice.fast_expf(value)),
    dxgemm.epilogue(lambda value, row, col: value * cuda.LATER),
    dxgemm.epilogue(lambda value, row, col: value * math.LATER),
]
math.SCALE, math.LATER, cuda.LATER = 3.0, 3.0, 3.0
for epilogue in epilogues:
    try:
        kernel = compile_kernel(replace(plain, epilogue=Fusion((epilogue,), ())), "sm_90a")
        print("5" if "0f40A00000" in kernel.ptx else "compiled", kernel.ptx.count(".f64"))
    except dxgemm.errors.BuildError as error:
        print(str(error).splitlines()[0].rpartition(":")[2])
"""


def test_a_kernel_has_the_numbers_of_modules_that_its_key_has(run_python):
    """Those of `math` are weak, as all literals are."""
    scaled, own, *late = run_python(COMPILED).splitlines()
    assert (scaled, own) == ("5 0", "compiled 0")
    assert all("LATER" in error for error in late) and len(late) == 2


class Number(float):
    """Changes in place, and is a float to numba."""

    def __mul__(self, other):
        return 3.0 * other

    __rmul__ = __mul__


class Choice(enum.IntEnum):
    FIVE = 5


class Half(np.float32):
    pass


@pytest.mark.parametrize("value", [Number(5.0), Choice.FIVE, Half(5.0), [5.0]], ids=repr)
def test_what_is_no_plain_number_of_a_module_is_refused(monkeypatch, value):
    for module in (math, np, np.linalg):
        monkeypatch.setattr(module, "SCALE", value, raising=False)
    for reading in (
        lambda x, row, col: x * math.SCALE,
        lambda x, row, col: x * np.linalg.SCALE,
        lambda x, row, col: x * value,
    ):
        with pytest.raises(errors.EpilogueError, match=r"(SCALE|value) is .*could change.*operand"):
            dxgemm.epilogue(reading)


def test_numbers_and_functions_that_are_put_into_a_module_are_in_the_key(monkeypatch):
    def digest():
        return dxgemm.epilogue(lambda value, row, col: value * math.SCALE + math.exp(value)).digest

    @functools.wraps(math.exp)
    def threefold(x):
        return 3.0 * x

    digests = []
    for name, value in (("SCALE", 5.0), ("SCALE", 3.0), ("SCALE", 3), ("exp", threefold)):
        monkeypatch.setattr(math, name, value, raising=False)
        digests.append(digest())
    assert len(set(digests)) == 4 and digest() == digests[-1]


# the library's own kernels


@pytest.fixture
def kernel_file(tmp_path, monkeypatch):
    """A kernel file of a package of its own, imported from what it says here."""
    package = tmp_path / "edited_package"
    package.mkdir()
    (package / "__init__.py").touch()
    path = package / "kernel.py"
    path.write_text("def factor():\n    return 5.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    keep_sources([str(package)])
    yield importlib.import_module("edited_package.kernel"), path
    for name in ("edited_package", "edited_package.kernel"):
        sys.modules.pop(name, None)
    sys.path_importer_cache.pop(str(package), None)


def test_a_file_that_is_edited_after_its_import_counts_as_it_was(kernel_file):
    module, path = kernel_file
    edited = spec.KernelSpec("edited", module.__name__, None, "float32")
    before = path.read_text()
    path.write_text("\n\n" + before.replace("5.0", "3.0"))
    key = edited.key(ARCH)
    assert source_text(str(path)) == before
    assert inspect.getsource(module.factor) == before, "`unroll` reads the source too"
    spec.check_sources(edited)
    importlib.reload(module)
    assert module.factor() == 3.0 and "3.0" in inspect.getsource(module.factor)
    with pytest.raises(errors.BuildError, match=r"source files changed.*restart Python"):
        spec.check_sources(edited)
    assert edited.key(ARCH) == key


def test_every_kernel_file_that_is_imported_keeps_its_text():
    module = importlib.import_module("dxgemm.handwritten.parts.tile_order")
    assert type(module.__loader__).__name__ == "_KeepingLoader"
    assert source_text(module.__file__) == inspect.getsource(module)


def test_a_worker_with_other_sources_builds_nothing():
    asked = counted_spec("one")
    answer = worker._build(asked, ARCH, "the key of another text")
    assert isinstance(answer, errors.BuildError) and "restart Python" in str(answer)


# bounds


def made(number):
    @dxgemm.epilogue
    def shifted(value, row, col):
        return value + number

    return shifted


def test_epilogues_that_are_dropped_are_forgotten():
    def sizes():
        gc.collect()
        tables = function._by_key, chain._shapes, chain._joined
        return [len(table) for table in tables]

    before = sizes()
    references = []
    for number in range(300):
        stage = made(float(number))
        bound = stage | epilogues.relu | reductions.sum(1)
        references += [weakref.ref(stage), weakref.ref(bound.shape)]
    del stage, bound
    assert sizes() == before and not any(reference() for reference in references)


def test_a_key_is_known_as_long_as_one_of_equal_epilogues_lives():
    first, second = made(1.5), made(1.5)
    key = first.key
    del first
    gc.collect()
    assert find_epilogue(key) == second
    del second
    gc.collect()
    with pytest.raises(errors.EpilogueError, match=r"shifted.*were dropped; keep one"):
        find_epilogue(key)


def test_kernels_in_memory_are_bounded_and_those_used_last_are_kept(monkeypatch):
    monkeypatch.setattr(kernels, "_in_memory", OrderedDict())
    first = counted_spec("first")
    for number in range(100):
        name = f"kernel {number}" if number else "first"
        cubin = bytes(1 << 20)
        kernels.keep_kernel(counted_spec(name), ARCH, made_up_kernel(cubin, "counted", name, ARCH))
        assert kernels.find_kernel(first, ARCH) is not None
    kept = sum(len(kernel.cubin) for kernel in kernels._in_memory.values())
    assert kept <= kernels.MOST_BYTES and len(kernels._in_memory) == kernels.MOST_BYTES >> 20


def test_routes_of_new_epilogues_are_bounded(home, monkeypatch):
    monkeypatch.setattr(route, "_MAX_ROUTES", 8)
    a, b = (home.send(np.ones((2, 2), np.float32)) for _ in range(2))
    for number in range(12):
        result = dxgemm.gemm(a, b, epilogue=made(float(number)), implementation="coalesced")
        assert home.fetch(result)[0, 0] == 2 + number
        assert len(route.routes) <= 8
