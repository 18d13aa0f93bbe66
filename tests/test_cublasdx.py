"""cuBLASDx pipelines without a GPU: what is asked for, what is kept, what is refused, one build."""

import dataclasses
import json
import struct
import sys
from types import SimpleNamespace

import pytest
from known_devices import H200
from stored_functions import ARCH, DESCRIPTOR, FUNCTIONS, counted_builds, forget

from dxgemm import errors
from dxgemm.builds import build_tasks
from dxgemm.choice.registry import find_implementation
from dxgemm.choice.selection import choose
from dxgemm.compiler import kernel_store, toolkit
from dxgemm.compiler.build import PARAMETER_BLOCK, _with_parameter_block
from dxgemm.cublasdx import function_store, library, pipeline, pipeline_tma, warp_turns
from dxgemm.cublasdx.mathdx import ITEM_BYTES
from dxgemm.handwritten.parts.tile_store import tile_bytes
from dxgemm.lower.ahead import kernel_specs
from dxgemm.problem.define import contiguous_problem


@pytest.fixture
def store(monkeypatch, tmp_path):
    with counted_builds(monkeypatch, tmp_path, FUNCTIONS) as built:
        yield built


@pytest.fixture(scope="module")
def device_libraries():
    """Libraries that build device functions: nvmath-python, libmathdx and NVRTC."""
    try:
        return library.library()
    except errors.MissingPackageError as error:
        pytest.skip(str(error))


def obtain_again():
    forget()
    return function_store.obtain_functions(DESCRIPTOR)


def test_device_functions_are_built_once(store):
    assert function_store.obtain_functions(DESCRIPTOR) == FUNCTIONS
    assert obtain_again() == FUNCTIONS
    assert store == [DESCRIPTOR]


def test_another_descriptor_or_library_is_another_build(store, monkeypatch):
    obtain_again()
    function_store.obtain_functions(dataclasses.replace(DESCRIPTOR, stages=3))
    monkeypatch.setattr(function_store, "installed_versions", lambda _: ("libmathdx 9",))
    obtain_again()
    assert len(store) == 3


def test_functions_that_want_more_shared_memory_are_refused(store):
    size = FUNCTIONS.buffer.size
    assert function_store.obtain_fitting_functions(DESCRIPTOR, size) == FUNCTIONS
    with pytest.raises(errors.BuildError, match=f"wants {size} bytes .* {size - 1} were expected"):
        function_store.obtain_fitting_functions(DESCRIPTOR, size - 1)


@pytest.mark.parametrize("damage", [lambda b: b[:100], lambda b: b"", lambda b: b[:-1] + b"!"])
def test_damaged_device_functions_are_built_again(store, tmp_path, damage):
    obtain_again()
    (path,) = (tmp_path / "device_functions" / "entries").glob("*/*")
    path.write_bytes(damage(path.read_bytes()))
    assert obtain_again() == FUNCTIONS
    assert len(store) == 2


def test_an_unwritable_directory_is_no_obstacle(store, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DXGEMM_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        assert obtain_again() == FUNCTIONS


def test_clearing_the_cache_takes_device_functions_along(store):
    obtain_again()
    assert kernel_store().clear() == 0, "no kernels"
    obtain_again()
    assert len(store) == 2


def problem(dtype, m, n, k, *, out_dtype=None, precision=None, **changes):
    rows = contiguous_problem(dtype, m, n, k, out_dtype=out_dtype, precision=precision)
    return dataclasses.replace(rows, **changes)


def columns(m):
    """A product whose a is column-major."""
    asked = problem("float64", m, 256, 256)
    return dataclasses.replace(asked, a=asked.a._replace(row=1, col=256))


@pytest.mark.parametrize(
    "asked, expected",
    [
        (problem("float64", 256, 256, 256), ("row", "row", "16")),
        (problem("float64", 256, 256, 255), ("row", "row", "item")),  # rows of a are misaligned
        (problem("float64", 255, 256, 256), ("row", "row", "16")),  # m only counts rows
        (problem("float64", 256, 256, 256, a_alignment=8), ("row", "row", "item")),
        (problem("float32", 256, 258, 256), ("row", "row", "item")),
        (columns(256), ("col", "row", "16")),
        (columns(255), ("col", "row", "item")),  # a tile at the lower edge begins at an odd row
    ],
)
def test_wide_copies_are_used_where_every_tile_is_aligned(asked, expected):
    config = next(c for c in pipeline.KERNEL.configs if c.dtype == asked.dtype)
    assert pipeline.KERNEL.variant(config, asked) == expected


@pytest.mark.parametrize(
    "dtype, b_direction, arch, expected",
    [
        ("float64", "row", "sm_90a", 16),
        ("int8", "row", "sm_90a", 16),
        ("int8", "col", "sm_90a", 8),
        ("int8", "col", "sm_89", 16),
        ("float16", "row", "sm_120", 8),
        ("bfloat16", "row", "sm_80", 16),
    ],
)
def test_copies_are_narrower_where_cublasdx_would_take_tma(dtype, b_direction, arch, expected):
    config = next(config for config in pipeline.KERNEL.configs if config.dtype == dtype)
    layouts = ("row", b_direction)
    assert pipeline.descriptor(config, dtype, *layouts, "16", arch=arch).alignment == expected
    item_bytes = ITEM_BYTES[dtype]
    assert pipeline.descriptor(config, dtype, *layouts, "item", arch=arch).alignment == item_bytes


def test_tma_states_what_it_cannot_do():
    assert pipeline_tma.KERNEL.supports(problem("float16", 64, 64, 64)) is None
    assert "16 bytes" in pipeline_tma.KERNEL.supports(problem("float16", 64, 64, 63))
    assert "16 bytes" in pipeline_tma.KERNEL.supports(
        problem("bfloat16", 64, 64, 64, a_alignment=2)
    )
    assert pipeline_tma.KERNEL.supports(problem("float16", 64, 64, 0)) is None  # nothing is read
    assert "precision='tf32'" in pipeline_tma.KERNEL.supports(problem("float32", 64, 64, 64))


def arranged(dtype, a_order, b_order, **changes):
    rows = problem(dtype, 64, 64, 64, **changes)
    a = rows.a.transposed() if a_order == "col" else rows.a
    b = rows.b.transposed() if b_order == "col" else rows.b
    return dataclasses.replace(rows, a=a, b=b)


ORDERS = [(a_order, b_order) for a_order in ("row", "col") for b_order in ("row", "col")]


@pytest.mark.parametrize("a_order, b_order", ORDERS)
def test_int8_is_copied_for_tma_where_it_lies_otherwise(a_order, b_order):
    odd = dataclasses.replace(arranged("int8", a_order, b_order, out_dtype="int32"), a_alignment=1)
    assert "16 bytes" in pipeline_tma.KERNEL.supports(odd)
    aligned = find_implementation("pipeline_tma").computed(odd)
    assert pipeline_tma.KERNEL.supports(aligned) is None
    assert pipeline.KERNEL.variant(pipeline.KERNEL.configs[-1], odd) == (a_order, b_order, "item")


@pytest.mark.parametrize("a_order, b_order", ORDERS)
def test_tma_takes_tf32_along_k(a_order, b_order):
    reason = pipeline_tma.KERNEL.supports(arranged("float32", a_order, b_order, precision="tf32"))
    assert (reason is None) == ((a_order, b_order) == ("row", "col"))


def test_a_parameter_by_value_is_appended_wherever_the_kernel_is_named():
    called = f"""
define i64 @"called"()
{{
  %1 = call i64 asm "mov.b64 $0, {PARAMETER_BLOCK};", "=l"()
}}
"""
    module = f"""
define void @"kernel"(double* %".1", i64 %".2")
{{
  call void asm "mov.b64 $0, {PARAMETER_BLOCK};", ""()
}}
@"llvm.used" = [1 x i8*] [i8* bitcast (void (double*, i64)* @"kernel" to i8*)]
!0 = !{{ void (double*, i64)* @"kernel", !"kernel", i32 1 }}
"""
    before, patched = _with_parameter_block([called, module], PARAMETER_BLOCK, 576)
    assert '@"kernel"(double* %".1", i64 %".2", [576 x i8]* byval align 64 %".block2")' in patched
    assert patched.count('void (double*, i64, [576 x i8]*)* @"kernel"') == 2
    assert "mov.b64 $0, kernel_param_2;" in patched
    assert before == called.replace(PARAMETER_BLOCK, "kernel_param_2"), "of a device function"
    assert _with_parameter_block([called], PARAMETER_BLOCK, 576) == [called]


class Refused(Exception):
    """Stand-in for the error that nvmath raises if the library fails."""


def test_a_failure_is_told_in_the_words_of_the_library(monkeypatch):
    monkeypatch.setattr(library, "library", lambda: SimpleNamespace(LibMathDxError=Refused))
    with (
        pytest.raises(errors.BuildError, match=r"libmathdx: ERROR: no such atom\ntwo\nthree$"),
        library.tell_failures(),
    ):
        raise Refused("ERROR: no such atom\ntwo\nthree\nof a template")


def test_a_missing_library_names_the_extra(monkeypatch):
    pathfinder = pytest.importorskip("cuda.pathfinder")

    def find(name):
        raise pathfinder.DynamicLibNotFoundError(f'Failure finding "lib{name}.so"')

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", find)
    with pytest.raises(errors.MissingPackageError, match=r"libnvrtc.*dxgemm\[cu13\]"):
        library.library.__wrapped__()


@pytest.fixture
def stand_in(monkeypatch):
    """Libraries that are found, and nvmath.bindings to put a stand-in for mathdx into."""
    pathfinder = pytest.importorskip("cuda.pathfinder")
    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", lambda name: None)
    monkeypatch.setattr(library, "_libmathdx", lambda: None)
    monkeypatch.setattr(library, "_bind_without_driver", lambda libmathdx: None)

    def put(**modules):
        monkeypatch.setitem(sys.modules, "nvmath", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "nvmath.bindings", SimpleNamespace(**modules))

    return put


def test_a_missing_nvmath_names_the_extra(monkeypatch, stand_in):
    for name in ("nvmath", "nvmath.bindings"):  # one test before may have imported both
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(errors.MissingPackageError, match=r"nvmath\.bindings.*dxgemm\[cu13\]"):
        library.library.__wrapped__()


@pytest.mark.parametrize("version", [(0, 3, 0), (0, 4, 1), (1, 0, 0)])
def test_a_library_of_another_version_is_refused(stand_in, version):
    stand_in(mathdx=SimpleNamespace(get_version_ex=lambda: version))
    with pytest.raises(errors.BuildError, match=r"0\.3\.1 or later, before 0\.4\.0"):
        library.library.__wrapped__()


def test_a_failure_of_the_library_itself_is_a_build_error(device_libraries):
    with pytest.raises(errors.BuildError, match="INVALID_VALUE"), library.tell_failures():
        device_libraries.cublasdx_create_tensor(-1, 0)  # no such descriptor


WITHOUT_DRIVER = """
import ctypes

class Library(ctypes.CDLL):
    def __init__(self, name, *arguments, **options):
        if name and "libcuda.so" in name:
            raise OSError("no driver")
        super().__init__(name, *arguments, **options)

ctypes.CDLL = Library
from dxgemm.cublasdx.library import library
import nvmath.bindings._internal.mathdx as loader
theirs = dict(loader.__pyx_capi__)
mathdx = library()
replaced = [name for name, capsule in theirs.items() if loader.__pyx_capi__[name] is not capsule]
assert "_cublasdxFinalizeDeviceFunctions" in replaced, replaced
assert mathdx.cublasdx_create_descriptor() > 0
"""


def test_the_bindings_work_without_a_driver(run_python, device_libraries):
    run_python(WITHOUT_DRIVER)


REFUSE_TOOLKIT = """
from dxgemm import errors
from dxgemm.choice.registry import find_implementation
from dxgemm.lower.ahead import common_specs
from dxgemm.compiler import build
build.pipeline_faults = lambda: ["nvidia-nvjitlink 13.4 is bad"]
spec = common_specs(find_implementation("pipeline"), ("float64",))[0]
try:
    build.compile_kernel(spec, "sm_90a")
except errors.BuildError as error:
    print(error)
"""


def test_a_toolkit_known_to_miscompile_is_refused(run_python):
    assert "nvidia-nvjitlink 13.4 is bad." in run_python(REFUSE_TOOLKIT)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("nvidia-nvjitlink", "13.1.115", "13.2.51"),
        ("nvidia-nvjitlink-cu12", "12.9.86", "12.9.41"),
        ("nvidia-cuda-nvcc-cu12", "12.6.85", "12.8.61"),
        ("nvidia-cuda-nvrtc-cu12", "12.5.82", "12.5.40"),
    ],
)
def test_the_first_release_with_a_fault_is_known(monkeypatch, name, good, bad):
    monkeypatch.setattr(toolkit, "installed_versions", lambda packages: {})
    for number, count in ((good, 0), (bad, 1)):
        monkeypatch.setattr(toolkit, "toolkit_versions", lambda number=number: {name: number})
        faults = toolkit.pipeline_faults.__wrapped__()
        assert len(faults) == count and all(f"{name} {number} " in fault for fault in faults)


def test_no_pipeline_is_built_with_a_linker_that_spoils_them(configs_of_a_gpu, monkeypatch):
    fault = "nvidia-nvjitlink 13.4 is bad"
    monkeypatch.setattr("dxgemm.choice.implementation.pipeline_faults", lambda: (fault,))
    problem = contiguous_problem("int8", 4096, 4096, 4096)
    for name in ("pipeline", "pipeline_tma"):
        with pytest.raises(errors.UnsupportedProblemError, match=f"{name}.*{fault}"):
            choose(problem, H200, name)
        with pytest.raises(errors.BuildError, match=f"no {name} for {ARCH}: {fault}"):
            build_tasks([ARCH], ("int8",), (name,))


DMMA, LDS, IDLE = 0x0000_0088_9878_723F, 0x0000_0000_C588_7984, 0x0000_003F_3F3F_F290
KEEP, REUSE, BARRIER = 1 << 45, 1 << 58, 1 << 46


def of_idle(cycles):
    return IDLE, 0x0FFF_E03F | KEEP | cycles << 41


@pytest.mark.parametrize(
    "given, expected",
    [
        ([(11, KEEP | REUSE | BARRIER), 5], [(15, BARRIER), 1]),
        ([(11, KEEP), 11, 10], [(15, 0), 11, 6]),
        ([(8, KEEP)], [(8, KEEP)]),  # nothing to take over
        ([(3, KEEP), 1], [(3, 0), 1]),
    ],
    ids=["one", "two", "none", "short"],
)
@pytest.mark.parametrize("operation", [DMMA, LDS], ids=["dmma", "lds"])
def test_a_wait_is_moved_to_the_instruction_that_begins_it(operation, given, expected):
    def words(instructions):
        (cycles, bits), *idle = instructions
        return [(DMMA, 0x1080), (operation, 0x1028 | bits | cycles << 41), *map(of_idle, idle)]

    lower, upper = map(list, zip(*words(given), strict=True))
    warp_turns._lengthen_waits(tuple(lower), upper)
    assert list(zip(lower, upper, strict=True)) == words(expected)
    assert sum(map(warp_turns._wait, upper)) == given[0][0] + sum(given[1:])


BUILD_ONE = """
import dataclasses, json, sys
from dxgemm.choice.registry import find_implementation
from dxgemm.compiler import compile_kernel
from dxgemm.cublasdx.warp_turns import take_turns
implementation = find_implementation("pipeline")
config = next(c for c in implementation.configs("float64") if c.blocks_per_sm == 2)
spec = implementation.spec(config, "float64", ("row", "row", "16"))
kernel = compile_kernel(spec, "sm_90a")
assert "nvmath.device" not in sys.modules
assert take_turns(kernel.cubin) == kernel.cubin, "it has been done"
print(json.dumps({**dataclasses.asdict(kernel.record), "ptx": kernel.ptx}))
"""


@pytest.fixture(scope="module")
def kernel(run_python, once, device_libraries):
    """A kernel built from nothing: NVRTC, NVVM and nvJitLink, no GPU."""
    if faults := toolkit.pipeline_faults():
        pytest.skip(faults[0])
    return json.loads(once("pipeline.json", lambda: run_python(BUILD_ONE)))


@pytest.mark.long_build
def test_the_sums_of_a_pipeline_stay_in_registers(kernel):
    assert kernel["stack_bytes"] <= 16, "a frame of barriers' tokens, no sums"
    assert kernel["registers"] * kernel["threads"] * 2 <= 65536, "two blocks a multiprocessor"
    assert kernel["smem_bytes"] <= 227 * 1024 // 2


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
def test_a_pipeline_runs_only_by_its_name(configs_of_a_gpu, dtype):
    automatic = {spec.implementation for spec in kernel_specs((dtype,), arch=ARCH)}
    assert not automatic & {"pipeline", "pipeline_tma"}
    assert kernel_specs((dtype,), ("pipeline",), arch=ARCH)


@pytest.mark.parametrize("config", pipeline.KERNEL.configs, ids=str)
def test_barriers_lie_behind_the_tile_of_the_result(config):
    stages = config.stages * config.stage_bytes(config.dtype)
    barriers = config.pipeline_start(config.dtype) + stages
    assert barriers >= tile_bytes(config.tile_m, config.tile_n, pipeline.SUMS[config.dtype])
    assert config.smem_bytes(config.dtype) == barriers + config.stages * 16 + 4


def test_the_pipeline_object_is_two_maps_and_the_extents_behind_them():
    config = pipeline_tma.KERNEL.configs[0]
    asked = problem("float16", 200, 136, 72)
    a_map, a_rest, b_map, b_rest, end = pipeline_tma.KERNEL.tensor_maps(config, asked)
    assert 2 * 128 + len(a_rest) + len(b_rest) + len(end) == pipeline_tma.PARAMETER_BLOCK_BYTES
    depth = config.stages * 64  # all stages are waited for, though k is shorter
    assert struct.unpack_from("<3i", a_rest, 64) == (200, depth, 1)
    assert struct.unpack_from("<3i", b_rest, 64) == (depth, 136, 1)
    assert (a_map.sizes, a_map.box) == ((72, 200, 1), (64, config.tile_m, 1))
    assert (b_map.sizes, b_map.box) == ((136, 72, 1), (64, 8, 1))
    narrow = next(config for config in pipeline_tma.KERNEL.configs if config.tile_n == 64)
    _, _, b_map, *_ = pipeline_tma.KERNEL.tensor_maps(narrow, asked)
    assert b_map.box == (64, 64, 1), "as wide as the swizzle: the whole tile at once"
    (nothing,) = pipeline_tma.KERNEL.tensor_maps(config, problem("float16", 200, 136, 0))
    assert nothing == bytes(pipeline_tma.PARAMETER_BLOCK_BYTES)
